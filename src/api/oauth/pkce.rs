//! Proof that who brings a code is who asked for it (RFC 7636). S256 only: a plain challenge is the verifier for all to read.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use crate::base::error::{Error, oauth_error};

/// What a verifier has to hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PkceChallenge([u8; 32]);

impl PkceChallenge {
    /// The challenge of a request, if it has one.
    pub fn parse(challenge: Option<&str>, method: Option<&str>) -> Result<Option<Self>, Error> {
        match (challenge, method) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(oauth_error(
                "invalid_request",
                "There is a code_challenge_method and no code_challenge.",
            )),
            // `sha256` is what the published description also calls it.
            (Some(text), Some("S256" | "sha256")) => {
                let mut bytes = [0; 32];
                match BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
                    Ok(32) if text.len() == 43 => Ok(Some(Self(bytes))),
                    _ => Err(oauth_error(
                        "invalid_request",
                        "code_challenge is not the base64url of a SHA-256.",
                    )),
                }
            }
            // Without a method it would be plain.
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

    /// As it was kept.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// To be kept.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether `verifier` is what it was made of.
    pub fn matches(&self, verifier: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(verifier.as_bytes()).into();
        well_formed(verifier) && verify_slices_are_equal(&digest, &self.0).is_ok()
    }
}

/// 43 to 128 unreserved characters.
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
    fn only_the_verifier_meets_the_challenge() {
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
        // A verifier that is too short proves nothing, even if it is the right one.
        let short = "a".repeat(42);
        assert!(!PkceChallenge(Sha256::digest(short.as_bytes()).into()).matches(&short));
        let long = "a".repeat(128);
        assert!(PkceChallenge(Sha256::digest(long.as_bytes()).into()).matches(&long));
        let longer = "a".repeat(129);
        assert!(!PkceChallenge(Sha256::digest(longer.as_bytes()).into()).matches(&longer));
    }

    #[test]
    fn only_s256_is_taken() {
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
