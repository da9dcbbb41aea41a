//! Versions of kits that do not start, and are left for an older one.

use std::collections::{HashMap, HashSet};

use gantry_base::{clock::Ticks, ids::ProjectId};
use gantry_node::kits::Service;
use parking_lot::Mutex;

/// Projects on which a version must have failed to be left.
const PROJECTS_MAX: usize = 3;
/// Time after which a version is tried again, in milliseconds.
const LEFT_FOR: Ticks = 3_600_000;

/// The starts of each version in this process.
#[derive(Debug, Default)]
pub(super) struct VersionHistory(Mutex<HashMap<(Service, String), Starts>>);

#[derive(Debug, Default)]
struct Starts {
    /// A tenant can make starts fail by its own settings, so one success is enough.
    has_succeeded: bool,
    failed_on: HashSet<ProjectId>,
    last_failure: Ticks,
}

impl VersionHistory {
    /// Records the outcome of a start with stored settings.
    pub(super) fn record(
        &self,
        service: Service,
        version: &str,
        project: ProjectId,
        succeeded: bool,
        now: Ticks,
    ) {
        let mut all = self.0.lock();
        let starts = all.entry((service, version.to_owned())).or_default();
        starts.has_succeeded |= succeeded;
        if !succeeded {
            starts.last_failure = now;
            if starts.failed_on.len() < PROJECTS_MAX {
                starts.failed_on.insert(project);
            }
        }
    }

    /// Returns whether another version is preferred: this one failed on three projects and did not
    /// start on any.
    pub(super) fn is_left(&self, service: Service, version: &str, now: Ticks) -> bool {
        let all = self.0.lock();
        let Some(starts) = all.get(&(service, version.to_owned())) else {
            return false;
        };
        !starts.has_succeeded
            && starts.failed_on.len() >= PROJECTS_MAX
            && now.saturating_sub(starts.last_failure) < LEFT_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_left_after_failures_on_three_projects() {
        let history = VersionHistory::default();
        let is_left = |now| history.is_left(Service::Rest, "2.0", now);
        let record = |project, succeeded| {
            history.record(Service::Rest, "2.0", ProjectId(project), succeeded, 10);
        };
        for project in [1, 1, 1, 1, 2] {
            record(project, false);
            assert!(!is_left(10), "two projects are not enough");
        }
        record(3, false);
        assert!(is_left(10) && !history.is_left(Service::Rest, "1.0", 10));
        assert!(!is_left(10 + LEFT_FOR), "tried again");
        record(4, true);
        assert!(!is_left(10), "the failures are those of the projects");
    }
}
