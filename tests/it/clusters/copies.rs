//! Online copies of running clusters: consistency, isolation from the original, hostile files, and
//! interruptions.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_node::{
    clusters::{ClusterSpec, CopyProgress, CopyReport, CopySpec},
    engines::Engine,
};
use rustix::process::{Signal, kill_process};
use tokio::time::sleep;
use tokio_postgres::Client;

use super::text;
use crate::support::machine::{
    Machine, SuperuserClients as _, engines, first_uid, is_root, processes_under,
};

const ACCOUNTS: i64 = 100;
const CLIENTS: usize = 4;
/// Strings of the original that no file of a copy may contain.
const CANARIES: [&str; 6] = [
    "canary-foreign-password",
    "canary-foreign-host",
    "canary-refresh-token",
    "canary-subscription",
    "canary-setting-secret",
    "canary-mail-token",
];

pub(crate) fn copy_of(source: &ProjectRef, n: u32, major: u16) -> CopySpec {
    CopySpec {
        cluster: ClusterSpec {
            project: ProjectRef::generate(&Entropy::system()),
            uid: first_uid() + n,
            major,
        },
        source: source.clone(),
        marker: "11111111-2222-4333-8444-555555555555".to_owned(),
        secrets: vec![("canary-setting-secret".into(), "replacement".into())],
        masking: Vec::new(),
        schema_only: false,
        rebuild: None,
        bytes_max: 1 << 30,
        progress: CopyProgress::default(),
    }
}

