//! Functions and their versions in the control database.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use gantry_base::ids::{Malformed, ProjectId};
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::Project,
        audit::Recorder,
        db,
        error::{Context, Error},
        notifications,
        tables::Table,
    },
};

/// The error of a function that does not exist.
pub const NO_FUNCTION: Error = Error::Missing("Function not found");

/// Functions of a project.
const FUNCTIONS_MAX: i64 = 1000;
/// Longest slug, in characters.
const SLUG_CHARS_MAX: usize = 128;
/// Number of versions before the live one that are kept.
const OLDER_VERSIONS_KEPT: i32 = 2;

/// The name of a function in paths: letters, digits, `_` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionSlug(String);

impl FunctionSlug {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it begins with a letter, as deployments require.
    pub fn begins_with_letter(&self) -> bool {
        self.0.starts_with(|c: char| c.is_ascii_alphabetic())
    }
}

impl FromStr for FunctionSlug {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if (1..=SLUG_CHARS_MAX).contains(&text.len()) && text.chars().all(is_valid) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Malformed(
                "1 to 128 letters, digits, underscores and hyphens",
            ))
        }
    }
}

impl fmt::Display for FunctionSlug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A function with one of its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRecord {
    /// Id of the function.
    pub id: Uuid,
    /// Its name in paths.
    pub slug: String,
    /// Its display name.
    pub name: String,
    /// Number of the version.
    pub version: i32,
    /// Id of the version's files.
    pub deployment: Uuid,
    /// Whether requests need a token of the project.
    pub verify_jwt: bool,
    /// Path of the first module in the sources.
    pub entrypoint: String,
    /// Path of the import map in the sources.
    pub import_map: Option<String>,
    /// SHA-256 of the uploaded bundle in hex.
    pub bundle_sha256: Option<String>,
    /// The deployment in another project that it is a copy of.
    pub copied_from: Option<Uuid>,
    /// Time of the first version.
    pub created_at: DateTime<Utc>,
    /// Time of the last change.
    pub updated_at: DateTime<Utc>,
}

impl FunctionRecord {
    fn read(row: &Row) -> Self {
        Self {
            id: row.get(0),
            slug: row.get(1),
            created_at: row.get(2),
            updated_at: row.get(3),
            version: row.get(4),
            deployment: row.get(5),
            name: row.get(6),
            verify_jwt: row.get(7),
            entrypoint: row.get(8),
            import_map: row.get(9),
            bundle_sha256: row.get(10),
            copied_from: row.get(11),
        }
    }

    fn describe(&self) -> Value {
        json!({
            "id": self.id, "slug": self.slug, "name": self.name, "version": self.version,
            "verify_jwt": self.verify_jwt,
        })
    }
}

macro_rules! records {
    ($version:literal, $rest:literal) => {
        concat!(
            "select f.id, f.slug, f.created_at, f.updated_at, v.version, v.deployment, v.name, \
             v.verify_jwt, v.entrypoint, v.import_map, v.bundle_sha256, v.copied_from \
             from functions f \
             join function_versions v on v.function_id = f.id and v.version = ",
            $version,
            " where f.project_id = $1 ",
            $rest
        )
    };
}

/// Returns the functions of a project with their live versions, by slug.
pub async fn list(
    context: &ControlContext,
    project: ProjectId,
) -> Result<Vec<FunctionRecord>, Error> {
    let sql = records!("f.live_version", "order by f.slug limit $2");
    let rows = context.db.query(sql, &[&project.0, &FUNCTIONS_MAX]).await;
    let rows = rows.context("listing functions")?;
    Ok(rows.iter().map(FunctionRecord::read).collect())
}

/// Returns a function with its live version.
pub async fn get(
    context: &ControlContext,
    project: ProjectId,
    slug: &FunctionSlug,
) -> Result<Option<FunctionRecord>, Error> {
    let sql = records!("f.live_version", "and f.slug = $2");
    let rows = context.db.query(sql, &[&project.0, &slug.as_str()]).await;
    let rows = rows.context("reading a function")?;
    Ok(rows.first().map(FunctionRecord::read))
}

