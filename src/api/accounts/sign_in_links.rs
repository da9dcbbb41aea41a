//! Single-use sign-in links, for a first sign-in and for forgotten passwords.

use std::net::IpAddr;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::UserId;

use super::{Account, one};
use crate::platform::{
    access::{
        credential::SecretDigest,
        sessions::{self, SessionSecret},
    },
    db::Db,
    error::{Context, Error},
};

/// Lifetime of a link.
pub const LIFETIME: TimeDelta = TimeDelta::minutes(15);

/// Returns the path of a link. Its page signs in on a button press, so that link scanners do not
/// use up the link.
pub fn path(secret: &SessionSecret) -> String {
    format!("/sign-in/link/{}", secret.expose())
}

/// Stores a link for a user and deletes expired ones.
pub async fn create(
    db: &Db,
    owner: UserId,
    secret: &SessionSecret,
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
    .context("storing a sign-in link")?;
    Ok(())
}

/// Returns the account that a link signs in.
pub async fn owner(db: &Db, digest: &SecretDigest, now: DateTime<Utc>) -> Result<Account, Error> {
    let sql = "select u.id, u.gotrue_id, u.email, u.username from sign_in_links l join users u on u.id = l.user_id \
               where l.digest = $1 and l.expires_at > $2";
    one(&db
        .query(sql, &[&digest.as_bytes(), &now])
        .await
        .context("looking up a sign-in link")?)
}

/// Consumes a link and begins a session for its owner.
pub async fn redeem(
    db: &Db,
    digest: &SecretDigest,
    session: &SessionSecret,
    (address, user_agent): (IpAddr, &str),
    now: DateTime<Utc>,
) -> Result<UserId, Error> {
    let sql = "delete from sign_in_links where digest = $1 and expires_at > $2 returning user_id";
    let rows = db
        .query(sql, &[&digest.as_bytes(), &now])
        .await
        .context("redeeming a sign-in link")?;
    let owner = UserId(rows.first().ok_or(Error::NotFound)?.get(0));
    sessions::begin(db, owner, session, address, user_agent, now).await?;
    Ok(owner)
}
