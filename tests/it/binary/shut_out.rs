//! An owner locks the platform out of a project: health reports the cause, and the platform
//! restores its access.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    crash::rows_in,
    machine::{Gantry, Machine, until},
};

/// Statements that lock the platform out, and the words expected in the health report.
const HARM: &[(&[&str], &str)] = &[
    (
        &["alter role gantry_owner nologin"],
        "not permitted to log in",
    ),
    (
        &[
            "revoke postgres from gantry_owner",
            "drop role gantry_owner",
        ],
        "gantry_owner",
    ),
    (
        &["alter role gantry_owner rename to somebody"],
        "gantry_owner",
    ),
    (
        &["alter role gantry_owner connection limit 0"],
        "too many connections for role",
    ),
    (
        &["revoke postgres from gantry_owner"],
        "permission denied to set role",
    ),
    (
        &["alter database postgres allow_connections false"],
        "not currently accepting connections",
    ),
    (
        &["revoke connect on database postgres from public, postgres"],
        "permission denied for database",
    ),
    (
        &["alter database postgres connection limit 0"],
        "too many connections for database",
    ),
    (
        &[
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'postgres'",
            "alter database postgres rename to other",
        ],
        "does not exist",
    ),
];

/// Runs as the superuser from another database, which every version of PostgreSQL permits. A repair
/// that still runs would change the same rows, so it is awaited.
fn harm(machine: &Machine, project: &str, statements: &[&str]) {
    let rows = |sql: &str| rows_in(machine, project, "supabase_admin", "template1", sql);
    let others = "select from pg_stat_activity where usename = 'supabase_admin' and backend_type = 'client backend' and pid <> pg_backend_pid()";
    until("the end of repairs", || {
        rows(others).is_empty().then_some(())
    });
    for statement in statements {
        rows(statement);
    }
}

fn health(gantry: &Gantry, project: &str) -> Value {
    gantry
        .get(&format!("/v1/projects/{project}/health?services=db"))
        .expect(200)[0]
        .clone()
}

#[test]
fn platform_recovers_access_after_lockout() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    machine.raise_limits(&gantry);
    let project = gantry.create("shut");
    gantry.healthy(&project);
    gantry
        .query(&project, "create table kept as select 42 as n")
        .expect(201);
    let path = format!("/v1/projects/{project}");
    for (statements, words) in HARM {
        harm(&machine, &project, statements);
        let told = health(&gantry, &project);
        assert_eq!(told["status"], "UNHEALTHY", "{statements:?}: {told}");
        assert!(
            told["error"].as_str().unwrap().contains(words),
            "{statements:?}: {told}"
        );
        until("a healthy database", || {
            (health(&gantry, &project)["status"] == "ACTIVE_HEALTHY").then_some(())
        });

        // The next use succeeds.
        let again: Vec<_> = statements
            .iter()
            .map(|statement| statement.replace("somebody", "another"))
            .collect();
        harm(
            &machine,
            &project,
            &again.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        let rows = gantry.query(&project, "select n, current_user::text as role from kept");
        assert_eq!(
            rows.expect(201),
            json!([{ "n": 42, "role": "postgres" }]),
            "{statements:?}\n{}",
            gantry.log()
        );
    }
    for statements in [
        &["alter role gantry_owner nologin"][..],
        &["alter database postgres allow_connections false"],
    ] {
        harm(&machine, &project, statements);
        assert_eq!(
            gantry.send("POST", &format!("{path}/restart"), None).status,
            200
        );
        until("the end of the restart", || {
            (gantry.get(&path).expect(200)["status"] == "ACTIVE_HEALTHY").then_some(())
        });
        assert_eq!(
            health(&gantry, &project)["status"],
            "ACTIVE_HEALTHY",
            "{statements:?}\n{}",
            gantry.log()
        );
        gantry.healthy(&project);
    }
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
}

#[test]
fn role_settings_on_platform_roles_are_reset_at_start() {
    let machine = Machine::new();
    let gantry = machine.dev(&[]);
    let project = gantry.create("hostile");
    gantry.healthy(&project);
    harm(
        &machine,
        &project,
        &[
            "alter role gantry_owner set statement_timeout = '1ms'",
            "alter role gantry_owner in database postgres set search_path = nowhere",
            "alter role gantry_owner password 'known' valid until '2001-01-01'",
            "alter role gantry_owner createrole",
            "alter role supabase_read_only_user set default_transaction_read_only = off",
        ],
    );
    let path = format!("/v1/projects/{project}");
    assert_eq!(
        gantry.send("POST", &format!("{path}/restart"), None).status,
        200
    );
    until("the end of the restart", || {
        (gantry.get(&path).expect(200)["status"] == "ACTIVE_HEALTHY").then_some(())
    });
    let sql = "select r.rolname::text, rolpassword is null and rolvaliduntil = 'infinity' and not rolcreaterole and rolcanlogin, \
               coalesce((select array_agg(unnested) from pg_db_role_setting s, unnest(setconfig) unnested where setrole = r.oid), '{}') \
               from pg_authid r where rolname in ('gantry_owner', 'supabase_read_only_user') order by 1";
    let found: Vec<(String, bool, Vec<String>)> =
        rows_in(&machine, &project, "supabase_admin", "postgres", sql)
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect();
    let expected = [
        ("gantry_owner", vec![]),
        (
            "supabase_read_only_user",
            vec!["default_transaction_read_only=on".to_owned()],
        ),
    ];
    assert_eq!(
        found,
        expected.map(|(name, settings)| (name.to_owned(), true, settings))
    );
}
