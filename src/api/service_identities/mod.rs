//! Service identities: members of an organization that cannot sign in. Their tokens are issued for
//! tokens of other issuers, such as those of a CI (decision 0191).
//!
//! - [`trusts`]: rows of the rules by which tokens are exchanged; [`rules`]: their decisions
//! - [`subject_token`]: tokens of other issuers; [`issuer_keys`]: the keys that have signed them
//! - [`cleanup`]: deletion of expired rows

pub mod cleanup;
pub mod issuer_keys;
pub mod operations;
pub mod rules;
pub mod subject_token;
pub mod trusts;

use chrono::{DateTime, Utc};
use gantry_base::ids::{OrgSlug, OrganizationId, UserId};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use crate::{
    api::{
        organizations::{self, member_events::MemberRoles, members},
        tokens,
    },
    platform::{
        access::{Organization, Role},
        audit::{Change, Recorder},
        context::PlatformContext,
        db::{self, Db},
        error::{Context, Error},
        names, notifications,
        tables::Table,
    },
};

/// Maximum number of service identities of an organization.
const IDENTITIES_MAX: i64 = 100;
/// Longest name, in characters.
const NAME_CHARS_MAX: usize = 100;

/// A service identity as clients see it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ServiceIdentity {
    /// Id: the `audience` of exchanges, and the actor in the audit log.
    pub id: Uuid,
    /// Display name.
    pub name: String,
    /// Role in the organization: `administrator`, `developer` or `read-only`.
    pub role: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
}

impl ServiceIdentity {
    fn read(row: &Row) -> Self {
        Self {
            id: row.get(0),
            name: row.get(1),
            role: row.get(2),
            created_at: row.get(3),
        }
    }
}

/// A service identity in the control database.
#[derive(Debug, Clone)]
pub struct IdentityRow {
    /// Row of `users`.
    pub user: UserId,
    /// Id on the wire.
    pub id: Uuid,
    /// Its organization.
    pub organization: OrganizationId,
    /// The slug of its organization.
    pub slug: OrgSlug,
}

macro_rules! identities {
    ($rest:literal) => {
        concat!(
            "select u.gotrue_id, u.username, m.role, u.created_at, u.id from users u \
             join members m on (m.organization_id, m.user_id) = (u.service_of, u.id) \
             where u.service_of = $1 ",
            $rest
        )
    };
}

/// Lists the service identities of an organization, oldest first.
pub async fn list(db: &Db, organization: OrganizationId) -> Result<Vec<ServiceIdentity>, Error> {
    let sql = identities!("order by u.id limit $2");
    let rows = db.query(sql, &[&organization.0, &IDENTITIES_MAX]).await;
    let rows = rows.context("listing service identities")?;
    Ok(rows.iter().map(ServiceIdentity::read).collect())
}

/// Returns the row of a service identity of an organization.
pub async fn user_of(db: &Db, organization: OrganizationId, id: Uuid) -> Result<UserId, Error> {
    let sql = "select id from users where service_of = $1 and gotrue_id = $2";
    let rows = db.query(sql, &[&organization.0, &id]).await;
    let rows = rows.context("looking up a service identity")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    Ok(UserId(row.get(0)))
}

/// Returns the service identity of any organization with this id.
pub async fn find(db: &Db, id: Uuid) -> Result<Option<IdentityRow>, Error> {
    let sql = "select u.id, o.id, o.slug from users u \
               join organizations o on o.id = u.service_of where u.gotrue_id = $1";
    let rows = db.query(sql, &[&id]).await;
    let rows = rows.context("looking up a service identity")?;
    let identity = |row: &Row| {
        Ok(IdentityRow {
            user: UserId(row.get(0)),
            id,
            organization: OrganizationId(row.get(1)),
            slug: organizations::slug(row, 2)?,
        })
    };
    rows.first().map(identity).transpose()
}

