//! Keys that a project's services accept, and the tokens that they are exchanged for.

mod signing_key;
mod token_key;

use aws_lc_rs::constant_time;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use secrecy::SecretString;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) use self::token_key::{SECRET_BYTES_MIN, sign_hs256};
pub use self::{
    signing_key::{SigningKey, SigningKeyState, VerificationKey},
    token_key::TokenKey,
};
use crate::platform::access::credential::SecretDigest;

/// Longest key that is checked, in bytes. Issued keys have at most half of that.
pub(crate) const KEY_BYTES_MAX: usize = 1024;
/// Time for which a token is signed once, in seconds. A token is valid for one to two such periods.
const TOKEN_PERIOD_SECS: i64 = 60;

/// Claims of a token, besides its validity.
pub type ClaimsTemplate = serde_json::Map<String, Value>;

/// The right that an accepted key gives.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum KeyGrant {
    /// A legacy key is a token itself.
    Legacy,
    /// Claims of the tokens that the key is exchanged for.
    Claims(ClaimsTemplate),
}

/// A token and the start of the period for which it was signed, in seconds since 1970.
type SignedToken = (i64, SecretString);

/// An accepted key.
#[derive(Debug)]
pub(crate) struct AcceptedKey {
    digest: SecretDigest,
    grant: KeyGrant,
    /// The last signed token.
    token: Mutex<Option<SignedToken>>,
}

impl AcceptedKey {
    pub(crate) fn new(digest: SecretDigest, grant: KeyGrant) -> Self {
        Self {
            digest,
            grant,
            token: Mutex::new(None),
        }
    }
}

/// The result of exchanging a key.
#[derive(Debug)]
pub enum KeyExchange {
    /// The key is not of the project.
    Unknown,
    /// The key is a token itself.
    IsToken,
    /// The key is a disabled legacy key.
    Disabled,
    /// A token that services accept for a short time.
    Token(SecretString),
}

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

/// Keys that a project's services accept.
#[derive(Debug, Default)]
pub struct AcceptedKeys {
    /// API keys.
    pub(crate) keys: Vec<AcceptedKey>,
    /// The key that signs exchanged tokens. It never leaves the node.
    pub(crate) service: Option<TokenKey>,
    /// The key of legacy keys, while they are accepted.
    pub(crate) legacy: Option<TokenKey>,
    /// Keys that sign tokens of the project's users.
    pub(crate) signing: Vec<SigningKey>,
    /// Public keys of other sign-in services, as JSON (RFC 7517).
    pub(crate) third_party: Vec<Value>,
    /// Digests of the signed parts of disabled legacy keys with a secret that is still trusted.
    pub(crate) disabled: Vec<SecretDigest>,
    id: u64,
}

impl AcceptedKeys {
    /// No keys yet, with the key that signs exchanged tokens.
    pub(crate) fn signed_with(service: TokenKey) -> Self {
        Self {
            service: Some(service),
            ..Self::default()
        }
    }

    /// Returns whether `key` is accepted. Takes constant time.
    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    fn find(&self, key: &str) -> Option<&AcceptedKey> {
        let sent = SecretDigest::of(key);
        let same = |digest: &SecretDigest| {
            constant_time::verify_slices_are_equal(digest.as_bytes(), sent.as_bytes()).is_ok()
        };
        self.keys.iter().fold(
            None,
            |found, key| if same(&key.digest) { Some(key) } else { found },
        )
    }

    /// Returns whether a token is a disabled legacy key. Its signature is not compared, because it
    /// can be encoded in several ways.
    pub(crate) fn is_disabled(&self, token: &str) -> bool {
        let Some((signed, _)) = token.rsplit_once('.') else {
            return false;
        };
        !self.disabled.is_empty() && self.disabled.contains(&SecretDigest::of(signed))
    }

    /// Exchanges a key for a token, which is signed once a minute. `now` is in seconds since 1970.
    pub fn exchange(&self, key: &str, now: i64) -> KeyExchange {
        let Some(found) = self.find(key) else {
            return if self.is_disabled(key) {
                KeyExchange::Disabled
            } else {
                KeyExchange::Unknown
            };
        };
        let (KeyGrant::Claims(claims), Some(service)) = (&found.grant, &self.service) else {
            return KeyExchange::IsToken;
        };
        let period = now - now.rem_euclid(TOKEN_PERIOD_SECS);
        let mut token = found.token.lock();
        match &*token {
            Some((then, token)) if *then == period => KeyExchange::Token(token.clone()),
            _ => {
                let signed = service.sign(&token_claims(claims, period));
                *token = Some((period, signed.clone()));
                KeyExchange::Token(signed)
            }
        }
    }

