//! Clusters on real PostgreSQL: recovery from crashes, and isolation of tenants.
//!
//! As root, projects run under their own uids, and the isolation between them is tested too. All
//! tests share templates, in the folder `GANTRY_TEST_TEMPLATES`.

mod control;
pub(crate) mod copies;
mod copy_faults;
mod copy_rows;
mod masking;
mod sandbox;
mod scratch;
pub(crate) mod upgrades;

use std::{
    collections::HashSet,
    fs,
    fs::Permissions,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
    sync::Arc,
    time::Duration,
};

use gantry_base::clock::Entropy;
use gantry_node::{
    clusters::{Control, CopyPriority, Home, Host, LocalDriver, ObservedState},
    engines::{Engine, Engines},
    error::ClusterError,
    supervisor::{Account, Launcher, sandbox_available},
};
use rustix::process::{Signal, kill_process};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

use crate::support::machine::{
    Machine, PATIENCE, SuperuserClients as _, cluster, engines, first_uid, host, is_root, kill,
    processes_under,
};

async fn text(client: &Client, query: &str) -> String {
    client
        .query_one(query, &[])
        .await
        .unwrap_or_else(|error| panic!("{query}: {error:?}"))
        .get(0)
}

async fn refusal(client: &Client, statement: &str) -> String {
    let error = client.batch_execute(statement).await.expect_err(statement);
    error
        .as_db_error()
        .unwrap_or_else(|| panic!("{statement}: {error}"))
        .message()
        .to_owned()
}

#[tokio::test]
async fn create_assigns_unique_system_identifier_and_uid() {
    let machine = Machine::new().await;
    let (a, b) = (machine.running(1).await, machine.running(2).await);

    let mut ids = HashSet::new();
    for project in [&a, &b] {
        let admin = machine.clusters.admin_session(project).await.unwrap();
        ids.insert(
            text(
                &admin,
                "select system_identifier::text from pg_control_system()",
            )
            .await,
        );
        // The server checks the identifier when it reads WAL.
        admin
            .batch_execute("create table public.t as select generate_series(1, 1000) n")
            .await
            .unwrap();
        admin
            .batch_execute("select pg_create_logical_replication_slot('s', 'test_decoding'); insert into public.t values (0)")
            .await
            .unwrap();
        assert_ne!(
            text(
                &admin,
                "select count(*)::text from pg_logical_slot_get_changes('s', null, null)"
            )
            .await,
            "0"
        );
        admin.batch_execute("checkpoint").await.unwrap();
    }
    assert_eq!(ids.len(), 2, "{ids:?}");

    if !is_root() {
        return;
    }
    for (project, uid) in [(&a, first_uid() + 1), (&b, first_uid() + 2)] {
        let uids: HashSet<u32> = processes_under(&machine.data(project))
            .into_iter()
            .map(|(_, uid)| uid)
            .collect();
        assert_eq!(uids, [uid].into());
    }
    let (socket, data) = (machine.clusters.socket_path(&b), machine.data(&b));
    for forbidden in [
        format!("ls {}", socket.parent().unwrap().display()),
        format!("ls {}", data.display()),
    ] {
        let run = |uid: u32| {
            Command::new("sh")
                .args(["-c", &forbidden])
                .uid(uid)
                .gid(uid)
                .output()
                .unwrap()
                .status
                .success()
        };
        assert!(!run(first_uid() + 1), "{forbidden}");
        assert!(run(first_uid() + 2), "{forbidden}");
    }
    // The directory of the socket is inaccessible as well.
    let psql = Engine::find(None).unwrap().program("psql");
    if psql.exists() {
        let directory = socket.parent().unwrap().to_owned();
        let other = Command::new(psql)
            .args(["-w", "-U", "postgres", "-h"])
            .arg(directory)
            .args(["-c", "select 1", "postgres"])
            .uid(first_uid() + 1)
            .output();
        assert!(String::from_utf8_lossy(&other.unwrap().stderr).contains("Permission denied"));
    }
}

