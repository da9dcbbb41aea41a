//! Restores of single tables, and the list of all restores of a project.

use std::{collections::BTreeSet, sync::Arc};

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::moment;
use crate::{
    api::context::ApiContext,
    control::backups::{
        tables::{self, NAME_BYTES_MAX, RequestedTables, RestoredTable, TABLES_MAX},
        target::RestoreTarget,
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::{Context, Error},
        http::{Endpoint, Json, Output, Tag, Verb, mount, output::Created},
        rate_limits::STANDARD,
    },
};

/// Endpoints of restores.
pub static ENDPOINTS: &[&Endpoint] = &[&RESTORE_TABLES, &LIST];

/// Restores in a list.
const LISTED_MAX: i64 = 100;

static RESTORE_TABLES: Endpoint = Endpoint {
    id: "gantry-restore-tables",
    summary: "Restore tables of a past moment into a new schema",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/backups/restore-tables",
    aliases: &[],
    access: needs(&[&[P::BackupsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(restore_tables).sample(
            r#"{"tables": [{"schema": "public", "name": "notes"}], "recovery_time_target_unix": 1735689600}"#,
        )
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RestoreTablesBody")]
struct TablesRequest {
    #[schemars(length(min = 1, max = 50))]
    tables: Vec<TableName>,
    /// Seconds since 1970. The tables get all commits up to this time.
    #[schemars(range(min = 0))]
    recovery_time_target_unix: Option<i64>,
    /// Number of a backup in the list, instead of a time.
    id: Option<i64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TableName {
    #[serde(default = "public")]
    #[schemars(length(min = 1, max = 63))]
    schema: String,
    #[schemars(length(min = 1, max = 63))]
    name: String,
}

fn public() -> String {
    "public".to_owned()
}

#[derive(Debug, Serialize, JsonSchema)]
struct RequestedTablesView {
    /// Number of the restore in the list of restores.
    id: i64,
    /// The schema that the tables are restored into.
    schema: String,
    status: RestoreStatus,
    requested_at: DateTime<Utc>,
}

async fn restore_tables(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<TablesRequest>,
) -> Result<Created<RequestedTablesView>, Error> {
    let wanted = check(request.tables)?;
    let moment = moment::requested(request.recovery_time_target_unix, request.id)?;
    let target = RestoreTarget::find(&context, &project, moment).await?;
    let view = |requested: &RequestedTables| {
        Created(RequestedTablesView {
            id: requested.id,
            schema: requested.schema.clone(),
            status: RestoreStatus::Running,
            requested_at: requested.requested_at,
        })
    };
    audit.answer_with(move |requested| view(requested).respond());
    let requested = tables::request(&context, &project, &target, &wanted, &audit).await?;
    Ok(view(&requested))
}

fn check(wanted: Vec<TableName>) -> Result<Vec<RestoredTable>, Error> {
    if !(1..=TABLES_MAX).contains(&wanted.len()) {
        return Err(Error::invalid("tables", "expected 1 to 50 tables"));
    }
    let mut names = BTreeSet::new();
    let mut tables = Vec::with_capacity(wanted.len());
    for table in wanted {
        let fits = |text: &str| (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.contains('\0');
        if !fits(&table.schema) || !fits(&table.name) {
            let problem = "expected names of 1 to 63 bytes";
            return Err(Error::invalid("tables", problem));
        }
        if !names.insert(table.name.clone()) {
            let problem = "has two tables of the same name; restore them one after the other";
            return Err(Error::invalid("tables", problem));
        }
        tables.push(RestoredTable {
            schema: table.schema,
            name: table.name,
            rows: None,
        });
    }
    Ok(tables)
}

static LIST: Endpoint = Endpoint {
    id: "gantry-list-restores",
    summary: "List the restores of a project",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/backups/restores",
    aliases: &[],
    access: needs(&[&[P::BackupsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(list),
};

/// The thing that is restored.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum RestoreKind {
    /// The project itself.
    Project,
    /// A new project, from a backup of another one.
    NewProject,
    /// Single tables.
    Tables,
}

/// Status of a restore.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum RestoreStatus {
    Running,
    Completed,
    Failed,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RestoreView {
    /// Number, unique among those of the same kind.
    id: i64,
    kind: RestoreKind,
    status: RestoreStatus,
    requested_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
    /// Time that was restored. Null for the end of a backup or a restore point.
    recovery_time_target: Option<DateTime<Utc>>,
    /// Reason of the failure.
    error: Option<String>,
    /// The project that the backup is of, for a new project.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_ref: Option<String>,
    /// Kinds of things that were removed or deactivated in a new project, with their numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    isolation: Option<Value>,
    /// Schema of the restored tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<String>,
    /// Restored tables, with the numbers of their rows after a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    tables: Option<Value>,
}

async fn list(project: Project, context: ApiContext) -> Result<Json<Vec<RestoreView>>, Error> {
    let sql = "select * from (
                   select r.id, case when r.source_id is null then 'project' else 'new' end,
                          r.requested_at, r.finished_at, r.target_time,
                          r.error, s.ref, r.report, null::text, null::jsonb
                   from restores r left join projects s on s.id = r.source_id
                   where r.project_id = $1
                   union all
                   select t.id, 'tables', t.requested_at, t.finished_at, t.target_time,
                          t.error, null, null, t.schema, t.tables
                   from table_restores t where t.project_id = $1) found
               order by 3 desc, 1 desc limit $2";
    let rows = context.db.query(sql, &[&project.id.0, &LISTED_MAX]).await;
    let rows = rows.context("reading restores")?;
    let mut restores = Vec::with_capacity(rows.len());
    for row in &rows {
        let finished_at: Option<DateTime<Utc>> = row.get(3);
        let error: Option<String> = row.get(5);
        restores.push(RestoreView {
            id: row.get(0),
            kind: match row.get::<_, &str>(1) {
                "project" => RestoreKind::Project,
                "new" => RestoreKind::NewProject,
                _ => RestoreKind::Tables,
            },
            status: match (&error, finished_at) {
                (Some(_), _) => RestoreStatus::Failed,
                (None, Some(_)) => RestoreStatus::Completed,
                (None, None) => RestoreStatus::Running,
            },
            requested_at: row.get(2),
            finished_at,
            recovery_time_target: row.get(4),
            error,
            source_ref: row.get(6),
            isolation: row.get(7),
            schema: row.get(8),
            tables: row.get(9),
        });
    }
    Ok(Json(restores))
}
