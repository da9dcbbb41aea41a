//! The sandbox of servers: denied access, ordinary work, and a launcher without a sandbox.

use super::*;

use crate::support::machine::SuperuserClients as _;

#[tokio::test]
async fn superuser_cannot_leave_the_sandbox() {
    if !sandbox_available() {
        return;
    }
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let (project, neighbour) = (machine.running(1).await, machine.running(2).await);
        let admin = machine.clusters.admin_session(&project).await.unwrap();
        admin
            .batch_execute(
                "create table pg_temp.o (t text); create extension dblink schema extensions",
            )
            .await
            .unwrap();

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let theirs = machine.data(&neighbour).join("PG_VERSION");
        for attempt in [
            "copy pg_temp.o from program 'id'".to_owned(),
            "copy pg_temp.o from '/etc/hostname'".to_owned(),
            "copy (select 1) to '/tmp/out'".to_owned(),
            "copy (select 1) to '/dev/shm/out'".to_owned(),
            "select pg_read_file('/etc/shadow')".to_owned(),
            "select pg_read_file('/proc/1/cmdline')".to_owned(),
            "select pg_ls_dir('/tmp')".to_owned(),
            "select pg_ls_dir('/proc')".to_owned(),
            format!("select pg_read_file('{}')", theirs.display()),
            format!(
                "select extensions.dblink_connect('host=127.0.0.1 port={port} dbname=x connect_timeout=2')"
            ),
        ] {
            let said = refusal(&admin, &attempt).await;
            let denied = [
                "Permission denied",
                "command not found",
                "program \"id\" failed",
                "could not execute",
                "could not establish connection",
            ];
            assert!(
                denied.iter().any(|text| said.contains(text)),
                "{attempt}: {said}"
            );
        }
        assert!(!Path::new("/tmp/out").exists() && !Path::new("/dev/shm/out").exists());
        listener.set_nonblocking(true).unwrap();
        assert!(
            listener.accept().is_err(),
            "a server opened a TCP connection"
        );
    }
}

#[tokio::test]
async fn sandbox_permits_ordinary_statements() {
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let project = machine.running(1).await;
        let owner = machine.connect(&project, "postgres").await.unwrap();
        owner
        .batch_execute(
            "create extension if not exists pgcrypto; create extension if not exists \"uuid-ossp\"; create extension if not exists pg_trgm;
             create table big as select n, md5(n::text) m from generate_series(1, 200000) n;
             create index on big (m); create index on big using gin (m gin_trgm_ops);
             analyze big; alter table big set (parallel_workers = 2);
             set min_parallel_table_scan_size = 0; set parallel_setup_cost = 0; set parallel_tuple_cost = 0;
             set work_mem = '64kB'",
        )
        .await
        .unwrap();
        let plan: Vec<String> = owner
            .query(
                "explain (analyze, costs off) select count(distinct m) from big where n % 2 = 0",
                &[],
            )
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert!(
            plan.iter().any(|line| line.contains("Workers Launched: 2")),
            "{plan:#?}"
        );
        assert_eq!(
            text(
                &owner,
                "select count(*)::text from (select m from big order by m) s"
            )
            .await,
            "200000"
        );
        assert_eq!(
            text(
                &owner,
                "select length(gen_random_bytes(8))::text || uuid_generate_v4()::text"
            )
            .await
            .len(),
            37
        );
        assert_eq!(
            text(
                &owner,
                "select ((now() at time zone 'Europe/Berlin') is not null and to_tsvector('english', 'running') @@ to_tsquery('run'))::text"
            )
            .await,
            "true"
        );
        for alone in ["create database extra", "vacuum big", "drop database extra"] {
            owner.batch_execute(alone).await.unwrap();
        }
        owner
            .batch_execute("select pg_create_logical_replication_slot('s', 'pgoutput'); select pg_drop_replication_slot('s')")
            .await
            .unwrap();
        assert_ne!(
            text(&owner, "select count(*)::text from pg_stat_statements").await,
            "0"
        );
    }
}

/// Also a superuser's: the limit is the kernel's.
#[tokio::test]
async fn statement_beyond_memory_limit_fails_alone() {
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let project = machine.running(1).await;
        let (pid, admin) = (
            machine.pid(&project).await,
            machine.clusters.admin_session(&project).await.unwrap(),
        );
        let said = refusal(&admin, "select length(repeat('x', 1000000000) || 'y')").await;
        assert!(said.contains("out of memory"), "{said}");
        assert_eq!(text(&admin, "select 'still there'").await, "still there");
        assert_eq!(machine.pid(&project).await, pid);
    }
}

#[tokio::test]
async fn launcher_without_sandbox_support_starts_no_server() {
    let machine = Machine::new().await;
    let cluster = cluster(1);
    machine
        .clusters
        .create(&cluster, CopyPriority::Foreground)
        .await
        .unwrap();
    let broken = Host {
        launcher: Launcher {
            program: "/bin/false".into(),
            sandbox: true,
        },
        ..host()
    };
    let broken = LocalDriver::open(Arc::clone(&machine.home), broken, Entropy::system());
    let start = timeout(PATIENCE, broken.start(&cluster.project))
        .await
        .expect("an ended launcher is noticed at once");
    assert!(
        matches!(start, Err(ClusterError::NotStarted { .. })),
        "{start:?}"
    );
}
