//! Logging to standard error, and metrics in the Prometheus format.

mod operations;
mod request_log;

use std::{collections::BTreeMap, fmt::Write as _, io::IsTerminal, time::Duration};

use clap::ValueEnum;
use http::StatusCode;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use parking_lot::Mutex;
use tracing_log::{AsLog, LogTracer};
use tracing_subscriber::{EnvFilter, filter::LevelFilter, reload};

use self::operations::{MILLIS, Operations};
pub use self::{
    operations::CLASSES,
    request_log::{AnsweredRequest, RequestLog, cut, without_secrets, without_url_secrets},
};
use crate::platform::{
    error::{Context, Error},
    rate_limits::StoreMetrics,
};

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text.
    Text,
    /// One JSON object a line.
    Json,
}

/// The filter of log lines, which can be replaced while the log is written.
pub struct LogFilter {
    replace: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
}

impl LogFilter {
    /// Replaces the filter.
    pub fn set(&self, filter: &str) -> Result<(), Error> {
        let filter = parsed_filter(filter)?;
        tracing_log::log::set_max_level(level(&filter));
        (self.replace)(filter).context("replacing the log filter")
    }
}

fn parsed_filter(filter: &str) -> Result<EnvFilter, Error> {
    EnvFilter::try_new(filter).map_err(|error| Error::invalid("--log", error.to_string()))
}

/// Returns the highest level of messages of libraries that pass a filter.
fn level(filter: &EnvFilter) -> tracing_log::log::LevelFilter {
    let level = filter.max_level_hint().unwrap_or(LevelFilter::TRACE);
    level.as_log()
}

/// Starts logging to standard error. Standard output is for the output of commands.
pub fn log(filter: &str, format: LogFormat) -> Result<LogFilter, Error> {
    let filter = parsed_filter(filter)?;
    // At debug level the driver logs statement parameters, among them password verifiers. No filter
    // may enable its messages.
    LogTracer::builder()
        .with_max_level(level(&filter))
        .ignore_crate("tokio_postgres")
        .init()
        .context("starting the log")?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let (started, filter) = match format {
        LogFormat::Text => {
            let lines = lines
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .with_filter_reloading();
            let handle = lines.reload_handle();
            let replace: Box<dyn Fn(_) -> _ + Send + Sync> =
                Box::new(move |filter| handle.reload(filter));
            let started = tracing::subscriber::set_global_default(lines.finish());
            (started, LogFilter { replace })
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_filter_reloading();
            let handle = lines.reload_handle();
            let replace: Box<dyn Fn(_) -> _ + Send + Sync> =
                Box::new(move |filter| handle.reload(filter));
            let started = tracing::subscriber::set_global_default(lines.finish());
            (started, LogFilter { replace })
        }
    };
    started.context("starting the log")?;
    Ok(filter)
}

/// All metrics. Handles are registered once.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    operations: Operations,
    tally: StoreMetrics,
    unlogged: Counter,
    by_project: Mutex<BTreeMap<&'static str, ProjectGauge>>,
}

/// The values of a gauge, by the ref of a project.
type ProjectGauge = BTreeMap<String, f64>;

const METADATA: Metadata<'_> = Metadata::new("gantry", Level::INFO, None);
/// Maximum number of projects with values of their own.
const PROJECTS_MAX: usize = 10_000;
/// Interval of [`Metrics::upkeep`].
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
        let tally = StoreMetrics {
            sent: decisions("store"),
            remembered: decisions("memory of refusals"),
            fell_back: decisions("this process alone"),
            away: recorder.register_gauge(
                &Key::from_static_name("gantry_limits_store_away"),
                &METADATA,
            ),
        };
        let unlogged = recorder.register_counter(
            &Key::from_static_name("gantry_management_log_dropped_total"),
            &METADATA,
        );
        Ok(Self {
            handle: recorder.handle(),
            recorder,
            operations: Operations::new(operations),
            tally,
            unlogged,
            by_project: Mutex::default(),
        })
    }

    /// Counts a request that the full queue of the request log dropped.
    pub fn unlogged(&self) {
        self.unlogged.increment(1);
    }

    /// Registers a counter. Labels are name and value.
    pub fn counter(&self, name: &'static str, labels: &[(&'static str, &'static str)]) -> Counter {
        self.recorder
            .register_counter(&key(name, labels), &METADATA)
    }

    /// Registers a gauge.
    pub fn gauge(&self, name: &'static str, labels: &[(&'static str, &'static str)]) -> Gauge {
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    /// Registers a histogram of seconds.
    pub fn histogram(
        &self,
        name: &'static str,
        labels: &[(&'static str, &'static str)],
    ) -> Histogram {
        self.recorder
            .register_histogram(&key(name, labels), &METADATA)
    }

    /// Returns the metrics of shared rate limits.
    pub fn rate_limit_store(&self) -> StoreMetrics {
        self.tally.clone()
    }

    /// Counts an answered request.
    pub fn observe(&self, operation: u16, status: StatusCode, millis: u64) {
        self.operations.observe(operation, status.as_u16(), millis);
    }

    /// Replaces the values of a gauge with the label `project`. Projects that are not among them
    /// have no value any more. Values beyond `PROJECTS_MAX` are left out.
    pub fn set_by_project(&self, name: &'static str, values: impl Iterator<Item = (String, f64)>) {
        let values = values.take(PROJECTS_MAX).collect();
        self.by_project.lock().insert(name, values);
    }

    /// Returns all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        let mut page = self.handle.render();
        self.operations.render(&mut page);
        for (name, values) in self.by_project.lock().iter() {
            let _ = writeln!(page, "# TYPE {name} gauge");
            for (project, value) in values {
                // A ref consists of letters.
                let _ = writeln!(page, "{name}{{project=\"{project}\"}} {value}");
            }
            page.push('\n');
        }
        page
    }

    /// Aggregates observations of histograms, so that memory stays bounded without scrapes.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn key(name: &'static str, labels: &[(&'static str, &'static str)]) -> Key {
    let labels: Vec<_> = labels
        .iter()
        .map(|(name, value)| Label::from_static_parts(name, value))
        .collect();
    Key::from_parts(name, labels)
}
