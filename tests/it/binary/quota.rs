//! Rate limit counters survive the process.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;

use super::{
    machine::{Gantry, Machine},
    wire,
};

/// Sends one request of the operation with the longest window, three minutes, and returns the
/// remaining quota. The project does not exist; the request is counted anyway.
fn remaining(gantry: &Gantry) -> u32 {
    let path = "/v1/projects/aaaaaaaaaaaaaaaaaaaa/database/migrations";
    let answer = gantry.send("POST", path, Some(&json!({ "query": "select 1" })));
    answer.expect(404);
    answer.header("x-ratelimit-remaining").parse().unwrap()
}

#[test]
fn restart_keeps_rate_limit_counters() {
    let machine = Machine::new();
    let mut first = machine.dev(&[]);
    assert_eq!(
        [remaining(&first), remaining(&first), remaining(&first)],
        [119, 118, 117]
    );
    assert_eq!(first.stop(Signal::INT).code(), Some(0), "{}", first.log());

    let mut second = machine.dev(&[]);
    assert_eq!(remaining(&second), 116, "{}", second.log());
    assert_eq!(second.stop(Signal::INT).code(), Some(0), "{}", second.log());
}

/// Requests an operation with a limit of ten per minute from four clients at once, for a project
/// that does not exist. Returns the number of admitted requests; clients stop at the first
/// rejection or connection error.
fn admitted_in_burst(gantry: &Gantry, kill_after: Option<usize>) -> usize {
    let admitted = AtomicUsize::new(0);
    let (address, token) = (gantry.address, &gantry.token);
    thread::scope(|scope| {
        let client = || {
            while let Ok(answer) = wire::send(
                address,
                "GET",
                "/v1/projects/aaaaaaaaaaaaaaaaaaaa/vanity-subdomain",
                Some(token),
                None,
            ) {
                match answer.status {
                    404 => drop(admitted.fetch_add(1, Ordering::SeqCst)),
                    429 => return,
                    status => panic!("{status}: {answer:?}"),
                }
            }
        };
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        if let Some(after) = kill_after {
            while admitted.load(Ordering::SeqCst) < after
                && !clients.iter().all(thread::ScopedJoinHandle::is_finished)
            {
                thread::yield_now();
            }
            gantry.signal(Signal::KILL);
        }
    });
    admitted.into_inner()
}

#[test]
fn kill_during_burst_keeps_rate_limit_counters() {
    let machine = Machine::new();
    // Created beforehand, because the first start takes longest.
    assert_eq!(machine.dev(&[]).stop(Signal::INT).code(), Some(0));
    for kill_after in [1, 4, 7] {
        let first = machine.dev(&[]);
        let began = Instant::now();
        let before = admitted_in_burst(&first, Some(kill_after));
        first.kill();
        let mut second = machine.dev(&[]);
        let after = admitted_in_burst(&second, None);
        assert!(
            began.elapsed() < Duration::from_secs(55),
            "the window is over: this machine is too slow for the test"
        );
        assert!(before >= kill_after, "{before} before the kill");
        assert!(
            before + after <= 10,
            "{before} before the kill and {after} after it, of 10"
        );
        // Responses of up to four admitted requests may be lost; the journal records single
        // requests up to eight, and then every second.
        assert!(
            before + after >= 5,
            "{before} before the kill and {after} after it, of 10"
        );
        assert_eq!(second.stop(Signal::INT).code(), Some(0), "{}", second.log());
        fs::remove_file(machine.data().join("limits")).unwrap();
    }
}

#[test]
fn graceful_stop_keeps_exact_count() {
    let machine = Machine::new();
    let mut first = machine.dev(&[]);
    for remaining_after in (108..120).rev() {
        assert_eq!(remaining(&first), remaining_after);
    }
    assert_eq!(first.stop(Signal::INT).code(), Some(0), "{}", first.log());
    assert_eq!(
        machine
            .names("")
            .iter()
            .filter(|name| name.starts_with("limits.log"))
            .count(),
        0,
        "no log is left"
    );
    // Twelve requests were used; the step of the twelfth ends there, and the next step at fourteen.
    let mut second = machine.dev(&[]);
    assert_eq!(remaining(&second), 107, "{}", second.log());
    second.signal(Signal::KILL);
    second.ended();
    let mut third = machine.dev(&[]);
    assert_eq!(
        remaining(&third),
        105,
        "the allotment of two counts as used\n{}",
        third.log()
    );
    assert_eq!(third.stop(Signal::INT).code(), Some(0), "{}", third.log());
}
