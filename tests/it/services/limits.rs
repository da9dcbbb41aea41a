//! Limits of memory and processes of an instance, by control groups and by resource limits.

use std::{fs, sync::Arc};

use gantry::control::{projects::lease, services::sweep};
use gantry_node::{
    clusters::{ControlGroups, ResourceLimits, Resources},
    kits::Service,
};

use super::{Floor, get, until};
use crate::support::{
    TestApp,
    machine::{Machine, is_root},
};

/// Returns a node on a machine without control groups.
async fn without_groups() -> Floor {
    let app = TestApp::new().await;
    let mut machine = Machine::bare();
    let resources = Resources::new(ResourceLimits::default(), ControlGroups::none());
    machine.clusters = machine.clusters.with_resources(resources);
    let floor = Floor::on(app, |_| Arc::new(machine));
    floor.install("1.0", "ok", "10", "");
    lease::claim(&floor.node.app).await.unwrap();
    floor
}

/// Makes the program use all its memory, and returns the reported failure.
async fn hog(floor: &Floor) -> String {
    let used = floor.acquire().await.unwrap();
    get(&used, "/hog").await;
    drop(used);
    let id = floor.id(&floor.app.home.project).await;
    let reason = || floor.node.app.services.last_end(id, Service::Rest);
    until(async || reason().is_some()).await;
    reason().unwrap()
}

#[tokio::test]
async fn program_beyond_its_memory_is_ended_by_its_control_group() {
    let floor = Floor::new("ok").await;
    let groups = ControlGroups::find(floor.node.machine.dir(), None);
    if !groups.enforced() {
        return;
    }
    let why = hog(&floor).await;
    assert_eq!(
        why,
        "the program needed more memory than its limit of 256 MB"
    );
    floor.acquire().await.unwrap();
}

#[tokio::test]
async fn program_without_a_control_group_gets_no_more_memory() {
    let floor = without_groups().await;
    assert_eq!(hog(&floor).await, "no memory left");
    floor.acquire().await.unwrap();
}

#[tokio::test]
async fn control_group_has_all_processes_and_ends_with_them() {
    let floor = Floor::new("ok").await;
    let name = format!("{}.rest", floor.app.home.project);
    let groups = ControlGroups::find(floor.node.machine.dir(), None);
    if !groups.enforced() {
        return;
    }
    drop(floor.acquire().await.unwrap());
    let pid = floor.pid(&floor.node).await.unwrap();
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(own.contains(&name), "{own}");
    let folders = groups.folders(&name);
    assert!(folders.iter().all(|folder| folder.exists()), "{folders:?}");
    floor.app.advance(300);
    sweep::stop_idle(&floor.node.app);
    until(async || !floor.folder().exists()).await;
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
}

#[tokio::test]
async fn program_cannot_fork_without_bound() {
    if !is_root() {
        return;
    }
    for floor in [Floor::new("ok").await, without_groups().await] {
        let used = floor.acquire().await.unwrap();
        let made: i32 = get(&used, "/try/forks").await.parse().unwrap();
        assert!((1..64).contains(&made), "{made}");
    }
}
