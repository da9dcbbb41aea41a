//! The metrics of projects at a moment, read from the page of `/metrics`.

use std::collections::BTreeMap;

use crate::control::projects::usage_metrics::{
    CONNECTIONS, CPU, DISK, DISK_LIMIT, INFO, MEASURED, MEMORY, MEMORY_LIMIT, PROCESSES,
    REQUEST_ERRORS, REQUESTS,
};

/// The metrics of all running projects of a node.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Sample {
    /// Time at which processor time and memory were measured, in seconds since 1970.
    pub(super) measured_at: f64,
    /// Metrics by ref.
    pub(super) projects: BTreeMap<String, ProjectSample>,
}

/// The metrics of a project.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct ProjectSample {
    pub(super) name: String,
    pub(super) size: String,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) memory_bytes: f64,
    pub(super) memory_limit_bytes: f64,
    pub(super) processes: f64,
    pub(super) disk_bytes: Option<f64>,
    pub(super) disk_limit_bytes: f64,
    pub(super) connections: f64,
    pub(super) requests: f64,
    pub(super) errors: f64,
}

impl Sample {
    /// Reads the page. Other metrics, and lines of another form, are left out.
    pub(super) fn parse(page: &str) -> Self {
        let mut sample = Self::default();
        let series: Vec<_> = page.lines().filter_map(parse_series).collect();
        for (name, labels, value) in &series {
            if *name == INFO.name {
                let label = |key| labels.get(key).cloned().unwrap_or_default();
                let project = ProjectSample {
                    name: label("name"),
                    size: label("size"),
                    ..ProjectSample::default()
                };
                sample.projects.insert(label("project"), project);
            } else if *name == MEASURED.name {
                sample.measured_at = *value;
            }
        }
        for (name, labels, value) in series {
            let project = labels.get("project");
            // Requests of a project that does not run any more have series of their own.
            if let Some(project) = project.and_then(|project| sample.projects.get_mut(project)) {
                project.set(name, value);
            }
        }
        sample
    }
}

impl ProjectSample {
    fn set(&mut self, metric: &str, value: f64) {
        match metric {
            name if name == CPU.name => self.cpu_seconds = Some(value),
            name if name == MEMORY.name => self.memory_bytes = value,
            name if name == MEMORY_LIMIT.name => self.memory_limit_bytes = value,
            name if name == PROCESSES.name => self.processes = value,
            name if name == DISK.name => self.disk_bytes = Some(value),
            name if name == DISK_LIMIT.name => self.disk_limit_bytes = value,
            name if name == CONNECTIONS.name => self.connections += value,
            name if name == REQUESTS.name => self.requests += value,
            name if name == REQUEST_ERRORS.name => self.errors += value,
            _ => {}
        }
    }
}

/// Parses a line such as `name{label="value"} 1`. Returns `None` for comments and other lines.
fn parse_series(line: &str) -> Option<(&str, BTreeMap<&str, String>, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    let value = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest, &mut labels)?,
        None => rest,
    };
    Some((name, labels, value.trim().parse().ok()?))
}

/// Parses `label="value",…} 1` and returns the rest behind the brace.
fn parse_labels<'a>(text: &'a str, labels: &mut BTreeMap<&'a str, String>) -> Option<&'a str> {
    let mut rest = text;
    while !rest.starts_with('}') {
        let (name, value) = rest.trim_start_matches(',').split_once("=\"")?;
        let (value, after) = parse_value(value)?;
        labels.insert(name, value);
        rest = after;
    }
    rest.strip_prefix('}')
}

/// Parses an escaped value up to its closing quotation mark, and returns the rest behind it.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_collected_by_project() {
        let page = r#"# HELP gantry_project_info 1
# TYPE gantry_project_info gauge
gantry_project_info{project="abc",name="a \"b\"\\\n}",size="micro"} 1
gantry_projects_measured_timestamp_seconds 1700000000.5
gantry_project_memory_bytes{project="abc"} 100
gantry_project_connections{project="abc",mode="session"} 2
gantry_project_connections{project="abc",mode="pooled"} 3
gantry_project_requests_total{project="abc",service="rest"} 7
gantry_project_requests_total{project="gone",service="rest"} 9
gantry_requests_total{operation="x",status="2xx"} 1
broken{
"#;
        let sample = Sample::parse(page);
        assert_eq!(sample.measured_at.to_string(), "1700000000.5");
        assert_eq!(sample.projects.len(), 1);
        let expected = ProjectSample {
            name: "a \"b\"\\\n}".to_owned(),
            size: "micro".to_owned(),
            memory_bytes: 100.0,
            connections: 5.0,
            requests: 7.0,
            ..ProjectSample::default()
        };
        assert_eq!(sample.projects["abc"], expected);
    }
}