#[tokio::test]
async fn peer_authentication_admits_only_three_roles() {
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let project = machine.running(1).await;
        for (role, superuser, writable) in [
            ("supabase_admin", "on", "off"),
            ("postgres", "off", "off"),
            ("supabase_read_only_user", "off", "on"),
        ] {
            let client = machine.connect(&project, role).await.unwrap();
            assert_eq!(text(&client, "select current_user::text").await, role);
            assert_eq!(
                text(&client, "select current_setting('is_superuser')").await,
                superuser
            );
            assert_eq!(
                text(
                    &client,
                    "select current_setting('default_transaction_read_only')"
                )
                .await,
                writable
            );
        }
        for role in ["authenticator", "anon"] {
            assert!(machine.connect(&project, role).await.is_err(), "{role}");
        }

        let owner = machine.connect(&project, "postgres").await.unwrap();
        owner
            .batch_execute("create table notes (id int); alter table notes enable row level security; insert into notes values (1)")
            .await
            .unwrap();
        assert_eq!(
            text(&owner, "select tableowner::text from pg_tables where tablename = 'notes' and schemaname = 'public'").await,
            "postgres"
        );
        let reader = machine
            .connect(&project, "supabase_read_only_user")
            .await
            .unwrap();
        assert_eq!(text(&reader, "select count(*)::text from notes").await, "1");
        assert_eq!(
            refusal(&reader, "insert into notes values (2)").await,
            "cannot execute INSERT in a read-only transaction"
        );
    }
}

#[tokio::test]
async fn set_password_leaves_no_trace_in_logs() {
    const VERIFIER: &str = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2E=$k3JCUfEzTgPeFmAX8Z0CNPY0GQnO1fW3bnVQXbhCBbk=:5wTSkRZWTBRoMh8CgYHJ3v7XKpLAY8ZVsCbAXb4tPxY=";
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    assert!(matches!(
        machine
            .clusters
            .set_password(&project, "postgres", "hunter2")
            .await,
        Err(ClusterError::NotAVerifier)
    ));
    machine
        .clusters
        .set_password(&project, "postgres", VERIFIER)
        .await
        .unwrap();
    machine
        .clusters
        .set_password(&project, "no'such\"role", VERIFIER)
        .await
        .unwrap_err();

    let admin = machine.clusters.admin_session(&project).await.unwrap();
    assert_eq!(
        text(
            &admin,
            "select rolpassword from pg_authid where rolname = 'postgres'"
        )
        .await,
        VERIFIER
    );
    admin
        .batch_execute("alter role postgres connection limit 20")
        .await
        .unwrap();
    let seen = text(
        &admin,
        "select coalesce(string_agg(query, ' '), '') from extensions.pg_stat_statements",
    )
    .await;
    assert!(!seen.contains("SCRAM"), "{seen}");

    machine.clusters.stop(&project).await.unwrap();
    let logs = machine.data(&project).join("log");
    let log: String = fs::read_dir(logs)
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    assert!(
        log.contains("connection limit 20"),
        "statements that define are logged: {log}"
    );
    assert!(!log.contains("SCRAM"), "{log}");
}

