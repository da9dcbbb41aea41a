//! Recovery from `kill -9` at different moments. The next start completes interrupted work.

use std::{collections::HashSet, fs, os::unix::fs::MetadataExt, time::Duration};

use rustix::process::{Signal, kill_process};
use serde_json::json;
use tokio_postgres::{NoTls, Row};

use super::{
    machine::{Gantry, Machine, alive, until},
    wire,
};

/// Delays after a response, in milliseconds: before, during and after copying files and starting
/// the server.
const MOMENTS_MS: [u64; 8] = [0, 5, 20, 50, 90, 140, 200, 300];

// The moment of the kill varies, so a time is needed here instead of an event.
pub(super) fn let_pass(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

/// Checks that exactly the expected servers run, and that no unfinished work remains.
#[track_caller]
pub(super) fn assert_tidy(machine: &Machine, gantry: &Gantry, projects: &[String]) {
    assert_inventory(machine, gantry, projects, &[]);
}

/// Checks that exactly the expected servers run, beside prepared clusters that do not run.
#[track_caller]
fn assert_inventory(machine: &Machine, gantry: &Gantry, projects: &[String], folders: &[String]) {
    let mut wanted = [projects, folders].concat();
    wanted.sort();
    assert_eq!(machine.names("projects"), wanted, "{}", gantry.log());
    until("an empty tmp", || {
        machine.names("tmp").is_empty().then_some(())
    });
    until("an empty trash", || {
        machine.names("trash").is_empty().then_some(())
    });
    let mut wanted = [projects, &["control".to_owned()]].concat();
    wanted.sort();
    assert_eq!(machine.names("run"), wanted, "sockets of the living");
    // Every process belongs to one of the postmasters.
    let places = projects
        .iter()
        .map(|project| format!("projects/{project}"))
        .chain(["control".to_owned()]);
    let masters: Vec<_> = places
        .map(|place| {
            machine
                .postmaster(&place)
                .unwrap_or_else(|| panic!("{place} has no server"))
        })
        .collect();
    until("no orphans", || {
        machine
            .servers()
            .iter()
            .all(|pid| {
                masters.contains(pid) || masters.iter().any(|master| is_child(*pid, *master))
            })
            .then_some(())
    });
}

fn is_child(pid: rustix::process::Pid, of: rustix::process::Pid) -> bool {
    let stat =
        std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let parent = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.split(' ').nth(1))
        .map(str::to_owned);
    parent.is_some_and(|parent| parent == of.as_raw_nonzero().to_string())
}

/// Queries one of the machine's servers as its superuser.
pub(super) fn rows(machine: &Machine, server: &str, role: &str, sql: &str) -> Vec<Row> {
    rows_in(
        machine,
        server,
        role,
        if role == "gantry" { role } else { "postgres" },
        sql,
    )
}

/// Queries a given database of one of the machine's servers as its superuser.
pub(super) fn rows_in(
    machine: &Machine,
    server: &str,
    role: &str,
    database: &str,
    sql: &str,
) -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(machine.data().join("run").join(server))
            .user(role)
            .dbname(database);
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client.query(sql, &[]).await.unwrap()
    })
}

/// Returns the password verifier that the server stores.
fn password_verifier(machine: &Machine, project: &str) -> Option<String> {
    rows(
        machine,
        project,
        "supabase_admin",
        "select rolpassword from pg_authid where rolname = 'postgres'",
    )[0]
    .get(0)
}

/// Waits until one server and two folders are prepared, and returns their refs.
#[track_caller]
fn full_pool(machine: &Machine) -> (Vec<String>, Vec<String>) {
    until("a full pool", || {
        let rows = rows(
            machine,
            "control",
            "gantry",
            "select ref, running from prepared_clusters order by ref",
        );
        let (servers, folders): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get(1));
        let names = |rows: Vec<&Row>| rows.iter().map(|row| row.get(0)).collect::<Vec<String>>();
        (servers.len() == 1 && folders.len() == 2).then(|| (names(servers), names(folders)))
    })
}

