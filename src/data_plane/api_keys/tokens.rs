//! Checking tokens of users and legacy keys (RFC 7519).

use aws_lc_rs::{
    hmac,
    signature::{
        ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
        UnparsedPublicKey,
    },
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{
    accepted::AcceptedKeys,
    signing::{SigningKey, VerificationKey},
};

/// First byte of an uncompressed point on a curve (SEC 1 §2.3.3).
const UNCOMPRESSED: u8 = 4;

/// The reason why a token is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenProblem {
    /// It is not a JSON web token.
    Format,
    /// It is signed with the legacy algorithm, and is not valid.
    Legacy,
    /// It is signed with a key pair, and is not valid.
    Asymmetric,
    /// Its algorithm is not supported.
    Unsupported(&'static str),
}

/// A supported algorithm (RFC 7518 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenAlgorithm {
    Hs256,
    Es256,
    Rs256,
}

impl TokenAlgorithm {
    fn parse(name: &str) -> Result<Self, TokenProblem> {
        Err(TokenProblem::Unsupported(match name {
            "HS256" => return Ok(Self::Hs256),
            "ES256" => return Ok(Self::Es256),
            "RS256" => return Ok(Self::Rs256),
            "none" => "none",
            "HS384" => "HS384",
            "HS512" => "HS512",
            _ => "of this token",
        }))
    }

    const fn problem(self) -> TokenProblem {
        match self {
            Self::Hs256 => TokenProblem::Legacy,
            Self::Es256 | Self::Rs256 => TokenProblem::Asymmetric,
        }
    }
}

fn is_hs256(secret: &SecretString, signed: &[u8], signature: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
    hmac::verify(&key, signed, signature).is_ok()
}

impl VerificationKey {
    /// Returns whether the key made a signature with this algorithm, which must be the key's own: a
    /// public key is never the secret of a symmetric signature.
    fn verifies(&self, algorithm: TokenAlgorithm, signed: &[u8], signature: &[u8]) -> bool {
        let number = |text: &String| URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
        match (self, algorithm) {
            (Self::Symmetric(secret), TokenAlgorithm::Hs256) => is_hs256(secret, signed, signature),
            (Self::Ec { x, y }, TokenAlgorithm::Es256) => {
                let point = [vec![UNCOMPRESSED], number(x), number(y)].concat();
                let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
                key.verify(signed, signature).is_ok()
            }
            (Self::Rsa { n, e }, TokenAlgorithm::Rs256) => {
                let key = RsaPublicKeyComponents {
                    n: number(n),
                    e: number(e),
                };
                let algorithm = &RSA_PKCS1_2048_8192_SHA256;
                key.verify(algorithm, signed, signature).is_ok()
            }
            _ => false,
        }
    }
}

impl AcceptedKeys {
    /// Checks a token of a user or a legacy key. `now` is in seconds since 1970.
    pub fn check_token(&self, token: &str, now: i64) -> Result<(), TokenProblem> {
        let parts: Vec<&str> = token.split('.').collect();
        let [header, claims, signature] = parts[..] else {
            return Err(TokenProblem::Format);
        };
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let header: Option<Value> =
            decode(header).and_then(|json| serde_json::from_slice(&json).ok());
        let header = header.ok_or(TokenProblem::Format)?;
        let algorithm = header["alg"].as_str().ok_or(TokenProblem::Format)?;
        let algorithm = TokenAlgorithm::parse(algorithm)?;
        let problem = algorithm.problem();
        let signed = &token[..token.len() - signature.len() - 1];
        let signature = decode(signature).ok_or(problem)?;
        if !self.verifies(algorithm, &header["kid"], signed.as_bytes(), &signature) {
            return Err(problem);
        }
        let claims: Option<Value> =
            decode(claims).and_then(|json| serde_json::from_slice(&json).ok());
        let claims = claims.filter(Value::is_object).ok_or(problem)?;
        let time = |name: &str| match &claims[name] {
            Value::Null => Ok(None),
            value => value.as_f64().map(Some).ok_or(problem),
        };
        #[expect(clippy::cast_precision_loss, reason = "seconds are below 2^53")]
        let now = now as f64;
        let is_over = time("exp")?.is_some_and(|exp| exp <= now);
        let is_early = time("nbf")?.is_some_and(|nbf| nbf > now);
        if is_over || is_early {
            return Err(problem);
        }
        Ok(())
    }

    /// Returns whether an accepted key made a signature. With the id of a signing key, only that
    /// key counts.
    fn verifies(
        &self,
        algorithm: TokenAlgorithm,
        id: &Value,
        signed: &[u8],
        signature: &[u8],
    ) -> bool {
        let mut accepted = self.signing.iter().filter(|key| key.is_accepted());
        let has_id = |key: &SigningKey| id.as_str() == Some(key.id.to_string().as_str());
        if let Some(key) = accepted.clone().find(|key| has_id(key)) {
            return key.key.verifies(algorithm, signed, signature);
        }
        let legacy = self.legacy.as_ref().filter(|key| key.is_long_enough());
        let is_legacy = algorithm == TokenAlgorithm::Hs256
            && legacy.is_some_and(|key| is_hs256(key.secret(), signed, signature));
        // Tokens of other libraries may have no id.
        is_legacy
            || id.is_null() && accepted.any(|key| key.key.verifies(algorithm, signed, signature))
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::{
        rand::SystemRandom,
        rsa::KeySize,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256},
    };
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::data_plane::api_keys::{TokenKey, signing::SigningKeyState};

