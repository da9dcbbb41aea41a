//! Versions of a kit: replaced, removed and broken under running instances.

use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt};

use futures_util::future::join_all;
use gantry::{
    control::services::{stop_all, sweep},
    proxy::unavailable::UnavailableReason,
};
use gantry_base::ids::{ProjectId, ProjectRef};
use rustix::process::Pid;

use super::{Floor, acquire, get, until};
use crate::support::machine::{kill, processes_under};

/// Returns projects without rows, which services without a database need not have.
pub(super) fn projects(count: i64) -> Vec<(ProjectId, ProjectRef)> {
    let project = |n: i64| {
        let letters = format!("{n:020}").replace(|c: char| c.is_ascii_digit(), "a");
        let last = char::from(b'a' + u8::try_from(n).unwrap());
        let reference = format!("{}{last}", &letters[..19]).parse().unwrap();
        (ProjectId(900_000 + n), reference)
    };
    (0..count).map(project).collect()
}

impl Floor {
    /// Returns the version of the home project's instance.
    fn version(&self) -> String {
        let record = self.folder().with_file_name("kit");
        let text = fs::read_to_string(record).unwrap();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        record["version"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn removed_version_is_replaced_by_the_previous_one() {
    let floor = Floor::new("ok").await;
    let newer = floor.install("2.0", "ok", "10", "");
    drop(floor.acquire().await.unwrap());
    assert_eq!(floor.version(), "2.0");
    let pid = floor.pid(&floor.node).await;
    fs::remove_dir_all(newer).unwrap();
    sweep::stop_unwanted(&floor.node.app).await.unwrap();
    until(async || floor.pid(&floor.node).await != pid).await;
    until(async || floor.acquire().await.is_ok()).await;
    assert_eq!(floor.version(), "1.0");
}

#[tokio::test]
async fn version_that_starts_on_no_project_is_left() {
    let floor = Floor::new("ok").await;
    floor.install("2.0", "die", "10", "");
    for (id, project) in projects(3) {
        let failure = acquire(&floor.node, id, &project).await.unwrap_err();
        assert_eq!(failure.reason, UnavailableReason::Failed);
    }
    floor.acquire().await.unwrap();
    assert_eq!(floor.version(), "1.0");
    // After an hour it is tried again.
    floor.app.advance(3600);
    let (id, project) = projects(4).remove(3);
    acquire(&floor.node, id, &project).await.unwrap_err();
}

#[tokio::test]
async fn broken_program_leaves_running_instances_and_says_why_others_do_not_start() {
    let floor = Floor::new("ok").await;
    drop(floor.acquire().await.unwrap());
    let pid = floor.pid(&floor.node).await.unwrap();
    let program = floor.kits.join("rest/1.0/bin/fake");
    let mode = |mode| fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    sweep::stop_unwanted(&floor.node.app).await.unwrap();
    let used = floor.acquire().await.unwrap();
    assert!(get(&used, "/").await.starts_with(&format!("{pid} ")));
    drop(used);
    kill(Pid::from_raw(pid).unwrap()).await;
    until(async || floor.pid(&floor.node).await.is_none()).await;
    floor.app.advance(1);
    let failure = floor.acquire().await.unwrap_err();
    assert_eq!(failure.reason, UnavailableReason::BrokenKit);
    assert!(floor.failure().await.ends_with("is not executable"));
    // As a program for another machine.
    fs::remove_file(&program).unwrap();
    fs::write(&program, "not a program").unwrap();
    mode(0o755);
    floor.app.advance(1);
    let failure = floor.acquire().await.unwrap_err();
    assert_eq!(failure.reason, UnavailableReason::Failed);
    let why = floor.failure().await;
    assert!(why.contains("starting the program"), "{why}");
}

#[tokio::test]
async fn many_projects_start_at_once_and_stop_at_once() {
    let floor = Floor::new("ok").await;
    let projects = projects(25);
    let starts = projects
        .iter()
        .map(|(id, project)| acquire(&floor.node, *id, project));
    let uses = join_all(starts).await;
    let mut pids = Vec::new();
    for used in &uses {
        pids.push(get(used.as_ref().unwrap(), "/").await);
    }
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), projects.len());
    drop(uses);
    stop_all(&floor.node.app).await;
    for (_, project) in &projects {
        let name = format!("{project}.rest");
        let folder = floor.node.machine.home.socket_dir(&name);
        assert!(processes_under(&folder).is_empty() && !folder.exists());
    }
}