/// The state of a function before a deployment. A deployment fails if it changed meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Publication {
    /// Id of the function, if it exists.
    id: Option<Uuid>,
    live: Option<i32>,
    /// Display name and setting of the live version.
    pub(super) kept: Option<(String, bool)>,
    /// Deployment of a version that is not live yet.
    pending: Option<Uuid>,
}

impl Publication {
    /// Whether a version is live.
    pub(super) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Number of the next version.
    pub(super) fn next_version(&self) -> i32 {
        self.live.unwrap_or(0) + 1
    }

    /// Id of the function, or a new one.
    pub(super) fn id_or(&self, new: Uuid) -> Uuid {
        self.id.unwrap_or(new)
    }

    fn read(row: Option<&Row>) -> Self {
        let Some(row) = row else {
            return Self::default();
        };
        let live: Option<i32> = row.get(1);
        let kept = live.and_then(|_| Some((row.get::<_, Option<_>>(2)?, row.get(3))));
        Self {
            id: Some(row.get(0)),
            live,
            kept,
            pending: row.get(4),
        }
    }
}

const BASE: &str = "select f.id, f.live_version, v.name, coalesce(v.verify_jwt, true), \
    (select p.deployment from function_versions p where p.function_id = f.id \
     and p.version > coalesce(f.live_version, 0) order by p.version desc limit 1) \
    from functions f left join function_versions v \
    on v.function_id = f.id and v.version = f.live_version \
    where f.project_id = $1 and f.slug = $2";

/// Reads the state of a function before a deployment.
pub(super) async fn base(
    context: &ControlContext,
    project: ProjectId,
    slug: &FunctionSlug,
) -> Result<Publication, Error> {
    let rows = context.db.query(BASE, &[&project.0, &slug.as_str()]).await;
    let rows = rows.context("reading a function")?;
    Ok(Publication::read(rows.first()))
}

/// A version to store.
#[derive(Debug)]
pub(super) struct NewFunctionVersion {
    /// The function.
    pub(super) slug: FunctionSlug,
    /// Id of the function.
    pub(super) id: Uuid,
    /// Id of the files, which exist.
    pub(super) deployment: Uuid,
    /// Display name.
    pub(super) name: String,
    /// Whether requests need a token of the project.
    pub(super) verify_jwt: bool,
    /// Path of the first module.
    pub(super) entrypoint: String,
    /// Path of the import map.
    pub(super) import_map: Option<String>,
    /// SHA-256 of the uploaded bundle in hex.
    pub(super) bundle_sha256: Option<String>,
    /// The deployment in another project that it is a copy of.
    pub(super) copied_from: Option<Uuid>,
    /// Whether the version becomes live. Otherwise [`switch`] makes it so.
    pub(super) live: bool,
}

/// Stores a version, and makes it live if requested. A version that is not live yet is replaced.
/// `audit` has the status of the response.
///
/// Errors: [`Error::Conflict`] if the function changed since `base` was read.
pub(super) async fn publish(
    context: &ControlContext,
    project: &Project,
    base: &Publication,
    new: NewFunctionVersion,
    audit: Option<(&Recorder, i16)>,
) -> Result<FunctionRecord, Error> {
    let doing = "storing a function";
    let now = context.clock.now();
    let version = base.next_version();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let locked = projects::lock_shared(&transaction, project, doing).await?;
    if locked.node != context.settings.node {
        // The sources are on this one.
        let text = "The project was moved to another node meanwhile. Deploy the function again";
        return Err(Error::Conflict(text.into()));
    }
    let slug = new.slug.as_str();
    let locked = format!("{BASE} for update of f");
    let found = transaction
        .query_opt(&locked, &[&project.id.0, &slug])
        .await;
    if Publication::read(found.context(doing)?.as_ref()) != *base {
        return Err(conflict());
    }
    if base.id.is_none() {
        insert(&transaction, project.id, &new, now).await?;
    }
    let sql = "delete from function_versions where function_id = $1 and (version >= $2 \
               or ($3 and version < $2 - $4))";
    let replaced: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
        [&new.id, &version, &new.live, &OLDER_VERSIONS_KEPT];
    transaction.execute(sql, &replaced).await.context(doing)?;
    let sql = "insert into function_versions (function_id, version, deployment, name, verify_jwt, \
               entrypoint, import_map, bundle_sha256, copied_from, created_at) \
               values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 10] = [
        &new.id,
        &version,
        &new.deployment,
        &new.name,
        &new.verify_jwt,
        &new.entrypoint,
        &new.import_map,
        &new.bundle_sha256,
        &new.copied_from,
        &now,
    ];
    transaction.execute(sql, &values).await.context(doing)?;
    if new.live {
        let sql = "update functions set live_version = $2, updated_at = $3 where id = $1";
        let switched = transaction.execute(sql, &[&new.id, &version, &now]).await;
        switched.context(doing)?;
    }
    let sql = records!("$3", "and f.id = $2");
    let row = transaction
        .query_one(sql, &[&project.id.0, &new.id, &version])
        .await
        .context(doing)?;
    let record = FunctionRecord::read(&row);
    if let Some((audit, status)) = audit {
        let entry = Some(record.describe());
        audit.result(&record);
        audit
            .write_in(&transaction, status, (None, entry), now)
            .await?;
    }
    transaction.commit().await.context(doing)?;
    announce(context).await?;
    Ok(record)
}

