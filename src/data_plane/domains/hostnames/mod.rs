//! Custom hostnames: names of projects' owners, from the wish to the activation.
//!
//! A wish is a row. Two records of DNS prove it: a CNAME to this project, and a text that is bound to the project and the name. Then
//! it is its project's alone, gets a certificate, and is served when it is activated.

pub mod acme;
pub mod blocked;
pub mod certificates;
mod challenge_records;
pub mod diagnosis;
pub mod dns;
mod host;
pub mod hostname_reconciler;
pub mod reach;
mod renewal;
pub mod required_records;
mod revocations;
mod spelling;
pub mod wildcard;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

pub use self::{
    host::{Host, HostError},
    hostname_reconciler::HostnameReconciler,
};

use self::{acme::CertificateSubject, required_records::RequiredRecords};
use super::{current_names, lock_project_names};
use crate::{
    base::{
        db,
        db::Param,
        error::{Context, Error},
        ids::{OrganizationId, ProjectId, ProjectRef},
    },
    data_plane::{context::DataPlaneContext, projects},
    platform::{access::Project, audit::Recorder, notifications, tables::Table},
};

/// Hostnames that the projects of an organization have or want at once: each is looked at again and again.
const HOSTNAMES_MAX: i64 = 100;

/// How far a hostname is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Asked for. DNS does not say yet that it is the project's.
    Initiated,
    /// Proven to be the project's. It has no certificate yet.
    Verified,
    /// It has a certificate, and is not served.
    Certified,
    /// It is served.
    Active,
}

impl State {
    const ALL: [Self; 4] = [
        Self::Initiated,
        Self::Verified,
        Self::Certified,
        Self::Active,
    ];

    /// The value of the column.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initiated => "initiated",
            Self::Verified => "verified",
            Self::Certified => "certified",
            Self::Active => "active",
        }
    }
}

/// A project's hostname.
#[derive(Debug, Clone)]
pub struct CustomHostname {
    /// BudgetScope it is, or would be.
    pub project: ProjectId,
    /// The project's reference.
    pub reference: ProjectRef,
    /// New whenever a name is asked for.
    pub id: Uuid,
    /// The name.
    pub host: Host,
    /// How far it is.
    pub state: State,
    /// What the last look at DNS found wrong.
    pub problems: Vec<String>,
    /// Why the last order of a certificate failed.
    pub refusal: Option<String>,
    /// Since when DNS leads elsewhere.
    pub misrouted_since: Option<DateTime<Utc>>,
    /// Looks and orders that failed in a row.
    pub attempts: i32,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
    /// BudgetScope project that is.
    pub organization: OrganizationId,
    /// Whether the operator does not want it to be served.
    pub blocked: bool,
    /// For how many seconds clients are to use nothing but HTTPS for it.
    pub hsts_secs: Option<i32>,
}

macro_rules! select_hostname {
    ($rest:literal) => {
        concat!(
            "select h.project_id, p.ref, h.id, h.host, h.state, h.problems, h.refusal, h.astray_at, h.attempts, h.created_at, \
             p.organization_id, is_blocked(h.host), h.hsts_secs from projects p join custom_hostnames h on h.project_id = p.id ",
            $rest
        )
    };
}
use select_hostname;

impl CustomHostname {
    fn read(row: &Row) -> Result<Self, Error> {
        let doing = "reading a hostname";
        let state = State::ALL
            .into_iter()
            .find(|state| state.name() == row.get::<_, &str>(4))
            .ok_or("no such state")
            .context(doing)?;
        Ok(Self {
            project: ProjectId(row.get(0)),
            reference: row.get::<_, &str>(1).parse().context(doing)?,
            id: row.get(2),
            host: Host::trusted(row.get(3)),
            state,
            problems: row.get(5),
            refusal: row.get(6),
            misrouted_since: row.get(7),
            attempts: row.get(8),
            created_at: row.get(9),
            organization: OrganizationId(row.get(10)),
            blocked: row.get(11),
            hsts_secs: row.get(12),
        })
    }

    /// What DNS is to say of it.
    pub fn required(&self, context: &DataPlaneContext) -> RequiredRecords {
        let issuer = context
            .data_plane_settings
            .authority
            .as_ref()
            .and_then(|authority| authority.issuer.as_deref());
        RequiredRecords::new(
            &self.host,
            &self.reference,
            &context.settings.project_domain,
            &context.settings.sealing,
            issuer,
        )
    }

    /// What a certificate of it is asked for.
    fn subject(&self, context: &DataPlaneContext) -> CertificateSubject {
        CertificateSubject {
            id: self.id,
            name: self.host.to_string(),
            organization: Some(self.organization),
            attempts: self.attempts,
            delegate: self.delegate(context),
        }
    }

    /// Where an authority that looks by DNS finds answers, if the operator has a zone for them and the name's owner leads there.
    fn delegate(&self, context: &DataPlaneContext) -> Option<String> {
        let zone = context
            .data_plane_settings
            .authority
            .as_ref()?
            .zone
            .as_ref()?;
        Some(zone.place(
            &context.settings.sealing,
            self.host.as_str(),
            self.reference.as_str(),
        ))
    }

