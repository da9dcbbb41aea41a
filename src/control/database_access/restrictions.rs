//! Network restrictions of a project's database, and whether TLS is required.

use chrono::{DateTime, Utc};
use ipnet::IpNet;
use serde_json::json;
use tokio_postgres::{Row, Transaction};

use crate::{
    control::{
        context::ControlContext,
        projects,
        service_settings::{recorded_change, setting::SettingValues},
    },
    platform::{
        access::Project,
        audit::Recorder,
        db::Param,
        error::{Context, Error},
    },
};

/// Maximum number of networks of a project.
pub const NETWORKS_MAX: usize = 200;

/// Network restrictions of a project, or the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkRestrictions {
    /// Whether connections without TLS are rejected.
    pub tls_required: bool,
    /// Permitted networks.
    pub allowed: Vec<IpNet>,
    /// Time of the last change.
    pub updated_at: Option<DateTime<Utc>>,
}

impl NetworkRestrictions {
    fn read(row: &Row) -> Result<Self, Error> {
        if row.get::<_, &str>(0) == "removed" {
            return Err(projects::removed());
        }
        let allowed = if row.get(3) {
            everywhere()
        } else {
            let texts: Vec<&str> = row.get(2);
            texts
                .into_iter()
                .map(str::parse)
                .collect::<Result<_, _>>()
                .context("reading a project's networks")?
        };
        Ok(Self {
            tls_required: row.get::<_, Option<bool>>(1).unwrap_or_default(),
            allowed,
            updated_at: row.get(4),
        })
    }

    /// Returns every setting by name.
    pub(in crate::control) fn values(&self) -> SettingValues {
        let allowed: Vec<String> = self.allowed.iter().map(ToString::to_string).collect();
        let values = [
            ("allowed_cidrs", json!(allowed)),
            ("ssl_enforced", json!(self.tls_required)),
        ];
        values.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Returns the permitted networks in order.
    pub(in crate::control) fn sorted(&self) -> Vec<IpNet> {
        let mut sorted = self.allowed.clone();
        sorted.sort();
        sorted
    }
}

/// Checks that clients could still connect if TLS was required. `field` is the name of the setting
/// in the request.
pub fn check_tls(
    context: &ControlContext,
    field: &'static str,
    required: bool,
) -> Result<(), Error> {
    let databases = context.control_settings.databases.as_ref();
    if required && databases.is_some_and(|databases| !databases.tls) {
        let why = "this server has no certificate for databases, so all connections would be rejected; its operator can set one with --db-tls-cert";
        return Err(Error::invalid(field, why));
    }
    Ok(())
}

/// Returns the networks of all addresses.
fn everywhere() -> Vec<IpNet> {
    vec![
        IpNet::V4(ipnet::Ipv4Net::default()),
        IpNet::V6(ipnet::Ipv6Net::default()),
    ]
}

macro_rules! rules {
    ($rest:literal) => {
        concat!(
            "select p.desired, n.tls_required, array(select text(network) from unnest(n.allowed) network), n.allowed is null, n.updated_at \
             from projects p left join project_networks n on n.project_id = p.id where p.id = $1",
            $rest
        )
    };
}

/// Returns the restrictions of a project.
pub async fn get(
    context: &ControlContext,
    project: &Project,
) -> Result<NetworkRestrictions, Error> {
    let rows = context
        .db
        .query(rules!(""), &[&project.id.0])
        .await
        .context("reading a project's networks")?;
    NetworkRestrictions::read(rows.first().ok_or(Error::NotFound)?)
}

/// Changes the restrictions. Returns the old and the new ones, which are effective on every node.
/// `status` is the response status for the audit log.
pub async fn change(
    context: &ControlContext,
    project: &Project,
    status: i16,
    audit: &Recorder,
    alter: impl FnOnce(&mut NetworkRestrictions) -> Result<(), Error> + Send,
) -> Result<(NetworkRestrictions, NetworkRestrictions), Error> {
    let doing = "changing a project's networks";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let row = transaction
        .query_opt(rules!(" for update of p"), &[&project.id.0])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let before = NetworkRestrictions::read(&row)?;
    let mut after = NetworkRestrictions {
        updated_at: Some(now),
        ..before.clone()
    };
    alter(&mut after)?;
    after.allowed.sort();
    after.allowed.dedup();
    if after.allowed.len() > NETWORKS_MAX {
        return Err(Error::invalid(
            "dbAllowedCidrs",
            format!("expected at most {NETWORKS_MAX} networks"),
        ));
    }
    write(&transaction, project, &after, now).await?;
    let change = recorded_change(Some("database"), &before.values(), &after.values());
    let change = (Some(change.0.into()), Some(change.1.into()));
    let changed = (before, after);
    audit.result(&changed);
    audit
        .commit(transaction, doing, status, change, now)
        .await?;
    Ok(changed)
}

/// Writes restrictions in a transaction.
pub(in crate::control) async fn write(
    transaction: &Transaction<'_>,
    project: &Project,
    rules: &NetworkRestrictions,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let allowed: Vec<String> = rules.allowed.iter().map(ToString::to_string).collect();
    let sql = "insert into project_networks (project_id, tls_required, allowed, updated_at) values ($1, $2, $3::text[]::inet[], $4) \
               on conflict (project_id) do update set tls_required = excluded.tls_required, allowed = excluded.allowed, \
               updated_at = excluded.updated_at";
    let params: [Param<'_>; 4] = [&project.id.0, &rules.tls_required, &allowed, &now];
    let written = transaction.execute(sql, &params).await;
    written.context("changing a project's networks").map(drop)
}
