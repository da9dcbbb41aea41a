//! Links that sign somebody in once: for a first visit, and for who forgot a password.

use std::net::IpAddr;

use chrono::{DateTime, TimeDelta, Utc};

use super::{Account, one};
use crate::{
    base::{
        db::Db,
        error::{Context, Error},
        ids::UserId,
    },
    platform::access::{credential::SecretDigest, sessions, sessions::Secret},
};

/// How long a link can be used.
pub const LIFETIME: TimeDelta = TimeDelta::minutes(15);

/// Where it leads: to a page that signs in when a button is pressed, so that programs that look at links use none up.
pub fn path(secret: &Secret) -> String {
    format!("/sign-in/link/{}", secret.expose())
}

/// Keeps a link for a user, in the place of those that can no longer be used.
pub async fn create(
    db: &Db,
    owner: UserId,
    secret: &Secret,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "with old as (delete from sign_in_links where expires_at <= $3) \
               insert into sign_in_links (digest, user_id, expires_at) values ($1, $2, $4)";
    db.query(
        sql,
        &[
            &secret.digest().as_bytes(),
            &owner.0,
            &now,
            &(now + LIFETIME),
        ],
    )
    .await
    .context("keeping a link")?;
    Ok(())
}

/// Whom a link would sign in.
pub async fn owner(db: &Db, digest: &SecretDigest, now: DateTime<Utc>) -> Result<Account, Error> {
    let sql = "select u.id, u.gotrue_id, u.email, u.username from sign_in_links l join users u on u.id = l.user_id \
               where l.digest = $1 and l.expires_at > $2";
    one(&db
        .query(sql, &[&digest.as_bytes(), &now])
        .await
        .context("looking up a link")?)
}

/// Uses a link up, and begins a session for its owner.
pub async fn redeem(
    db: &Db,
    digest: &SecretDigest,
    session: &Secret,
    (address, user_agent): (IpAddr, &str),
    now: DateTime<Utc>,
) -> Result<UserId, Error> {
    let sql = "delete from sign_in_links where digest = $1 and expires_at > $2 returning user_id";
    let rows = db
        .query(sql, &[&digest.as_bytes(), &now])
        .await
        .context("using a link")?;
    let owner = UserId(rows.first().ok_or(Error::NotFound)?.get(0));
    sessions::begin(db, owner, session, address, user_agent, now).await?;
    Ok(owner)
}