    /// As the audit log has it.
    fn told(&self) -> Value {
        json!({"custom_hostname": self.host.as_str(), "state": self.state.name()})
    }
}

fn none() -> Error {
    Error::Rejected("No custom hostname configuration found.".into())
}

/// The hostname of a project, if it has or wants one.
pub async fn find(
    context: &DataPlaneContext,
    project: ProjectId,
) -> Result<Option<CustomHostname>, Error> {
    let doing = "reading a hostname";
    let rows = context
        .db
        .query("select desired from projects where id = $1", &[&project.0])
        .await
        .context(doing)?;
    if rows.first().ok_or(Error::NotFound)?.get::<_, &str>(0) == "removed" {
        return Err(projects::removed());
    }
    let rows = context
        .db
        .query(select_hostname!("where h.project_id = $1"), &[&project.0])
        .await
        .context(doing)?;
    rows.first().map(CustomHostname::read).transpose()
}

/// The hostname of a project that has one.
pub async fn get(context: &DataPlaneContext, project: &Project) -> Result<CustomHostname, Error> {
    find(context, project.id).await?.ok_or_else(none)
}

async fn lock(
    transaction: &Transaction<'_>,
    project: ProjectId,
) -> Result<Option<CustomHostname>, Error> {
    let row = transaction
        .query_opt(
            select_hostname!("where h.project_id = $1 for update of h"),
            &[&project.0],
        )
        .await
        .context("locking a hostname")?;
    row.as_ref().map(CustomHostname::read).transpose()
}

/// Writes down that a project wants this hostname.
pub async fn initialize(
    context: &DataPlaneContext,
    project: &Project,
    host: &Host,
    audit: &Recorder,
) -> Result<CustomHostname, Error> {
    let (doing, now) = ("initializing a hostname", context.clock.now());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project.id).await?;
    match current_names(&transaction, project.id).await? {
        (Some(_), _) => return Err(Error::HostnameConfigured),
        (None, Some(name)) => {
            let why = format!(
                "The project uses the vanity subdomain {name}. Deactivate it before asking for a custom hostname."
            );
            return Err(Error::Rejected(why.into()));
        }
        (None, None) => {}
    }
    admit(&transaction, project, host).await?;
    let id = context.entropy.uuid();
    let sql = "insert into custom_hostnames (project_id, id, host, state, not_before, created_at) values ($1, $2, $3, 'initiated', $4, $4)";
    transaction
        .execute(sql, &[&project.id.0, &id, &host.as_str(), &now])
        .await
        .context(doing)?;
    let hostname = lock(&transaction, project.id).await?.ok_or_else(none)?;
    audit
        .write_in(&transaction, 201, (None, Some(hostname.told())), now)
        .await?;
    transaction.commit().await.context(doing)?;
    context.hostname_reconciler.wake();
    Ok(hostname)
}

fn taken_by_another(host: &Host) -> Error {
    Error::Conflict(format!("{host} is the custom hostname of another project").into())
}

fn blocked(host: &Host) -> Error {
    Error::Rejected(format!("The operator of this server does not serve {host}.").into())
}

/// Refuses names that are blocked, names that another project has proven, and more of them than an organization may have.
///
/// A project that only asked for a name keeps it from no other. One that has proven it does, until DNS is records to lead elsewhere: then
/// others can ask for it, and wait until it is removed from that project.
async fn admit(transaction: &Transaction<'_>, project: &Project, host: &Host) -> Result<(), Error> {
    let doing = "initializing a hostname";
    // One at a time of an organization, so that the count holds. Its projects are hostname already, each by one at a time.
    let lock =
        "select pg_advisory_xact_lock(hashtextextended('custom hostnames of an organization', $1))";
    transaction
        .execute(lock, &[&project.organization.0])
        .await
        .context(doing)?;
    let sql = "select is_blocked($1), (select count(*) from custom_hostnames h join projects p on p.id = h.project_id where p.organization_id = $2), \
               exists (select from custom_hostnames h where h.host = $1 and h.state <> 'initiated' and h.astray_at is null and h.project_id <> $3)";
    let row = transaction
        .query_one(
            sql,
            &[&host.as_str(), &project.organization.0, &project.id.0],
        )
        .await
        .context(doing)?;
    if row.get(0) {
        return Err(blocked(host));
    }
    if row.get(2) {
        return Err(taken_by_another(host));
    }
    if row.get::<_, i64>(1) >= HOSTNAMES_MAX {
        let why = format!(
            "The projects of an organization can have {HOSTNAMES_MAX} custom hostnames. Delete one before asking for another."
        );
        return Err(Error::Rejected(why.into()));
    }
    Ok(())
}

