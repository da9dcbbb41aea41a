//! Faults during a copy: the manager, the server or both are killed at each step; the disk fills
//! up; a copy replaces a cluster.

use std::{
    fs,
    path::{Path, PathBuf},
};

use gantry_base::ids::ProjectRef;
use gantry_node::clusters::{CopySpec, ObservedState};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use super::copies::{
    batch, copy_of, files_with_canary, furnished, number, started, unfinished, until_made,
};
use crate::support::machine::{
    Machine, PATIENCE, SmallDisk, SuperuserClients as _, is_root, processes_under,
};

/// Files that appear with the steps of a copy, in their order.
const STEPS: [&str; 8] = [
    "data/PG_VERSION",
    "data/base",
    "data/global/pg_control",
    "data/backup_label",
    "start.log",
    "data/postmaster.pid",
    "data/backup_label.old",
    "copy.json",
];

/// The processes that are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Manager,
    Server,
    Both,
}

/// Kills the server at work: that of the copy if it runs, otherwise the original.
async fn kill_server(machine: &Machine, source: &ProjectRef, folder: &Path) {
    let copy = fs::read_to_string(folder.join("data/postmaster.pid")).ok();
    let copy = copy.and_then(|text| text.lines().next()?.parse().ok());
    let own = machine.clusters.observe(source).await.unwrap();
    let ((Some(pid), _) | (None, ObservedState::Running { pid, .. })) = (copy, own) else {
        return;
    };
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// Begins a copy, and kills the victim at a step. Returns whether the step was seen.
async fn kill_at(machine: &Machine, spec: &CopySpec, step: &str, victim: Victim) -> bool {
    let copy = machine.clusters.create_copy(spec);
    tokio::pin!(copy);
    let folder = tokio::select! {
        _ = &mut copy => return false,
        folder = until_made(machine, step) => folder,
    };
    if victim != Victim::Manager {
        kill_server(machine, &spec.source, &folder).await;
    }
    if victim == Victim::Server {
        // It fails, or it was past the step that needs the server.
        let _ = timeout(PATIENCE, copy)
            .await
            .expect("a copy without an end");
    }
    true
}

/// Kills the victim at each step in turn, and makes the copy again.
async fn check_kills(victim: Victim) {
    let machine = Machine::new().await;
    let major = machine.clusters.engines().default_engine().major();
    let source = furnished(&machine, 1, major).await;
    let mut seen = 0;
    for step in STEPS {
        let spec = copy_of(&source, 2, major);
        let project = &spec.cluster.project;
        seen += u32::from(kill_at(&machine, &spec, step, victim).await);
        if machine.clusters.exists(project) {
            machine.clusters.remove(project).await.unwrap();
        }
        let known = [source.clone()].into();
        machine.clusters.collect_garbage(&known).await.unwrap();
        assert_eq!(unfinished(&machine), Vec::<PathBuf>::new(), "{step}");
        let left = processes_under(&machine.dir().join("tmp"));
        assert_eq!(left, [], "{step}");
        if victim != Victim::Manager {
            machine.clusters.stop_at_once(&source).await.unwrap();
            machine.up(&source).await;
        }
        until_no_slots(&machine, &source).await;
        let (_, copy) = started(&machine, &spec).await;
        assert_eq!(number(&copy, "select count(*) from public.notes").await, 1);
        let found = files_with_canary(&machine.data(project));
        assert_eq!(found, Vec::<String>::new(), "{step}");
        machine.clusters.remove(project).await.unwrap();
    }
    assert!(seen >= 5, "{seen}");
}

/// Waits until the original has no slot of a copy: it ends with the session of the copy.
async fn until_no_slots(machine: &Machine, source: &ProjectRef) {
    let admin = machine.clusters.admin_session(source).await.unwrap();
    let sql = "select count(*) from pg_replication_slots where slot_name like 'gantry%'";
    let ended = async {
        while number(&admin, sql).await > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, ended).await.unwrap();
}

#[tokio::test]
async fn copy_converges_after_a_kill_of_the_manager_at_each_step() {
    check_kills(Victim::Manager).await;
}

#[tokio::test]
async fn copy_converges_after_a_kill_of_the_server_at_each_step() {
    check_kills(Victim::Server).await;
}

#[tokio::test]
async fn copy_converges_after_a_kill_of_both_at_each_step() {
    check_kills(Victim::Both).await;
}

#[tokio::test]
async fn disk_that_fills_up_ends_the_copy_and_gets_its_space_back() {
    // Mounting needs root.
    if !is_root() {
        return;
    }
    let machine = Machine::new().await;
    let source = machine.running(1).await;
    let admin = machine.clusters.admin_session(&source).await.unwrap();
    let filler = "create table public.filler as
                  select repeat(md5(n::text), 60) t from generate_series(1, 60000) n";
    batch(&admin, filler).await;
    let major = machine.clusters.engines().default_engine().major();
    let disk = SmallDisk::mount(&machine.dir().join("tmp"), 512);
    let spec = copy_of(&source, 2, major);
    let fill = async {
        until_made(&machine, "data/base").await;
        let filler = fs::File::create(disk.0.join("filler")).unwrap();
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, 250 << 20).unwrap();
    };
    let (copied, ()) = tokio::join!(machine.clusters.create_copy(&spec), fill);
    let message = copied.unwrap_err().to_string();
    assert!(message.contains("MB are free"), "{message}");
    fs::remove_file(disk.0.join("filler")).unwrap();
    assert_eq!(unfinished(&machine), Vec::<PathBuf>::new());
    assert!(!machine.clusters.exists(&spec.cluster.project));
    drop(disk);
    let (_, copy) = started(&machine, &spec).await;
    assert_eq!(
        number(&copy, "select count(*) from public.filler").await,
        60000
    );
}

#[tokio::test]
async fn copy_replaces_a_cluster_when_it_is_complete() {
    let machine = Machine::new().await;
    let source = machine.running(1).await;
    let admin = machine.clusters.admin_session(&source).await.unwrap();
    batch(
        &admin,
        "create table public.t (n int); insert into public.t values (1)",
    )
    .await;
    let major = machine.clusters.engines().default_engine().major();
    let first = copy_of(&source, 2, major);
    let (report, copy) = started(&machine, &first).await;
    batch(&copy, "insert into public.t values (2)").await;
    let again = |rebuild, masking: &[&str]| CopySpec {
        cluster: first.cluster.clone(),
        rebuild,
        masking: masking.iter().map(|&rule| rule.to_owned()).collect(),
        ..copy_of(&source, 2, major)
    };
    let unchanged = machine
        .clusters
        .create_copy(&again(None, &[]))
        .await
        .unwrap();
    assert_eq!(unchanged, report);
    let failed = again(Some(7), &["select 1 / 0"]);
    machine.clusters.create_copy(&failed).await.unwrap_err();
    assert_eq!(
        number(&copy, "select count(*) from public.t").await,
        2,
        "it still runs"
    );
    let anew = again(Some(7), &[]);
    let (replaced, copy) = started(&machine, &anew).await;
    assert_eq!(replaced.rebuild, Some(7));
    assert_eq!(number(&copy, "select count(*) from public.t").await, 1);
    batch(&copy, "insert into public.t values (3)").await;
    // The attempt is repeated after a crash: it finds its result.
    assert_eq!(machine.clusters.create_copy(&anew).await.unwrap(), replaced);
    assert_eq!(number(&copy, "select count(*) from public.t").await, 2);
}
