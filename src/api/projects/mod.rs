//! Operations on projects: create, list, read, rename and delete.

pub mod addons;
pub mod claims;
pub mod disk;
pub mod from_backup;
pub mod health;
pub mod listing;
pub mod listing_cache;
pub mod operations;
pub mod transfers;
pub mod upgrade;
mod v2;

use std::collections::BTreeSet;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use gantry_base::ids::{OrgSlug, OrganizationId, ProjectId, ProjectRef, UserId};
use gantry_node::engines::Engine;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Row, Transaction};

use self::listing_cache::Audience;
use crate::{
    api::{branches, context::ApiContext, organizations},
    control::{
        api_keys,
        domains::vanity,
        fleet::placement::{self, NewPlacement},
        projects::{NewProject, Status, held, lock, major, removed, status_events, warm_pool},
    },
    platform::{
        access::{Organization, Project, Reach, User},
        audit::{Change, Recorder},
        db::{self, Db, Param},
        error::{Context, Error},
        events::{EventPayload, payloads::ProjectCreated},
        http::{
            Json,
            output::{Created, PrerenderedJson},
        },
        tables::{self, Table},
    },
};

/// A project without its database, as its creation answers it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1ProjectResponse")]
pub struct ProjectSummary {
    /// Older spelling of `ref`.
    #[schemars(extend("deprecated" = true))]
    id: ProjectRef,
    /// Its identifier in paths.
    #[serde(rename = "ref")]
    reference: ProjectRef,
    /// Older spelling of `organization_slug`.
    #[schemars(extend("deprecated" = true))]
    organization_id: OrgSlug,
    organization_slug: OrgSlug,
    name: String,
    region: String,
    created_at: String,
    status: Status,
}

/// Where the project's database is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Database")]
pub(super) struct ProjectDatabase {
    pub(super) host: String,
    pub(super) version: String,
    pub(super) postgres_engine: String,
    pub(super) release_channel: String,
}

/// A project with its database.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1ProjectWithDatabaseResponse")]
pub struct ProjectDetail {
    #[serde(flatten)]
    summary: ProjectSummary,
    database: ProjectDatabase,
}

/// Response of renaming and removing.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1ProjectRefResponse")]
pub struct ProjectRefResponse {
    id: i64,
    #[serde(rename = "ref")]
    reference: ProjectRef,
    name: String,
}

/// Longest list of projects: the contract does not page it.
const LIST_MAX: i64 = 10_000;

macro_rules! select_details {
    ($rest:literal) => {
        concat!(
            "select p.ref, o.slug, p.name, p.region, p.created_at, p.status, p.engine, p.release_channel, p.desired, p.node \
             from projects p join organizations o on o.id = p.organization_id ",
            $rest
        )
    };
}

/// Lists the projects of all organizations of a user that the token can access, oldest first. The
/// serialized response is cached, because it is read often and changes rarely.
pub async fn list(
    context: &ApiContext,
    user: &User,
) -> Result<PrerenderedJson<Vec<ProjectDetail>>, Error> {
    let now = context.clock.ticks();
    let epoch = context.listings.epoch();
    let audience = Audience::of(user);
    if let Some(bytes) = context.listings.get(audience, now) {
        return Ok(bytes.into());
    }
    let sql = select_details!(
        "join members m on m.organization_id = o.id where m.user_id = $1 and p.desired <> 'removed' \
         and ($2::bigint[] is null or o.id = any($2)) and ($3::bigint[] is null or p.id = any($3)) \
         and not exists (select from branches b where b.project_id = p.id and not b.is_default) order by p.id limit $4"
    );
    let organizations = user.reach().and_then(Reach::listed_organizations);
    let projects = user.reach().and_then(Reach::listed_projects);
    let rows = context
        .db
        .query(sql, &[&user.id.0, &organizations, &projects, &LIST_MAX])
        .await
        .context("listing projects")?;
    let projects = rows
        .iter()
        .map(|row| read_detail(context, row))
        .collect::<Result<Vec<_>, _>>()?;
    let written = PrerenderedJson::new(&projects)?;
    context.listings.put(audience, written.bytes(), now, epoch);
    Ok(written)
}

/// Returns those of these refs that are projects in an organization of the user.
pub async fn of_member(
    db: &Db,
    user: UserId,
    references: &BTreeSet<ProjectRef>,
) -> Result<Vec<Project>, Error> {
    let references: Vec<&str> = references.iter().map(ProjectRef::as_str).collect();
    let sql = "select p.id, p.ref, p.organization_id from projects p join members m on m.organization_id = p.organization_id \
               where m.user_id = $1 and p.ref = any($2) and p.desired <> 'removed' order by p.id";
    let rows = db
        .query(sql, &[&user.0, &references])
        .await
        .context("looking up projects")?;
    rows.iter()
        .map(|row: &Row| {
            let reference = row
                .get::<_, &str>(1)
                .parse()
                .context("reading a project's ref")?;
            Ok(Project {
                id: ProjectId(row.get(0)),
                reference,
                organization: OrganizationId(row.get(2)),
            })
        })
        .collect()
}

