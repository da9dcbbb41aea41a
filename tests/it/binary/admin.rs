//! Operator commands, with and without a running server.

use std::{io::Write, process::Stdio};

use rustix::process::Signal;
use serde_json::json;

use super::machine::Machine;
use crate::support::machine::engine;

/// Creates a user, an organization and a token. Returns the token's number and text.
fn hire(machine: &Machine, name: &str) -> (i64, String) {
    let email = format!("{name}@example.com");
    let user = machine.json(&["user", "create", "--email", &email, "--username", name]);
    assert_eq!(
        (&user["email"], &user["username"]),
        (&json!(email), &json!(name))
    );
    assert_eq!(user["id"].as_str().unwrap().len(), 36);
    let organization = machine.json(&[
        "org",
        "create",
        "--name",
        "House",
        "--slug",
        &format!("house-of-{name}"),
        "--owner",
        &email,
    ]);
    assert_eq!(organization["slug"], format!("house-of-{name}"));
    let token = machine.json(&[
        "token",
        "create",
        "--email",
        &email,
        "--name",
        "laptop",
        "--expires-in-days",
        "7",
    ]);
    let text = token["token"].as_str().unwrap().to_owned();
    assert!(text.starts_with("sbp_") && text.len() == 44, "{text}");
    assert!(token["expires_at"].is_string(), "{token}");
    let listed = machine.json(&["token", "list", "--email", &email]);
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(
        (&listed[0]["id"], &listed[0]["name"]),
        (&token["id"], &json!("laptop"))
    );
    assert_eq!(
        listed[0]["alias"],
        format!("{}…{}", &text[..8], &text[40..])
    );
    assert!(!listed.to_string().contains(&text), "shown once");
    (token["id"].as_i64().unwrap(), text)
}

#[test]
fn commands_work_with_and_without_running_server() {
    let machine = Machine::new();
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations"))
        .unwrap()
        .count();
    assert_eq!(
        machine.json(&["migrate"])["applied"]
            .as_array()
            .unwrap()
            .len(),
        files
    );
    assert_eq!(machine.json(&["migrate"]), json!({ "applied": [] }));
    let (_, before) = hire(&machine, "ada");
    assert_eq!(machine.servers(), [], "what a command starts it stops");

    let mut gantry = machine.dev(&[]);
    let (id, during) = hire(&machine, "bob");
    for (token, name) in [(&before, "ada"), (&during, "bob")] {
        gantry.token.clone_from(token);
        let organizations = gantry.get("/v1/organizations").expect(200);
        assert_eq!(organizations[0]["slug"], format!("house-of-{name}"));
    }
    // The role applies from the next request on.
    let members = "/v1/organizations/house-of-ada/members";
    assert_eq!(gantry.get(members).status, 404, "a stranger to it");
    let member = [
        "member",
        "add",
        "--org",
        "house-of-ada",
        "--email",
        "bob@example.com",
        "--role",
    ];
    assert_eq!(
        machine.json(&[&member[..], &["read-only"]].concat())["role"],
        "read-only"
    );
    gantry.get(members).expect(200);
    let create = json!({ "name": "no", "organization_slug": "house-of-ada", "db_pass": "x" });
    assert_eq!(
        gantry.send("POST", "/v1/projects", Some(&create)).status,
        403,
        "reading is all"
    );

    assert_eq!(
        gantry.get("/v1/profile").status,
        200,
        "the token is known, and cached"
    );
    assert_eq!(
        machine.json(&["token", "revoke", &id.to_string()]),
        json!({ "revoked": id })
    );
    assert_eq!(
        gantry.get("/v1/profile").expect(401)["message"],
        "Unauthorized",
        "at the very next request"
    );
    assert_eq!(
        machine.json(&["token", "list", "--email", "bob@example.com"]),
        json!([])
    );
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}

