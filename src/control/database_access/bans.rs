//! Bans of addresses that sent too many wrong passwords.

use chrono::{DateTime, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use ipnet::IpNet;
use serde_json::json;

use crate::{
    control::{context::ControlContext, database_access::rules::BANS_MAX, projects},
    platform::{
        access::Project,
        audit::Recorder,
        error::{Context, Error},
    },
};

/// Bans a network from a project's database until a time.
pub async fn ban(
    context: &ControlContext,
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
pub async fn list(context: &ControlContext, project: &Project) -> Result<Vec<String>, Error> {
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
    context: &ControlContext,
    project: &Project,
    networks: &[IpNet],
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "lifting bans";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    projects::lock_shared(&transaction, project, doing).await?;
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    let sql =
        "delete from network_bans where project_id = $1 and address && any ($2::text[]::inet[])";
    let lifted = transaction
        .execute(sql, &[&project.id.0, &texts])
        .await
        .context(doing)?;
    let change = (None, Some(json!({"addresses": texts, "lifted": lifted})));
    audit.commit(transaction, doing, 200, change, now).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_address_is_displayed_without_its_length() {
        for (stored, displayed) in [
            ("192.0.2.7/32", "192.0.2.7"),
            ("2001:db8:1:2::7/128", "2001:db8:1:2::7"),
            ("2001:db8:1:2::/64", "2001:db8:1:2::/64"),
        ] {
            assert_eq!(display(stored), displayed);
        }
    }
}