/// Returns one project. For a removed project, the error names it: its former members know that it
/// existed.
pub async fn get(context: &ApiContext, project: &Project) -> Result<ProjectDetail, Error> {
    let rows = context
        .db
        .query(select_details!("where p.id = $1"), &[&project.id.0])
        .await
        .context("reading a project")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    if row.get::<_, &str>(8) == "removed" {
        return Err(removed());
    }
    // A branch is a project for all operations but this one: clients tell the two apart by it.
    let sql = "select from branches where project_id = $1 and not is_default";
    let branch = context.db.query(sql, &[&project.id.0]).await;
    if branch.context("reading a project")?.is_empty() {
        read_detail(context, row)
    } else {
        Err(Error::Missing("Project not found"))
    }
}

/// Returns the database of a project or branch.
pub(super) async fn database_of(
    context: &ApiContext,
    project: &Project,
) -> Result<ProjectDatabase, Error> {
    let rows = context
        .db
        .query(select_details!("where p.id = $1"), &[&project.id.0])
        .await
        .context("reading a project")?;
    Ok(read_detail(context, rows.first().ok_or(Error::NotFound)?)?.database)
}

/// Records a new project and wakes the reconciler, which creates its cluster.
pub async fn create(
    context: &ApiContext,
    organization: &Organization,
    new: NewProject,
    audit: &Recorder,
) -> Result<ProjectSummary, Error> {
    let doing = "creating a project";
    let now = context.clock.now();
    let verifier = new.password_verifier().await?;
    let engine = new.engine.text();
    let channel = new.engine.channel();
    let sql = "insert into projects (ref, organization_id, name, region, instance_size, engine, release_channel, node, desired, status, \
               password_verifier, not_before, created_at, updated_at, account, grants, \
               new_table_grants) \
               values ($1, $2, $3, $4, $5, $6, $11, $7, 'active', 'COMING_UP', $8, $9, $9, $9, $10, $12, $13) returning id";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let placement = NewPlacement {
        organization: organization.id,
        region: new.region,
        major: new.engine.major(),
        size: new.size,
    };
    let node = placement::choose(context, &transaction, placement).await?;
    // Warm clusters run with the settings of the smallest size.
    let taken = if new.size.is_smallest() {
        warm_pool::take(context, &transaction, node, &new.engine).await?
    } else {
        None
    };
    let account = taken.as_ref().map(|taken| taken.account);
    let origin = warm_pool::WarmCluster::origin(taken.as_ref());
    let reference = taken.map_or_else(
        || ProjectRef::generate(&context.entropy),
        |taken| taken.reference,
    );
    let new_table_grants = new.new_table_grants.name();
    let params: [Param<'_>; 13] = [
        &reference.as_str(),
        &organization.id.0,
        &new.name,
        &new.region.code(),
        &new.size.code(),
        &engine,
        &node,
        &verifier,
        &now,
        &account,
        &channel,
        &context.driver.platform_version(),
        &new_table_grants,
    ];
    let row = transaction
        .query_one(sql, &params)
        .await
        .map_err(|error| duplicate_name(error, &new.name))?;
    api_keys::create_initial(context, &transaction, ProjectId(row.get(0)), now).await?;
    let after = json!({"ref": reference, "name": new.name, "region": new.region.code(), "instance_size": new.size.code()});
    let event = ProjectCreated { source: None };
    let event = event.about_ref(organization.id, &reference);
    let change = Change::new((None, Some(after)), [event]);
    let created = ProjectSummary {
        id: reference.clone(),
        reference,
        organization_id: organization.slug.clone(),
        organization_slug: organization.slug.clone(),
        name: new.name,
        region: new.region.code().to_owned(),
        created_at: timestamp(now),
        status: Status::ComingUp,
    };
    audit.answer(|| Created(&created));
    audit.commit(transaction, doing, 201, change, now).await?;
    context.cluster_metrics.began_from(origin);
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(created)
}

/// Renames a project.
pub async fn rename(
    context: &ApiContext,
    project: &Project,
    name: &str,
    audit: &Recorder,
) -> Result<ProjectRefResponse, Error> {
    let doing = "renaming a project";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = lock(&transaction, project, doing).await?;
    let before = json!({"name": before.name});
    let sql =
        "update projects set name = $2, updated_at = $3 where id = $1 returning id, ref, name";
    let row = transaction
        .query_one(sql, &[&project.id.0, &name, &now])
        .await
        .map_err(|error| duplicate_name(error, name))?;
    let change = (Some(before), Some(json!({"name": name})));
    let renamed = read_ref_response(&row)?;
    audit.answer(|| Json(&renamed));
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::Projects);
    Ok(renamed)
}

