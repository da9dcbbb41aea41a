//! Keys that a project's services accept, and the tokens that they are exchanged for.

use aws_lc_rs::{constant_time, hmac};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use gantry_base::ids::{ProjectId, ProjectRef};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    ClaimsTemplate, KEYS_MAX, Kind,
    format::{LegacyKey, sign_hs256},
    jwt_secret_seal_context, key_seal_context, ring, signing,
    signing::{SECRET_BYTES_MIN, SigningKey, SigningKeyState},
};
use crate::{
    data_plane::{context::DataPlaneContext, third_party_auth},
    platform::{
        access::{Project, credential::SecretDigest},
        error::{Context, Error},
    },
};

/// Time for which a token is signed once, in seconds. A token is valid for one to two such periods.
const TOKEN_PERIOD_SECS: i64 = 60;

/// A symmetric key that signs JSON web tokens.
#[derive(Debug, Clone)]
pub struct TokenKey {
    id: &'static str,
    pub(super) secret: SecretString,
}

impl TokenKey {
    /// The key with this id (`kid`). The bytes of the text are the secret.
    pub(crate) fn new(id: &'static str, secret: SecretString) -> Self {
        Self { id, secret }
    }

    /// Signs claims, which are a JSON object.
    pub(crate) fn sign(&self, claims: &str) -> SecretString {
        let header = json!({"alg": "HS256", "typ": "JWT", "kid": self.id});
        sign_hs256(&header.to_string(), claims, &self.secret)
    }

    /// Returns the key as JSON (RFC 7517 and 7518 §6.4). Contains the secret.
    pub(crate) fn to_json(&self) -> Value {
        let secret = URL_SAFE_NO_PAD.encode(self.secret.expose_secret());
        json!({"kty": "oct", "kid": self.id, "alg": "HS256", "k": secret})
    }

    fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.expose_secret().as_bytes());
        hmac::verify(&key, message, signature).is_ok()
    }

    pub(super) fn is_long_enough(&self) -> bool {
        self.secret.expose_secret().len() >= SECRET_BYTES_MIN
    }
}

/// The right that an accepted key gives.
#[derive(Debug, Clone, PartialEq)]
enum KeyGrant {
    /// A legacy key is a token itself.
    Legacy,
    /// Claims of the tokens that the key is exchanged for.
    Claims(ClaimsTemplate),
}

/// A token and the start of the period for which it was signed, in seconds since 1970.
type SignedToken = (i64, SecretString);

/// An accepted key.
#[derive(Debug)]
struct AcceptedKey {
    digest: SecretDigest,
    grant: KeyGrant,
    /// The last signed token.
    token: Mutex<Option<SignedToken>>,
}

