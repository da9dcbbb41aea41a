//! Trusts of service identities: the rules by which tokens of other issuers are exchanged, and the
//! limits of the tokens that are issued.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::UserId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::rules::{ClaimPattern, TokenRefusal, TrustRule};
use crate::{
    api::tokens,
    platform::{
        access::{TokenGrant, credential::SecretDigest, read_grant},
        audit::Recorder,
        context::PlatformContext,
        db::{self, Db},
        error::{Context, Error},
        notifications,
        tables::Table,
    },
};

/// Maximum number of trusts of a service identity.
const TRUSTS_MAX: i64 = 20;
/// Maximum number of unexpired exchanged tokens of a trust. Concurrent exchanges may exceed it
/// slightly.
const EXCHANGED_MAX: i64 = 10_000;

/// A trust as clients see it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ServiceIdentityTrust")]
pub struct TrustView {
    /// Id of the trust.
    pub id: Uuid,
    /// The claim `iss` of accepted tokens.
    pub issuer: String,
    /// The audience of accepted tokens.
    pub audience: String,
    /// Pattern of the claim `sub`, in which `*` is any run of characters.
    pub subject: String,
    /// Patterns of other claims.
    pub claims: BTreeMap<String, String>,
    /// Permissions of issued tokens, as far as the role of the service identity has them.
    pub permissions: Vec<String>,
    /// Refs of the projects that issued tokens can access; all of the organization, if empty.
    pub project_refs: Vec<String>,
    /// Networks that issued tokens can be used from; any, if empty.
    pub networks: Vec<String>,
    /// Longest life of issued tokens in minutes.
    pub life_minutes: i16,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
}

impl TrustView {
    fn read(row: &Row) -> Result<Self, Error> {
        let claims = serde_json::from_value(row.get(4)).context("reading a trust")?;
        Ok(Self {
            id: row.get(0),
            issuer: row.get(1),
            audience: row.get(2),
            subject: row.get(3),
            claims,
            permissions: row.get(5),
            project_refs: row.get(6),
            networks: row.get(7),
            life_minutes: row.get(8),
            created_at: row.get(9),
        })
    }
}

/// A trust to be stored.
#[derive(Debug)]
pub struct NewTrust {
    /// The tokens that it accepts.
    pub rule: TrustRule,
    /// The limits of the tokens that are issued.
    pub grant: TokenGrant,
    /// The longest life of the tokens that are issued, in minutes.
    pub life_minutes: i16,
}

/// A trust in the control database.
#[derive(Debug)]
pub struct StoredTrust {
    /// Id of the trust.
    pub id: Uuid,
    /// The tokens that it accepts.
    pub rule: TrustRule,
    /// The longest life of the tokens that are issued.
    pub life: TimeDelta,
    /// The limits of the tokens that are issued.
    pub grant: TokenGrant,
}

macro_rules! trusts {
    ($rest:literal) => {
        concat!(
            "select t.id, t.issuer, t.audience, t.subject, t.claims, t.permissions, \
             array(select ref from projects p where p.id = any(t.projects) order by ref), \
             t.networks::text[], t.life_minutes, t.created_at from trusts t where ",
            $rest
        )
    };
}

/// Lists the trusts of a service identity, oldest first.
pub async fn list(db: &Db, identity: UserId) -> Result<Vec<TrustView>, Error> {
    let sql = trusts!("t.user_id = $1 order by t.created_at, t.id limit $2");
    let rows = db.query(sql, &[&identity.0, &TRUSTS_MAX]).await;
    let rows = rows.context("listing trusts")?;
    rows.iter().map(TrustView::read).collect()
}

/// Stores a trust. Its issuer is not contacted.
///
/// Errors: [`Error::Rejected`] if the service identity has as many as permitted.
pub async fn create(
    context: &PlatformContext,
    identity: UserId,
    new: &NewTrust,
    audit: &Recorder,
) -> Result<TrustView, Error> {
    let doing = "creating a trust";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select from users where id = $1 for update";
    let locked = transaction.query_opt(sql, &[&identity.0]).await;
    locked.context(doing)?.ok_or(Error::NotFound)?;
    let sql = "select count(*) from trusts where user_id = $1";
    if db::count(&transaction, sql, identity.0, doing).await? >= TRUSTS_MAX {
        let text = format!("A service identity can have {TRUSTS_MAX} trusts; delete one first");
        return Err(Error::Rejected(text.into()));
    }
    let id = context.entropy.uuid();
    let TrustRule {
        issuer,
        audience,
        subject,
        claims,
    } = &new.rule;
    let claims: BTreeMap<&str, &str> = claims
        .iter()
        .map(|(name, pattern)| (name.as_str(), pattern.as_str()))
        .collect();
    let networks = new.grant.networks.iter();
    let networks: Vec<String> = networks.map(|it| it.trunc().to_string()).collect();
    let values: [db::Param<'_>; 11] = [
        &id,
        &identity.0,
        issuer,
        audience,
        &subject.as_str(),
        &json!(claims),
        &new.grant.permissions.names(),
        &new.grant.reach.listed_projects(),
        &networks,
        &new.life_minutes,
        &now,
    ];
    let sql = "insert into trusts (id, user_id, issuer, audience, subject, claims, permissions, \
                   projects, networks, life_minutes, created_at) \
               values ($1, $2, $3, $4, $5, $6, $7, $8, $9::text[]::cidr[], $10, $11)";
    let stored = transaction.execute(sql, &values).await;
    stored.context(doing)?;
    let row = transaction.query_one(trusts!("t.id = $1"), &[&id]).await;
    let made = TrustView::read(&row.context(doing)?)?;
    audit.result(&made);
    let change = (None, Some(json!(made)));
    audit.commit(transaction, doing, 201, change, now).await?;
    Ok(made)
}

