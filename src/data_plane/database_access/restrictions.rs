//! The networks that may reach a project's database, and whether they must come with TLS.

use chrono::{DateTime, Utc};
use ipnet::IpNet;
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};

use crate::{
    base::{
        db::Param,
        error::{Context, Error},
    },
    data_plane::{context::DataPlaneContext, projects},
    platform::{access::Project, audit::Recorder},
};

/// Networks of one project at most.
pub const NETWORKS_MAX: usize = 200;

/// What is said about a project, or what holds if nothing was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Whether connections without TLS are refused.
    pub tls_required: bool,
    /// Networks that may come.
    pub allowed: Vec<IpNet>,
    /// When it was last changed.
    pub updated_at: Option<DateTime<Utc>>,
}

impl Rules {
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

    /// As the audit log has it.
    fn told(&self) -> Value {
        let allowed: Vec<String> = self.allowed.iter().map(ToString::to_string).collect();
        json!({"tls_required": self.tls_required, "allowed": allowed})
    }
}

/// Every address there is.
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

/// What holds for a project.
pub async fn get(context: &DataPlaneContext, project: &Project) -> Result<Rules, Error> {
    let rows = context
        .db
        .query(rules!(""), &[&project.id.0])
        .await
        .context("reading a project's networks")?;
    Rules::read(rows.first().ok_or(Error::NotFound)?)
}

/// Changes it. Returns what held before, and what holds from now on, everywhere. `status` is what the request will be answered.
pub async fn change(
    context: &DataPlaneContext,
    project: &Project,
    status: i16,
    audit: &Recorder,
    alter: impl FnOnce(&mut Rules) -> Result<(), Error> + Send,
) -> Result<(Rules, Rules), Error> {
    let (doing, now) = ("changing a project's networks", context.clock.now());
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let row = transaction
        .query_opt(rules!(" for update of p"), &[&project.id.0])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let before = Rules::read(&row)?;
    let mut after = Rules {
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
    write(&transaction, project, &after, now)
        .await
        .context(doing)?;
    audit
        .write_in(
            &transaction,
            status,
            (Some(before.told()), Some(after.told())),
            now,
        )
        .await?;
    transaction.commit().await.context(doing)?;
    Ok((before, after))
}

async fn write(
    transaction: &Transaction<'_>,
    project: &Project,
    rules: &Rules,
    now: DateTime<Utc>,
) -> Result<(), tokio_postgres::Error> {
    let allowed: Vec<String> = rules.allowed.iter().map(ToString::to_string).collect();
    let sql = "insert into project_networks (project_id, tls_required, allowed, updated_at) values ($1, $2, $3::text[]::inet[], $4) \
               on conflict (project_id) do update set tls_required = excluded.tls_required, allowed = excluded.allowed, \
               updated_at = excluded.updated_at";
    let params: [Param<'_>; 4] = [&project.id.0, &rules.tls_required, &allowed, &now];
    transaction.execute(sql, &params).await.map(drop)
}
