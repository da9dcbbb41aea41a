//! Where somebody wanted to go before signing in.

/// Longest way that is kept.
const LENGTH_MAX: usize = 512;
/// The first page: where a sign-in leads otherwise.
pub(super) const HOME: &str = "/projects";

/// The way, if it leads to a page of this server however a browser reads it, and else home.
pub(super) fn safe(next: &str) -> &str {
    let mut bytes = next.bytes();
    let rooted = bytes.next() == Some(b'/') && !matches!(bytes.next(), Some(b'/' | b'\\'));
    // A backslash is a slash to browsers, and they drop tabs and line ends before they look.
    let plain = next
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'<' | b'>'));
    let onward = !next.starts_with("/sign-");
    if rooted && plain && onward && next.len() <= LENGTH_MAX {
        next
    } else {
        HOME
    }
}

/// The sign-in page that leads there afterwards.
pub(super) fn sign_in(next: &str) -> String {
    match safe(next) {
        HOME => "/sign-in".to_owned(),
        next => format!(
            "/sign-in?{}",
            form_urlencoded::Serializer::new(String::new())
                .append_pair("next", next)
                .finish()
        ),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_ways_within_this_server_are_kept() {
        for kept in [
            "/",
            "/projects",
            "/account",
            "/account/sessions?done=ended#top",
            "/a//b",
            "/%2f%2fevil.example",
            "/@evil.example",
            "/a:b",
        ] {
            assert_eq!(safe(kept), kept);
        }
        let elsewhere = [
            "",
            "account",
            "//evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "///evil.example",
            "/\\/evil.example",
            "https://evil.example",
            "https:evil.example",
            "HTTPS://evil.example",
            "javascript:alert(1)",
            "data:text/html,x",
            "/\t/evil.example",
            "/\n/evil.example",
            "\t//evil.example",
            " //evil.example",
            "/ /evil.example",
            "/\u{2028}x",
            "/é",
            "/\u{0}",
            "/a\r\nSet-Cookie: x=y",
            "/a\\..\\b",
            "?next=//evil.example",
            "#",
            ".",
            "./x",
            "../x",
            "@evil.example",
            "/sign-in",
            "/sign-in?next=/sign-in",
            "/sign-out",
            "/\"><script>",
            "ws://evil.example",
            "/\u{7f}/evil.example",
        ];
        for wrong in elsewhere {
            assert_eq!(safe(wrong), HOME, "{wrong:?}");
        }
        assert_eq!(safe(&format!("/{}", "x".repeat(LENGTH_MAX))), HOME);
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_leads_to_this_server(next in "[/\\\\ \t\n\r.a-z:@?#%0-9\u{0}-\u{7f}]{0,40}") {
            let safe = safe(&next);
            // As a browser resolves it: no scheme, no host.
            prop_assert!(safe.starts_with('/') && !safe.starts_with("//") && !safe.contains(['\\', '\t', '\n', '\r']));
        }
    }

    #[test]
    fn the_sign_in_page_says_where_it_leads() {
        assert_eq!(sign_in(HOME), "/sign-in");
        assert_eq!(sign_in("//evil.example"), "/sign-in");
        assert_eq!(
            sign_in("/account?a=b&c=d"),
            "/sign-in?next=%2Faccount%3Fa%3Db%26c%3Dd"
        );
    }
}
