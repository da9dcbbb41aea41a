//! Limits of processor time of functions. Memory is limited by the kernel.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::Ordering,
    time::Duration,
};

use gantry_base::clock::Ticks;
use gantry_node::proc_files::ProcessFiles;
use rustix::process::{Pid, Signal};
use tokio::time::interval;

use crate::control::context::ControlContext;

/// Interval of measurements.
const INTERVAL: Duration = Duration::from_millis(100);
/// Processor time from the start of the oldest unanswered request, in milliseconds.
const REQUEST_CPU_MAX: u64 = 2000;
/// The period of the limit that applies without a request too, in milliseconds.
const PERIOD: Ticks = 5000;
/// Processor time in that period, in milliseconds.
const PERIOD_CPU_MAX: u64 = 4900;
/// Measurements of a process that are kept: those of an old request are thinned.
const SAMPLES_MAX: usize = 256;

/// Measured processor time of a process.
#[derive(Debug, Default)]
struct CpuSamples(VecDeque<(Ticks, u64)>);

impl CpuSamples {
    fn add(&mut self, now: Ticks, cpu: u64) {
        if self.0.len() >= SAMPLES_MAX {
            // Every second one of the older half.
            let mut index = 0;
            self.0.retain(|_| {
                index += 1;
                index > SAMPLES_MAX / 2 || index % 2 == 1
            });
        }
        self.0.push_back((now, cpu));
    }

    /// Returns the processor time since the last measurement before `then`.
    fn since(&self, then: Ticks) -> u64 {
        let last = self.0.back().map_or(0, |(_, cpu)| *cpu);
        let before = self.0.iter().rev().find(|(at, _)| *at <= then);
        // A process that is younger used all of it since then.
        last - before.map_or(0, |(_, cpu)| *cpu)
    }

    /// Returns whether a process must be ended.
    fn exceeds(&self, now: Ticks, oldest: Option<Ticks>) -> bool {
        let by_request = oldest.is_some_and(|oldest| self.since(oldest) > REQUEST_CPU_MAX);
        let begin = now.saturating_sub(PERIOD);
        let is_complete = self.0.front().is_some_and(|(at, _)| *at <= begin);
        by_request || (is_complete && self.since(begin) > PERIOD_CPU_MAX)
    }
}

/// Ends processes of functions that use too much processor time. Runs until it is dropped.
pub async fn watch(context: ControlContext) {
    let mut rounds = interval(INTERVAL);
    let mut measured: HashMap<Pid, CpuSamples> = HashMap::new();
    loop {
        rounds.tick().await;
        let now = context.clock.ticks();
        let mut seen = HashMap::with_capacity(measured.len());
        for instance in context.services.instances() {
            let Some(running) = instance.running() else {
                continue;
            };
            if running.id.function.is_none() {
                continue;
            }
            let pid = running.pid;
            let Some(stat) = ProcessFiles::of(pid).stat() else {
                continue;
            };
            let mut samples = measured.remove(&pid).unwrap_or_default();
            samples.add(now, stat.processor_ms);
            if samples.exceeds(now, running.requests.oldest_unanswered()) {
                running.exceeded.store(true, Ordering::Release);
                // It may have ended meanwhile.
                let _ = running.handle.signal(Signal::KILL);
            }
            seen.insert(pid, samples);
        }
        measured = seen;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_counts_from_the_oldest_unanswered_request() {
        let mut samples = CpuSamples::default();
        for (now, cpu) in [(0, 50), (100, 1000), (200, 2500), (300, 3010)] {
            samples.add(now, cpu);
        }
        assert_eq!(samples.since(150), 2010);
        assert!(samples.exceeds(300, Some(150)));
        assert!(!samples.exceeds(300, Some(250)));
        assert!(!samples.exceeds(300, None), "no request, and not for long");
    }

    #[test]
    fn process_that_only_computes_is_ended_without_a_request() {
        let mut busy = CpuSamples::default();
        let mut calm = CpuSamples::default();
        for round in 0..=60 {
            busy.add(round * 100, round * 100);
            calm.add(round * 100, round * 80);
        }
        assert!(busy.exceeds(6000, None));
        assert!(!calm.exceeds(6000, None));
    }

    #[test]
    fn samples_are_bounded_and_keep_the_oldest() {
        let mut samples = CpuSamples::default();
        for round in 0..10_000 {
            samples.add(round, round);
        }
        assert!(samples.0.len() <= SAMPLES_MAX);
        assert_eq!(samples.since(0), 9999);
    }
}
