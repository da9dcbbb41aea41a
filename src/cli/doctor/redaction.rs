//! Redaction of secrets in texts.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;
use url::Url;

/// Text in place of a secret.
const REDACTED: &str = "[redacted]";
/// Length of the shortest known secret that is redacted, in bytes. Shorter ones are parts of words.
const SECRET_BYTES_MIN: usize = 4;

/// Forms of secrets, and their replacements. Classes are ASCII only, and `[^…]` never matches a
/// line break except in private keys.
const FORMS: &[(&str, &str)] = &[
    // A private key in PEM, also without its end, and the end of one without its begin. Line breaks
    // may be escaped.
    (
        r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
        REDACTED,
    ),
    (
        r"\A[A-Za-z0-9+/=\r\n]*-----END [A-Z ]*PRIVATE KEY-----",
        REDACTED,
    ),
    // The password of a URL, up to the last `@` of the authority.
    (
        r#"([A-Za-z][A-Za-z0-9+.-]*://[^ \t\r\n"'/?#@:]*:)[^ \t\r\n"'/?#]*@"#,
        "${1}[redacted]@",
    ),
    // Credentials of a header field, up to the end of the value.
    (
        r#"((?i-u:authorization)["'\\]*[ \t]*[:=][ \t]*["'\\]*)[^"'\\\r\n]+"#,
        "${1}[redacted]",
    ),
    (
        r"((?i-u:bearer|basic)[ \t]+)[A-Za-z0-9._~+/=-]{8,}",
        "${1}[redacted]",
    ),
    // JSON Web Tokens.
    (r"eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_.-]+", REDACTED),
    // Personal access tokens, secret keys, and one-time tokens such as `gantry_invite_…`.
    (r"(?:sbp|sb_secret)_[A-Za-z0-9_-]+", REDACTED),
    (r"gantry_(?:[a-z]+_)+[A-Za-z0-9-]{16,}", REDACTED),
    // Values with the name of a secret: in queries, JSON and connection strings.
    (
        r#"((?i-u:password|passwd|secret|token|apikey|api_key|secret_key|access_key|code_verifier)["'\\]*[ \t]*[:=][ \t]*["'\\]*)[^ \t\r\n"'\\&,;)}\]\[][^ \t\r\n"'\\&,;)}\]]*"#,
        "${1}[redacted]",
    ),
];

static PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let compiled = |(form, replacement): &(&str, &'static str)| {
        // A test compiles all of them.
        Some((Regex::new(form).ok()?, *replacement))
    };
    FORMS.iter().filter_map(compiled).collect()
});

/// Replaces known secrets, and texts with the form of a secret.
#[derive(Default)]
pub(super) struct Redactor {
    /// The longest one first, because one can contain another.
    secrets: Vec<String>,
}

impl Redactor {
    /// Returns the redactor for these secrets. A URL may also occur by its password alone, and each
    /// of them as a part of a JSON text.
    pub(super) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut forms = BTreeSet::new();
        for secret in secrets {
            forms.extend(passwords(&secret));
            forms.insert(secret);
        }
        let escaped = |text: &String| {
            let json = serde_json::Value::from(text.as_str()).to_string();
            json.trim_matches('"').to_owned()
        };
        forms.extend(forms.iter().map(escaped).collect::<Vec<_>>());
        let mut secrets: Vec<String> = forms.into_iter().collect();
        secrets.retain(|secret| secret.len() >= SECRET_BYTES_MIN);
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self { secrets }
    }

    /// Returns the text without secrets.
    pub(super) fn redacted(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            if text.contains(secret) {
                text = text.replace(secret, REDACTED);
            }
        }
        for (pattern, replacement) in &*PATTERNS {
            if pattern.is_match(&text) {
                text = pattern.replace_all(&text, *replacement).into_owned();
            }
        }
        text
    }
}

