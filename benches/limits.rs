//! `cargo bench --bench limits`: cost of one decision, compared with `governor` and `limitador`.
//!
//! All run in turns in one thread. Its processor time is measured, so that other load on the
//! machine affects all of them. Printed are medians over the rounds, of the time and of the ratio
//! within a round. Every decision admits.
//!
//! `cargo bench --bench limits -- --count N` makes N decisions and nothing else, for
//! `bin/count-instructions`.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{env, num::NonZeroU32};

use gantry::platform::rate_limits::{
    CounterCapacity, CounterKey, CounterScope, Identifier, Memory, Window, per,
};
use gantry_base::ids::{OrganizationId, UserId};
use governor::{Quota, RateLimiter};
use limitador::limit::{Context, Limit, Namespace};
use rustix::time::{ClockId, clock_gettime};

/// A limit that is never reached.
const MANY: u32 = 8_000_000;
const ONE: &[Window] = &[per(MANY, 60)];
const TWO: &[Window] = &[per(MANY, 60), per(MANY, 1)];
const ROUNDS: usize = 31;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<_> = env::args().collect();
    if let Some(place) = arguments.iter().position(|argument| argument == "--count") {
        let decisions = arguments.get(place + 1).ok_or("--count N")?.parse()?;
        count(decisions);
        return Ok(());
    }
    println!("{ROUNDS} interleaved rounds, processor time of one thread; medians");
    compare(1_000, 50_000)?;
    compare(1_000_000, 200_000)?;
    Ok(())
}

/// Makes equal decisions on a thousand keys, for a counter of instructions.
fn count(decisions: u64) {
    let memory = Memory::new(CounterCapacity::default(), &[], [7; 32]);
    let mut admitted = 0_u64;
    for n in 0..decisions {
        admitted += u64::from(memory.take(key(n % 1_000), ONE, 1_000 + n / 1_000).admitted);
    }
    assert_eq!(admitted, decisions);
}

fn key(number: u64) -> CounterKey {
    let number = i64::try_from(number).unwrap_or_default();
    CounterKey {
        identifier: Identifier::User(UserId(number)),
        scope: CounterScope::Organization(OrganizationId(number >> 3)),
        operation: 7,
    }
}

/// A limiter under test.
struct Contender<'a> {
    name: &'static str,
    decide: Box<dyn FnMut(u64) -> bool + 'a>,
    /// Decisions per round: fewer for slower limiters.
    decisions: u64,
    nanos: Vec<f64>,
}

fn compare(keys: u64, decisions: u64) -> Outcome<()> {
    let (one, two) = (Memory::default(), Memory::default());
    let quota = Quota::per_minute(NonZeroU32::new(MANY).ok_or("a quota")?);
    let governor = RateLimiter::keyed(quota);
    let limitador = limitador::RateLimiter::new(keys * 2);
    limitador.add_limit(Limit::new(
        "bench",
        u64::from(MANY),
        60,
        vec![],
        vec!["key".try_into()?],
    ));
    let namespace = Namespace::from("bench");

    let mut contenders = [
        Contender {
            name: "the loop and its key",
            decide: Box::new(|n| std::hint::black_box(key(n)).operation == 7),
            decisions,
            nanos: vec![],
        },
        Contender {
            name: "gantry, one window",
            decide: Box::new(|n| one.take(key(n), ONE, 1_000).admitted),
            decisions,
            nanos: vec![],
        },
        Contender {
            name: "gantry, two windows",
            decide: Box::new(|n| two.take(key(n), TWO, 1_000).admitted),
            decisions,
            nanos: vec![],
        },
        Contender {
            name: "governor",
            decide: Box::new(|n| governor.check_key(&key(n)).is_ok()),
            decisions,
            nanos: vec![],
        },
        Contender {
            name: "limitador",
            decide: Box::new(|n| {
                let context = Context::from(std::collections::HashMap::from([(
                    "key".to_owned(),
                    n.to_string(),
                )]));
                limitador
                    .check_rate_limited_and_update(&namespace, &context, 1)
                    .is_ok_and(|verdict| !verdict.limited)
            }),
            decisions: decisions / 50,
            nanos: vec![],
        },
    ];
    // Each key is used once before, as in a running node.
    for contender in &mut contenders {
        let known = if contender.name == "limitador" {
            keys.min(20_000)
        } else {
            keys
        };
        for n in 0..known {
            assert!((contender.decide)(n), "{} refused", contender.name);
        }
    }
    for round in 0..ROUNDS {
        for contender in &mut contenders {
            contender.round(keys, u64::try_from(round)?);
        }
    }
    println!(
        "\n{keys} keys, uniform{:28} {:>10} {:>12} {:>12}",
        "", "ns", "of governor", "of limitador"
    );
    for contender in &contenders {
        let of = |other: &Contender<'_>| {
            median(
                contender
                    .nanos
                    .iter()
                    .zip(&other.nanos)
                    .map(|(own, other)| own / other)
                    .collect(),
            )
        };
        let (governor, limitador) = (of(&contenders[3]), of(&contenders[4]));
        println!(
            "{:48} {:10.1} {governor:12.3} {limitador:12.4}",
            contender.name,
            median(contender.nanos.clone())
        );
    }
    let counters = f64::from(u32::try_from(keys)?);
    println!(
        "{:48} {:10.1} bytes a counter",
        "gantry, one window",
        bytes(&one) / counters
    );
    println!(
        "{:48} {:10.1} bytes a counter",
        "gantry, two windows",
        bytes(&two) / counters / 2.0
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "less than 2^52 bytes")]
fn bytes(memory: &Memory) -> f64 {
    memory.bytes() as f64
}

impl Contender<'_> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "nanoseconds of less than a second"
    )]
    fn round(&mut self, keys: u64, round: u64) {
        // All limiters get the keys in the same order.
        let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ round << 32;
        let before = processor_time();
        for _ in 0..self.decisions {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            assert!((self.decide)(random % keys), "{} refused", self.name);
        }
        self.nanos
            .push((processor_time() - before) as f64 / self.decisions as f64);
    }
}

/// Returns the processor time of this thread in nanoseconds.
fn processor_time() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
