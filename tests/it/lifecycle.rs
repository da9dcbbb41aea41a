//! The life of a project on real clusters: creation, restarts, adoption and removal, with faults at
//! each step.

use std::{collections::HashSet, fs, sync::Arc, time::Duration};

use gantry::{
    control::projects::{Status, reconciler},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::ObservedState;
use rustix::process::{Signal, kill_process};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};

use crate::support::{
    Node, TestApp,
    machine::{Machine, PATIENCE, SuperuserClients as _, kill, processes_under},
};

/// Waits until the node's folder contains no file of a project. The trash is emptied in the
/// background.
async fn until_nothing_is_left(node: &Node, project: &ProjectRef) {
    let dir = node.machine.dir();
    let left = || {
        let find = std::process::Command::new("find")
            .arg(dir)
            .args(["-path", &format!("*{project}*"), "-prune"])
            .output()
            .unwrap();
        // `find` fails if a file disappears meanwhile, which is no error here.
        String::from_utf8(find.stdout).unwrap()
    };
    let gone = async {
        while !left().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, gone)
        .await
        .unwrap_or_else(|_| panic!("left: {}", left()));
    assert_eq!(
        processes_under(&dir.join("projects").join(project.as_str())),
        []
    );
}

#[tokio::test]
async fn create_and_remove_project_leaves_no_trace() {
    let app = TestApp::running().await;
    let created = app
        .post("/v1/projects")
        .as_(&app.owner)
        .json(&app.new_project("new"))
        .send()
        .await
        .expect(201)
        .json();
    assert_eq!(
        (&created["status"], created.get("database")),
        (&json!("COMING_UP"), None)
    );
    let project: ProjectRef = created["ref"].as_str().unwrap().parse().unwrap();
    let path = format!("/v1/projects/{project}");
    app.until(&project, Status::ActiveHealthy).await;

    let seen = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&seen["status"], &seen["database"]["host"]),
        (
            &json!("ACTIVE_HEALTHY"),
            &json!(format!("db.{project}.example.test"))
        )
    );
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    let version: String = admin
        .query_one("show server_version", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(
        seen["database"]["version"].as_str(),
        version.split(' ').next(),
        "it is the server's own"
    );
    drop(admin);
    let health = app
        .get(&format!("{path}/health?services=db,db_postgres_user"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        health[0],
        json!({"name": "db", "healthy": true, "status": "ACTIVE_HEALTHY"})
    );
    assert_eq!(
        health[1],
        json!({"name": "db_postgres_user", "healthy": true, "status": "ACTIVE_HEALTHY"})
    );

    app.delete(&path).as_(&app.owner).send().await.expect(200);
    assert_eq!(
        app.get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .message(),
        "Resource has been removed"
    );
    app.until(&project, Status::Removed).await;
    until_nothing_is_left(&app.node, &project).await;
    assert_eq!(
        app.get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .message(),
        "Resource has been removed"
    );
    let listed = app
        .get("/v1/projects")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert!(
        !listed.text().contains(project.as_str()),
        "{}",
        listed.text()
    );
}

/// Servers listen on their socket only, with peer authentication, so the test computes the verifier
/// instead of logging in.
#[tokio::test]
async fn project_password_is_stored_nowhere() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    let verifier: String = admin
        .query_one(
            "select rolpassword from pg_authid where rolname = 'postgres'",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    let parts: [&str; 5] = verifier
        .split(['$', ':'])
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let ["SCRAM-SHA-256", iterations, salt, stored, server] = parts else {
        panic!("{verifier}")
    };
    let bytes = async |text: &str| -> Vec<u8> {
        admin
            .query_one("select decode($1, 'base64')", &[&text])
            .await
            .unwrap()
            .get(0)
    };
    let salted = salted(
        b"correct horse",
        &bytes(salt).await,
        iterations.parse().unwrap(),
    );
    assert_eq!(
        bytes(stored).await,
        *Sha256::digest(hmac(&salted, &[b"Client Key"]))
    );
    assert_eq!(bytes(server).await, hmac(&salted, &[b"Server Key"]));
    drop(admin);

    // The server's files and the control database must not contain the password.
    app.post(&format!("/v1/projects/{project}/pause"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.until(&project, Status::Inactive).await;
    let mut read = 0;
    let mut folders = vec![app.machine.home.project(&project)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            read += 1;
            let content = fs::read(&entry).unwrap();
            let contains = |text: &str| {
                content
                    .windows(text.len())
                    .any(|window| window == text.as_bytes())
            };
            assert!(!contains("correct horse"), "{}", entry.display());
            // The verifier may be in the catalog and the WAL, but not in a log.
            assert!(
                !entry.to_str().unwrap().contains("log") || !contains(salt),
                "{}",
                entry.display()
            );
        }
    }
    assert!(read > 500, "{read} files");
    let sql = "select p::text from projects p where ref = $1";
    let row: String = app.app.db.query(sql, &[&project.as_str()]).await.unwrap()[0].get(0);
    assert!(
        !row.contains("correct horse") && !row.contains("SCRAM"),
        "{row}"
    );
}

/// RFC 2104, for keys that fit a block.
fn hmac(key: &[u8], message: &[&[u8]]) -> Vec<u8> {
    let pad = |with: u8| -> Vec<u8> {
        (0..64)
            .map(|at| key.get(at).copied().unwrap_or(0) ^ with)
            .collect()
    };
    let inner = message
        .iter()
        .fold(Sha256::new().chain_update(pad(0x36)), Sha256::chain_update)
        .finalize();
    Sha256::new()
        .chain_update(pad(0x5c))
        .chain_update(inner)
        .finalize()
        .to_vec()
}

/// `Hi` of RFC 5802.
fn salted(password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
    let mut last = hmac(password, &[salt, &[0, 0, 0, 1]]);
    let mut sum = last.clone();
    for _ in 1..iterations {
        last = hmac(password, &[&last]);
        sum.iter_mut()
            .zip(&last)
            .for_each(|(sum, byte)| *sum ^= byte);
    }
    sum
}

#[tokio::test]
async fn project_removed_during_creation_is_removed() {
    let app = TestApp::running().await;
    // At once, and at several stages of the creation: before and during the copy, while the server
    // starts, and when the project becomes healthy.
    for wait in [0, 20, 100, 300, 800] {
        let project = app.create_project(&format!("brief {wait}")).await;
        // The exact stages do not matter, as long as they differ.
        sleep(Duration::from_millis(wait)).await;
        app.delete(&format!("/v1/projects/{project}"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200);
        app.until(&project, Status::Removed).await;
        until_nothing_is_left(&app.node, &project).await;
    }
    assert_eq!(app.machine.clusters.list().await.unwrap(), []);
}

#[tokio::test]
async fn concurrent_creations_all_succeed() {
    let app = TestApp::running().await;
    let names = ["a", "b", "c"];
    let made = futures_util::future::join_all(names.map(|name| app.create_project(name))).await;
    for project in &made {
        app.until(project, Status::ActiveHealthy).await;
    }
    assert_eq!(app.machine.clusters.list().await.unwrap().len(), 3);
}

/// Kills the project's server and waits for its successor, for less time than the interval of the
/// reconciler.
async fn kill_and_await_another(app: &TestApp, project: &ProjectRef) {
    let dead = app.machine.pid(project).await;
    kill(dead).await;
    let alive = async {
        while !matches!(
            app.machine.clusters.observe(project).await.unwrap(),
            ObservedState::Running {
                accepting: true,
                ..
            }
        ) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), alive).await.unwrap();
    app.until(project, Status::ActiveHealthy).await;
    assert_ne!(app.machine.pid(project).await, dead);
}

#[tokio::test]
async fn crashed_server_restarts_with_backoff() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let query = |sql: &str| {
        app.post(&format!("/v1/projects/{project}/database/query"))
            .as_(&app.owner)
            .json(&json!({"query": sql}))
            .send()
    };
    query("create table kept as select 42 as n")
        .await
        .expect(201);
    kill_and_await_another(&app, &project).await;
    assert_eq!(
        query("select n from kept").await.expect(201).json(),
        json!([{"n": 42}])
    );

    // With a stopped clock the second crash follows immediately, so the restart waits for a second.
    kill(app.machine.pid(&project).await).await;
    app.until(&project, Status::ActiveUnhealthy).await;
    let health = app
        .get(&format!("/v1/projects/{project}/health?services=db"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&health[0]["status"], &health[0]["error"]),
        (&json!("UNHEALTHY"), &json!("the server ended by itself"))
    );
    assert_eq!(
        app.machine.clusters.observe(&project).await.unwrap(),
        ObservedState::Stopped
    );
    app.advance(1);
    app.app.reconciler.wake();
    app.until(&project, Status::ActiveHealthy).await;

    // A minute without a crash resets the backoff.
    app.advance(61);
    kill_and_await_another(&app, &project).await;
}

/// Missing data of a healthy project is an error. It is not replaced by an empty cluster.
#[tokio::test]
async fn missing_data_is_not_replaced_by_an_empty_cluster() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let pid = app.machine.pid(&project).await;
    fs::rename(
        app.machine.home.project(&project),
        app.machine.dir().join("mislaid"),
    )
    .unwrap();
    kill(pid).await;
    let mut changes = app.app.reconciler.changes();
    let tried = async {
        let sql = "select attempts from projects where ref = $1";
        while app.app.db.query(sql, &[&project.as_str()]).await.unwrap()[0].get::<_, i32>(0) == 0 {
            changes.changed().await.unwrap();
        }
    };
    timeout(PATIENCE, tried).await.unwrap();
    assert_eq!(
        app.machine.clusters.observe(&project).await.unwrap(),
        ObservedState::Absent
    );
    let seen = app
        .get(&format!("/v1/projects/{project}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(seen["status"], "ACTIVE_UNHEALTHY");

    // After the folder is restored, the next attempt succeeds.
    fs::rename(
        app.machine.dir().join("mislaid"),
        app.machine.home.project(&project),
    )
    .unwrap();
    app.advance(60);
    app.app.reconciler.wake();
    app.until(&project, Status::ActiveHealthy).await;
}

#[tokio::test]
async fn restart_adopts_servers_and_resumes_work() {
    let mut app = TestApp::running().await;
    let (kept, going) = (app.real_project().await, app.create_project("going").await);
    app.until(&going, Status::ActiveHealthy).await;
    let pid = app.machine.pid(&kept).await;
    app.node.stop().await;

    // One project was created and one removed while no node ran.
    let coming = app.create_project("coming").await;
    app.delete(&format!("/v1/projects/{going}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    // A crash in the middle of a copy, and one before its row was written.
    let unfinished = app
        .machine
        .dir()
        .join("tmp")
        .join(coming.as_str())
        .join("data");
    fs::create_dir_all(&unfinished).unwrap();
    let nobodys = app.machine.running(900).await;

    let mut restarted = app.another(1, Arc::clone(&app.machine));
    reconciler::recover_on_startup(&restarted.app)
        .await
        .unwrap();
    restarted.start();
    restarted.until(&coming, Status::ActiveHealthy).await;
    restarted.until(&going, Status::Removed).await;
    assert_eq!(
        app.machine.pid(&kept).await,
        pid,
        "the same server, not another one"
    );
    until_nothing_is_left(&restarted, &going).await;
    until_nothing_is_left(&restarted, &nobodys).await;
    let query = json!({"query": "select 1 as n"});
    let answer = restarted
        .post(&format!("/v1/projects/{coming}/database/query"))
        .as_(&app.owner)
        .json(&query)
        .send()
        .await;
    assert_eq!(answer.expect(201).json(), json!([{"n": 1}]));
    restarted.stop().await;
}

#[tokio::test]
async fn nodes_manage_only_their_own_projects() {
    let app = TestApp::running().await;
    let mut second = app.another(2, Arc::new(Machine::new().await));
    let ours = app.real_project().await;
    let pid = app.machine.pid(&ours).await;

    reconciler::recover_on_startup(&second.app).await.unwrap();
    second.start();
    let theirs = app.create_project_on(&second, "theirs").await;
    second.until(&theirs, Status::ActiveHealthy).await;
    // The node handles projects in order: when this one is ready, it has skipped the project of the
    // other node.
    let later = app.create_project("later").await;
    app.until(&later, Status::ActiveHealthy).await;

    let on_disk = async |node: &Node| -> HashSet<ProjectRef> {
        node.machine
            .clusters
            .list()
            .await
            .unwrap()
            .into_iter()
            .collect()
    };
    assert_eq!(
        on_disk(&app.node).await,
        [ours.clone(), later.clone()].into()
    );
    reconciler::recover_on_startup(&app.app).await.unwrap();
    assert_eq!(on_disk(&app.node).await, [ours.clone(), later].into());
    assert_eq!(on_disk(&second).await, [theirs.clone()].into());
    assert_eq!(app.machine.pid(&ours).await, pid);

    // Any node accepts the request. The project's node executes it after a notification.
    app.delete(&format!("/v1/projects/{theirs}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    second.until(&theirs, Status::Removed).await;
    assert_eq!(second.machine.clusters.list().await.unwrap(), []);
    assert_eq!(app.machine.pid(&ours).await, pid);
    second.stop().await;
}

#[tokio::test]
async fn hung_server_is_unhealthy() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let pid = app.machine.pid(&project).await;
    kill_process(pid, Signal::STOP).unwrap();
    let path = format!("/v1/projects/{project}/health?services=db&timeout_ms=300");
    let health = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&health[0]["status"], &health[0]["healthy"]),
        (&json!("UNHEALTHY"), &json!(false))
    );
    kill_process(pid, Signal::CONT).unwrap();
    let health = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(health[0]["status"], "ACTIVE_HEALTHY");
}

/// A file at the path of the project's folder prevents the creation until it is removed.
#[tokio::test]
async fn failed_creation_is_reported_and_retried() {
    let mut app = TestApp::with(Transport::default(), Arc::new(Machine::new().await)).await;
    let project = app.create_project("unlucky").await;
    let obstacle = app.machine.home.project(&project);
    fs::write(&obstacle, "in the way").unwrap();
    app.node.start();
    let mut changes = app.app.reconciler.changes();
    // An attempt may end after the clock was advanced: each change advances it again.
    let mut retry_until = async |status: &str| {
        let reached = async {
            while app
                .get(&format!("/v1/projects/{project}"))
                .as_(&app.owner)
                .send()
                .await
                .expect(200)
                .json()["status"]
                != status
            {
                changes.changed().await.unwrap();
                app.advance(60);
                app.app.reconciler.wake();
            }
        };
        timeout(PATIENCE, reached).await.unwrap();
    };
    retry_until("INIT_FAILED").await;
    let query = app
        .post(&format!("/v1/projects/{project}/database/query"))
        .as_(&app.owner)
        .json(&json!({"query": "select 1"}))
        .send()
        .await;
    assert_eq!(
        query.expect(544).message(),
        "Connection terminated due to connection timeout"
    );

    fs::remove_file(&obstacle).unwrap();
    app.advance(60);
    app.app.reconciler.wake();
    retry_until("ACTIVE_HEALTHY").await;
}
