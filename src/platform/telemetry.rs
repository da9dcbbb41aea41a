//! Logs and metrics.

mod operations;

use std::{io::IsTerminal, time::Duration};

use axum::http::StatusCode;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tracing_log::{AsLog, LogTracer};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use self::operations::{CLASSES, MILLIS, Operations};
use crate::{
    app::config::LogFormat,
    base::error::{Context, Error},
    data_plane::{postgres_proxy, service_proxy, service_proxy::upstreams::Service},
    platform::rate_limits::Tally,
};

/// Starts logging to standard error. Standard output is for answers.
pub fn log(filter: &str, format: LogFormat) -> Result<(), Error> {
    let filter =
        EnvFilter::try_new(filter).map_err(|error| Error::invalid("--log", error.to_string()))?;
    // The driver logs the parameters of every statement, password verifiers among them, when asked for debug lines. No
    // filter may ask for those.
    let level = filter
        .max_level_hint()
        .unwrap_or(LevelFilter::TRACE)
        .as_log();
    LogTracer::builder()
        .with_max_level(level)
        .ignore_crate("tokio_postgres")
        .init()
        .context("starting the log")?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => tracing::subscriber::set_global_default(
            lines
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .finish(),
        ),
        LogFormat::Json => {
            tracing::subscriber::set_global_default(lines.json().flatten_event(true).finish())
        }
    }
    .context("starting the log")
}

/// All that is counted, in Prometheus' form. Handles are made once.
pub struct Metrics {
    handle: PrometheusHandle,
    operations: Operations,
    tally: Tally,
    clusters: Clusters,
    router: postgres_proxy::Tally,
    edge: service_proxy::Tally,
    unlogged: Counter,
}

/// What a new project's cluster is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A server that ran already.
    Server,
    /// Files that were there already.
    Folder,
    /// Nothing was ready.
    Template,
}

/// What is done to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Making its files.
    Create,
    /// Starting its server.
    Start,
    /// Waiting until the server accepts connections.
    Ready,
    /// Setting the customer's password.
    Password,
    /// Stopping its server.
    Stop,
    /// Putting it out of sight.
    Remove,
}

impl Step {
    /// What went wrong, if it does.
    pub const fn doing(self) -> &'static str {
        match self {
            Self::Create => "making a cluster",
            Self::Start => "starting a cluster",
            Self::Ready => "waiting for a cluster",
            Self::Password => "setting a password",
            Self::Stop => "stopping a cluster",
            Self::Remove => "removing a cluster",
        }
    }
}

/// A bound of a project's resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Memory of all processes: some were ended.
    Memory,
    /// Processes and threads: no more were started.
    Processes,
    /// Disk space is nearly used up.
    DiskSoft,
    /// Disk space is used up, and the project is read-only.
    DiskHard,
    /// The project wrote nevertheless, and was stopped.
    DiskStop,
}

/// Counts and durations about clusters.
pub struct Clusters {
    origins: [Counter; 3],
    steps: [Histogram; 6],
    folders: Gauge,
    servers: Gauge,
    bounds: [Counter; 5],
}

impl Clusters {
    fn new(recorder: &PrometheusRecorder) -> Self {
        let labelled = |name: &'static str, label, value| {
            Key::from_parts(name, vec![Label::from_static_parts(label, value)])
        };
        let origin = |from| {
            recorder.register_counter(
                &labelled("gantry_clusters_begun_total", "from", from),
                &METADATA,
            )
        };
        let step = |step| {
            recorder.register_histogram(
                &labelled("gantry_cluster_step_seconds", "step", step),
                &METADATA,
            )
        };
        let ready = |kind| {
            recorder.register_gauge(
                &labelled("gantry_clusters_prepared", "kind", kind),
                &METADATA,
            )
        };
        Self {
            origins: ["server", "folder", "template"].map(origin),
            steps: ["create", "start", "ready", "password", "stop", "remove"].map(step),
            folders: ready("folder"),
            servers: ready("server"),
            bounds: ["memory", "processes", "disk-soft", "disk-hard", "disk-stop"].map(|bound| {
                recorder.register_counter(
                    &labelled("gantry_project_bounds_reached_total", "bound", bound),
                    &METADATA,
                )
            }),
        }
    }

    /// A project reached a bound.
    pub fn reached(&self, bound: Bound) {
        self.bounds[bound as usize].increment(1);
    }

    /// A project was asked for.
    pub fn began_from(&self, origin: Origin) {
        self.origins[origin as usize].increment(1);
    }

    /// So many are ready.
    #[expect(clippy::cast_precision_loss, reason = "there are not as many")]
    pub fn prepared(&self, folders: usize, servers: usize) {
        self.folders.set(folders as f64);
        self.servers.set(servers as f64);
    }

    /// A step took this long.
    pub fn took(&self, step: Step, millis: u64) {
        self.steps[step as usize].record(Duration::from_millis(millis).as_secs_f64());
    }
}

