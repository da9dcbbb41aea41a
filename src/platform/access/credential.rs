//! Credentials in an `Authorization` header: their form, and the digest by which they are stored.

use sha2::{Digest as _, Sha256};

use crate::base::error::Credential;

/// Prefix of OAuth access tokens.
pub const ACCESS_PREFIX: &str = "sbp_oauth_";

/// SHA-256 of a token. A token has 160 random bits, so nothing slower is needed (`limits.md` §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// The digest of a whole token, prefix included.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// One that was stored.
    pub fn stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The bytes, as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What says who sent a request: the digest of a secret, and of which kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presented {
    /// A personal access token's.
    Token(SecretDigest),
    /// An OAuth access token's.
    Approval(SecretDigest),
    /// A browser session's.
    Session(SecretDigest),
}

/// The digest and kind of the token in an `Authorization` header, or why there is none.
///
/// Form: `sbp_`, optionally `oauth_` or `v0_`, then 40 lowercase hex digits (`behaviour.md` §3).
pub fn recognise(header: Option<&[u8]>) -> Result<Presented, Credential> {
    let header = header.ok_or(Credential::Missing)?;
    let header = std::str::from_utf8(header).map_err(|_| Credential::Malformed)?;
    let (scheme, token) = header.split_once(' ').ok_or(Credential::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Credential::Missing);
    }
    if well_formed(token) {
        let digest = SecretDigest::of(token);
        return Ok(if token.starts_with(ACCESS_PREFIX) {
            Presented::Approval(digest)
        } else {
            Presented::Token(digest)
        });
    }
    let jwt = token.split('.').count() == 3
        && token
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    Err(if jwt {
        Credential::Jwt
    } else {
        Credential::Malformed
    })
}

pub(crate) fn well_formed(token: &str) -> bool {
    let Some(rest) = token.strip_prefix("sbp_") else {
        return false;
    };
    let hex = rest
        .strip_prefix("oauth_")
        .or_else(|| rest.strip_prefix("v0_"))
        .unwrap_or(rest);
    // Without a way out in the middle the compiler looks at sixteen at once.
    hex.len() == 40
        && hex
            .bytes()
            .fold(true, |all, b| all & matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_told_apart() {
        let good = format!("sbp_{}", "a1".repeat(20));
        let cases = [
            (
                format!("Bearer {good}"),
                Ok(Presented::Token(SecretDigest::of(&good))),
            ),
            (
                format!("bearer {good}"),
                Ok(Presented::Token(SecretDigest::of(&good))),
            ),
            (
                format!("Bearer sbp_oauth_{}", "0".repeat(40)),
                Ok(Presented::Approval(SecretDigest::of(&format!(
                    "sbp_oauth_{}",
                    "0".repeat(40)
                )))),
            ),
            (format!("Bearer {good}x"), Err(Credential::Malformed)),
            (format!("Bearer {good} "), Err(Credential::Malformed)),
            (format!("Bearer  {good}"), Err(Credential::Malformed)),
            (
                format!("Bearer {}", good.to_uppercase()),
                Err(Credential::Malformed),
            ),
            (
                "Bearer eyJhbGciOiJIUzI1NiJ9.eyJyb2xlIjoiYW5vbiJ9.c2ln".into(),
                Err(Credential::Jwt),
            ),
            ("Bearer a.b".into(), Err(Credential::Malformed)),
            (format!("Basic {good}"), Err(Credential::Missing)),
            (good, Err(Credential::Missing)),
        ];
        for (header, expected) in cases {
            assert_eq!(recognise(Some(header.as_bytes())), expected, "{header}");
        }
        assert_eq!(recognise(None), Err(Credential::Missing));
        assert_eq!(recognise(Some(b"Bearer \xff")), Err(Credential::Malformed));
    }
}
