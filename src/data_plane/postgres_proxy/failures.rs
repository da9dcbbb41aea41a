//! Wrong passwords, counted by project and address.

use ipnet::IpNet;
use quick_cache::sync::Cache;

use crate::base::{clock::Ticks, ids::ProjectId};

/// Addresses whose wrong passwords are remembered; the least used are forgotten first.
const ADDRESSES_MAX: usize = 10_000;
/// Wrong passwords within [`WINDOW`] that lead to a ban.
pub(super) const FAILURES_MAX: u32 = 10;
/// How long a wrong password is held against an address, in milliseconds.
const WINDOW: Ticks = 10 * 60 * 1000;

pub(super) struct LoginFailures {
    /// How many, and since when.
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
    /// Notes one more. True when there have been too many; then counting begins anew.
    pub(super) fn note(&self, project: ProjectId, block: IpNet, now: Ticks) -> bool {
        let key = (project, block);
        // Two at once may count as one: then the ban comes one attempt later.
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
    fn so_many_in_a_window_are_too_many() {
        let (failures, block) = (
            LoginFailures::default(),
            "192.0.2.1/32".parse::<IpNet>().unwrap(),
        );
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