fn edge_tally(recorder: &PrometheusRecorder) -> service_proxy::Tally {
    let counter = |name: &'static str, labels| {
        recorder.register_counter(&Key::from_parts(name, labels), &METADATA)
    };
    let requests = |service| {
        CLASSES.map(|class| {
            let labels = vec![
                Label::from_static_parts("service", service),
                Label::from_static_parts("status", class),
            ];
            counter("gantry_edge_requests_total", labels)
        })
    };
    let [rest, auth, storage, realtime, functions] =
        Service::ALL.map(|service| requests(service.name()));
    service_proxy::Tally {
        connections: service_proxy::OUTCOMES.map(|outcome| {
            (
                outcome,
                counter(
                    "gantry_edge_connections_total",
                    vec![Label::from_static_parts("outcome", outcome)],
                ),
            )
        }),
        requests: [rest, auth, storage, realtime, functions, requests("none")],
        tunnels: recorder
            .register_gauge(&Key::from_static_name("gantry_edge_websockets"), &METADATA),
        dropped: recorder.register_counter(
            &Key::from_static_name("gantry_edge_log_dropped_total"),
            &METADATA,
        ),
    }
}

const METADATA: Metadata<'_> = Metadata::new("gantry", Level::INFO, None);
/// Observations are kept apart until somebody sums them up; this often keeps that short.
pub const UPKEEP: Duration = Duration::from_secs(5);

impl Metrics {
    /// Metrics for operations of these ids, numbered in this order.
    pub fn new(operations: impl Iterator<Item = &'static str>) -> Result<Self, Error> {
        let buckets = MILLIS.map(|millis| Duration::from_millis(millis).as_secs_f64());
        let recorder = PrometheusBuilder::new()
            .set_buckets(&buckets)
            .context("choosing histogram buckets")?
            .build_recorder();
        let decisions = |by| {
            let labels = vec![Label::from_static_parts("by", by)];
            recorder.register_counter(
                &Key::from_parts("gantry_limits_shared_total", labels),
                &METADATA,
            )
        };
        let tally = Tally {
            asked: decisions("store"),
            remembered: decisions("memory of refusals"),
            fell_back: decisions("this process alone"),
            away: recorder.register_gauge(
                &Key::from_static_name("gantry_limits_store_away"),
                &METADATA,
            ),
        };
        let clusters = Clusters::new(&recorder);
        let router = postgres_proxy::Tally {
            sessions: recorder
                .register_gauge(&Key::from_static_name("gantry_router_sessions"), &METADATA),
            outcomes: postgres_proxy::OUTCOMES.map(|outcome| {
                let labels = vec![Label::from_static_parts("outcome", outcome)];
                (
                    outcome,
                    recorder.register_counter(
                        &Key::from_parts("gantry_router_connections_total", labels),
                        &METADATA,
                    ),
                )
            }),
        };
        let edge = edge_tally(&recorder);
        let unlogged = recorder.register_counter(
            &Key::from_static_name("gantry_management_log_dropped_total"),
            &METADATA,
        );
        Ok(Self {
            handle: recorder.handle(),
            operations: Operations::new(operations),
            tally,
            clusters,
            router,
            edge,
            unlogged,
        })
    }

    /// What is counted about connections to databases.
    pub fn router(&self) -> &postgres_proxy::Tally {
        &self.router
    }

    /// What is counted about requests to projects' services.
    pub fn edge(&self) -> &service_proxy::Tally {
        &self.edge
    }

    /// A request whose line found no room.
    pub fn unlogged(&self) {
        self.unlogged.increment(1);
    }

    /// What is counted about shared limits.
    pub fn tally(&self) -> Tally {
        self.tally.clone()
    }

    /// What is counted about clusters.
    pub fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// One answered request.
    pub fn observe(&self, operation: u16, status: StatusCode, millis: u64) {
        self.operations.observe(operation, status.as_u16(), millis);
    }

    /// The page Prometheus scrapes.
    pub fn render(&self) -> String {
        let mut page = self.handle.render();
        self.operations.render(&mut page);
        page
    }

    /// Sums up observations, so that memory stays bounded when nobody scrapes.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}
