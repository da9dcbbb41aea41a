//! The operator API on its Unix socket.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Output},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    dev::{reached, service},
    machine::Machine,
    wire::Answer,
};

fn curl(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Command {
    let mut command = Command::new("curl");
    command
        .args([
            "-sS",
            "--include",
            "--max-time",
            "60",
            "-X",
            method,
            "--unix-socket",
        ])
        .arg(socket)
        .arg(format!("http://operator{path}"));
    if let Some(body) = body {
        command.args(["--data-binary", &body.to_string()]);
    }
    command
}

#[track_caller]
fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let Output {
        status,
        stdout,
        stderr,
    } = curl(socket, method, path, body).output().unwrap();
    assert!(
        status.success(),
        "{method} {path}: {}",
        String::from_utf8_lossy(&stderr)
    );
    Answer::parse(&String::from_utf8(stdout).unwrap())
}

#[test]
fn operator_api_overrides_upstreams() {
    let machine = Machine::new();
    let (all, one) = (service(), service());
    let socket = machine.dir().join("operator.sock");
    let mut gantry = machine.dev(&[
        "--upstream",
        &format!("rest=http://{all}"),
        "--operator-socket",
        socket.to_str().unwrap(),
    ]);
    let project = gantry.create("pointed");
    let (list, of) = (
        format!("/v1/projects/{project}/upstreams"),
        |service: &str| format!("/v1/projects/{project}/upstreams/{service}"),
    );

    let told = ask(&socket, "GET", &list, None).expect(200);
    assert_eq!(
        told[0],
        json!({ "service": "rest", "url": format!("http://{all}"), "overridden": false })
    );
    assert_eq!(
        told[1],
        json!({ "service": "auth", "url": null, "overridden": false })
    );
    assert_eq!(told.as_array().unwrap().len(), 5);

    let url = format!("http://{one}/{{ref}}");
    let set = json!({ "service": "rest", "url": url, "overridden": true });
    // The second request changes nothing and writes no audit entry.
    for _ in 0..2 {
        assert_eq!(
            ask(&socket, "PUT", &of("rest"), Some(&json!({ "url": url }))).expect(200),
            set
        );
        assert_eq!(
            reached(&gantry, &project, "/rest/v1/a"),
            format!("GET /{project}/a HTTP/1.1\r\n"),
            "at the very next request"
        );
    }
    assert_eq!(ask(&socket, "GET", &list, None).expect(200)[0], set);
    let unset = ask(&socket, "DELETE", &of("rest"), None).expect(200);
    assert_eq!(
        unset,
        json!({ "service": "rest", "url": format!("http://{all}"), "overridden": false })
    );
    assert_eq!(
        reached(&gantry, &project, "/rest/v1/a"),
        "GET /a HTTP/1.1\r\n"
    );

    let logged = gantry
        .get(&format!(
            "/v1/organizations/{}/audit?subject={project}",
            gantry.organization
        ))
        .expect(200);
    let entries = logged["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["address"].as_str().unwrap().starts_with("operator:"));
    let entries: Vec<_> = entries
        .map(|entry| (&entry["operation"], &entry["before"], &entry["after"]))
        .collect();
    let said = json!({ "service": "rest", "url": url });
    let expected = [
        (json!("gantry upstream unset"), said.clone(), Value::Null),
        (json!("gantry upstream set"), Value::Null, said),
    ];
    assert_eq!(
        entries,
        expected
            .each_ref()
            .map(|(operation, before, after)| (operation, before, after)),
        "newest first"
    );

    let refused = [
        (
            "PUT",
            of("rest"),
            Some(json!({ "url": "https://elsewhere" })),
            400,
            "url: expected an address such as",
        ),
        (
            "PUT",
            of("rest"),
            Some(json!({ "url": "http://a", "also": 1 })),
            400,
            "also: is not a field of this request",
        ),
        ("PUT", of("rest"), Some(json!({})), 400, "url: Required"),
        (
            "PUT",
            of("rest"),
            Some(json!({ "url": "x".repeat(20_000) })),
            413,
            "",
        ),
        (
            "PUT",
            of("mail"),
            Some(json!({ "url": "http://a" })),
            400,
            "service: expected rest, auth,",
        ),
        (
            "PUT",
            "/v1/projects/zzzzzzzzzzzzzzzzzzzz/upstreams/rest".into(),
            Some(json!({ "url": "http://a" })),
            404,
            "Not Found",
        ),
        (
            "GET",
            "/v1/projects/zzzzzzzzzzzzzzzzzzzz/upstreams".into(),
            None,
            404,
            "Not Found",
        ),
        ("GET", "/v1/projects/../upstreams".into(), None, 404, ""),
        ("POST", list.clone(), None, 404, ""),
        ("GET", "/v1/organizations".into(), None, 404, ""),
    ];
    for (method, path, body, status, message) in refused {
        let answer = ask(&socket, method, &path, body.as_ref());
        assert!(
            answer.expect(status)["message"]
                .as_str()
                .unwrap()
                .starts_with(message),
            "{method} {path}: {answer:?}"
        );
    }
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
    assert!(!socket.exists(), "it goes with the server");
}

#[test]
fn operator_socket_is_private_to_its_owner() {
    let machine = Machine::new();
    let socket = machine.dir().join("operator.sock");
    let options = ["--operator-socket", socket.to_str().unwrap()];
    let gantry = machine.dev(&options);
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    if rustix::process::geteuid().is_root() {
        let stranger = curl(&socket, "GET", "/v1/projects", None)
            .uid(65534)
            .gid(65534)
            .output()
            .unwrap();
        assert_eq!(
            stranger.status.code(),
            Some(7),
            "curl cannot connect: {stranger:?}"
        );
    }

    let second = machine.run(&[&["dev", "--listen", "127.0.0.1:0"], &options[..]].concat());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        second.status.code() == Some(1)
            && said.contains("operator.sock is in use: by another server"),
        "{second:?}"
    );
    gantry.kill();
    assert!(socket.exists(), "nobody was left to remove it");
    let mut next = machine.dev(&options);
    assert_eq!(ask(&socket, "GET", "/", None).status, 404, "it answers");
    assert_eq!(next.stop(Signal::TERM).code(), Some(0), "{}", next.log());

    fs::write(&socket, "kept").unwrap();
    let refused = machine.run(&[&["dev", "--listen", "127.0.0.1:0"], &options[..]].concat());
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(
        fs::read_to_string(&socket).unwrap(),
        "kept",
        "a file that is not a socket is kept"
    );
}

