//! What is asked of a project that exists: pause, restore, restart, another password. Each is written down with its entry
//! in the audit log, and the reconciler carries it out; so whatever is killed in between, it is done in the end.

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::json;

use super::{Command, SETTLE_WAIT, Status, removed, request};
use crate::{
    base::error::{Context, Error},
    data_plane::{clusters::Engine, context::DataPlaneContext},
    platform::{access::Project, audit::Recorder, tables::Table},
};

/// Writes down what is wanted from now on, if the project's state allows it, and wakes the reconciler.
pub async fn command(
    context: &DataPlaneContext,
    project: &Project,
    command: Command,
    audit: &Recorder,
) -> Result<(), Error> {
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("changing a project's state")?;
    let sql = "select status from projects where id = $1 and desired <> 'removed' for update";
    let row = transaction
        .query_opt(sql, &[&project.id.0])
        .await
        .context("changing a project's state")?
        .ok_or_else(removed)?;
    let before = Status::read(&row, 0)?;
    let after = command
        .begin(before)
        .map_err(|refusal| Error::Rejected(refusal.into()))?;
    let sql = "update projects set desired = $2, status = $3, generation = generation + 1, attempts = 0, falls = 0, last_error = null, \
               not_before = $4, updated_at = $4 where id = $1";
    transaction
        .execute(sql, &[&project.id.0, &after.desired(), &after.name(), &now])
        .await
        .context("changing a project's state")?;
    audit
        .write_in(
            &transaction,
            200,
            (
                Some(json!({"status": before})),
                Some(json!({"status": after})),
            ),
            now,
        )
        .await?;
    transaction
        .commit()
        .await
        .context("changing a project's state")?;
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(())
}

/// What a paused project can be restored with.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GetProjectAvailableRestoreVersionsResponse")]
pub struct RestoreVersions {
    available_versions: Vec<RestoreVersion>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RestoreVersion {
    version: String,
    release_channel: String,
    postgres_engine: String,
}

/// What a paused project can be restored with: what is installed, if its data was made by the same major version.
pub async fn restore_versions(
    context: &DataPlaneContext,
    project: &Project,
) -> Result<RestoreVersions, Error> {
    let sql = "select status, engine from projects where id = $1 and desired <> 'removed'";
    let rows = context
        .db
        .query(sql, &[&project.id.0])
        .await
        .context("reading a project")?;
    let row = rows.first().ok_or_else(removed)?;
    if !Status::read(row, 0)?.is_paused() {
        return Err(Error::Rejected(
            "This project is not in a paused state.".into(),
        ));
    }
    let engine =
        super::major(row.get(1)).and_then(|major| context.driver.engines().of_major(major));
    let version = |engine: &Engine| RestoreVersion {
        version: engine.text().to_owned(),
        release_channel: engine.channel().to_owned(),
        postgres_engine: engine.major().to_string(),
    };
    Ok(RestoreVersions {
        available_versions: engine.map(version).into_iter().collect(),
    })
}

/// Gives the customer's role another password, and returns when the server knows it.
pub async fn set_password(
    context: &DataPlaneContext,
    project: &Project,
    password: SecretString,
    audit: &Recorder,
) -> Result<(), Error> {
    let mut changes = context.reconciler.changes();
    let verifier = request::verifier(password).await?;
    let generation = want_password(context, project, &verifier, audit).await?;
    let known = async {
        let sql = "select 1 from projects where id = $1 and generation = $2 and password_verifier is not null";
        while !context
            .db
            .query(sql, &[&project.id.0, &generation])
            .await
            .context("reading a project")?
            .is_empty()
        {
            changes.changed().await.context("waiting for a password")?;
        }
        Ok(())
    };
    tokio::time::timeout(SETTLE_WAIT, known)
        .await
        .unwrap_or(Err(Error::DatabaseUnreachable))
}

/// Writes the password's verifier down until it is set, and returns the number of the wish.
async fn want_password(
    context: &DataPlaneContext,
    project: &Project,
    verifier: &str,
    audit: &Recorder,
) -> Result<i64, Error> {
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("changing a password")?;
    let sql = "select status from projects where id = $1 and desired <> 'removed' for update";
    let row = transaction
        .query_opt(sql, &[&project.id.0])
        .await
        .context("changing a password")?
        .ok_or_else(removed)?;
    if Status::read(&row, 0)? != Status::ActiveHealthy {
        return Err(Error::Rejected(
            "Cannot reset password for non-active projects".into(),
        ));
    }
    let sql = "update projects set password_verifier = $2, generation = generation + 1, attempts = 0, not_before = $3, updated_at = $3 \
               where id = $1 returning generation";
    let row = transaction
        .query_one(sql, &[&project.id.0, &verifier, &now])
        .await
        .context("changing a password")?;
    audit.write_in(&transaction, 200, (None, None), now).await?;
    transaction.commit().await.context("changing a password")?;
    context.reconciler.wake();
    Ok(row.get(0))
}
