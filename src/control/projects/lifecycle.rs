//! Commands to an existing project: pause, restore, restart, new password. Each is recorded
//! together with its audit entry, and the reconciler executes it, also after a crash.

use gantry_node::engines::Engine;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::json;

use super::{Command, SETTLE_WAIT, Status, lock, removed, request, status_events};
use crate::{
    control::context::ControlContext,
    platform::{
        access::Project,
        audit::{Change, Recorder},
        error::{Context, Error},
        events::{
            EventPayload, NewEvent,
            payloads::{PauseReason, ProjectPaused, ProjectRestarted, ProjectRestored},
        },
        tables::Table,
    },
};

/// Records a command if the project's state permits it, and wakes the reconciler.
pub async fn command(
    context: &ControlContext,
    project: &Project,
    command: Command,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "changing a project's state";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = lock(&transaction, project, doing).await?;
    let before = before.status;
    let after = command
        .begin(before)
        .map_err(|refusal| Error::Rejected(refusal.into()))?;
    let sql = "update projects set desired = $2, status = $3, generation = generation + 1, attempts = 0, falls = 0, last_error = null, \
               not_before = $4, updated_at = $4 where id = $1";
    transaction
        .execute(sql, &[&project.id.0, &after.desired(), &after.name(), &now])
        .await
        .context(doing)?;
    let states = (
        Some(json!({"status": before})),
        Some(json!({"status": after})),
    );
    let mut events = vec![event(command, project)];
    events.extend(status_events::changed(&transaction, &[project.id]).await?);
    let change = Change::new(states, events);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(())
}

/// Returns the event of a command.
fn event(command: Command, project: &Project) -> NewEvent {
    match command {
        Command::Pause | Command::CancelRestore => {
            let reason = PauseReason::ApiRequest;
            ProjectPaused { reason }.about(project)
        }
        Command::Restore => ProjectRestored {}.about(project),
        Command::Restart => ProjectRestarted {}.about(project),
    }
}

/// The versions that a paused project can be restored with.
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

/// Returns the versions that a paused project can be restored with: the installed version of its
/// major version.
pub async fn restore_versions(
    context: &ControlContext,
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
    Ok(RestoreVersions {
        available_versions: engine
            .map(|engine: &Engine| RestoreVersion {
                version: engine.text().to_owned(),
                release_channel: engine.channel().to_owned(),
                postgres_engine: engine.major().to_string(),
            })
            .into_iter()
            .collect(),
    })
}

/// Changes the password of the role `postgres`, and returns when the server has it.
pub async fn set_password(
    context: &ControlContext,
    project: &Project,
    password: SecretString,
    audit: &Recorder,
) -> Result<(), Error> {
    let mut changes = context.reconciler.changes();
    let verifier = request::verifier(password).await?;
    let generation = record_password(context, project, &verifier, audit).await?;
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

/// Records the verifier of a new password, and returns the generation of the desired state.
async fn record_password(
    context: &ControlContext,
    project: &Project,
    verifier: &str,
    audit: &Recorder,
) -> Result<i64, Error> {
    let doing = "changing a password";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let locked = lock(&transaction, project, doing).await?;
    if locked.status != Status::ActiveHealthy {
        return Err(Error::Rejected(
            "Cannot reset password for non-active projects".into(),
        ));
    }
    let sql = "update projects set password_verifier = $2, generation = generation + 1, attempts = 0, not_before = $3, updated_at = $3 \
               where id = $1 returning generation";
    let row = transaction
        .query_one(sql, &[&project.id.0, &verifier, &now])
        .await
        .context(doing)?;
    // The generated password of a branch is no longer valid.
    let sql = "update branches set sealed_password = null where project_id = $1";
    let forgotten = transaction.execute(sql, &[&project.id.0]).await;
    forgotten.context(doing)?;
    let change = (None, None);
    audit.commit(transaction, doing, 200, change, now).await?;
    context.reconciler.wake();
    Ok(row.get(0))
}
