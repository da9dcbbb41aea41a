//! Request counters and duration histograms of all operations, in the Prometheus text format.
//!
//! Not the exporter's histograms, which store every observation with its time until upkeep. Here a
//! request costs three atomic additions.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use super::metric::{Metric, MetricLabel};

/// Upper bounds of all buckets but the last, in milliseconds.
pub(super) const MILLIS: [u64; 10] = [1, 2, 5, 10, 50, 100, 500, 1_000, 5_000, 30_000];
/// Status classes.
pub const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

const OPERATION: MetricLabel = MetricLabel::any("operation", "id of an operation or page");

pub(super) const REQUESTS: Metric = Metric::counter(
    "gantry_requests_total",
    "Requests to the API and the pages that were answered",
)
.with_labels(&[OPERATION, MetricLabel::one_of("status", &CLASSES)]);
pub(super) const REQUEST_SECONDS: Metric = Metric::histogram(
    "gantry_request_seconds",
    "Duration of requests to the API and the pages",
)
.with_labels(&[OPERATION]);

/// Counters of all operations.
pub(super) struct Operations(Vec<Operation>);

/// Counters of one operation. The most used ones are in the first cache line.
#[repr(align(64))]
struct Operation {
    requests: [AtomicU64; CLASSES.len()],
    millis: AtomicU64,
    /// Requests per bucket, not cumulative.
    buckets: [AtomicU64; MILLIS.len() + 1],
    id: &'static str,
}

impl Operations {
    /// Returns counters for operations of these ids, indexed in this order.
    pub(super) fn new(ids: impl Iterator<Item = &'static str>) -> Self {
        Self(
            ids.map(|id| Operation {
                requests: [const { AtomicU64::new(0) }; CLASSES.len()],
                millis: AtomicU64::new(0),
                buckets: [const { AtomicU64::new(0) }; MILLIS.len() + 1],
                id,
            })
            .collect(),
        )
    }

    /// Counts an answered request. A status outside 100 to 599 counts only in the histogram; an
    /// unknown operation does not count.
    pub(super) fn observe(&self, operation: u16, status: u16, millis: u64) {
        let Some(operation) = self.0.get(usize::from(operation)) else {
            return;
        };
        if let Some(requests) = operation
            .requests
            .get(usize::from(status / 100).wrapping_sub(1))
        {
            requests.fetch_add(1, Ordering::Relaxed);
        }
        let bucket = MILLIS
            .iter()
            .position(|end| millis <= *end)
            .unwrap_or(MILLIS.len());
        operation.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        operation.millis.fetch_add(millis, Ordering::Relaxed);
    }

    /// Appends the metrics in the Prometheus text format 0.0.4. Ids need no escaping.
    pub(super) fn render(&self, page: &mut String) {
        // Writing to a string cannot fail.
        let _ = self.write(page);
    }

    fn write(&self, page: &mut String) -> std::fmt::Result {
        REQUESTS.write_head(page);
        for Operation { id, requests, .. } in &self.0 {
            for (class, requests) in CLASSES.iter().zip(requests) {
                writeln!(
                    page,
                    "gantry_requests_total{{operation=\"{id}\",status=\"{class}\"}} {}",
                    requests.load(Ordering::Relaxed)
                )?;
            }
        }
        page.push('\n');
        REQUEST_SECONDS.write_head(page);
        for operation in &self.0 {
            operation.write_seconds(page)?;
        }
        writeln!(page)
    }
}

impl Operation {
    fn write_seconds(&self, page: &mut String) -> std::fmt::Result {
        let id = self.id;
        let mut sum = 0;
        let ends = MILLIS.map(Some).into_iter().chain([None]);
        for (end, bucket) in ends.zip(&self.buckets) {
            sum += bucket.load(Ordering::Relaxed);
            let end = end.map_or_else(|| "+Inf".to_owned(), seconds);
            writeln!(
                page,
                "gantry_request_seconds_bucket{{operation=\"{id}\",le=\"{end}\"}} {sum}"
            )?;
        }
        writeln!(
            page,
            "gantry_request_seconds_sum{{operation=\"{id}\"}} {}",
            seconds(self.millis.load(Ordering::Relaxed))
        )?;
        writeln!(
            page,
            "gantry_request_seconds_count{{operation=\"{id}\"}} {sum}"
        )
    }
}

/// Formats milliseconds as seconds: `1500` is `1.5`.
fn seconds(millis: u64) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let operations = Operations::new(["one", "other"].into_iter());
        for (status, millis) in [
            (200, 0),
            (204, 1),
            (404, 2),
            (500, 1_500),
            (200, 40_000),
            (99, 3),
            (700, 3),
        ] {
            operations.observe(0, status, millis);
        }
        operations.observe(2, 200, 1);
        let mut page = String::new();
        operations.render(&mut page);
        for line in [
            "gantry_requests_total{operation=\"one\",status=\"1xx\"} 0",
            "gantry_requests_total{operation=\"one\",status=\"2xx\"} 3",
            "gantry_requests_total{operation=\"one\",status=\"4xx\"} 1",
            "gantry_requests_total{operation=\"one\",status=\"5xx\"} 1",
            "gantry_request_seconds_bucket{operation=\"one\",le=\"0.001\"} 2",
            "gantry_request_seconds_bucket{operation=\"one\",le=\"0.002\"} 3",
            "gantry_request_seconds_bucket{operation=\"one\",le=\"0.005\"} 5",
            "gantry_request_seconds_bucket{operation=\"one\",le=\"1\"} 5",
            "gantry_request_seconds_bucket{operation=\"one\",le=\"5\"} 6",
            "gantry_request_seconds_bucket{operation=\"one\",le=\"30\"} 6",
            "gantry_request_seconds_bucket{operation=\"one\",le=\"+Inf\"} 7",
            "gantry_request_seconds_sum{operation=\"one\"} 41.509",
            "gantry_request_seconds_count{operation=\"one\"} 7",
            "gantry_request_seconds_count{operation=\"other\"} 0",
        ] {
            assert!(
                page.lines().any(|written| written == line),
                "{line} is not in\n{page}"
            );
        }
        assert_eq!(
            page.lines().count(),
            2 * (CLASSES.len() + MILLIS.len() + 1 + 2) + 6
        );
    }
}
