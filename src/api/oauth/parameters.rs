//! Parameters of a protocol request, each at most once (RFC 6749, 3.1 and 3.2) and bounded in
//! number and size.

use crate::platform::error::{Error, oauth_error};

/// Maximum number of parameters.
const PARAMETERS_MAX: usize = 64;
/// Maximum length of a value in bytes.
const VALUE_BYTES_MAX: usize = 4_096;
/// Maximum length of a token of another issuer in bytes. Some have many claims.
const SUBJECT_TOKEN_BYTES_MAX: usize = 16_384;

/// The parameters of a query or a form.
#[derive(Debug, Default)]
pub struct OAuthParameters(Vec<(String, String)>);

impl OAuthParameters {
    /// Parses form-encoded text. Rejects a repeated parameter, because parsers differ in which
    /// value they use.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let mut fields: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(text) {
            let bytes_max = if name == "subject_token" {
                SUBJECT_TOKEN_BYTES_MAX
            } else {
                VALUE_BYTES_MAX
            };
            if fields.len() == PARAMETERS_MAX || name.len() > 128 || value.len() > bytes_max {
                return Err(oauth_error(
                    "invalid_request",
                    "There are too many parameters, or one is too long.",
                ));
            }
            // Invalid UTF-8 is decoded as U+FFFD, so such a value could not be returned unchanged.
            if value.contains(['\0', '\u{fffd}']) || name.contains(['\0', '\u{fffd}']) {
                let name = if name.bytes().all(|byte| byte.is_ascii_graphic()) {
                    &*name
                } else {
                    "A field"
                };
                return Err(oauth_error(
                    "invalid_request",
                    format!("{name} must be UTF-8, without U+0000 and U+FFFD."),
                ));
            }
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(oauth_error("invalid_request", "A parameter is repeated."));
            }
            fields.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(fields))
    }

    /// Returns a parameter. An empty value counts as absent (RFC 6749, 3.1).
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// Returns whether the parameter is present, even if empty.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// Returns a parameter, or an error if it is absent.
    pub fn required(&self, name: &'static str) -> Result<&str, Error> {
        self.get(name)
            .ok_or_else(|| oauth_error("invalid_request", format!("Required parameter: {name}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_invalid_utf8_or_nul_is_rejected() {
        for odd in [
            "state=%FF",
            "state=a%C3",
            "state=%ED%A0%80",
            "state=%00",
            "state=x%00y",
            "state=%EF%BF%BD",
            "%00=1",
            "%FF=1",
        ] {
            let Err(Error::OAuth(fault)) = OAuthParameters::parse(odd.as_bytes()) else {
                panic!("{odd}")
            };
            assert_eq!(fault.error, "invalid_request", "{odd}");
            assert!(
                fault.description.starts_with("state") || fault.description.starts_with("A field"),
                "{odd}"
            );
        }
        assert_eq!(
            OAuthParameters::parse("state=%C3%A9%0D%0A%7F%20+".as_bytes())
                .unwrap()
                .get("state"),
            Some("é\r\n\u{7f}  ")
        );
    }

    #[test]
    fn parse_repeated_parameter_is_rejected() {
        let fields = OAuthParameters::parse(b"a=1&b=&c=x%20y+z").unwrap();
        assert_eq!(
            (
                fields.get("a"),
                fields.get("b"),
                fields.get("c"),
                fields.get("d")
            ),
            (Some("1"), None, Some("x y z"), None)
        );
        assert!(fields.has("b") && !fields.has("d"));
        for twice in ["a=1&a=2", "a=1&a=1", "a=&a=1", "a=1&%61=1"] {
            assert!(OAuthParameters::parse(twice.as_bytes()).is_err(), "{twice}");
        }
        assert!(
            OAuthParameters::parse(format!("a={}", "x".repeat(VALUE_BYTES_MAX + 1)).as_bytes())
                .is_err()
        );
        let token = |bytes| format!("subject_token={}", "x".repeat(bytes));
        assert!(OAuthParameters::parse(token(SUBJECT_TOKEN_BYTES_MAX).as_bytes()).is_ok());
        assert!(OAuthParameters::parse(token(SUBJECT_TOKEN_BYTES_MAX + 1).as_bytes()).is_err());
        let many: Vec<_> = (0..=PARAMETERS_MAX).map(|n| format!("f{n}=1")).collect();
        assert!(OAuthParameters::parse(many.join("&").as_bytes()).is_err());
    }
}
