//! Usage of projects, computed from two samples, and its table.

use std::fmt::Write;

use clap::ValueEnum;
use serde::Serialize;

use super::sample::{ProjectSample, Sample};

/// Characters of a project's name that are shown.
const NAME_CHARS_MAX: usize = 24;

/// Usage of a project.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct UsageRow {
    #[serde(rename = "ref")]
    pub(super) reference: String,
    pub(super) name: String,
    pub(super) size: String,
    /// Processors in use between the samples: 1 is one whole processor.
    pub(super) cpu: Option<f64>,
    pub(super) memory_bytes: f64,
    pub(super) memory_limit_bytes: f64,
    pub(super) processes: f64,
    pub(super) disk_bytes: Option<f64>,
    pub(super) disk_limit_bytes: f64,
    pub(super) connections: f64,
    pub(super) requests_per_second: f64,
    pub(super) errors_per_second: f64,
}

/// The order of projects: the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SortKey {
    Cpu,
    Memory,
    Disk,
    Connections,
    Requests,
}

/// Computes the usage between two samples that were read `seconds` apart.
pub(super) fn between(earlier: &Sample, later: &Sample, seconds: f64) -> Vec<UsageRow> {
    let measured = later.measured_at - earlier.measured_at;
    let projects = later.projects.iter();
    projects
        .map(|(reference, now)| {
            let before = earlier.projects.get(reference);
            let rate = |value: fn(&ProjectSample) -> f64| {
                before.map_or(0.0, |before| {
                    (value(now) - value(before)).max(0.0) / seconds
                })
            };
            UsageRow {
                reference: reference.clone(),
                name: printable(&now.name),
                size: now.size.clone(),
                cpu: before.and_then(|before| cpu(before, now, measured)),
                memory_bytes: now.memory_bytes,
                memory_limit_bytes: now.memory_limit_bytes,
                processes: now.processes,
                disk_bytes: now.disk_bytes,
                disk_limit_bytes: now.disk_limit_bytes,
                connections: now.connections,
                requests_per_second: rate(|sample| sample.requests),
                errors_per_second: rate(|sample| sample.errors),
            }
        })
        .collect()
}

/// Returns the processors in use, or `None` without a new measurement or after a restart.
fn cpu(before: &ProjectSample, now: &ProjectSample, measured: f64) -> Option<f64> {
    let used = now.cpu_seconds? - before.cpu_seconds?;
    (measured > 0.0 && used >= 0.0).then(|| used / measured)
}

/// Replaces characters that control a terminal: users choose the names of projects.
fn printable(name: &str) -> String {
    let clean = |character: char| {
        if character.is_control() {
            '?'
        } else {
            character
        }
    };
    name.chars().map(clean).take(NAME_CHARS_MAX).collect()
}

/// Sorts the projects, the largest first.
pub(super) fn sort(projects: &mut [UsageRow], key: SortKey) {
    let value = |project: &UsageRow| match key {
        SortKey::Cpu => project.cpu.unwrap_or(0.0),
        SortKey::Memory => project.memory_bytes,
        SortKey::Disk => project.disk_bytes.unwrap_or(0.0),
        SortKey::Connections => project.connections,
        SortKey::Requests => project.requests_per_second,
    };
    projects.sort_by(|left, right| value(right).total_cmp(&value(left)));
}

