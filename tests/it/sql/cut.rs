//! A migration interrupted at every message, by a killed process or a lost connection: it is
//! applied with its record or not at all, and a second request with the same key completes it.

use std::{io, path::PathBuf};

use gantry::{
    api::database::{
        migrations,
        migrations::{MigrationPatch, NewMigration, apply, patch, roll_back},
    },
    base::error::Error,
    data_plane::database_session::session::ConnectTarget,
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
