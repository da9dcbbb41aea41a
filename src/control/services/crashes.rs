//! Processes that ended under requests (decision 0170): the callers that are limited for it, and
//! versions that are started less often.
//!
//! The end of a process is one unit, shared by the callers that it is charged to. The part of a
//! caller is smaller the more of its requests the process answered before, and never more than an
//! equal one: a caller cannot move its charges to others by many harmless requests. A caller with
//! [`CALLER_UNITS_MAX`] units within [`WINDOW`] is limited. One end limits one caller, the one with
//! the most units, and the others are charged anew from then on. While several have the same units,
//! the next ends decide, up to [`SHARED_UNITS_MAX`]. A version with [`ENDS_MAX`] ends within the
//! window is slowed for all callers. Pure, with the time as a parameter.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicUsize, Ordering},
};

use gantry_base::{clock::Ticks, ids::ProjectId};
use gantry_node::kits::Service;
use ipnet::IpNet;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::proxy::service_caller::ServiceCaller;

/// Time in which ends of processes are counted, in milliseconds.
pub(super) const WINDOW: Ticks = 60_000;
/// Parts of a unit, which several callers may share.
const UNIT: u32 = 1000;
/// Ended processes within the window after which a caller is limited.
const CALLER_UNITS_MAX: u32 = 3;
/// Ended processes after which a caller is limited while another one has as many.
const SHARED_UNITS_MAX: u32 = 2 * CALLER_UNITS_MAX;
/// Ended processes of a version within the window after which it is slowed.
const ENDS_MAX: usize = 20;
/// Distance between the starts of a slowed version, in milliseconds.
pub(super) const SLOWED_INTERVAL: Ticks = 5000;
/// Callers of a version that are remembered. Further ones are not charged.
const CALLERS_MAX: usize = 1024;
/// Charges of a caller that are remembered.
const CHARGES_MAX: usize = 64;

/// Returns the properties by which a caller is recognised.
fn caller_keys(caller: ServiceCaller) -> impl Iterator<Item = CallerKey> {
    let network = CallerKey::Network(caller.network);
    [Some(network), caller.token.map(CallerKey::Token)]
        .into_iter()
        .flatten()
}

/// A caller that the end of a process is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChargedCaller {
    pub(super) caller: ServiceCaller,
    /// Requests of the caller that the process answered.
    pub(super) answered: u32,
}

impl ChargedCaller {
    /// Weight of the caller's part of a unit.
    fn weight(self) -> u32 {
        (UNIT / (self.answered.saturating_add(1))).max(1)
    }
}

/// A property by which a caller is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum CallerKey {
    Network(IpNet),
    Token(u64),
}

/// A program with counted ends of its processes: a project's service, or a version of a function.
pub(super) type CrashScope = (ProjectId, Service, Option<Uuid>);

#[derive(Debug, Default)]
struct ScopeCrashes {
    /// Times of the last ends, oldest first.
    ends: VecDeque<Ticks>,
    /// Times and shares of the charges of a caller.
    callers: HashMap<CallerKey, VecDeque<(Ticks, u32)>>,
    /// Limited callers, and the time until which they are.
    limited: HashMap<CallerKey, Ticks>,
    /// The earliest time of the next start while it is slowed.
    next_start: Ticks,
}

fn is_over(then: Ticks, now: Ticks) -> bool {
    now.saturating_sub(then) >= WINDOW
}

impl ScopeCrashes {
    fn expire(&mut self, now: Ticks) {
        while self.ends.front().is_some_and(|then| is_over(*then, now)) {
            self.ends.pop_front();
        }
        self.callers.retain(|_, charges| {
            while charges.front().is_some_and(|(then, _)| is_over(*then, now)) {
                charges.pop_front();
            }
            !charges.is_empty()
        });
        self.limited.retain(|_, until| *until > now);
    }

