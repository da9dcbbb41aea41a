//! Sessions of people who are signed in on the pages.
//!
//! A session is read from the database with each page: unlike a program's token it is used a few times a minute, and so
//! whoever ends it need not wait for any cache.

use std::{fmt, net::IpAddr};

use chrono::{DateTime, TimeDelta, Utc};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    base::{
        clock::Entropy,
        db::Db,
        error::{Context, Error},
        ids::UserId,
    },
    platform::access::{User, credential::SecretDigest},
};

/// How long a session lasts at most.
pub const LIFE: TimeDelta = TimeDelta::days(30);
/// How long it lasts while nobody uses it.
const IDLE: TimeDelta = TimeDelta::days(7);
/// How often, at most, its last use is written.
const USE_RESOLUTION: TimeDelta = TimeDelta::minutes(1);
/// Sessions of one user; the least used end when there are more.
const SESSIONS_MAX: i64 = 100;
/// Characters of a browser's name that are kept.
const USER_AGENT_MAX: usize = 256;

/// The value of a session's cookie: 256 random bits.
#[derive(Clone)]
pub struct Secret(SecretString);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Secret {
    /// A new one.
    pub fn generate(entropy: &Entropy) -> Self {
        Self(hex::encode(entropy.bytes::<32>()).into())
    }

    /// One that came back. `None` if it cannot be one of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let ours = text.len() == 64
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        ours.then(|| Self(text.into()))
    }

    /// By which it is known here.
    pub fn digest(&self) -> SecretDigest {
        SecretDigest::of(self.0.expose_secret())
    }

    /// What a form of this session carries, to show that one of our pages made it. It does not tell the secret.
    pub fn form_token(&self) -> String {
        hex::encode(SecretDigest::of(&format!("form {}", self.0.expose_secret())).as_bytes())
    }

    /// In clear, for the cookie.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

/// A live session, as its owner sees it.
#[derive(Debug, Clone)]
pub struct Session {
    /// Row of `sessions`.
    pub id: i64,
    /// When it was begun.
    pub created_at: DateTime<Utc>,
    /// When it was last used, to the minute.
    pub last_used_at: DateTime<Utc>,
    /// Where it was begun.
    pub address: String,
    /// In which browser.
    pub user_agent: String,
    /// Whether it is the one that asks.
    pub current: bool,
}

/// Begins a session.
pub async fn begin(
    db: &Db,
    owner: UserId,
    secret: &Secret,
    address: IpAddr,
    user_agent: &str,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let user_agent: String = user_agent
        .chars()
        .filter(|c| !c.is_control())
        .take(USER_AGENT_MAX)
        .collect();
    let sql = "insert into sessions (user_id, digest, created_at, last_used_at, expires_at, address, user_agent) \
               values ($1, $2, $3, $3, $4, $5, $6)";
    let digest = secret.digest();
    let row: [crate::base::db::Param<'_>; 6] = [
        &owner.0,
        &digest.as_bytes(),
        &now,
        &(now + LIFE),
        &address.to_string(),
        &user_agent,
    ];
    db.query(sql, &row).await.context("beginning a session")?;
    // What is over is of no use to anybody, and the rest has a bound.
    let sql = "delete from sessions where user_id = $1 and (revoked_at is not null or expires_at <= $2 or last_used_at <= $3 \
               or id not in (select id from sessions where user_id = $1 order by last_used_at desc, id desc limit $4))";
    db.query(sql, &[&owner.0, &now, &(now - IDLE), &SESSIONS_MAX])
        .await
        .context("clearing sessions")?;
    Ok(())
}

/// The user who is signed in with this session. Notes its use.
pub async fn user(
    db: &Db,
    digest: &SecretDigest,
    now: DateTime<Utc>,
) -> Result<Option<User>, Error> {
    let sql = "select u.id, u.gotrue_id, s.id, s.last_used_at from sessions s join users u on u.id = s.user_id \
               where s.digest = $1 and s.revoked_at is null and s.expires_at > $2 and s.last_used_at > $3";
    let rows = db
        .query(sql, &[&digest.as_bytes(), &now, &(now - IDLE)])
        .await
        .context("looking up a session")?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    if now - row.get::<_, DateTime<Utc>>(3) >= USE_RESOLUTION {
        let sql = "update sessions set last_used_at = greatest(last_used_at, $2) where id = $1";
        db.query(sql, &[&row.get::<_, i64>(2), &now])
            .await
            .context("noting the use of a session")?;
    }
    Ok(Some(User {
        id: UserId(row.get(0)),
        gotrue_id: row.get(1),
        token: None,
        grant: None,
        approval: None,
        lately: None,
    }))
}

/// The live sessions of a user, the one that asks first, then by last use.
pub async fn list(
    db: &Db,
    owner: UserId,
    current: &SecretDigest,
    now: DateTime<Utc>,
) -> Result<Vec<Session>, Error> {
    let sql = "select id, created_at, last_used_at, address, user_agent, digest = $2 from sessions where user_id = $1 \
               and revoked_at is null and expires_at > $3 and last_used_at > $4 \
               order by digest = $2 desc, last_used_at desc, id desc limit $5";
    let rows = db
        .query(
            sql,
            &[
                &owner.0,
                &current.as_bytes(),
                &now,
                &(now - IDLE),
                &SESSIONS_MAX,
            ],
        )
        .await;
    let session = |row: &tokio_postgres::Row| Session {
        id: row.get(0),
        created_at: row.get(1),
        last_used_at: row.get(2),
        address: row.get(3),
        user_agent: row.get(4),
        current: row.get(5),
    };
    Ok(rows
        .context("listing sessions")?
        .iter()
        .map(session)
        .collect())
}

/// Which sessions end.
#[derive(Debug, Clone, Copy)]
pub enum Ending<'a> {
    /// The one of this number.
    One(i64),
    /// The one of this secret.
    This(&'a SecretDigest),
    /// All but the one of this secret.
    Others(&'a SecretDigest),
    /// All.
    All,
}

/// Ends sessions of a user, at once and everywhere. How many there were.
pub async fn end(
    db: &Db,
    owner: UserId,
    which: Ending<'_>,
    now: DateTime<Utc>,
) -> Result<usize, Error> {
    let (id, only, but): (Option<i64>, Option<&[u8]>, Option<&[u8]>) = match which {
        Ending::One(id) => (Some(id), None, None),
        Ending::This(digest) => (None, Some(digest.as_bytes()), None),
        Ending::Others(digest) => (None, None, Some(digest.as_bytes())),
        Ending::All => (None, None, None),
    };
    let sql = "update sessions set revoked_at = $2 where user_id = $1 and revoked_at is null and ($3::bigint is null or id = $3) \
               and ($4::bytea is null or digest = $4) and ($5::bytea is null or digest <> $5) returning id";
    let rows = db
        .query(sql, &[&owner.0, &now, &id, &only, &but])
        .await
        .context("ending sessions")?;
    Ok(rows.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_back_and_told_nowhere() {
        let secret = Secret::generate(&Entropy::seeded(1));
        let text = secret.expose().to_owned();
        assert_eq!(Secret::parse(&text).unwrap().digest(), secret.digest());
        assert_eq!(format!("{secret:?}"), "[secret]");
        assert!(
            !secret.form_token().contains(&text)
                && secret.form_token() != hex::encode(secret.digest().as_bytes())
        );
        for wrong in [
            "",
            "0",
            &text[1..],
            &text.to_uppercase().replace('0', "G"),
            &format!("{text}0"),
        ] {
            assert!(Secret::parse(wrong).is_none(), "{wrong}");
        }
    }
}
