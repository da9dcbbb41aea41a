//! Secrets are not written to files.

use std::{fs, path::Path};

use rustix::process::Signal;
use serde_json::json;

use super::{
    machine::{Machine, PASSWORD},
    wire,
};

/// Returns every file under a folder with its content.
fn files(dir: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files(&entry.path(), found),
            kind if kind.is_file() => found.push((
                entry.path().display().to_string(),
                fs::read(entry.path()).unwrap(),
            )),
            _ => {}
        }
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}

#[test]
fn secrets_are_not_written_to_files() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&["--log", "trace", "--log-drain-networks", "127.0.0.0/8"]);
    let project = gantry.create("private");
    gantry.healthy(&project);
    assert_eq!(gantry.query(&project, "select * from nowhere").status, 400);
    let bad = json!({ "name": 1, "organization_slug": gantry.organization, "db_pass": PASSWORD });
    assert_eq!(
        gantry.send("POST", "/v1/projects", Some(&bad)).status,
        400,
        "a body that is refused"
    );
    let unknown = format!("sbp_{}", "5ec2e7".repeat(7).split_at(40).0);
    let malformed = "not-a-token-but-perhaps-a-password";
    for token in [unknown.as_str(), malformed] {
        wire::send(
            gantry.address,
            "GET",
            "/v1/organizations",
            Some(token),
            None,
        )
        .unwrap()
        .expect(401);
    }
    let (signing, header) = ("correct-signing-horse", "correct-header-horse");
    let hook = json!({"data": {"type": "endpoint", "attributes": {
        "url": "http://localhost:9/", "event_types": [{"type": "*"}],
        "signing_secret": signing, "custom_headers": {"x-auth": header},
    }}});
    let hooks = format!("/v2/projects/{project}/webhooks/endpoints");
    let hook = gantry.send("POST", &hooks, Some(&hook)).expect(201);
    let hook = hook["data"]["id"].as_str().unwrap();
    let test = format!("{hooks}/{hook}/test");
    gantry.send("POST", &test, None).expect(201);
    let listed = gantry.send(
        "GET",
        &format!("/v1/projects/{project}/api-keys?reveal=true"),
        None,
    );
    let keys: Vec<String> = listed
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["api_key"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys.len(), 4);
    let made = machine.json(&[
        "token",
        "create",
        "--email",
        "owner@example.com",
        "--name",
        "another",
    ]);
    let another = made["token"].as_str().unwrap();
    assert_eq!(
        wire::send(gantry.address, "GET", "/v1/profile", Some(another), None)
            .unwrap()
            .status,
        200
    );
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0));

    let verifier = "SCRAM-SHA-256$";
    let greeting = gantry.greeting.join("\n");
    let after = gantry.stdout.all().split_at(greeting.len()).1.to_owned() + &gantry.stderr.all();
    assert!(
        after.contains("private") || after.contains(&project),
        "the log was on: {after}"
    );
    let sealing_key = fs::read_to_string(machine.data().join("sealing-key")).unwrap();
    let sealed = || keys.iter().map(String::as_str).chain([sealing_key.trim()]);
    for secret in [
        &gantry.token,
        PASSWORD,
        &unknown,
        malformed,
        another,
        signing,
        header,
        verifier,
        "Bearer",
    ]
    .into_iter()
    .chain(sealed())
    {
        assert!(
            !after.contains(secret),
            "{secret} in the log:\n{}",
            after
                .lines()
                .filter(|line| line.contains(secret))
                .collect::<String>()
        );
    }

    // Outside data directories, secrets appear nowhere except in the one file for their owner.
    let mut found = Vec::new();
    files(&machine.data(), &mut found);
    let logs = found
        .iter()
        .filter(|(name, _)| name.contains("/log/") || name.ends_with("start.log"))
        .count();
    assert!(logs >= 4, "both servers' logs were looked at");
    for (name, bytes) in &found {
        for secret in [
            &gantry.token,
            PASSWORD,
            &unknown,
            malformed,
            another,
            signing,
            header,
        ]
        .into_iter()
        .chain(sealed())
        {
            let kept = secret == gantry.token && name.ends_with("/dev.env")
                || name.ends_with("/sealing-key");
            assert!(kept || !contains(bytes, secret), "{secret} in {name}");
        }
        let log = name.contains("/log/") || name.ends_with("start.log");
        assert!(!(log && contains(bytes, verifier)), "a verifier in {name}");
    }
}
