//! Redirect URIs: rules for registration and for matching.

use std::net::IpAddr;

use url::{Host, Url};

/// Maximum length of a redirect URI in bytes.
pub const LENGTH_MAX: usize = 2_048;

/// Returns why a redirect URI cannot be registered, if it cannot.
pub fn validation_error(text: &str) -> Option<&'static str> {
    if text.len() > LENGTH_MAX {
        return Some("is too long");
    }
    // Browsers drop or normalize these characters, which would change the registered URI.
    if !text.bytes().all(|byte| {
        byte.is_ascii_graphic()
            && !matches!(
                byte,
                b'\\' | b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}'
            )
    }) {
        return Some("has characters that an address cannot have");
    }
    if text.contains(['*', '#']) {
        return Some("must be exact, without * and without a fragment");
    }
    // The URL parser reads `https:///a/b` as host `a`.
    if text
        .split_once("://")
        .is_some_and(|(_, rest)| rest.starts_with('/'))
    {
        return Some("names no host");
    }
    let Ok(url) = Url::parse(text) else {
        return Some("is not an address");
    };
    if url.has_host() && !has_canonical_host(text, &url) {
        return Some(
            "must spell its host as DNS does: lower-case letters, digits, hyphens and dots, or an IP address",
        );
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Some("must not name a user");
    }
    match url.scheme() {
        "https" if url.host().is_some() => None,
        "http" if is_loopback(&url) => None,
        "http" => Some("must be https, except on this computer itself"),
        // A private-use scheme must be a reversed domain name (RFC 8252, 7.1), to avoid collisions.
        scheme if scheme.contains('.') && !url.has_host() => None,
        _ => Some(
            "must be https, http on this computer itself, or a program's own scheme such as com.example.app:/callback",
        ),
    }
}

/// Returns whether `sent` equals a registered URI byte by byte. A native (public) application may
/// use any port of a registered loopback address (RFC 8252, 7.3), but not of `localhost`.
pub fn is_registered(list: &[String], sent: &str, native: bool) -> bool {
    let on_another_port = |known: &str| {
        native && without_port(known).is_some_and(|known| Some(known) == without_port(sent))
    };
    sent.len() <= LENGTH_MAX
        && list
            .iter()
            .any(|known| known == sent || on_another_port(known))
}

/// Splits a loopback URI into host and path, and drops the port between them.
fn without_port(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("http://")?;
    let host = ["127.0.0.1", "[::1]"]
        .into_iter()
        .find(|host| rest.starts_with(host))?;
    let rest = &rest[host.len()..];
    let (port, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let valid = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => {
            digits.bytes().all(|byte| byte.is_ascii_digit())
                && digits.parse::<u16>().is_ok_and(|port| port > 0)
        }
    };
    valid.then_some((host, path))
}

/// Returns whether the URI leads to the user's own computer, where any program could listen.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// Appends query parameters to a URI.
pub fn with_query(address: &str, parameters: &[(&str, &str)]) -> String {
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(parameters)
        .finish();
    let join = match address.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some(_) => "&",
    };
    [address, join, &query].concat()
}

/// Returns the CSP source for `form-action` that permits a redirect to the URI, serialized from the
/// parsed URL. Returns `None` if the host is not a plain DNS name: the characters of one registered
/// before hosts were checked (`a;sandbox`, `a,b`, `*.a.test`) would change the policy.
pub fn form_action_source(address: &str) -> Option<String> {
    let url = Url::parse(address).ok()?;
    match url.scheme() {
        "http" | "https" if url.host().as_ref().is_some_and(is_plain_host) => {
            Some(url.origin().ascii_serialization())
        }
        "http" | "https" => None,
        scheme => Some(format!("{scheme}:")),
    }
}

/// Returns whether the host is an IP address or a DNS name of letters, digits, hyphens and dots
/// (RFC 1123, 2.1). The URL standard permits more characters.
fn is_plain_host(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(_) | Host::Ipv6(_) => true,
        Host::Domain(name) => {
            let label = |label: &str| {
                (1..=63).contains(&label.len())
                    && label.bytes().all(|byte| {
                        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
                    })
                    && !label.starts_with('-')
                    && !label.ends_with('-')
            };
            name.len() <= 253 && name.strip_suffix('.').unwrap_or(name).split('.').all(label)
        }
    }
}

