//! Proof key for code exchange (RFC 7636). Only S256 is supported: a plain challenge discloses the
//! verifier.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use crate::platform::error::{Error, oauth_error};

/// The SHA-256 of a code verifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PkceChallenge([u8; 32]);

impl PkceChallenge {
    /// Parses the challenge parameters of an authorization request, if present.
    pub fn parse(challenge: Option<&str>, method: Option<&str>) -> Result<Option<Self>, Error> {
        match (challenge, method) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(oauth_error(
                "invalid_request",
                "code_challenge_method was sent without code_challenge.",
            )),
            // The published description also names the method `sha256`.
            (Some(text), Some("S256" | "sha256")) => {
                let mut bytes = [0; 32];
                match BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
                    Ok(32) if text.len() == 43 => Ok(Some(Self(bytes))),
                    _ => Err(oauth_error(
                        "invalid_request",
                        "code_challenge is not a SHA-256 hash in base64url.",
                    )),
                }
            }
            // Without a method, RFC 7636 means `plain`.
            (Some(_), None | Some("plain")) => Err(oauth_error(
                "invalid_request",
                "The code_challenge_method must be S256.",
            )),
            (Some(_), Some(_)) => Err(oauth_error(
                "invalid_request",
                "The code_challenge_method is unknown; it must be S256.",
            )),
        }
    }

    /// Restores a stored challenge.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns the bytes to store.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether the verifier is well formed and hashes to this challenge.
    pub fn matches(&self, verifier: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(verifier.as_bytes()).into();
        well_formed(verifier) && verify_slices_are_equal(&digest, &self.0).is_ok()
    }
}

/// Returns whether the text is 43 to 128 unreserved characters (RFC 7636, 4.1).
fn well_formed(verifier: &str) -> bool {
    let unreserved =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    (43..=128).contains(&verifier.len()) && verifier.bytes().all(unreserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7636, appendix B.
    const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

    #[test]
    fn matches_only_the_verifier() {
        for method in ["S256", "sha256"] {
            let challenge = PkceChallenge::parse(Some(CHALLENGE), Some(method))
                .unwrap()
                .unwrap();
            assert!(challenge.matches(VERIFIER));
            for wrong in [
                "",
                CHALLENGE,
                &VERIFIER[1..],
                &VERIFIER.to_lowercase(),
                &format!("{VERIFIER}="),
                &format!("{VERIFIER} "),
            ] {
                assert!(!challenge.matches(wrong), "{wrong}");
            }
        }
        // A verifier outside the length bounds is rejected even if its hash is right.
        let short = "a".repeat(42);
        assert!(!PkceChallenge(Sha256::digest(short.as_bytes()).into()).matches(&short));
        let long = "a".repeat(128);
        assert!(PkceChallenge(Sha256::digest(long.as_bytes()).into()).matches(&long));
        let longer = "a".repeat(129);
        assert!(!PkceChallenge(Sha256::digest(longer.as_bytes()).into()).matches(&longer));
    }

    #[test]
    fn parse_method_other_than_s256_is_rejected() {
        assert_eq!(PkceChallenge::parse(None, None).unwrap(), None);
        let padded = format!("{CHALLENGE}=");
        for (challenge, method) in [
            (Some(CHALLENGE), None),
            (Some(CHALLENGE), Some("plain")),
            (Some(CHALLENGE), Some("s256")),
            (Some(CHALLENGE), Some("S512")),
            (Some(CHALLENGE), Some("")),
            (None, Some("S256")),
            (Some(""), Some("S256")),
            (Some(&CHALLENGE[1..]), Some("S256")),
            (Some(&padded), Some("S256")),
            (
                Some("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw+cM"),
                Some("S256"),
            ),
        ] {
            assert!(
                PkceChallenge::parse(challenge, method).is_err(),
                "{challenge:?} {method:?}"
            );
        }
    }
}
