//! The connection pooler: `PgBouncer` behind the PostgreSQL proxy, one process for a project.
//!
//! - `config` has the settings in effect, and the configuration file.
//! - `admin` sends commands of its console.
//! - `install` installs the kit from packages of Debian.
//! - `pause` lets clients wait while the server is away.
//! - `take_over` replaces a process by one of another version.
//!
//! Clients log in by SCRAM with the verifiers of the database, which the function
//! `pgbouncer.get_auth` returns to the pooler's role alone; the pooler logs in to the server with
//! the keys of the client's login. The password of its own role is new with each start, and only
//! its folder has it (decision 0166).

mod admin;
mod config;
mod pause;
mod take_over;

use std::{sync::Arc, time::Duration};

use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::{clusters::ServerSocket, kits::Service, supervisor::ProcessOwner};
use rustix::process::Signal;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

pub(super) use self::pause::end_pause;
pub(in crate::data_plane) use self::pause::pause;
pub(super) use self::take_over::{RetiredPooler, SECOND, end_retired, free_folder, take_over};
pub use self::{
    admin::{ConfigValue, PoolerFigures, figures, show_config},
    config::{PoolMode, PoolerConfig, config},
};
use super::{
    WAIT_MAX,
    folder::InstanceFolder,
    has_kit,
    instance::{Instance, InstanceId, InstanceState, RunningInstance, ServiceUse},
    rest, start,
    start::StartFailure,
    stop,
    unavailable::{Unavailable, UnavailableReason},
};
use crate::{
    data_plane::{context::DataPlaneContext, projects, service_proxy::upstreams::UpstreamAddress},
    platform::error::Error,
};

/// The role of the pooler: it calls `pgbouncer.get_auth`, and is the administrator of the console.
pub const ROLE: &str = "pgbouncer";
/// Name of the console among databases.
pub const CONSOLE: &str = "pgbouncer";
/// Name of the Unix socket, which `PgBouncer` derives from its port.
pub(super) const SOCKET: &str = ".s.PGSQL.6543";
/// The signal that ends the process when no server connection is in use any more.
pub(super) const STOP_SIGNAL: Signal = Signal::INT;
/// Longest time until the end of a process is noticed.
const END_MAX: Duration = Duration::from_secs(2);
/// Names of files in the folder of an instance.
const CONFIG: &str = "pooler.ini";
const USERS: &str = "users.txt";

/// Returns whether connections of this process's projects are pooled.
pub fn is_installed(context: &DataPlaneContext) -> bool {
    has_kit(context, Service::Pooler)
}

/// Returns the running pooler of a project and its socket. Starts it if necessary.
///
/// The callers are bounded by the connections of the proxy, so they need no room to wait in.
///
/// Errors: the reason for which there is no pooler, at most ten seconds later.
pub async fn acquire(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<(ServiceUse, ServerSocket), Unavailable> {
    let id = instance_id(project, reference);
    let instance = context.services.instance(&id);
    let mut states = instance.subscribe();
    let running = async {
        loop {
            states.borrow_and_update();
            let now = context.clock.ticks();
            if let Some(used) = instance.begin_use(now, None)
                && let UpstreamAddress::Unix(socket) = &used.running.address
            {
                let socket = socket.clone();
                return Ok((used, socket));
            }
            if let Some(failed) = instance.failure(now) {
                return Err(failed);
            }
            if context.services.is_adopting() && context.lease.leads() {
                // Its folder may have a process of an earlier Gantry.
                tokio::select! {
                    () = context.services.until_adopted() => {}
                    _ = states.changed() => {}
                }
                continue;
            }
            if instance.begin_start(now) {
                tokio::spawn(start::run(context.clone(), Arc::clone(&instance)));
            }
            // The instance has the sender, so this ends with a change only.
            let _ = states.changed().await;
        }
    };
    timeout(WAIT_MAX, running)
        .await
        .unwrap_or(Err(Unavailable::now(UnavailableReason::Starting)))
}

/// Returns when the process of a use is no longer that of the project, at most two seconds later:
/// it ended a moment ago.
pub(in crate::data_plane) async fn until_replaced(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
    used: ServiceUse,
) {
    let pid = used.running.pid;
    drop(used);
    let instance = context.services.instance(&instance_id(project, reference));
    let mut states = instance.subscribe();
    let is_other = |state: &InstanceState| match state {
        InstanceState::Running(running) => running.pid != pid,
        _ => true,
    };
    let _ = timeout(END_MAX, states.wait_for(is_other)).await;
}

fn instance_id(project: ProjectId, reference: &ProjectRef) -> InstanceId {
    InstanceId {
        project,
        reference: reference.clone(),
        service: Service::Pooler,
        function: None,
    }
}

/// Writes the configuration of a new process, and gives its login role a new password.
pub(super) async fn prepare(
    context: &DataPlaneContext,
    id: &InstanceId,
    folder: &InstanceFolder,
    owner: ProcessOwner,
    config: &PoolerConfig,
) -> Result<(), StartFailure> {
    let password = rest::mint(&context.entropy);
    let failed = |error: &dyn std::fmt::Display| {
        StartFailure::new(UnavailableReason::Failed, error.to_string())
    };
    let verifier = projects::verifier(password.clone())
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
    context: &DataPlaneContext,
    reference: &ProjectRef,
    folder: &InstanceFolder,
    config: &PoolerConfig,
) -> String {
    let server = context.driver.socket(reference);
    let server = server.path().parent().unwrap_or(server.path());
    config.file(server, &folder.inner())
}

/// Returns whether a process answers its console.
pub(super) async fn is_ready(running: &RunningInstance) -> bool {
    admin::command(running, "SHOW VERSION").await.is_ok()
}

/// Brings a running process to the stored settings. If it does not take them, it is stopped, and
/// the next connection starts one that has them.
pub(super) async fn refresh(
    context: &DataPlaneContext,
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