/// Creates a service identity, which is a member from then on.
///
/// Errors: [`Error::Rejected`] if the organization has as many as permitted.
pub async fn create(
    context: &PlatformContext,
    organization: &Organization,
    (name, role): (&str, Role),
    audit: &Recorder,
) -> Result<ServiceIdentity, Error> {
    let doing = "creating a service identity";
    names::check("name", name, NAME_CHARS_MAX)?;
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    members::lock(&transaction, organization.id).await?;
    let sql = "select count(*) from users where service_of = $1";
    if db::count(&transaction, sql, organization.id.0, doing).await? >= IDENTITIES_MAX {
        let text = format!(
            "An organization can have {IDENTITIES_MAX} service identities; delete one first"
        );
        return Err(Error::Rejected(text.into()));
    }
    let id = context.entropy.uuid();
    // A reserved domain (RFC 2606): no mail reaches it, and no identity provider has it.
    let email = format!("{id}@service-identity.invalid");
    let sql = "insert into users (gotrue_id, email, username, created_at, service_of) \
               values ($1, $2, $3, $4, $5) returning id";
    let row = transaction
        .query_one(sql, &[&id, &email, &name, &now, &organization.id.0])
        .await;
    let user = UserId(row.context(doing)?.get(0));
    members::set_in(&transaction, organization.id, user, role, now).await?;
    let made = ServiceIdentity {
        id,
        name: name.to_owned(),
        role: role.name().to_owned(),
        created_at: now,
    };
    let roles = MemberRoles::absent(organization.id, user);
    let events = roles.changes(&transaction).await?;
    let change = Change::new((None, Some(json!(made))), events);
    audit.result(&made);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::Members);
    notifications::settle(&context.db).await?;
    Ok(made)
}

/// Deletes a service identity with its trusts and tokens. No request with one of its tokens is
/// accepted when this returns.
pub async fn delete(
    context: &PlatformContext,
    organization: &Organization,
    id: Uuid,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "deleting a service identity";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = identities!("and u.gotrue_id = $2");
    let row = transaction.query_opt(sql, &[&organization.id.0, &id]).await;
    let row = row.context(doing)?.ok_or(Error::NotFound)?;
    let user = UserId(row.get(4));
    let deleted = ServiceIdentity::read(&row);
    // Tokens before their user, as in the creation of a child token, which locks both.
    let revoked = tokens::revoke_of_user(&transaction, user, now).await?;
    let sql = "select from users where id = $1 for update";
    let locked = transaction.query_opt(sql, &[&user.0]).await;
    locked.context(doing)?.ok_or(Error::NotFound)?;
    members::lock(&transaction, organization.id).await?;
    let roles = MemberRoles::read(&transaction, organization.id, user).await?;
    let mut before = json!(deleted);
    before["revoked"] = json!(revoked);
    let change = Change::new((Some(before), None), roles.removed());
    // Members, trusts and tokens are deleted by their foreign keys.
    let sql = "delete from users where id = $1";
    let gone = transaction.execute(sql, &[&user.0]).await;
    gone.context(doing)?;
    audit.commit(transaction, doing, 200, change, now).await?;
    for table in [Table::Users, Table::Members, Table::Tokens] {
        context.table_changed(table);
    }
    notifications::settle(&context.db).await
}

/// Returns whether a refused exchange may be written to the audit log: the last entry of the
/// service identity is from `due` or earlier. Marks the present one in that case.
pub async fn claim_refusal_entry(
    transaction: &Transaction<'_>,
    identity: UserId,
    (now, due): (DateTime<Utc>, DateTime<Utc>),
) -> Result<bool, Error> {
    let sql = "update users set refusal_audited_at = $2 where id = $1
               and (refusal_audited_at is null or refusal_audited_at <= $3)";
    let claimed = transaction.execute(sql, &[&identity.0, &now, &due]).await;
    Ok(claimed.context("recording a refused exchange")? > 0)
}
