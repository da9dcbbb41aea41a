//! Rules on the claims of tokens of other issuers. Pure functions: signatures are checked in
//! [`super::subject_token`].

use std::collections::BTreeMap;

use serde_json::Value;

/// Tolerated difference to the clock of an issuer, in seconds.
const LEEWAY_SECS: i64 = 60;
/// Longest pattern, in bytes.
pub(super) const PATTERN_BYTES_MAX: usize = 512;

/// A text in which `*` matches any run of characters, also an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimPattern(String);

impl ClaimPattern {
    /// Parses a pattern. The error completes "expected …".
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            return Err("expected 1 to 512 bytes");
        }
        if text.chars().all(|c| c == '*') {
            return Err("expected a text besides *, which would match every value");
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether a text matches as a whole. Takes time in proportion to both lengths at
    /// most, because each part is searched for once, from the left.
    pub fn matches(&self, text: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return self.0 == text;
        };
        let Some(mut text) = text.strip_prefix(first) else {
            return false;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        for part in middle.split('*') {
            let Some(at) = text.find(part) else {
                return false;
            };
            text = &text[at + part.len()..];
        }
        text.ends_with(last)
    }
}

/// The tokens that a trust accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustRule {
    /// The claim `iss`, exactly.
    pub issuer: String,
    /// The audience that the claim `aud` must have.
    pub audience: String,
    /// The claim `sub`.
    pub subject: ClaimPattern,
    /// Other claims, each with the pattern of its value.
    pub claims: BTreeMap<String, ClaimPattern>,
}

/// The reason why a token is not exchanged. For the log and the audit log; clients get one answer
/// for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRefusal {
    /// The token is not a signed JSON web token, or a claim has a wrong type.
    Malformed,
    /// The algorithm is neither ES256 nor RS256.
    Algorithm,
    /// No trust names the issuer.
    Issuer,
    /// The keys of the issuer cannot be read.
    Keys,
    /// No key of the issuer has signed the token.
    Signature,
    /// The token has expired.
    Expired,
    /// The token is not valid yet, or was issued in the future.
    NotYetValid,
    /// The token is for another audience.
    Audience,
    /// The subject does not match.
    Subject,
    /// Another claim is absent or does not match.
    Claims,
    /// The token was exchanged before.
    Replayed,
    /// The trust was removed meanwhile.
    Removed,
}

impl TokenRefusal {
    /// Returns the name in the log and the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::Issuer => "issuer",
            Self::Keys => "keys",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Audience => "audience",
            Self::Subject => "subject",
            Self::Claims => "claims",
            Self::Replayed => "replayed",
            Self::Removed => "removed",
        }
    }
}

impl TrustRule {
    /// Checks the claims of a token of the rule's issuer.
    pub fn check(&self, claims: &Value) -> Result<(), TokenRefusal> {
        if claims["iss"].as_str() != Some(&self.issuer) {
            return Err(TokenRefusal::Issuer);
        }
        let is_for = |value: &Value| value.as_str() == Some(&self.audience);
        let audience = &claims["aud"];
        let is_listed = audience
            .as_array()
            .is_some_and(|list| list.iter().any(is_for));
        if !is_listed && !is_for(audience) {
            return Err(TokenRefusal::Audience);
        }
        let subject = claims["sub"].as_str();
        if !subject.is_some_and(|subject| self.subject.matches(subject)) {
            return Err(TokenRefusal::Subject);
        }
        let is_claimed = |(name, pattern): (&String, &ClaimPattern)| {
            let value = claims.get(name).and_then(claim_text);
            value.is_some_and(|value| pattern.matches(&value))
        };
        if !self.claims.iter().all(is_claimed) {
            return Err(TokenRefusal::Claims);
        }
        Ok(())
    }
}