async fn insert(
    transaction: &Transaction<'_>,
    project: ProjectId,
    new: &NewFunctionVersion,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "creating a function";
    let sql = "select count(*) from functions where project_id = $1";
    if db::count(transaction, sql, project.0, doing).await? >= FUNCTIONS_MAX {
        return Err(Error::Rejected(
            "Maximum number of functions reached for Plan".into(),
        ));
    }
    let sql = "insert into functions (id, project_id, slug, created_at, updated_at) \
               values ($1, $2, $3, $4, $4)";
    let inserted = transaction
        .execute(sql, &[&new.id, &project.0, &new.slug.as_str(), &now])
        .await;
    match inserted {
        Err(error) if db::violated(&error) == Some("functions_slug_key") => Err(conflict()),
        other => other.context(doing).map(drop),
    }
}

fn conflict() -> Error {
    Error::Conflict(
        "deployment already exists: another deployment of this function was faster".into(),
    )
}

/// All nodes know the change before the request is answered.
async fn announce(context: &ControlContext) -> Result<(), Error> {
    context.table_changed(Table::Functions);
    notifications::settle(&context.db).await
}

/// A change of the live version's settings.
#[derive(Debug, Default)]
pub struct FunctionChange {
    /// Display name.
    pub name: Option<String>,
    /// Whether requests need a token of the project.
    pub verify_jwt: Option<bool>,
}

/// Changes settings without a new version.
///
/// Errors: [`NO_FUNCTION`].
pub async fn update(
    context: &ControlContext,
    project: &Project,
    slug: &FunctionSlug,
    change: &FunctionChange,
    audit: &Recorder,
) -> Result<FunctionRecord, Error> {
    let doing = "changing a function";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select f.id, f.live_version from functions f where f.project_id = $1 \
               and f.slug = $2 and f.live_version is not null for update";
    let found = transaction
        .query_opt(sql, &[&project.id.0, &slug.as_str()])
        .await;
    let found = found.context(doing)?.ok_or(NO_FUNCTION)?;
    let id: Uuid = found.get(0);
    let before = change_version(&transaction, project.id, (id, found.get(1)), change, now).await?;
    let after = read_in(&transaction, project.id, id).await?;
    let entry = (Some(before.describe()), Some(after.describe()));
    audit.result(&after);
    audit.commit(transaction, doing, 200, entry, now).await?;
    announce(context).await?;
    Ok(after)
}

/// Makes a version live with these settings. Returns the record before.
async fn change_version(
    transaction: &Transaction<'_>,
    project: ProjectId,
    (id, version): (Uuid, i32),
    change: &FunctionChange,
    now: DateTime<Utc>,
) -> Result<FunctionRecord, Error> {
    let doing = "changing a function";
    let sql = records!("$3", "and f.id = $2");
    let before = transaction
        .query_one(sql, &[&project.0, &id, &version])
        .await
        .context(doing)?;
    let sql = "update function_versions set name = coalesce($3, name), \
               verify_jwt = coalesce($4, verify_jwt) where function_id = $1 and version = $2";
    transaction
        .execute(sql, &[&id, &version, &change.name, &change.verify_jwt])
        .await
        .context(doing)?;
    let sql = "update functions set live_version = $2, updated_at = $3 where id = $1";
    let switched = transaction.execute(sql, &[&id, &version, &now]).await;
    switched.context(doing)?;
    Ok(FunctionRecord::read(&before))
}

