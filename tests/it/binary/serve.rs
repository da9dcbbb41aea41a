//! `gantry serve`: HTTPS, the admin listener and graceful shutdown.

use std::{ffi::OsStr, os::unix::fs::PermissionsExt};

use rustix::process::Signal;
use serde_json::json;

use super::{
    machine::{Gantry, Machine, program, until},
    wire,
};

/// Creates a user, an organization and a token with operator commands.
fn with_owner(machine: &Machine, mut gantry: Gantry) -> Gantry {
    machine.json(&["user", "create", "--email", "ops@example.com"]);
    machine.json(&[
        "org",
        "create",
        "--name",
        "Ops",
        "--slug",
        "ops",
        "--owner",
        "ops@example.com",
    ]);
    let token = machine.json(&[
        "token",
        "create",
        "--email",
        "ops@example.com",
        "--name",
        "test",
    ]);
    gantry.token = token["token"].as_str().unwrap().to_owned();
    "ops".clone_into(&mut gantry.organization);
    gantry
}

#[test]
fn serve_https_with_configured_certificate() {
    let machine = Machine::new();
    let (cert, key) = (
        machine.dir().join("cert.pem"),
        machine.dir().join("key.pem"),
    );
    let made = program(
        "openssl",
        &[
            "req".as_ref(),
            "-x509".as_ref(),
            "-newkey".as_ref(),
            "ec".as_ref(),
            "-pkeyopt".as_ref(),
            "ec_paramgen_curve:P-256".as_ref(),
            "-nodes".as_ref(),
            "-days".as_ref(),
            "2".as_ref(),
            "-subj".as_ref(),
            "/CN=localhost".as_ref(),
            "-addext".as_ref(),
            "subjectAltName=IP:127.0.0.1".as_ref(),
            "-keyout".as_ref(),
            key.as_os_str(),
            "-out".as_ref(),
            cert.as_os_str(),
        ],
    );
    assert!(made.status.success(), "{made:?}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();

    let gantry = machine.serve(&[
        "--listen",
        "0.0.0.0:0",
        "--tls-cert",
        cert.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ]);
    let gantry = with_owner(&machine, gantry);
    let url = format!(
        "https://127.0.0.1:{}/v1/organizations",
        gantry.address.port()
    );
    let bearer = format!("Authorization: Bearer {}", gantry.token);
    for version in ["--http1.1", "--http2"] {
        let arguments: [&OsStr; 8] = [
            "-q",
            "-sS",
            "--fail",
            version,
            "--cacert",
            cert.to_str().unwrap(),
            "-H",
            &bearer,
        ]
        .map(OsStr::new);
        let answer = program("curl", &[&arguments[..], &[url.as_ref()]].concat());
        assert!(
            answer.status.success(),
            "{version}: {answer:?}\n{}",
            gantry.log()
        );
        let body: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
        assert_eq!(body[0]["slug"], "ops", "{version}");
    }
    let plain = wire::send(
        ([127, 0, 0, 1], gantry.address.port()).into(),
        "GET",
        "/v1/organizations",
        Some(&gantry.token),
        None,
    );
    assert!(plain.is_err(), "plain HTTP on the same port: {plain:?}");
}

#[test]
fn admin_listener_is_separate_from_api() {
    let machine = Machine::new();
    // The port is free now and bound by gantry a moment later.
    let admin = {
        std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    };
    let gantry = machine.serve(&["--admin-listen", &admin.to_string(), "--unsafe-no-sandbox"]);
    let gantry = with_owner(&machine, gantry);
    let look = |path| wire::send(admin, "GET", path, None, None).unwrap();
    let health = look("/healthz");
    assert_eq!(
        (health.status, health.text.lines().next()),
        (200, Some("ok"))
    );
    let warned = |what| {
        health
            .text
            .lines()
            .any(|line| line.starts_with("warning: ") && line.contains(what))
    };
    assert_eq!(
        (warned("Landlock"), warned("share one user id")),
        (true, !rustix::process::geteuid().is_root()),
        "{}",
        health.text
    );
    assert_eq!(
        (look("/readyz").status, look("/readyz").text.as_str()),
        (200, "ready\n")
    );
    assert_eq!(gantry.get("/v1/organizations").status, 200);
    let metrics = look("/metrics").text;
    let line = r#"gantry_requests_total{operation="v1-list-all-organizations",status="2xx"} 1"#;
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    assert!(
        metrics.contains("gantry_request_seconds_bucket{operation=\"v1-list-all-organizations\""),
        "{metrics}"
    );

    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(
            gantry.get(path).expect(404)["message"],
            format!("Cannot GET {path}")
        );
    }
    assert_eq!(look("/v1/organizations").status, 404, "and no API there");

    let control = machine.postmaster("control").unwrap();
    rustix::process::kill_process(control, Signal::KILL).unwrap();
    until("the end of the control cluster", || {
        (!super::machine::alive(control)).then_some(())
    });
    assert_eq!(
        look("/readyz").status,
        503,
        "no control database, no service"
    );
    assert_eq!(look("/healthz").status, 200, "but the process is well");
}

#[test]
fn shutdown_finishes_requests_in_flight() {
    let machine = Machine::new();
    let mut gantry = with_owner(&machine, machine.serve(&[]));
    let project = gantry.create("slow");
    gantry.healthy(&project);
    let (address, token, path) = (
        gantry.address,
        gantry.token.clone(),
        format!("/v1/projects/{project}/database/query"),
    );
    let body = json!({ "query": "select pg_sleep(2)::text as slept, 7 as lucky" });
    let slow = std::thread::spawn(move || {
        wire::send(address, "POST", &path, Some(&token), Some(&body)).unwrap()
    });
    let running = "select count(*)::int as n from pg_stat_activity where query like 'select pg_sleep%' and state = 'active'";
    until("the slow query in the server", || {
        (gantry.query(&project, running).expect(201)[0]["n"] == 1).then_some(())
    });
    gantry.signal(Signal::TERM);
    until("no new connections", || {
        std::net::TcpStream::connect(gantry.address)
            .is_err()
            .then_some(())
    });
    assert!(!slow.is_finished(), "the query was to outlast that");
    assert_eq!(
        slow.join().unwrap().expect(201),
        json!([{ "slept": "", "lucky": 7 }]),
        "{}",
        gantry.log()
    );
    assert_eq!(gantry.ended().code(), Some(0), "{}", gantry.log());
    assert!(machine.postmaster("control").is_none());
}

#[test]
fn status_shows_nodes_projects_and_backups() {
    let machine = Machine::new();
    let gantry = machine.dev(&[]);
    let project = gantry.create("shown");
    gantry.healthy(&project);
    let status = machine.json(&["status"]);
    assert_eq!(status["nodes"][0]["state"], "ready");
    let healthy = json!([{"status": "ACTIVE_HEALTHY", "count": 1}]);
    assert_eq!(status["projects"], healthy);
    assert_eq!(status["faulty"], json!([]));
    let text = machine.run(&["status", "--check"]);
    assert!(text.status.success(), "{text:?}");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("1  ACTIVE_HEALTHY") && text.contains("\nBackups\n"),
        "{text}"
    );
}
