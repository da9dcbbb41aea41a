//! Personal access tokens: creation, listing and revocation. Only digests are stored.

pub mod children;
pub mod cli_login;
pub mod operations;
pub mod scoped;
pub mod simulate;
mod token_events;
pub mod usage;

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{TokenId, UserId},
};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use crate::platform::{
    access::credential::SecretDigest,
    audit::{Change, Recorder},
    db::Db,
    error::{Context, Error},
    events::payloads::TokenFacts,
    names,
};

/// Maximum lifetime of a token in days.
pub const LIFE_DAYS_MAX: i64 = 366;

/// A generated token: returned once in plain text, stored as a digest.
pub struct GeneratedToken {
    /// The token in plain text.
    pub token: SecretString,
    digest: SecretDigest,
    alias: String,
}

/// Generates a classic token. It never begins with `fc`, which marks scoped tokens.
pub fn mint_classic(entropy: &Entropy) -> GeneratedToken {
    loop {
        let bytes = entropy.bytes::<20>();
        if bytes[0] != 0xfc {
            return GeneratedToken::of(format!("sbp_{}", hex::encode(bytes)));
        }
    }
}

/// The metadata of a token.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "AccessToken")]
pub struct AccessToken {
    /// Row of `tokens`.
    pub id: i64,
    /// Name chosen by the owner.
    pub name: String,
    /// First and last characters of the token.
    pub alias: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Expiry time; the token does not expire if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// Time of the last use, rounded to minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<DateTime<Utc>>,
    /// Client address of the last use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_from: Option<String>,
    /// Restrictions of a scoped token. Absent for a classic token, which has all permissions of its
    /// owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<TokenScope>,
    /// Id of the token that created it. It is revoked with that token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<i64>,
}

/// Restrictions of a scoped token.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "AccessTokenScope")]
pub struct TokenScope {
    /// `account`, `organizations` or `projects`.
    pub reach: String,
    /// Slugs of the organizations that it can access, or of the one that its projects belong to.
    pub organization_slugs: Vec<String>,
    /// Refs of the projects that it can access.
    pub project_refs: Vec<String>,
    /// Permissions, as far as the owner has them.
    pub permissions: Vec<String>,
    /// Networks that it can be used from; any, if empty.
    pub networks: Vec<String>,
    /// Time from which it is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
}

/// Stores a classic token and returns its metadata.
pub async fn create(
    db: &Db,
    owner: UserId,
    name: &str,
    minted: &GeneratedToken,
    created_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    audit: Option<&Recorder>,
) -> Result<AccessToken, Error> {
    check_name(name)?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("storing a token")?;
    let sql = "insert into tokens (user_id, name, digest, alias, created_at, expires_at) values ($1, $2, $3, $4, $5, $6) returning id";
    let row = transaction
        .query_one(
            sql,
            &[
                &owner.0,
                &name,
                &minted.digest.as_bytes(),
                &minted.alias,
                &created_at,
                &expires_at,
            ],
        )
        .await
        .context("storing a token")?;
    let id = row.get(0);
    if let Some(audit) = audit {
        let after =
            json!({"id": id, "name": name, "alias": minted.alias, "expires_at": expires_at});
        let token = TokenFacts {
            id,
            name: name.to_owned(),
            is_scoped: false,
            expires_at,
        };
        let events = token_events::created(&transaction, owner, None, token).await?;
        let change = Change::new((None, Some(after)), events);
        audit
            .write_in(&transaction, 201, change, created_at)
            .await?;
    }
    transaction.commit().await.context("storing a token")?;
    Ok(AccessToken {
        id,
        name: name.to_owned(),
        alias: minted.alias.clone(),
        created_at,
        expires_at,
        last_used_at: None,
        last_used_from: None,
        scope: None,
        parent_id: None,
    })
}

/// Maximum number of tokens in a list.
const LIST_MAX: i64 = 1_000;

/// Columns of a token `t`, for [`read`].
macro_rules! token_columns {
    () => {
        "id, name, alias, created_at, expires_at, last_used_at, reach, permissions, \
         networks::text[], not_before, \
         array(select slug from organizations o where o.id = any(t.organizations) order by slug), \
         array(select ref from projects p where p.id = any(t.projects) order by ref), \
         last_used_from, parent_id"
    };
}
use token_columns;

macro_rules! tokens {
    ($rest:literal) => {
        concat!(
            "select ",
            token_columns!(),
            " from tokens t where user_id = $1 and revoked_at is null ",
            $rest
        )
    };
}

/// Lists the live tokens of a user, newest first.
pub async fn list(db: &Db, owner: UserId) -> Result<Vec<AccessToken>, Error> {
    let rows = db
        .query(
            tokens!("order by created_at desc, id desc limit $2"),
            &[&owner.0, &LIST_MAX],
        )
        .await
        .context("listing tokens")?;
    Ok(rows.iter().map(read).collect())
}

/// Returns a token that the transaction has stored.
async fn created(
    transaction: &Transaction<'_>,
    owner: UserId,
    token: i64,
) -> Result<AccessToken, Error> {
    let row = transaction
        .query_one(tokens!("and id = $2"), &[&owner.0, &token])
        .await;
    row.context("storing a token").map(|row| read(&row))
}

/// Returns a live token of a user.
pub async fn get(db: &Db, owner: UserId, token: TokenId) -> Result<AccessToken, Error> {
    let rows = db
        .query(tokens!("and id = $2"), &[&owner.0, &token.0])
        .await
        .context("reading a token")?;
    rows.first().map(read).ok_or(Error::NotFound)
}