/// Returns the password of a URL, as it is written and decoded.
fn passwords(url: &str) -> Vec<String> {
    let Some(password) = Url::parse(url)
        .ok()
        .and_then(|url| url.password().map(ToOwned::to_owned))
    else {
        return Vec::new();
    };
    // Both have a meaning of their own in forms.
    let form = password.replace('+', "%2B").replace('&', "%26");
    let decoded = form_urlencoded::parse(form.as_bytes()).next();
    let decoded = decoded.map(|(decoded, _)| decoded.into_owned());
    decoded.into_iter().chain([password]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_a_pattern() {
        assert_eq!(PATTERNS.len(), FORMS.len());
    }

    #[test]
    fn texts_with_the_form_of_a_secret_are_redacted() {
        let hex = "0123456789abcdef".repeat(3);
        let redactor = Redactor::default();
        for (text, expected) in [
            (format!("token sbp_{hex} x"), "token [redacted] x"),
            (format!("a=sbp_oauth_{hex}"), "a=[redacted]"),
            ("k sb_secret_aB3-_x.".to_owned(), "k [redacted]."),
            (format!("gantry_jit_invite_{hex}!"), "[redacted]!"),
            (format!("gantry_claim_{hex}"), "[redacted]"),
            ("x eyJhbGciOi.eyJzdWIi.c2ln y".to_owned(), "x [redacted] y"),
            (
                "postgres://u:p@ss:w@db:5432/x?a=1".to_owned(),
                "postgres://u:[redacted]@db:5432/x?a=1",
            ),
            (
                "Authorization: Basic dTpw, more".to_owned(),
                "Authorization: [redacted]",
            ),
            (
                r#"{\"authorization\": \"Bearer abc\", \"host\": 1}"#.to_owned(),
                r#"{\"authorization\": \"[redacted]\", \"host\": 1}"#,
            ),
            (
                "sent Bearer abcdefgh1234, then".to_owned(),
                "sent Bearer [redacted], then",
            ),
            (
                "host=db password=hunter2 user=u".to_owned(),
                "host=db password=[redacted] user=u",
            ),
            (
                "GET /x?apikey=abc&a=1".to_owned(),
                "GET /x?apikey=[redacted]&a=1",
            ),
            (
                r#"{"client_secret":"abc","n":1}"#.to_owned(),
                r#"{"client_secret":"[redacted]","n":1}"#,
            ),
            (
                "a\n-----BEGIN RSA PRIVATE KEY-----\nAA\nBB\n-----END RSA PRIVATE KEY-----\nb"
                    .to_owned(),
                "a\n[redacted]\nb",
            ),
            (
                "a -----BEGIN PRIVATE KEY-----\\nAA".to_owned(),
                "a [redacted]",
            ),
            (
                "Ab+/=\nBB==\n-----END PRIVATE KEY-----\nb".to_owned(),
                "[redacted]\nb",
            ),
        ] {
            assert_eq!(redactor.redacted(&text), expected);
        }
    }

    #[test]
    fn ordinary_texts_are_kept() {
        for text in [
            "gantry_backup_earliest_recoverable_timestamp_seconds 1",
            "postgres://gantry@db.internal:5432/gantry",
            "http://127.0.0.1:8080/a:b@c",
            "role gantry_jit_olga____abcdefgh",
            "the control database is encrypted with a different sealing key: set --sealing-key",
            "\"reads\": \"configuration file\"",
        ] {
            assert_eq!(Redactor::default().redacted(text), text);
        }
    }

    #[test]
    fn known_secrets_are_redacted_in_all_their_forms() {
        let url = "postgres://u:hun%22ter@db/x".to_owned();
        let redactor = Redactor::new([url.clone(), "abc".to_owned(), "hunters".to_owned()]);
        for (text, expected) in [
            (url.as_str(), "[redacted]"),
            ("hun\"ter", "[redacted]"),
            (r#"{"a":"hun\"ter"}"#, r#"{"a":"[redacted]"}"#),
            ("hun%22ter hunters", "[redacted] [redacted]"),
            ("abc", "abc"),
        ] {
            assert_eq!(redactor.redacted(text), expected, "{text}");
        }
    }
}
