//! Browser sessions of users.
//!
//! A session is read from the database with each page. Pages are requested a few times a minute,
//! and without a cache a session ends at once on every node.

use std::{fmt, net::IpAddr};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{clock::Entropy, ids::UserId};
use secrecy::{ExposeSecret, SecretString};

use crate::platform::{
    access::{caller::User, credential::SecretDigest},
    db::Db,
    error::{Context, Error},
};

/// Longest duration of a session.
pub const LIFE: TimeDelta = TimeDelta::days(30);
/// Longest time without use before a session expires.
const IDLE: TimeDelta = TimeDelta::days(7);
/// Shortest time between two writes of a session's last use.
const USE_RESOLUTION: TimeDelta = TimeDelta::minutes(1);
/// Bound of the sessions of a user; the least recently used ones are deleted.
const SESSIONS_MAX: i64 = 100;
/// Bound of a stored `User-Agent`, in characters.
const USER_AGENT_MAX: usize = 256;

/// The secret in a session's cookie: 256 random bits in 64 hex digits.
#[derive(Clone)]
pub struct SessionSecret(SecretString);

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl SessionSecret {
    /// Returns a new random secret.
    pub fn generate(entropy: &Entropy) -> Self {
        Self(hex::encode(entropy.bytes::<32>()).into())
    }

    /// Parses a secret from a cookie. `None` unless there are 64 lowercase hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let ours = text.len() == 64
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        ours.then(|| Self(text.into()))
    }

    /// Returns the digest under which the session is stored.
    pub fn digest(&self) -> SecretDigest {
        SecretDigest::of(self.0.expose_secret())
    }

    /// Returns the CSRF token of the session's forms. The secret cannot be derived from it.
    pub fn form_token(&self) -> String {
        hex::encode(SecretDigest::of(&format!("form {}", self.0.expose_secret())).as_bytes())
    }

    /// Returns the secret in clear, for the cookie.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

/// A live session, as its owner sees it.
#[derive(Debug, Clone)]
pub struct BrowserSession {
    /// Row of `sessions`.
    pub id: i64,
    /// Start of the session.
    pub created_at: DateTime<Utc>,
    /// Time of the last use, to the minute.
    pub last_used_at: DateTime<Utc>,
    /// Address of the client at the start.
    pub address: String,
    /// `User-Agent` of the client at the start.
    pub user_agent: String,
    /// Whether the session belongs to the current request.
    pub current: bool,
}

/// Starts a session, and deletes sessions of the user that have ended or exceed the bound.
pub async fn begin(
    db: &Db,
    owner: UserId,
    secret: &SessionSecret,
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
    let row: [crate::platform::db::Param<'_>; 6] = [
        &owner.0,
        &digest.as_bytes(),
        &now,
        &(now + LIFE),
        &address.to_string(),
        &user_agent,
    ];
    db.query(sql, &row).await.context("beginning a session")?;
    let sql = "delete from sessions where user_id = $1 and (revoked_at is not null or expires_at <= $2 or last_used_at <= $3 \
               or id not in (select id from sessions where user_id = $1 order by last_used_at desc, id desc limit $4))";
    db.query(sql, &[&owner.0, &now, &(now - IDLE), &SESSIONS_MAX])
        .await
        .context("clearing sessions")?;
    Ok(())
}

/// Returns the user of a live session, and updates its last use.
pub async fn user(
    db: &Db,
    digest: &SecretDigest,
    now: DateTime<Utc>,
) -> Result<Option<User>, Error> {
    let sql = "select u.id, u.gotrue_id, s.id, s.last_used_at, s.created_at from sessions s join users u on u.id = s.user_id \
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
        activity: None,
        signed_in_at: Some(row.get(4)),
    }))
}

/// Returns the live sessions of a user, the current one first, then by last use.
pub async fn list(
    db: &Db,
    owner: UserId,
    current: &SecretDigest,
    now: DateTime<Utc>,
) -> Result<Vec<BrowserSession>, Error> {
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
    Ok(rows
        .context("listing sessions")?
        .iter()
        .map(|row| BrowserSession {
            id: row.get(0),
            created_at: row.get(1),
            last_used_at: row.get(2),
            address: row.get(3),
            user_agent: row.get(4),
            current: row.get(5),
        })
        .collect())
}

/// A selection of sessions to end.
#[derive(Debug, Clone, Copy)]
pub enum SessionSelection<'a> {
    /// The session with this id.
    One(i64),
    /// The session of this secret.
    This(&'a SecretDigest),
    /// All sessions except the one of this secret.
    Others(&'a SecretDigest),
    /// All sessions.
    All,
}

/// Ends sessions of a user on every node at once. Returns their number.
pub async fn end(
    db: &Db,
    owner: UserId,
    which: SessionSelection<'_>,
    now: DateTime<Utc>,
) -> Result<usize, Error> {
    let (id, only, but): (Option<i64>, Option<&[u8]>, Option<&[u8]>) = match which {
        SessionSelection::One(id) => (Some(id), None, None),
        SessionSelection::This(digest) => (None, Some(digest.as_bytes()), None),
        SessionSelection::Others(digest) => (None, None, Some(digest.as_bytes())),
        SessionSelection::All => (None, None, None),
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
    fn session_secret_parses_and_is_not_printed() {
        let secret = SessionSecret::generate(&Entropy::seeded(1));
        let text = secret.expose().to_owned();
        assert_eq!(
            SessionSecret::parse(&text).unwrap().digest(),
            secret.digest()
        );
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
            assert!(SessionSecret::parse(wrong).is_none(), "{wrong}");
        }
    }
}
