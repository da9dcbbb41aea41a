//! Copies of a data folder, such as restored snapshots or cloned disks. Nothing starts from a copy
//! until the operator adopts it.

use std::{ffi::OsStr, fs, path::Path};

use rustix::process::Signal;

use super::{
    lease::Shared,
    machine::{Gantry, Machine, program, until},
};

/// Copies a machine's data folder while its server runs. Sockets cannot be copied, and logs change
/// meanwhile.
fn copy(machine: &Machine) -> Machine {
    let copy = Machine::unprepared();
    let paths: [&Path; 2] = [&machine.data(), &copy.data()];
    let arguments: Vec<&OsStr> = std::iter::once(OsStr::new("-a"))
        .chain(paths.map(Path::as_os_str))
        .collect();
    // Files that vanish during the copy cause an error message, but do not stop it.
    program("cp", &arguments);
    assert!(copy.data().join("projects").exists());
    copy
}

/// Checks that a copy is rejected with instructions.
#[track_caller]
fn assert_refused(said: &str, copy: &Machine) {
    assert!(
        said.contains("was last used on") && said.contains("gantry node adopt --data-dir"),
        "{said}"
    );
    assert_eq!(copy.servers(), [], "{said}");
}

#[test]
fn copy_with_embedded_control_database_requires_adoption() {
    let machine = Machine::new();
    let mut first = machine.dev(&[]);
    let project = first.create("copied");
    first.healthy(&project);
    let copy = copy(&machine);
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["dev", "--listen", "127.0.0.1:0"],
        &["token", "list", "--email", "dev@localhost"],
    ] {
        let output = copy.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_refused(&String::from_utf8_lossy(&output.stderr), &copy);
    }
    first.healthy(&project);
    assert_eq!(machine.json(&["node", "show"])["here"], true);
    assert_eq!(copy.json(&["node", "show"])["here"], false);
    let running = machine.run(&["node", "adopt"]);
    assert!(
        String::from_utf8_lossy(&running.stderr).contains("in use by another gantry"),
        "{running:?}"
    );

    assert_eq!(first.stop(Signal::INT).code(), Some(0), "{}", first.log());
    let adopted = copy.run(&["node", "adopt"]);
    assert!(adopted.status.success(), "{adopted:?}");
    // The copied lock files of PostgreSQL contain process ids of the original.
    let mut second = copy.dev(&[]);
    second.healthy(&project);
    assert_eq!(second.stop(Signal::INT).code(), Some(0), "{}", second.log());
    // The original folder is unchanged and starts normally.
    let mut again = machine.dev(&[]);
    again.healthy(&project);
    assert_eq!(again.stop(Signal::INT).code(), Some(0), "{}", again.log());
}

#[test]
fn copy_on_shared_control_database_requires_adoption() {
    let shared = Shared::new();
    let mut first = shared.with_owner(shared.serve());
    let project = first.create("copied");
    first.healthy(&project);
    let generation = || shared.generation();
    let before = generation();

    let copy = copy(&shared.machine);
    let second = like(
        copy.begin("serve", &["--database-url", &shared.url]),
        &first,
    );
    let said = || second.log();
    until("the refusal", || {
        said().contains("gantry node adopt").then_some(())
    });
    assert_refused(&said(), &copy);
    let place = format!("projects/{project}");
    let pid = shared.machine.postmaster(&place).unwrap();
    first.healthy(&project);
    assert_eq!(
        (generation(), shared.machine.postmaster(&place)),
        (before, Some(pid)),
        "the original holds on to its lease"
    );

    let options = ["--database-url", shared.url.as_str()];
    assert_eq!(
        copy.json(&[&["node", "show"][..], &options].concat())["here"],
        false
    );
    let early = copy.run(&[&["node", "adopt"][..], &options].concat());
    assert_eq!(early.status.code(), Some(1), "{early:?}");
    assert!(
        String::from_utf8_lossy(&early.stderr).contains("stop it there"),
        "{early:?}"
    );

    // Its servers would keep running, so they are stopped as well to simulate a lost machine.
    assert_eq!(first.stop(Signal::TERM).code(), Some(0), "{}", first.log());
    for pid in shared.machine.servers() {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    assert_refused(&said(), &copy);
    let adopted = copy.run(&[&["node", "adopt"][..], &options].concat());
    assert!(adopted.status.success(), "{adopted:?}");
    until("the copy's server to act", || {
        said()
            .contains("lease of the data folder acquired")
            .then_some(())
    });
    until("the project's server", || copy.postmaster(&place));
    // The copy is now the registered folder.
    let third = shared.machine.begin("serve", &options);
    until("the refusal of the original", || {
        third.log().contains("gantry node adopt").then_some(())
    });
    assert_eq!(shared.machine.servers(), [], "{}", third.log());
    assert!(fs::metadata(copy.data().join(&place)).is_ok());
}

/// Starts another process on the same control database.
fn like(mut gantry: Gantry, other: &Gantry) -> Gantry {
    gantry.token.clone_from(&other.token);
    gantry.organization.clone_from(&other.organization);
    gantry
}
