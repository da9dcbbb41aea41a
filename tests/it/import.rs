//! Import of databases, and of settings and functions, into projects.

use gantry::control::import::{Import, ImportError, ImportReport, SourceDatabase};
use gantry_base::ids::ProjectRef;
use gantry_node::{engines::Engine, supervisor::ProcessOwner};
use postgres_protocol::password::scram_sha_256;
use tokio_postgres::Client;

use crate::{
    support::{
        machine::{Machine, SuperuserClients as _, engines},
        note_skipped,
    },
    traps,
};

/// Password of the source. It has characters that the file of passwords escapes.
const PASSWORD: &str = "s:e\\cret";

/// Returns an engine with client programs.
fn engine() -> Option<Engine> {
    let engines = engines();
    let found = engines.offered().iter().rev().find(|engine| {
        engine.major() >= 16
            && engine.program("pg_dump").is_file()
            && engine.program("psql").is_file()
    });
    if found.is_none() {
        note_skipped("no engine from 16 on has pg_dump and psql");
    }
    found.cloned()
}

/// A machine with a source and a target, both projects.
struct Pair {
    machine: Machine,
    engine: Engine,
    source: ProjectRef,
    target: ProjectRef,
}

impl Pair {
    async fn new() -> Option<Self> {
        let engine = engine()?;
        let machine = Machine::on(&gantry_node::engines::Engines::only(engine.clone())).await;
        let (source, target) = (machine.running(1).await, machine.running(2).await);
        let verifier = scram_sha_256(PASSWORD.as_bytes());
        machine
            .clusters
            .set_password(&source, "postgres", &verifier)
            .await
            .unwrap();
        Some(Self {
            machine,
            engine,
            source,
            target,
        })
    }

    async fn admin(&self, project: &ProjectRef) -> Client {
        self.machine.clusters.admin_session(project).await.unwrap()
    }

    fn import(&self, replace: bool, dry_run: bool) -> Import {
        let socket = self.machine.clusters.socket_path(&self.source);
        Import {
            source: SourceDatabase {
                host: socket.parent().unwrap().display().to_string(),
                port: 5432,
                user: "postgres".to_owned(),
                database: "postgres".to_owned(),
                tls: "disable".to_owned(),
            },
            password: PASSWORD.into(),
            home: self.machine.dir().to_owned(),
            project: self.target.clone(),
            engine: self.engine.clone(),
            account: ProcessOwner::own_account(),
            replace,
            dry_run,
        }
    }

    async fn run(&self, replace: bool, dry_run: bool) -> Result<ImportReport, ImportError> {
        self.import(replace, dry_run).run().await
    }
}

async fn text(client: &Client, sql: &str) -> String {
    let row = client.query_one(sql, &[]).await;
    let value: Option<String> = row
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0);
    value.unwrap_or_default()
}

const FILL: &str = "
    set role postgres;
    create role app_writer login;
    create schema shop;
    create table shop.orders (id bigint generated always as identity primary key,
                              item text not null, at timestamptz default now());
    insert into shop.orders (item) select 'item ' || i from generate_series(1, 5000) i;
    create function shop.total() returns bigint language sql as 'select count(*) from shop.orders';
    grant usage on schema shop to app_writer;
    grant select, insert on shop.orders to app_writer;
    create table public.notes (id int primary key, \"Text\" text);
    insert into public.notes values (1, E'tab\\there'), (2, null), (3, 'ü');
    alter table public.notes enable row level security;
    create policy all_notes on public.notes for select to authenticated using (true);
    reset role;
    create extension if not exists hstore schema extensions;
    insert into auth.users (id, email)
        values ('11111111-1111-4111-8111-111111111111', 'a@example.com'),
               ('22222222-2222-4222-8222-222222222222', 'b@example.com');
    insert into storage.buckets (id, name) values ('photos', 'photos');
";

#[tokio::test]
async fn import_runs_no_code_of_the_target_with_a_right_of_the_platform() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let source = pair.admin(&pair.source).await;
    source.batch_execute(FILL).await.unwrap();
    traps::plant(&pair.machine, &pair.target).await;
    let report = pair.run(true, false).await.unwrap();
    let mut copied = report.platform_rows.iter();
    assert!(copied.any(|(name, _)| name == "auth.users"), "{report:?}");
    traps::assert_not_sprung(&pair.machine, &pair.target, "an import").await;
}