/// Returns the text of a claim that is a string, a number or a boolean.
fn claim_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the expiry of a token that is valid at `now`. All times are in seconds since 1970.
///
/// `exp` is compared without the leeway: a token that is issued for it would have expired.
pub fn check_times(claims: &Value, now: i64) -> Result<i64, TokenRefusal> {
    let time = |name: &str| match &claims[name] {
        Value::Null => Ok(None),
        value => value.as_i64().map(Some).ok_or(TokenRefusal::Malformed),
    };
    let expiry = time("exp")?.ok_or(TokenRefusal::Malformed)?;
    if expiry <= now {
        return Err(TokenRefusal::Expired);
    }
    for start in [time("nbf")?, time("iat")?].into_iter().flatten() {
        if start > now + LEEWAY_SECS {
            return Err(TokenRefusal::NotYetValid);
        }
    }
    Ok(expiry)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pattern(text: &str) -> ClaimPattern {
        ClaimPattern::parse(text).unwrap()
    }

    #[test]
    fn star_matches_any_run_of_characters() {
        for (text, value, expected) in [
            ("repo:acme/app", "repo:acme/app", true),
            ("repo:acme/app", "repo:acme/app2", false),
            ("repo:acme/app", "REPO:acme/app", false),
            ("repo:acme/*", "repo:acme/", true),
            ("repo:acme/*", "repo:acme/app:ref:refs/heads/main", true),
            ("repo:acme/*", "repo:acme", false),
            ("*:main", "repo:acme:main", true),
            ("*:main", "repo:acme:main2", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a**c", "ac", true),
            ("aa*aa", "aaa", false),
            ("aa*aa", "aaaa", true),
            ("é*ü", "é–ü", true),
            ("a*", "", false),
            ("a?c", "abc", false),
        ] {
            assert_eq!(pattern(text).matches(value), expected, "{text} {value}");
        }
    }

    #[test]
    fn pattern_for_every_value_is_rejected() {
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        for text in ["", "*", "**", &long] {
            assert!(ClaimPattern::parse(text).is_err(), "{text}");
        }
        assert_eq!(pattern("a*").as_str(), "a*");
    }

    #[test]
    fn each_claim_of_a_rule_must_match() {
        let rule = TrustRule {
            issuer: "https://ci.example".to_owned(),
            audience: "gantry".to_owned(),
            subject: pattern("repo:acme/app:*"),
            claims: BTreeMap::from([
                ("ref".to_owned(), pattern("refs/heads/*")),
                ("protected".to_owned(), pattern("true")),
                ("owner_id".to_owned(), pattern("42")),
            ]),
        };
        let fine = json!({
            "iss": "https://ci.example", "aud": "gantry", "sub": "repo:acme/app:main",
            "ref": "refs/heads/main", "protected": true, "owner_id": 42,
        });
        assert_eq!(rule.check(&fine), Ok(()));
        let with = |name: &str, value: Value| {
            let mut claims = fine.clone();
            claims[name] = value;
            rule.check(&claims)
        };
        assert_eq!(with("aud", json!(["other", "gantry"])), Ok(()));
        for (name, value, expected) in [
            ("iss", json!("https://ci.example/"), TokenRefusal::Issuer),
            ("iss", Value::Null, TokenRefusal::Issuer),
            ("aud", json!("gantry2"), TokenRefusal::Audience),
            ("aud", json!(["other"]), TokenRefusal::Audience),
            ("aud", json!([["gantry"]]), TokenRefusal::Audience),
            ("aud", Value::Null, TokenRefusal::Audience),
            ("sub", json!("repo:acme/app2:main"), TokenRefusal::Subject),
            ("sub", json!(["repo:acme/app:main"]), TokenRefusal::Subject),
            ("ref", json!("refs/tags/1"), TokenRefusal::Claims),
            ("ref", Value::Null, TokenRefusal::Claims),
            ("ref", json!(["refs/heads/main"]), TokenRefusal::Claims),
            ("protected", json!(false), TokenRefusal::Claims),
            ("owner_id", json!(43), TokenRefusal::Claims),
        ] {
            assert_eq!(with(name, value.clone()), Err(expected), "{name} {value}");
        }
    }

    #[test]
    fn times_of_a_token_surround_the_present() {
        let now = 1_000_000;
        for (claims, expected) in [
            (json!({"exp": now + 1}), Ok(now + 1)),
            (
                json!({"exp": now + 300, "nbf": now, "iat": now}),
                Ok(now + 300),
            ),
            (json!({"exp": now + 300, "nbf": now + 60}), Ok(now + 300)),
            (json!({"exp": now}), Err(TokenRefusal::Expired)),
            (json!({"exp": now - 30}), Err(TokenRefusal::Expired)),
            (
                json!({"exp": now + 300, "nbf": now + 61}),
                Err(TokenRefusal::NotYetValid),
            ),
            (
                json!({"exp": now + 300, "iat": now + 61}),
                Err(TokenRefusal::NotYetValid),
            ),
            (json!({"iat": now}), Err(TokenRefusal::Malformed)),
            (json!({"exp": "soon"}), Err(TokenRefusal::Malformed)),
            (
                json!({"exp": now + 300, "nbf": "x"}),
                Err(TokenRefusal::Malformed),
            ),
        ] {
            assert_eq!(check_times(&claims, now), expected, "{claims}");
        }
    }
}
