//! Who may reach a project's database, and from where.
//!
//! What is said here is read for every connection, by the node that takes it: a change holds everywhere from the moment it is
//! answered.

pub mod api;
pub mod bans;
pub mod login_roles;
mod pooler;
pub mod restrictions;

use std::net::IpAddr;

use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::{
    app::App,
    error::{Context, Error},
    ids::{ProjectId, ProjectRef},
    projects::Status,
};

/// How the names of login roles for clients begin.
pub const LOGIN_ROLE_PREFIX: &str = "cli_login_";

/// What decides on a connection to a project's database.
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
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
pub async fn door(app: &App, project: &ProjectRef, address: IpAddr) -> Result<Option<Door>, Error> {
    let sql = "select p.id, p.status, p.asleep, p.node, coalesce(n.tls_required, false), \
               n.allowed is null or exists (select from unnest(n.allowed) network where $2::text::inet <<= network), \
               exists (select from network_bans b where b.project_id = p.id and $2::text::inet <<= b.address and b.until > $3) \
               from projects p left join project_networks n on n.project_id = p.id where p.ref = $1 and p.desired <> 'removed'";
    let address = address.to_canonical().to_string();
    let rows = app.db.query(sql, &[&project.as_str(), &address, &app.clock.now()]).await.context("looking up a project's door")?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Door {
        id: ProjectId(row.get(0)),
        status: Status::read(row, 1)?,
        asleep: row.get(2),
        here: row.get::<_, Uuid>(3) == app.settings.node,
        tls_required: row.get(4),
        admitted: row.get(5),
        banned: row.get(6),
    }))
}

/// Forgets what was said about a project that is removed.
pub async fn forget(transaction: &Transaction<'_>, project: ProjectId) -> Result<(), Error> {
    for sql in ["delete from project_networks where project_id = $1", "delete from network_bans where project_id = $1"] {
        transaction.execute(sql, &[&project.0]).await.context("forgetting a project's networks")?;
    }
    Ok(())
}