/// Kills the server while a cluster is prepared, claimed or started. Each cluster must then belong
/// to one project or to the pool.
#[test]
fn kill_during_warm_pool_work_leaks_no_cluster() {
    const POOL: [&str; 4] = ["--warm-clusters", "2", "--spare-clusters", "1"];
    let machine = Machine::new();
    let mut gantry = machine.dev(&POOL);
    let mut projects = Vec::new();
    for (n, moment) in [0, 10, 30, 60, 100, 200, 400, 700].into_iter().enumerate() {
        // The pool is sometimes full, and sometimes in the state that the last kill left.
        if n % 2 == 0 {
            full_pool(&machine);
        }
        projects.push(gantry.create(&format!("cut after {moment} ms")));
        let_pass(moment);
        gantry.kill();
        gantry = machine.dev(&POOL);
        for project in &projects {
            gantry.healthy(project);
        }
        let (mut servers, folders) = full_pool(&machine);
        servers.extend(projects.iter().cloned());
        assert_inventory(&machine, &gantry, &servers, &folders);
        assert!(
            password_verifier(&machine, projects.last().unwrap()).is_some(),
            "after {moment} ms"
        );
    }
    // Each cluster has its own identity and, as root, its own user id.
    let identities: HashSet<String> = projects
        .iter()
        .map(|project| {
            rows(
                &machine,
                project,
                "supabase_admin",
                "select system_identifier::text from pg_control_system()",
            )[0]
            .get(0)
        })
        .collect();
    assert_eq!(identities.len(), projects.len());
    let owner = |name: &String| {
        fs::metadata(machine.data().join("projects").join(name).join("data"))
            .unwrap()
            .uid()
    };
    let owners: HashSet<u32> = machine.names("projects").iter().map(owner).collect();
    assert!(
        owners.len() == projects.len() + 3 || !rustix::process::geteuid().is_root(),
        "{owners:?}"
    );
    gantry.kill();
    // Disabling the pool removes the prepared clusters.
    let mut gantry = machine.dev(&[]);
    assert_tidy(&machine, &gantry, &projects);
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
    assert_eq!(machine.servers(), []);
}

#[test]
fn kill_during_project_creation_is_resumed() {
    let machine = Machine::new();
    let mut projects = Vec::new();
    let mut gantry = machine.dev(&[]);
    for moment in MOMENTS_MS {
        projects.push(gantry.create(&format!("cut after {moment} ms")));
        let_pass(moment);
        gantry.kill();
        gantry = machine.dev(&[]);
        for project in &projects {
            gantry.healthy(project);
        }
        assert_tidy(&machine, &gantry, &projects);
        let verifier = password_verifier(&machine, projects.last().unwrap());
        assert!(
            verifier
                .as_deref()
                .is_some_and(|text| text.starts_with("SCRAM-SHA-256$")),
            "after {moment} ms: {verifier:?}"
        );
    }
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
    assert_eq!(machine.servers(), []);
}

#[test]
fn kill_during_project_removal_is_resumed() {
    const AT_ONCE: [&str; 2] = ["--deleted-project-days", "0"];
    let machine = Machine::new();
    let mut gantry = machine.dev(&AT_ONCE);
    let moments = [0, 5, 30, 120];
    let mut projects: Vec<_> = moments
        .iter()
        .map(|moment| gantry.create(&format!("cut after {moment} ms")))
        .collect();
    for project in &projects {
        gantry.healthy(project);
    }
    for moment in moments {
        let project = projects.remove(0);
        gantry
            .send("DELETE", &format!("/v1/projects/{project}"), None)
            .expect(200);
        let_pass(moment);
        gantry.kill();
        gantry = machine.dev(&AT_ONCE);
        let gone = gantry.get(&format!("/v1/projects/{project}"));
        assert_eq!(gone.expect(400)["message"], "Resource has been removed");
        until("the end of its server", || {
            machine
                .postmaster(&format!("projects/{project}"))
                .is_none()
                .then_some(())
        });
        until("its folder gone", || {
            (!machine.names("projects").contains(&project)).then_some(())
        });
        assert_tidy(&machine, &gantry, &projects);
        for project in &projects {
            gantry.healthy(project);
        }
    }
}

/// Kills Gantry, the project's server, or both, while the server stops or starts.
#[test]
fn kill_during_pause_restore_restart_reaches_desired_state() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    // Status is polled more often than in normal use.
    machine.raise_limits(&gantry);
    let project = gantry.create("sleeper");
    gantry.healthy(&project);
    gantry
        .query(&project, "create table kept as select 42 as n")
        .expect(201);
    let (path, place) = (
        format!("/v1/projects/{project}"),
        format!("projects/{project}"),
    );
    let victims = [(true, false), (false, true), (true, true)];
    for (moment, (itself, server)) in [0, 20, 90]
        .into_iter()
        .flat_map(|moment| victims.map(|victim| (moment, victim)))
    {
        for (command, end) in [
            ("pause", "INACTIVE"),
            ("restore", "ACTIVE_HEALTHY"),
            ("restart", "ACTIVE_HEALTHY"),
        ] {
            let asked = gantry.send("POST", &format!("{path}/{command}"), None);
            assert_eq!(
                asked.status,
                200,
                "{command} after {moment} ms: {}",
                gantry.log()
            );
            let_pass(moment);
            if server && let Some(pid) = machine.postmaster(&place) {
                // The process may exit by itself at the same moment.
                let _ = kill_process(pid, Signal::KILL);
            }
            if itself {
                gantry.kill();
                gantry = machine.dev(&[]);
            }
            until(end, || {
                (gantry.get(&path).expect(200)["status"] == end).then_some(())
            });
            if end == "INACTIVE" {
                until("no process of it", || {
                    machine.postmaster(&place).is_none().then_some(())
                });
            } else {
                gantry.healthy(&project);
            }
        }
        assert_eq!(
            gantry.query(&project, "select n from kept").expect(201),
            json!([{"n": 42}])
        );
        assert_tidy(&machine, &gantry, std::slice::from_ref(&project));
    }
}

