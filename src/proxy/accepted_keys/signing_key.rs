//! Keys that sign the tokens of a project's users: typed, so that a key set is never written from
//! text that came in.

use aws_lc_rs::{
    hmac,
    signature::{
        ECDSA_P256_SHA256_FIXED, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
        RsaPublicKeyComponents, UnparsedPublicKey,
    },
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::token_key::SECRET_BYTES_MIN;

/// Length of a coordinate on the curve P-256, in bytes.
const COORDINATE_BYTES: usize = 32;
/// Lengths of an RSA modulus, in bytes: 2048 to 4096 bits.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=512;
/// Largest public exponent, in bytes.
const EXPONENT_BYTES_MAX: usize = 8;

/// The state of a signing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SigningKeyState {
    /// Trusted, and used after the next rotation.
    Standby,
    /// Signs new tokens.
    InUse,
    /// Trusted, but not used for new tokens.
    PreviouslyUsed,
    /// Not trusted.
    Revoked,
}

impl SigningKeyState {
    /// Returns the name in the control database and in the contract.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::InUse => "in_use",
            Self::PreviouslyUsed => "previously_used",
            Self::Revoked => "revoked",
        }
    }

    /// Returns whether a client can move a key from this state to another. A key leaves
    /// [`Self::InUse`] only when another one takes its place.
    pub const fn can_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Standby, Self::InUse | Self::PreviouslyUsed)
                | (Self::PreviouslyUsed, Self::Standby | Self::Revoked)
                | (Self::Revoked, Self::Standby)
        )
    }

    /// Parses the state in the control database and in the contract.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "standby" => Self::Standby,
            "in_use" => Self::InUse,
            "previously_used" => Self::PreviouslyUsed,
            "revoked" => Self::Revoked,
            _ => return None,
        })
    }

    /// Returns whether tokens of a key in this state are accepted.
    pub const fn is_trusted(self) -> bool {
        !matches!(self, Self::Revoked)
    }
}

/// The part of a signing key that verifies tokens.
#[derive(Debug, Clone)]
pub enum VerificationKey {
    /// A point on the curve P-256, for ES256. Coordinates are in base64url.
    Ec {
        /// First coordinate.
        x: String,
        /// Second coordinate.
        y: String,
    },
    /// An RSA key, for RS256. Numbers are in base64url.
    Rsa {
        /// The modulus.
        n: String,
        /// The public exponent.
        e: String,
    },
    /// A shared secret in base64url, for HS256: it also signs.
    Symmetric(SecretString),
}

