//! The last recorded uses of projects.

use std::{collections::HashMap, time::Duration};

use gantry_base::{
    clock::{Ticks, ticks_of},
    ids::ProjectId,
};
use parking_lot::Mutex;

/// The shortest interval between two recorded uses of a project.
const RECORD_INTERVAL: Duration = Duration::from_mins(1);

/// Upper bound of projects in memory. A project beyond it is recorded once more than necessary.
const REMEMBERED_MAX: usize = 100_000;

/// The time of the last recorded use of each project.
#[derive(Debug, Default)]
pub struct Uses(Mutex<HashMap<ProjectId, Ticks>>);

impl Uses {
    /// Returns whether this use must be recorded, and remembers it.
    pub(in crate::control) fn must_record(&self, project: ProjectId, now: Ticks) -> bool {
        let mut uses = self.0.lock();
        let every = ticks_of(RECORD_INTERVAL);
        if uses
            .get(&project)
            .is_some_and(|noted| now.saturating_sub(*noted) < every)
        {
            return false;
        }
        if uses.len() >= REMEMBERED_MAX {
            uses.clear();
        }
        uses.insert(project, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_recorded_once_a_minute() {
        let uses = Uses::default();
        let news = [0, 1, 59_999, 60_000, 60_001].map(|now| uses.must_record(ProjectId(1), now));
        assert_eq!(news, [true, false, false, true, false]);
        assert!(uses.must_record(ProjectId(2), 1));
    }
}
