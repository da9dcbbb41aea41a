//! `gantry doctor`: findings of a healthy and of a broken installation, and its archive.

use std::{
    fs::{self, Permissions},
    io::Read,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Output,
};

use serde_json::Value;

use super::machine::Machine;

/// Secrets that the tests put into settings, variables and logs.
const SECRETS: [&str; 6] = [
    "hunter2-of-the-file",
    "hunter3-of-a-variable",
    "hunter4-of-a-header",
    "hunter5-of-the-environment",
    "sbp_0123456789abcdef0123456789abcdef01234567",
    "MIIEvgIBADANBgkqhkiG9w0BAQEFAASC",
];
/// Largest unpacked archive, in bytes.
const ARCHIVE_BYTES_MAX: usize = 16 << 20;

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the results with this outcome, as `name: finding`.
fn results(output: &Output, outcome: &str) -> Vec<String> {
    let results: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |result: &Value| {
        let text = |field: &str| result[field].as_str().unwrap().to_owned();
        (result["outcome"] == outcome).then(|| format!("{}: {}", text("name"), text("finding")))
    };
    results.iter().filter_map(text).collect()
}

/// Returns the names and contents of an archive's files.
fn unpacked(path: &Path) -> Vec<(String, String)> {
    let packed = fs::read(path).unwrap();
    let archive = zstd::bulk::decompress(&packed, ARCHIVE_BYTES_MAX).unwrap();
    let mut archive = tar::Archive::new(&archive[..]);
    let file = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), text)
    };
    archive.entries().unwrap().map(file).collect()
}

#[test]
fn healthy_installation_has_no_problem() {
    let machine = Machine::new();
    // The port was free a moment ago.
    let admin = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let admin = admin.unwrap().to_string();
    let socket = machine.dir().join("operator");
    let options = [
        "--admin-listen",
        &admin,
        "--operator-socket",
        socket.to_str().unwrap(),
    ];
    let gantry = machine.dev(&options);
    let project = gantry.create("examined");
    gantry.healthy(&project);
    let listen = gantry.address.to_string();
    let arguments = [&["doctor", "--listen", &listen][..], &options].concat();

    let output = machine.run(&[&arguments[..], &["--output", "json"]].concat());
    assert_eq!(results(&output, "problem"), [""; 0], "{output:?}");
    assert!(output.status.success(), "{output:?}");
    let passed = results(&output, "ok").join("\n");
    for name in [
        "server",
        "operator socket",
        "readiness",
        "control database",
        "schema",
        "clock",
        "nodes",
        "projects",
        "data folder",
        "secret files",
        "pidfd",
        "postgresql",
    ] {
        let begin = format!("{name}: ");
        assert!(
            passed.lines().any(|line| line.starts_with(&begin)),
            "{name}: {passed}"
        );
    }

    let bundle = machine.dir().join("report.tar.zst");
    let bundled = [&arguments[..], &["--bundle", bundle.to_str().unwrap()]].concat();
    let output = machine.run(&bundled);
    assert!(stdout(&output).ends_with(" checks passed\n"), "{output:?}");
    let names: Vec<String> = unpacked(&bundle)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    for name in ["status.json", "health.txt", "control-database.log"] {
        let name = format!("gantry-doctor/{name}");
        assert!(names.contains(&name), "{names:?}");
    }
}

#[test]
fn unreachable_control_database_is_a_problem() {
    let machine = Machine::unprepared();
    let url = format!("postgres://gantry:{}@127.0.0.1:9/gantry", SECRETS[0]);
    let output = machine.run(&["doctor", "--listen", "127.0.0.1:9", "--database-url", &url]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = stdout(&output);
    for begin in [
        "PROBLEM  control database: ",
        "PROBLEM  server: it does not accept connections at 127.0.0.1:9",
        "PROBLEM  data folder: ",
    ] {
        assert!(told.lines().any(|line| line.starts_with(begin)), "{told}");
    }
    assert!(!format!("{output:?}").contains(SECRETS[0]), "{output:?}");
}

#[test]
fn archive_has_no_secrets_and_names_problems_of_the_file() {
    let machine = Machine::unprepared();
    let (config, log) = (machine.dir().join("bad.toml"), machine.dir().join("log"));
    let text = format!(
        "data.database_url = \"postgres://u:{}@127.0.0.1:9/x\"\napi.listen = \"nowhere\"\n",
        SECRETS[0]
    );
    fs::write(&config, text).unwrap();
    fs::set_permissions(&config, Permissions::from_mode(0o644)).unwrap();
    let lines = [
        "the first line".to_owned(),
        format!("connecting to postgres://u:{}@db/x", SECRETS[1]),
        format!("headers={{\"Authorization\": \"Basic {}\"}}", SECRETS[2]),
        format!("the password is {}", SECRETS[3]),
        format!("token {}", SECRETS[4]),
        format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
            SECRETS[5]
        ),
        "the last line".to_owned(),
    ];
    fs::write(&log, lines.join("\n")).unwrap();
    let bundle = machine.dir().join("report.tar.zst");
    let [config, log, archive] = [&config, &log, &bundle].map(|path| path.to_str().unwrap());
    let arguments = [
        "doctor",
        "--config",
        config,
        "--bundle",
        archive,
        "--log-file",
        log,
    ];
    let output = machine
        .command(&arguments)
        .env("GANTRY_DATA_DIR", machine.data())
        .env(
            "GANTRY_LIMITS_URL",
            format!("redis://:{}@127.0.0.1:9", SECRETS[1]),
        )
        .env("AWS_SECRET_ACCESS_KEY", SECRETS[3])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = stdout(&output);
    assert!(told.contains("bad.toml:2:14: api.listen"), "{told}");
    assert!(
        told.contains("every account can read"),
        "the file has a secret: {told}"
    );

    let mode = fs::metadata(&bundle).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let files = unpacked(&bundle);
    for secret in SECRETS {
        assert!(!told.contains(secret), "{told}");
        for (name, text) in &files {
            assert!(!text.contains(secret), "{name} contains {secret}: {text}");
        }
    }
    let text = |name: &str| {
        let name = format!("gantry-doctor/{name}");
        let mut files = files.iter();
        &files
            .find(|(found, _)| *found == name)
            .unwrap_or_else(|| panic!("{name}"))
            .1
    };
    assert!(text("gantry.log").starts_with("the first line\n"));
    assert!(text("gantry.log").ends_with("\nthe last line"));
    assert!(text("configuration.txt").contains("data.database_url = (hidden)  (file)"));
    assert!(text("kernel.txt").contains("Landlock ABI: "));
    assert!(text("versions.txt").starts_with("gantry "));
    assert!(text("README.txt").contains("journalctl -u gantry"));
    let findings: Vec<Value> = serde_json::from_str(text("findings.json")).unwrap();
    assert_eq!(findings[0]["outcome"], "problem");
}

#[test]
fn secret_file_that_others_can_read_is_a_problem() {
    let machine = Machine::unprepared();
    let key = machine.dir().join("sealing");
    fs::write(&key, "00").unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let key = key.to_str().unwrap();
    let arguments = ["doctor", "--listen", "127.0.0.1:9", "--sealing-key", key];
    let output = machine.run(&[&arguments[..], &["--output", "json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = format!("secret files: every account can read {key}");
    let problems = results(&output, "problem");
    assert!(problems.contains(&expected), "{problems:?}");
}
