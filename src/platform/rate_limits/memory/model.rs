//! Property tests against a simple model.

use std::collections::HashMap;

use gantry_base::ids::{OrganizationId, ProjectId, UserId};
use proptest::prelude::*;

use super::*;
use crate::platform::rate_limits::{CounterScope, Quota, counter::secs_up, per};

/// End and count of each key's windows.
#[derive(Default)]
struct Model {
    latest: Ticks,
    open: HashMap<(CounterKey, usize), (Ticks, u32)>,
}

impl Model {
    fn windows(&mut self, key: CounterKey, windows: &[Window], now: Ticks) -> Vec<(Ticks, u32)> {
        self.latest = self.latest.max(now);
        let open = |(index, window): (usize, &Window)| match self.open.get(&(key, index)) {
            Some(&(ends, used)) if ends > self.latest => (ends, used),
            _ => (self.latest + window.millis(), 0),
        };
        windows.iter().enumerate().map(open).collect()
    }

    fn quotas(&self, counts: &[(Ticks, u32)], windows: &[Window]) -> Quotas {
        Quotas::new(
            counts
                .iter()
                .zip(windows)
                .map(|((ends, used), window)| Quota {
                    limit: window.requests,
                    remaining: window.requests - used,
                    reset_secs: secs_up(ends - self.latest),
                }),
        )
    }

    fn take(&mut self, key: CounterKey, windows: &[Window], now: Ticks) -> LimitDecision {
        let mut counts = self.windows(key, windows, now);
        let admitted = counts
            .iter()
            .zip(windows)
            .all(|((_, used), window)| *used < window.requests);
        if admitted {
            for (_, used) in &mut counts {
                *used += 1;
            }
            self.open.extend(
                counts
                    .iter()
                    .enumerate()
                    .map(|(index, count)| ((key, index), *count)),
            );
        }
        LimitDecision::local(admitted, self.quotas(&counts, windows))
    }

    fn give_back(&mut self, key: CounterKey, windows: &[Window], taken: Ticks) {
        for (index, window) in windows.iter().enumerate() {
            if let Some((ends, used)) = self.open.get_mut(&(key, index)) {
                let holds = (ends.saturating_sub(window.millis())..*ends).contains(&taken);
                *used -= u32::from(holds && *used > 0);
                if *used == 0 {
                    self.open.remove(&(key, index));
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum ModelStep {
    Take,
    Peek,
    GiveBack,
    /// Export to a snapshot and import into a new engine.
    Restart,
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![20 => Just(ModelStep::Take), 3 => Just(ModelStep::Peek), 4 => Just(ModelStep::GiveBack), 1 => Just(ModelStep::Restart)]
}

fn key() -> impl Strategy<Value = CounterKey> {
    let identifier = prop_oneof![
        (0..3_i64).prop_map(|n| Identifier::User(UserId(n))),
        (0..3_u64).prop_map(Identifier::Address),
        (0..200_u64).prop_map(Identifier::Address)
    ];
    let scope = prop_oneof![
        Just(CounterScope::User),
        Just(CounterScope::Unresolved),
        (0..2_i64).prop_map(|n| CounterScope::Organization(OrganizationId(n))),
        (0..2_i64).prop_map(|n| CounterScope::Project(ProjectId(n)))
    ];
    (identifier, scope, 0..4_u16).prop_map(|(identifier, scope, operation)| CounterKey {
        identifier,
        scope,
        operation,
    })
}

/// A step of time: none, a few milliseconds back as between threads, within a window, or beyond it.
fn elapsed() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(0), 2 => -5..0_i64, 4 => 1..700_i64, 1 => 700..4_000_i64]
}

/// Windows of each operation, small enough to be exhausted.
const LIMITS: [&[Window]; 4] = [
    &[per(3, 2)],
    &[per(4, 3), per(1, 1)],
    &[per(2, 1), per(5, 2)],
    &[per(1, 1)],
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// While the table is not full, counters are admitted, reported, given back and restored as in
    /// the model.
    #[test]
    fn counters_match_the_model(steps in prop::collection::vec((step(), key(), elapsed()), 1..400)) {
        let engine = || Memory::new(CounterCapacity { known: 2_048, addresses: 2_048 }, &[], [9; 32]);
        let (mut limits, mut model) = (engine(), Model::default());
        let mut now: Ticks = 10;
        for (step, key, elapsed) in steps {
            let before = now;
            now = now.saturating_add_signed(elapsed);
            let windows = LIMITS[usize::from(key.operation)];
            match step {
                ModelStep::Take => prop_assert_eq!(limits.take(key, windows, now), model.take(key, windows, now)),
                ModelStep::Peek => {
                    let counts = model.windows(key, windows, now);
                    prop_assert_eq!(limits.peek(key, windows, now), model.quotas(&counts, windows));
                }
                ModelStep::GiveBack => {
                    limits.give_back(key, windows, before);
                    model.give_back(key, windows, before);
                }
                ModelStep::Restart => {
                    model.latest = model.latest.max(now);
                    let restarted = engine();
                    restarted.import(limits.export(now).collect::<Vec<_>>(), model.latest);
                    limits = restarted;
                    model.open.retain(|_, (ends, _)| *ends > model.latest);
                }
            }
        }
    }

    /// Even with a full table no key is admitted more often than its limit within a window of its
    /// own requests.
    #[test]
    fn full_table_never_admits_too_much(steps in prop::collection::vec((key(), elapsed()), 1..400)) {
        let limits = Memory::new(CounterCapacity { known: 6, addresses: 6 }, &[], [9; 32]);
        let mut admitted: HashMap<CounterKey, Vec<Ticks>> = HashMap::new();
        let mut now: Ticks = 10;
        for (key, elapsed) in steps {
            now += elapsed.unsigned_abs();
            let windows = LIMITS[usize::from(key.operation)];
            if limits.take(key, windows, now).admitted {
                admitted.entry(key).or_default().push(now);
            }
        }
        for (key, times) in admitted {
            for window in LIMITS[usize::from(key.operation)] {
                // Fixed windows admit at most twice the limit in any span of one window's length.
                for (at, time) in times.iter().enumerate() {
                    let span = times[at..].iter().take_while(|later| **later < time + window.millis()).count();
                    prop_assert!(span <= 2 * window.requests as usize, "{key:?} {span} of {window:?}");
                }
            }
        }
        prop_assert!(limits.bytes() < 1_024);
    }
}