impl VerificationKey {
    /// Returns the algorithm of its tokens.
    const fn algorithm(&self) -> &'static str {
        match self {
            Self::Ec { .. } => "ES256",
            Self::Rsa { .. } => "RS256",
            Self::Symmetric(_) => "HS256",
        }
    }

    /// Returns whether a signature of a token (RFC 7518 §3) is one of this key.
    fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
        match self {
            Self::Ec { x, y } => {
                let point = [&[4], &bytes(x)[..], &bytes(y)].concat();
                let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
                key.verify(message, signature).is_ok()
            }
            Self::Rsa { n, e } => {
                let key = RsaPublicKeyComponents {
                    n: bytes(n),
                    e: bytes(e),
                };
                let algorithm = &RSA_PKCS1_2048_8192_SHA256;
                key.verify(algorithm, message, signature).is_ok()
            }
            Self::Symmetric(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes(secret.expose_secret()));
                hmac::verify(&key, message, signature).is_ok()
            }
        }
    }

    /// Returns whether a token with this `alg` is signed by this public key. A symmetric key never
    /// counts.
    pub fn verifies(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        !matches!(self, Self::Symmetric(_))
            && self.algorithm() == algorithm
            && self.has_signed(message, signature)
    }

    /// Returns the key as JSON (RFC 7517). A symmetric key is a secret.
    pub(crate) fn to_jwk(&self, kid: Option<&str>) -> Value {
        let mut jwk = match self {
            Self::Ec { x, y } => json!({
                "kty": "EC", "use": "sig", "key_ops": ["verify"], "alg": "ES256", "ext": true,
                "crv": "P-256", "x": x, "y": y,
            }),
            Self::Rsa { n, e } => json!({
                "kty": "RSA", "use": "sig", "key_ops": ["verify"], "alg": "RS256", "ext": true,
                "n": n, "e": e,
            }),
            Self::Symmetric(secret) => json!({
                "kty": "oct", "alg": "HS256", "k": secret.expose_secret(),
            }),
        };
        if let Some(kid) = kid {
            jwk["kid"] = json!(kid);
        }
        jwk
    }

    /// Returns whether a public key can verify signatures, for instance that its point is on the
    /// curve. Services reject a whole key set for one invalid key.
    pub(crate) fn is_valid(&self) -> bool {
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
        match self {
            Self::Ec { x, y } => {
                let point = [&[4], &bytes(x)[..], &bytes(y)].concat();
                ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).is_ok()
            }
            Self::Rsa { n, e } => {
                let key = RsaPublicKeyComponents {
                    n: bytes(n),
                    e: bytes(e),
                };
                let algorithm = &RSA_PKCS1_2048_8192_SHA256;
                key.to_parsed_public_key(algorithm).is_ok()
            }
            Self::Symmetric(_) => false,
        }
    }

    /// Parses the part of a private or public key that verifies. A symmetric key is its own.
    pub(crate) fn of_jwk(jwk: &Value) -> Option<Self> {
        match jwk.get("k").and_then(Value::as_str) {
            Some(secret) => Some(Self::Symmetric(secret.into())),
            None => Self::of_public_jwk(jwk),
        }
    }

    /// Parses a public key (RFC 7517) with exactly the expected lengths. Private members and all
    /// others are left out.
    pub fn of_public_jwk(jwk: &Value) -> Option<Self> {
        let text = |name: &str| jwk.get(name)?.as_str();
        let number = |name: &str| {
            let value = text(name)?;
            let bytes = URL_SAFE_NO_PAD.decode(value).ok()?;
            Some((value.to_owned(), bytes.len()))
        };
        match text("kty")? {
            "EC" if text("crv") == Some("P-256") => {
                let ((x, x_bytes), (y, y_bytes)) = (number("x")?, number("y")?);
                let is_point = x_bytes == COORDINATE_BYTES && y_bytes == COORDINATE_BYTES;
                is_point.then_some(Self::Ec { x, y })
            }
            "RSA" => {
                let ((n, n_bytes), (e, e_bytes)) = (number("n")?, number("e")?);
                let is_key =
                    MODULUS_BYTES.contains(&n_bytes) && (1..=EXPONENT_BYTES_MAX).contains(&e_bytes);
                is_key.then_some(Self::Rsa { n, e })
            }
            _ => None,
        }
    }
}

/// A key that signs tokens of a project's users.
#[derive(Debug, Clone)]
pub struct SigningKey {
    /// Its id, which is the `kid` of its tokens.
    pub id: Uuid,
    /// Its state.
    pub state: SigningKeyState,
    /// The part that verifies.
    pub key: VerificationKey,
}

impl SigningKey {
    /// Returns the key for a service that verifies tokens (RFC 7517). A symmetric key is a secret.
    pub fn to_json(&self) -> Value {
        self.key.to_jwk(Some(&self.id.to_string()))
    }

    /// Returns the public key, unless the key is symmetric or revoked.
    pub fn public_jwk(&self) -> Option<Value> {
        let is_public = !matches!(self.key, VerificationKey::Symmetric(_));
        (is_public && self.state.is_trusted()).then(|| self.to_json())
    }