    /// Returns the keys of the tokens that services accept, as JSON (RFC 7517). Contains secrets.
    pub(crate) fn verification_keys(&self) -> Vec<Value> {
        let symmetric = self.service.iter().chain(&self.legacy);
        let symmetric = symmetric.filter(|key| key.is_long_enough());
        let signing = self.signing.iter().filter(|key| key.is_accepted());
        symmetric
            .map(TokenKey::to_json)
            .chain(signing.map(SigningKey::to_json))
            .chain(self.third_party.iter().cloned())
            .collect()
    }

    /// Identifies all keys and their tokens.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut digests: Vec<_> = self.keys.iter().map(|key| key.digest.as_bytes()).collect();
        digests.sort_unstable();
        let mut hash = Sha256::new();
        hash.update(self.id.to_le_bytes());
        for digest in digests {
            hash.update(digest);
        }
        hash.update([u8::from(self.disabled.is_empty())]);
        let mut id = [0; 8];
        id.copy_from_slice(&hash.finalize()[..8]);
        u64::from_le_bytes(id)
    }

    /// Checks a token of a user or a legacy key (RFC 7519). `now` is in seconds since 1970.
    pub fn check_token(&self, token: &str, now: i64) -> Result<(), TokenProblem> {
        let parts: Vec<&str> = token.split('.').collect();
        let [header, claims, signature] = parts[..] else {
            return Err(TokenProblem::Format);
        };
        let part = |text: &str| {
            URL_SAFE_NO_PAD
                .decode(text)
                .map_err(|_| TokenProblem::Format)
        };
        let header: Value =
            serde_json::from_slice(&part(header)?).map_err(|_| TokenProblem::Format)?;
        let algorithm = header["alg"].as_str().ok_or(TokenProblem::Format)?;
        let invalid = match algorithm {
            "HS256" => TokenProblem::Legacy,
            "ES256" | "RS256" => TokenProblem::Asymmetric,
            "none" => return Err(TokenProblem::Unsupported("none")),
            "HS384" => return Err(TokenProblem::Unsupported("HS384")),
            "HS512" => return Err(TokenProblem::Unsupported("HS512")),
            _ => return Err(TokenProblem::Unsupported("of this token")),
        };
        let signed = &token[..token.len() - signature.len() - 1];
        let signature = part(signature).map_err(|_| invalid)?;
        let kid = header["kid"].as_str();
        let legacy = self.legacy.as_ref().filter(|key| key.is_long_enough());
        let is_legacy = algorithm == "HS256"
            && legacy.is_some_and(|key| key.has_signed(signed.as_bytes(), &signature));
        let is_signed = is_legacy
            || self
                .signing
                .iter()
                .any(|key| key.has_signed(algorithm, kid, signed.as_bytes(), &signature));
        if !is_signed || self.is_disabled(token) {
            return Err(invalid);
        }
        let claims: Option<Value> = part(claims)
            .ok()
            .and_then(|claims| serde_json::from_slice(&claims).ok());
        let claims = claims.filter(Value::is_object).ok_or(invalid)?;
        let time = |name: &str| match &claims[name] {
            Value::Null => Ok(None),
            value => value.as_f64().map(Some).ok_or(invalid),
        };
        #[expect(clippy::cast_precision_loss, reason = "seconds are below 2^53")]
        let now = now as f64;
        let is_over = time("exp")?.is_some_and(|exp| exp <= now);
        let is_early = time("nbf")?.is_some_and(|nbf| nbf > now);
        if is_over || is_early {
            return Err(invalid);
        }
        Ok(())
    }

    /// Returns the public keys of the project as a key set (RFC 7517), which anyone may read.
    pub fn public_key_set(&self) -> Value {
        let keys: Vec<Value> = self
            .signing
            .iter()
            .filter_map(SigningKey::public_jwk)
            .collect();
        json!({ "keys": keys })
    }

    /// Sets [`Self::id`] for complete keys.
    #[must_use]
    pub(crate) fn identified(self) -> Self {
        let id = identify(&self.verification_keys());
        Self { id, ..self }
    }

    /// Identifies [`Self::verification_keys`]. Never zero.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

/// Returns the claims of an exchanged token. The template cannot change its validity.
fn token_claims(template: &ClaimsTemplate, period: i64) -> String {
    let mut claims = template.clone();
    claims.insert("iat".to_owned(), period.into());
    claims.insert("exp".to_owned(), (period + 2 * TOKEN_PERIOD_SECS).into());
    claims.remove("nbf");
    Value::Object(claims).to_string()
}