    fn record(&mut self, charged: &[ChargedCaller], now: Ticks) -> Ticks {
        self.expire(now);
        if self.ends.len() >= ENDS_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back(now);
        let mut weights: Vec<(CallerKey, u32)> = Vec::new();
        let (mut sum, mut networks) = (0_u32, 0_u32);
        for charged in charged {
            for key in caller_keys(charged.caller) {
                let is_known = weights.iter().any(|(known, _)| *known == key);
                if is_known || weights.len() >= CALLERS_MAX {
                    continue;
                }
                if matches!(key, CallerKey::Network(_)) {
                    sum += charged.weight();
                    networks += 1;
                }
                weights.push((key, charged.weight()));
            }
        }
        let share_max = (UNIT / networks.max(1)).max(1);
        for (key, weight) in weights {
            let share = (UNIT * weight / sum.max(1)).clamp(1, share_max);
            if self.callers.len() >= CALLERS_MAX && !self.callers.contains_key(&key) {
                continue;
            }
            let charges = self.callers.entry(key).or_default();
            if charges.len() >= CHARGES_MAX {
                charges.pop_front();
            }
            charges.push_back((now, share));
        }
        self.limit_one(charged, now);
        if self.ends.len() < ENDS_MAX {
            return now;
        }
        let start_at = self.next_start.max(now + SLOWED_INTERVAL);
        self.next_start = start_at + SLOWED_INTERVAL;
        start_at
    }

    /// Limits the caller of an end with the most units, if it has enough of them, and removes the
    /// charges of the others: callers with requests always in flight beside it would be
    /// limited with it otherwise. While two callers have the same units, the next ends decide.
    fn limit_one(&mut self, charged: &[ChargedCaller], now: Ticks) {
        let units = |caller: ServiceCaller| {
            let units = caller_keys(caller).map(|key| self.units(key, now));
            units.max().unwrap_or(0)
        };
        let callers = || charged.iter().map(|one| one.caller);
        let Some(most) = callers().max_by_key(|caller| units(*caller)) else {
            return;
        };
        let keys: Vec<CallerKey> = caller_keys(most).collect();
        let is_other =
            |caller: &ServiceCaller| !caller_keys(*caller).any(|key| keys.contains(&key));
        let is_shared = callers()
            .filter(is_other)
            .any(|other| units(other) == units(most));
        let units_max = if is_shared {
            SHARED_UNITS_MAX
        } else {
            CALLER_UNITS_MAX
        };
        if units(most) < units_max * UNIT {
            return;
        }
        for key in &keys {
            if let Some(until) = self.limit_end(*key, now) {
                self.limited.insert(*key, until);
            }
        }
        for key in callers().filter(is_other).flat_map(caller_keys) {
            self.callers.remove(&key);
        }
    }

    /// Returns the units of a caller within the window, in parts of [`UNIT`].
    fn units(&self, key: CallerKey, now: Ticks) -> u32 {
        let charges = self.callers.get(&key).into_iter().flatten();
        let current = charges.filter(|(then, _)| !is_over(*then, now));
        current.map(|(_, share)| share).sum()
    }

    /// Returns whether the program is slowed for all callers.
    fn is_slowed(&self, now: Ticks) -> bool {
        let current = self.ends.iter().filter(|then| !is_over(**then, now));
        current.count() >= ENDS_MAX
    }

    /// Returns when enough charges of a caller have expired, if it has too many.
    fn limit_end(&self, key: CallerKey, now: Ticks) -> Option<Ticks> {
        let charges = self.callers.get(&key)?;
        let current = charges.iter().filter(|(then, _)| !is_over(*then, now));
        let mut sum = self.units(key, now);
        let mut until = None;
        for (then, share) in current {
            if sum < CALLER_UNITS_MAX * UNIT {
                break;
            }
            sum -= share;
            until = Some(then + WINDOW);
        }
        until
    }
}

/// Ended processes of all services.
#[derive(Debug, Default)]
pub(super) struct CrashTable {
    scopes: Mutex<HashMap<CrashScope, ScopeCrashes>>,
    /// Number of scopes, so that requests need no lock while there are none.
    count: AtomicUsize,
}

impl CrashTable {
    /// Records the end of a process that served requests. Returns when the next one may be started:
    /// now, unless the program is slowed.
    pub(super) fn record(&self, scope: CrashScope, charged: &[ChargedCaller], now: Ticks) -> Ticks {
        let mut scopes = self.scopes.lock();
        let start_at = scopes.entry(scope).or_default().record(charged, now);
        self.count.store(scopes.len(), Ordering::Release);
        start_at
    }

