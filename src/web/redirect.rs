//! Redirects after sign-in: only to paths of this server (no open redirect).

/// Maximum length of a path, in bytes.
const LENGTH_MAX: usize = 512;
/// The home page, the default target.
pub(super) const HOME: &str = "/projects";

/// Returns the path if every browser resolves it to this server, otherwise [`HOME`].
pub(super) fn safe_path(next: &str) -> &str {
    let mut bytes = next.bytes();
    let rooted = bytes.next() == Some(b'/') && !matches!(bytes.next(), Some(b'/' | b'\\'));
    // Browsers read a backslash as a slash and drop tabs and line ends before parsing.
    let plain = next
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'<' | b'>'));
    let outside_sign_in = !next.starts_with("/sign-");
    if rooted && plain && outside_sign_in && next.len() <= LENGTH_MAX {
        next
    } else {
        HOME
    }
}

/// Returns the path of the sign-in page that redirects to `next` afterwards.
pub(super) fn sign_in_path(next: &str) -> String {
    match safe_path(next) {
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
    fn only_paths_of_this_server_are_accepted() {
        for path in [
            "/",
            "/projects",
            "/account",
            "/account/sessions?done=ended#top",
            "/a//b",
            "/%2f%2fevil.example",
            "/@evil.example",
            "/a:b",
        ] {
            assert_eq!(safe_path(path), path);
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
            assert_eq!(safe_path(wrong), HOME, "{wrong:?}");
        }
        assert_eq!(safe_path(&format!("/{}", "x".repeat(LENGTH_MAX))), HOME);
    }

    proptest! {
        #[test]
        fn every_input_redirects_to_this_server(next in "[/\\\\ \t\n\r.a-z:@?#%0-9\u{0}-\u{7f}]{0,40}") {
            let safe = safe_path(&next);
            // No scheme and no host, as a browser resolves it.
            prop_assert!(safe.starts_with('/') && !safe.starts_with("//") && !safe.contains(['\\', '\t', '\n', '\r']));
        }
    }

    #[test]
    fn sign_in_path_carries_the_target() {
        assert_eq!(sign_in_path(HOME), "/sign-in");
        assert_eq!(sign_in_path("//evil.example"), "/sign-in");
        assert_eq!(
            sign_in_path("/account?a=b&c=d"),
            "/sign-in?next=%2Faccount%3Fa%3Db%26c%3Dd"
        );
    }
}
