//! `gantry serve`: startup and graceful shutdown of the server. `gantry dev` uses the same code.

mod admin;
mod loaded_config;
mod machine;
mod running;
mod settings;
mod startup;

use sd_notify::NotifyState;

use self::running::ReceivedSignal;
pub(super) use self::{
    loaded_config::LoadedConfig,
    machine::{installed, layout_options, old_versions},
    running::{ClusterShutdown, DatabaseEndpoints, Running},
    startup::start,
};
use crate::{app::config::Config, cli::listeners::ListenerDefaults};

/// Runs the server until SIGINT or SIGTERM. Project clusters keep running; the next start adopts
/// them.
pub(super) async fn serve(config: Config, mut loaded: LoadedConfig) -> anyhow::Result<()> {
    let mut running = start(config, ListenerDefaults::None).await?;
    for address in &running.databases.addresses {
        tracing::info!(%address, "accepting database connections");
    }
    for address in &running.services {
        tracing::info!(%address, "accepting requests to project services");
    }
    tracing::info!(address = %running.address, "listening");
    tell_service_manager(NotifyState::Ready);
    while running.next_signal().await == ReceivedSignal::Reload {
        loaded.reload(&running.log_filter);
    }
    tell_service_manager(NotifyState::Stopping);
    tracing::info!("stopping; waiting for requests in flight");
    running.stop(ClusterShutdown::Leave).await
}

/// Tells systemd the state of the server, if that has started it with `Type=notify`.
fn tell_service_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager could not be told the state of the server");
    }
}