    /// Returns for how many seconds a caller is limited, if it is.
    pub(super) fn limited(
        &self,
        scope: CrashScope,
        caller: ServiceCaller,
        now: Ticks,
    ) -> Option<u32> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let scopes = self.scopes.lock();
        let crashes = scopes.get(&scope)?;
        let until = caller_keys(caller).filter_map(|key| crashes.limited.get(&key));
        let millis = until.max()?.checked_sub(now).filter(|left| *left > 0)?;
        Some(u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// Returns the programs of a project that are slowed.
    pub(super) fn slowed(&self, project: ProjectId, now: Ticks) -> Vec<CrashScope> {
        let scopes = self.scopes.lock();
        let slowed = scopes
            .iter()
            .filter(|((of, ..), crashes)| *of == project && crashes.is_slowed(now));
        slowed.map(|(scope, _)| *scope).collect()
    }

    /// Removes entries without an end in the window.
    pub(super) fn forget(&self, now: Ticks) {
        let mut scopes = self.scopes.lock();
        scopes.retain(|_, crashes| {
            crashes.expire(now);
            !crashes.ends.is_empty()
        });
        self.count.store(scopes.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const SCOPE: CrashScope = (ProjectId(1), Service::Functions, None);

    fn caller(last: u8) -> ServiceCaller {
        ServiceCaller::of_address([192, 0, 2, last].into())
    }

    fn charged<const N: usize>(callers: [ServiceCaller; N]) -> [ChargedCaller; N] {
        callers.map(|caller| ChargedCaller {
            caller,
            answered: 0,
        })
    }

    fn end(answered: [u32; 4]) -> [ChargedCaller; 4] {
        let mut last = 0;
        answered.map(|answered| {
            last += 1;
            ChargedCaller {
                caller: caller(last),
                answered,
            }
        })
    }

    #[test]
    fn callers_with_answered_requests_are_not_limited_with_one_that_has_none() {
        let table = CrashTable::default();
        for _ in 0..12 {
            assert_eq!(table.limited(SCOPE, caller(1), 0), None);
            table.record(SCOPE, &end([0, 20, 20, 20]), 0);
        }
        assert!(table.limited(SCOPE, caller(1), 0).is_some());
        // As often as a version may end before it is slowed.
        for _ in 12..ENDS_MAX {
            table.record(SCOPE, &end([0, 20, 20, 20]), 0);
        }
        assert!((2..=4).all(|other| table.limited(SCOPE, caller(other), 0).is_none()));
    }

    #[test]
    fn callers_always_in_flight_are_not_limited_with_the_one_that_ends_processes() {
        let table = CrashTable::default();
        // No process answers anything before it ends, until one answers the second caller.
        for _ in 0..8 {
            table.record(SCOPE, &charged([caller(1), caller(2)]), 0);
            assert_eq!(table.limited(SCOPE, caller(1), 0), None);
            assert_eq!(table.limited(SCOPE, caller(2), 0), None);
        }
        let [first, second, ..] = end([0, 1, 0, 0]);
        table.record(SCOPE, &[first, second], 0);
        assert!(table.limited(SCOPE, caller(1), 0).is_some());
        for _ in 0..2 {
            // Charged anew.
            table.record(SCOPE, &charged([caller(2)]), 0);
            assert_eq!(table.limited(SCOPE, caller(2), 0), None);
        }
    }

    #[test]
    fn callers_that_always_end_processes_together_are_limited() {
        let table = CrashTable::default();
        let is_limited = |last| table.limited(SCOPE, caller(last), 0).is_some();
        for _ in 0..12 {
            assert!(!is_limited(1) && !is_limited(2));
            table.record(SCOPE, &charged([caller(1), caller(2)]), 0);
        }
        assert!(is_limited(1) != is_limited(2), "one at a time");
        let other = if is_limited(1) { 2 } else { 1 };
        for _ in 0..3 {
            table.record(SCOPE, &charged([caller(other)]), 0);
        }
        assert!(is_limited(other));
    }

    #[test]
    fn many_answered_requests_do_not_move_charges_to_others() {
        let table = CrashTable::default();
        for _ in 0..11 {
            table.record(SCOPE, &end([100_000, 0, 0, 0]), 0);
        }
        // An equal part is a quarter.
        assert!((2..=4).all(|other| table.limited(SCOPE, caller(other), 0).is_none()));
    }

    #[test]
    fn caller_that_ends_processes_is_limited_until_the_window_has_passed() {
        let table = CrashTable::default();
        for now in [0, 1000, 2000] {
            assert_eq!(table.limited(SCOPE, caller(1), now), None);
            assert_eq!(table.record(SCOPE, &charged([caller(1)]), now), now);
        }
        assert_eq!(table.limited(SCOPE, caller(1), 2000), Some(58));
        assert_eq!(table.limited(SCOPE, caller(2), 2000), None, "another");
        let other = (ProjectId(1), Service::Functions, Some(Uuid::nil()));
        assert_eq!(table.limited(other, caller(1), 2000), None);
        assert_eq!(table.limited(SCOPE, caller(1), 59_999), Some(1));
        assert_eq!(table.limited(SCOPE, caller(1), 60_000), None);
        table.record(SCOPE, &charged([caller(1)]), 60_000);
        assert_eq!(table.limited(SCOPE, caller(1), 60_000), Some(1));
        table.forget(200_000);
        assert!(table.scopes.lock().is_empty());
    }

    #[test]
    fn addresses_of_one_network_and_one_token_are_one_caller() {
        let of = |text: &str| ServiceCaller::of_address(text.parse().unwrap());
        let table = CrashTable::default();
        for last in 1..=3 {
            table.record(SCOPE, &charged([of(&format!("2001:db8::{last}"))]), 0);
        }
        assert!(table.limited(SCOPE, of("2001:db8::9"), 0).is_some());
        assert!(table.limited(SCOPE, of("2001:db8:0:1::9"), 0).is_none());
        let table = CrashTable::default();
        for last in 1..=3 {
            table.record(SCOPE, &charged([caller(last).with_token("t")]), 0);
        }
        assert!(table.limited(SCOPE, caller(9).with_token("t"), 0).is_some());
        assert!(table.limited(SCOPE, caller(9).with_token("u"), 0).is_none());
        assert!(table.limited(SCOPE, caller(1), 0).is_none());
    }

    #[test]
    fn callers_in_flight_share_one_end() {
        let table = CrashTable::default();
        // Always in flight beside others, of which each was there once.
        for other in 2..=6 {
            table.record(
                SCOPE,
                &charged([caller(1), caller(other), caller(other)]),
                0,
            );
            assert_eq!(table.limited(SCOPE, caller(1), 0), None);
        }
        table.record(SCOPE, &charged([caller(1), caller(7)]), 0);
        assert!(table.limited(SCOPE, caller(1), 0).is_some());
        assert!((2..=7).all(|other| table.limited(SCOPE, caller(other), 0).is_none()));
    }

    #[test]
    fn version_that_ends_for_many_callers_is_started_at_the_slow_rate() {
        let table = CrashTable::default();
        for end in 1..20 {
            assert_eq!(table.record(SCOPE, &charged([caller(end)]), 100), 100);
        }
        assert_eq!(table.slowed(ProjectId(1), 100), []);
        assert_eq!(table.record(SCOPE, &charged([caller(20)]), 100), 5100);
        assert_eq!(table.slowed(ProjectId(1), 60_099), [SCOPE]);
        assert_eq!(table.slowed(ProjectId(2), 100), [], "another project");
        assert_eq!(table.slowed(ProjectId(1), 60_100), []);
        assert_eq!(
            table.record(SCOPE, &charged([caller(21)]), 200),
            10_100,
            "its spare"
        );
        assert_eq!(table.record(SCOPE, &charged([caller(22)]), 20_000), 25_000);
        // After a calm minute it is as before.
        assert_eq!(table.record(SCOPE, &charged([caller(23)]), 90_000), 90_000);
    }

    #[test]
    fn charges_are_bounded() {
        let table = CrashTable::default();
        for each in 0..5000_u32 {
            let address = IpAddr::from(each.to_be_bytes());
            table.record(
                SCOPE,
                &charged([ServiceCaller::of_address(address), caller(1)]),
                0,
            );
        }
        let scopes = table.scopes.lock();
        let crashes = &scopes[&SCOPE];
        assert!(crashes.callers.len() <= CALLERS_MAX && crashes.ends.len() <= ENDS_MAX);
        assert!(crashes.callers.values().all(|one| one.len() <= CHARGES_MAX));
    }
}