/// Looks at DNS now, and goes on if it is as it should be.
pub async fn reverify(
    context: &DataPlaneContext,
    project: &Project,
    audit: &Recorder,
) -> Result<CustomHostname, Error> {
    let before = find(context, project.id).await?.ok_or(Error::Rejected(
        "Project is not pending custom hostname verification.".into(),
    ))?;
    match before.state {
        State::Initiated | State::Verified if before.blocked => {}
        State::Initiated => hostname_reconciler::look(context, &before).await?,
        State::Verified => context.hostname_reconciler.wake(),
        State::Certified | State::Active => {
            return Err(Error::Rejected(
                "Verification has been completed, please proceed to activation.".into(),
            ));
        }
    }
    let after = get(context, project).await?;
    let mut client = context.db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("reverifying a hostname")?;
    audit
        .write_in(
            &transaction,
            201,
            (Some(before.told()), Some(after.told())),
            context.clock.now(),
        )
        .await?;
    transaction
        .commit()
        .await
        .context("reverifying a hostname")?;
    Ok(after)
}

/// Serves the project under its hostname from now on.
pub async fn activate(
    context: &DataPlaneContext,
    project: &Project,
    audit: &Recorder,
) -> Result<CustomHostname, Error> {
    let (doing, now) = ("activating a hostname", context.clock.now());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project.id).await?;
    let before = lock(&transaction, project.id).await?;
    let before = match before {
        Some(hostname) if hostname.blocked => return Err(blocked(&hostname.host)),
        Some(hostname) if hostname.state == State::Certified => hostname,
        Some(hostname) if hostname.state == State::Active => {
            return Err(Error::Rejected(
                "Custom hostname has already been activated.".into(),
            ));
        }
        _ => {
            return Err(Error::Rejected(
                "Verification has not been completed.".into(),
            ));
        }
    };
    transaction
        .execute(
            "update custom_hostnames set state = 'active' where project_id = $1",
            &[&project.id.0],
        )
        .await
        .context(doing)?;
    let after = CustomHostname {
        state: State::Active,
        ..before.clone()
    };
    audit
        .write_in(
            &transaction,
            201,
            (Some(before.told()), Some(after.told())),
            now,
        )
        .await?;
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::CustomHostnames);
    Ok(after)
}

/// Says for how many seconds clients are to use nothing but HTTPS for the hostname; none says nothing.
pub async fn set_hsts(
    context: &DataPlaneContext,
    project: &Project,
    secs: Option<i32>,
    audit: &Recorder,
) -> Result<(), Error> {
    let (doing, now) = ("setting the HSTS of a hostname", context.clock.now());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project.id).await?;
    let before = lock(&transaction, project.id).await?.ok_or_else(none)?;
    let sql = "update custom_hostnames set hsts_secs = $2 where project_id = $1";
    transaction
        .execute(sql, &[&project.id.0, &secs])
        .await
        .context(doing)?;
    let told = |secs: Option<i32>| {
        Some(json!({"custom_hostname": before.host.as_str(), "max_age_secs": secs.unwrap_or(0)}))
    };
    audit
        .write_in(&transaction, 200, (told(before.hsts_secs), told(secs)), now)
        .await?;
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::CustomHostnames);
    Ok(())
}

/// Takes a project's hostname from it. No node serves it any more when this returns.
pub async fn remove(
    context: &DataPlaneContext,
    project: &Project,
    audit: &Recorder,
) -> Result<(), Error> {
    let (doing, now) = ("removing a hostname", context.clock.now());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project.id).await?;
    let before = lock(&transaction, project.id)
        .await?
        .ok_or(Error::Rejected(
            "Custom hostname not configured for project".into(),
        ))?;
    transaction
        .execute(
            "delete from custom_hostnames where project_id = $1",
            &[&project.id.0],
        )
        .await
        .context(doing)?;
    audit
        .write_in(&transaction, 200, (Some(before.told()), None), now)
        .await?;
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::CustomHostnames);
    // What is left elsewhere is current_names back, and nobody waits for that.
    context.hostname_reconciler.wake();
    notifications::settle(&context.db).await
}

/// Writes down what became of a hostname that was `from`, unless it is another one or something else became of it meanwhile. Returns
/// whether it was written. A name that is another project's already is a conflict.
async fn write(
    context: &DataPlaneContext,
    from: State,
    hostname: &CustomHostname,
    not_before: DateTime<Utc>,
) -> Result<bool, Error> {
    let sql = "update custom_hostnames set state = $2, problems = $3, refusal = $4, astray_at = $5, attempts = $6, not_before = $7 \
               where id = $1 and state = $8 returning id";
    let params: [Param<'_>; 8] = [
        &hostname.id,
        &hostname.state.name(),
        &hostname.problems,
        &hostname.refusal,
        &hostname.misrouted_since,
        &hostname.attempts,
        &not_before,
        &from.name(),
    ];
    let written =
        context
            .db
            .query(sql, &params)
            .await
            .map_err(|error| match db::violated(&error) {
                Some("custom_hostnames_host_key") => taken_by_another(&hostname.host),
                _ => Error::internal("writing a hostname", error),
            })?;
    context.table_changed(Table::CustomHostnames);
    Ok(!written.is_empty())
}
