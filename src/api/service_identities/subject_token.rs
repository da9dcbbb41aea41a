//! Tokens of other issuers: their form, and their signature (RFC 7515, RFC 7519).
//!
//! Only asymmetric algorithms are accepted, those of the keys that are read from issuers: ES256 and
//! RS256.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;

use super::{issuer_keys::TrustedKey, rules::TokenRefusal};

/// Longest id of a key, in bytes.
const KID_BYTES_MAX: usize = 256;
/// Accepted algorithms.
const ALGORITHMS: [&str; 2] = ["ES256", "RS256"];

/// A token with a well-formed header and body. Nothing is verified yet.
pub struct SubjectToken<'a> {
    algorithm: &'static str,
    /// The id of the key that has signed it, if the header names one.
    pub kid: Option<String>,
    /// The claims, which must not be used before the signature is verified.
    unverified: Value,
    signed: &'a [u8],
    signature: Vec<u8>,
}

impl<'a> SubjectToken<'a> {
    /// Parses a token in the compact form.
    pub fn parse(text: &'a str) -> Result<Self, TokenRefusal> {
        let parts: Vec<&str> = text.split('.').collect();
        let [header, claims, signature] = parts[..] else {
            return Err(TokenRefusal::Malformed);
        };
        let header = object(header)?;
        let named = header["alg"].as_str().ok_or(TokenRefusal::Malformed)?;
        let known = ALGORITHMS.into_iter().find(|known| *known == named);
        // Extensions that a receiver does not implement must be rejected (RFC 7515, 4.1.11).
        if header.get("crit").is_some() {
            return Err(TokenRefusal::Malformed);
        }
        let kid = match &header["kid"] {
            Value::Null => None,
            Value::String(kid) if kid.len() <= KID_BYTES_MAX => Some(kid.clone()),
            _ => return Err(TokenRefusal::Malformed),
        };
        Ok(Self {
            algorithm: known.ok_or(TokenRefusal::Algorithm)?,
            kid,
            unverified: object(claims)?,
            signed: &text.as_bytes()[..text.len() - signature.len() - 1],
            signature: decoded(signature)?,
        })
    }

    /// Returns the claimed issuer. It only selects the keys for [`Self::verify`].
    pub fn claimed_issuer(&self) -> Option<&str> {
        self.unverified["iss"].as_str()
    }

    /// Returns the claims, if one of the keys has signed the token.
    pub fn verify(self, keys: &[TrustedKey]) -> Result<Value, TokenRefusal> {
        let kid = self.kid.as_deref();
        let is_signed = keys
            .iter()
            .filter(|key| key.may_have_id(kid))
            .any(|key| key.verifies(self.algorithm, self.signed, &self.signature));
        if is_signed {
            Ok(self.unverified)
        } else {
            Err(TokenRefusal::Signature)
        }
    }
}

fn decoded(part: &str) -> Result<Vec<u8>, TokenRefusal> {
    let bytes = URL_SAFE_NO_PAD.decode(part);
    bytes.map_err(|_| TokenRefusal::Malformed)
}

fn object(part: &str) -> Result<Value, TokenRefusal> {
    let parsed: Option<Value> = serde_json::from_slice(&decoded(part)?).ok();
    let object = parsed.filter(Value::is_object);
    object.ok_or(TokenRefusal::Malformed)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
    };
    use serde_json::json;

    use super::*;

    fn key() -> EcdsaKeyPair {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()
    }

    fn published(key: &EcdsaKeyPair, kid: Option<&str>) -> Vec<TrustedKey> {
        let point = key.public_key().as_ref();
        let x = URL_SAFE_NO_PAD.encode(&point[1..33]);
        let y = URL_SAFE_NO_PAD.encode(&point[33..]);
        let set = json!({"keys": [{"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": kid}]});
        TrustedKey::of_set(&set)
    }

    fn signed(key: &EcdsaKeyPair, header: &Value) -> String {
        let text = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(r#"{"iss":"https://ci.example"}"#)
        );
        let signature = key.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn verdict(text: &str, keys: &[TrustedKey]) -> Result<(), TokenRefusal> {
        let token = SubjectToken::parse(text)?;
        token.verify(keys).map(drop)
    }

    #[test]
    fn only_a_key_of_the_issuer_verifies() {
        let (key, other) = (key(), key());
        let keys = published(&key, Some("a"));
        let header = json!({"alg": "ES256", "kid": "a"});
        let fine = signed(&key, &header);
        let token = SubjectToken::parse(&fine).unwrap();
        assert_eq!(token.claimed_issuer(), Some("https://ci.example"));
        assert_eq!(verdict(&fine, &keys), Ok(()));
        let bare = signed(&key, &json!({"alg": "ES256"}));
        assert_eq!(verdict(&bare, &keys), Ok(()), "without a kid");
        assert_eq!(verdict(&fine, &published(&key, None)), Ok(()));
        let refused = Err(TokenRefusal::Signature);
        assert_eq!(verdict(&signed(&other, &header), &keys), refused);
        assert_eq!(verdict(&fine, &published(&other, Some("a"))), refused);
        assert_eq!(verdict(&fine, &published(&key, Some("b"))), refused);
        assert_eq!(verdict(&fine, &[]), refused);
        let as_rsa = signed(&key, &json!({"alg": "RS256", "kid": "a"}));
        assert_eq!(verdict(&as_rsa, &keys), refused);
    }

    #[test]
    fn other_algorithms_and_forms_are_rejected() {
        let key = key();
        let with = |header: Value| signed(&key, &header);
        let malformed = TokenRefusal::Malformed;
        for (text, expected) in [
            (with(json!({"alg": "none"})), TokenRefusal::Algorithm),
            (with(json!({"alg": "HS256"})), TokenRefusal::Algorithm),
            (with(json!({"alg": "es256"})), TokenRefusal::Algorithm),
            (with(json!({})), malformed),
            (with(json!({"alg": "ES256", "kid": 1})), malformed),
            (with(json!({"alg": "ES256", "crit": ["b64"]})), malformed),
            (with(json!([])), malformed),
            ("a.b".to_owned(), malformed),
            (format!("{}.x", with(json!({"alg": "ES256"}))), malformed),
            (String::new(), malformed),
        ] {
            let refused = SubjectToken::parse(&text).map(drop);
            assert_eq!(refused, Err(expected), "{text}");
        }
    }
}
