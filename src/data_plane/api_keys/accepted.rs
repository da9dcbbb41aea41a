//! Keys that a project's services accept, and the tokens that they are exchanged for.

use aws_lc_rs::constant_time;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    ClaimsTemplate, KEYS_MAX, Kind,
    format::{LegacyKey, sign_hs256},
    jwt_secret_seal_context, key_seal_context, ring, signing,
    signing::{SECRET_BYTES_MIN, SigningKey},
};
use crate::{
    base::{
        error::{Context, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::context::DataPlaneContext,
    platform::access::{Project, credential::SecretDigest},
};

/// Time for which a token is signed once, in seconds. A token is valid for one to two such periods.
const TOKEN_PERIOD_SECS: i64 = 60;

/// A symmetric key that signs JSON web tokens.
#[derive(Debug, Clone)]
pub struct TokenKey {
    id: &'static str,
    secret: SecretString,
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

    /// Returns the secret.
    pub(super) fn secret(&self) -> &SecretString {
        &self.secret
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
    /// A token that services accept for a short time.
    Token(SecretString),
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
    service: Option<TokenKey>,
    /// The key of legacy keys, while they are accepted.
    pub(super) legacy: Option<TokenKey>,
    /// Keys that sign tokens of the project's users.
    pub(super) signing: Vec<SigningKey>,
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

    /// Exchanges a key for a token, which is signed once a minute. `now` is in seconds since 1970.
    pub fn exchange(&self, key: &str, now: i64) -> KeyExchange {
        let Some(found) = self.find(key) else {
            return KeyExchange::Unknown;
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
        let mut id = [0; 8];
        id.copy_from_slice(&hash.finalize()[..8]);
        u64::from_le_bytes(id)
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
    if ring.get(1) {
        let secret = context
            .settings
            .sealing
            .open(&jwt_secret_seal_context(project), ring.get(0))?;
        accepted
            .keys
            .extend(LegacyKey::ALL.map(|legacy: LegacyKey| {
                let key = legacy.sign(reference, &secret, ring.get(2));
                AcceptedKey::new(SecretDigest::of(key.expose_secret()), KeyGrant::Legacy)
            }));
        accepted.legacy = Some(TokenKey::new("legacy", secret));
    }
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
    accepted.signing = signing::read(context, project).await?;
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

    /// Keys that only verify tokens.
    pub(super) fn verifying_for_tests(legacy: Option<TokenKey>, signing: Vec<SigningKey>) -> Self {
        Self {
            legacy,
            signing,
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
    fn short_secret_is_no_token_key() {
        let keys = keys();
        assert_eq!(keys.verification_keys().len(), 1);
        assert_ne!(identify(&[]), identify(&keys.verification_keys()));
        assert_eq!(keys.public_key_set(), json!({"keys": []}));
    }
}
