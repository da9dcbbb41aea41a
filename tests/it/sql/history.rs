//! History of migrations: reading, patching, rollback, and sharing with the command line.

use gantry::{
    api::database::migrations::{
        self, MigrationPatch, NewMigration, apply, get, patch, record, roll_back,
    },
    control::database_session::session::ConnectTarget,
    platform::error::Error,
};
use serde_json::{Value, json};

use super::{LIMITS, MIGRATION_LIMITS, clock, keyed, message, new, one, run, server};

fn undoable(query: &str, rollback: &str) -> NewMigration {
    NewMigration {
        rollback: Some(rollback.into()),
        ..new(query)
    }
}

async fn add(target: &ConnectTarget, migration: &NewMigration) -> String {
    apply(target, &clock(), migration, MIGRATION_LIMITS)
        .await
        .unwrap()
        .version
}

async fn versions(target: &ConnectTarget) -> Vec<String> {
    migrations::list(target, LIMITS)
        .await
        .unwrap()
        .into_iter()
        .map(|migration| migration.version)
        .collect()
}

/// The history as the command line creates and fills it.
const THEIRS: &str = "create schema if not exists supabase_migrations;
    create table if not exists supabase_migrations.schema_migrations (version text not null primary key);
    alter table supabase_migrations.schema_migrations add column if not exists statements text[];
    alter table supabase_migrations.schema_migrations add column if not exists name text;
    insert into supabase_migrations.schema_migrations(version, name, statements)
        values ('20250101000000', 'theirs', array['create table theirs ()', 'select 1'])";

#[tokio::test]
async fn get_migration_returns_all_columns() {
    let target = server().await;
    assert!(
        matches!(
            get(&target, "20261101091503", LIMITS).await,
            Err(Error::NotFound)
        ),
        "no history yet"
    );
    let migration = NewMigration {
        name: Some("first".into()),
        created_by: Some("me@example.com".into()),
        ..NewMigration {
            rollback: Some("drop table a".into()),
            ..keyed("create table a ()", "k")
        }
    };
    let version = add(&target, &migration).await;
    assert_eq!(
        json!(get(&target, &version, LIMITS).await.unwrap()),
        json!({"version": version, "name": "first", "statements": ["create table a ()"], "rollback": ["drop table a"],
            "created_by": "me@example.com", "idempotency_key": "k"})
    );
    let bare = add(&target, &new("select 1")).await;
    assert_eq!(
        json!(get(&target, &bare, LIMITS).await.unwrap()),
        json!({"version": bare, "statements": ["select 1"]})
    );
    assert!(matches!(
        get(&target, "1", LIMITS).await,
        Err(Error::NotFound)
    ));
}

#[tokio::test]
async fn recorded_migration_is_not_run() {
    let target = server().await;
    let migration = NewMigration {
        name: Some("by hand".into()),
        ..keyed("create index concurrently on nowhere (a)", "k")
    };
    let first = record(&target, &clock(), &migration, MIGRATION_LIMITS)
        .await
        .unwrap();
    assert_eq!(
        (first.version.as_str(), first.replayed),
        ("20261101091503", false)
    );
    let again = record(&target, &clock(), &migration, MIGRATION_LIMITS)
        .await
        .unwrap();
    assert_eq!(
        (again.version, again.replayed),
        (first.version.clone(), true)
    );
    let shown = json!(get(&target, &first.version, LIMITS).await.unwrap());
    assert_eq!(
        (&shown["name"], &shown["statements"]),
        (&json!("by hand"), &json!([migration.query]))
    );
    // The next version follows, whether or not the migration was run.
    assert_eq!(add(&target, &new("select 1")).await, "20261101091504");
}

#[tokio::test]
async fn key_of_other_request_conflicts() {
    let target = server().await;
    let first = NewMigration {
        name: Some("a".into()),
        ..keyed("create table a ()", "k")
    };
    let version = add(&target, &first).await;
    let others = [
        NewMigration {
            query: "create table b ()".into(),
            ..first.clone()
        },
        NewMigration {
            name: Some("b".into()),
            ..first.clone()
        },
        NewMigration {
            name: None,
            ..first.clone()
        },
        NewMigration {
            rollback: Some(String::new()),
            ..first.clone()
        },
    ];
    for other in &others {
        assert!(
            matches!(
                apply(&target, &clock(), other, MIGRATION_LIMITS).await,
                Err(Error::Conflict(_))
            ),
            "{other:?}"
        );
    }
    let recorded = record(&target, &clock(), &first, MIGRATION_LIMITS).await;
    assert!(
        matches!(recorded, Err(Error::Conflict(_))),
        "recording is not applying"
    );

    // Another user or a later name does not change the request.
    patch(
        &target,
        &version,
        &MigrationPatch {
            name: Some("renamed".into()),
            rollback: Some("drop table a".into()),
        },
        MIGRATION_LIMITS,
    )
    .await
    .unwrap();
    let again = NewMigration {
        created_by: Some("another".into()),
        ..first.clone()
    };
    assert!(
        apply(&target, &clock(), &again, MIGRATION_LIMITS)
            .await
            .unwrap()
            .replayed
    );
    assert_eq!(versions(&target).await, [version.as_str()]);

    // After a rollback, the key can be used for another migration.
    roll_back(&target, &version, MIGRATION_LIMITS)
        .await
        .unwrap();
    assert!(
        !apply(&target, &clock(), &others[0], MIGRATION_LIMITS)
            .await
            .unwrap()
            .replayed
    );
    assert_eq!(
        one(&target, "select to_regclass('b')::text").await,
        json!("b")
    );
}

