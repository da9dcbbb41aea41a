//! Counters outlive the process that counted.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::machine::{Gantry, Machine, until};

/// Counts one request of the operation with the longest window, three minutes, and says what remains. The project it
/// names is nobody's: that is counted, too.
fn remaining(gantry: &Gantry) -> u32 {
    let path = "/v1/projects/aaaaaaaaaaaaaaaaaaaa/database/migrations";
    let answer = gantry.send("POST", path, Some(&json!({ "query": "select 1" })));
    answer.expect(404);
    answer.header("x-ratelimit-remaining").parse().unwrap()
}

#[test]
fn a_restart_gives_no_quota_back() {
    let machine = Machine::new();
    let mut first = machine.dev(&[]);
    assert_eq!([remaining(&first), remaining(&first), remaining(&first)], [119, 118, 117]);
    assert_eq!(first.stop(Signal::INT).code(), Some(0), "{}", first.log());

    let mut second = machine.dev(&[]);
    assert_eq!(remaining(&second), 116, "{}", second.log());
    assert_eq!(second.stop(Signal::INT).code(), Some(0), "{}", second.log());
}

#[test]
fn a_kill_gives_back_at_most_what_was_not_saved_yet() {
    let machine = Machine::new();
    let first = machine.dev(&[]);
    let counted = [remaining(&first), remaining(&first), remaining(&first)];
    assert_eq!(counted, [119, 118, 117]);
    // Saved a second after something was counted; how much of it does not matter here.
    until("the counters are saved", || fs::metadata(machine.data().join("limits")).ok());
    first.kill();

    let mut second = machine.dev(&[]);
    let left = remaining(&second);
    assert!((116..119).contains(&left), "{left} of 120 left after four requests\n{}", second.log());
    assert_eq!(second.stop(Signal::INT).code(), Some(0), "{}", second.log());
}