impl AcceptedKey {
    fn new(digest: SecretDigest, grant: KeyGrant) -> Self {
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

/// The keys of a project in clear text, for the environment of its functions.
pub(crate) struct KeyValues {
    /// Publishable keys by name.
    pub(crate) publishable: Vec<(String, SecretString)>,
    /// Secret keys by name.
    pub(crate) secret: Vec<(String, SecretString)>,
    /// The legacy keys `anon` and `service_role`, while they are accepted.
    pub(crate) legacy: Option<[SecretString; 2]>,
}

/// Reads the keys of a project in clear text.
pub(crate) async fn key_values(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<KeyValues, Error> {
    let doing = "reading a project's keys";
    let sql =
        "select jwt_secret, created_at from key_rings where project_id = $1 and legacy_enabled";
    let rows = context.db.query(sql, &[&project.0]).await.context(doing)?;
    let sealing = &context.settings.sealing;
    let legacy = match rows.first() {
        Some(ring) => {
            let secret = sealing.open(&jwt_secret_seal_context(project), ring.get(0))?;
            let sign = |legacy: LegacyKey| legacy.sign(reference, &secret, ring.get(1));
            Some(LegacyKey::ALL.map(sign))
        }
        None => None,
    };
    let sql =
        "select id, kind, name, sealed from api_keys where project_id = $1 order by id limit $2";
    let rows = context.db.query(sql, &[&project.0, &KEYS_MAX]).await;
    let (mut publishable, mut secret) = (Vec::new(), Vec::new());
    for row in &rows.context(doing)? {
        let is_secret = row.get::<_, &str>(1) == Kind::Secret.name();
        let kind = if is_secret {
            Kind::Secret
        } else {
            Kind::Publishable
        };
        let key = sealing.open(&key_seal_context(project, kind, row.get(0)), row.get(3))?;
        let keys = if is_secret {
            &mut secret
        } else {
            &mut publishable
        };
        keys.push((row.get(2), key));
    }
    Ok(KeyValues {
        publishable,
        secret,
        legacy,
    })
}

/// Keys that a project's services accept.
#[derive(Debug, Default)]
pub struct AcceptedKeys {
    keys: Vec<AcceptedKey>,
    /// The key that signs exchanged tokens. It never leaves the node.
    pub(super) service: Option<TokenKey>,
    /// The key of legacy keys, while they are accepted.
    pub(super) legacy: Option<TokenKey>,
    /// Keys that sign tokens of the project's users.
    pub(super) signing: Vec<SigningKey>,
    /// Public keys of other sign-in services, as JSON (RFC 7517).
    third_party: Vec<Value>,
    /// Digests of the signed parts of disabled legacy keys with a secret that is still trusted.
    disabled: Vec<SecretDigest>,
    id: u64,
}

impl AcceptedKeys {
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

/// Reads the keys that a project's services currently accept.
pub async fn accepted_keys(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<AcceptedKeys, Error> {
    let doing = "reading a project's keys";
    let sql = "select jwt_secret, legacy_enabled, created_at, service_key from key_rings where project_id = $1";
    let rows = context.db.query(sql, &[&project.0]).await.context(doing)?;
    let Some(ring) = rows.first() else {
        return Ok(AcceptedKeys::default());
    };
    let service = service_key(context, project, ring.get(3)).await?;
    let mut accepted = AcceptedKeys {
        service: Some(TokenKey::new("gantry", service)),
        ..AcceptedKeys::default()
    };
    let signing = signing::read(context, project).await?;
    let is_enabled: bool = ring.get(1);
    // Of a project that moved to signing keys, the key's state rules and not the switch.
    let is_trusted = signing
        .legacy
        .map_or(is_enabled, SigningKeyState::is_trusted);
    if is_trusted {
        let sealing = &context.settings.sealing;
        let secret = sealing.open(&jwt_secret_seal_context(project), ring.get(0))?;
        for legacy in LegacyKey::ALL {
            let key = legacy.sign(reference, &secret, ring.get(2));
            let key = key.expose_secret();
            if is_enabled {
                let digest = SecretDigest::of(key);
                accepted
                    .keys
                    .push(AcceptedKey::new(digest, KeyGrant::Legacy));
            } else if let Some((signed, _)) = key.rsplit_once('.') {
                accepted.disabled.push(SecretDigest::of(signed));
            }
        }
        accepted.legacy = Some(TokenKey::new("legacy", secret));
    }
    accepted.signing = signing.trusted;
    accepted.third_party = third_party_auth::accepted(context, project).await?;
    let sql = "select digest, kind, template from api_keys where project_id = $1 limit $2";
    let made = context
        .db
        .query(sql, &[&project.0, &KEYS_MAX])
        .await
        .context(doing)?;
    for row in &made {
        let Some(digest) = SecretDigest::stored(row.get(0)) else {
            continue;
        };
        let claims = match (row.get::<_, &str>(1) == Kind::Secret.name(), row.get(2)) {
            (true, Some(Value::Object(claims))) => claims,
            (true, _) => claims_of_role("service_role"),
            (false, _) => claims_of_role("anon"),
        };
        accepted
            .keys
            .push(AcceptedKey::new(digest, KeyGrant::Claims(claims)));
    }
    accepted.id = identify(&accepted.verification_keys());
    Ok(accepted)
}

/// Returns the secret that signs legacy keys.
pub async fn jwt_secret(
    context: &DataPlaneContext,
    project: &Project,
) -> Result<SecretString, Error> {
    Ok(ring(context, project).await?.jwt_secret)
}

/// Claims of a key without claims of its own.
pub(super) fn claims_of_role(role: &str) -> ClaimsTemplate {
    [("role".to_owned(), role.into())].into_iter().collect()
}

/// Opens the key that signs exchanged tokens. Creates it for a project that has none.
async fn service_key(
    context: &DataPlaneContext,
    project: ProjectId,
    sealed: Option<&[u8]>,
) -> Result<SecretString, Error> {
    let place = format!("project {project} service key");
    let open = |sealed: &[u8]| context.settings.sealing.open(&place, sealed);
    if let Some(sealed) = sealed {
        return open(sealed);
    }
    let made = crate::data_plane::services::rest::mint(&context.entropy);
    let sealed = context
        .settings
        .sealing
        .seal(&context.entropy, &place, &made)?;
    // Another process may have stored one meanwhile, which is then used.
    let sql = "update key_rings set service_key = coalesce(service_key, $2) where project_id = $1 returning service_key";
    let rows = context.db.query(sql, &[&project.0, &sealed]).await;
    let rows = rows.context("making a project's service key")?;
    rows.first().map_or(Ok(made), |row| open(row.get(0)))
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
