//! Projects that exceed their resource limits, with native code in their servers: the limits are
//! enforced, other projects continue, and the projects recover.
//!
//! Each test runs with control groups, where this machine has any, and without.

mod shared_memory;

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
    time::Duration,
};

use gantry::{
    control::projects::{
        Status,
        watchdog::{self, Disk},
    },
    platform::http::Transport,
};
use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_node::clusters::{
    ClusterSpec, ControlGroups, CopyPriority, LocalDriver, ResourceLimits, Resources,
};
use rustix::process::Pid;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};
use tokio_postgres::Client;

use crate::{
    events,
    support::{
        TestApp,
        machine::{By, Machine, PATIENCE, SuperuserClients as _, cluster, host, is_root, kill},
    },
};

const MB: u64 = 1 << 20;
/// User ids of these tests. No other test counts processes of them.
const UIDS: u32 = 300_000;

fn limits() -> ResourceLimits {
    ResourceLimits {
        memory_bytes: 200 * MB,
        processes: 60,
        ..ResourceLimits::default()
    }
}

/// The tenant's native code, compiled once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/resources.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("resources-{}.so", std::process::id()));
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        library
    })
}

/// Creates a running project with a unique user id.
async fn project(machine: &Machine, n: u32) -> ProjectRef {
    let cluster = ClusterSpec {
        uid: UIDS + std::process::id() % 100_000 * 4 + n,
        ..cluster(0)
    };
    machine
        .clusters
        .create(&cluster, CopyPriority::Foreground)
        .await
        .unwrap();
    machine.up(&cluster.project).await;
    cluster.project
}

/// Runs the tenant's native code inside its server, and returns its number.
async fn attack(machine: &Machine, project: &ProjectRef, what: &str, number: u64) -> i64 {
    let data = machine.data(project);
    let (own, order, result) = (
        data.join("own.so"),
        data.join("attack"),
        data.join("attack.result"),
    );
    let _ = fs::remove_file(&result);
    fs::copy(library(), &own).unwrap();
    fs::write(&order, format!("{what} {number}")).unwrap();
    for file in [&own, &order] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        let owner = fs::metadata(&data).unwrap();
        chown(file, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let admin = machine.clusters.admin_session(project).await.unwrap();
    // The server rejects the library only after the code has run.
    admin
        .batch_execute(&format!("load '{}'", own.display()))
        .await
        .unwrap_err();
    fs::read_to_string(&result)
        .expect("the native code ran")
        .trim()
        .parse()
        .unwrap()
}

fn is_alive(pid: i64) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z'))
}

async fn health(app: &TestApp, project: &ProjectRef) -> Value {
    let answer = app
        .get(&format!("/v1/projects/{project}/health?services=db"))
        .as_(&app.owner)
        .send()
        .await;
    answer.expect(200).json()[0].clone()
}

/// Waits until the health of a project contains this text.
async fn until_told(app: &TestApp, project: &ProjectRef, text: &str) {
    let told = async {
        loop {
            let mut changes = app.app.reconciler.changes();
            watchdog::look(&app.app, Disk::Always).await.unwrap();
            let answer = app
                .get(&format!("/v1/projects/{project}/health?services=db"))
                .as_(&app.owner)
                .send()
                .await;
            if answer.json()[0]["error"]
                .as_str()
                .is_some_and(|error| error.contains(text))
            {
                return;
            }
            // The kernel's counters have no event.
            let _ = timeout(Duration::from_millis(100), changes.changed()).await;
        }
    };
    timeout(PATIENCE, told)
        .await
        .unwrap_or_else(|_| panic!("health without: {text}"));
}

