//! A migration interrupted at every message, by a killed process or a lost connection: it is
//! applied with its record or not at all, and a second request with the same key completes it.

use std::{io, path::PathBuf};

use gantry::{
    api::database::migrations::{self, MigrationPatch, NewMigration, apply, patch, roll_back},
    control::database_session::session::ConnectTarget,
    platform::error::Error,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

use super::{LIMITS, MIGRATION_LIMITS, clock, keyed, one, our_own, run, server, wait_until_idle};

/// Position of an interruption: the number of sent messages, and whether the last one arrives.
#[derive(Debug, Clone, Copy)]
struct Cut {
    messages: usize,
    delivered: bool,
}

/// A proxy between client and server for one connection.
struct Wire {
    target: ConnectTarget,
    cut: JoinHandle<bool>,
    _folder: TempDir,
}

impl Wire {
    fn to(server: &ConnectTarget, cut: Cut) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let server: PathBuf = server.socket().path().into();
        let cut = tokio::spawn(async move { carry(&listener, server, cut).await.unwrap() });
        Self {
            target: ConnectTarget::new(our_own(folder.path().join("socket"))),
            cut,
            _folder: folder,
        }
    }

    /// Returns whether the connection was interrupted before its end.
    async fn was_cut(self) -> bool {
        self.cut.await.unwrap()
    }
}

async fn carry(listener: &UnixListener, server: PathBuf, cut: Cut) -> io::Result<bool> {
    let (mut client, _) = listener.accept().await?;
    let mut server = UnixStream::connect(server).await?;
    let (mut from_client, mut from_server) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut seen = 0;
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => match read? {
                0 => return Ok(false),
                length => {
                    seen += 1;
                    if seen < cut.messages || cut.delivered {
                        server.write_all(&from_client[..length]).await?;
                    }
                    if seen == cut.messages {
                        if cut.delivered {
                            // The answer proves that the message arrived, and is then discarded.
                            let _ = server.read(&mut from_server).await?;
                        }
                        return Ok(true);
                    }
                }
            },
            read = server.read(&mut from_server) => match read? {
                0 => return Ok(false),
                length => client.write_all(&from_server[..length]).await?,
            },
        }
    }
}

/// Asserts that migration and record both exist or both are missing.
async fn assert_whole(server: &ConnectTarget, n: usize, what: &str) -> bool {
    wait_until_idle(server).await;
    let made = one(server, &format!("select to_regclass('t{n}') is not null")).await == json!(true);
    let recorded = migrations::list(server, LIMITS)
        .await
        .unwrap()
        .iter()
        .any(|row| row.name.as_deref() == Some(&format!("m{n}")));
    assert_eq!(made, recorded, "{what}");
    made
}

fn migration(n: usize) -> NewMigration {
    let migration = keyed(
        &format!("create table t{n} (); insert into log values ({n})"),
        &format!("k{n}"),
    );
    NewMigration {
        name: Some(format!("m{n}")),
        rollback: Some(format!("drop table t{n}")),
        ..migration
    }
}

fn cuts() -> impl Iterator<Item = Cut> {
    (1..).flat_map(|messages| {
        [false, true].map(|delivered| Cut {
            messages,
            delivered,
        })
    })
}

#[tokio::test]
async fn interrupted_apply_is_atomic() {
    let server = server().await;
    run(&server, "create table log (n int)").await.unwrap();
    let (mut applied, mut not) = (0, 0);
    for (n, cut) in cuts().enumerate() {
        let wire = Wire::to(&server, cut);
        let outcome = apply(&wire.target, &clock(), &migration(n), MIGRATION_LIMITS).await;
        let was_cut = wire.was_cut().await;
        assert_eq!(
            matches!(outcome, Err(Error::DatabaseUnreachable)),
            was_cut,
            "{cut:?}: {outcome:?}"
        );
        let whole = assert_whole(&server, n, &format!("{cut:?}")).await;
        if !was_cut {
            break;
        }
        if whole {
            applied += 1;
        } else {
            not += 1;
        }
        // The client repeats the request without knowing the outcome of the first.
        let again = apply(&server, &clock(), &migration(n), MIGRATION_LIMITS)
            .await
            .unwrap();
        assert_eq!(again.replayed, whole, "{cut:?}");
        assert_eq!(
            one(&server, &format!("select count(*) from log where n = {n}")).await,
            json!(1),
            "{cut:?}"
        );
    }
    // The migration stays applied only if the answer to the commit was lost.
    assert!(applied == 1 && not > 12, "{applied} applied, {not} not");
}

#[tokio::test]
async fn interrupted_rollback_is_atomic() {
    let server = server().await;
    run(&server, "create table log (n int)").await.unwrap();
    let (mut undone, mut not) = (0, 0);
    for (n, cut) in cuts().enumerate() {
        let version = apply(&server, &clock(), &migration(n), MIGRATION_LIMITS)
            .await
            .unwrap()
            .version;
        let wire = Wire::to(&server, cut);
        let outcome = roll_back(&wire.target, &version, MIGRATION_LIMITS).await;
        let was_cut = wire.was_cut().await;
        assert_eq!(
            matches!(outcome, Err(Error::DatabaseUnreachable)),
            was_cut,
            "{cut:?}: {outcome:?}"
        );
        let whole = assert_whole(&server, n, &format!("{cut:?}")).await;
        if !was_cut {
            break;
        }
        if whole {
            not += 1;
        } else {
            undone += 1;
        }
        roll_back(&server, &version, MIGRATION_LIMITS)
            .await
            .expect("again is no error");
        assert!(!assert_whole(&server, n, "again").await);
    }
    assert!(undone == 1 && not > 6, "{undone} undone, {not} not");
}

