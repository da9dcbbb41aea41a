//! Several nodes on one control database: every node answers for every project.

mod moves;
mod placement;
mod rebuild;
mod sessions;

use std::{net::SocketAddr, sync::Arc};

use gantry::{
    app::Settings,
    control::{
        fleet::{self, state::NodeSettings},
        projects::{Status, lease, regions::Region},
    },
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use uuid::Uuid;

use crate::support::{Node, TestApp, client::Answer, machine::Machine, settings};

/// A node with its fleet port.
struct Member {
    node: Node,
    port: JoinHandle<()>,
}

impl Member {
    /// Starts a node with this number and region.
    async fn start(app: &TestApp, number: u128, region: Option<Region>) -> Self {
        let machine = Arc::new(Machine::new().await);
        Self::on(app, machine, number, region, |settings| settings).await
    }

    /// Starts a node on a machine, with other settings.
    async fn on(
        app: &TestApp,
        machine: Arc<Machine>,
        number: u128,
        region: Option<Region>,
        change: impl FnOnce(Settings) -> Settings,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let settings = Settings {
            fleet: NodeSettings {
                name: Some(format!("node-{number}")),
                region,
                address: Some(address.to_string()),
            },
            ..settings(Transport::default(), Uuid::from_u128(number))
        };
        let mut node = app.another_with(change(settings), machine);
        lease::claim(&node.app).await.unwrap();
        node.start();
        fleet::register(&node.app).await.unwrap();
        let serving = fleet::serve(node.app.control.clone(), node.app.api(), listener);
        let port = tokio::spawn(serving);
        Self { node, port }
    }

    /// Stops the node, and lets the others see that.
    async fn stop(mut self, other: &Self) -> Node {
        self.port.abort();
        self.node.stop().await;
        let sql = "update node_leases set expires_at = clock_timestamp() where node = $1";
        let app = &self.node.app;
        app.db.query(sql, &[&app.settings.node]).await.unwrap();
        other.review().await;
        self.node
    }

    /// Reads the other nodes.
    async fn review(&self) {
        fleet::register(&self.node.app).await.unwrap();
    }

    async fn query(&self, app: &TestApp, project: &ProjectRef, sql: &str) -> Answer {
        self.node
            .post(&format!("/v1/projects/{project}/database/query"))
            .as_(&app.owner)
            .json(&json!({"query": sql}))
            .send()
            .await
    }

    async fn get(&self, app: &TestApp, project: &ProjectRef, rest: &str) -> Answer {
        self.node
            .get(&format!("/v1/projects/{project}{rest}"))
            .as_(&app.owner)
            .send()
            .await
    }

    /// Creates a project at this node, which another one may hold. Returns when it is healthy.
    async fn create(&self, app: &TestApp, new: &Value) -> ProjectRef {
        let answer = self
            .node
            .post("/v1/projects")
            .as_(&app.owner)
            .json(new)
            .send()
            .await
            .expect(201);
        let project: ProjectRef = answer.json()["ref"].as_str().unwrap().parse().unwrap();
        self.node.until(&project, Status::ActiveHealthy).await;
        project
    }
}

/// Two nodes, and a project that the second one holds.
struct Pair {
    app: TestApp,
    one: Member,
    two: Member,
    project: ProjectRef,
}

impl Pair {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let one = Member::start(&app, 11, None).await;
        let two = Member::start(&app, 12, None).await;
        Self::of(app, one, two).await
    }

    async fn of(app: TestApp, one: Member, two: Member) -> Self {
        one.review().await;
        // Of equal nodes, the one that creates the project takes it.
        let project = two.create(&app, &app.new_project("remote")).await;
        assert_eq!(holder(&app, &project).await, Uuid::from_u128(12));
        Self {
            app,
            one,
            two,
            project,
        }
    }
}

async fn holder(app: &TestApp, project: &ProjectRef) -> Uuid {
    let sql = "select node from projects where ref = $1";
    app.app.db.query(sql, &[&project.as_str()]).await.unwrap()[0].get(0)
}

#[tokio::test]
async fn operations_of_a_project_work_at_every_node() {
    let Pair {
        app,
        one,
        two,
        project,
    } = &Pair::new().await;
    let made = "create table public.notes (n int primary key, t text)";
    one.query(app, project, made).await.expect(201);
    // A body of several frames.
    let text = "x".repeat(600_000);
    let insert = format!("insert into public.notes values (1, '{text}')");
    one.query(app, project, &insert).await.expect(201);
    let count = "select n, length(t) as bytes from public.notes";
    for node in [one, two] {
        let rows = node.query(app, project, count).await.expect(201).json();
        assert_eq!(rows, json!([{"n": 1, "bytes": 600_000}]));
    }
    let health = one.get(app, project, "/health?services=db").await;
    let health = health.expect(200).json();
    assert_eq!(health[0]["status"], "ACTIVE_HEALTHY", "{health}");
    let types = one.get(app, project, "/types/typescript").await.expect(200);
    assert!(types.json()["types"].as_str().unwrap().contains("notes"));
    let setting = json!({"statement_timeout": "7s"});
    let path = format!("/v1/projects/{project}/config/database/postgres");
    let call = one.node.request("PUT", &path).as_(&app.owner);
    call.json(&setting).send().await.expect(200);
    let read = two.get(app, project, "/config/database/postgres").await;
    assert_eq!(read.expect(200).json()["statement_timeout"], "7s");
    let wrong = one.query(app, project, "select nothing").await.expect(400);
    assert!(wrong.message().contains("nothing"), "{}", wrong.message());
    assert_eq!(app.log.take_errors(), Vec::<String>::new());
}

