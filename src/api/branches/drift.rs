//! Differences between schemas that no migration has: of a parent from its own history when a
//! branch is made of it, and of a branch from its history when it is merged.

use chrono::{DateTime, TimeDelta, Utc};

use super::{
    branch_row::BranchRow,
    ledger::{LedgerEntry, read_ledger},
    runs::{self, OpenRun},
    unapplied_drift,
};
use crate::{
    api::{
        context::ApiContext,
        database::migrations::{self, MigrationLimits, NewMigration},
    },
    control::{
        database_session::segments::{MigrationPlan, SegmentCuts},
        projects::target,
        services::schema_diff::{self, SchemaPair},
    },
    platform::{
        access::Project,
        error::{Context, Error},
    },
};

/// Name of the migration that makes the whole schema of a parent.
const REMOTE_SCHEMA: &str = "remote_schema";
/// Name of the migration that makes what a parent's schema has beyond its migrations.
const REMOTE_SCHEMA_DRIFT: &str = "remote_schema_drift";
/// Remedy of a difference that cannot be computed or applied.
const COPY_INSTEAD: &str =
    "the difference cannot be applied; set schema_source to parent and reset the branch to copy it";

/// Removes the migrations that were computed for the branch, which are never applied elsewhere.
pub(super) fn without(branch: &BranchRow, mut ledger: Vec<LedgerEntry>) -> Vec<LedgerEntry> {
    ledger.retain(|entry| !branch.drift.contains(&entry.version));
    ledger
}

/// Gives a parent without migrations one that makes its whole schema, named `remote_schema`: it is
/// recorded in the parent, and then applied to the empty branch like any other.
///
/// Without the kit that compares schemas, [`apply`] tells what is missing.
pub(super) async fn pull_schema(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<(), Error> {
    if !schema_diff::is_installed(context).await {
        return Ok(());
    }
    let found = compare(context, run, branch, (&branch.project, &branch.origin)).await?;
    let Some(sql) = found.filter(|sql| !sql.is_empty()) else {
        return Ok(());
    };
    let migration = NewMigration {
        query: sql,
        name: Some(REMOTE_SCHEMA.to_owned()),
        ..NewMigration::default()
    };
    let origin = target(context, &branch.origin).await?;
    let limits = MigrationLimits::default();
    let made = migrations::record(&origin, &context.clock, &migration, limits).await?;
    let line = format!(
        "the parent had no migrations; its schema is now migration {} {REMOTE_SCHEMA}",
        made.version
    );
    runs::log(context, &run.id, &line).await
}

/// Applies to a new branch what the schema of its origin has beyond the migrations, as a migration
/// of the branch alone. Its version is stored first, so that no merge can apply it, even if this is
/// interrupted.
///
/// A difference that cannot be computed or applied is recorded as the branch's `unapplied_drift`.
pub(super) async fn apply(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<(), Error> {
    if !schema_diff::is_installed(context).await {
        let missing = schema_diff::NOT_INSTALLED;
        let message = format!("{missing}; a reset of the branch then adds them");
        return unapplied_drift::record(context, run, branch, &message).await;
    }
    let found = compare(context, run, branch, (&branch.project, &branch.origin)).await?;
    let Some(sql) = found else {
        return unapplied_drift::record(context, run, branch, COPY_INSTEAD).await;
    };
    if sql.is_empty() {
        return Ok(());
    }
    let version = drift_version(context.clock.now());
    let statement = "update branches set drift = array_append(drift, $2) where id = $1";
    let stored = context.db.query(statement, &[&branch.id, &version]).await;
    stored.context("writing a branch")?;
    let count = statements(&sql);
    let migration = NewMigration {
        query: sql,
        name: Some(REMOTE_SCHEMA_DRIFT.to_owned()),
        version: Some(version.clone()),
        ..NewMigration::default()
    };
    let database = target(context, &branch.project).await?;
    let limits = MigrationLimits::default();
    let applied = migrations::apply(&database, &context.clock, &migration, limits).await;
    match applied {
        Ok(_) => {
            let line = format!(
                "pull: the parent's schema differs from its migrations by {count} statements, applied as {version} {REMOTE_SCHEMA_DRIFT}"
            );
            runs::log(context, &run.id, &line).await
        }
        Err(error @ (Error::Sql(_) | Error::Invalid { .. } | Error::Rejected(_))) => {
            let line = format!(
                "pull: the parent's schema differs from its migrations by {count} statements, which fail: {}",
                error.message()
            );
            runs::log(context, &run.id, &line).await?;
            unapplied_drift::record(context, run, branch, COPY_INSTEAD).await
        }
        Err(error) => Err(error),
    }
}

/// Returns a version of 15 digits, one more than those of other migrations, so that it is never the
/// version of one, and older than any migration from now on.
fn drift_version(now: DateTime<Utc>) -> String {
    let before = now - TimeDelta::seconds(1);
    format!("{}0", before.format("%Y%m%d%H%M%S"))
}

/// Logs how many statements separate a parent from a branch that was merged into it: changes that
/// were made by other SQL than migrations, on either side.
pub(super) async fn log_unrecorded(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<(), Error> {
    if !schema_diff::is_installed(context).await {
        return Ok(());
    }
    let parent = without(branch, read_ledger(context, &branch.parent).await?);
    let own = without(branch, read_ledger(context, &branch.project).await?);
    if !parent
        .iter()
        .all(|theirs| own.iter().any(|entry| entry.version == theirs.version))
    {
        let line = "unrecorded_changes: unknown, because the branch lacks migrations of the parent; push it first";
        return runs::log_once(context, &run.id, line).await;
    }
    let Some(sql) = compare(context, run, branch, (&branch.parent, &branch.project)).await? else {
        return Ok(());
    };
    let count = statements(&sql);
    let mut line = format!("unrecorded_changes: {count}");
    if count > 0 {
        line.push_str("; they are in the diff of the branch, and are not merged");
    }
    runs::log_once(context, &run.id, &line).await
}

/// Returns the SQL from one schema to another, or `None` if they cannot be compared, which the log
/// says.
async fn compare(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
    (source, desired): (&Project, &Project),
) -> Result<Option<String>, Error> {
    let pair = SchemaPair {
        project: branch.project.reference.clone(),
        source: target(context, source).await?,
        desired: target(context, desired).await?,
        schemas: None,
    };
    match schema_diff::compare(context, &pair).await {
        Ok(sql) => Ok(Some(sql)),
        Err(error @ (Error::Rejected(_) | Error::TimedOut(_) | Error::NotBuilt(_))) => {
            let line = format!("the schemas are not compared: {}", error.message());
            runs::log_once(context, &run.id, &line).await.map(|()| None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the number of statements of a comparison.
fn statements(sql: &str) -> usize {
    let plan = MigrationPlan::parse(sql, &SegmentCuts::default());
    plan.map_or(0, |plan| plan.statements().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_version_is_older_than_a_migration_of_the_same_second() {
        let now: DateTime<Utc> = "2026-03-01T00:00:00Z".parse().unwrap();
        let version = drift_version(now);
        assert_eq!(version, "202602282359590");
        assert!(version.as_str() < "20260301000000");
        assert!(version.as_str() > "20260228235959");
    }
}