/// Returns the table of the first `limit` projects.
pub(super) fn table(projects: &[UsageRow], limit: usize) -> String {
    let memory: f64 = projects.iter().map(|project| project.memory_bytes).sum();
    // The sum of nothing is negative zero.
    let cpu = 0.0
        + projects
            .iter()
            .filter_map(|project| project.cpu)
            .sum::<f64>();
    let mut text = format!(
        "Running projects: {}, {} of memory, {cpu:.2} processors\n\n{:<20} {:<24} {:<8} {:>6} {:>17} {:>17} {:>5} {:>7} {:>7}\n",
        projects.len(),
        bytes(memory),
        "PROJECT",
        "NAME",
        "SIZE",
        "CPU",
        "MEMORY",
        "DISK",
        "CONN",
        "REQ/S",
        "ERR/S",
    );
    for project in projects.iter().take(limit) {
        let cpu = project
            .cpu
            .map_or("-".to_owned(), |cpu| format!("{cpu:.2}"));
        let disk = project.disk_bytes.map_or("-".to_owned(), bytes);
        let _ = writeln!(
            text,
            "{:<20} {:<24} {:<8} {cpu:>6} {:>17} {:>17} {:>5} {:>7.1} {:>7.1}",
            project.reference,
            project.name,
            project.size,
            format!(
                "{} / {}",
                bytes(project.memory_bytes),
                bytes(project.memory_limit_bytes)
            ),
            format!("{disk} / {}", bytes(project.disk_limit_bytes)),
            project.connections,
            project.requests_per_second,
            project.errors_per_second,
        );
    }
    let hidden = projects.len().saturating_sub(limit);
    if hidden > 0 {
        let _ = writeln!(text, "… and {hidden} more; show them with --limit");
    }
    text.truncate(text.trim_end().len());
    text
}

/// Formats a number of bytes: `1.5 GB` of `1610612736`.
fn bytes(bytes: f64) -> String {
    let mut value = bytes;
    let mut units = ["B", "kB", "MB", "GB"].iter();
    let mut unit = units.next();
    while value >= 1024.0
        && let Some(larger) = units.next()
    {
        value /= 1024.0;
        unit = Some(larger);
    }
    let digits = usize::from(value < 10.0 && unit != Some(&"B"));
    format!("{value:.digits$} {}", unit.unwrap_or(&"TB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(measured_at: f64, cpu_seconds: f64, requests: f64) -> Sample {
        let project = ProjectSample {
            name: "shop\u{1b}[2J".to_owned(),
            size: "micro".to_owned(),
            cpu_seconds: Some(cpu_seconds),
            requests,
            memory_bytes: 1_610_612_736.0,
            ..ProjectSample::default()
        };
        Sample {
            measured_at,
            projects: [("abc".to_owned(), project)].into(),
        }
    }

    #[test]
    fn rates_use_the_time_of_their_measurement() {
        let usage = between(&sample(10.0, 1.0, 100.0), &sample(15.0, 6.0, 120.0), 2.0);
        assert_eq!(usage[0].cpu, Some(1.0));
        assert_eq!(usage[0].requests_per_second.to_string(), "10");
    }

    #[test]
    fn there_is_no_rate_after_a_restart_or_without_a_new_measurement() {
        let restarted = between(&sample(10.0, 5.0, 9.0), &sample(15.0, 1.0, 2.0), 5.0);
        assert_eq!(restarted[0].cpu, None);
        assert_eq!(restarted[0].requests_per_second.to_string(), "0");
        let same = between(&sample(10.0, 5.0, 9.0), &sample(10.0, 5.0, 9.0), 1.0);
        assert_eq!(same[0].cpu, None);
        let new = between(&Sample::default(), &sample(10.0, 5.0, 9.0), 1.0);
        assert_eq!(new[0].cpu, None);
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        let usage = between(&Sample::default(), &sample(1.0, 1.0, 1.0), 1.0);
        assert_eq!(usage[0].name, "shop?[2J");
        assert!(!table(&usage, 10).contains('\u{1b}'));
    }

    #[test]
    fn largest_project_is_first_and_the_rest_is_counted() {
        let mut usage = between(&Sample::default(), &sample(1.0, 1.0, 1.0), 1.0);
        let mut small = usage[0].clone();
        small.reference = "small".to_owned();
        small.memory_bytes = 1.0;
        usage.insert(0, small);
        sort(&mut usage, SortKey::Memory);
        assert_eq!(usage[0].reference, "abc");
        let text = table(&usage, 1);
        assert!(text.contains("1.5 GB"), "{text}");
        assert!(
            text.ends_with("… and 1 more; show them with --limit"),
            "{text}"
        );
    }

    #[test]
    fn sizes_have_two_digits() {
        for (size, text) in [
            (0.0, "0 B"),
            (1023.0, "1023 B"),
            (1536.0, "1.5 kB"),
            (20_971_520.0, "20 MB"),
            (1_099_511_627_776.0, "1024 GB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
