//! Random input for parsers of bytes from outside: each target takes bytes, and panics if a
//! property does not hold.
//!
//! A target is a function of bytes, as `cargo fuzz` expects; its seeds are files in
//! `corpus/<target>`. The tests here change seeds at random, a bounded number of times. `just fuzz
//! TARGET SECONDS` goes on for longer. See README.md.

mod hosts;
mod http_framing;
mod input;
mod log_sql;
mod request_targets;
mod startup_packet;
mod tokens;

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use proptest::test_runner::{Config, TestError, TestRunner};

/// A parser under test.
struct Target {
    /// The name of the target, and of its folder of seeds.
    name: &'static str,
    /// Panics if a property does not hold for these bytes.
    check: fn(&[u8]),
    /// Inputs in a normal test run, besides the seeds.
    cases: u32,
    /// Tokens of the parser, inserted at random.
    tokens: &'static [&'static str],
}

impl Target {
    /// Checks all seeds, then inputs made from them: `cases` of them, or for `GANTRY_FUZZ_SECONDS`.
    fn run(&self) {
        let seeds = self.seeds();
        for seed in &seeds {
            (self.check)(seed);
        }
        let config = Config {
            cases: self.cases,
            failure_persistence: None,
            ..Config::default()
        };
        let Some(time) = fuzz_time() else {
            // The same inputs in every run, so that an unrelated change never fails here.
            let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
            self.run_cases(&mut TestRunner::new_with_rng(config, rng), &seeds);
            return;
        };
        #[expect(clippy::disallowed_methods, reason = "the time to run for is given")]
        let start = Instant::now();
        let mut cases = 0;
        while start.elapsed() < time {
            self.run_cases(&mut TestRunner::new(config.clone()), &seeds);
            cases += self.cases;
        }
        tracing::info!(target = self.name, cases, "no failure");
    }

    fn run_cases(&self, runner: &mut TestRunner, seeds: &[Vec<u8>]) {
        let inputs = input::from_seeds(seeds, self.tokens);
        let checked = runner.run(&inputs, |bytes| {
            (self.check)(&bytes);
            Ok(())
        });
        match checked {
            Ok(()) => {}
            Err(TestError::Fail(reason, bytes)) => panic!(
                "{}: {reason}\nSmallest input: b\"{}\"\nFix the defect, and add the input to tests/fuzz/corpus/{}.",
                self.name,
                bytes.escape_ascii(),
                self.name
            ),
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
        let mut files: Vec<_> = fs::read_dir(folder.join(self.name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert!(files.len() >= 3, "{} has too few seeds", self.name);
        files.iter().map(|file| fs::read(file).unwrap()).collect()
    }
}

/// Duration of each target, if configured.
fn fuzz_time() -> Option<Duration> {
    let seconds = env::var("GANTRY_FUZZ_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().unwrap()))
}

#[test]
fn log_sql_is_answered_or_refused() {
    log_sql::TARGET.run();
}

#[test]
fn tokens_are_accepted_in_one_form_only() {
    tokens::TARGET.run();
}

#[test]
fn hosts_are_read_alike_by_both_lookups() {
    hosts::TARGET.run();
}

#[test]
fn startup_packet_is_rewritten_without_loss() {
    startup_packet::TARGET.run();
}

#[test]
fn http_framing_finds_every_second_length() {
    http_framing::TARGET.run();
}

#[test]
fn request_targets_have_no_dot_segments() {
    request_targets::TARGET.run();
}
