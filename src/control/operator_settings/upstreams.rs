//! Upstreams of single projects' services, set with `gantry upstream` or through the operator's
//! API.

use std::{collections::HashMap, fmt, sync::Arc};

use gantry_base::{
    clock::Clock,
    ids::{ProjectId, ProjectRef},
};
use gantry_node::kits::Service;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;

use super::project_setting::ProjectSetting;
use crate::{
    platform::{
        audit::Recorder,
        db::Db,
        error::{Context, Error},
    },
    proxy::service_proxy::upstreams::{ServiceUpstream, UpstreamTemplate, Upstreams},
};

/// The upstream of one service of a project.
#[derive(Debug, Serialize)]
pub struct UpstreamOverride {
    project: String,
    service: String,
    url: String,
}

impl fmt::Display for UpstreamOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {:<9}  {}", self.project, self.service, self.url)
    }
}

/// Returns the upstreams of all projects that have any, by project id.
pub(in crate::control) async fn all(db: &Db) -> Result<HashMap<ProjectId, Arc<Upstreams>>, Error> {
    let rows = db
        .query(
            "select project_id, service, url from project_upstreams",
            &[],
        )
        .await
        .context("reading upstreams")?;
    let mut all: HashMap<ProjectId, Upstreams> = HashMap::new();
    for row in &rows {
        let (service, template) = read(row)?;
        all.entry(ProjectId(row.get(0)))
            .or_default()
            .set(service, template);
    }
    Ok(all
        .into_iter()
        .map(|(project, upstreams)| (project, Arc::new(upstreams)))
        .collect())
}

fn read(row: &Row) -> Result<(Service, UpstreamTemplate), Error> {
    let service = row
        .get::<_, &str>(1)
        .parse()
        .context("reading an upstream")?;
    Ok((
        service,
        row.get::<_, &str>(2)
            .parse()
            .context("reading an upstream")?,
    ))
}

/// Returns all upstreams, by ref and service.
pub async fn list(db: &Db) -> Result<Vec<UpstreamOverride>, Error> {
    let sql = "select p.ref, u.service, u.url from project_upstreams u join projects p on p.id = u.project_id order by 1, 2";
    let rows = db.query(sql, &[]).await.context("listing upstreams")?;
    Ok(rows
        .iter()
        .map(|row| UpstreamOverride {
            project: row.get(0),
            service: row.get(1),
            url: row.get(2),
        })
        .collect())
}

/// Returns the upstreams of a project.
pub async fn of(db: &Db, project: &ProjectRef) -> Result<Upstreams, Error> {
    let sql = "select p.id, u.service, u.url from projects p left join project_upstreams u on u.project_id = p.id \
               where p.ref = $1 and p.desired <> 'removed'";
    let rows = db
        .query(sql, &[&project.as_str()])
        .await
        .context("reading a project's upstreams")?;
    if rows.is_empty() {
        return Err(Error::NotFound);
    }
    let mut upstreams = Upstreams::default();
    for row in rows
        .iter()
        .filter(|row| row.get::<_, Option<&str>>(1).is_some())
    {
        let (service, template) = read(row)?;
        upstreams.set(service, template);
    }
    Ok(upstreams)
}

/// Sets the upstream of a project's service; `None` restores the server's default. Returns the
/// previous URL.
pub async fn set(
    db: &Db,
    project: &ProjectRef,
    service: Service,
    upstream: Option<&ServiceUpstream>,
    clock: &Clock,
    audit: Recorder,
) -> Result<Option<String>, Error> {
    let url = upstream.map(|upstream| upstream.template.to_string());
    let setting = ProjectSetting {
        action: "setting an upstream",
        delete: "delete from project_upstreams where project_id = $1 and service = $2 returning url",
        insert: "insert into project_upstreams (project_id, service, url) values ($1, $2, $3)",
        describe: |url: &String| json!({ "service": service.name(), "url": url }),
    };
    setting
        .set(db, project, &[&service.name()], url, clock, audit)
        .await
}
