//! Counts wrong passwords by project and address block.

use gantry_base::{clock::Ticks, ids::ProjectId};
use ipnet::IpNet;
use quick_cache::sync::Cache;

/// Number of counted addresses; the least recently used are evicted.
const ADDRESSES_MAX: usize = 10_000;
/// Wrong passwords within [`WINDOW`] that lead to a ban.
pub(super) const FAILURES_MAX: u32 = 10;
/// Length of the counting window, in milliseconds.
const WINDOW: Ticks = 10 * 60 * 1000;

pub(super) struct LoginFailures {
    /// Count and start of the window.
    counted: Cache<(ProjectId, IpNet), (u32, Ticks)>,
}

impl Default for LoginFailures {
    fn default() -> Self {
        Self {
            counted: Cache::new(ADDRESSES_MAX),
        }
    }
}

impl LoginFailures {
    /// Counts a wrong password. Returns true if the limit is reached, and starts a new window.
    pub(super) fn note(&self, project: ProjectId, block: IpNet, now: Ticks) -> bool {
        let key = (project, block);
        // Concurrent calls may count as one, which delays the ban by one attempt.
        let (before, since) = self
            .counted
            .get(&key)
            .filter(|(_, since)| now.saturating_sub(*since) < WINDOW)
            .unwrap_or((0, now));
        if before + 1 >= FAILURES_MAX {
            self.counted.remove(&key);
            return true;
        }
        self.counted.insert(key, (before + 1, since));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_failures_in_a_window_reach_the_limit() {
        let failures = LoginFailures::default();
        let block = "192.0.2.1/32".parse::<IpNet>().unwrap();
        let note = |project, now| failures.note(ProjectId(project), block, now);
        for _ in 1..FAILURES_MAX {
            assert!(!note(1, 0));
        }
        assert!(!note(2, 0), "another project counts for itself");
        assert!(note(1, WINDOW - 1), "the last in time");
        assert!(!note(1, WINDOW - 1), "and anew");
        for _ in 1..FAILURES_MAX {
            assert!(!note(3, 0));
        }
        assert!(!note(3, WINDOW), "the first are forgiven");
    }
}
