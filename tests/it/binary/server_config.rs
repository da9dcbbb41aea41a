//! Configuration files: precedence, problems with their places, and the reload by SIGHUP.

use std::{fs, path::PathBuf};

use rustix::process::Signal;

use super::machine::Machine;

/// Writes a configuration file.
fn file(machine: &Machine, name: &str, text: &str) -> PathBuf {
    let path = machine.dir().join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn server_takes_settings_from_its_file_and_reloads_the_log_filter() {
    let machine = Machine::new();
    // The variable GANTRY_LISTEN of the test takes precedence over the file.
    let text = "api.listen = \"127.0.0.1:1\"\nprojects.domain = \"projects.test\"\n\
                log.filter = \"warn,gantry=info\"\n";
    let path = file(&machine, "gantry.toml", text);
    let mut gantry = machine.serve(&["--config", path.to_str().unwrap()]);
    assert_ne!(gantry.address.port(), 1);

    let changed = text
        .replace("gantry=info", "gantry=debug")
        .replace("projects.test", "other.test");
    fs::write(&path, changed).unwrap();
    gantry.signal(Signal::HUP);
    let lines = gantry.stderr.until_line("configuration reloaded");
    let all = lines.join("\n");
    assert!(
        all.contains("these settings take effect at the next start")
            && all.contains("projects.domain"),
        "{all}"
    );
    assert!(lines.last().unwrap().contains("log.filter"), "{all}");

    fs::write(&path, "log.filter = 5\n").unwrap();
    gantry.signal(Signal::HUP);
    let line = gantry.stderr.until_line("not reloaded").pop().unwrap();
    assert!(line.contains("gantry.toml:1:14"), "{line}");
    // The filter that was reloaded shows messages for debugging.
    assert!(gantry.stop(Signal::TERM).success());
    let told = gantry.stderr.all();
    assert!(told.contains("stopped data="), "{told}");
}

#[test]
fn every_problem_of_a_file_is_told_with_its_place() {
    let machine = Machine::unprepared();
    let text = "[api]\nlisten = \"nowhere\"\n[databases]\npooler_port = 70000\n\
                [edge]\nunderscore_headers = \"keep\"\n";
    let path = file(&machine, "bad.toml", text);
    let path = path.to_str().unwrap();
    let output = machine.run(&["server-config", "check", "--config", path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    for place in [
        "bad.toml:2:10: api.listen",
        "bad.toml:4:15: databases.pooler_port",
    ] {
        assert!(told.contains(place), "{told}");
    }
    assert!(
        told.contains("bad.toml:6:22: edge.underscore_headers"),
        "{told}"
    );

    let started = machine.run(&["serve", "--config", path]);
    assert_eq!(started.status.code(), Some(2), "{started:?}");
    let refused = String::from_utf8(started.stderr).unwrap();
    assert!(
        refused.starts_with("gantry: ") && refused.contains("bad.toml:"),
        "{refused}"
    );
}

#[test]
fn combinations_of_a_file_are_checked_like_flags() {
    let machine = Machine::unprepared();
    let path = file(&machine, "half.toml", "api.tls_cert = \"cert.pem\"\n");
    let path = path.to_str().unwrap();
    let output = machine.run(&["server-config", "check", "--config", path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("--tls-key"), "{told}");
}

#[test]
fn show_and_diff_name_sources_and_hide_secrets() {
    let machine = Machine::unprepared();
    let one = "data.database_url = \"postgres://u:hunter2@db/gantry\"\nlog.format = \"json\"\n";
    let one = file(&machine, "one.toml", one);
    let other = "data.database_url = \"postgres://u:hunter3@db/gantry\"\nlog.filter = \"debug\"\n";
    let other = file(&machine, "other.toml", other);
    let (one, other) = (one.to_str().unwrap(), other.to_str().unwrap());
    let arguments = ["server-config", "show", "--config", one];
    let shown = machine
        .command(&arguments)
        .env("GANTRY_LOG", "error")
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for line in [
        "data.database_url = (hidden)  (file)",
        "log.format = json  (file)",
        "log.filter = error  (variable)",
    ] {
        assert!(shown.lines().any(|found| found == line), "{shown}");
    }
    assert!(!shown.contains("hunter2"), "{shown}");

    let arguments = ["server-config", "diff", "--config", one, other];
    let differing = machine.command(&arguments).output().unwrap();
    let differing = String::from_utf8(differing.stdout).unwrap();
    for line in [
        "data.database_url: (hidden) → (hidden)  (restart)",
        "log.filter: warn,gantry=info → debug  (reload)",
        "log.format: json → text  (restart)",
    ] {
        assert!(differing.lines().any(|found| found == line), "{differing}");
    }
    assert!(!differing.contains("hunter"), "{differing}");
}

#[test]
fn file_that_does_not_exist_is_named() {
    let machine = Machine::unprepared();
    for arguments in [
        &["serve", "--config", "missing.toml"][..],
        &["migrate", "--config", "missing.toml"],
    ] {
        let output = machine.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("cannot read missing.toml"), "{told}");
    }
}
