//! Clusters that are prepared before the creation of a project.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::future::join_all;
use gantry::{
    app::Settings,
    control::projects::{Status, state::warm_pool::WarmPoolSize},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::ObservedState;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::support::{
    Node, TestApp,
    machine::{Machine, PATIENCE},
    settings,
};

/// Returns an application without projects, and a node with a pool.
async fn with_pool(folders: u16, servers: u16) -> (TestApp, Node) {
    let app = TestApp::new().await;
    let settings = Settings {
        prepared: WarmPoolSize { folders, servers },
        ..settings(Transport::default(), Uuid::from_u128(2))
    };
    let mut node = app.another_with(settings, Arc::new(Machine::new().await));
    node.start();
    (app, node)
}

/// Waits for this many prepared clusters, and returns their refs by whether they run.
async fn full(
    node: &Node,
    folders: usize,
    servers: usize,
) -> (HashSet<ProjectRef>, HashSet<ProjectRef>) {
    let look = async {
        loop {
            let rows = node
                .app
                .db
                .query("select ref, running from prepared_clusters", &[])
                .await
                .unwrap();
            let of = |running: bool| {
                let rows = rows
                    .iter()
                    .filter(move |row| row.get::<_, bool>(1) == running);
                rows.map(|row| row.get::<_, &str>(0).parse().unwrap())
                    .collect::<HashSet<ProjectRef>>()
            };
            let (cold, warm) = (of(false), of(true));
            if (cold.len(), warm.len()) == (folders, servers) {
                return (cold, warm);
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, look).await.expect("a full pool")
}

#[tokio::test]
async fn warm_cluster_is_used_once_and_replaced() {
    let (app, node) = with_pool(2, 1).await;
    let (folders, servers) = full(&node, 2, 1).await;
    let server = servers.iter().next().unwrap();
    let ObservedState::Running { pid, .. } = node.machine.clusters.observe(server).await.unwrap()
    else {
        panic!("{server} does not run")
    };
    for folder in &folders {
        assert_eq!(
            node.machine.clusters.observe(folder).await.unwrap(),
            ObservedState::Stopped
        );
    }

    let names = ["first", "second", "third", "fourth"];
    let projects: HashSet<_> = join_all(names.map(|name| app.create_project_on(&node, name)))
        .await
        .into_iter()
        .collect();
    assert_eq!(projects.len(), 4);
    assert!(
        projects.is_superset(&folders) && projects.is_superset(&servers),
        "{projects:?}"
    );
    for project in &projects {
        node.until(project, Status::ActiveHealthy).await;
    }
    let running = node.machine.clusters.observe(server).await.unwrap();
    assert_eq!(
        running,
        ObservedState::Running {
            pid,
            accepting: true
        },
        "the server was taken over as it ran"
    );
    let (new_folders, new_servers) = full(&node, 2, 1).await;
    assert!(projects.is_disjoint(&new_folders) && projects.is_disjoint(&new_servers));

    let lines = [
        "gantry_clusters_begun_total{from=\"server\"} 1",
        "gantry_clusters_begun_total{from=\"folder\"} 2",
        "gantry_clusters_begun_total{from=\"template\"} 1",
        "gantry_clusters_prepared{kind=\"folder\"} 2",
        "gantry_clusters_prepared{kind=\"server\"} 1",
        "gantry_cluster_step_seconds_count{step=\"password\"} 4",
    ];
    // The pool updates its count after it has added the last cluster.
    let counted = async {
        while let metrics = node.app.metrics.render()
            && !lines.iter().all(|line| metrics.contains(line))
        {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, counted)
        .await
        .unwrap_or_else(|_| panic!("{}", node.app.metrics.render()));
}

/// A duplicate name rolls back the transaction that assigned the cluster, so the pool keeps it.
#[tokio::test]
async fn rejected_creation_takes_no_warm_cluster() {
    let (app, node) = with_pool(1, 0).await;
    let (before, _) = full(&node, 1, 0).await;
    node.post("/v1/projects")
        .as_(&app.owner)
        .json(&app.new_project("stub"))
        .send()
        .await
        .expect(400);
    assert_eq!(full(&node, 1, 0).await.0, before);
}

/// Creation succeeds although the folder of the warm cluster was removed.
#[tokio::test]
async fn missing_warm_cluster_is_replaced() {
    let (app, node) = with_pool(1, 0).await;
    let (folders, _) = full(&node, 1, 0).await;
    let lost = folders.into_iter().next().unwrap();
    node.machine.clusters.remove(&lost).await.unwrap();
    let project = app.create_project_on(&node, "all the same").await;
    assert_eq!(project, lost);
    node.until(&project, Status::ActiveHealthy).await;
}
