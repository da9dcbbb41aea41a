//! Credentials in an `Authorization` header: their form, and the digest under which they are
//! stored.

use sha2::{Digest as _, Sha256};

use crate::platform::error::CredentialProblem;

/// Prefix of OAuth access tokens.
pub const ACCESS_PREFIX: &str = "sbp_oauth_";

/// SHA-256 of a token. A token has 160 random bits, so that a fast hash is sufficient (`limits.md`
/// §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// Returns the digest of a whole token, prefix included.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Returns a stored digest. `None` unless there are 32 bytes.
    pub fn stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns the 32 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The credential of a request: its kind, and the digest of its secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresentedCredential {
    /// A personal access token.
    Token(SecretDigest),
    /// An OAuth access token.
    OauthToken(SecretDigest),
    /// A browser session.
    Session(SecretDigest),
}

/// Parses the token in an `Authorization` header.
///
/// Form: `sbp_`, optionally `oauth_` or `v0_`, then 40 lowercase hex digits (`behaviour.md` §3).
pub fn parse_authorization(
    header: Option<&[u8]>,
) -> Result<PresentedCredential, CredentialProblem> {
    let header = header.ok_or(CredentialProblem::Missing)?;
    let header = std::str::from_utf8(header).map_err(|_| CredentialProblem::Malformed)?;
    let (scheme, token) = header.split_once(' ').ok_or(CredentialProblem::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(CredentialProblem::Missing);
    }
    if well_formed(token) {
        let digest = SecretDigest::of(token);
        return Ok(if token.starts_with(ACCESS_PREFIX) {
            PresentedCredential::OauthToken(digest)
        } else {
            PresentedCredential::Token(digest)
        });
    }
    let jwt = token.split('.').count() == 3
        && token
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    Err(if jwt {
        CredentialProblem::Jwt
    } else {
        CredentialProblem::Malformed
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
    // A fold without early exit is vectorised by the compiler.
    hex.len() == 40
        && hex
            .bytes()
            .fold(true, |all, b| all & matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_authorization_classifies_headers() {
        let good = format!("sbp_{}", "a1".repeat(20));
        let cases = [
            (
                format!("Bearer {good}"),
                Ok(PresentedCredential::Token(SecretDigest::of(&good))),
            ),
            (
                format!("bearer {good}"),
                Ok(PresentedCredential::Token(SecretDigest::of(&good))),
            ),
            (
                format!("Bearer sbp_oauth_{}", "0".repeat(40)),
                Ok(PresentedCredential::OauthToken(SecretDigest::of(&format!(
                    "sbp_oauth_{}",
                    "0".repeat(40)
                )))),
            ),
            (format!("Bearer {good}x"), Err(CredentialProblem::Malformed)),
            (format!("Bearer {good} "), Err(CredentialProblem::Malformed)),
            (format!("Bearer  {good}"), Err(CredentialProblem::Malformed)),
            (
                format!("Bearer {}", good.to_uppercase()),
                Err(CredentialProblem::Malformed),
            ),
            (
                "Bearer eyJhbGciOiJIUzI1NiJ9.eyJyb2xlIjoiYW5vbiJ9.c2ln".into(),
                Err(CredentialProblem::Jwt),
            ),
            ("Bearer a.b".into(), Err(CredentialProblem::Malformed)),
            (format!("Basic {good}"), Err(CredentialProblem::Missing)),
            (good, Err(CredentialProblem::Missing)),
        ];
        for (header, expected) in cases {
            assert_eq!(
                parse_authorization(Some(header.as_bytes())),
                expected,
                "{header}"
            );
        }
        assert_eq!(parse_authorization(None), Err(CredentialProblem::Missing));
        assert_eq!(
            parse_authorization(Some(b"Bearer \xff")),
            Err(CredentialProblem::Malformed)
        );
    }
}