#[tokio::test]
async fn import_copies_schemas_data_roles_and_users_and_can_be_repeated() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let source = pair.admin(&pair.source).await;
    source.batch_execute(FILL).await.unwrap();
    let target = pair.admin(&pair.target).await;

    let planned = pair.run(false, true).await.unwrap();
    assert_eq!(planned.schemas, ["public", "shop", "supabase_migrations"]);
    assert_eq!(
        text(&target, "select to_regclass('shop.orders')::text").await,
        ""
    );

    let report = pair.run(false, false).await.unwrap();
    assert_eq!(report.rejected, Vec::<String>::new());
    assert_eq!(report.schemas, ["public", "shop", "supabase_migrations"]);
    assert_eq!(report.roles, ["app_writer"]);
    assert!(
        report.platform_rows.contains(&("auth.users".to_owned(), 2)),
        "{report:?}"
    );
    assert!(
        report
            .platform_rows
            .contains(&("storage.buckets".to_owned(), 1)),
        "{report:?}"
    );
    let password = "password of role app_writer";
    assert!(
        report
            .not_imported
            .iter()
            .any(|line| line.starts_with(password)),
        "{report:?}"
    );
    for query in [
        "select md5(string_agg(t::text, ',' order by id)) from shop.orders t",
        "select md5(string_agg(t::text, ',' order by id)) from public.notes t",
        "select shop.total()::text",
        "select string_agg(id::text || email, ',' order by id) from auth.users",
        "select relacl::text from pg_class where oid = 'shop.orders'::regclass",
        "select polname::text from pg_policy where polrelid = 'public.notes'::regclass",
        "select relrowsecurity::text from pg_class where oid = 'public.notes'::regclass",
        "select tableowner::text from pg_tables where tablename = 'orders'",
    ] {
        assert_eq!(
            text(&target, query).await,
            text(&source, query).await,
            "{query}"
        );
    }

    // A second import needs permission to replace, and has the same result.
    let refused = pair.run(false, false).await.unwrap_err().to_string();
    assert!(refused.contains("--replace"), "{refused}");
    source
        .batch_execute("set role postgres; insert into shop.orders (item) values ('late')")
        .await
        .unwrap();
    let again = pair.run(true, false).await.unwrap();
    assert_eq!(again.rejected, Vec::<String>::new());
    assert_eq!(text(&target, "select shop.total()::text").await, "5001");
    assert_eq!(
        text(&target, "select count(*)::text from auth.users").await,
        "2"
    );
    let left = std::fs::read_dir(pair.machine.dir().join("tmp"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn import_with_wrong_password_changes_nothing_and_shows_no_secret() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let mut import = pair.import(false, false);
    import.password = "wrong-secret".into();
    let error = import.run().await.unwrap_err();
    assert!(matches!(error, ImportError::Source(_)), "{error}");
    assert!(!error.to_string().contains("wrong-secret"), "{error}");
    let left = std::fs::read_dir(pair.machine.dir().join("tmp"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

/// Code of the source runs with the rights of the project's owner only.
#[tokio::test]
async fn import_of_hostile_source_runs_nothing_as_superuser() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let source = pair.admin(&pair.source).await;
    source
        .batch_execute(
            "create function public.grab() returns int language plpgsql as $$
             begin execute 'alter role postgres superuser'; return 1;
             exception when others then return 0; end $$;
             create table public.trap
                 (n int default public.grab(), m int generated always as (1) stored);
             insert into public.trap (n) values (1);
             alter table public.trap add check (public.grab() >= 0);
             alter function public.grab() owner to postgres; alter table public.trap owner to postgres",
        )
        .await
        .unwrap();
    pair.run(false, false).await.unwrap();
    let target = pair.admin(&pair.target).await;
    let superusers = "select string_agg(rolname::text, ',') from pg_roles where rolsuper";
    assert_eq!(text(&target, superusers).await, "supabase_admin");
}
