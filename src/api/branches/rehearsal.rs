//! Rehearsals of migrations before a merge or a push applies them (decision 0125).

use gantry_node::{
    clusters::{ResourceLimits, ScratchCopy, copy_needs},
    error::ClusterError,
};
use tokio::time::Instant;

use super::runs::{self, OpenRun};
use crate::{
    api::{
        context::ApiContext,
        database::migrations::{
            MigrationLimits, NewMigration,
            replay::{self, ReplayFailure, ReplayRehearsal},
        },
    },
    control::{database_session::session::ConnectTarget, projects::target},
    platform::{
        access::Project,
        error::{Context, Error},
    },
};

/// Size of the largest project that is copied where copies share no blocks, in bytes.
const COPY_BYTES_MAX: u64 = 2 << 30;
/// Size of the largest copied project where copies share blocks, in bytes.
const SHARED_BYTES_MAX: u64 = 1 << 40;
/// Most files that are counted.
const INODES_MAX: u64 = 1_000_000;

/// Tries migrations that are to be applied to a project. The inner error is that of the customer's
/// SQL; then the project is unchanged.
///
/// They run in a copy of the project, which is removed afterwards. Where no copy can be made, they
/// run in a transaction of the project that is rolled back.
pub(super) async fn rehearse(
    context: &ApiContext,
    run: &OpenRun,
    project: &Project,
    migrations: &[NewMigration],
) -> Result<Result<(), String>, Error> {
    if migrations.is_empty() {
        return Ok(Ok(()));
    }
    match copy(context, run, project).await? {
        Ok(scratch) => in_copy(context, run, scratch, migrations).await,
        Err(reason) => {
            let line = format!("rehearsed without a copy: {reason}");
            runs::log_once(context, &run.id, &line).await?;
            in_transaction(context, run, project, migrations).await
        }
    }
}

/// Copies a project for a rehearsal. The inner error is the reason why there is no copy.
async fn copy(
    context: &ApiContext,
    run: &OpenRun,
    project: &Project,
) -> Result<Result<ScratchCopy, String>, Error> {
    // Starts a server that sleeps.
    target(context, project).await?;
    if let Some(reason) = obstacle(context, project).await? {
        return Ok(Err(reason));
    }
    runs::log_once(context, &run.id, "copying the database for the rehearsal").await?;
    let limits = context.driver.resource_limits();
    let bytes_max = limits.map_or(SHARED_BYTES_MAX, ResourceLimits::disk_stop_bytes);
    let copied = context.driver.scratch_copy(&project.reference, bytes_max);
    match copied.await {
        Ok(scratch) => Ok(Ok(scratch)),
        Err(ClusterError::ShuttingDown) => {
            Err(ClusterError::ShuttingDown).context("copying a cluster")
        }
        Err(error) => {
            tracing::info!(project = %project.reference, %error, "no copy for a rehearsal");
            Ok(Err(error.to_string()))
        }
    }
}

/// Returns why a project cannot be copied for a rehearsal, if so.
async fn obstacle(context: &ApiContext, project: &Project) -> Result<Option<String>, Error> {
    let doing = "measuring disk space";
    let driver = &context.driver;
    if !driver.denies_network() {
        // Its migrations could reach other systems twice.
        return Ok(Some("servers can connect to other systems".to_owned()));
    }
    let usage = match driver.disk_usage(&project.reference, INODES_MAX).await {
        Err(ClusterError::Missing(_) | ClusterError::Unsupported(_)) => {
            return Ok(Some("copies are not supported".to_owned()));
        }
        usage => usage.context(doing)?,
    };
    let shares = driver.shares_blocks().await.context(doing)?;
    if !shares && usage.bytes > COPY_BYTES_MAX {
        let (size, limit) = (usage.bytes >> 20, COPY_BYTES_MAX >> 20);
        let text = format!("it has {size} MB, and the file system copies at most {limit} MB");
        return Ok(Some(text));
    }
    let needed = copy_needs(usage.bytes, shares);
    let free = driver.free_space().map_or(u64::MAX, |(free, _)| free);
    Ok((needed > free).then(|| {
        let (needed, free) = (needed >> 20, free >> 20);
        format!("a copy needs {needed} MB, and {free} MB are free")
    }))
}

/// Applies migrations to a copy, and removes it.
async fn in_copy(
    context: &ApiContext,
    run: &OpenRun,
    scratch: ScratchCopy,
    migrations: &[NewMigration],
) -> Result<Result<(), String>, Error> {
    let line = format!("trying {} migrations on the copy", migrations.len());
    runs::log_once(context, &run.id, &line).await?;
    let database = ConnectTarget::new(scratch.socket());
    let limits = MigrationLimits::default();
    let begun = Instant::now();
    let tried = replay::replay(&database, &context.clock, migrations, limits).await;
    let took = begun.elapsed().as_millis();
    // One that cannot be removed now is removed at the next start.
    if let Err(error) = scratch.discard().await {
        tracing::warn!(run = run.id, %error, "copy of a rehearsal could not be removed");
    }
    if let Err(failure) = tried {
        return sql_failure(failure).map(Err);
    }
    let count = migrations.len();
    let line = format!(
        "rehearsed on a copy, which was removed ({count} of {count} migrations, {took} ms)"
    );
    runs::log(context, &run.id, &line).await?;
    Ok(Ok(()))
}

/// Runs migrations in a transaction of the project that is rolled back, unless they are applied in
/// one.
async fn in_transaction(
    context: &ApiContext,
    run: &OpenRun,
    project: &Project,
    migrations: &[NewMigration],
) -> Result<Result<(), String>, Error> {
    let database = target(context, project).await?;
    let limits = MigrationLimits::default();
    let line = match replay::rehearse(&database, &context.clock, migrations, limits).await {
        Err(failure) => return sql_failure(failure).map(Err),
        Ok(ReplayRehearsal::AtOnce) => {
            "all migrations run in one transaction, which a failure undoes".to_owned()
        }
        Ok(ReplayRehearsal::Rehearsed {
            statements,
            untried_from,
        }) => {
            let rest = untried_from.map_or_else(String::new, |version| {
                format!("; not tried from {version} on, which cannot run in a transaction")
            });
            format!("rehearsed and rolled back: {statements} statements{rest}")
        }
    };
    runs::log(context, &run.id, &line).await?;
    Ok(Ok(()))
}

/// Returns the text of a failure of the customer's SQL, or another error as it is.
pub(super) fn sql_failure(failure: ReplayFailure) -> Result<String, Error> {
    match &failure.error {
        Error::Sql(_) | Error::Invalid { .. } | Error::Rejected(_) | Error::TimedOut(_) => {
            let version = failure.version.as_deref().unwrap_or("history");
            Ok(format!("{version}: {}", failure.error.message()))
        }
        _ => Err(failure.error),
    }
}
