//! Recovery from `kill -9` during upgrades, and during the hold of removed projects.

use serde_json::json;

use super::{
    crash::{assert_tidy, let_pass, rows},
    machine::{Machine, until},
};
use crate::support::note_skipped;

#[test]
fn kill_during_hold_and_restore_of_removed_project_is_resumed() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    let project = gantry.create("held");
    gantry.healthy(&project);
    gantry
        .query(&project, "create table kept as select 42 as n")
        .expect(201);
    let path = format!("/v1/projects/{project}");
    let place = format!("projects/{project}");
    for moment in [0, 5, 30, 120] {
        gantry.send("DELETE", &path, None).expect(200);
        let_pass(moment);
        gantry.kill();
        gantry = machine.dev(&[]);
        until("the end of its server", || {
            machine.postmaster(&place).is_none().then_some(())
        });
        gantry.get(&path).expect(400);
        assert!(machine.names("projects").contains(&project));
        let restored = gantry.send("POST", &format!("{path}/restore"), None);
        assert_eq!(restored.status, 200, "{restored:?}");
        let_pass(moment);
        gantry.kill();
        gantry = machine.dev(&[]);
        gantry.healthy(&project);
        assert_eq!(
            gantry.query(&project, "select n from kept").expect(201),
            json!([{"n": 42}])
        );
    }
    gantry.send("DELETE", &path, None).expect(200);
    let listed = machine.json(&["project", "removed"]);
    assert_eq!(listed[0]["ref"], project);
    machine.json(&["project", "purge", &project]);
    gantry.kill();
    gantry = machine.dev(&[]);
    until("its folder gone", || {
        (!machine.names("projects").contains(&project)).then_some(())
    });
    assert_tidy(&machine, &gantry, &[]);
}

/// Kills Gantry at several moments of an upgrade. The next start completes it.
#[test]
fn kill_during_upgrade_is_resumed() {
    let machine = Machine::new();
    // The engines of the test run, of which one is the default of new projects.
    let engines = std::env::var_os("GANTRY_TEST_ENGINES")
        .unwrap_or_else(|| "/var/tmp/gantry-test-engines".into());
    std::os::unix::fs::symlink(engines, machine.data().join("engines")).unwrap();
    let mut gantry = machine.dev(&[]);
    for moment in [0, 300, 1200, 2500, 4000] {
        let project = gantry.create(&format!("cut after {moment} ms"));
        gantry.healthy(&project);
        let path = format!("/v1/projects/{project}");
        let found = gantry
            .get(&format!("{path}/upgrade/eligibility"))
            .expect(200);
        let Some(target) = found["target_upgrade_versions"].get(0) else {
            note_skipped("no engine to upgrade to");
            return;
        };
        gantry
            .query(&project, "create table kept as select 42 as n")
            .expect(201);
        let body = json!({"target_version": target["postgres_version"]});
        gantry
            .send("POST", &format!("{path}/upgrade"), Some(&body))
            .expect(201);
        let_pass(moment);
        gantry.kill();
        gantry = machine.dev(&[]);
        // Not through the API, which has a limit of requests.
        let open =
            format!("select from projects where ref = '{project}' and status <> 'ACTIVE_HEALTHY'");
        until("the end of the upgrade", || {
            let open = rows(&machine, "control", "gantry", &open);
            open.is_empty().then_some(())
        });
        gantry.healthy(&project);
        let status = gantry.get(&format!("{path}/upgrade/status")).expect(200);
        assert_eq!(
            status["databaseUpgradeStatus"]["status"],
            1,
            "{status}: {}",
            gantry.log()
        );
        let sql = "select n, current_setting('server_version_num')::int / 10000 as major from kept";
        let major: u16 = target["postgres_version"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(
            gantry.query(&project, sql).expect(201),
            json!([{"n": 42, "major": major}])
        );
        until("an empty tmp", || {
            machine.names("tmp").is_empty().then_some(())
        });
    }
}
