//! Who may reach a project's database, and from where.
//!
//! What is said here is read for every connection, by the node that takes it: a change holds everywhere from the moment it is
//! answered. While the control database is away, the last rules that were read decide.

pub mod bans;
mod doors;
pub mod login_roles;
pub mod restrictions;

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use ipnet::IpNet;
use uuid::Uuid;

pub use self::doors::Doors;
use self::doors::Rules;
use crate::{
    base::{
        error::{Context, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::{context::DataPlaneContext, projects::Status},
};

/// How the names of login roles for clients begin.
pub const LOGIN_ROLE_PREFIX: &str = "cli_login_";

/// What decides on a connection to a project's database.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own"
)]
#[derive(Debug, Clone)]
pub struct Door {
    /// The project.
    pub id: ProjectId,
    /// What was last seen of it.
    pub status: Status,
    /// Whether its server sleeps until somebody comes.
    pub asleep: bool,
    /// Whether its server is on this machine.
    pub here: bool,
    /// Whether only TLS may come.
    pub tls_required: bool,
    /// Whether the address is in a network that may come.
    pub admitted: bool,
    /// Whether too many wrong passwords came from the address.
    pub banned: bool,
}

/// The door of a project for an address, unless there is no such project.
///
/// While the control database is away, by the rules as they were last read here. [`Error::Unavailable`] if they are not known.
pub async fn door(
    context: &DataPlaneContext,
    project: &ProjectRef,
    address: IpAddr,
) -> Result<Option<Door>, Error> {
    let (now, ticks) = (context.clock.now(), context.clock.ticks());
    match rules(context, project).await {
        Ok(Some(rules)) => {
            let door = rules.door(address, now);
            context.doors.keep(project, rules, ticks);
            Ok(Some(door))
        }
        Ok(None) => {
            context.doors.forget(project);
            Ok(None)
        }
        Err(error @ Error::Unavailable { .. }) => context
            .doors
            .last(project, ticks)
            .map(|rules| Some(rules.door(address, now)))
            .ok_or(error),
        Err(error) => Err(error),
    }
}

async fn rules(context: &DataPlaneContext, project: &ProjectRef) -> Result<Option<Rules>, Error> {
    let doing = "looking up a project's door";
    let sql = "select p.id, p.status, p.asleep, p.node, coalesce(n.tls_required, false), n.allowed::text[], \
               array(select text(b.address) from network_bans b where b.project_id = p.id and b.until > $2 order by b.address limit $3), \
               array(select b.until from network_bans b where b.project_id = p.id and b.until > $2 order by b.address limit $3) \
               from projects p left join project_networks n on n.project_id = p.id where p.ref = $1 and p.desired <> 'removed'";
    let rows = context
        .db
        .query(
            sql,
            &[&project.as_str(), &context.clock.now(), &bans::BANS_MAX],
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
    Ok(Some(Rules {
        id: ProjectId(row.get(0)),
        status: Status::read(row, 1)?,
        asleep: row.get(2),
        here: row.get::<_, Uuid>(3) == context.settings.node,
        tls_required: row.get(4),
        allowed: row
            .get::<_, Option<Vec<&str>>>(5)
            .map(networks)
            .transpose()?,
        bans: networks(row.get(6))?.into_iter().zip(until).collect(),
    }))
}
