//! Running copies in which SQL is tried: isolated, and removed however they end.

use std::{mem, path::PathBuf};

use gantry_base::ids::ProjectRef;
use gantry_node::clusters::ScratchCopy;
use gantry_node::clusters::platform_roles::SUPERUSER;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

use super::{
    copies::{batch, furnished, in_every_version, number, unfinished, until_made},
    text,
};
use crate::support::machine::{Machine, PATIENCE, SuperuserClients as _, processes_under};

const BYTES_MAX: u64 = 1 << 30;

async fn connect(machine: &Machine, source: &ProjectRef, copy: &ScratchCopy) -> Client {
    let config = machine.clusters.config(source, SUPERUSER).unwrap();
    let stream = copy.socket().connect().await.unwrap();
    let (client, connection) = config.connect_raw(stream, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Waits until no copy is left.
async fn until_removed(machine: &Machine) {
    let removed = async {
        while !unfinished(machine).is_empty() {
            sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, removed).await.unwrap();
    assert_eq!(processes_under(&machine.dir().join("tmp")), []);
}

async fn check_scratch(machine: &Machine, n: u32, major: u16) {
    let source = furnished(machine, n, major).await;
    let original = machine.clusters.admin_session(&source).await.unwrap();
    let copy = machine.clusters.scratch_copy(&source, BYTES_MAX).await;
    let copy = copy.unwrap();
    let tried = connect(machine, &source, &copy).await;
    assert_eq!(number(&tried, "select count(*) from public.notes").await, 1);
    let prepared = "select current_setting('max_prepared_transactions')";
    assert_eq!(text(&tried, prepared).await, "5", "settings");
    let enabled = "select count(*) from pg_subscription where subenabled";
    assert_eq!(number(&tried, enabled).await, 0);
    assert_eq!(number(&original, enabled).await, 1);
    batch(&tried, "drop table public.notes").await;
    let kept = "select count(*) from public.notes";
    assert_eq!(number(&original, kept).await, 1);
    copy.discard().await.unwrap();
    assert_eq!(unfinished(machine), Vec::<PathBuf>::new());
    until_removed(machine).await;
    // In the same session: the server has not been touched.
    assert_eq!(number(&original, kept).await, 1);
    machine.clusters.remove(&source).await.unwrap();
}

#[tokio::test]
async fn scratch_copy_has_data_and_settings_of_its_original_and_changes_stay_in_it() {
    in_every_version(check_scratch).await;
}

#[tokio::test]
async fn scratch_copy_is_removed_if_it_is_cancelled_at_any_step() {
    let machine = Machine::new().await;
    let major = machine.clusters.engines().default_engine().major();
    let source = furnished(&machine, 1, major).await;
    for step in [
        "data/PG_VERSION",
        "data/global/pg_control",
        "data/postmaster.pid",
        "data/backup_label.old",
    ] {
        let copy = machine.clusters.scratch_copy(&source, BYTES_MAX);
        let seen = tokio::select! {
            copy = copy => copy.map(drop).is_ok(),
            _ = until_made(&machine, step) => true,
        };
        assert!(seen, "{step}");
        until_removed(&machine).await;
    }
}

#[tokio::test]
async fn scratch_copy_of_a_killed_manager_is_removed_at_the_next_start() {
    let machine = Machine::new().await;
    let major = machine.clusters.engines().default_engine().major();
    let source = furnished(&machine, 1, major).await;
    let copy = machine.clusters.scratch_copy(&source, BYTES_MAX).await;
    let tried = connect(&machine, &source, copy.as_ref().unwrap()).await;
    // Killed: nothing is dropped.
    mem::forget(copy);
    assert_eq!(unfinished(&machine).len(), 1);
    let known = [source.clone()].into();
    machine.clusters.collect_garbage(&known).await.unwrap();
    until_removed(&machine).await;
    assert!(tried.batch_execute("select 1").await.is_err());
    let original = machine.clusters.admin_session(&source).await.unwrap();
    let kept = "select count(*) from public.notes";
    assert_eq!(number(&original, kept).await, 1);
}
