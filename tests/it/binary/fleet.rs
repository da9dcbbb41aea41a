//! Two servers with data folders of their own on one control database.

use serde_json::{Value, json};

use super::{
    lease::{Shared, like},
    machine::{Gantry, Machine, until},
};

/// Starts a server with a fleet port on a machine.
fn serve(shared: &Shared, machine: &Machine, name: &str, more: &[&str]) -> Gantry {
    let node = ["--fleet-listen", "127.0.0.1:0", "--node-name", name];
    let database = ["--database-url", &shared.url];
    machine.serve(&[&node[..], &database, more].concat())
}

/// Runs a command of `gantry node`.
fn node(shared: &Shared, arguments: &[&str]) -> Value {
    let database = ["--database-url", &shared.url];
    let command = [&["node"], arguments, &database].concat();
    shared.machine.json(&command)
}

/// The state of a node in `gantry node list`.
fn state(shared: &Shared, name: &str) -> String {
    let listed = node(shared, &["list"]);
    let nodes = listed.as_array().unwrap().iter();
    let mut found = nodes.filter(|node| node["name"] == name);
    found.next().unwrap()["state"].as_str().unwrap().to_owned()
}

fn status(gantry: &Gantry, project: &str) -> String {
    let project = gantry.get(&format!("/v1/projects/{project}"));
    project.expect(200)["status"].as_str().unwrap().to_owned()
}

#[test]
fn every_node_answers_for_every_project_and_a_killed_node_is_told() {
    let shared = Shared::new();
    let other = Machine::new();
    let first = shared.with_owner(serve(&shared, &shared.machine, "first", &[]));
    let key = shared.machine.data().join("sealing-key");
    let sealed = ["--sealing-key", key.to_str().unwrap()];
    let start = || like(serve(&shared, &other, "second", &sealed), &first);
    let second = start();
    // Of equal nodes, the one that creates the project takes it.
    let project = second.create("of the second");
    second.healthy(&project);
    let logged = |text: &str| first.log().contains(text).then_some(());
    until("the first to find the second", || logged("node found"));
    let made = "create table kept as select 42 as n";
    first.query(&project, made).expect(201);
    let kept = || first.query(&project, "select n from kept").expect(201);
    assert_eq!(kept(), json!([{"n": 42}]));
    node(&shared, &["cordon", "second"]);
    assert_eq!(state(&shared, "second"), "cordoned");
    node(&shared, &["uncordon", "second"]);

    second.kill();
    until("the first to notice", || logged("node is down"));
    assert_eq!(state(&shared, "second"), "down");
    assert_eq!(status(&first, &project), "ACTIVE_UNHEALTHY");
    first.query(&project, "select 1").expect(544);

    let second = start();
    second.healthy(&project);
    until("the first to notice", || logged("node is up again"));
    assert_eq!(kept(), json!([{"n": 42}]));
    assert_eq!(state(&shared, "second"), "ready");
}