/// Kills during a change of settings. The server must run with the settings that the API returns,
/// old or new.
#[test]
fn kill_during_settings_change_keeps_reported_settings() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    machine.raise_limits(&gantry);
    let project = gantry.create("tuned");
    gantry.healthy(&project);
    let (path, place) = (
        format!("/v1/projects/{project}"),
        format!("projects/{project}"),
    );
    let settings = format!("{path}/config/database/postgres");
    let victims = [(true, false), (false, true), (true, true)];
    for (n, (moment, (itself, server))) in [0, 10, 40, 150]
        .into_iter()
        .flat_map(|moment| victims.map(|victim| (moment, victim)))
        .enumerate()
    {
        // Every third change prevents the server from starting, so that Gantry reverts it.
        let wanted = if n % 3 == 2 { 3 } else { 31 + n };
        let (address, token, at) = (gantry.address, gantry.token.clone(), settings.clone());
        let body = json!({"max_connections": wanted});
        let asked =
            std::thread::spawn(move || wire::send(address, "PUT", &at, Some(&token), Some(&body)));
        let_pass(moment);
        if server && let Some(pid) = machine.postmaster(&place) {
            // The process may exit by itself at the same moment.
            let _ = kill_process(pid, Signal::KILL);
        }
        if itself {
            gantry.kill();
            gantry = machine.dev(&[]);
        }
        let told = asked.join().unwrap().ok();
        gantry.healthy(&project);
        let kept = gantry.get(&settings).expect(200)["max_connections"].as_u64();
        let runs = gantry
            .query(
                &project,
                "select current_setting('max_connections')::int as n",
            )
            .expect(201);
        assert_eq!(
            runs,
            json!([{"n": kept.unwrap_or(118)}]),
            "{n}, after {moment} ms: {}",
            gantry.log()
        );
        assert_ne!(kept, Some(3), "{n}, after {moment} ms");
        if told.is_some_and(|answer| answer.status == 200) {
            assert_eq!(kept, Some(wanted as u64), "{n}: answered, and not there");
        }
        assert_tidy(&machine, &gantry, std::slice::from_ref(&project));
    }
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}

#[test]
fn restart_after_kill_adopts_running_clusters() {
    let machine = Machine::new();
    let gantry = machine.dev(&[]);
    let project = gantry.create("kept");
    gantry.healthy(&project);
    let place = format!("projects/{project}");
    let (control, server) = (
        machine.postmaster("control").unwrap(),
        machine.postmaster(&place).unwrap(),
    );
    gantry.kill();
    assert!(alive(control) && alive(server), "servers outlive gantry");

    let mut gantry = machine.serve(&[]);
    assert_eq!(
        (machine.postmaster("control"), machine.postmaster(&place)),
        (Some(control), Some(server)),
        "{}",
        gantry.log()
    );
    // `gantry serve` leaves project servers running over a restart and stops only the control
    // cluster.
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
    assert!(alive(server) && !alive(control), "{}", gantry.log());

    let mut gantry = machine.dev(&[]);
    assert_eq!(machine.postmaster(&place), Some(server), "{}", gantry.log());
    gantry.healthy(&project);
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
    assert_eq!(machine.servers(), []);
}

