//! The operator's commands, beside a running server and without one.

use rustix::process::Signal;
use serde_json::json;

use super::machine::Machine;

/// Everything a new colleague needs, and the token that proves it.
fn hire(machine: &Machine, name: &str) -> (i64, String) {
    let email = format!("{name}@example.com");
    let user = machine.json(&["user", "create", "--email", &email, "--username", name]);
    assert_eq!((&user["email"], &user["username"]), (&json!(email), &json!(name)));
    assert_eq!(user["id"].as_str().unwrap().len(), 36);
    let organization = machine.json(&["org", "create", "--name", "House", "--slug", &format!("house-of-{name}"), "--owner", &email]);
    assert_eq!(organization["slug"], format!("house-of-{name}"));
    let token = machine.json(&["token", "create", "--email", &email, "--name", "laptop", "--expires-in-days", "7"]);
    let text = token["token"].as_str().unwrap().to_owned();
    assert!(text.starts_with("sbp_") && text.len() == 44, "{text}");
    assert!(token["expires_at"].is_string(), "{token}");
    let listed = machine.json(&["token", "list", "--email", &email]);
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!((&listed[0]["id"], &listed[0]["name"]), (&token["id"], &json!("laptop")));
    assert_eq!(listed[0]["alias"], format!("{}…{}", &text[..8], &text[40..]));
    assert!(!listed.to_string().contains(&text), "shown once");
    (token["id"].as_i64().unwrap(), text)
}

#[test]
fn commands_work_beside_a_server_and_without_one() {
    let machine = Machine::new();
    let migrations = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).unwrap().count();
    assert_eq!(machine.json(&["migrate"])["applied"].as_array().unwrap().len(), migrations);
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
    // Membership counts from the next request on.
    let members = "/v1/organizations/house-of-ada/members";
    assert_eq!(gantry.get(members).status, 404, "a stranger to it");
    let member = ["member", "add", "--org", "house-of-ada", "--email", "bob@example.com", "--role"];
    assert_eq!(machine.json(&[&member[..], &["read-only"]].concat())["role"], "read-only");
    gantry.get(members).expect(200);
    let create = json!({ "name": "no", "organization_slug": "house-of-ada", "db_pass": "x" });
    assert_eq!(gantry.send("POST", "/v1/projects", Some(&create)).status, 403, "reading is all");

    assert_eq!(gantry.get("/v1/profile").status, 200, "the token is known, and cached");
    assert_eq!(machine.json(&["token", "revoke", &id.to_string()]), json!({ "revoked": id }));
    assert_eq!(gantry.get("/v1/profile").expect(401)["message"], "Unauthorized", "at the very next request");
    assert_eq!(machine.json(&["token", "list", "--email", "bob@example.com"]), json!([]));
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}

#[test]
fn what_is_not_there_is_said() {
    let machine = Machine::new();
    let cases: [(&[&str], &str); 5] = [
        (&["org", "create", "--name", "x", "--owner", "nobody@example.com"], "there is no user nobody@example.com"),
        (&["token", "create", "--email", "nobody@example.com", "--name", "x"], "there is no user nobody@example.com"),
        (&["token", "revoke", "4711"], "there is no live token 4711"),
        (&["member", "add", "--org", "none", "--email", "ada@example.com", "--role", "owner"], "there is no organization none"),
        (&["user", "create", "--email", "ada@example.com"], "ada@example.com"),
    ];
    machine.json(&["user", "create", "--email", "ada@example.com"]);
    for (arguments, line) in cases {
        let output = machine.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains(line) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert_eq!(machine.servers(), [], "{arguments:?}");
    }
}

#[test]
fn check_tells_what_is_missing() {
    let machine = Machine::new();
    let found = |name: &str, findings: &serde_json::Value| {
        let finding = findings.as_array().unwrap().iter().find(|finding| finding["what"] == name).unwrap().clone();
        (finding["ok"].as_bool().unwrap(), finding["detail"].as_str().unwrap().to_owned())
    };
    let findings = machine.json(&["check", "--listen", "127.0.0.1:0"]);
    for what in ["postgresql", "account", "data folder", "transport", "address"] {
        assert!(found(what, &findings).0, "{findings}");
    }
    let gantry = machine.dev(&[]);
    let busy = machine.json(&["check", "--listen", &gantry.address.to_string()]);
    assert!(!found("address", &busy).0, "in use by gantry itself, which is no failure: {busy}");

    let output = machine.run(&["check", "--output", "json", "--listen", "0.0.0.0:0", "--postgres-bin", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(1));
    let findings = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found("postgresql", &findings).1.contains("apt-get install"), "{findings}");
    assert!(found("transport", &findings).1.contains("--tls-cert"), "{findings}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "gantry: 2 of what Gantry needs is missing\n");
}

#[test]
fn generated_files_are_what_the_code_says() {
    let machine = Machine::unprepared();
    let check = |dir: &str| machine.run(&["generate", "--check", "--dir", dir]);
    let output = check(env!("CARGO_MANIFEST_DIR"));
    assert!(output.status.success(), "{output:?}");
    // And it would tell: nothing is generated here yet.
    let dir = machine.dir().to_str().unwrap();
    let output = check(dir);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("openapi.json"), "{output:?}");
    assert!(machine.run(&["generate", "--dir", dir]).status.success());
    assert!(check(dir).status.success());
}