#[tokio::test]
async fn memory_limit_ends_sessions_of_one_project_only() {
    for by in [By::Groups, By::Watchdog] {
        if by == By::Watchdog && !is_root() {
            continue;
        }
        let machine = Arc::new(Machine::within(limits(), by).await);
        let mut app = TestApp::with(Transport::default(), machine).await;
        app.node.start();
        let (greedy, neighbour) = (
            app.create_project("greedy").await,
            app.create_project("neighbour").await,
        );
        for project in [&greedy, &neighbour] {
            app.until(project, Status::ActiveHealthy).await;
        }
        let beside = app.machine.connect(&neighbour, "postgres").await.unwrap();
        beside
            .batch_execute("create temporary table kept as select 42 n")
            .await
            .unwrap();

        let mut sessions = JoinSet::new();
        for _ in 0..3 {
            let session = app.machine.connect(&greedy, "postgres").await.unwrap();
            sessions.spawn(async move {
                let take = "do $$ declare a text := repeat('x', 90 * 1024 * 1024); begin perform pg_sleep(20), length(a); end $$";
                session.batch_execute(take).await
            });
        }
        let mut failed = 0;
        while let Some(ended) = timeout(PATIENCE, sessions.join_next()).await.unwrap() {
            failed += usize::from(ended.unwrap().is_err());
        }
        assert!(failed > 0, "{by:?}: three sessions had 270 MB together");
        until_told(&app, &greedy, "reached the project's 200 MB of memory").await;
        // PostgreSQL recovers by itself, or the reconciler restarts the server.
        let path = format!("/v1/projects/{greedy}/database/query");
        let query = json!({"query": "select 1 as one"});
        let back = async {
            let mut changes = app.app.reconciler.changes();
            while app
                .post(&path)
                .as_(&app.owner)
                .json(&query)
                .send()
                .await
                .status
                != 201
            {
                let _ = timeout(Duration::from_millis(100), changes.changed()).await;
            }
        };
        timeout(PATIENCE, back).await.unwrap();

        let kept: i32 = beside
            .query_one("select n from kept", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(kept, 42, "{by:?}");
        assert_eq!(
            health(&app, &neighbour).await,
            json!({"name": "db", "healthy": true, "status": "ACTIVE_HEALTHY"})
        );
        app.node.stop().await;
    }
}

#[tokio::test]
async fn fork_bomb_is_bounded_and_ends_with_the_server() {
    for by in [By::Groups, By::Watchdog] {
        let machine = Machine::within(limits(), by).await;
        if !is_root() && !machine.clusters.resources().unwrap().groups().enforced() {
            // The processes of one project cannot be distinguished from others then.
            continue;
        }
        let (bomb, neighbour) = (project(&machine, 0).await, project(&machine, 1).await);
        let made = attack(&machine, &bomb, "fork", 400).await;
        assert!((20..60).contains(&made), "{by:?}: {made}");
        let beside = machine.connect(&neighbour, "postgres").await.unwrap();
        beside.batch_execute("select 1").await.unwrap();

        let backend = machine.pid(&neighbour).await;
        timeout(PATIENCE, machine.clusters.stop(&bomb))
            .await
            .unwrap()
            .unwrap();
        let uid = UIDS + std::process::id() % 100_000 * 4;
        let left = fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            status.contains(&format!("\nUid:\t{uid}\t")) && !status.contains("State:\tZ")
        });
        assert_eq!(if is_root() { left.count() } else { 0 }, 0, "{by:?}");
        // A restart frees all processes.
        machine.up(&bomb).await;
        machine.pid(&bomb).await;
        assert_eq!(machine.pid(&neighbour).await, backend);
    }
}

#[tokio::test]
async fn disguised_process_ends_with_the_server() {
    for by in [By::Groups, By::Watchdog] {
        let machine = Machine::within(limits(), by).await;
        if !is_root() && !machine.clusters.resources().unwrap().groups().enforced() {
            continue;
        }
        let project = project(&machine, 0).await;
        for remove in [false, true] {
            let hidden = attack(&machine, &project, "hide", 1).await;
            assert!(is_alive(hidden), "{by:?}");
            if remove {
                machine.clusters.remove(&project).await.unwrap();
            } else {
                // After a crash, the next start removes the segment.
                kill(machine.pid(&project).await).await;
                machine.up(&project).await;
            }
            assert!(!is_alive(hidden), "{by:?}, removed: {remove}");
        }
        for folder in machine
            .clusters
            .resources()
            .unwrap()
            .groups()
            .folders(project.as_str())
        {
            assert!(!folder.exists(), "{}", folder.display());
        }
    }
}

