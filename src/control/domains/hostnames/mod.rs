//! Custom hostnames: host names of a project's owner, from the request to the activation.
//!
//! A request is a row. Two DNS records verify it: a CNAME to this project, and a TXT record derived
//! from project and hostname. A verified hostname belongs to its project exclusively, gets a
//! certificate, and is served after its activation.

pub mod acme;
mod acme_account;
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
pub mod state;
pub mod wildcard;

use chrono::{DateTime, Utc};
use gantry_base::ids::{OrganizationId, ProjectId, ProjectRef};
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

pub use self::host::{Host, HostError};

use self::{acme::CertificateSubject, required_records::RequiredRecords};
use super::{current_names, lock_project_names};
use crate::{
    control::{
        context::ControlContext,
        projects::{self, status_events},
    },
    platform::{
        access::Project,
        audit::Recorder,
        db::{self, Param},
        error::{Context, Error},
        events::{EventPayload, payloads::HostnameFailed},
        notifications,
        tables::Table,
    },
};

/// Maximum number of hostnames of an organization's projects. Each is checked repeatedly.
pub(crate) const HOSTNAMES_MAX: i64 = 100;

/// State of a hostname.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Requested; ownership is not verified.
    Initiated,
    /// Verified; the certificate is being ordered.
    Verified,
    /// Certified; not activated.
    Certified,
    /// Served.
    Active,
}

impl State {
    const ALL: [Self; 4] = [
        Self::Initiated,
        Self::Verified,
        Self::Certified,
        Self::Active,
    ];

    /// Returns the value of the column.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initiated => "initiated",
            Self::Verified => "verified",
            Self::Certified => "certified",
            Self::Active => "active",
        }
    }
}

/// The custom hostname of a project.
#[derive(Debug, Clone)]
pub struct CustomHostname {
    /// Project.
    pub project: ProjectId,
    /// Reference of the project.
    pub reference: ProjectRef,
    /// Id of the request.
    pub id: Uuid,
    /// DNS name.
    pub host: Host,
    /// State.
    pub state: State,
    /// Unmet requirements at the last check.
    pub problems: Vec<String>,
    /// Reason of the last failed order.
    pub refusal: Option<String>,
    /// Time since which DNS routes the name elsewhere.
    pub misrouted_since: Option<DateTime<Utc>>,
    /// Consecutive failed checks and orders.
    pub attempts: i32,
    /// Time of the request.
    pub created_at: DateTime<Utc>,
    /// Organization of the project.
    pub organization: OrganizationId,
    /// Whether the operator blocks the name.
    pub blocked: bool,
    /// `max-age` of `Strict-Transport-Security`, in seconds.
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

