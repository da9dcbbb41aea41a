//! Browser login for command line tools: the tool sends a public key and receives a token encrypted
//! with it.
//!
//! The tool chooses a session id, opens a page with it, and prompts for the code shown on the page.
//! The token is encrypted, so that neither an eavesdropper, nor a reader of the database, nor a
//! correct guess of the code discloses it.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree},
};
use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{clock::Entropy, ids::UserId};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::platform::{
    access::credential::SecretDigest,
    db::Db,
    error::{Context, Error},
};

/// Lifetime of an encrypted token that was not fetched.
pub const LIFETIME: TimeDelta = TimeDelta::minutes(10);
/// Maximum number of codes that can be tried per session.
const CODE_TRIES_MAX: i16 = 5;
/// How long a session id cannot be reused.
const SESSION_RETENTION: TimeDelta = TimeDelta::days(1);
/// Maximum number of pending logins per user.
const PENDING_MAX: i64 = 10;
/// Maximum number of stored logins per user.
const LOGINS_MAX: i64 = 100;
/// Length of a code in bytes, before hex encoding.
const CODE_BYTES: usize = 4;
/// Length of an uncompressed P-256 point in bytes.
const POINT_BYTES: usize = 65;

/// A key shared with the tool (ECDH), for one message.
pub struct LoginChannel {
    key: LessSafeKey,
    public_key: String,
}

impl LoginChannel {
    /// Derives a key from the tool's public key: an uncompressed P-256 point, in hex.
    pub fn to(public_key: &str, entropy: &Entropy) -> Result<Self, Error> {
        let unusable = || {
            Error::invalid(
                "public_key",
                "expected an uncompressed point of P-256, in hex",
            )
        };
        let mut theirs = [0; POINT_BYTES];
        hex::decode_to_slice(public_key, &mut theirs).map_err(|_| unusable())?;
        let ours = private_key(entropy);
        let public_key = hex::encode(
            ours.compute_public_key()
                .context("deriving a key for a command line login")?,
        );
        let theirs = UnparsedPublicKey::new(&ECDH_P256, theirs);
        // The tool uses the x-coordinate as key directly, without a key derivation function.
        let key = agree(&ours, theirs, unusable(), |secret| {
            UnboundKey::new(&AES_256_GCM, secret).map_err(|_| unusable())
        })?;
        Ok(Self {
            key: LessSafeKey::new(key),
            public_key,
        })
    }

    /// Encrypts one message, and consumes the key.
    fn seal(self, text: &str, entropy: &Entropy) -> Result<SealedMessage, Error> {
        let nonce = entropy.bytes::<NONCE_LEN>();
        let mut bytes = text.as_bytes().to_vec();
        let sealed = self.key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::empty(),
            &mut bytes,
        );
        sealed.context("encrypting a token")?;
        Ok(SealedMessage {
            text: hex::encode(bytes),
            public_key: self.public_key,
            nonce: hex::encode(nonce),
        })
    }
}

/// Generates a private key. Retries in the rare case that the random number is not a valid key.
fn private_key(entropy: &Entropy) -> PrivateKey {
    loop {
        if let Ok(key) = PrivateKey::from_private_key(&ECDH_P256, &entropy.bytes::<32>()) {
            return key;
        }
    }
}

/// A message encrypted for the tool.
struct SealedMessage {
    text: String,
    public_key: String,
    nonce: String,
}

/// An encrypted token.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CliLogin")]
pub struct EncryptedToken {
    /// Id of the session.
    id: Uuid,
    /// Time of creation.
    created_at: DateTime<Utc>,
    /// The token, encrypted with AES-256-GCM: ciphertext and tag, in hex.
    access_token: String,
    /// The server's public key: an uncompressed P-256 point, in hex. The x-coordinate of the shared
    /// point is the key.
    public_key: String,
    /// Nonce of the encryption, in hex.
    nonce: String,
}

/// Reserves a session id for a user. A session id can be used only once, by any user.
pub async fn begin(db: &Db, owner: UserId, session: Uuid, now: DateTime<Utc>) -> Result<(), Error> {
    let doing = "beginning a command line login";
    let sql = "delete from cli_logins where created_at <= $2 or (user_id = $1 and session_id not in \
               (select session_id from cli_logins where user_id = $1 order by created_at desc limit $3))";
    db.query(
        sql,
        &[&owner.0, &(now - SESSION_RETENTION), &(LOGINS_MAX - 1)],
    )
    .await
    .context(doing)?;
    let sql = "select count(*) from cli_logins where user_id = $1 and created_at > $2 and taken_at is null and tries_left > 0";
    let rows = db
        .query(sql, &[&owner.0, &(now - LIFETIME)])
        .await
        .context(doing)?;
    if rows
        .first()
        .is_none_or(|row| row.get::<_, i64>(0) >= PENDING_MAX)
    {
        return Err(Error::Rejected(
            "Too many logins are pending. Finish one, or wait ten minutes.".into(),
        ));
    }
    let sql = "insert into cli_logins (session_id, user_id, created_at, tries_left) values ($1, $2, $3, $4) \
               on conflict do nothing returning 1";
    let rows = db
        .query(sql, &[&session, &owner.0, &now, &CODE_TRIES_MAX])
        .await
        .context(doing)?;
    if rows.is_empty() {
        Err(Error::Rejected(
            "This link was already used. Run the login again to get a new one.".into(),
        ))
    } else {
        Ok(())
    }
}