#[tokio::test]
async fn file_size_limit_is_enforced() {
    let machine = Machine::new().await;
    let project = project(&machine, 0).await;
    assert_eq!(
        attack(&machine, &project, "file", 1500).await,
        0,
        "files of PostgreSQL have up to 1 GB"
    );
    let too_large = i64::from(rustix::io::Errno::FBIG.raw_os_error());
    assert_eq!(attack(&machine, &project, "file", 8192).await, too_large);
    machine.pid(&project).await;
}

#[tokio::test]
async fn server_keeps_its_control_group_across_restarts() {
    let machine = Machine::new().await;
    let project = project(&machine, 0).await;
    let groups = ControlGroups::find(machine.dir(), None);
    if !groups.enforced() {
        return;
    }
    let folders = groups.folders(project.as_str());
    let postmaster = machine.pid(&project).await.as_raw_nonzero().to_string();
    for folder in &folders {
        let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap();
        assert!(
            members.lines().any(|pid| pid == postmaster),
            "{}: {members}",
            folder.display()
        );
    }
    let later = LocalDriver::open(Arc::clone(&machine.home), host(), Entropy::system())
        .with_resources(Resources::new(limits(), groups));
    later.stop(&project).await.unwrap();
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
}

#[tokio::test]
async fn stale_control_group_is_removed_with_its_processes() {
    let machine = Machine::new().await;
    let project = project(&machine, 0).await;
    let groups = machine.clusters.resources().unwrap().groups().clone();
    if !groups.enforced() {
        return;
    }
    let postmaster = i64::from(machine.pid(&project).await.as_raw_nonzero().get());
    // The operator moves the folder.
    fs::rename(
        machine.home.project(&project),
        machine.dir().join("elsewhere"),
    )
    .unwrap();
    machine.clusters.collect_garbage(&[].into()).await.unwrap();
    assert!(!is_alive(postmaster));
    assert!(
        groups
            .folders(project.as_str())
            .iter()
            .all(|folder| !folder.exists())
    );
}

#[tokio::test]
async fn running_server_without_control_group_gets_one() {
    let machine = Machine::within(limits(), By::Watchdog).await;
    let groups = ControlGroups::find(machine.dir(), None);
    if !groups.enforced() {
        return;
    }
    let project = project(&machine, 0).await;
    let later = machine
        .clusters
        .clone()
        .with_resources(Resources::new(limits(), groups.clone()));
    later.apply_limits(&project).await.unwrap();
    let members =
        fs::read_to_string(groups.folders(project.as_str())[0].join("cgroup.procs")).unwrap();
    let postmaster: Pid = machine.pid(&project).await;
    assert!(
        members
            .lines()
            .any(|pid| pid == postmaster.as_raw_nonzero().to_string()),
        "{members}"
    );
    assert!(members.lines().count() > 3, "its processes too: {members}");
    later.stop(&project).await.unwrap();
}

/// Adds this much data to an unlogged table, so that the write-ahead log does not grow.
async fn fill(session: &Client, megabytes: u32) {
    let rows = megabytes * 512;
    let sql = format!(
        "begin; set transaction read write; insert into filler select repeat('x', 1900) from generate_series(1, {rows}); commit"
    );
    session.batch_execute(&sql).await.unwrap();
}