#[tokio::test]
async fn start_after_killed_postmaster_ends_orphaned_backend() {
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let owner = machine.connect(&project, "postgres").await.unwrap();
    owner
        .batch_execute("create table kept as select 42 n")
        .await
        .unwrap();
    let backend: i32 = owner
        .query_one("select pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    // A busy loop does not check its latch, so it does not detect the end of the postmaster.
    let busy = tokio::spawn(async move {
        owner
            .batch_execute("do $$ begin loop end loop; end $$")
            .await
    });
    sleep(Duration::from_millis(200)).await;

    kill(machine.pid(&project).await).await;
    machine.up(&project).await;

    busy.await.unwrap().unwrap_err();
    let alive = processes_under(&machine.data(&project));
    assert!(
        alive
            .iter()
            .all(|(pid, _)| pid.as_raw_nonzero().get() != backend),
        "{alive:?}"
    );
    let owner = machine.connect(&project, "postgres").await.unwrap();
    assert_eq!(text(&owner, "select n::text from kept").await, "42");
}

#[tokio::test]
async fn start_after_all_processes_were_killed_recovers() {
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let owner = machine.connect(&project, "postgres").await.unwrap();
    owner
        .batch_execute("create table kept as select generate_series(1, 20000) n")
        .await
        .unwrap();
    for (pid, _) in processes_under(&machine.data(&project)) {
        kill(pid).await;
    }
    machine.up(&project).await;
    let owner = machine.connect(&project, "postgres").await.unwrap();
    assert_eq!(
        text(&owner, "select count(*)::text from kept").await,
        "20000"
    );
}

#[tokio::test]
async fn start_ignores_stale_pid_file_of_a_live_process() {
    let machine = Machine::new().await;
    let (project, other) = (machine.running(1).await, machine.running(1).await);
    let lock = machine
        .clusters
        .socket_path(&project)
        .with_file_name(".s.PGSQL.5432.lock");
    let (pid_file, socket_lock) = (
        fs::read_to_string(machine.data(&project).join("postmaster.pid")).unwrap(),
        fs::read_to_string(&lock).unwrap(),
    );
    machine.clusters.stop(&project).await.unwrap();

    // A postmaster of the same uid: PostgreSQL itself would refuse to start.
    let foreign = machine.pid(&other).await.as_raw_nonzero().to_string();
    let renamed = |text: String| {
        text.split_once('\n')
            .map(|(_, rest)| format!("{foreign}\n{rest}"))
            .unwrap()
    };
    fs::write(
        machine.data(&project).join("postmaster.pid"),
        renamed(pid_file),
    )
    .unwrap();
    fs::write(&lock, renamed(socket_lock)).unwrap();
    assert_eq!(
        machine.clusters.observe(&project).await.unwrap(),
        ObservedState::Stopped
    );

    machine.up(&project).await;
    machine.pid(&project).await;
    machine.pid(&other).await;
}

#[tokio::test]
async fn create_after_interrupted_copy_succeeds() {
    let machine = Machine::new().await;
    let cluster = cluster(1);
    let leftover = machine
        .home
        .dir()
        .join("tmp")
        .join(cluster.project.as_str());
    fs::create_dir_all(leftover.join("data/base")).unwrap();
    fs::write(leftover.join("data/PG_VERSION"), "1").unwrap();
    assert_eq!(
        machine.clusters.observe(&cluster.project).await.unwrap(),
        ObservedState::Absent
    );
    machine.clusters.start(&cluster.project).await.unwrap_err();

    machine
        .clusters
        .create(&cluster, CopyPriority::Foreground)
        .await
        .unwrap();
    assert_eq!(
        machine.clusters.observe(&cluster.project).await.unwrap(),
        ObservedState::Stopped
    );
    assert_eq!(
        fs::read_dir(leftover.parent().unwrap()).unwrap().count(),
        1,
        "the copy left nothing; the leftover is garbage"
    );
    machine.up(&cluster.project).await;

    // Repeating the operations changes nothing.
    let before = machine.pid(&cluster.project).await;
    machine
        .clusters
        .create(&cluster, CopyPriority::Foreground)
        .await
        .unwrap();
    machine.up(&cluster.project).await;
    assert_eq!(machine.pid(&cluster.project).await, before);
}

#[tokio::test]
async fn running_server_is_adopted_and_stopped() {
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let pid = machine.pid(&project).await;

    // A new driver, which has only the files and processes.
    let later = LocalDriver::open(Arc::clone(&machine.home), host(), Entropy::system());
    assert_eq!(
        later.observe(&project).await.unwrap(),
        ObservedState::Running {
            pid: pid.as_raw_nonzero().get(),
            accepting: true
        }
    );
    later.start(&project).await.unwrap();
    later.stop(&project).await.unwrap();
    assert_eq!(processes_under(machine.dir()), []);
    assert_eq!(
        later.observe(&project).await.unwrap(),
        ObservedState::Stopped
    );
    later.stop(&project).await.unwrap();
}

#[tokio::test]
async fn stop_kills_a_suspended_process() {
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let pid = machine.pid(&project).await;
    kill_process(pid, Signal::STOP).unwrap();
    // A suspended process handles neither INT nor QUIT, so the removal sends KILL.
    machine.clusters.remove(&project).await.unwrap();
    assert_eq!(processes_under(machine.dir()), []);
}

#[tokio::test]
async fn remove_deletes_all_files_and_processes() {
    let machine = Machine::new().await;
    let (gone, kept) = (machine.running(1).await, machine.running(2).await);
    machine.clusters.remove(&gone).await.unwrap();
    assert_eq!(
        machine.clusters.observe(&gone).await.unwrap(),
        ObservedState::Absent
    );
    assert_eq!(
        machine.clusters.list().await.unwrap(),
        std::slice::from_ref(&kept)
    );
    assert_eq!(machine.clusters.empty_trash().await.unwrap(), 1);
    assert_eq!(machine.clusters.empty_trash().await.unwrap(), 0);
    machine.clusters.remove(&gone).await.unwrap();

    let find = Command::new("find")
        .arg(machine.home.dir())
        .arg("-path")
        .arg(format!("*{gone}*"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&find.stdout), "");
    machine.pid(&kept).await;
}

#[tokio::test]
async fn collect_garbage_removes_unknown_directories() {
    let machine = Machine::new().await;
    let (known, unknown) = (machine.running(1).await, machine.running(2).await);
    let (mine, other) = (cluster(3).project, cluster(4).project);
    for name in [mine.as_str(), other.as_str(), "template-abandoned"] {
        fs::create_dir_all(machine.home.dir().join("tmp").join(name).join("data")).unwrap();
    }
    machine
        .clusters
        .collect_garbage(&[known.clone(), mine.clone()].into())
        .await
        .unwrap();

    let left = |name: &str| {
        let mut names: Vec<_> = fs::read_dir(machine.home.dir().join(name))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(left("projects"), [known.as_str()]);
    assert_eq!(left("tmp"), [mine.as_str()]);
    assert_eq!(left("run"), [known.as_str()]);
    assert_eq!(left("trash").len(), 3);
    assert_eq!(
        processes_under(machine.home.dir()).len(),
        processes_under(&machine.data(&known)).len()
    );
    assert_eq!(
        machine.clusters.observe(&unknown).await.unwrap(),
        ObservedState::Absent
    );
    machine.pid(&known).await;
}

#[tokio::test]
async fn stop_all_stops_every_server() {
    let machine = Machine::new().await;
    for n in 0..3 {
        machine.running(n).await;
    }
    machine.clusters.stop_all().await.unwrap();
    assert_eq!(processes_under(machine.dir()), []);
}

#[tokio::test]
async fn failed_start_returns_the_server_log() {
    let machine = Machine::new().await;
    let cluster = cluster(1);
    machine
        .clusters
        .create(&cluster, CopyPriority::Foreground)
        .await
        .unwrap();
    let conf = machine.data(&cluster.project).join("postgresql.auto.conf");
    fs::write(&conf, "max_connections = lots\n").unwrap();
    let started = async {
        machine.clusters.start(&cluster.project).await?;
        machine
            .clusters
            .wait_ready(&cluster.project, PATIENCE)
            .await
    };
    let complaint = started.await.unwrap_err().to_string();
    assert!(
        complaint.contains("max_connections") && !complaint.contains('\n'),
        "{complaint}"
    );

    fs::write(machine.data(&cluster.project).join("PG_VERSION"), "9\n").unwrap();
    let complaint = machine
        .clusters
        .start(&cluster.project)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        complaint.contains("was made by PostgreSQL 9, but /"),
        "{complaint}"
    );
}

#[tokio::test]
async fn long_data_directory_gets_a_short_socket_path() {
    let top = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(top.path(), Permissions::from_mode(0o711)).unwrap();
    let long = top.path().join("d".repeat(100));
    let machine = Machine::new().await;
    let templates = machine.home.dir().join("unused");
    let home = Arc::new(
        Home::open(&long, Account::for_servers().unwrap())
            .unwrap()
            .with_templates(templates)
            .unwrap(),
    );
    let control = Control::ensure(&home, &host(), &Entropy::system())
        .await
        .unwrap();
    assert!(
        home.socket("control").starts_with("/tmp"),
        "{:?}",
        home.socket("control")
    );
    drop(control.config().connect(NoTls).await.unwrap());
    control.stop().await.unwrap();
    fs::remove_dir_all(home.socket_dir("control").parent().unwrap()).unwrap();
}