#[tokio::test]
async fn history_without_request_table_compares_sql() {
    let target = server().await;
    add(&target, &keyed("create table a ()", "k")).await;
    run(&target, "drop table supabase_migrations.gantry_requests")
        .await
        .unwrap();
    assert!(
        apply(
            &target,
            &clock(),
            &keyed("create table a ()", "k"),
            MIGRATION_LIMITS
        )
        .await
        .unwrap()
        .replayed
    );
    assert!(matches!(
        apply(
            &target,
            &clock(),
            &keyed("create table b ()", "k"),
            MIGRATION_LIMITS
        )
        .await,
        Err(Error::Conflict(_))
    ));
}

#[tokio::test]
async fn patch_changes_name_and_rollback() {
    let target = server().await;
    run(&target, THEIRS).await.unwrap();
    let change = |name: Option<&str>, rollback: Option<&str>| MigrationPatch {
        name: name.map(Into::into),
        rollback: rollback.map(Into::into),
    };
    patch(
        &target,
        "20250101000000",
        &change(Some("ours"), None),
        MIGRATION_LIMITS,
    )
    .await
    .unwrap();
    patch(
        &target,
        "20250101000000",
        &change(None, Some("drop table theirs")),
        MIGRATION_LIMITS,
    )
    .await
    .unwrap();
    patch(
        &target,
        "20250101000000",
        &change(None, None),
        MIGRATION_LIMITS,
    )
    .await
    .unwrap();
    assert_eq!(
        json!(get(&target, "20250101000000", LIMITS).await.unwrap()),
        json!({"version": "20250101000000", "name": "ours", "statements": ["create table theirs ()", "select 1"],
            "rollback": ["drop table theirs"]})
    );
    let missing = patch(&target, "2025", &change(Some("x"), None), MIGRATION_LIMITS).await;
    assert!(matches!(missing, Err(Error::NotFound)));
}

// Rollback.

#[tokio::test]
async fn rollback_runs_newest_first_and_deletes_rows() {
    let target = server().await;
    run(&target, "create table log (at serial, what text)")
        .await
        .unwrap();
    let mut made = Vec::new();
    for n in 0..4 {
        made.push(
            add(
                &target,
                &undoable(
                    &format!("create table t{n} ()"),
                    &format!("begin; drop table t{n}; insert into log (what) values ('t{n}'); end"),
                ),
            )
            .await,
        );
    }
    run(
        &target,
        "insert into supabase_migrations.schema_migrations (version) values ('init')",
    )
    .await
    .unwrap();
    roll_back(&target, &made[1], MIGRATION_LIMITS)
        .await
        .unwrap();
    assert_eq!(
        run(&target, "select what from log order by at")
            .await
            .unwrap(),
        json!([{"what": "t3"}, {"what": "t2"}, {"what": "t1"}])
    );
    assert_eq!(
        versions(&target).await,
        [made[0].as_str(), "init"],
        "a version that is no number has no place in the order"
    );
    roll_back(&target, &made[1], MIGRATION_LIMITS)
        .await
        .expect("again is no error");
    // Versions sort as text, including those of other lengths.
    roll_back(&target, "3", MIGRATION_LIMITS).await.unwrap();
    assert_eq!(versions(&target).await, [made[0].as_str(), "init"]);
    roll_back(&target, "2", MIGRATION_LIMITS).await.unwrap();
    assert_eq!(versions(&target).await, ["init"]);
    assert_eq!(
        one(
            &target,
            "select count(*) from pg_tables where tablename ~ '^t[0-9]$'"
        )
        .await,
        json!(0)
    );
}

