//! Numbers of requests of each project and service since the start of the process.

use std::collections::HashMap;

use gantry_base::ids::ProjectRef;
use gantry_node::kits::Service;
use parking_lot::Mutex;

use super::log::Row;
use crate::platform::telemetry::SERIES_MAX;

/// Requests of one service of a project.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that were answered with a status of 500 or above.
    pub errors: u64,
}

/// The counters. The number of projects and services is bounded by [`SERIES_MAX`]; further ones
/// are not counted.
#[derive(Debug, Default)]
pub struct ProjectRequests(Mutex<HashMap<(ProjectRef, Service), RequestCounts>>);

impl ProjectRequests {
    /// Counts logged requests. Requests that matched no project or service are left out.
    pub fn add(&self, rows: &[Row]) {
        let mut counts = self.0.lock();
        for row in rows {
            let (Some(project), Some(service)) = (&row.project, row.service) else {
                continue;
            };
            let key = (project.clone(), service);
            if counts.len() >= SERIES_MAX && !counts.contains_key(&key) {
                continue;
            }
            let count = counts.entry(key).or_default();
            count.requests += 1;
            count.errors += u64::from(row.status.is_server_error());
        }
    }

    /// Returns the counters.
    pub fn counts(&self) -> HashMap<(ProjectRef, Service), RequestCounts> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use hyper::{Method, StatusCode, Version};
    use uuid::Uuid;

    use super::*;

    fn row(project: Option<&str>, service: Option<Service>, status: u16) -> Row {
        Row {
            id: Uuid::nil(),
            at: DateTime::UNIX_EPOCH,
            project: project.map(|project| project.parse().unwrap()),
            service,
            method: Method::GET,
            host: "abc.example.test".into(),
            path: "/".to_owned(),
            search: None,
            version: Version::HTTP_2,
            client: "192.0.2.1".parse().unwrap(),
            user_agent: None,
            referer: None,
            client_info: None,
            country: None,
            function: None,
            status: StatusCode::from_u16(status).unwrap(),
            response: super::super::log::ResponseFields::default(),
            took_millis: 1,
        }
    }

    #[test]
    fn requests_are_counted_by_project_and_service() {
        let project = "abcdefghijklmnopqrst";
        let requests = ProjectRequests::default();
        requests.add(&[
            row(Some(project), Some(Service::Rest), 200),
            row(Some(project), Some(Service::Rest), 502),
            row(Some(project), Some(Service::Auth), 404),
            row(Some(project), None, 404),
            row(None, None, 404),
        ]);
        let counts = requests.counts();
        let of = |service| counts[&(project.parse().unwrap(), service)];
        let (requests, errors) = (2, 1);
        assert_eq!(of(Service::Rest), RequestCounts { requests, errors });
        assert_eq!(of(Service::Auth).requests, 1);
        assert_eq!(counts.len(), 2);
    }
}
