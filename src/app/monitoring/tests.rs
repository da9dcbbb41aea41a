//! Alerts and the dashboard name metrics and labels that exist.

use std::collections::BTreeSet;

use super::{
    alerts::{ALERTS, Severity},
    dashboard::{self, ROWS},
    metrics,
};
use crate::platform::telemetry::{Metric, MetricKind};

/// Labels that Prometheus adds to each series.
const ADDED_LABELS: [&str; 2] = ["job", "instance"];
/// The metric by which Prometheus tells whether a server answers.
const UP: &str = "up";

/// Words of the language that are no metrics.
const KEYWORDS: [&str; 2] = ["by", "and"];

/// The parts of a `PromQL` expression that name something. Functions are not checked.
#[derive(Debug, Default)]
struct Parsed {
    selectors: Vec<Selector>,
    /// Labels of `by`. All selectors of an expression must have them.
    groups: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Selector {
    metric: String,
    matchers: Vec<Matcher>,
}

/// A condition on a label. Regular expressions are alternatives of texts.
#[derive(Debug)]
struct Matcher {
    label: String,
    values: Vec<String>,
}

/// Splits an expression into names, numbers, texts with their quotation marks, and signs.
fn tokens(expression: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.');
        let length = if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if !token.trim().is_empty() {
            tokens.push(token.to_owned());
        }
        rest = after;
    }
    tokens
}

/// Errors: the parentheses or braces are not balanced, or a condition is malformed.
fn parse(expression: &str) -> Result<Parsed, String> {
    // Grafana replaces this by a duration.
    let expression = expression.replace("$__rate_interval", "5m");
    let tokens = tokens(&expression);
    let mut parsed = Parsed::default();
    let mut tokens = tokens.iter().map(String::as_str).peekable();
    let mut depth = 0_i32;
    while let Some(token) = tokens.next() {
        match token {
            "(" => depth += 1,
            ")" => depth -= 1,
            "by" => {
                let names = tokens.by_ref().take_while(|token| *token != ")");
                let names = names.filter(|token| !matches!(*token, "(" | ","));
                parsed.groups.extend(names.map(str::to_owned));
            }
            "[" => drop(tokens.by_ref().find(|token| *token == "]")),
            word if word.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                let is_called = matches!(tokens.peek(), Some(&("(" | "by")));
                if is_called || KEYWORDS.contains(&word) {
                    continue;
                }
                let mut selector = Selector {
                    metric: word.to_owned(),
                    ..Selector::default()
                };
                if tokens.next_if_eq(&"{").is_some() {
                    let inner: Vec<_> = tokens.by_ref().take_while(|it| *it != "}").collect();
                    selector.matchers = matchers(&inner)?;
                }
                parsed.selectors.push(selector);
            }
            _ => {}
        }
    }
    if depth == 0 && !parsed.selectors.is_empty() {
        return Ok(parsed);
    }
    Err(format!("{expression} is malformed"))
}

fn matchers(tokens: &[&str]) -> Result<Vec<Matcher>, String> {
    let conditions = tokens.split(|token| *token == ",");
    let matcher = |condition: &[&str]| {
        let malformed = || format!("{condition:?} is malformed");
        let [label, operator @ .., value] = condition else {
            return Err(malformed());
        };
        let value = value
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'));
        if !["=", "!=", "=~", "!~"].contains(&operator.concat().as_str()) {
            return Err(malformed());
        }
        Ok(Matcher {
            label: (*label).to_owned(),
            values: value
                .ok_or_else(malformed)?
                .split('|')
                .map(str::to_owned)
                .collect(),
        })
    };
    conditions.map(matcher).collect()
}

/// Returns the declaration of a series name: `x_bucket` is a series of the histogram `x`.
fn declared(name: &str) -> Option<&'static Metric> {
    let is_series_of = |metric: &&Metric| match metric.kind {
        MetricKind::Histogram => ["_bucket", "_sum", "_count"]
            .iter()
            .any(|suffix| name.strip_suffix(suffix) == Some(metric.name)),
        _ => metric.name == name,
    };
    metrics::all().find(is_series_of)
}

