//! `gantry serve`: startup and graceful shutdown of the server. `gantry dev` uses the same code.

mod admin;
mod machine;
mod settings;
mod startup;

use std::{fs::File, net::SocketAddr, path::PathBuf, sync::Arc};

use futures_util::FutureExt;
use gantry_node::clusters::{Control, Home};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

pub(super) use self::{
    machine::{bind, can_bind, installed, layout_options, old_versions},
    startup::start,
};
use crate::{
    app::{App, config::Config},
    cli::databases::ListenerDefaults,
    data_plane::{installation, services},
};

/// A running server.
pub(super) struct Running {
    pub(super) app: App,
    /// Address of the API, with the actual port if the configured port is 0.
    pub(super) address: SocketAddr,
    /// Addresses of database connections.
    pub(super) databases: DatabaseEndpoints,
    /// HTTPS addresses of project services.
    pub(super) services: Vec<SocketAddr>,
    shutdown: CancellationToken,
    background: JoinSet<()>,
    routers: JoinSet<()>,
    edges: JoinSet<()>,
    listeners: JoinSet<()>,
    control: Option<SupervisedControl>,
    home: Arc<Home>,
    /// Present if this process saves its rate limit counters in the data folder.
    counters_lock: Option<File>,
    signals: ShutdownSignals,
}

/// The control cluster, restarted when its server exits unexpectedly.
struct SupervisedControl {
    control: Arc<Control>,
    /// Dropping the sender ends the supervision.
    stop: oneshot::Sender<()>,
    supervision: JoinHandle<()>,
}

impl SupervisedControl {
    fn new(control: Control) -> Self {
        let control = Arc::new(control);
        let (stop, stop_requested) = oneshot::channel();
        let supervised = control.clone();
        let supervision = tokio::spawn(async move {
            // An error means that the sender was dropped, which also ends the supervision.
            supervised
                .supervise(async { drop(stop_requested.await) })
                .await;
        });
        Self {
            control,
            stop,
            supervision,
        }
    }

    /// Ends the supervision and stops the control cluster.
    async fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        self.supervision.await?;
        Ok(self.control.stop().await?)
    }
}

/// Addresses and certificate authority of database connections.
pub(super) struct DatabaseEndpoints {
    pub(super) addresses: Vec<SocketAddr>,
    /// Default ports that another process uses.
    pub(super) taken: Vec<u16>,
    /// Certificate file of the local certificate authority, for clients to trust.
    pub(super) authority: Option<PathBuf>,
}

/// SIGTERM and SIGINT. Registered before startup, so that a signal during startup is not lost.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    fn register() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Returns whether a signal has arrived.
    fn received(&mut self) -> bool {
        self.recv().now_or_never().is_some()
    }
}

/// Runs the server until SIGINT or SIGTERM. Project clusters keep running; the next start adopts
/// them.
pub(super) async fn serve(config: Config) -> anyhow::Result<()> {
    let mut running = start(config, ListenerDefaults::None).await?;
    for address in &running.databases.addresses {
        tracing::info!(%address, "accepting database connections");
    }
    for address in &running.services {
        tracing::info!(%address, "accepting requests to project services");
    }
    tracing::info!(address = %running.address, "listening");
    running.wait().await;
    tracing::info!("stopping; waiting for requests in flight");
    running.stop(ClusterShutdown::Leave).await
}

/// Treatment of project clusters at shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClusterShutdown {
    /// Keep them running.
    Leave,
    /// Stop them.
    Stop,
}

impl Running {
    /// Waits for a shutdown signal.
    pub(super) async fn wait(&mut self) {
        self.signals.recv().await;
    }

    /// Finishes requests in flight, then stops background tasks and the control cluster.
    pub(super) async fn stop(mut self, clusters: ClusterShutdown) -> anyhow::Result<()> {
        self.shutdown.cancel();
        self.app.postgres_proxy.stop();
        self.app.service_proxy.stop();
        while self.listeners.join_next().await.is_some() {}
        while self.routers.join_next().await.is_some() {}
        while self.edges.join_next().await.is_some() {}
        let holds_lease = self.app.lease.leads();
        self.app.reconciler.stop().await;
        if clusters == ClusterShutdown::Stop && holds_lease {
            services::stop_all(&self.app).await;
            self.app.driver.stop_all().await?;
        }
        self.app.analytics.close().await;
        self.background.shutdown().await;
        installation::end(&self.app).await;
        self.app.lease.hand_back(&self.app).await;
        if self.counters_lock.is_some()
            && let Some(Err(error)) = self.app.limits.journal().map(|journal| journal.close())
        {
            tracing::warn!(%error, "failed to save rate limits; counters since the last snapshot are lost");
        }
        self.app.db.close();
        if let Some(control) = self.control {
            control.stop().await?;
        }
        tracing::debug!(data = %self.home.dir().display(), "stopped");
        Ok(())
    }
}
