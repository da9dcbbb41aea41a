//! Who may reach a project's database, and from where.
//!
//! What is said here is read for every connection, by the node that takes it: a change holds everywhere from the moment it is
//! answered.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use ipnet::{IpNet, Ipv6Net};
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
    let sql = "select p.id, p.status, p.node, coalesce(n.tls_required, false), \
               n.allowed is null or exists (select from unnest(n.allowed) network where $2::text::inet <<= network), \
               exists (select from network_bans b where b.project_id = p.id and $2::text::inet <<= b.address and b.until > $3) \
               from projects p left join project_networks n on n.project_id = p.id where p.ref = $1 and p.desired <> 'removed'";
    let address = address.to_canonical().to_string();
    let rows = app.db.query(sql, &[&project.as_str(), &address, &app.clock.now()]).await.context("looking up a project's door")?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Door {
        id: ProjectId(row.get(0)),
        status: Status::read(row, 1)?,
        here: row.get::<_, Uuid>(2) == app.settings.node,
        tls_required: row.get(3),
        admitted: row.get(4),
        banned: row.get(5),
    }))
}

/// What is counted and banned of an address: all of it, or the network that one customer of a provider usually has.
pub fn block(address: IpAddr) -> IpNet {
    match address.to_canonical() {
        IpAddr::V4(address) => IpNet::from(IpAddr::V4(address)),
        IpAddr::V6(address) => Ipv6Net::new(address, 64).map_or_else(|_| IpNet::from(IpAddr::V6(address)), |net| IpNet::V6(net.trunc())),
    }
}

/// Bans of one project at most. They end by themselves.
const BANS_MAX: i64 = 1000;

/// Bans a block of addresses from a project's database until then.
pub async fn ban(app: &App, project: ProjectId, block: IpNet, until: DateTime<Utc>) -> Result<(), Error> {
    let doing = "banning an address";
    let sql = "delete from network_bans where project_id = $1 and until <= $2";
    app.db.query(sql, &[&project.0, &app.clock.now()]).await.context(doing)?;
    let sql = "insert into network_bans (project_id, address, until) select $1, $2::text::inet, $3 \
               where (select count(*) from network_bans where project_id = $1) < $4 \
               on conflict (project_id, address) do update set until = excluded.until";
    app.db.query(sql, &[&project.0, &block.to_string(), &until, &BANS_MAX]).await.context(doing)?;
    Ok(())
}

/// Forgets what was said about a project that is removed.
pub async fn forget(transaction: &Transaction<'_>, project: ProjectId) -> Result<(), Error> {
    for sql in ["delete from project_networks where project_id = $1", "delete from network_bans where project_id = $1"] {
        transaction.execute(sql, &[&project.0]).await.context("forgetting a project's networks")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_counted_with_those_who_share_its_network() {
        let cases = [
            ("192.0.2.7", "192.0.2.7/32"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("::1", "::/64"),
        ];
        for (address, counted) in cases {
            assert_eq!(block(address.parse().unwrap()).to_string(), counted);
        }
    }
}