/// Deletes a trust and revokes the tokens that were issued by it.
pub async fn delete(
    context: &PlatformContext,
    identity: UserId,
    id: Uuid,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "deleting a trust";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = trusts!("t.id = $1 and t.user_id = $2 for update of t");
    let row = transaction.query_opt(sql, &[&id, &identity.0]).await;
    let deleted = TrustView::read(&row.context(doing)?.ok_or(Error::NotFound)?)?;
    let revoked = tokens::revoke_of_trust(&transaction, id, now).await?;
    let gone = transaction
        .execute("delete from trusts where id = $1", &[&id])
        .await;
    gone.context(doing)?;
    let mut before = json!(deleted);
    before["revoked"] = json!(revoked);
    let change = (Some(before), None);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::Tokens);
    notifications::settle(&context.db).await
}

/// Returns the trusts of a service identity with this issuer, oldest first.
pub async fn of_issuer(db: &Db, identity: UserId, issuer: &str) -> Result<Vec<StoredTrust>, Error> {
    let sql = "select t.id, t.issuer, t.audience, t.subject, t.claims, t.life_minutes, \
                   case when t.projects is null then 'organizations' else 'projects' end, \
                   t.permissions, array[u.service_of], t.projects, t.networks::text[], \
                   null::timestamptz \
               from trusts t join users u on u.id = t.user_id \
               where t.user_id = $1 and t.issuer = $2 order by t.created_at, t.id limit $3";
    let rows = db.query(sql, &[&identity.0, &issuer, &TRUSTS_MAX]).await;
    let rows = rows.context("reading trusts")?;
    rows.iter().map(StoredTrust::read).collect()
}

impl StoredTrust {
    fn read(row: &Row) -> Result<Self, Error> {
        let doing = "reading a trust";
        let claims: BTreeMap<String, String> =
            serde_json::from_value(row.get::<_, Value>(4)).context(doing)?;
        let claims = claims
            .into_iter()
            .map(|(name, text)| Ok((name, ClaimPattern::parse(&text).context(doing)?)));
        let grant = read_grant(row, 6)?;
        Ok(Self {
            id: row.get(0),
            rule: TrustRule {
                issuer: row.get(1),
                audience: row.get(2),
                subject: ClaimPattern::parse(row.get(3)).context(doing)?,
                claims: claims.collect::<Result<_, Error>>()?,
            },
            life: TimeDelta::minutes(row.get::<_, i16>(5).into()),
            grant: grant.ok_or("no reach").context(doing)?,
        })
    }
}

/// Locks a trust and its service identity against their deletion until the end of the transaction.
/// Returns whether they still exist.
pub async fn lock(
    transaction: &Transaction<'_>,
    identity: UserId,
    trust: Uuid,
) -> Result<bool, Error> {
    let doing = "locking a trust";
    let sql = "select from users where id = $1 for share";
    let found = transaction.query_opt(sql, &[&identity.0]).await;
    if found.context(doing)?.is_none() {
        return Ok(false);
    }
    let sql = "select from trusts where id = $1 and user_id = $2 for share";
    let found = transaction.query_opt(sql, &[&trust, &identity.0]).await;
    Ok(found.context(doing)?.is_some())
}

/// Records the exchange of the token with this `jti`.
///
/// Errors: [`TokenRefusal::Replayed`] inside if it was exchanged before; [`Error::Rejected`] if the
/// trust has as many unexpired ones as permitted.
pub async fn record_exchange(
    transaction: &Transaction<'_>,
    trust: Uuid,
    jti: &str,
    (now, expires_at): (DateTime<Utc>, DateTime<Utc>),
) -> Result<Result<(), TokenRefusal>, Error> {
    let doing = "recording the exchange of a token";
    let sql = "select count(*) from exchanged_tokens where trust_id = $1 and expires_at > $2";
    let counted = transaction.query_one(sql, &[&trust, &now]).await;
    if counted.context(doing)?.get::<_, i64>(0) >= EXCHANGED_MAX {
        let text = format!(
            "A trust exchanges {EXCHANGED_MAX} unexpired tokens at most; shorten their life"
        );
        return Err(Error::Rejected(text.into()));
    }
    let sql = "insert into exchanged_tokens (trust_id, digest, expires_at) values ($1, $2, $3) \
               on conflict do nothing";
    let digest = SecretDigest::of(jti);
    let inserted = transaction
        .execute(sql, &[&trust, &digest.as_bytes(), &expires_at])
        .await;
    if inserted.context(doing)? == 0 {
        return Ok(Err(TokenRefusal::Replayed));
    }
    Ok(Ok(()))
}
