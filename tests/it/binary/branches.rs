//! Runs of branches that are interrupted by `kill -9`.

use rustix::process::Signal;
use serde_json::json;

use super::{
    crash::rows,
    machine::{Gantry, Machine, until},
};

fn migrate(gantry: &Gantry, project: &str, name: &str, sql: &str) {
    let path = format!("/v1/projects/{project}/database/migrations");
    let body = json!({"name": name, "query": sql});
    let answer = gantry.send("POST", &path, Some(&body));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Returns the names of the migrations of a project.
fn migrations(gantry: &Gantry, project: &str) -> Vec<String> {
    let path = format!("/v1/projects/{project}/database/migrations");
    let listed = gantry.get(&path).expect(200);
    let names = listed.as_array().unwrap().iter();
    names
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Reads a text of the control database, which has no rate limit.
fn stored(machine: &Machine, sql: &str) -> String {
    rows(machine, "control", "gantry", sql)[0].get(0)
}

#[test]
fn kill_during_a_rehearsal_leaves_no_copy_and_the_merge_is_repeated() {
    let machine = Machine::new();
    let gantry = machine.dev(&[]);
    let parent = gantry.create("parent");
    gantry.healthy(&parent);
    migrate(
        &gantry,
        &parent,
        "gate",
        "create table public.gate (is_open bool)",
    );
    gantry
        .query(&parent, "insert into public.gate values (false)")
        .expect(201);
    let branches = format!("/v1/projects/{parent}/branches");
    let made = gantry.send("POST", &branches, Some(&json!({"branch_name": "b"})));
    let own = made.expect(201)["project_ref"].as_str().unwrap().to_owned();
    until("the branch", || {
        let status = stored(&machine, "select status from branches where name = 'b'");
        (status == "FUNCTIONS_DEPLOYED").then_some(())
    });
    // Waits only with the row of the parent, and so in its copy.
    let waits = "do $$ begin
        if exists (select from public.gate where not is_open) then perform pg_sleep(100); end if;
    end $$";
    migrate(&gantry, &own, "waits", waits);
    let merge = format!("/v1/branches/{own}/merge");
    gantry.send("POST", &merge, Some(&json!({}))).expect(201);
    let log = "select logs from action_runs where kind = 'merge'";
    until("the rehearsal", || {
        let text = stored(&machine, log);
        assert!(!text.contains("without a copy"), "{text}");
        text.contains("on the copy").then_some(())
    });
    // A backup may be in the making beside it, which has no server.
    let tmp = machine.names("tmp").into_iter();
    let mut copies =
        tmp.filter_map(|name| Some((machine.postmaster(&format!("tmp/{name}"))?, name)));
    let (copy, folder) = copies.next().unwrap();
    assert_eq!(copies.next(), None);
    assert_eq!(migrations(&gantry, &parent), ["gate"]);
    gantry.kill();

    let open = "update public.gate set is_open = true";
    rows(&machine, &parent, "supabase_admin", open);
    let mut gantry = machine.dev(&[]);
    gantry.healthy(&parent);
    until("the end of the killed copy", || {
        let servers = machine.servers();
        (!machine.names("tmp").contains(&folder) && !servers.contains(&copy)).then_some(())
    });
    until("the merge", || {
        stored(&machine, log).contains("finished").then_some(())
    });
    let text = stored(&machine, log);
    assert!(text.contains("1 of 1 migrations"), "{text}");
    assert_eq!(migrations(&gantry, &parent), ["gate", "waits"]);
    until("an empty tmp", || {
        machine.names("tmp").is_empty().then_some(())
    });
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}
