//! Error messages of operator commands, `gantry check` and `gantry generate --check`.

use super::machine::Machine;

#[test]
fn commands_report_missing_objects() {
    let machine = Machine::new();
    let cases: [(&[&str], &str); 5] = [
        (
            &[
                "org",
                "create",
                "--name",
                "x",
                "--owner",
                "nobody@example.com",
            ],
            "user nobody@example.com not found",
        ),
        (
            &[
                "token",
                "create",
                "--email",
                "nobody@example.com",
                "--name",
                "x",
            ],
            "user nobody@example.com not found",
        ),
        (&["token", "revoke", "4711"], "live token 4711 not found"),
        (
            &[
                "member",
                "add",
                "--org",
                "none",
                "--email",
                "ada@example.com",
                "--role",
                "owner",
            ],
            "organization none not found",
        ),
        (
            &["user", "create", "--email", "ada@example.com"],
            "ada@example.com",
        ),
    ];
    machine.json(&["user", "create", "--email", "ada@example.com"]);
    for (arguments, line) in cases {
        let output = machine.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(
            said.contains(line) && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
        assert_eq!(machine.servers(), [], "{arguments:?}");
    }
}

#[test]
fn check_reports_failed_requirements() {
    let machine = Machine::new();
    let found = |name: &str, findings: &serde_json::Value| {
        let finding = findings
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["what"] == name)
            .unwrap()
            .clone();
        (
            finding["ok"].as_bool().unwrap(),
            finding["detail"].as_str().unwrap().to_owned(),
        )
    };
    let findings = machine.json(&["check", "--listen", "127.0.0.1:0"]);
    for what in [
        "postgresql",
        "account",
        "data folder",
        "transport",
        "address",
    ] {
        assert!(found(what, &findings).0, "{findings}");
    }
    let gantry = machine.dev(&[]);
    let busy = machine.json(&["check", "--listen", &gantry.address.to_string()]);
    assert!(
        !found("address", &busy).0,
        "in use by gantry itself, which is no failure: {busy}"
    );

    let output = machine.run(&[
        "check",
        "--output",
        "json",
        "--listen",
        "0.0.0.0:0",
        "--postgres-bin",
        "/nonexistent",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let findings = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        found("postgresql", &findings).1.contains("apt-get install"),
        "{findings}"
    );
    assert!(
        found("transport", &findings).1.contains("--tls-cert"),
        "{findings}"
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "gantry: 2 required checks failed\n"
    );
}

#[test]
fn check_reports_names_of_databases() {
    let machine = Machine::new();
    let name = |host: &str, listen: &str| {
        let arguments = [
            "check",
            "--listen",
            "127.0.0.1:0",
            "--db-listen",
            listen,
            "--db-host",
            host,
        ];
        let findings = machine.json(&arguments);
        let finding = findings
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["what"] == "name");
        let finding = finding.unwrap_or_else(|| panic!("{findings}"));
        (
            finding["ok"].as_bool().unwrap(),
            finding["detail"].as_str().unwrap().to_owned(),
        )
    };
    // An address that no other program uses.
    let host = format!(
        "127.77.{}.{}",
        std::process::id() % 250,
        std::process::id() / 250 % 250 + 1
    );
    let at = format!("{host}:5432");
    assert_eq!(
        name(&host, &at),
        (true, format!("{host} is {host}, port 5432 is free"))
    );
    let listener = std::net::TcpListener::bind(&at).unwrap();
    assert_eq!(
        name(&host, &at),
        (true, format!("{host} is {host}, port 5432 is open"))
    );
    drop(listener);
    let (ok, detail) = name(&host, "127.0.0.1:6543");
    assert!(
        !ok && detail.contains("no --db-listen has port 5432"),
        "{detail}"
    );
    let (ok, detail) = name("gantry.invalid", &at);
    assert!(!ok && detail.contains("does not resolve here"), "{detail}");
    let (ok, detail) = name(&host, "127.78.0.1:5432");
    assert!(!ok && detail.contains("does not answer"), "{detail}");
}

#[test]
fn check_reports_names_of_services() {
    let machine = Machine::new();
    let arguments = [
        "check",
        "--listen",
        "127.0.0.1:0",
        "--edge-https-listen",
        "127.0.0.1:0",
        "--project-domain",
        "gantry.invalid",
    ];
    let findings = machine.json(&arguments);
    let listed = findings.as_array().unwrap();
    let services = listed.iter().find(|finding| finding["what"] == "services");
    let services = services.unwrap_or_else(|| panic!("{findings}"));
    assert_eq!(services["ok"], false);
    let detail = services["detail"].as_str().unwrap();
    assert!(detail.contains("*.gantry.invalid"), "{detail}");
}

#[test]
fn generate_check_passes_for_committed_files() {
    let machine = Machine::unprepared();
    let check = |dir: &str| machine.run(&["generate", "--check", "--dir", dir]);
    let output = check(env!("CARGO_MANIFEST_DIR"));
    assert!(output.status.success(), "{output:?}");
    // Nothing is generated in this folder, so the check fails.
    let dir = machine.dir().to_str().unwrap();
    let output = check(dir);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("generated/openapi.json"),
        "{output:?}"
    );
    assert!(machine.run(&["generate", "--dir", dir]).status.success());
    assert!(check(dir).status.success());
}