/// Records the deletion of a project and wakes the reconciler, which removes its cluster.
pub async fn remove(
    context: &ApiContext,
    project: &Project,
    audit: &Recorder,
) -> Result<ProjectRefResponse, Error> {
    let doing = "removing a project";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let hold = context.control_settings.hold;
    let until = (hold > TimeDelta::zero()).then(|| now + hold);
    let removed = branches::removal(&transaction, project).await?;
    let named = remove_until(&transaction, project, until, now).await?;
    let mut events = vec![removed];
    events.extend(status_events::changed(&transaction, &[project.id]).await?);
    let change = Change::new((Some(json!({"name": named.name})), None), events);
    audit.answer(|| Json(&named));
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(named)
}

/// Records the removal of a project or branch in a transaction. It cannot be restored.
///
/// Errors: [`Error::Conflict`] if the project has branches.
pub(super) async fn remove_in(
    transaction: &Transaction<'_>,
    project: &Project,
    now: DateTime<Utc>,
) -> Result<ProjectRefResponse, Error> {
    remove_until(transaction, project, None, now).await
}

/// Does [`remove_in`]. The project can be restored until `held_until`, if that is given.
async fn remove_until(
    transaction: &Transaction<'_>,
    project: &Project,
    held_until: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Result<ProjectRefResponse, Error> {
    let locked = lock(transaction, project, "removing a project").await?;
    let sql = "select string_agg(name, ', ' order by name) from branches where parent_id = $1 and not is_default";
    let branches = transaction.query_one(sql, &[&project.id.0]).await;
    let branches: Option<String> = branches.context("removing a project")?.get(0);
    if let Some(names) = branches {
        return Err(Error::Conflict(
            format!("The project has branches: {names}. Delete them first, or disable branching with DELETE /v1/projects/{}/branches", project.reference).into(),
        ));
    }
    if locked.status == Status::Pausing {
        return Err(Error::Rejected(
            "Project is pausing and is not ready for deletion".into(),
        ));
    }
    let sql = "update projects set desired = 'removed', status = 'GOING_DOWN', generation = generation + 1, attempts = 0, not_before = $2, \
               updated_at = $2, password_verifier = null where id = $1 returning id, ref, name";
    let row = transaction
        .query_one(sql, &[&project.id.0, &now])
        .await
        .context("removing a project")?;
    let named = read_ref_response(&row)?;
    let name = vanity::release(transaction, project.id, project.organization, now).await?;
    if let Some(until) = held_until {
        held::hold_in(transaction, project.id, name.as_deref(), until, now).await?;
    }
    tables::delete_project_rows(transaction, project.id).await?;
    Ok(named)
}

fn read_detail(context: &ApiContext, row: &Row) -> Result<ProjectDetail, Error> {
    let reference: ProjectRef = row
        .get::<_, &str>(0)
        .parse()
        .context("reading a project's ref")?;
    let slug = organizations::slug(row, 1)?;
    // The server runs the installed version; the row has the version at creation.
    let made_by: &str = row.get(6);
    let installed = major(made_by).and_then(|major| context.driver.engines().of_major(major));
    let version = installed.map_or(made_by, Engine::text).to_owned();
    let database = ProjectDatabase {
        host: format!("db.{reference}.{}", context.settings.project_domain),
        postgres_engine: major(made_by)
            .map(|major| major.to_string())
            .unwrap_or_default(),
        version,
        release_channel: installed.map_or_else(|| row.get(7), |engine| engine.channel().to_owned()),
    };
    let status = match Status::read(row, 5)? {
        Status::ActiveHealthy if context.fleet.is_down(row.get(9)) => Status::ActiveUnhealthy,
        status => status,
    };
    let summary = ProjectSummary {
        id: reference.clone(),
        reference,
        organization_id: slug.clone(),
        organization_slug: slug,
        name: row.get(2),
        region: row.get(3),
        created_at: timestamp(row.get(4)),
        status,
    };
    Ok(ProjectDetail { summary, database })
}

fn read_ref_response(row: &Row) -> Result<ProjectRefResponse, Error> {
    let reference = row
        .get::<_, &str>(1)
        .parse()
        .context("reading a project's ref")?;
    Ok(ProjectRefResponse {
        id: row.get(0),
        reference,
        name: row.get(2),
    })
}

fn duplicate_name(error: tokio_postgres::Error, name: &str) -> Error {
    match db::violated(&error) {
        Some("projects_name_key") => Error::Rejected(
            format!("Project with name {name} already exists in this organization").into(),
        ),
        _ => Error::internal("writing a project", error),
    }
}

/// Formats a time as in the contract: RFC 3339 with milliseconds and `Z`.
pub fn timestamp(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}