#[tokio::test]
async fn requests_at_all_nodes_are_counted_once() {
    let Pair {
        app,
        one,
        two,
        project,
    } = &Pair::new().await;
    let mut remaining = Vec::new();
    for node in [one, two, one, one, two] {
        let answer = node.get(app, project, "").await.expect(200);
        remaining.push(answer.quota.remaining);
    }
    let steps: Vec<_> = remaining.windows(2).map(|pair| pair[0] - pair[1]).collect();
    assert_eq!(steps, [1; 4], "{remaining:?}");
}

#[tokio::test]
async fn strangers_and_invalid_tokens_are_rejected_at_the_first_node() {
    let Pair {
        app, one, project, ..
    } = &Pair::new().await;
    let path = format!("/v1/projects/{project}");
    let stranger = one.node.get(&path).as_(&app.stranger).send().await;
    stranger.expect(404);
    one.node.get(&path).send().await.expect(401);
    // Fields that only nodes send are replaced.
    let call = one.node.get(&path).as_(&app.owner);
    let call = call.header("gantry-client-address", "6.6.6.6");
    call.send().await.expect(200);
}

#[tokio::test]
async fn node_that_is_down_is_told_and_its_projects_can_be_managed() {
    let Pair {
        app,
        one,
        two,
        project,
    } = Pair::new().await;
    let machine = two.stop(&one).await.machine.clone();
    let shown = one.get(&app, &project, "").await.expect(200).json();
    assert_eq!(shown["status"], "ACTIVE_UNHEALTHY");
    let listed = one.node.get("/v1/projects").as_(&app.owner).send().await;
    let listed = listed.expect(200).json();
    let found = listed.as_array().unwrap().iter();
    let found = found.filter(|one| one["ref"] == project.as_str());
    let status: Vec<_> = found.map(|one| one["status"].clone()).collect();
    assert_eq!(status, ["ACTIVE_UNHEALTHY"]);
    let health = one.get(&app, &project, "/health?services=db").await;
    let health = health.expect(200).json();
    assert_eq!(health[0]["status"], "UNHEALTHY", "{health}");
    let error = health[0]["error"].as_str().unwrap();
    assert!(
        error.contains("node-12") && error.contains("down since"),
        "{error}"
    );
    one.query(&app, &project, "select 1").await.expect(544);
    let name = json!({"name": "renamed"});
    let path = format!("/v1/projects/{project}");
    let call = one.node.patch(&path).as_(&app.owner).json(&name);
    call.send().await.expect(200);

    let two = Member::on(&app, machine, 12, None, |settings| settings).await;
    one.review().await;
    two.node.until(&project, Status::ActiveHealthy).await;
    one.query(&app, &project, "select 1").await.expect(201);
    let shown = one.get(&app, &project, "").await.expect(200).json();
    assert_eq!(shown["name"], "renamed");
    assert_eq!(shown["status"], "ACTIVE_HEALTHY");
}

#[tokio::test]
async fn removed_node_is_rejected() {
    let Pair {
        app,
        one,
        two,
        project,
    } = Pair::new().await;
    let refused = fleet::node::remove(&app.app.db, "node-12", app.clock.now()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("a server runs"), "{refused}");
    let node = two.stop(&one).await;
    let refused = fleet::node::remove(&app.app.db, "node-12", app.clock.now()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("holds 1 projects"), "{refused}");
    let local = one.create(&app, &app.new_project("local")).await;
    let sql = "update projects set desired = 'removed', status = 'REMOVED' where ref = $1";
    let removed = app.app.db.query(sql, &[&project.as_str()]).await;
    removed.unwrap();
    fleet::node::remove(&app.app.db, "node-12", app.clock.now())
        .await
        .unwrap();
    // It knows the fleet, and its certificate is still valid.
    let answer = node
        .get(&format!("/v1/projects/{local}/health?services=db"))
        .as_(&app.owner)
        .send()
        .await;
    answer.expect(503);
    assert!(one.get(&app, &local, "").await.expect(200).json()["ref"] == local.as_str());
}
