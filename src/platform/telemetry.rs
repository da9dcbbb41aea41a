//! Logging to standard error, and metrics in the Prometheus format.

mod metric;
mod operations;
mod request_log;

use std::{collections::BTreeMap, io::IsTerminal, time::Duration};

use clap::ValueEnum;
use http::StatusCode;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use parking_lot::Mutex;
use tracing_log::{AsLog, LogTracer};
use tracing_subscriber::{EnvFilter, filter::LevelFilter, reload};

use self::operations::{MILLIS, Operations};
pub use self::{
    metric::{LabelValues, Metric, MetricKind, MetricLabel, PROJECT},
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
    registry: Registry,
    handle: PrometheusHandle,
    operations: Operations,
    tally: StoreMetrics,
    unlogged: Counter,
    replaced: Mutex<BTreeMap<&'static str, ReplacedSeries>>,
}

/// The series of a metric with values of labels that are not known at start.
struct ReplacedSeries {
    metric: &'static Metric,
    values: BTreeMap<Vec<String>, f64>,
}

/// Values of the label `by`, in the order of [`StoreMetrics`].
const DECIDERS: [&str; 3] = ["store", "memory of refusals", "this process alone"];

const LIMIT_DECISIONS: Metric = Metric::counter(
    "gantry_limits_shared_total",
    "Decisions about rate limits that several processes share",
)
.with_labels(&[MetricLabel::one_of("by", &DECIDERS)]);
const LIMIT_STORE_DOWN: Metric = Metric::gauge(
    "gantry_limits_store_away",
    "Whether the store of shared rate limits does not answer: 1, otherwise 0",
);
const MANAGEMENT_LOG_DROPPED: Metric = Metric::counter(
    "gantry_management_log_dropped_total",
    "Requests to the API without a line in the logs, because the queue was full",
);

/// Metrics of the telemetry itself.
pub const METRICS: &[&Metric] = &[
    &operations::REQUESTS,
    &operations::REQUEST_SECONDS,
    &LIMIT_DECISIONS,
    &LIMIT_STORE_DOWN,
    &MANAGEMENT_LOG_DROPPED,
];

const METADATA: Metadata<'_> = Metadata::new("gantry", Level::INFO, None);
/// Maximum number of series of a metric with values of labels that are not known at start.
pub const SERIES_MAX: usize = 10_000;
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
        let registry = Registry { recorder };
        let [store, memory, process] = DECIDERS.map(|by| registry.counter(&LIMIT_DECISIONS, &[by]));
        let tally = StoreMetrics {
            sent: store,
            remembered: memory,
            fell_back: process,
            away: registry.gauge(&LIMIT_STORE_DOWN, &[]),
        };
        let unlogged = registry.counter(&MANAGEMENT_LOG_DROPPED, &[]);
        Ok(Self {
            handle: registry.recorder.handle(),
            registry,
            operations: Operations::new(operations),
            tally,
            unlogged,
            replaced: Mutex::default(),
        })
    }

    /// Counts a request that the full queue of the request log dropped.
    pub fn unlogged(&self) {
        self.unlogged.increment(1);
    }

    /// Registers a series of a counter, with these values of its labels.
    pub fn counter(&self, metric: &'static Metric, labels: &[&'static str]) -> Counter {
        self.registry.counter(metric, labels)
    }

    /// Registers a series of a gauge, with these values of its labels.
    pub fn gauge(&self, metric: &'static Metric, labels: &[&'static str]) -> Gauge {
        self.registry.gauge(metric, labels)
    }

    /// Registers a series of a histogram of seconds, with these values of its labels.
    pub fn histogram(&self, metric: &'static Metric, labels: &[&'static str]) -> Histogram {
        self.registry.histogram(metric, labels)
    }

    /// Returns the metrics of shared rate limits.
    pub fn rate_limit_store(&self) -> StoreMetrics {
        self.tally.clone()
    }

    /// Counts an answered request.
    pub fn observe(&self, operation: u16, status: StatusCode, millis: u64) {
        self.operations.observe(operation, status.as_u16(), millis);
    }

    /// Replaces all series of a metric by these values of its labels and of the metric. Series
    /// beyond [`SERIES_MAX`] are left out.
    pub fn replace<const LABELS: usize>(
        &self,
        metric: &'static Metric,
        series: impl IntoIterator<Item = ([String; LABELS], f64)>,
    ) {
        let series = series.into_iter().take(SERIES_MAX);
        let values = series.map(|(labels, value)| {
            let permitted = metric.permits(&labels.each_ref().map(String::as_str));
            debug_assert!(permitted, "{}: {labels:?}", metric.name);
            (labels.to_vec(), value)
        });
        let values = values.collect();
        let series = ReplacedSeries { metric, values };
        self.replaced.lock().insert(metric.name, series);
    }

    /// Replaces the only series of a metric without labels.
    pub fn replace_value(&self, metric: &'static Metric, value: f64) {
        self.replace(metric, [([], value)]);
    }

    /// Returns all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        let mut page = self.handle.render();
        self.operations.render(&mut page);
        for ReplacedSeries { metric, values } in self.replaced.lock().values() {
            metric.write_head(&mut page);
            for (labels, value) in values {
                metric.write_value(&mut page, labels, *value);
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

/// Registers the series of declared metrics.
struct Registry {
    recorder: PrometheusRecorder,
}

impl Registry {
    fn counter(&self, metric: &'static Metric, labels: &[&'static str]) -> Counter {
        let key = key(metric, MetricKind::Counter, labels);
        self.recorder
            .describe_counter(metric.name.into(), None, metric.help.into());
        self.recorder.register_counter(&key, &METADATA)
    }

    fn gauge(&self, metric: &'static Metric, labels: &[&'static str]) -> Gauge {
        let key = key(metric, MetricKind::Gauge, labels);
        self.recorder
            .describe_gauge(metric.name.into(), None, metric.help.into());
        self.recorder.register_gauge(&key, &METADATA)
    }

    fn histogram(&self, metric: &'static Metric, labels: &[&'static str]) -> Histogram {
        let key = key(metric, MetricKind::Histogram, labels);
        self.recorder
            .describe_histogram(metric.name.into(), None, metric.help.into());
        self.recorder.register_histogram(&key, &METADATA)
    }
}

/// Returns the key of a series. Series are registered at start, so that a series which the
/// declaration does not permit is found by each test.
fn key(metric: &'static Metric, kind: MetricKind, values: &[&'static str]) -> Key {
    debug_assert_eq!(metric.kind, kind, "{}", metric.name);
    debug_assert!(metric.permits(values), "{}: {values:?}", metric.name);
    let labels = metric.labels.iter().zip(values);
    let labels: Vec<_> = labels
        .map(|(label, value)| Label::from_static_parts(label.name, value))
        .collect();
    Key::from_parts(metric.name, labels)
}
