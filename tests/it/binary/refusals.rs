//! Invalid setups are rejected with one line and exit code 1, without side effects.

use std::{
    fs::{self, Permissions},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Output,
};

use rustix::process::Signal;

use super::machine::Machine;

/// Returns the only line of the output.
#[track_caller]
fn refusal(machine: &Machine, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(
        said.starts_with("gantry: ") && said.ends_with('\n') && said.lines().count() == 1,
        "{said:?}"
    );
    assert_eq!(machine.servers(), [], "{said}");
    said.trim().to_owned()
}

/// Creates a folder with `postgres` and `initdb` programs that only print a version.
fn fake_engine(dir: &Path, version: &str) {
    fs::create_dir(dir).unwrap();
    for name in ["postgres", "initdb"] {
        fs::write(
            dir.join(name),
            format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n"),
        )
        .unwrap();
        fs::set_permissions(dir.join(name), Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn missing_control_group_is_rejected() {
    let machine = Machine::new();
    let line = refusal(
        &machine,
        &machine.run(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log",
            "off",
            "--cgroup-parent",
            "/no-such-group",
        ]),
    );
    assert!(
        line.starts_with(
            "gantry: cannot create control groups under /no-such-group: it must exist"
        ),
        "{line}"
    );
}

#[test]
fn port_in_use_is_rejected() {
    let machine = Machine::unprepared();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for command in ["dev", "serve"] {
        let line = refusal(&machine, &machine.run(&[command, "--listen", &address]));
        assert_eq!(
            line,
            format!(
                "gantry: {address} is in use by another program; stop it, or choose another address with --listen"
            )
        );
        let line = refusal(
            &machine,
            &machine.run(&[
                command,
                "--listen",
                "127.0.0.1:0",
                "--admin-listen",
                &address,
            ]),
        );
        assert!(
            line.starts_with(&format!("gantry: {address} is in use by another program")),
            "{line}"
        );
        assert!(
            line.ends_with("--admin-listen"),
            "the flag that is wrong: {line}"
        );
    }
    assert!(!machine.data().exists(), "nothing was begun");
}

#[test]
fn unwritable_data_folder_is_rejected() {
    let machine = Machine::unprepared();
    // Not even root can create a folder there.
    let output = machine
        .command(&[
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            "/proc/gantry/data",
        ])
        .output()
        .unwrap();
    let line = refusal(&machine, &output);
    assert!(line.contains("/proc/gantry"), "{line}");
    fs::write(machine.data(), "a file").unwrap();
    let line = refusal(&machine, &machine.run(&["dev", "--listen", "127.0.0.1:0"]));
    assert!(line.contains(machine.data().to_str().unwrap()), "{line}");
}

#[test]
fn data_folder_unreachable_for_servers_is_rejected() {
    if !rustix::process::geteuid().is_root() {
        return; // Servers then run as ourselves, and enter what we can.
    }
    let machine = Machine::unprepared();
    fs::set_permissions(machine.dir(), Permissions::from_mode(0o700)).unwrap();
    let line = refusal(&machine, &machine.run(&["dev", "--listen", "127.0.0.1:0"]));
    assert!(
        line.contains("cannot enter") && line.contains("has mode 0700"),
        "{line}"
    );
}

#[test]
fn data_folder_in_use_is_rejected() {
    let machine = Machine::new();
    let gantry = machine.dev(&[]);
    let output = machine.run(&["dev", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("is in use by another gantry (pid ") && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(
        gantry.get("/v1/organizations").status,
        200,
        "the first is not disturbed"
    );
}

#[test]
fn missing_old_or_broken_postgresql_is_rejected() {
    let machine = Machine::unprepared();
    let bin = |name: &str| machine.dir().join(name);
    fs::create_dir(bin("empty")).unwrap();
    fake_engine(&bin("old"), "13.4");
    fake_engine(&bin("broken"), "of some kind");
    let run = |name: &str| {
        let mut command = machine.command(&[
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--postgres-bin",
            bin(name).to_str().unwrap(),
        ]);
        refusal(
            &machine,
            &command
                .env("GANTRY_DATA_DIR", machine.data())
                .env("PATH", bin("empty"))
                .output()
                .unwrap(),
        )
    };
    assert_eq!(
        run("empty"),
        format!(
            "gantry: PostgreSQL's server programs were not found in {}; install them with: apt-get install -y postgresql",
            bin("empty").display()
        )
    );
    assert_eq!(
        run("old"),
        format!(
            "gantry: {}/postgres is PostgreSQL 13.4, and at least 15 is needed; install it with: apt-get install -y postgresql",
            bin("old").display()
        )
    );
    assert!(
        run("broken").contains("broken/postgres --version failed"),
        "{}",
        run("broken")
    );
    assert!(!machine.data().exists(), "nothing was begun");
}

#[test]
fn plain_http_on_public_address_is_rejected() {
    let machine = Machine::unprepared();
    let line = refusal(&machine, &machine.run(&["serve", "--listen", "0.0.0.0:0"]));
    assert_eq!(
        line,
        "gantry: 0.0.0.0:0 is reachable from other machines, and tokens would be sent unencrypted: give --tls-cert and \
         --tls-key, or list the proxies in front in --trusted-proxies, or listen on 127.0.0.1"
    );
    assert!(!machine.data().exists(), "nothing was begun");
}

#[test]
fn missing_or_invalid_certificate_is_rejected() {
    let machine = Machine::unprepared();
    let file = machine.dir().join("cert.pem");
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        file.to_str().unwrap(),
        "--tls-key",
        file.to_str().unwrap(),
    ];
    for text in [None, Some("not PEM")] {
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let line = refusal(&machine, &machine.run(&arguments));
        assert!(line.contains("cert.pem"), "{line}");
    }
    assert!(!machine.data().exists(), "nothing was begun");
}

#[test]
fn unreachable_control_database_is_rejected() {
    let machine = Machine::unprepared();
    // A bound port that never accepts. Its backlog is never read.
    let closed = {
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    };
    let url = format!("postgres://someone:hush@{closed}/control");
    for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"]] {
        let line = refusal(
            &machine,
            &machine.run(&[command, &["--database-url", &url]].concat()),
        );
        assert!(
            !line.contains("hush"),
            "the password is nobody's business: {line}"
        );
        assert!(line.contains("refused"), "the reason: {line}");
    }
    let line = refusal(
        &machine,
        &machine.run(&[
            "migrate",
            "--database-url",
            "postgres://someone:hush@host:nan/x",
        ]),
    );
    assert!(
        !line.contains("hush") && line.contains("--database-url"),
        "{line}"
    );
}

#[test]
fn different_sealing_key_is_rejected() {
    let machine = Machine::new();
    machine.dev(&[]).stop(Signal::INT);
    let file = machine.dir().join("other-key");
    let started = |content: &str| {
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        refusal(
            &machine,
            &machine.run(&[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--sealing-key",
                file.to_str().unwrap(),
            ]),
        )
    };
    assert!(
        started(&"ab".repeat(32))
            .contains("encrypted with a different sealing key: set --sealing-key")
    );
    assert!(
        started("hush").ends_with(
            "does not hold a sealing key: expected 64 hex digits (`openssl rand -hex 32`)"
        )
    );
}

#[test]
fn unusable_log_store_is_rejected() {
    let machine = Machine::new();
    let secret = machine.dir().join("secret");
    let begin = |endpoint: &str| {
        let place = [
            "--logs-url",
            "s3://lines/of",
            "--logs-s3-endpoint",
            endpoint,
            "--logs-s3-access-key-id",
            "KEY",
        ];
        let secret = ["--logs-s3-secret-access-key", secret.to_str().unwrap()];
        machine.run(&[&["dev", "--listen", "127.0.0.1:0"][..], &place, &secret].concat())
    };
    let run = |endpoint: &str| refusal(&machine, &begin(endpoint));
    let there = || fs::read_dir(machine.data()).map_or(0, Iterator::count);
    let before = there();
    assert!(
        run("http://127.0.0.1:9")
            .starts_with(&format!("gantry: cannot read {}: ", secret.display()))
    );
    fs::write(&secret, "hush").unwrap();
    let line = run("http://10.0.0.1:9000");
    assert!(
        line.starts_with("gantry: --logs-s3-endpoint http://10.0.0.1:9000/ is on another machine, and plain HTTP would expose"),
        "{line}"
    );
    assert_eq!(there(), before, "nothing was begun");
    // The store is contacted only after startup has begun.
    let output = begin("http://127.0.0.1:9");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = said.lines().last().unwrap();
    let says = "gantry: opening the logs: log files cannot be stored in s3://lines/of at http://127.0.0.1:9/: http://127.0.0.1:9/ does not answer";
    assert!(
        line.starts_with(says) && line.contains("refused") && !said.contains("hush"),
        "{said}"
    );
    assert_eq!(
        (output.status.code(), machine.servers()),
        (Some(1), vec![]),
        "{said}"
    );
}