    /// Returns whether a token is signed by this key. `kid` is that of the token's header.
    pub(super) fn has_signed(
        &self,
        algorithm: &str,
        kid: Option<&str>,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        self.is_accepted()
            && self.key.algorithm() == algorithm
            && kid.is_none_or(|kid| kid == self.id.to_string())
            && self.key.has_signed(message, signature)
    }

    /// Returns whether services may accept tokens of the key.
    pub(crate) fn is_accepted(&self) -> bool {
        let is_strong = match &self.key {
            VerificationKey::Symmetric(secret) => URL_SAFE_NO_PAD
                .decode(secret.expose_secret())
                .is_ok_and(|secret| secret.len() >= SECRET_BYTES_MIN),
            _ => true,
        };
        is_strong && self.state.is_trusted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwk() -> Value {
        let coordinate = URL_SAFE_NO_PAD.encode([7; COORDINATE_BYTES]);
        json!({"kty": "EC", "crv": "P-256", "x": coordinate, "y": coordinate, "d": "secret"})
    }

    #[test]
    fn only_public_keys_of_known_form_are_parsed() {
        let key = SigningKey {
            id: Uuid::nil(),
            state: SigningKeyState::Standby,
            key: VerificationKey::of_public_jwk(&jwk()).unwrap(),
        };
        let public = key.public_jwk().unwrap();
        assert_eq!((&public["kty"], &public["x"]), (&json!("EC"), &jwk()["x"]));
        assert_eq!(public["kid"], Uuid::nil().to_string());
        assert_eq!(public.get("d"), None, "private members never leave");
        let rsa = |n: usize| {
            let number = URL_SAFE_NO_PAD.encode(vec![1; n]);
            json!({"kty": "RSA", "n": number, "e": "AQAB"})
        };
        assert!(VerificationKey::of_public_jwk(&rsa(256)).is_some());
        let mut short = jwk();
        short["x"] = json!("AAAA");
        let mut curve = jwk();
        curve["crv"] = json!("P-384");
        let secret = json!({"kty": "oct", "k": "c2VjcmV0"});
        for bad in [
            short,
            curve,
            rsa(128),
            rsa(1024),
            secret,
            json!("text"),
            json!({}),
        ] {
            assert!(VerificationKey::of_public_jwk(&bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn revoked_and_weak_keys_are_not_accepted() {
        let of = |state, key| SigningKey {
            id: Uuid::nil(),
            state,
            key,
        };
        let secret =
            |length| VerificationKey::Symmetric(URL_SAFE_NO_PAD.encode("s".repeat(length)).into());
        let public = || VerificationKey::of_public_jwk(&jwk()).unwrap();
        for (text, trusted) in [
            ("standby", true),
            ("in_use", true),
            ("previously_used", true),
            ("revoked", false),
        ] {
            let state = SigningKeyState::parse(text).unwrap();
            assert_eq!(of(state, public()).is_accepted(), trusted, "{text}");
            assert_eq!(
                of(state, public()).public_jwk().is_some(),
                trusted,
                "{text}"
            );
            assert_eq!(of(state, secret(32)).is_accepted(), trusted, "{text}");
            assert!(of(state, secret(32)).public_jwk().is_none());
            assert!(!of(state, secret(31)).is_accepted());
        }
        assert_eq!(SigningKeyState::parse("lost"), None);
    }

    #[test]
    fn states_change_as_the_contract_allows() {
        use SigningKeyState::{InUse, PreviouslyUsed, Revoked, Standby};
        let allowed = [
            (Standby, InUse),
            (Standby, PreviouslyUsed),
            (PreviouslyUsed, Standby),
            (PreviouslyUsed, Revoked),
            (Revoked, Standby),
        ];
        for state in [Standby, InUse, PreviouslyUsed, Revoked] {
            assert_eq!(SigningKeyState::parse(state.name()), Some(state));
            for next in [Standby, InUse, PreviouslyUsed, Revoked] {
                let expected = allowed.contains(&(state, next));
                assert_eq!(state.can_become(next), expected, "{state:?} {next:?}");
            }
        }
    }
}
