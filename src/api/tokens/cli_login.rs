//! Signing a command line tool in from the pages: the tool brings a public key, and fetches a token that is encrypted for it.
//!
//! The tool chooses a session id, shows a link to a page, and asks for the code that the page tells. Nobody but the tool can
//! read the token: not who listens, not who reads the database, not who guesses the code.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree},
};
use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::{
    base::{
        clock::Entropy,
        db::Db,
        error::{Context, Error},
        ids::UserId,
    },
    platform::access::credential::SecretDigest,
};

/// How long the token waits to be fetched.
pub const LIFETIME: TimeDelta = TimeDelta::minutes(10);
/// Codes that may be tried for one session.
const CODE_TRIES_MAX: i16 = 5;
/// How long a session id is known again.
const SESSION_RETENTION: TimeDelta = TimeDelta::days(1);
/// Logins of one user that wait at the same time.
const PENDING_MAX: i64 = 10;
/// Logins of one user that are remembered.
const LOGINS_MAX: i64 = 100;
/// Hex digits of a code.
const CODE_BYTES: usize = 4;
/// Length of an uncompressed point of P-256.
const POINT_BYTES: usize = 65;

/// A key that only the tool and this server can derive, for one message.
pub struct LoginChannel {
    key: LessSafeKey,
    public_key: String,
}

impl LoginChannel {
    /// With the tool that sent this public key: an uncompressed point of P-256, in hex.
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
                .context("making a key for one login")?,
        );
        let theirs = UnparsedPublicKey::new(&ECDH_P256, theirs);
        // The secret is the point's x-coordinate, which the tool uses as the key as it is.
        let key = agree(&ours, theirs, unusable(), |secret| {
            UnboundKey::new(&AES_256_GCM, secret).map_err(|_| unusable())
        })?;
        Ok(Self {
            key: LessSafeKey::new(key),
            public_key,
        })
    }

    /// Encrypts the one message.
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

/// Nearly every number is a key; the next one is.
fn private_key(entropy: &Entropy) -> PrivateKey {
    loop {
        if let Ok(key) = PrivateKey::from_private_key(&ECDH_P256, &entropy.bytes::<32>()) {
            return key;
        }
    }
}

/// A token as only the tool can read it.
struct SealedMessage {
    text: String,
    public_key: String,
    nonce: String,
}

/// What the tool fetches.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CliLogin")]
pub struct EncryptedToken {
    /// The session's id.
    id: Uuid,
    /// When the token was made.
    created_at: DateTime<Utc>,
    /// The token: AES-256-GCM with the tag at the end, in hex.
    access_token: String,
    /// Ours: an uncompressed point of P-256, in hex. The x-coordinate of the agreed point is the key.
    public_key: String,
    /// Of the encryption, in hex.
    nonce: String,
}

/// Takes a session id for a user. One that was used is refused, whoever used it.
pub async fn begin(db: &Db, owner: UserId, session: Uuid, now: DateTime<Utc>) -> Result<(), Error> {
    let doing = "beginning a login of a tool";
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
            "Too many logins wait for their code. Finish one, or wait ten minutes.".into(),
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
            "This link was used already. Run the login again, for a new one.".into(),
        ))
    } else {
        Ok(())
    }
}

/// Lets the tool fetch the token, with the code that this answers.
pub async fn store_token(
    db: &Db,
    entropy: &Entropy,
    session: Uuid,
    channel: LoginChannel,
    token: &str,
) -> Result<String, Error> {
    let (sealed, code) = (
        channel.seal(token, entropy)?,
        hex::encode(entropy.bytes::<CODE_BYTES>()),
    );
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
    .context("keeping a tool's token")?;
    Ok(code)
}

/// What waits for the tool, once. Every reason against it looks the same.
pub async fn take_token(
    db: &Db,
    session: Uuid,
    code: &str,
    now: DateTime<Utc>,
) -> Result<EncryptedToken, Error> {
    // One statement, so that tries at the same time are all counted and only one of them fetches.
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
        .context("fetching a tool's token")?;
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
    fn the_tool_reads_what_is_sealed_for_it_and_nobody_else() {
        let entropy = Entropy::seeded(1);
        let (tool, other) = (private_key(&entropy), private_key(&entropy));
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
    fn what_is_no_point_of_the_curve_is_refused() {
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
