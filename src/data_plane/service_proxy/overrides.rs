//! Where services of single projects answer: what the operator said with `gantry upstream`.

use std::{collections::HashMap, fmt, sync::Arc};

use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;

use super::upstreams::{Service, ServiceUpstream, UpstreamTemplate, Upstreams};
use crate::{
    base::{
        clock::Clock,
        db::Db,
        error::{Context, Error},
        ids::{OrganizationId, ProjectId, ProjectRef},
    },
    platform::audit::Recorder,
};

/// What the operator said about one service of a project.
#[derive(Debug, Serialize)]
pub struct Override {
    project: String,
    service: String,
    url: String,
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {:<9}  {}", self.project, self.service, self.url)
    }
}

/// Of every project that has one.
pub(super) async fn all(db: &Db) -> Result<HashMap<ProjectId, Arc<Upstreams>>, Error> {
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

/// All of them, for people.
pub async fn list(db: &Db) -> Result<Vec<Override>, Error> {
    let sql = "select p.ref, u.service, u.url from project_upstreams u join projects p on p.id = u.project_id order by 1, 2";
    let rows = db.query(sql, &[]).await.context("listing upstreams")?;
    Ok(rows
        .iter()
        .map(|row| Override {
            project: row.get(0),
            service: row.get(1),
            url: row.get(2),
        })
        .collect())
}

/// Of one project.
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

/// Says where a service of a project answers; `None` takes it back. Returns what was said before. To say the same again changes
/// nothing, and is in no log.
pub async fn set(
    db: &Db,
    project: &ProjectRef,
    service: Service,
    upstream: Option<&ServiceUpstream>,
    clock: &Clock,
    audit: Recorder,
) -> Result<Option<String>, Error> {
    let doing = "setting an upstream";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select id, organization_id from projects where ref = $1 and desired <> 'removed' for update";
    let found = transaction
        .query_opt(sql, &[&project.as_str()])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let (id, audit) = (
        found.get::<_, i64>(0),
        audit.about(OrganizationId(found.get(1)), project),
    );
    let sql = "delete from project_upstreams where project_id = $1 and service = $2 returning url";
    let before: Option<String> = transaction
        .query_opt(sql, &[&id, &service.name()])
        .await
        .context(doing)?
        .map(|row| row.get(0));
    let after = upstream.map(|upstream| upstream.template.to_string());
    if before == after {
        return Ok(before);
    }
    if let Some(url) = &after {
        let sql = "insert into project_upstreams (project_id, service, url) values ($1, $2, $3)";
        transaction
            .execute(sql, &[&id, &service.name(), url])
            .await
            .context(doing)?;
    }
    let told = |url: String| json!({ "service": service.name(), "url": url });
    audit
        .write_in(
            &transaction,
            200,
            (before.clone().map(told), after.map(told)),
            clock.now(),
        )
        .await?;
    transaction.commit().await.context(doing)?;
    Ok(before)
}