#[tokio::test]
async fn rollback_is_atomic() {
    let target = server().await;
    let first = add(&target, &undoable("create table a ()", "drop table a")).await;
    let second = add(
        &target,
        &undoable("create table b ()", "drop table b;\ndrop table nope"),
    )
    .await;
    let third = add(&target, &undoable("create table c ()", "drop table c")).await;
    let all = [first.as_str(), second.as_str(), third.as_str()];
    let untouched = async || {
        assert_eq!(versions(&target).await, all);
        assert_eq!(
            one(
                &target,
                "select count(*) from pg_tables where schemaname = 'public'"
            )
            .await,
            json!(3)
        );
    };
    assert_eq!(
        message(roll_back(&target, &first, MIGRATION_LIMITS).await),
        format!(
            "Failed to run sql query: ERROR:  42P01: table \"nope\" does not exist\nCONTEXT:  rollback of {second}\n"
        )
    );
    untouched().await;
    let change = |rollback: &str| MigrationPatch {
        rollback: Some(rollback.into()),
        ..MigrationPatch::default()
    };
    for (rollback, refused) in [
        ("drop table b; commit", "cannot contain COMMIT (line 1)"),
        ("\nvacuum", "does not run VACUUM (line 2)"),
    ] {
        patch(&target, &second, &change(rollback), MIGRATION_LIMITS)
            .await
            .unwrap();
        let refusal = message(roll_back(&target, &first, MIGRATION_LIMITS).await);
        assert!(
            refusal.starts_with(&format!("rollback of {second}: ")) && refusal.contains(refused),
            "{refusal}"
        );
        untouched().await;
    }
    run(&target, &format!("update supabase_migrations.schema_migrations set rollback = null where version <> '{third}'")).await.unwrap();
    assert_eq!(
        message(roll_back(&target, &first, MIGRATION_LIMITS).await),
        format!(
            "No rollback is recorded for {second}, {first}: nothing was rolled back. Record one with PATCH, an empty one if there is nothing to undo."
        )
    );
    untouched().await;
    for version in [&first, &second] {
        patch(&target, version, &change(""), MIGRATION_LIMITS)
            .await
            .unwrap();
    }
    roll_back(&target, &first, MIGRATION_LIMITS).await.unwrap();
    assert_eq!(versions(&target).await, [""; 0]);
}

// Interoperation with the command line.

#[tokio::test]
async fn command_line_reads_and_repairs_history() {
    let target = server().await;
    let version = add(
        &target,
        &NewMigration {
            name: Some("ours".into()),
            ..keyed("create table a ()", "k")
        },
    )
    .await;
    // `migration list`, `migration fetch`, then `migration repair` in both directions, and without
    // versions.
    let listed = run(
        &target,
        "select version from supabase_migrations.schema_migrations order by version",
    )
    .await
    .unwrap();
    assert_eq!(listed, json!([{"version": version}]));
    let fetched = "select version, coalesce(name, '') as name, statements from supabase_migrations.schema_migrations";
    assert_eq!(
        run(&target, fetched).await.unwrap(),
        json!([{"version": version, "name": "ours", "statements": ["create table a ()"]}])
    );
    let reverted = format!(
        "delete from supabase_migrations.schema_migrations where version = any(array['{version}'])"
    );
    run(&target, &reverted).await.unwrap();
    run(&target, THEIRS)
        .await
        .expect("what it runs before every change finds our table");
    let upsert = "insert into supabase_migrations.schema_migrations(version, name, statements) values ('20250101000000', 'again', '{}')
                  on conflict (version) do update set name = excluded.name, statements = excluded.statements";
    run(&target, upsert).await.unwrap();
    run(&target, "truncate supabase_migrations.schema_migrations")
        .await
        .expect("nothing refers to it");
    // The key was deleted with the row.
    run(&target, "drop table a").await.unwrap();
    assert!(
        !apply(
            &target,
            &clock(),
            &keyed("create table a ()", "k"),
            MIGRATION_LIMITS
        )
        .await
        .unwrap()
        .replayed
    );
}

#[tokio::test]
async fn history_of_command_line_is_continued() {
    let target = server().await;
    run(&target, THEIRS).await.unwrap();
    let theirs = json!({"version": "20250101000000", "name": "theirs", "statements": ["create table theirs ()", "select 1"]});
    assert_eq!(
        json!(get(&target, "20250101000000", LIMITS).await.unwrap()),
        theirs
    );
    let ours = add(&target, &undoable("create table a ()", "drop table a")).await;
    assert_eq!(versions(&target).await, ["20250101000000", ours.as_str()]);
    roll_back(&target, &ours, MIGRATION_LIMITS).await.unwrap();
    assert_eq!(versions(&target).await, ["20250101000000"]);
    assert_eq!(one(&target, "select to_regclass('a')").await, Value::Null);
}