    fn accepted(legacy: Option<TokenKey>, signing: Vec<SigningKey>) -> AcceptedKeys {
        AcceptedKeys::verifying_for_tests(legacy, signing)
    }

    fn legacy(letter: &str) -> TokenKey {
        TokenKey::new("legacy", letter.repeat(43).into())
    }

    #[test]
    fn token_is_judged_by_its_algorithm_signature_and_time() {
        let (own, other) = (legacy("l"), legacy("o"));
        let sign = |key: &TokenKey, claims: &str| key.sign(claims).expose_secret().to_owned();
        let fine = sign(&own, r#"{"role":"authenticated","exp":200}"#);
        let of_alg = |alg: &str| {
            let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{alg}"}}"#));
            format!("{header}.e30.{}", URL_SAFE_NO_PAD.encode("x"))
        };
        let keys = accepted(Some(own.clone()), Vec::new());
        for (token, expected) in [
            (fine.clone(), Ok(())),
            (sign(&own, "{}"), Ok(())),
            (sign(&own, r#"{"exp":100}"#), Err(TokenProblem::Legacy)),
            (sign(&own, r#"{"exp":"x"}"#), Err(TokenProblem::Legacy)),
            (sign(&own, r#"{"nbf":101}"#), Err(TokenProblem::Legacy)),
            (sign(&other, "{}"), Err(TokenProblem::Legacy)),
            (format!("{fine}x"), Err(TokenProblem::Legacy)),
            (of_alg("HS256"), Err(TokenProblem::Legacy)),
            (of_alg("ES256"), Err(TokenProblem::Asymmetric)),
            (of_alg("RS256"), Err(TokenProblem::Asymmetric)),
            (of_alg("none"), Err(TokenProblem::Unsupported("none"))),
            (
                of_alg("PS256"),
                Err(TokenProblem::Unsupported("of this token")),
            ),
            ("a.b.c".to_owned(), Err(TokenProblem::Format)),
            ("a.b".to_owned(), Err(TokenProblem::Format)),
            (String::new(), Err(TokenProblem::Format)),
        ] {
            assert_eq!(keys.check_token(&token, 100), expected, "{token}");
        }
        let short = TokenKey::new("legacy", "short".into());
        let disabled = accepted(Some(short), Vec::new());
        assert_eq!(disabled.check_token(&fine, 100), Err(TokenProblem::Legacy));
    }

    /// A key with the function that signs with it.
    type Signer = (VerificationKey, &'static str, Box<dyn Fn(&str) -> Vec<u8>>);

    fn ec() -> Signer {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let point = pair.public_key().as_ref();
        let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (x, y) = (number(&point[1..33]), number(&point[33..]));
        let sign = move |text: &str| {
            let signed = pair.sign(&SystemRandom::new(), text.as_bytes());
            signed.unwrap().as_ref().to_vec()
        };
        (VerificationKey::Ec { x, y }, "ES256", Box::new(sign))
    }

    fn rsa() -> Signer {
        let pair = aws_lc_rs::rsa::KeyPair::generate(KeySize::Rsa2048).unwrap();
        let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let n = number(
            pair.public_key()
                .modulus()
                .big_endian_without_leading_zero(),
        );
        let e = number(
            pair.public_key()
                .exponent()
                .big_endian_without_leading_zero(),
        );
        let sign = move |text: &str| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                text.as_bytes(),
                &mut signature,
            )
            .unwrap();
            signature
        };
        (VerificationKey::Rsa { n, e }, "RS256", Box::new(sign))
    }

    #[test]
    fn tokens_of_signing_keys_are_accepted_while_the_key_is_trusted() {
        for (key, alg, sign) in [ec(), rsa()] {
            let id = Uuid::from_u128(7);
            let token = |alg: &str, kid: Value, claims: Value| {
                let header = json!({"alg": alg, "kid": kid}).to_string();
                let parts = [header, claims.to_string()].map(|part| URL_SAFE_NO_PAD.encode(part));
                let signed = parts.join(".");
                let signature = URL_SAFE_NO_PAD.encode(sign(&signed));
                format!("{signed}.{signature}")
            };
            let of = |state| {
                let key = key.clone();
                accepted(Some(legacy("l")), vec![SigningKey { id, state, key }])
            };
            let wrong = Err(TokenProblem::Asymmetric);
            let user = || json!({"role": "authenticated", "exp": 200});
            for (sent, expected) in [
                (token(alg, json!(id), user()), Ok(())),
                (token(alg, Value::Null, user()), Ok(())),
                (token(alg, json!("other"), user()), wrong),
                (token(alg, json!(id), json!({"exp": 100})), wrong),
                (token(alg, json!(id), json!([])), wrong),
                (format!("{}A", token(alg, json!(id), user())), wrong),
                (token("HS256", json!(id), user()), Err(TokenProblem::Legacy)),
            ] {
                let checked = of(SigningKeyState::InUse).check_token(&sent, 100);
                assert_eq!(checked, expected, "{sent}");
            }
            let sent = token(alg, json!(id), user());
            for (state, expected) in [
                (SigningKeyState::Standby, Ok(())),
                (SigningKeyState::PreviouslyUsed, Ok(())),
                (SigningKeyState::Revoked, wrong),
            ] {
                assert_eq!(of(state).check_token(&sent, 100), expected, "{state:?}");
            }
            // The other algorithm of key pairs.
            let other = if alg == "ES256" { "RS256" } else { "ES256" };
            let sent = token(other, json!(id), user());
            assert_eq!(of(SigningKeyState::InUse).check_token(&sent, 100), wrong);
        }
    }
}
