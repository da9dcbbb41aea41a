//! Bans of addresses that sent too many wrong passwords.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use ipnet::{IpNet, Ipv6Net};
use serde_json::json;

use crate::{
    data_plane::{context::DataPlaneContext, projects},
    platform::{
        access::Project,
        audit::Recorder,
        error::{Context, Error},
    },
};

/// Maximum number of active bans of a project. Bans expire.
pub(crate) const BANS_MAX: i64 = 1000;

/// Returns the network that is counted and banned for an address: the IPv4 address itself, or the
/// /64 of an IPv6 address, which one customer of a provider usually has.
pub fn network_of(address: IpAddr) -> IpNet {
    match address.to_canonical() {
        IpAddr::V4(address) => IpNet::from(IpAddr::V4(address)),
        IpAddr::V6(address) => Ipv6Net::new(address, 64).map_or_else(
            |_| IpNet::from(IpAddr::V6(address)),
            |net| IpNet::V6(net.trunc()),
        ),
    }
}

/// Bans a network from a project's database until a time.
pub async fn ban(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
    block: IpNet,
    until: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "banning an address";
    context.access_rules.ban(reference, block, until);
    let sql = "delete from network_bans where project_id = $1 and until <= $2";
    context
        .db
        .query(sql, &[&project.0, &context.clock.now()])
        .await
        .context(doing)?;
    let sql = "insert into network_bans (project_id, address, until) select $1, $2::text::inet, $3 \
               where (select count(*) from network_bans where project_id = $1) < $4 \
               on conflict (project_id, address) do update set until = excluded.until";
    context
        .db
        .query(sql, &[&project.0, &block.to_string(), &until, &BANS_MAX])
        .await
        .context(doing)?;
    Ok(())
}

/// Lists the addresses and networks that are currently banned.
pub async fn list(context: &DataPlaneContext, project: &Project) -> Result<Vec<String>, Error> {
    let sql = "select text(b.address), p.desired from projects p left join network_bans b on b.project_id = p.id and b.until > $2 \
               where p.id = $1 order by b.address limit $3";
    let rows = context
        .db
        .query(sql, &[&project.id.0, &context.clock.now(), &BANS_MAX])
        .await
        .context("listing bans")?;
    if rows
        .first()
        .is_none_or(|row| row.get::<_, &str>(1) == "removed")
    {
        return Err(projects::removed());
    }
    Ok(rows
        .iter()
        .filter_map(|row| row.get::<_, Option<&str>>(0))
        .map(display)
        .collect())
}

/// Formats a single address without prefix length, as clients send it back.
fn display(address: &str) -> String {
    let whole = address
        .strip_suffix("/32")
        .filter(|address| !address.contains(':'));
    whole
        .or_else(|| address.strip_suffix("/128"))
        .unwrap_or(address)
        .to_owned()
}

/// Lifts the bans that overlap these networks, effective on every node.
pub async fn lift(
    context: &DataPlaneContext,
    project: &Project,
    networks: &[IpNet],
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "lifting bans";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select from projects where id = $1 and desired <> 'removed' for share";
    transaction
        .query_opt(sql, &[&project.id.0])
        .await
        .context(doing)?
        .ok_or_else(projects::removed)?;
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    let sql =
        "delete from network_bans where project_id = $1 and address && any ($2::text[]::inet[])";
    let lifted = transaction
        .execute(sql, &[&project.id.0, &texts])
        .await
        .context(doing)?;
    audit
        .write_in(
            &transaction,
            200,
            (None, Some(json!({"addresses": texts, "lifted": lifted}))),
            now,
        )
        .await?;
    transaction.commit().await.context(doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_counted_with_its_network() {
        let cases = [
            ("192.0.2.7", "192.0.2.7/32", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7/32", "192.0.2.7"),
            (
                "2001:db8:1:2:3:4:5:6",
                "2001:db8:1:2::/64",
                "2001:db8:1:2::/64",
            ),
        ];
        for (address, counted, displayed) in cases {
            let block = network_of(address.parse().unwrap()).to_string();
            assert_eq!(
                (block.as_str(), display(&block)),
                (counted, displayed.to_owned())
            );
        }
    }
}