/// Returns why a matcher can never match, if so.
fn fault_of_matcher(metric: &Metric, matcher: &Matcher) -> Option<String> {
    let Matcher {
        label: name,
        values,
    } = matcher;
    if ADDED_LABELS.contains(&name.as_str()) {
        return None;
    }
    let Some(label) = metric.labels.iter().find(|label| label.name == name) else {
        return Some(format!("{} has no label {name}", metric.name));
    };
    let unknown: Vec<_> = values
        .iter()
        .filter(|value| !label.values.permits(value))
        .collect();
    (!unknown.is_empty()).then(|| format!("{} {} is never {unknown:?}", metric.name, label.name))
}

/// Returns the faults of an expression.
fn faults(expression: &str) -> Vec<String> {
    let Parsed { selectors, groups } = match parse(expression) {
        Ok(parsed) => parsed,
        Err(error) => return vec![error],
    };
    let mut faults = Vec::new();
    for Selector {
        metric: name,
        matchers,
    } in selectors
    {
        if name == UP {
            continue;
        }
        let Some(metric) = declared(&name) else {
            faults.push(format!("there is no metric {name}"));
            continue;
        };
        faults.extend(
            matchers
                .iter()
                .filter_map(|matcher| fault_of_matcher(metric, matcher)),
        );
        for group in &groups {
            let is_bucket = group == "le" && metric.kind == MetricKind::Histogram;
            let is_known = metric.labels.iter().any(|label| label.name == group);
            if !is_bucket && !is_known && !ADDED_LABELS.contains(&group.as_str()) {
                faults.push(format!("{name} cannot be grouped by {group}"));
            }
        }
    }
    faults
}

/// Returns the labels of a text in `{{label}}` or `{{ $labels.label }}`.
fn shown_labels(text: &str) -> Vec<&str> {
    let parts = text.split("{{").skip(1);
    let names = parts.filter_map(|part| part.split_once("}}"));
    let names = names.map(|(name, _)| name.trim());
    names
        .filter(|name| !name.starts_with("$value"))
        .map(|name| name.strip_prefix("$labels.").unwrap_or(name))
        .collect()
}

/// Returns the labels of the result of an expression.
fn grouped_labels(expression: &str) -> BTreeSet<String> {
    parse(expression).unwrap().groups
}

#[test]
fn faults_of_an_expression_are_found() {
    for (expression, fault) in [
        ("sum(gantry_nothing)", "there is no metric gantry_nothing"),
        (
            "gantry_request_seconds",
            "there is no metric gantry_request_seconds",
        ),
        (
            "gantry_requests_total{code=\"500\"}",
            "gantry_requests_total has no label code",
        ),
        (
            "gantry_requests_total{status=\"500\"}",
            "gantry_requests_total status is never [\"500\"]",
        ),
        (
            "sum by (project) (gantry_requests_total)",
            "gantry_requests_total cannot be grouped by project",
        ),
    ] {
        assert_eq!(faults(expression), [fault], "{expression}");
    }
    for malformed in ["sum(", "sum(a))", "gantry_requests_total{status}"] {
        assert!(!faults(malformed).is_empty(), "{malformed}");
    }
    assert_eq!(
        shown_labels("{{ $labels.a }} of {{b}}: {{ $value | humanize }}"),
        ["a", "b"]
    );
}

#[test]
fn alerts_name_metrics_and_labels_that_exist() {
    let mut names = BTreeSet::new();
    for alert in ALERTS {
        assert!(names.insert(alert.name), "{} is declared twice", alert.name);
        assert_eq!(faults(alert.expression), [""; 0], "{}", alert.name);
        let labels = grouped_labels(alert.expression);
        for label in shown_labels(alert.summary) {
            let is_added = ADDED_LABELS.contains(&label);
            assert!(
                labels.contains(label) || is_added,
                "{}: {label}",
                alert.name
            );
        }
    }
    let critical = ALERTS
        .iter()
        .filter(|alert| alert.severity == Severity::Critical);
    assert!(
        critical.count() < ALERTS.len() / 2 + 1,
        "most alerts can wait"
    );
}

#[test]
fn panels_name_metrics_and_labels_that_exist() {
    for panel in ROWS.iter().flat_map(|row| row.panels) {
        for (expression, legend) in panel.series {
            assert_eq!(faults(expression), [""; 0], "{}", panel.title);
            let labels = grouped_labels(expression);
            for label in shown_labels(legend) {
                assert!(labels.contains(label), "{}: {label}", panel.title);
            }
        }
    }
}

#[test]
fn panels_do_not_overlap() {
    let dashboard = dashboard::dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && taken.insert((x, y)), "{}", panel["title"]);
            }
        }
    }
}
