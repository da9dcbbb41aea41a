//! Pauses of a pooler while its server is restarted, upgraded or restored: its clients wait instead
//! of failing (decision 0168).

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::join_all;
use gantry_base::ids::{ProjectId, ProjectRef};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    admin,
    identity::{ROLE, instance_id},
    process::refresh,
    retired::RetiredPooler,
};
use crate::control::{
    context::ControlContext,
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

/// The paused poolers of a project. Their clients go on when this is dropped, at the latest after
/// [`PAUSE_MAX`].
#[derive(Debug)]
pub(in crate::control) struct PausedPooler {
    _resume: DropGuard,
}

/// Pauses the pooler of a project, if one runs, and the one that it has replaced. Returns when no
/// transaction is in progress, or after [`DRAIN_MAX`].
pub(in crate::control) async fn pause(
    context: &ControlContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Option<PausedPooler> {
    let instance = context.services.instance(&instance_id(project, reference));
    let retired = instance
        .retired
        .lock()
        .as_ref()
        .and_then(RetiredPooler::process);
    let poolers: Vec<_> = instance.running().into_iter().chain(retired).collect();
    if poolers.is_empty() {
        return None;
    }
    let until = Instant::now() + PAUSE_MAX;
    let resume = CancellationToken::new();
    let paused = poolers.into_iter().map(|pooler| {
        let (paused, is_paused) = oneshot::channel::<()>();
        let (context, instance, ended) = (context.clone(), Arc::clone(&instance), resume.clone());
        tokio::spawn(async move {
            // A pause of another change may not have ended yet.
            let Ok(_one) = timeout_at(until, pooler.pausing.lock()).await else {
                return;
            };
            let pausing = async {
                suspend(&pooler).await;
                drop(paused);
                pending::<()>().await;
            };
            let _ = timeout_at(until, ended.run_until_cancelled(pausing)).await;
            resume_clients(&context, &instance, &pooler).await;
        });
        is_paused
    });
    let _ = timeout(DRAIN_MAX, join_all(paused)).await;
    Some(PausedPooler {
        _resume: resume.drop_guard(),
    })
}

/// Pauses a pooler. Returns when no transaction is in progress.
async fn suspend(running: &RunningInstance) {
    finish_logins(running).await;
    if let Err(error) = admin::command_within(running, "PAUSE", PAUSE_MAX).await {
        let project = &running.id.reference;
        tracing::debug!(%project, %error, "the pooler did not pause");
    }
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
    if let Ok(Err(error)) = timeout(LOGINS_MAX, finished).await {
        let project = &running.id.reference;
        tracing::debug!(%project, %error, "the logins of the pooler are unknown");
    }
}

/// Lets the clients of a pooler go on. If it was not replaced, it gets the settings of the project,
/// and its role gets its password again, which a restored server does not have.
async fn resume_clients(
    context: &ControlContext,
    instance: &Arc<Instance>,
    running: &Arc<RunningInstance>,
) {
    let current = instance.running();
    if current.is_some_and(|current| Arc::ptr_eq(&current, running)) {
        restore_login(context, running).await;
        if let Err(error) = refresh(context, instance).await {
            let project = &running.id.reference;
            tracing::debug!(%project, %error, "the settings of the pooler could not be read");
        }
    }
    end_pause(running).await;
}

/// Gives the role of a pooler its password.
async fn restore_login(context: &ControlContext, running: &RunningInstance) {
    let project = &running.id.reference;
    if let Some(password) = admin::own_password(running)
        && let Ok(verifier) = projects::verifier(password).await
        && let Err(error) = context.driver.set_password(project, ROLE, &verifier).await
    {
        tracing::debug!(%project, %error, "the role of the pooler got no password");
    }
}

/// Ends a pause, if there is one: loads the settings in the folder of the process, and lets its
/// clients go on. A process that a killed Gantry has paused needs this, too.
pub(in crate::control::services) async fn end_pause(running: &RunningInstance) {
    for command in ["RELOAD", "RESUME"] {
        if let Err(error) = admin::command(running, command).await {
            let project = &running.id.reference;
            tracing::debug!(%project, %error, command, "the pause of the pooler did not end");
        }
    }
}
