//! Several processes on one control database and one data folder: one holds the lease, another
//! takes over when it exits.

use rustix::process::Signal;
use serde_json::json;

use super::{
    crash::{rows, rows_in},
    machine::{Gantry, Machine, until},
};

/// A data folder, and a control database outside of it.
pub(super) struct Shared {
    pub(super) machine: Machine,
    pub(super) url: String,
    _control: Gantry,
    elsewhere: Machine,
}

impl Shared {
    pub(super) fn new() -> Self {
        let elsewhere = Machine::new();
        let control = elsewhere.dev(&[]);
        rows(&elsewhere, "control", "gantry", "create database shared");
        let socket = elsewhere
            .data()
            .join("run/control")
            .display()
            .to_string()
            .replace('/', "%2F")
            .replace(' ', "%20");
        Self {
            url: format!("postgres://gantry@{socket}/shared"),
            machine: Machine::new(),
            _control: control,
            elsewhere,
        }
    }

    pub(super) fn serve(&self) -> Gantry {
        self.machine.serve(&["--database-url", &self.url])
    }

    /// Returns how often the lease of the folder was acquired.
    pub(super) fn generation(&self) -> i64 {
        rows_in(
            &self.elsewhere,
            "control",
            "gantry",
            "shared",
            "select generation from node_leases",
        )[0]
        .get(0)
    }

    /// Requests a path as the owner of an organization.
    pub(super) fn with_owner(&self, mut gantry: Gantry) -> Gantry {
        let run = |arguments: &[&str]| {
            self.machine
                .json(&[arguments, &["--database-url", &self.url]].concat())
        };
        run(&["user", "create", "--email", "ops@example.com"]);
        run(&[
            "org",
            "create",
            "--name",
            "Ops",
            "--slug",
            "ops",
            "--owner",
            "ops@example.com",
        ]);
        gantry.token = run(&[
            "token",
            "create",
            "--email",
            "ops@example.com",
            "--name",
            "test",
        ])["token"]
            .as_str()
            .unwrap()
            .to_owned();
        "ops".clone_into(&mut gantry.organization);
        gantry
    }
}

/// Whether this process logged that it holds the lease.
fn leads(gantry: &Gantry) -> bool {
    gantry.log().contains("lease of the data folder acquired")
}

/// Starts another process on the same control database.
pub(super) fn like(mut gantry: Gantry, other: &Gantry) -> Gantry {
    gantry.token.clone_from(&other.token);
    gantry.organization.clone_from(&other.organization);
    gantry
}

#[test]
fn lease_moves_when_holder_is_killed_or_hangs() {
    let shared = Shared::new();
    let first = shared.with_owner(shared.serve());
    let second = like(shared.serve(), &first);

    // Requested at the passive process, executed by the active one, and visible at both.
    let project = second.create("asked of the second");
    second.healthy(&project);
    first.healthy(&project);
    first
        .query(&project, "create table kept as select 42 as n")
        .expect(201);
    assert!(!leads(&second), "{}", second.log());
    let holders = || shared.generation();
    assert_eq!(holders(), 1);

    // After a kill, the kernel releases the lock, so the lease need not expire.
    let cut = second.create("begun by the first");
    first.kill();
    second.healthy(&cut);
    second.healthy(&project);
    assert!(leads(&second), "{}", second.log());
    assert_eq!(holders(), 2);

    // A stopped process may hang at any point: its lease expires.
    let third = like(shared.serve(), &second);
    let stuck = third.create("begun by the second");
    second.signal(Signal::STOP);
    until("the third to act", || leads(&third).then_some(()));
    let next = third.create("begun by the third");
    third.healthy(&next);
    assert_eq!(holders(), 3);
    second.signal(Signal::CONT);
    until("the second to notice", || {
        second
            .log()
            .contains("lease of the data folder lost")
            .then_some(())
    });
    for gantry in [&second, &third] {
        for project in [&project, &cut, &stuck, &next] {
            gantry.healthy(project);
        }
        assert_eq!(
            gantry.query(&project, "select n from kept").expect(201),
            json!([{"n": 42}])
        );
    }
    let mut projects = vec![project, cut, stuck, next];
    projects.sort();
    assert_eq!(shared.machine.names("projects"), projects);
    for project in &projects {
        assert!(
            shared
                .machine
                .postmaster(&format!("projects/{project}"))
                .is_some()
        );
    }
}

/// A control database without the folder's projects would treat its clusters as garbage.
#[test]
fn data_folder_of_other_control_database_is_rejected() {
    let shared = Shared::new();
    let first = shared.with_owner(shared.serve());
    let project = first.create("mine");
    first.healthy(&project);
    first.kill();
    let output = shared.machine.run(&["serve", "--listen", "127.0.0.1:0"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("belong to another control database"),
        "{said}"
    );
    assert_eq!(shared.machine.names("projects"), [project]);
}