#[test]
fn set_password_reads_standard_input() {
    let machine = Machine::new();
    machine.json(&["user", "create", "--email", "ada@example.com"]);
    let set = |password: &str| {
        let mut command = machine.command(&["user", "set-password", "--email", "ada@example.com"]);
        command.env("GANTRY_POSTGRES_BIN", engine().bin_dir());
        let command = command
            .env("GANTRY_DATA_DIR", machine.data())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(password.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    };
    let good = set("violin fjord lantern 9\n");
    assert!(
        good.status.success()
            && good
                .stdout
                .starts_with(b"ada@example.com has a new password"),
        "{good:?}"
    );
    for (weak, said) in [
        ("hunter2\n", "Use 8 to 256 characters."),
        ("password1\n", "too easy to guess"),
        ("", "no input"),
    ] {
        let refused = set(weak);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success()
                && text.contains(said)
                && (weak.is_empty() || !text.contains(weak.trim())),
            "{text}"
        );
    }
    assert!(
        !machine
            .run(&[
                "user",
                "set-password",
                "--email",
                "ada@example.com",
                "--password",
                "x"
            ])
            .status
            .success()
    );

    let link = machine.json(&[
        "user",
        "sign-in-link",
        "--email",
        "ada@example.com",
        "--url",
        "https://gantry.example/",
    ]);
    let code = link["url"]
        .as_str()
        .unwrap()
        .strip_prefix("https://gantry.example/sign-in/link/")
        .unwrap();
    assert_eq!(code.len(), 64, "{link}");
}

#[test]
fn token_create_scoped_limits_permissions() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    let (id, _) = hire(&machine, "ada");
    let create = [
        "token",
        "create",
        "--email",
        "ada@example.com",
        "--name",
        "ci",
        "--scoped",
    ];
    let made = machine.json(
        &[
            &create[..],
            &[
                "--permission",
                "organizations_read,members_read",
                "--org",
                "house-of-ada",
            ],
        ]
        .concat(),
    );
    assert!(
        made["token"].as_str().unwrap().starts_with("sbp_fc"),
        "{made}"
    );
    assert_eq!(
        made["scope"]["permissions"],
        json!(["organizations_read", "members_read"])
    );
    let life = |field: &str| {
        made[field]
            .as_str()
            .unwrap()
            .parse::<chrono::DateTime<chrono::Utc>>()
            .unwrap()
    };
    assert_eq!(
        (life("expires_at") - life("created_at")).num_days(),
        7,
        "unless it is said otherwise"
    );

    gantry.token = made["token"].as_str().unwrap().to_owned();
    gantry
        .get("/v1/organizations/house-of-ada/members")
        .expect(200);
    let refused = gantry.get("/v1/organizations/house-of-ada");
    assert_eq!(refused.status, 403);
    assert_eq!(
        machine.json(&["token", "revoke", &made["id"].to_string()]),
        json!({ "revoked": made["id"] })
    );
    assert_eq!(gantry.get("/v1/organizations").status, 401);
    assert_eq!(
        machine.json(&["token", "list", "--email", "ada@example.com"])[0]["id"],
        id
    );

    for (arguments, line) in [
        (
            &["--permission", "database_drop"][..],
            "permissions: database_drop is not in the catalogue of permissions",
        ),
        (
            &["--permission", "database_read", "--org", "nobodys"],
            "organization_slugs: there is no organization nobodys",
        ),
    ] {
        let output = machine.run(&[&create[..], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains(line),
            "{arguments:?}: {said}"
        );
    }
    assert_eq!(
        machine.run(&create).status.code(),
        Some(2),
        "a scoped token names what it may do"
    );
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}

#[test]
fn application_verify_applies_immediately() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    (_, gantry.token) = hire(&machine, "ada");
    let apps = "/v1/organizations/house-of-ada/oauth/apps";
    let create = json!({ "name": "Shop", "redirect_uris": ["https://shop.example/callback"], "scopes": ["projects:read"] });
    let id = gantry.send("POST", apps, Some(&create)).expect(201)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let one = format!("{apps}/{id}");
    assert_eq!(
        machine.json(&["application", "list", "--org", "house-of-ada"])[0]["client_id"],
        id
    );
    for (command, verified) in [("verify", true), ("unverify", false)] {
        assert_eq!(
            machine.json(&["application", command, &id])["verified"],
            verified
        );
        assert_eq!(gantry.get(&one).expect(200)["verified"], verified);
    }
    let nobody = "00000000-0000-4000-8000-000000000000";
    for command in [
        &["application", "verify", nobody][..],
        &["limits", "set", "--application", nobody, "--requests", "7"],
    ] {
        let refused = machine.run(command);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            refused.status.code() == Some(1) && said.contains("application 00000000"),
            "{command:?}: {said}"
        );
    }
    let limited = machine.json(&["limits", "set", "--application", &id, "--requests", "7"]);
    assert_eq!(
        (
            &limited["application"],
            &limited["requests"],
            &limited["before"]
        ),
        (&json!(id), &json!(7), &json!(null))
    );
    assert_eq!(machine.json(&["limits", "list"])[0]["application"], id);
    assert_eq!(
        machine.json(&["limits", "unset", "--application", &id])["before"],
        7
    );
    let text = machine.run(&["application", "list"]);
    let line = format!("{id}  not verified  house-of-ada  Shop  https://shop.example/callback\n");
    assert_eq!(String::from_utf8_lossy(&text.stdout), line);
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}