/// Returns the folders of copies in the making.
pub(super) fn unfinished(machine: &Machine) -> Vec<PathBuf> {
    let entries = fs::read_dir(machine.dir().join("tmp")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Waits until a file exists in the folder of a copy in the making.
pub(super) async fn until_made(machine: &Machine, file: &str) -> PathBuf {
    loop {
        for folder in unfinished(machine) {
            if folder.join(file).exists() {
                return folder;
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
}

pub(super) async fn batch(client: &Client, sql: &str) {
    let done = client.batch_execute(sql).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

pub(super) async fn number(client: &Client, sql: &str) -> i64 {
    let row = client.query_one(sql, &[]).await;
    row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0)
}

pub(super) async fn started(machine: &Machine, spec: &CopySpec) -> (CopyReport, Client) {
    let report = machine.clusters.create_copy(spec).await.unwrap();
    machine.up(&spec.cluster.project).await;
    let admin = machine.clusters.admin_session(&spec.cluster.project).await;
    (report, admin.unwrap())
}

/// Moves money between accounts until told to stop, and counts acknowledged transfers.
async fn transfer(client: Client, n: usize, stop: Arc<AtomicBool>, done: Arc<AtomicI64>) {
    let mut sequence = 0_i64;
    while !stop.load(Ordering::Relaxed) {
        sequence += 1;
        let (from, to) = (sequence * 7 % ACCOUNTS, (sequence * 13 + 5) % ACCOUNTS);
        let (low, high) = (from.min(to), from.max(to));
        let sql = format!(
            "begin;
             update public.accounts set balance = balance - 1 where id = {low};
             update public.accounts set balance = balance + 1 where id = {high};
             insert into public.transfers values ({n}, {sequence});
             commit"
        );
        if client.batch_execute(&sql).await.is_ok() {
            done.store(sequence, Ordering::SeqCst);
        } else {
            sequence -= 1;
            let _ = client.batch_execute("rollback").await;
        }
    }
}

#[tokio::test]
async fn copy_contains_every_acknowledged_commit_and_no_half_of_one() {
    const COPIES: u32 = 20;
    let machine = Machine::new().await;
    let source = machine.running(1).await;
    let admin = machine.clusters.admin_session(&source).await.unwrap();
    batch(
        &admin,
        &format!(
            "create table public.accounts as select id::bigint, 1000::bigint as balance from generate_series(0, {ACCOUNTS} - 1) id;
             alter table public.accounts add primary key (id);
             create table public.transfers (client int, sequence bigint);"
        ),
    )
    .await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut counts = Vec::new();
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        let done = Arc::new(AtomicI64::new(0));
        let client = machine.clusters.admin_session(&source).await.unwrap();
        clients.push(tokio::spawn(transfer(
            client,
            n,
            Arc::clone(&stop),
            Arc::clone(&done),
        )));
        counts.push(done);
    }
    let major = machine.clusters.engines().default_engine().major();
    for n in 0..COPIES {
        let before: Vec<i64> = counts
            .iter()
            .map(|count| count.load(Ordering::SeqCst))
            .collect();
        let spec = copy_of(&source, 10 + n, major);
        let (_, copy) = started(&machine, &spec).await;
        let after: Vec<i64> = counts
            .iter()
            .map(|count| count.load(Ordering::SeqCst))
            .collect();
        let sum = number(&copy, "select sum(balance)::bigint from public.accounts").await;
        assert_eq!(sum, ACCOUNTS * 1000);
        for client in 0..CLIENTS {
            let sql = format!(
                "select coalesce(max(sequence), 0) from public.transfers where client = {client}"
            );
            let last = number(&copy, &sql).await;
            let sql = format!("select count(*) from public.transfers where client = {client}");
            assert_eq!(number(&copy, &sql).await, last, "the ledger has a gap");
            assert!(last >= before[client], "{last} < {}", before[client]);
            assert!(last <= after[client] + 1, "{last} > {}", after[client]);
        }
        machine
            .clusters
            .remove(&spec.cluster.project)
            .await
            .unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let admin = machine.clusters.admin_session(&source).await.unwrap();
    assert_eq!(
        number(&admin, "select count(*) from pg_replication_slots").await,
        0,
        "the original keeps no slot of a copy"
    );
}

/// Prepares an original with everything that must not act or leak in a copy.
pub(super) async fn furnished(machine: &Machine, n: u32, major: u16) -> ProjectRef {
    let spec = ClusterSpec {
        project: ProjectRef::generate(&Entropy::system()),
        uid: first_uid() + n,
        major,
    };
    let clusters = &machine.clusters;
    let priority = gantry_node::clusters::CopyPriority::Foreground;
    clusters.create(&spec, priority).await.unwrap();
    let settings = [("max_prepared_transactions".to_owned(), "5".to_owned())];
    clusters.configure(&spec.project, &settings).await.unwrap();
    machine.up(&spec.project).await;
    let admin = clusters.admin_session(&spec.project).await.unwrap();
    batch(
        &admin,
        "create table public.notes (id int primary key, body text);
         insert into public.notes values (1, 'kept');
         create unlogged table public.scratch (n int);
         insert into public.scratch values (1);
         create sequence public.numbers;
         select nextval('public.numbers') from generate_series(1, 10);
         select lo_from_bytea(4711, 'large'::bytea);
         create role reader login password 'canary-role-password';
         create role cli_login_postgres_x login password 'x';
         alter role reader set app.jwt_secret = 'Bearer canary-setting-secret';
         alter database postgres set app.jwt_secret = 'canary-setting-secret';
         insert into auth.users (id, email, recovery_token)
         values ('00000000-0000-4000-8000-000000000001', 'a@b', 'canary-mail-token');
         insert into auth.sessions (id, user_id)
         select '00000000-0000-4000-8000-000000000002', id from auth.users;
         insert into auth.refresh_tokens (token, user_id, session_id)
         select 'canary-refresh-token', user_id, id from auth.sessions;
         select pg_replication_origin_create('origin');
         create subscription tenant connection 'host=canary-subscription' publication p
         with (connect = false, slot_name = 'remote');
         alter subscription tenant enable;",
    )
    .await;
    let logical = "select pg_create_logical_replication_slot('tenant', 'test_decoding')";
    batch(&admin, logical).await;
    let physical = "select pg_create_physical_replication_slot('replica', true)";
    batch(&admin, physical).await;
    let fdw = "create extension postgres_fdw; create server other foreign data wrapper postgres_fdw options (host 'canary-foreign-host', dbname 'd', fetch_size '7');
               create user mapping for postgres server other options (user 'u', password 'canary-foreign-password')";
    batch(&admin, fdw).await;
    batch(&admin, "create database closed").await;
    let closed = clusters
        .admin_session_in(&spec.project, "closed")
        .await
        .unwrap();
    batch(&closed, fdw).await;
    drop(closed);
    batch(&admin, "alter database closed allow_connections false").await;
    batch(
        &admin,
        "begin; insert into public.notes values (2, 'prepared'); prepare transaction 'pending'",
    )
    .await;
    spec.project
}

pub(super) fn counts(report: &CopyReport) -> BTreeMap<&str, u64> {
    let steps = report.isolation.iter();
    steps.map(|step| (&*step.name, step.count)).collect()
}

/// Returns the files below a folder that contain one of the canaries.
pub(super) fn files_with_canary(folder: &Path) -> Vec<String> {
    files_with(folder, &CANARIES)
}

/// Returns the files below a folder that contain one of these strings.
pub(super) fn files_with(folder: &Path, canaries: &[&str]) -> Vec<String> {
    let mut args = vec!["-rlaF".to_owned()];
    for canary in canaries {
        args.extend(["-e".to_owned(), (*canary).to_owned()]);
    }
    let grep = std::process::Command::new("grep")
        .args(args)
        .arg(folder)
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&grep.stdout).into_owned();
    found.lines().map(str::to_owned).collect()
}

async fn check_isolation(machine: &Machine, n: u32, major: u16) {
    let source = furnished(machine, n, major).await;
    let original = machine.clusters.admin_session(&source).await.unwrap();
    assert!(!files_with_canary(&machine.data(&source)).is_empty());
    let spec = copy_of(&source, n + 1, major);
    let report = machine.clusters.create_copy(&spec).await.unwrap();
    let project = &spec.cluster.project;
    assert_eq!(
        files_with_canary(&machine.data(project)),
        Vec::<String>::new()
    );
    machine.up(project).await;
    let copy = machine.clusters.admin_session(project).await.unwrap();

    let counts = counts(&report);
    for (name, count) in [
        ("prepared transactions rolled back", 1),
        ("subscriptions disabled", 1),
        ("foreign servers disconnected", 2),
        ("user mappings cleared", 2),
        ("sessions deleted", 1),
        ("refresh tokens deleted", 1),
        ("users without pending links", 1),
        ("settings with secrets replaced", 2),
        ("temporary logins closed", 1),
        ("replication origins dropped", 1),
    ] {
        assert_eq!(counts.get(name), Some(&count), "{name}: {counts:?}");
    }
    for (sql, expected) in [
        ("select count(*) from pg_replication_slots", 0),
        ("select count(*) from pg_prepared_xacts", 0),
        (
            "select count(*) from pg_subscription where not subenabled and subslotname is null",
            1,
        ),
        (
            "select count(*) from pg_replication_origin where roname = 'origin'",
            0,
        ),
        ("select count(*) from auth.sessions", 0),
        ("select count(*) from auth.users", 1),
        (
            "select count(*) from pg_authid where rolpassword is not null",
            0,
        ),
        (
            "select count(*) from pg_authid where rolname like 'cli_login%' and rolcanlogin",
            0,
        ),
        ("select count(*) from public.notes", 1),
        ("select count(*) from public.scratch", 0),
        (
            "select count(*) from pg_largeobject_metadata where oid = 4711",
            1,
        ),
        (
            "select count(*) from pg_database where datname = 'closed' and not datallowconn",
            1,
        ),
        (
            "select count(*) from pg_user_mapping where umoptions = '{user=u}'",
            1,
        ),
    ] {
        assert_eq!(number(&copy, sql).await, expected, "{sql}");
    }
    let last = number(&copy, "select last_value from public.numbers").await;
    assert!((10..=42).contains(&last), "{last}");
    assert_eq!(
        text(&copy, "select srvoptions::text from pg_foreign_server").await,
        "{dbname=d,fetch_size=7,host=/isolated}"
    );
    assert_eq!(
        text(&copy, "select current_setting('gantry.branch')").await,
        spec.marker
    );
    assert_eq!(
        text(&copy, "select current_setting('app.jwt_secret')").await,
        "replacement"
    );
    assert_ne!(
        text(
            &copy,
            "select system_identifier::text from pg_control_system()"
        )
        .await,
        text(
            &original,
            "select system_identifier::text from pg_control_system()"
        )
        .await
    );
    batch(
        &copy,
        "insert into public.notes values (3, 'new'); checkpoint",
    )
    .await;
    assert_eq!(
        number(&original, "select count(*) from public.notes").await,
        1
    );
    assert_eq!(
        number(&original, "select count(*) from pg_replication_slots").await,
        2
    );
    assert_eq!(unfinished(machine), Vec::<PathBuf>::new());
    if is_root() {
        let uids = processes_under(&machine.data(project)).into_iter();
        assert!(
            uids.map(|(_, uid)| uid)
                .all(|uid| uid == first_uid() + n + 1)
        );
    }
    // A second call returns the same report and changes nothing.
    assert_eq!(machine.clusters.create_copy(&spec).await.unwrap(), report);
    // A copy survives a crash: its WAL and identifier fit together.
    let pid = machine.pid(project).await;
    drop(copy);
    kill_process(pid, Signal::KILL).unwrap();
    machine.clusters.stop_at_once(project).await.unwrap();
    machine.up(project).await;
    let copy = machine.clusters.admin_session(project).await.unwrap();
    assert_eq!(number(&copy, "select count(*) from public.notes").await, 2);
}

/// Runs a check for each version, with a number of its own for accounts.
pub(super) async fn in_every_version(check: impl AsyncFn(&Machine, u32, u16)) {
    let offered = engines();
    let machine = Machine::on(&offered).await;
    let mut majors: Vec<u16> = offered.offered().iter().map(Engine::major).collect();
    majors.sort_unstable();
    majors.dedup();
    for (n, major) in (1..).step_by(10).zip(majors) {
        check(&machine, n, major).await;
    }
}

#[tokio::test]
async fn copy_is_isolated_from_its_original_in_every_version() {
    in_every_version(check_isolation).await;
}

/// Creates a hostile file. The second path is a file outside of the cluster.
type Plant = fn(&Path, &Path);

#[tokio::test]
async fn copy_refuses_files_that_postgres_does_not_make() {
    let machine = Machine::new().await;
    let source = machine.running(1).await;
    let major = machine.clusters.engines().default_engine().major();
    let folder = machine.data(&source).join("base/1");
    let outside = machine.dir().join("outside");
    fs::write(&outside, "secret of another tenant").unwrap();
    let hostile = folder.join("99999");
    let plants: [(&str, Plant); 4] = [
        ("plain file", |hostile, outside| {
            symlink(outside, hostile).unwrap();
        }),
        ("plain file", |hostile, _| {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(
                rustix::fs::CWD,
                hostile,
                rustix::fs::FileType::Fifo,
                mode,
                0,
            )
            .unwrap();
        }),
        ("plain file", |hostile, outside| {
            fs::hard_link(outside, hostile).unwrap();
        }),
        ("larger than", |hostile, _| {
            let file = fs::File::create(hostile).unwrap();
            if is_root() {
                let data = hostile.parent().unwrap();
                let owner = std::os::unix::fs::MetadataExt::uid(&data.metadata().unwrap());
                std::os::unix::fs::fchown(&file, Some(owner), Some(owner)).unwrap();
            }
            file.set_len((1 << 30) + 1).unwrap();
        }),
    ];
    for (expected, plant) in plants {
        plant(&hostile, &outside);
        let refused = machine
            .clusters
            .create_copy(&copy_of(&source, 2, major))
            .await;
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("base/1/99999") && message.contains(expected),
            "{message}"
        );
        assert_eq!(unfinished(&machine), Vec::<PathBuf>::new());
        fs::remove_file(&hostile).unwrap();
    }
    // A folder that is replaced by a link.
    fs::rename(
        machine.data(&source).join("pg_twophase"),
        machine.dir().join("elsewhere"),
    )
    .unwrap();
    symlink(machine.dir(), machine.data(&source).join("pg_twophase")).unwrap();
    let refused = machine
        .clusters
        .create_copy(&copy_of(&source, 3, major))
        .await;
    assert!(refused.unwrap_err().to_string().contains("pg_twophase"));
    fs::remove_file(machine.data(&source).join("pg_twophase")).unwrap();
    fs::rename(
        machine.dir().join("elsewhere"),
        machine.data(&source).join("pg_twophase"),
    )
    .unwrap();

    let mut small = copy_of(&source, 4, major);
    small.bytes_max = 1 << 20;
    let refused = machine
        .clusters
        .create_copy(&small)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("larger than 1 MB"), "{refused}");
    started(&machine, &copy_of(&source, 5, major)).await;
}

#[tokio::test]
async fn copy_fails_when_its_original_dies() {
    let machine = Machine::new().await;
    let source = machine.running(1).await;
    let admin = machine.clusters.admin_session(&source).await.unwrap();
    let filler = "create table public.filler as select repeat(md5(n::text), 60) t from generate_series(1, 40000) n";
    batch(&admin, filler).await;
    drop(admin);
    let major = machine.clusters.engines().default_engine().major();
    let pid = machine.pid(&source).await;
    let spec = copy_of(&source, 2, major);
    let kill = async {
        until_made(&machine, "data/base").await;
        kill_process(pid, Signal::KILL).unwrap();
    };
    let (copied, ()) = tokio::join!(machine.clusters.create_copy(&spec), kill);
    copied.unwrap_err();
    assert!(!machine.clusters.exists(&spec.cluster.project));
    assert_eq!(unfinished(&machine), Vec::<PathBuf>::new());
    machine.clusters.stop_at_once(&source).await.unwrap();
    machine.up(&source).await;
    let (_, copy) = started(&machine, &spec).await;
    assert_eq!(
        number(&copy, "select count(*) from public.filler").await,
        40000
    );
}
