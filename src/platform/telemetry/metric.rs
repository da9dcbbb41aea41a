//! The declaration of a metric: `/metrics`, the reference and the tests of alerts and dashboards
//! derive from it.

use std::fmt::Write;

/// A metric of `/metrics`.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, which ends with the unit, and with `_total` for a counter.
    pub name: &'static str,
    /// The type.
    pub kind: MetricKind,
    /// A sentence about the value, without a period.
    pub help: &'static str,
    /// The labels of each series.
    pub labels: &'static [MetricLabel],
}

/// The type of a metric, as Prometheus names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only increases while the process runs.
    Counter,
    /// A number that increases and decreases.
    Gauge,
    /// A number of observations by size, in seconds.
    Histogram,
}

/// A label of the series of a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct MetricLabel {
    /// The name.
    pub name: &'static str,
    /// The possible values.
    pub values: LabelValues,
}

/// The possible values of a label.
#[derive(Debug, PartialEq, Eq)]
pub enum LabelValues {
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Any value of this kind, such as `ref of a project`. The number of values is bounded.
    Any(&'static str),
}

/// The label of metrics that have a value for each project.
pub const PROJECT: MetricLabel = MetricLabel::any("project", "ref of a project");

impl MetricKind {
    /// Returns the name of the type in the Prometheus text format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Metric {
    const fn new(kind: MetricKind, name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            kind,
            help,
            labels: &[],
        }
    }

    /// Declares a counter without labels.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(MetricKind::Counter, name, help)
    }

    /// Declares a gauge without labels.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(MetricKind::Gauge, name, help)
    }

    /// Declares a histogram without labels.
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self::new(MetricKind::Histogram, name, help)
    }

    /// Returns the metric with these labels.
    #[must_use]
    pub const fn with_labels(mut self, labels: &'static [MetricLabel]) -> Self {
        self.labels = labels;
        self
    }

    /// Appends the lines with the help text and the type in the Prometheus text format.
    pub(super) fn write_head(&self, page: &mut String) {
        let Self {
            name, kind, help, ..
        } = self;
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}");
        let _ = writeln!(page, "# TYPE {name} {}", kind.name());
    }

    /// Appends the line of a series in the Prometheus text format.
    pub(super) fn write_value(&self, page: &mut String, labels: &[String], value: f64) {
        let labels: Vec<_> = self
            .labels
            .iter()
            .zip(labels)
            .map(|(label, value)| format!("{}=\"{}\"", label.name, escaped(value)))
            .collect();
        let _ = if labels.is_empty() {
            writeln!(page, "{} {value}", self.name)
        } else {
            writeln!(page, "{}{{{}}} {value}", self.name, labels.join(","))
        };
    }

    /// Returns whether these are values of the labels, in the order of the declaration.
    pub(super) fn permits(&self, values: &[&str]) -> bool {
        self.labels.len() == values.len()
            && self
                .labels
                .iter()
                .zip(values)
                .all(|(label, value)| label.values.permits(value))
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

impl MetricLabel {
    /// Declares a label with one of these values.
    pub const fn one_of(name: &'static str, values: &'static [&'static str]) -> Self {
        Self {
            name,
            values: LabelValues::OneOf(values),
        }
    }

    /// Declares a label with any value of a kind.
    pub const fn any(name: &'static str, kind: &'static str) -> Self {
        Self {
            name,
            values: LabelValues::Any(kind),
        }
    }
}

impl LabelValues {
    /// Returns whether a value is possible.
    pub fn permits(&self, value: &str) -> bool {
        match self {
            Self::OneOf(values) => values.contains(&value),
            Self::Any(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: Metric = Metric::counter("gantry_tests_total", "Tests").with_labels(&[
        MetricLabel::one_of("result", &["passed", "failed"]),
        PROJECT,
    ]);

    #[test]
    fn values_outside_of_the_declaration_are_not_permitted() {
        assert!(TESTS.permits(&["passed", "abc"]));
        assert!(!TESTS.permits(&["lost", "abc"]));
        assert!(!TESTS.permits(&["passed"]));
        assert!(!TESTS.permits(&["passed", "abc", "abc"]));
    }

    #[test]
    fn values_of_labels_are_escaped() {
        let metric = Metric::gauge("gantry_tests", "Tests").with_labels(&[PROJECT]);
        let mut page = String::new();
        metric.write_value(&mut page, &["a\"\\\n".to_owned()], 0.5);
        assert_eq!(page, "gantry_tests{project=\"a\\\"\\\\\\n\"} 0.5\n");
        page.clear();
        Metric::gauge("gantry_tests", "Tests").write_value(&mut page, &[], 2.0);
        assert_eq!(page, "gantry_tests 2\n");
    }

    #[test]
    fn head_has_help_and_type() {
        let mut page = String::new();
        Metric::gauge("gantry_tests", "Tests").write_head(&mut page);
        assert_eq!(
            page,
            "# HELP gantry_tests Tests\n# TYPE gantry_tests gauge\n"
        );
    }
}