#[test]
fn audit_verify_checks_exported_log() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    let (_, token) = hire(&machine, "ada");
    gantry.token = token;
    for name in ["a", "b", "c"] {
        let create = json!({ "name": name, "organization_slug": "house-of-ada", "db_pass": "correct horse" });
        gantry
            .send("POST", "/v1/projects", Some(&create))
            .expect(201);
    }
    let file = machine.dir().join("audit.ndjson");
    let path = file.to_str().unwrap();
    assert_eq!(
        machine.json(&["audit", "export", "--org", "house-of-ada", path]),
        json!({ "entries": 4 })
    );
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());

    let verify = |arguments: &[&str]| {
        machine
            .command(&[&["audit", "verify", path], arguments].concat())
            .output()
            .unwrap()
    };
    let output = verify(&["--output", "json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["first"], &found["last"]), (&json!(1), &json!(4)));
    let log = std::fs::read_to_string(&file).unwrap();
    let cut = log.split_inclusive('\n').take(2).collect::<String>();
    std::fs::write(&file, &cut).unwrap();
    assert!(
        verify(&[]).status.success(),
        "who has not noted the last hash cannot know"
    );
    assert_eq!(
        verify(&["--head", found["head"].as_str().unwrap()])
            .status
            .code(),
        Some(1)
    );
    std::fs::write(&file, log.replacen("\"status\":201", "\"status\":403", 1)).unwrap();
    let output = verify(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), &*said),
        (
            Some(1),
            "gantry: line 2, entry 2: its content does not match its hash\n"
        )
    );
}

#[test]
fn operator_commands_are_audited() {
    let machine = Machine::new();
    let gantry = machine.dev(&[]);
    let (id, token) = hire(&machine, "ada");
    machine.json(&["user", "create", "--email", "bob@example.com"]);
    machine.json(&[
        "member",
        "add",
        "--org",
        "house-of-ada",
        "--email",
        "bob@example.com",
        "--role",
        "developer",
    ]);
    machine.json(&[
        "limits",
        "set",
        "--operation",
        "v1-get-project",
        "--org",
        "house-of-ada",
        "--requests",
        "5",
    ]);
    machine.json(&[
        "limits",
        "unset",
        "--operation",
        "v1-get-project",
        "--org",
        "house-of-ada",
    ]);
    machine.json(&[
        "limits",
        "set",
        "--operation",
        "v1-get-project",
        "--requests",
        "1000",
    ]);
    machine.json(&["token", "revoke", &id.to_string()]);
    // The command changed nothing, so it writes no audit entry.
    assert_eq!(
        machine
            .run(&[
                "member",
                "add",
                "--org",
                "none",
                "--email",
                "bob@example.com",
                "--role",
                "owner"
            ])
            .status
            .code(),
        Some(1)
    );
    let file = machine.dir().join("audit.ndjson");
    let path = file.to_str().unwrap();
    let log = |of: &[&str]| -> Vec<serde_json::Value> {
        machine.json(&[&["audit", "export"], of, &[path]].concat());
        assert!(machine.json(&["audit", "verify", path])["last"].is_i64());
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains(&token), "{text}");
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let told = |entries: &[serde_json::Value]| -> Vec<String> {
        let operator =
            |entry: &serde_json::Value| entry["address"].as_str().unwrap().starts_with("operator:");
        assert!(
            entries
                .iter()
                .all(|entry| operator(entry) && entry["actor"] == uuid::Uuid::nil().to_string()),
            "{entries:?}"
        );
        entries
            .iter()
            .map(|entry| entry["operation"].as_str().unwrap().to_owned())
            .collect()
    };
    let (server, organization) = (log(&["--server"]), log(&["--org", "house-of-ada"]));
    assert_eq!(
        told(&server),
        [
            "gantry user create",
            "gantry org create",
            "gantry user create",
            "gantry limits set"
        ]
    );
    let expected = [
        "gantry org create",
        "gantry member add",
        "gantry limits set",
        "gantry limits unset",
    ];
    assert_eq!(told(&organization), expected);
    assert_eq!(
        (
            &organization[1]["subject"],
            &organization[1]["after"]["role"]
        ),
        (&json!("house-of-ada"), &json!("developer"))
    );
    drop(gantry);
}
