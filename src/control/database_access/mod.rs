//! Access rules of projects' databases: permitted networks, bans, TLS.
//!
//! The node that accepts a connection reads the rules for each connection, so a change is effective
//! everywhere once it is answered. While the control database is unavailable, the last known rules
//! apply.

pub mod bans;
pub mod login_roles;
pub mod restrictions;
pub mod rules;

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use ipnet::IpNet;
use uuid::Uuid;

pub use self::rules::AccessRuleCache;
use self::rules::AccessRules;
use crate::{
    control::{
        context::ControlContext,
        database_access::rules::ConnectionAdmission,
        projects::{self, Status, sizes::ConnectionBudget},
    },
    platform::error::{Context, Error},
};

/// Returns the admission of an address to a project's database, or `None` for an unknown project.
///
/// While the control database is unavailable, applies the last known rules, or returns
/// [`Error::Unavailable`] without any.
pub async fn admission(
    context: &ControlContext,
    project: &ProjectRef,
    address: IpAddr,
) -> Result<Option<ConnectionAdmission>, Error> {
    let now = context.clock.now();
    let ticks = context.clock.ticks();
    match rules(context, project).await {
        Ok(Some(rules)) => {
            let admission = rules.admission(address, now);
            context.access_rules.keep(project, rules, ticks);
            Ok(Some(admission))
        }
        Ok(None) => {
            context.access_rules.forget(project);
            Ok(None)
        }
        Err(error @ Error::Unavailable { .. }) => context
            .access_rules
            .last(project, ticks)
            .map(|rules| Some(rules.admission(address, now)))
            .ok_or(error),
        Err(error) => Err(error),
    }
}

/// Returns the connections that a project's server has room for.
pub async fn connections(
    context: &ControlContext,
    project: ProjectId,
) -> Result<ConnectionBudget, Error> {
    let sql = "select instance_size, (settings->>'max_connections')::bigint from projects \
               where id = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.0]).await;
    let rows = rows.context("reading a project's connections")?;
    let row = rows.first().ok_or_else(projects::removed)?;
    Ok(ConnectionBudget::of(row.get(0), row.get(1)))
}

async fn rules(
    context: &ControlContext,
    project: &ProjectRef,
) -> Result<Option<AccessRules>, Error> {
    let doing = "reading a project's access rules";
    let sql = "select p.id, p.status, p.asleep, p.node, coalesce(n.tls_required, false), n.allowed::text[], \
               array(select text(b.address) from network_bans b where b.project_id = p.id and b.until > $2 order by b.address limit $3), \
               array(select b.until from network_bans b where b.project_id = p.id and b.until > $2 order by b.address limit $3), \
               p.instance_size, (p.settings->>'max_connections')::bigint \
               from projects p left join project_networks n on n.project_id = p.id where p.ref = $1 and p.desired <> 'removed'";
    let rows = context
        .db
        .query(
            sql,
            &[&project.as_str(), &context.clock.now(), &rules::BANS_MAX],
        )
        .await
        .context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let networks = |texts: Vec<&str>| {
        texts
            .into_iter()
            .map(str::parse)
            .collect::<Result<Vec<IpNet>, _>>()
            .context(doing)
    };
    let until: Vec<DateTime<Utc>> = row.get(7);
    Ok(Some(AccessRules {
        id: ProjectId(row.get(0)),
        status: Status::read(row, 1)?,
        asleep: row.get(2),
        here: row.get::<_, Uuid>(3) == context.settings.node,
        tls_required: row.get(4),
        connections: ConnectionBudget::of(row.get(8), row.get(9)),
        allowed: row
            .get::<_, Option<Vec<&str>>>(5)
            .map(networks)
            .transpose()?,
        bans: networks(row.get(6))?.into_iter().zip(until).collect(),
    }))
}