#[tokio::test]
async fn interrupted_patch_is_atomic() {
    let server = server().await;
    run(&server, "create table log (n int)").await.unwrap();
    let version = apply(&server, &clock(), &migration(0), MIGRATION_LIMITS)
        .await
        .unwrap()
        .version;
    for (n, cut) in cuts().enumerate() {
        let name = format!("r{n}");
        let wire = Wire::to(&server, cut);
        let _ = patch(
            &wire.target,
            &version,
            &MigrationPatch {
                name: Some(name.clone()),
                rollback: Some(name.clone()),
            },
            MIGRATION_LIMITS,
        )
        .await;
        let was_cut = wire.was_cut().await;
        wait_until_idle(&server).await;
        let row = migrations::get(&server, &version, LIMITS).await.unwrap();
        let renamed = row.name.as_ref() == Some(&name);
        assert_eq!(renamed, row.rollback == Some(vec![name]), "{cut:?}");
        if !was_cut {
            assert!(renamed);
            break;
        }
    }
}

/// A migration with every kind of segment. Each segment adds its number to the log, or is visible
/// in the schema.
fn segmented(n: usize) -> NewMigration {
    let text = format!(
        "set search_path = app{n}, public;
         create schema app{n}; create table t (id int); insert into t select generate_series(1, 9);
         insert into log values ({n}, 1);
         create index concurrently i on t (id);
         begin; insert into log values ({n}, 2); commit;
         drop index concurrently i;
         create unique index concurrently u on t (id);
         insert into log values ({n}, 3);
         begin; insert into log values ({n}, 4); rollback;
         create type state as enum ('new'); commit;
         alter type state add value 'old';
         create table s (state state default 'old'); insert into log values ({n}, 5);
         create table p (id int) partition by range (id);
         create table p1 partition of p for values from (1) to (9); commit;
         alter table p detach partition p1 concurrently;
         vacuum t;
         begin isolation level serializable; insert into log values ({n}, 6); end;"
    );
    NewMigration {
        name: Some(format!("m{n}")),
        ..keyed(&text, &format!("k{n}"))
    }
}

/// Asserts that each segment of the migration took effect once.
async fn assert_segments_ran_once(server: &ConnectTarget, n: usize, cut: Cut) {
    let steps = format!("select string_agg(step::text, ',' order by step) from log where n = {n}");
    assert_eq!(one(server, &steps).await, json!("1,2,3,5,6"), "{cut:?}");
    let indexes = format!(
        "select string_agg(c.relname || i.indisvalid, ',') from pg_index i join pg_class c on c.oid = i.indexrelid
         where i.indrelid = 'app{n}.t'::regclass"
    );
    assert_eq!(one(server, &indexes).await, json!("utrue"), "{cut:?}");
    let partitions =
        format!("select count(*) from pg_inherits where inhparent = 'app{n}.p'::regclass");
    assert_eq!(one(server, &partitions).await, json!(0), "{cut:?}");
    let rows = format!(
        "select count(*) from supabase_migrations.schema_migrations where idempotency_key = 'k{n}'"
    );
    assert_eq!(one(server, &rows).await, json!(1), "{cut:?}");
    let progress = "select count(*) from supabase_migrations.gantry_progress";
    assert_eq!(one(server, progress).await, json!(0), "{cut:?}");
}

#[tokio::test]
async fn interrupted_segments_run_once() {
    let server = server().await;
    run(&server, "create table log (n int, step int)")
        .await
        .unwrap();
    let (mut resumed, mut replayed) = (0, 0);
    // A message that is not delivered leaves the state of the message before it.
    for (n, cut) in cuts().filter(|cut| cut.delivered).enumerate() {
        let wire = Wire::to(&server, cut);
        let outcome = apply(&wire.target, &clock(), &segmented(n), MIGRATION_LIMITS).await;
        let was_cut = wire.was_cut().await;
        assert_eq!(
            matches!(outcome, Err(Error::DatabaseUnreachable)),
            was_cut,
            "{cut:?}: {outcome:?}"
        );
        let again = apply(&server, &clock(), &segmented(n), MIGRATION_LIMITS)
            .await
            .unwrap_or_else(|error| panic!("{cut:?}: {error}"));
        assert_segments_ran_once(&server, n, cut).await;
        if !was_cut {
            break;
        }
        replayed += usize::from(again.replayed);
        resumed += usize::from(!again.replayed);
    }
    // It is complete before the second request only if the answer to the last commit was lost.
    assert!(
        replayed == 1 && resumed > 80,
        "{replayed} replayed, {resumed} resumed"
    );
}

#[tokio::test]
async fn interrupted_segments_without_key_resume_by_text() {
    let server = server().await;
    let text = "create table a (); commit; create table b (); commit; create table c ()";
    let wire = Wire::to(
        &server,
        Cut {
            messages: 26,
            delivered: false,
        },
    );
    let outcome = apply(&wire.target, &clock(), &super::new(text), MIGRATION_LIMITS).await;
    assert!(
        matches!(outcome, Err(Error::DatabaseUnreachable)),
        "{outcome:?}"
    );
    assert!(wire.was_cut().await);
    wait_until_idle(&server).await;
    assert_eq!(
        one(
            &server,
            "select to_regclass('a') is not null and to_regclass('c') is null"
        )
        .await,
        json!(true)
    );
    apply(&server, &clock(), &super::new(text), MIGRATION_LIMITS)
        .await
        .unwrap();
    assert_eq!(
        one(&server, "select to_regclass('c') is not null").await,
        json!(true)
    );
}