async fn read_in(
    transaction: &Transaction<'_>,
    project: ProjectId,
    id: Uuid,
) -> Result<FunctionRecord, Error> {
    let sql = records!("f.live_version", "and f.id = $2");
    let row = transaction.query_one(sql, &[&project.0, &id]).await;
    Ok(FunctionRecord::read(&row.context("reading a function")?))
}

/// A version to make live.
#[derive(Debug)]
pub struct VersionSwitch {
    /// The function.
    pub slug: FunctionSlug,
    /// The number of the version.
    pub version: i32,
    /// Changed settings.
    pub change: FunctionChange,
}

/// Makes stored versions live, all or none.
///
/// Errors: a function or a version does not exist.
pub async fn switch(
    context: &ControlContext,
    project: &Project,
    switches: &[VersionSwitch],
    audit: &Recorder,
) -> Result<Vec<FunctionRecord>, Error> {
    let doing = "switching functions";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // In one order, so that concurrent requests do not wait for each other in a circle.
    let sql = "select id, slug from functions where project_id = $1 and slug = any($2) \
               order by id for update";
    let slugs: Vec<&str> = switches.iter().map(|one| one.slug.as_str()).collect();
    let rows = transaction.query(sql, &[&project.id.0, &slugs]).await;
    let rows = rows.context(doing)?;
    let mut after = Vec::with_capacity(switches.len());
    for one in switches {
        let row = rows
            .iter()
            .find(|row| row.get::<_, &str>(1) == one.slug.as_str());
        let id: Option<Uuid> = row.map(|row| row.get(0));
        let sql = "select from function_versions where function_id = $1 and version = $2";
        let found = transaction.query_opt(sql, &[&id, &one.version]).await;
        let (Some(id), true) = (id, found.context(doing)?.is_some()) else {
            let text = format!(
                "Version {} of function {} does not exist",
                one.version, one.slug
            );
            return Err(Error::Rejected(text.into()));
        };
        let place = (id, one.version);
        change_version(&transaction, project.id, place, &one.change, now).await?;
        let sql = "delete from function_versions where function_id = $1 and version < $2::int4 - $3::int4";
        transaction
            .execute(sql, &[&id, &one.version, &OLDER_VERSIONS_KEPT])
            .await
            .context(doing)?;
        after.push(read_in(&transaction, project.id, id).await?);
    }
    let entry = after.iter().map(FunctionRecord::describe).collect();
    let change = (None, Some(entry));
    audit.result(&after);
    audit.commit(transaction, doing, 200, change, now).await?;
    announce(context).await?;
    Ok(after)
}

/// Deletes a function with its versions. Its files are removed later.
///
/// Errors: [`NO_FUNCTION`].
pub async fn remove(
    context: &ControlContext,
    project: &Project,
    slug: &FunctionSlug,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "deleting a function";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql =
        "delete from functions where project_id = $1 and slug = $2 returning id, live_version";
    let row = transaction
        .query_opt(sql, &[&project.id.0, &slug.as_str()])
        .await;
    let row = row.context(doing)?.ok_or(NO_FUNCTION)?;
    let version: Option<i32> = row.get(1);
    let before = json!({"id": row.get::<_, Uuid>(0), "slug": slug.as_str(), "version": version});
    let change = (Some(before), None);
    audit.commit(transaction, doing, 200, change, now).await?;
    announce(context).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_letters_digits_underscores_and_hyphens() {
        for (text, valid, deployable) in [
            ("hello", true, true),
            ("Hello_World-2", true, true),
            ("2fa", true, false),
            ("-x", true, false),
            ("", false, false),
            ("a/b", false, false),
            ("a.b", false, false),
            ("ä", false, false),
            ("a b", false, false),
        ] {
            let slug: Result<FunctionSlug, _> = text.parse();
            assert_eq!(slug.is_ok(), valid, "{text}");
            let begins = slug.is_ok_and(|slug| slug.begins_with_letter());
            assert_eq!(begins, deployable, "{text}");
        }
        assert!("x".repeat(129).parse::<FunctionSlug>().is_err());
    }
}