/// Stores the encrypted token. Returns the code with which the tool can fetch it.
pub async fn store_token(
    db: &Db,
    entropy: &Entropy,
    session: Uuid,
    channel: LoginChannel,
    token: &str,
) -> Result<String, Error> {
    let sealed = channel.seal(token, entropy)?;
    let code = hex::encode(entropy.bytes::<CODE_BYTES>());
    let sql = "update cli_logins set code_digest = $2, sealed = $3, public_key = $4, nonce = $5 where session_id = $1";
    let digest = digest(session, &code);
    db.query(
        sql,
        &[
            &session,
            &digest.as_bytes(),
            &sealed.text,
            &sealed.public_key,
            &sealed.nonce,
        ],
    )
    .await
    .context("storing an encrypted token")?;
    Ok(code)
}

/// Returns the encrypted token once. All failures are reported as not found.
pub async fn take_token(
    db: &Db,
    session: Uuid,
    code: &str,
    now: DateTime<Utc>,
) -> Result<EncryptedToken, Error> {
    // A single statement counts concurrent attempts exactly and lets only one of them succeed.
    let sql = "update cli_logins set tries_left = tries_left - 1, taken_at = case when code_digest = $2 then $3::timestamptz end \
               where session_id = $1 and sealed is not null and taken_at is null and tries_left > 0 and created_at > $4 \
               returning taken_at is not null, created_at, sealed, public_key, nonce";
    let digest = digest(session, code);
    let rows = db
        .query(
            sql,
            &[&session, &digest.as_bytes(), &now, &(now - LIFETIME)],
        )
        .await
        .context("fetching an encrypted token")?;
    let row = rows
        .first()
        .filter(|row| row.get(0))
        .ok_or(Error::NotFound)?;
    Ok(EncryptedToken {
        id: session,
        created_at: row.get(1),
        access_token: row.get(2),
        public_key: row.get(3),
        nonce: row.get(4),
    })
}

fn digest(session: Uuid, code: &str) -> SecretDigest {
    SecretDigest::of(&format!(
        "cli login {session} {}",
        code.trim().to_ascii_lowercase()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_token_is_readable_by_tool_only() {
        let entropy = Entropy::seeded(1);
        let tool = private_key(&entropy);
        let other = private_key(&entropy);
        let point = hex::encode(tool.compute_public_key().unwrap());
        let sealed = LoginChannel::to(&point, &entropy)
            .unwrap()
            .seal("sbp_x", &entropy)
            .unwrap();
        let read = |own: &PrivateKey| {
            let theirs =
                UnparsedPublicKey::new(&ECDH_P256, hex::decode(&sealed.public_key).unwrap());
            let key = agree(own, theirs, (), |secret| {
                UnboundKey::new(&AES_256_GCM, secret).map_err(|_| ())
            })
            .unwrap();
            let nonce =
                Nonce::try_assume_unique_for_key(&hex::decode(&sealed.nonce).unwrap()).unwrap();
            let mut text = hex::decode(&sealed.text).unwrap();
            LessSafeKey::new(key)
                .open_in_place(nonce, Aad::empty(), &mut text)
                .map(|text| text.to_vec())
                .ok()
        };
        assert_eq!(read(&tool).unwrap(), b"sbp_x");
        assert_eq!(read(&other), None);
    }

    #[test]
    fn invalid_public_key_is_rejected() {
        let entropy = Entropy::seeded(1);
        let point = hex::encode(private_key(&entropy).compute_public_key().unwrap());
        let infinity = "0".repeat(130);
        let off = format!("04{}", "11".repeat(64));
        for wrong in [
            "",
            "04",
            &point[2..],
            &point[..128],
            &format!("{point}00"),
            &point.replacen("04", "02", 1),
            &infinity,
            &off,
        ] {
            assert!(LoginChannel::to(wrong, &entropy).is_err(), "{wrong}");
        }
    }
}