    /// Returns the required DNS records.
    pub fn required(&self, context: &ControlContext) -> RequiredRecords {
        let issuer = context
            .control_settings
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

    /// Returns the subject of its certificate order.
    fn subject(&self, context: &ControlContext) -> CertificateSubject {
        CertificateSubject {
            id: self.id,
            name: self.host.to_string(),
            organization: Some(self.organization),
            attempts: self.attempts,
            delegate: self.delegate(context),
        }
    }

    /// Returns the target for a delegation of DNS-01 challenges, if the operator has configured a
    /// zone.
    fn delegate(&self, context: &ControlContext) -> Option<String> {
        let zone = context.control_settings.authority.as_ref()?.zone.as_ref()?;
        Some(zone.place(
            &context.settings.sealing,
            self.host.as_str(),
            self.reference.as_str(),
        ))
    }

    /// Returns the value for the audit log.
    fn told(&self) -> Value {
        json!({"custom_hostname": self.host.as_str(), "state": self.state.name()})
    }
}

fn none() -> Error {
    Error::Rejected("No custom hostname configuration found.".into())
}

/// Returns the hostname of a project, if one is requested or active.
pub async fn find(
    context: &ControlContext,
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

/// Returns the hostname of a project, or an error if there is none.
pub async fn get(context: &ControlContext, project: &Project) -> Result<CustomHostname, Error> {
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

/// Requests a hostname for a project.
pub async fn initialize(
    context: &ControlContext,
    project: &Project,
    host: &Host,
    audit: &Recorder,
) -> Result<CustomHostname, Error> {
    let doing = "initializing a hostname";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project).await?;
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
    let change = (None, Some(hostname.told()));
    audit.result(&hostname);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.hostname_reconciler.wake();
    Ok(hostname)
}

fn taken_by_another(host: &Host) -> Error {
    Error::Conflict(format!("{host} is the custom hostname of another project").into())
}

fn blocked(host: &Host) -> Error {
    Error::Rejected(format!("The operator of this server does not serve {host}.").into())
}

/// Rejects blocked names, names verified by another project, and hostnames beyond the
/// organization's limit.
///
/// An unverified hostname does not exclude other projects. A verified one does until DNS routes it
/// elsewhere; then other projects can request it and wait for its deletion.
async fn admit(transaction: &Transaction<'_>, project: &Project, host: &Host) -> Result<(), Error> {
    let doing = "initializing a hostname";
    // Serializes requests of an organization, so that the count is exact. The projects are locked
    // already.
    lock_count(transaction, project.organization).await?;
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

/// Locks the number of an organization's custom hostnames until the end of the transaction.
pub(crate) async fn lock_count(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
) -> Result<(), Error> {
    let sql =
        "select pg_advisory_xact_lock(hashtextextended('custom hostnames of an organization', $1))";
    let locked = transaction.execute(sql, &[&organization.0]).await;
    locked.context("locking custom hostnames").map(drop)
}

/// Returns whether an organization can have the custom hostnames of these projects, too.
pub(crate) async fn has_room(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
    projects: &[i64],
) -> Result<bool, Error> {
    let sql = "select count(*) filter (where p.id = any($2)), count(*) from custom_hostnames h \
               join projects p on p.id = h.project_id \
               where p.organization_id = $1 or p.id = any($2)";
    let row = transaction
        .query_one(sql, &[&organization.0, &projects])
        .await
        .context("counting custom hostnames")?;
    let (added, total): (i64, i64) = (row.get(0), row.get(1));
    Ok(added == 0 || total <= HOSTNAMES_MAX)
}

/// Checks the DNS records now and advances the state if they are correct.
pub async fn reverify(
    context: &ControlContext,
    project: &Project,
    audit: &Recorder,
) -> Result<CustomHostname, Error> {
    let doing = "reverifying a hostname";
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
    let transaction = client.transaction().await.context(doing)?;
    let change = (Some(before.told()), Some(after.told()));
    audit.result(&after);
    audit
        .commit(transaction, doing, 201, change, context.clock.now())
        .await?;
    Ok(after)
}

/// Activates the certified hostname of a project.
pub async fn activate(
    context: &ControlContext,
    project: &Project,
    audit: &Recorder,
) -> Result<CustomHostname, Error> {
    let doing = "activating a hostname";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project).await?;
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
    let change = (Some(before.told()), Some(after.told()));
    audit.result(&after);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::CustomHostnames);
    Ok(after)
}

/// Sets `max-age` of `Strict-Transport-Security`. `None` sends no header.
pub async fn set_hsts(
    context: &ControlContext,
    project: &Project,
    secs: Option<i32>,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "setting the HSTS of a hostname";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project).await?;
    let before = lock(&transaction, project.id).await?.ok_or_else(none)?;
    let sql = "update custom_hostnames set hsts_secs = $2 where project_id = $1";
    transaction
        .execute(sql, &[&project.id.0, &secs])
        .await
        .context(doing)?;
    let told = |secs: Option<i32>| {
        Some(json!({"custom_hostname": before.host.as_str(), "max_age_secs": secs.unwrap_or(0)}))
    };
    let change = (told(before.hsts_secs), told(secs));
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::CustomHostnames);
    Ok(())
}

/// Deletes the hostname of a project. When this returns, no node serves it.
pub async fn remove(
    context: &ControlContext,
    project: &Project,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "removing a hostname";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project_names(&transaction, project).await?;
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
    let change = (Some(before.told()), None);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::CustomHostnames);
    // DNS records and certificates are cleaned up in the background.
    context.hostname_reconciler.wake();
    notifications::settle(&context.db).await
}

/// Stores the result of a check if the hostname is still in state `from`. Returns whether it was
/// stored. Fails with a conflict if another project has verified the name.
async fn write(
    context: &ControlContext,
    from: State,
    hostname: &CustomHostname,
    not_before: DateTime<Utc>,
) -> Result<bool, Error> {
    let doing = "writing a hostname";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let is_written = write_in(&transaction, from, hostname, not_before).await?;
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::CustomHostnames);
    Ok(is_written)
}

/// Writes a hostname that got no certificate, as [`write()`] does, with the event.
async fn write_refused(
    context: &ControlContext,
    from: State,
    hostname: &CustomHostname,
    not_before: DateTime<Utc>,
) -> Result<bool, Error> {
    let doing = "writing a hostname";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let is_written = write_in(&transaction, from, hostname, not_before).await?;
    if is_written {
        let failed = HostnameFailed {
            hostname: hostname.host.to_string(),
            reason: hostname.refusal.clone().unwrap_or_default(),
        };
        let event = failed.about_ref(hostname.organization, &hostname.reference);
        status_events::append(context, &transaction, &[event]).await?;
    }
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::CustomHostnames);
    Ok(is_written)
}

async fn write_in(
    transaction: &Transaction<'_>,
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
    let written = transaction.query_opt(sql, &params).await;
    let written = written.map_err(|error| match db::violated(&error) {
        Some("custom_hostnames_host_key") => taken_by_another(&hostname.host),
        _ => Error::internal("writing a hostname", error),
    })?;
    Ok(written.is_some())
}