/// Kills the session during a migration. PostgreSQL keeps the migration completely or not at all.
#[test]
fn kill_during_migration_is_atomic() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    let project = gantry.create("kept");
    gantry.healthy(&project);
    let path = format!("/v1/projects/{project}/database/migrations");
    let applied = |gantry: &Gantry, n: usize| {
        let others = "select count(*) as n from pg_stat_activity where usename = 'gantry_owner' and pid <> pg_backend_pid()";
        until("nobody else at work", || {
            (gantry.query(&project, others).expect(201) == json!([{"n": 0}])).then_some(())
        });
        let seen =
            gantry.query(&project, &format!("select to_regclass('a{n}') is not null as first, to_regclass('b{n}') is not null as last"));
        let recorded = gantry
            .get(&path)
            .expect(200)
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["name"] == format!("m{n}"));
        assert_eq!(
            seen.expect(201),
            json!([{"first": recorded, "last": recorded}]),
            "{n}"
        );
        recorded
    };
    for (n, moment) in [0, 5, 10, 20, 40, 120].into_iter().enumerate() {
        let query = format!("create table a{n} (); select pg_sleep(0.03); create table b{n} ()");
        let body = json!({"query": query, "name": format!("m{n}")});
        let (address, token, at) = (gantry.address, gantry.token.clone(), path.clone());
        let asked = std::thread::spawn({
            let body = body.clone();
            move || wire::send(address, "POST", &at, Some(&token), Some(&body))
        });
        let_pass(moment);
        gantry.kill();
        let told = asked
            .join()
            .unwrap()
            .is_ok_and(|answer| answer.status == 200);
        gantry = machine.dev(&[]);
        gantry.healthy(&project);
        let done = applied(&gantry, n);
        assert!(done || !told, "{n}: answered, and not there");
        if !done {
            assert_eq!(gantry.send("POST", &path, Some(&body)).status, 200);
            assert!(applied(&gantry, n));
        }
    }
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}

/// Kills the session during a migration in segments. The next request completes it, and each
/// segment takes effect once.
#[test]
fn kill_during_segments_is_resumed() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    let project = gantry.create("kept");
    gantry.healthy(&project);
    gantry
        .query(&project, "create table steps (n int, step int); create table t as select generate_series(1, 100000) as id")
        .expect(201);
    let path = format!("/v1/projects/{project}/database/migrations");
    for (n, moment) in [0, 15, 30, 60, 90, 130, 180].into_iter().enumerate() {
        let query = format!(
            "begin; insert into steps values ({n}, 1); select pg_sleep(0.03); commit;
             create index concurrently i{n} on t (id);
             insert into steps values ({n}, 2); commit;
             vacuum t;
             begin; insert into steps values ({n}, 3); select pg_sleep(0.03); commit"
        );
        let body = json!({"query": query, "name": format!("m{n}")});
        let (address, token, at) = (gantry.address, gantry.token.clone(), path.clone());
        let asked = std::thread::spawn({
            let body = body.clone();
            move || wire::send(address, "POST", &at, Some(&token), Some(&body))
        });
        let_pass(moment);
        gantry.kill();
        let told = asked
            .join()
            .unwrap()
            .is_ok_and(|answer| answer.status == 200);
        gantry = machine.dev(&[]);
        gantry.healthy(&project);
        let is_recorded = |gantry: &Gantry| {
            let rows = gantry.get(&path).expect(200);
            rows.as_array()
                .unwrap()
                .iter()
                .any(|row| row["name"] == format!("m{n}"))
        };
        // The server may still commit after its client was killed.
        until("the end of the session", || {
            let others = "select count(*) as n from pg_stat_activity where usename = 'gantry_owner' and pid <> pg_backend_pid()";
            (gantry.query(&project, others).expect(201) == json!([{"n": 0}])).then_some(())
        });
        assert!(
            is_recorded(&gantry) || !told,
            "{n}: answered, and not there"
        );
        if !is_recorded(&gantry) {
            let answer = gantry.send("POST", &path, Some(&body));
            assert_eq!(answer.status, 200, "{n}: {}", gantry.log());
        }
        let state = format!(
            "select (select string_agg(step::text, '' order by step) from steps where n = {n}) as steps,
                    (select indisvalid from pg_index where indexrelid = 'i{n}'::regclass) as valid,
                    (select count(*) from pg_index where indrelid = 't'::regclass) as indexes"
        );
        assert_eq!(
            gantry.query(&project, &state).expect(201),
            json!([{"steps": "123", "valid": true, "indexes": n + 1}]),
            "{n}, after {moment} ms"
        );
        assert!(is_recorded(&gantry));
    }
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}

#[test]
fn kill_during_first_start_is_recoverable() {
    for moment in [30, 200, 500, 900] {
        let machine = Machine::unprepared();
        let cut = machine.begin("dev", &[]);
        let_pass(moment);
        cut.kill();
        let gantry = machine.dev(&[]);
        let project = gantry.create("first");
        gantry.healthy(&project);
        assert_tidy(&machine, &gantry, &[project]);
    }
}

#[test]
fn signal_during_startup_stops_all_processes() {
    for (moment, signal) in [
        (100, Signal::INT),
        (300, Signal::TERM),
        (600, Signal::INT),
        (1000, Signal::TERM),
    ] {
        let machine = Machine::unprepared();
        let mut cut = machine.begin("dev", &[]);
        let_pass(moment);
        cut.stop(signal);
        until("nothing running", || {
            machine.servers().is_empty().then_some(())
        });
        assert!(!cut.log().contains("panicked"), "{}", cut.log());
    }
}
