//! The rules of when a base backup is made and which ones are kept, without I/O.

use std::time::Duration;

use chrono::{DateTime, Days, NaiveTime, TimeDelta, Utc};
use gantry_base::{ids::ProjectRef, repeat::Backoff};

use super::wal::Lsn;

/// Written log after which a backup is made, in bytes: it bounds the time of a recovery.
const VOLUME: u64 = 1 << 30;
/// Seconds of a day.
const DAY_SECS: u32 = 86_400;
/// Backups of projects with the same time are spread over this time, in seconds.
const SPREAD_SECS: u32 = 600;
/// Pauses after failed backups.
const BACKOFF: Backoff = Backoff::new(Duration::from_mins(1), Duration::from_hours(1));

/// Why a base backup is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseReason {
    /// The archive has none yet.
    First,
    /// The daily time has come.
    Schedule,
    /// Much was written since the last one.
    Volume,
    /// A client asked for it.
    Request,
}

impl BaseReason {
    /// Name in the control database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Schedule => "schedule",
            Self::Volume => "volume",
            Self::Request => "request",
        }
    }
}

/// The daily time of a project's backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DailyTime {
    /// Time in UTC.
    pub at: NaiveTime,
    /// The schedule counts from here on.
    pub since: DateTime<Utc>,
}

impl DailyTime {
    /// Returns the time of a project without a chosen one: spread over the day.
    pub fn default_of(project: &ProjectRef, since: DateTime<Utc>) -> Self {
        let secs = hash(project) % DAY_SECS;
        // Whole minutes are easier to read.
        let at = NaiveTime::from_num_seconds_from_midnight_opt(secs / 60 * 60, 0);
        Self {
            at: at.unwrap_or(NaiveTime::MIN),
            since,
        }
    }

    /// Returns the last time at which a backup was due. `None` if there was none since the schedule
    /// was changed.
    fn last(self, project: &ProjectRef, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let spread = TimeDelta::seconds(i64::from(hash(project) % SPREAD_SECS));
        let today = now.date_naive().and_time(self.at).and_utc() + spread;
        let last = if today <= now {
            today
        } else {
            today.checked_sub_days(Days::new(1))?
        };
        (last - spread > self.since).then_some(last)
    }
}

/// A stable number of a project: FNV-1a.
fn hash(project: &ProjectRef) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    for byte in project.as_str().bytes() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash
}

/// The last base backup of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastBase {
    pub(super) inserted_at: DateTime<Utc>,
    pub(super) consistent_at: DateTime<Utc>,
    pub(super) start: Lsn,
}

/// The facts that decide whether a backup is due.
#[derive(Debug, Clone)]
pub(super) struct BaseSituation<'a> {
    pub(super) project: &'a ProjectRef,
    pub(super) now: DateTime<Utc>,
    pub(super) daily: DailyTime,
    /// The last base of the current archive that did not fail.
    pub(super) last: Option<LastBase>,
    /// Time of the last failure, and number of failures since the last success.
    pub(super) failed: Option<(DateTime<Utc>, i64)>,
    pub(super) shipped: Lsn,
    pub(super) last_commit_at: Option<DateTime<Utc>>,
}

impl BaseSituation<'_> {
    /// Returns why a base backup is due, if it is. A project without commits needs no second one.
    pub(super) fn due(&self) -> Option<BaseReason> {
        if self
            .failed
            .is_some_and(|(at, count)| self.now < at + BACKOFF.pause(count))
        {
            return None;
        }
        let Some(last) = self.last else {
            return Some(BaseReason::First);
        };
        if self.shipped.0.saturating_sub(last.start.0) >= VOLUME {
            return Some(BaseReason::Volume);
        }
        let wrote = self.last_commit_at > Some(last.consistent_at);
        let due = self.daily.last(self.project, self.now)?;
        (wrote && last.inserted_at < due).then_some(BaseReason::Schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        format!("2026-11-{text}:00Z").parse().unwrap()
    }

    fn project() -> ProjectRef {
        "abcdefghijklmnopqrst".parse().unwrap()
    }

    fn situation(project: &ProjectRef) -> BaseSituation<'_> {
        BaseSituation {
            project,
            now: at("24T12:00"),
            daily: DailyTime {
                at: NaiveTime::from_hms_opt(3, 0, 0).unwrap(),
                since: at("01T00:00"),
            },
            last: Some(LastBase {
                inserted_at: at("23T05:00"),
                consistent_at: at("23T05:00"),
                start: Lsn(1 << 20),
            }),
            failed: None,
            shipped: Lsn(1 << 21),
            last_commit_at: Some(at("23T10:00")),
        }
    }

    #[test]
    fn base_is_due_by_schedule_volume_or_absence() {
        let project = project();
        let usual = situation(&project);
        assert_eq!(usual.due(), Some(BaseReason::Schedule));
        let first = BaseSituation {
            last: None,
            last_commit_at: None,
            ..usual.clone()
        };
        assert_eq!(first.due(), Some(BaseReason::First));
        let much = BaseSituation {
            shipped: Lsn(1 << 31),
            last_commit_at: None,
            ..usual.clone()
        };
        assert_eq!(much.due(), Some(BaseReason::Volume));
        let idle = BaseSituation {
            last_commit_at: Some(at("23T04:00")),
            ..usual.clone()
        };
        assert_eq!(idle.due(), None, "an idle project needs no second one");
        let early = BaseSituation {
            now: at("24T02:59"),
            ..usual.clone()
        };
        assert_eq!(early.due(), None);
        let mut changed = usual;
        changed.daily.since = at("24T03:30");
        assert_eq!(changed.due(), None, "a change acts at the next window");
    }

    #[test]
    fn failed_base_is_tried_again_after_growing_pauses() {
        let project = project();
        for (count, minutes) in [(1, 1), (2, 2), (3, 4), (7, 60), (70, 60)] {
            let mut situation = situation(&project);
            situation.failed = Some((situation.now - TimeDelta::minutes(minutes - 1), count));
            assert_eq!(situation.due(), None, "{count}");
            situation.failed = Some((situation.now - TimeDelta::minutes(minutes), count));
            assert!(situation.due().is_some(), "{count}");
        }
    }

    #[test]
    fn default_times_are_spread_over_the_day() {
        let entropy = gantry_base::clock::Entropy::seeded(3);
        let mut hours = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let project = ProjectRef::generate(&entropy);
            let daily = DailyTime::default_of(&project, at("01T00:00"));
            hours.insert(chrono::Timelike::hour(&daily.at));
        }
        assert_eq!(hours.len(), 24);
    }
}
