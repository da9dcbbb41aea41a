//! The cluster of Gantry's own database.

use std::{fs, time::Duration};

use gantry_base::clock::Entropy;
use gantry_node::{clusters::control::Control, error::ClusterError};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;
use tokio_postgres::NoTls;

use super::text;
use crate::support::machine::{Machine, host, kill, processes_under};

#[tokio::test]
async fn control_cluster_keeps_data_across_restarts() {
    let machine = Machine::new().await;
    let host = host();
    let control = Control::ensure(&machine.home, &host, &Entropy::system())
        .await
        .unwrap();
    let (client, connection) = control.config().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    for durable in ["fsync", "full_page_writes", "synchronous_commit"] {
        assert_eq!(
            text(&client, &format!("select current_setting('{durable}')")).await,
            "on"
        );
    }
    client
        .batch_execute("create table kept as select 42 n")
        .await
        .unwrap();
    // A killed server recovers at the next start.
    for (pid, _) in processes_under(machine.home.dir()) {
        kill(pid).await;
    }
    let control = Control::ensure(&machine.home, &host, &Entropy::system())
        .await
        .unwrap();
    let control_again = Control::ensure(&machine.home, &host, &Entropy::system())
        .await
        .unwrap();
    let (client, connection) = control_again.config().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(text(&client, "select n::text from kept").await, "42");
    control.stop().await.unwrap();
    assert_eq!(processes_under(machine.home.dir()), []);
}

/// A Gantry that stops the server can be killed before the server has stopped.
#[tokio::test]
async fn server_that_is_being_stopped_is_started_again_after_its_end() {
    let machine = Machine::new().await;
    let (host, entropy) = (host(), Entropy::system());
    let ensure = || Control::ensure(&machine.home, &host, &entropy);
    let control = ensure().await.unwrap();
    let (client, connection) = control.config().connect(NoTls).await.unwrap();
    let session = tokio::spawn(connection);
    let pid_file = machine.home.dir().join("control/data/postmaster.pid");
    let first = fs::read_to_string(&pid_file).unwrap();
    let postmaster = first.lines().next().unwrap().parse().unwrap();
    // It stops when the session has ended.
    kill_process(Pid::from_raw(postmaster).unwrap(), Signal::TERM).unwrap();
    let mut next = std::pin::pin!(ensure());
    timeout(Duration::from_millis(300), &mut next)
        .await
        .unwrap_err();
    drop(client);
    session.await.unwrap().unwrap();
    let control = next.await.unwrap();
    let (client, connection) = control.config().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(text(&client, "select '1'").await, "1");
    assert_ne!(fs::read_to_string(&pid_file).unwrap(), first);
    control.stop().await.unwrap();
}

#[tokio::test]
async fn reason_of_a_failed_start_is_that_of_the_servers_log() {
    let machine = Machine::new().await;
    let (host, entropy) = (host(), Entropy::system());
    let control = Control::ensure(&machine.home, &host, &entropy)
        .await
        .unwrap();
    control.stop().await.unwrap();
    let wal = machine.home.dir().join("control/data/pg_wal");
    for entry in fs::read_dir(&wal).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let error = Control::ensure(&machine.home, &host, &entropy)
        .await
        .unwrap_err();
    assert!(matches!(error, ClusterError::NotStarted { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("checkpoint record"), "{text}");
    assert!(!text.contains("redirecting"), "{text}");
}
