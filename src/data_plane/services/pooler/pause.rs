//! Pauses of a pooler while its server is restarted, upgraded or restored: its clients wait instead
//! of failing (decision 0168).

use std::{sync::Arc, time::Duration};

use gantry_base::ids::{ProjectId, ProjectRef};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{ROLE, admin, instance_id, refresh};
use crate::data_plane::{
    context::DataPlaneContext,
    projects,
    services::instance::{Instance, RunningInstance},
};

/// Longest time that the clients of a pooler wait for the server.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest time that transactions in progress get to finish before the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Longest time that logins at the server get to finish before the pause.
const LOGINS_MAX: Duration = Duration::from_secs(1);
/// Interval between looks at the logins.
const LOGINS_POLL: Duration = Duration::from_millis(5);

/// A paused pooler. Its clients go on when this is dropped, at the latest after [`PAUSE_MAX`].
#[derive(Debug)]
pub(in crate::data_plane) struct PausedPooler {
    _resume: DropGuard,
}

/// Pauses the pooler of a project, if one runs. Returns when no transaction is in progress, or
/// after [`DRAIN_MAX`].
pub(in crate::data_plane) async fn pause(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Option<PausedPooler> {
    let instance = context.services.instance(&instance_id(project, reference));
    let running = instance.running()?;
    let until = Instant::now() + PAUSE_MAX;
    let resume = CancellationToken::new();
    let (paused, is_paused) = tokio::sync::oneshot::channel::<()>();
    let (context, ended) = (context.clone(), resume.clone());
    tokio::spawn(async move {
        // A pause of another change may not have ended yet.
        let Ok(_one) = timeout_at(until, running.pausing.lock()).await else {
            return;
        };
        let pausing = async {
            finish_logins(&running).await;
            // The console answers when no transaction is in progress.
            let outcome = admin::command_within(&running, "PAUSE", PAUSE_MAX).await;
            if let Err(error) = outcome {
                let project = &running.id.reference;
                tracing::debug!(%project, %error, "the pooler did not pause");
            }
            drop(paused);
            ended.cancelled().await;
        };
        let _ = timeout_at(until, pausing_or(pausing, &ended)).await;
        resume_clients(&context, &instance, &running).await;
    });
    let _ = tokio::time::timeout(DRAIN_MAX, is_paused).await;
    Some(PausedPooler {
        _resume: resume.drop_guard(),
    })
}

/// Lets the pooler open no further server connections, and waits until none is logging in. A pause
/// ends such a login, and the pooler would report that as a failure to all waiting clients when it
/// resumes. The settings of the project are loaded again at the end of the pause.
async fn finish_logins(running: &RunningInstance) {
    let finished = async {
        admin::command(running, "SET default_pool_size = 1").await?;
        while admin::logins(running).await? > 0.0 {
            sleep(LOGINS_POLL).await;
        }
        Ok::<_, std::io::Error>(())
    };
    if let Ok(Err(error)) = tokio::time::timeout(LOGINS_MAX, finished).await {
        let project = &running.id.reference;
        tracing::debug!(%project, %error, "the logins of the pooler are unknown");
    }
}

/// Resolves when `pausing` does, or with the end of the pause.
async fn pausing_or(pausing: impl Future<Output = ()>, ended: &CancellationToken) {
    tokio::select! {
        () = pausing => {}
        () = ended.cancelled() => {}
    }
}

/// Lets the clients of a pooler go on, with the settings of the project. The role of the pooler
/// gets its password again, which a restored server does not have.
async fn resume_clients(
    context: &DataPlaneContext,
    instance: &Arc<Instance>,
    running: &RunningInstance,
) {
    let project = &running.id.reference;
    if let Some(password) = admin::own_password(running)
        && let Ok(verifier) = projects::verifier(password).await
        && let Err(error) = context.driver.set_password(project, ROLE, &verifier).await
    {
        tracing::debug!(%project, %error, "the role of the pooler got no password");
    }
    if let Err(error) = refresh(context, instance).await {
        tracing::debug!(%project, %error, "the settings of the pooler could not be read");
    }
    end_pause(running).await;
}

/// Ends a pause, if there is one: loads the settings in the folder of the process, and lets its
/// clients go on. A process that a killed Gantry has paused needs this, too.
pub(in crate::data_plane::services) async fn end_pause(running: &RunningInstance) {
    for command in ["RELOAD", "RESUME"] {
        if let Err(error) = admin::command(running, command).await {
            let project = &running.id.reference;
            tracing::debug!(%project, %error, command, "the pause of the pooler did not end");
        }
    }
}