/// Returns whether the text spells the host as the URL serializer does, so that the compared,
/// displayed and permitted host are identical.
fn has_canonical_host(text: &str, url: &Url) -> bool {
    let Some(host) = url.host() else { return false };
    let authority = text.split_once("://").map_or("", |(_, rest)| rest);
    let authority = &authority[..authority.find(['/', '?', '#']).unwrap_or(authority.len())];
    let spelled = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let host_text = host.to_string();
    is_plain_host(&host)
        && spelled
            .strip_prefix(host_text.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Display name of a loopback redirect target.
pub const LOCAL_PROGRAM: &str = "a program on your computer";

/// Returns the display name of the redirect target.
pub fn display_name(address: &str) -> String {
    let Ok(url) = Url::parse(address) else {
        return String::new();
    };
    if is_loopback(&url) {
        return LOCAL_PROGRAM.to_owned();
    }
    url.host_str().map_or_else(
        || format!("a program that answers to {}:", url.scheme()),
        str::to_owned,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_error_of_valid_and_invalid_uris() {
        for fine in [
            "https://app.example/callback",
            "https://app.example:8443/callback?x=y",
            "https://app.example",
            "http://127.0.0.1/callback",
            "http://127.0.0.1:4711/callback",
            "http://[::1]:4711/",
            "http://localhost:3000/cb",
            "com.example.app:/callback",
        ] {
            assert_eq!(validation_error(fine), None, "{fine}");
        }
        for wrong in [
            "",
            "app.example/callback",
            "//app.example/callback",
            "http://app.example/callback",
            "http://localhost.evil.example/",
            "http://127.0.0.1.evil.example/",
            "https://user@app.example/",
            "https://user:pw@app.example/",
            "https://app.example/#fragment",
            "https://app.example/*",
            "https://*.app.example/",
            "https://app.example\\@evil.example/",
            "https://app.example/a b",
            " https://app.example/",
            "https://app.example/\r\nx",
            "https:///callback",
            "javascript:alert(1)",
            "data:text/html,x",
            "file:///etc/passwd",
            "ftp://app.example/",
            "myapp:/callback",
            "com.example.app://host/callback",
            "vbscript:x",
            "https://é.example/",
            "https://a;sandbox/cb",
            "https://a,b/cb",
            "https://a'b/cb",
            "https://%2A.a.test/cb",
            "https://%61.test/cb",
            "https://a_b.test/cb",
            "https://A.test/cb",
            "https://a..test/cb",
            "https://-a.test/cb",
            "https://0x7f.1/cb",
            "https://2130706433/cb",
            "https://[::0001]/cb",
            "http://LOCALHOST/cb",
        ] {
            assert!(validation_error(wrong).is_some(), "{wrong}");
        }
        assert!(
            validation_error(&format!("https://app.example/{}", "x".repeat(LENGTH_MAX))).is_some()
        );
    }

    #[test]
    fn is_registered_compares_byte_by_byte() {
        let list: Vec<String> = [
            "https://app.example/cb",
            "http://127.0.0.1/cb",
            "http://[::1]:1/cb?a=b",
            "http://localhost:3000/cb",
        ]
        .map(str::to_owned)
        .into();
        for same in [
            "https://app.example/cb",
            "http://127.0.0.1/cb",
            "http://127.0.0.1:1/cb",
            "http://127.0.0.1:65535/cb",
            "http://[::1]/cb?a=b",
            "http://[::1]:8080/cb?a=b",
            "http://localhost:3000/cb",
        ] {
            assert!(is_registered(&list, same, true), "{same}");
        }
        for other in [
            "",
            "https://app.example/cb/",
            "https://app.example/cb?",
            "https://app.example/cb?a=b",
            "https://app.example/cb#x",
            "https://app.example/CB",
            "https://APP.example/cb",
            "https://app.example:443/cb",
            "https://app.example:8443/cb",
            "https://app.example.evil.example/cb",
            "https://evil.example/app.example/cb",
            "https://app.example@evil.example/cb",
            "https://app.example/%63b",
            "https://app.example/x/../cb",
            "http://app.example/cb",
            "http://127.0.0.1:0/cb",
            "http://127.0.0.1:65536/cb",
            "http://127.0.0.1:80@evil.example/cb",
            "http://127.0.0.1.evil.example/cb",
            "http://127.0.0.1:1/other",
            "http://127.0.0.1:1/cb?x",
            "http://127.0.0.2/cb",
            "http://localhost:3001/cb",
            "http://localhost/cb",
            "http://[::1]:8080/cb",
            "https://127.0.0.1/cb",
        ] {
            assert!(!is_registered(&list, other, true), "{other}");
        }
    }

    #[test]
    fn is_registered_permits_other_port_to_native_only() {
        let list = [
            "http://127.0.0.1:3000/cb".to_owned(),
            "http://[::1]/cb".to_owned(),
        ];
        for exact in &list {
            assert!(
                is_registered(&list, exact, false) && is_registered(&list, exact, true),
                "{exact}"
            );
        }
        for other in [
            "http://127.0.0.1:3001/cb",
            "http://127.0.0.1/cb",
            "http://[::1]:3000/cb",
        ] {
            assert!(
                is_registered(&list, other, true) && !is_registered(&list, other, false),
                "{other}"
            );
        }
    }

    #[test]
    fn with_query_preserves_existing_query() {
        assert_eq!(
            with_query("https://a.example/cb", &[("code", "x y")]),
            "https://a.example/cb?code=x+y"
        );
        assert_eq!(
            with_query(
                "https://a.example/cb?a=b",
                &[("code", "x"), ("state", "&=")]
            ),
            "https://a.example/cb?a=b&code=x&state=%26%3D"
        );
        assert_eq!(
            with_query("https://a.example/cb?", &[("code", "x")]),
            "https://a.example/cb?code=x"
        );
        assert_eq!(
            form_action_source("https://a.example:444/cb").unwrap(),
            "https://a.example:444"
        );
        assert_eq!(
            form_action_source("com.example.app:/cb").unwrap(),
            "com.example.app:"
        );
        assert_eq!(
            form_action_source("https://A.example:443/cb").unwrap(),
            "https://a.example"
        );
        assert_eq!(
            form_action_source("http://[::1]:80/cb").unwrap(),
            "http://[::1]"
        );
        for unsafe_before in [
            "https://a;sandbox/cb",
            "https://a,b/cb",
            "https://%2A.a.test/cb",
            "https://a'b/cb",
        ] {
            assert_eq!(form_action_source(unsafe_before), None, "{unsafe_before}");
        }
        assert_eq!(
            display_name("http://localhost:1/cb"),
            "a program on your computer"
        );
        assert_eq!(display_name("https://a.example/cb"), "a.example");
    }
}
