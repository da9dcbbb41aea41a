//! A running server, and its graceful shutdown.

use std::{fs::File, net::SocketAddr, path::PathBuf, sync::Arc};

use futures_util::FutureExt;
use gantry_node::clusters::{Control, Home};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    control::{installation, projects::lease, services},
    platform::telemetry::LogFilter,
};

/// A running server.
pub(in crate::cli) struct Running {
    pub(in crate::cli) app: App,
    /// Address of the API, with the actual port if the configured port is 0.
    pub(in crate::cli) address: SocketAddr,
    /// Addresses of database connections.
    pub(in crate::cli) databases: DatabaseEndpoints,
    /// HTTPS addresses of project services.
    pub(in crate::cli) services: Vec<SocketAddr>,
    pub(super) shutdown: CancellationToken,
    pub(super) background: JoinSet<()>,
    pub(super) routers: JoinSet<()>,
    pub(super) edges: JoinSet<()>,
    pub(super) listeners: JoinSet<()>,
    pub(super) control: Option<SupervisedControl>,
    pub(super) home: Arc<Home>,
    /// Present if this process saves its rate limit counters in the data folder.
    pub(super) counters_lock: Option<File>,
    pub(super) signals: ShutdownSignals,
    pub(super) log_filter: LogFilter,
}

/// The control cluster, restarted when its server exits unexpectedly.
pub(super) struct SupervisedControl {
    control: Arc<Control>,
    /// Dropping the sender ends the supervision.
    stop: oneshot::Sender<()>,
    supervision: JoinHandle<()>,
}

impl SupervisedControl {
    pub(super) fn new(control: Control) -> Self {
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
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        self.supervision.await?;
        Ok(self.control.stop().await?)
    }
}

/// Addresses and certificate authority of database connections.
pub(in crate::cli) struct DatabaseEndpoints {
    pub(in crate::cli) addresses: Vec<SocketAddr>,
    /// Default ports that another process uses.
    pub(in crate::cli) taken: Vec<u16>,
    /// Certificate file of the local certificate authority, for clients to trust.
    pub(in crate::cli) authority: Option<PathBuf>,
}

/// A signal that the operator sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum ReceivedSignal {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

/// SIGTERM, SIGINT and SIGHUP. Registered before startup, so that a signal during startup is not
/// lost.
pub(super) struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl ShutdownSignals {
    pub(super) fn register() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> ReceivedSignal {
        tokio::select! {
            _ = self.terminate.recv() => ReceivedSignal::Stop,
            _ = self.interrupt.recv() => ReceivedSignal::Stop,
            _ = self.hangup.recv() => ReceivedSignal::Reload,
        }
    }

    /// Waits for a signal to stop.
    pub(super) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Returns whether a signal has arrived.
    pub(super) fn received(&mut self) -> bool {
        self.recv().now_or_never().is_some()
    }
}

/// Treatment of project clusters at shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum ClusterShutdown {
    /// Keep them running.
    Leave,
    /// Stop them.
    Stop,
}

impl Running {
    /// Waits for the next signal.
    pub(in crate::cli) async fn next_signal(&mut self) -> ReceivedSignal {
        self.signals.next().await
    }

    /// Waits for a signal. The end of a terminal sends SIGHUP.
    pub(in crate::cli) async fn wait(&mut self) {
        self.signals.next().await;
    }

    /// Finishes requests in flight, then stops background tasks and the control cluster.
    pub(in crate::cli) async fn stop(mut self, clusters: ClusterShutdown) -> anyhow::Result<()> {
        self.shutdown.cancel();
        self.app.postgres_proxy.stop();
        self.app.service_proxy.stop();
        self.app.fleet.shutdown.cancel();
        self.app.events.close();
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
        lease::hand_back(&self.app).await;
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
