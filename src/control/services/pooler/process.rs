//! The configuration of a pooler's process.

use std::sync::Arc;

use gantry_base::ids::ProjectRef;
use gantry_node::supervisor::ProcessOwner;
use secrecy::{ExposeSecret, SecretString};

use super::{
    admin,
    config::{PoolerConfig, config},
    identity::{CONFIG, ROLE, USERS},
};
use crate::{
    control::{
        context::ControlContext,
        projects::request::verifier,
        services::{
            folder::InstanceFolder,
            instance::{Instance, RunningInstance},
            instance_id::InstanceId,
            start_failure::StartFailure,
            stop,
        },
    },
    platform::{error::Error, random_secret::random_secret},
    proxy::unavailable::UnavailableReason,
};

/// Writes the configuration of a new process, and gives its login role a new password.
pub(in crate::control::services) async fn prepare(
    context: &ControlContext,
    id: &InstanceId,
    folder: &InstanceFolder,
    owner: ProcessOwner,
    config: &PoolerConfig,
) -> Result<(), StartFailure> {
    let password = random_secret(&context.entropy);
    let failed = |error: &dyn std::fmt::Display| {
        StartFailure::new(UnavailableReason::Failed, error.to_string())
    };
    let verifier = verifier(password.clone())
        .await
        .map_err(|error| failed(&error))?;
    context
        .driver
        .set_password(&id.reference, ROLE, &verifier)
        .await
        .map_err(|error| StartFailure::new(UnavailableReason::DatabaseRefuses, error))?;
    // The password has no character that is quoted.
    let users = SecretString::from(format!("\"{ROLE}\" \"{}\"\n", password.expose_secret()));
    let text = file(context, &id.reference, folder, config);
    folder
        .write(USERS, users.expose_secret(), owner)
        .and_then(|()| folder.write(CONFIG, &text, owner))
        .map_err(|error| failed(&format!("writing the configuration: {error}")))
}

fn file(
    context: &ControlContext,
    reference: &ProjectRef,
    folder: &InstanceFolder,
    config: &PoolerConfig,
) -> String {
    let server = context.driver.socket(reference);
    let server = server.path().parent().unwrap_or(server.path());
    config.file(server, &folder.inner())
}

/// Returns whether a process answers its console.
pub(in crate::control::services) async fn is_ready(running: &RunningInstance) -> bool {
    admin::command(running, "SHOW VERSION").await.is_ok()
}

/// Brings a running process to the stored settings. If it does not take them, it is stopped, and
/// the next connection starts one that has them.
pub(in crate::control::services) async fn refresh(
    context: &ControlContext,
    instance: &Arc<Instance>,
) -> Result<(), Error> {
    let Some(running) = instance.running() else {
        return Ok(());
    };
    let _one = running.loading.lock().await;
    let config = config(context, running.id.project).await?;
    let text = file(context, &running.id.reference, &running.folder, &config);
    let loaded = async {
        running.folder.write(CONFIG, &text, running.owner)?;
        admin::command(&running, "RELOAD").await?;
        let Some(recorded) = running.folder.recorded() else {
            return Ok(());
        };
        running.folder.record(&config.started(&recorded.version))
    };
    match loaded.await {
        Ok(()) => running.settings.lock().generation = config.generation,
        Err(error) => {
            let project = &running.id.reference;
            tracing::warn!(%project, %error, "the pooler did not take its settings; it is stopped");
            stop::stop(context, instance).await;
        }
    }
    Ok(())
}