#[test]
fn operator_api_overrides_key_check() {
    let machine = Machine::new();
    let socket = machine.dir().join("operator.sock");
    let services = format!("rest=http://{}", service());
    let mut gantry = machine.dev(&[
        "--upstream",
        &services,
        "--operator-socket",
        socket.to_str().unwrap(),
    ]);
    let project = gantry.create("checked");
    let path = format!("/v1/projects/{project}/key-check");
    let is_open = || reached(&gantry, &project, "/rest/v1/a") == "GET /a HTTP/1.1\r\n";

    assert_eq!(
        ask(&socket, "GET", &path, None).expect(200),
        json!({ "enabled": false, "overridden": false })
    );
    assert!(is_open());
    let on = json!({ "enabled": true, "overridden": true });
    assert_eq!(
        ask(&socket, "PUT", &path, Some(&json!({ "enabled": true }))).expect(200),
        on
    );
    assert!(!is_open(), "at the very next request");
    assert_eq!(
        machine.json(&["key-check", "list"]),
        json!([{ "project": project, "enabled": true }])
    );
    let unset = machine.json(&["key-check", "unset", &project]);
    assert_eq!(unset["before"], json!(true));
    assert!(is_open(), "a command as well");
    assert_eq!(
        machine.json(&["key-check", "set", &project, "on"])["before"],
        json!(null)
    );
    assert!(!is_open());
    assert_eq!(
        ask(&socket, "DELETE", &path, None).expect(200),
        json!({ "enabled": false, "overridden": false })
    );
    assert!(is_open());

    let logged = gantry
        .get(&format!(
            "/v1/organizations/{}/audit?subject={project}",
            gantry.organization
        ))
        .expect(200);
    let operations = logged["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["operation"].as_str().unwrap());
    let operations: Vec<_> = operations
        .filter(|operation| operation.starts_with("gantry key-check"))
        .collect();
    assert_eq!(
        operations,
        [
            "gantry key-check unset",
            "gantry key-check set",
            "gantry key-check unset",
            "gantry key-check set"
        ]
    );

    for (method, path, body, status) in [
        ("PUT", path.clone(), Some(json!({ "enabled": "yes" })), 400),
        ("PUT", path.clone(), Some(json!({})), 400),
        ("POST", path.clone(), None, 404),
        ("GET", format!("{path}/more"), None, 404),
        (
            "GET",
            "/v1/projects/zzzzzzzzzzzzzzzzzzzz/key-check".into(),
            None,
            404,
        ),
    ] {
        ask(&socket, method, &path, body.as_ref()).expect(status);
    }
    assert_eq!(
        machine
            .run(&["key-check", "set", &"z".repeat(20), "on"])
            .status
            .code(),
        Some(1)
    );
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
}