fn identify(keys: &[Value]) -> u64 {
    let text = serde_json::to_vec(keys).unwrap_or_default();
    let mut id = [0; 8];
    id.copy_from_slice(&Sha256::digest(text)[..8]);
    u64::from_le_bytes(id).max(1)
}

#[cfg(test)]
impl AcceptedKeys {
    /// Keys with their roles.
    pub(crate) fn for_tests(keys: &[(&str, &str)]) -> Self {
        let grant =
            |role: &str| KeyGrant::Claims([("role".to_owned(), role.into())].into_iter().collect());
        Self {
            keys: keys
                .iter()
                .map(|(key, role)| AcceptedKey::new(SecretDigest::of(key), grant(role)))
                .collect(),
            service: Some(TokenKey::new("gantry", "k".repeat(43).into())),
            ..Self::default()
        }
    }

    /// The role of an exchanged token.
    pub(crate) fn role_for_tests(token: &str) -> Option<String> {
        let part = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        let claims: Value = serde_json::from_slice(&part).ok()?;
        Some(claims["role"].as_str()?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn keys() -> AcceptedKeys {
        let claims =
            |role: &str| KeyGrant::Claims([("role".to_owned(), role.into())].into_iter().collect());
        AcceptedKeys {
            keys: vec![
                AcceptedKey::new(SecretDigest::of("open"), claims("anon")),
                AcceptedKey::new(SecretDigest::of("secret"), claims("service_role")),
                AcceptedKey::new(SecretDigest::of("a.b.c"), KeyGrant::Legacy),
            ],
            service: Some(TokenKey::new("gantry", "k".repeat(43).into())),
            legacy: Some(TokenKey::new("legacy", "short".into())),
            signing: Vec::new(),
            third_party: Vec::new(),
            disabled: Vec::new(),
            id: 1,
        }
    }

    fn claims(exchange: &KeyExchange) -> Value {
        let KeyExchange::Token(token) = exchange else {
            panic!("{exchange:?}");
        };
        let part = token.expose_secret().split('.').nth(1).unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    }

    #[test]
    fn key_is_exchanged_for_a_token_of_its_role() {
        let keys = keys();
        let claims = |key: &str, now| claims(&keys.exchange(key, now));
        assert_eq!(
            claims("secret", 125),
            json!({"role": "service_role", "iat": 120, "exp": 240})
        );
        assert_eq!(
            claims("open", 179),
            json!({"role": "anon", "iat": 120, "exp": 240})
        );
        assert_eq!(claims("open", 180)["exp"], 300, "signed again");
        assert!(matches!(keys.exchange("a.b.c", 0), KeyExchange::IsToken));
        assert!(matches!(keys.exchange("other", 0), KeyExchange::Unknown));
    }

    #[test]
    fn template_cannot_change_the_validity() {
        let template = json!({"role": "x", "exp": 1, "iat": 1, "nbf": 9_999_999_999_i64});
        let claims = token_claims(template.as_object().unwrap(), 60);
        let claims: Value = serde_json::from_str(&claims).unwrap();
        assert_eq!(claims, json!({"role": "x", "iat": 60, "exp": 180}));
    }

    #[test]
    fn token_is_judged_by_its_algorithm_signature_and_time() {
        let legacy = TokenKey::new("legacy", "l".repeat(43).into());
        let other = TokenKey::new("legacy", "o".repeat(43).into());
        let sign = |key: &TokenKey, claims: &str| key.sign(claims).expose_secret().to_owned();
        let fine = sign(&legacy, r#"{"role":"authenticated","exp":200}"#);
        let of_alg = |alg: &str| {
            let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{alg}"}}"#));
            format!("{header}.e30.{}", URL_SAFE_NO_PAD.encode("x"))
        };
        let keys = AcceptedKeys {
            legacy: Some(legacy.clone()),
            ..keys()
        };
        for (token, expected) in [
            (fine.clone(), Ok(())),
            (sign(&legacy, "{}"), Ok(())),
            (sign(&legacy, r#"{"exp":100}"#), Err(TokenProblem::Legacy)),
            (sign(&legacy, r#"{"exp":"x"}"#), Err(TokenProblem::Legacy)),
            (sign(&legacy, r#"{"nbf":101}"#), Err(TokenProblem::Legacy)),
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
        let disabled = super::tests::keys();
        assert_eq!(disabled.check_token(&fine, 100), Err(TokenProblem::Legacy));
    }

    #[test]
    fn short_secret_is_no_token_key() {
        let keys = keys();
        assert_eq!(keys.verification_keys().len(), 1);
        assert_ne!(identify(&[]), identify(&keys.verification_keys()));
        assert_eq!(keys.public_key_set(), json!({"keys": []}));
    }
}