fn read(row: &Row) -> AccessToken {
    let scope = row.get::<_, Option<String>>(6).map(|reach| TokenScope {
        reach,
        permissions: row.get(7),
        networks: row.get(8),
        not_before: row.get(9),
        organization_slugs: row.get(10),
        project_refs: row.get(11),
    });
    AccessToken {
        id: row.get(0),
        name: row.get(1),
        alias: row.get(2),
        created_at: row.get(3),
        expires_at: row.get(4),
        last_used_at: row.get(5),
        last_used_from: row.get(12),
        scope,
        parent_id: row.get(13),
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    names::check("name", name, 256)
}

/// Revokes a token with its descendants. Other nodes reject them as soon as the change notification
/// arrives.
pub async fn revoke(
    db: &Db,
    token: TokenId,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<(), Error> {
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("revoking a token")?;
    let sql = "update tokens set revoked_at = $2 where id = $1 and revoked_at is null returning name, alias";
    let row = transaction
        .query_opt(sql, &[&token.0, &now])
        .await
        .context("revoking a token")?
        .ok_or(Error::NotFound)?;
    let children = children::revoke_all(&transaction, token, now).await?;
    if let Some(audit) = audit {
        let mut before =
            json!({"id": token.0, "name": row.get::<_, &str>(0), "alias": row.get::<_, &str>(1)});
        if !children.is_empty() {
            before["children"] = children.into();
        }
        audit
            .write_in(&transaction, 200, (Some(before), None), now)
            .await?;
    }
    transaction.commit().await.context("revoking a token")
}

/// Revokes the tokens of a user in a transaction. Returns their number.
pub(in crate::api) async fn revoke_of_user(
    transaction: &Transaction<'_>,
    owner: UserId,
    now: DateTime<Utc>,
) -> Result<u64, Error> {
    let sql = "update tokens set revoked_at = $2 where user_id = $1 and revoked_at is null \
               and expires_at > $2";
    let revoked = transaction.execute(sql, &[&owner.0, &now]).await;
    revoked.context("revoking the tokens of a user")
}

/// Revokes the tokens that were issued by a trust, and their descendants, in a transaction that
/// holds the lock of the trust. Returns their number.
pub(in crate::api) async fn revoke_of_trust(
    transaction: &Transaction<'_>,
    trust: Uuid,
    now: DateTime<Utc>,
) -> Result<u64, Error> {
    let doing = "revoking the tokens of a trust";
    let sql = "update tokens set revoked_at = $2 where trust_id = $1 and revoked_at is null \
               and expires_at > $2";
    let issued = transaction.execute(sql, &[&trust, &now]).await;
    let issued = issued.context(doing)?;
    // A statement of its own: it finds the children that were created until the tokens were locked.
    let sql = "with recursive tree as (
                   select c.id from tokens c join tokens p on p.id = c.parent_id
                   where p.trust_id = $1
                   union all select c.id from tokens c join tree on c.parent_id = tree.id
               ) update tokens set revoked_at = $2
                 where id in (select id from tree) and revoked_at is null and expires_at > $2";
    let descendants = transaction.execute(sql, &[&trust, &now]).await;
    Ok(issued + descendants.context(doing)?)
}

/// Deletes tokens of service identities that expired before a time. Returns their number.
pub(in crate::api) async fn delete_of_services(
    db: &Db,
    before: DateTime<Utc>,
    rows_max: i64,
) -> Result<i64, Error> {
    let doing = "deleting expired tokens";
    let sql = "select t.id from users u join tokens t on t.user_id = u.id \
               where u.service_of is not null and t.expires_at <= $1 limit $2";
    let rows = db.query(sql, &[&before, &rows_max]).await;
    let ids: Vec<i64> = rows.context(doing)?.iter().map(|row| row.get(0)).collect();
    // A statement that deletes nothing would clear the caches of all nodes as well.
    if !ids.is_empty() {
        let sql = "delete from tokens where id = any($1) returning 1";
        db.query(sql, &[&ids]).await.context(doing)?;
    }
    i64::try_from(ids.len()).context(doing)
}

/// Returns the owner of a live token.
pub async fn owner(db: &Db, token: TokenId) -> Result<UserId, Error> {
    let rows = db
        .query(
            "select user_id from tokens where id = $1 and revoked_at is null",
            &[&token.0],
        )
        .await
        .context("looking up a token")?;
    rows.first()
        .map(|row| UserId(row.get(0)))
        .ok_or(Error::NotFound)
}

impl GeneratedToken {
    fn of(token: String) -> Self {
        let alias = format!("{}…{}", &token[..8], &token[40..]);
        Self {
            digest: SecretDigest::of(&token),
            token: SecretString::from(token),
            alias,
        }
    }

    /// Returns the token in plain text.
    pub fn expose(&self) -> &str {
        self.token.expose_secret()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::access::credential::well_formed;

    #[test]
    fn mint_classic_is_well_formed_and_not_scoped() {
        for seed in 0..2000 {
            let minted = mint_classic(&Entropy::seeded(seed));
            assert!(
                well_formed(minted.expose()) && !minted.expose().starts_with("sbp_fc"),
                "{}",
                minted.expose()
            );
            assert_eq!(minted.alias.chars().count(), 13);
        }
    }
}