#[tokio::test]
async fn disk_limit_makes_project_read_only_then_stops_it() {
    let limits = ResourceLimits::default().with_disk(160 * MB, 200_000);
    let mut app = TestApp::with(
        Transport::default(),
        Arc::new(Machine::within(limits, By::Groups).await),
    )
    .await;
    app.node.start();
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}");
    let owner = app.machine.connect(&project, "postgres").await.unwrap();
    let table =
        "create unlogged table filler (t text); alter table filler alter t set storage plain";
    owner.batch_execute(table).await.unwrap();
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    assert_eq!(
        health(&app, &project).await,
        json!({"name": "db", "healthy": true, "status": "ACTIVE_HEALTHY"})
    );

    fill(&owner, 105).await;
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    let nearly = health(&app, &project).await;
    assert_eq!(
        (&nearly["healthy"], &nearly["status"]),
        (&json!(true), &json!("ACTIVE_HEALTHY"))
    );
    assert!(
        nearly["error"]
            .as_str()
            .unwrap()
            .contains("of 160 MB of disk space"),
        "{nearly}"
    );

    fill(&owner, 30).await;
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    let full = health(&app, &project).await;
    assert_eq!(
        (&full["healthy"], &full["status"]),
        (&json!(false), &json!("UNHEALTHY"))
    );
    assert!(
        full["error"]
            .as_str()
            .unwrap()
            .contains("so it is read-only: delete data in a transaction"),
        "{full}"
    );
    let events = events::names(&app).await;
    let count = |name: &str| events.iter().filter(|it| *it == name).count();
    let counts = [
        count("gantry.limit.exceeded"),
        count("gantry.project.health_changed"),
    ];
    assert_eq!(counts, [2, 2], "{events:?}");
    let refused = app
        .machine
        .connect(&project, "postgres")
        .await
        .unwrap()
        .batch_execute("create table more ()")
        .await
        .unwrap_err();
    assert!(
        refused
            .as_db_error()
            .unwrap()
            .message()
            .contains("read-only transaction"),
        "{refused:?}"
    );

    // The owner switches it off for a while.
    let read_only = format!("{path}/readonly");
    let status = app.get(&read_only).as_(&app.owner).send().await;
    assert_eq!(status.expect(200).json()["enabled"], true);
    let disable = format!("{read_only}/temporary-disable");
    let disabled = app.post(&disable).as_(&app.owner).send().await;
    disabled.expect(201);
    watchdog::look(&app.app, Disk::IfDue).await.unwrap();
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    let status = app.get(&read_only).as_(&app.owner).send().await;
    let status = status.expect(200).json();
    assert_eq!(
        (&status["enabled"], &status["override_enabled"]),
        (&json!(false), &json!(true))
    );
    let writer = app.machine.connect(&project, "postgres").await.unwrap();
    let sql = "create table other (); drop table other";
    writer.batch_execute(sql).await.unwrap();
    let sql_end = "update projects set writable_until = $1 returning 1";
    let now = app.app.clock.now();
    app.app.db.query(sql_end, &[&now]).await.unwrap();
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    let writer = app.machine.connect(&project, "postgres").await.unwrap();
    writer.batch_execute(sql).await.unwrap_err();

    // The owner frees space, and the project is writable again.
    owner
        .batch_execute("begin; set transaction read write; truncate filler; commit")
        .await
        .unwrap();
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    assert_eq!(
        health(&app, &project).await,
        json!({"name": "db", "healthy": true, "status": "ACTIVE_HEALTHY"})
    );
    let owner = app.machine.connect(&project, "postgres").await.unwrap();
    owner.batch_execute("create table more ()").await.unwrap();

    // A project that continues to write is stopped after its grace period.
    fill(&owner, 155).await;
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    assert_eq!(
        health(&app, &project).await["status"],
        "UNHEALTHY",
        "within the grace after its start"
    );
    app.advance(601);
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    app.until(&project, Status::Inactive).await;
    let why = app
        .get(&format!("{path}/health?services=db"))
        .as_(&app.owner)
        .send()
        .await
        .expect(400)
        .message();
    assert!(
        why.starts_with("No active services available: ")
            && why.contains("restore it and delete data within 10 minutes"),
        "{why}"
    );

    app.post(&format!("{path}/restore"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.until(&project, Status::ActiveHealthy).await;
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    app.until(&project, Status::ActiveHealthy).await;
    let owner = app.machine.connect(&project, "postgres").await.unwrap();
    owner
        .batch_execute("begin; set transaction read write; truncate filler; commit")
        .await
        .unwrap();
    watchdog::look(&app.app, Disk::Always).await.unwrap();
    assert_eq!(
        health(&app, &project).await,
        json!({"name": "db", "healthy": true, "status": "ACTIVE_HEALTHY"})
    );
    app.node.stop().await;
}
