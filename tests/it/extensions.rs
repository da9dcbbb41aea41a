//! Extensions of every engine: created by the owner of a project, used, and refused.

use std::{fs, path::Path};

use futures_util::{StreamExt, stream};
use gantry_base::clock::Entropy;
use gantry_node::engines::{
    Engine, Engines, ExtensionPolicy, Installed, LayoutOptions, OldVersions, archive, debian,
    extensions,
    registry::{NpmConfig, Registry},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};
use tokio_postgres::{AsyncMessage, Client, Error, NoTls};

use crate::support::machine::{Machine, PATIENCE, SuperuserClients as _, engines, place};

/// One use of each extension: a query with one row and the column `true`.
const USES: &[(&str, &str)] = &[
    (
        "autoinc",
        "select count(*) = 1 from pg_proc where proname = 'autoinc'",
    ),
    (
        "bloom",
        "select count(*) = 1 from pg_am where amname = 'bloom'",
    ),
    (
        "btree_gin",
        "select count(*) > 0 from pg_opclass where opcname = 'int4_ops'",
    ),
    ("btree_gist", "select int4_dist(1, 3) = 2"),
    ("citext", "select 'A'::citext = 'a'::citext"),
    ("cube", "select cube_dim(cube(array[1, 2])) = 2"),
    (
        "dict_int",
        "select ts_lexize('intdict', '1234567') = '{123456}'",
    ),
    (
        "dict_xsyn",
        "select count(*) = 1 from pg_ts_dict where dictname = 'xsyn'",
    ),
    ("earthdistance", "select earth() > 6000000"),
    ("fuzzystrmatch", "select levenshtein('a', 'b') = 1"),
    ("hll", "select hll_cardinality(hll_empty()) = 0"),
    ("hstore", "select ('a=>1'::hstore -> 'a') = '1'"),
    ("http", "select urlencode('a b') in ('a+b', 'a%20b')"),
    ("hypopg", "select count(*) = 0 from hypopg()"),
    ("intarray", "select icount('{1,2}'::int[]) = 2"),
    ("isn", "select is_valid('978-0-393-04002-9'::isbn13)"),
    ("ltree", "select nlevel('a.b'::ltree) = 2"),
    (
        "moddatetime",
        "select count(*) = 1 from pg_proc where proname = 'moddatetime'",
    ),
    (
        "pg_cron",
        "select cron.schedule('use', '0 0 1 1 *', 'select 1') > 0",
    ),
    ("pg_prewarm", "select pg_prewarm('used') >= 0"),
    (
        "pg_stat_statements",
        "select count(*) >= 0 from pg_stat_statements",
    ),
    ("pg_trgm", "select similarity('abc', 'abc') = 1"),
    ("pgcrypto", "select length(digest('a', 'sha256')) = 32"),
    ("pgrowlocks", "select count(*) = 0 from pgrowlocks('used')"),
    (
        "pgstattuple",
        "select tuple_count = 0 from pgstattuple('used')",
    ),
    (
        "pgtap",
        "select ok(true) like 'ok%' from (select plan(1)) as planned",
    ),
    (
        "postgis",
        "select st_distance('point(0 0)'::geometry, 'point(3 4)'::geometry) = 5",
    ),
    ("seg", "select '1..2'::seg = '1..2'::seg"),
    ("tablefunc", "select count(*) = 2 from normal_rand(2, 5, 3)"),
    ("unaccent", "select unaccent('Hôtel') = 'Hotel'"),
    ("uuid-ossp", "select uuid_generate_v4() is not null"),
    ("vector", "select '[1,2]'::vector <-> '[1,2]'::vector = 0"),
    ("xml2", "select xpath_bool('<a/>', '/a')"),
];

async fn owner_of(machine: &Machine, n: u32) -> Client {
    let project = machine.running(n).await;
    machine.connect(&project, "postgres").await.unwrap()
}

async fn machine_on(engine: &Engine) -> Machine {
    Machine::on(&Engines::only(engine.clone())).await
}

/// SQLSTATE, message and hint of an error.
fn refusal(outcome: Result<(), Error>) -> (String, String, String) {
    let error = outcome.unwrap_err();
    let error = error.as_db_error().unwrap();
    (
        error.code().code().to_owned(),
        error.message().to_owned(),
        error.hint().unwrap_or_default().to_owned(),
    )
}

#[tokio::test]
async fn owner_creates_and_uses_every_permitted_extension() {
    for engine in engines().offered() {
        let machine = machine_on(engine).await;
        let owner = owner_of(&machine, 1).await;
        owner
            .batch_execute("create table used (id int); create schema elsewhere")
            .await
            .unwrap();
        let mut created = Vec::new();
        for name in extensions::PERMITTED {
            if !engine.has_extension(name) {
                continue;
            }
            let text = engine.text();
            let fixed = fs::read_to_string(
                engine
                    .extensions_dir()
                    .unwrap()
                    .join(format!("{name}.control")),
            )
            .unwrap()
            .lines()
            .any(|line| line.trim_start().starts_with("schema"));
            let schema = if fixed { "" } else { "with schema extensions" };
            owner
                .batch_execute(&format!(
                    "create extension if not exists \"{name}\" {schema} cascade"
                ))
                .await
                .unwrap_or_else(|error| panic!("{name} on {text}: {error:?}"));
            if let Some((_, sql)) = USES.iter().find(|(used, _)| used == name) {
                let row = owner
                    .query_one(*sql, &[])
                    .await
                    .unwrap_or_else(|error| panic!("{name} on {text}: {error:?}"));
                assert!(row.get::<_, bool>(0), "{name} on {text}");
            }
            created.push(*name);
        }
        assert!(created.len() > 30, "{created:?} on {}", engine.text());
        owner
            .batch_execute("drop extension citext; create extension citext schema elsewhere; comment on extension citext is 'x'")
            .await
            .unwrap();
        // Members belong to the superuser, the extension to its creator.
        let moved = "alter extension citext set schema public; alter extension \"citext\" set schema elsewhere";
        owner.batch_execute(moved).await.unwrap();
        let schema =
            "select extnamespace::regnamespace::text from pg_extension where extname = 'citext'";
        let schema: String = owner.query_one(schema, &[]).await.unwrap().get(0);
        assert_eq!(schema, "elsewhere");
        for (sql, expected) in [
            ("alter extension supabase_vault set schema public", "42501"),
            ("alter extension citext set schema pg_catalog", "42501"),
            (
                "set role anon; alter extension citext set schema public",
                "42501",
            ),
        ] {
            let (code, ..) = refusal(owner.batch_execute(sql).await);
            owner.batch_execute("reset role").await.unwrap();
            assert_eq!(code, expected, "{sql} on {}", engine.text());
        }
        let own = owner
            .query_one(
                "select rolsuper from pg_roles where rolname = current_user",
                &[],
            )
            .await
            .unwrap();
        assert!(!own.get::<_, bool>(0));
    }
}

#[tokio::test]
async fn forbidden_extensions_are_refused() {
    for engine in engines().offered() {
        let machine = machine_on(engine).await;
        let owner = owner_of(&machine, 1).await;
        let mut tried = 0;
        for name in extensions::FORBIDDEN {
            if engine.has_extension(name) {
                let (code, _, hint) = refusal(
                    owner
                        .batch_execute(&format!("create extension {name}"))
                        .await,
                );
                assert_eq!(code, "42501", "{name} on {}", engine.text());
                assert!(hint.contains("operator"), "{hint}");
                tried += 1;
            }
        }
        assert!(tried >= 3, "{}", engine.text());
    }
}

#[tokio::test]
async fn nearest_neighbours_are_found_by_index() {
    let engines = engines();
    let mut with_vector = 0;
    for engine in engines.offered() {
        if !engine.has_extension("vector") {
            continue;
        }
        with_vector += 1;
        let machine = machine_on(engine).await;
        let owner = owner_of(&machine, 1).await;
        owner
            .batch_execute(
                "create extension vector with schema extensions;
                 create table items (id bigint primary key, embedding extensions.vector(3));
                 insert into items
                     select n, array[n, n, n]::real[]::vector from generate_series(1, 1000) as n;
                 create index on items using hnsw (embedding vector_l2_ops);
                 set enable_seqscan = off",
            )
            .await
            .unwrap();
        let nearest = "select id from items order by embedding <-> '[500.2,500.2,500.2]' limit 2";
        let plan: Vec<String> = owner
            .query(&format!("explain {nearest}"), &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert!(plan.join("\n").contains("Index Scan"), "{plan:?}");
        let found: Vec<i64> = owner
            .query(nearest, &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert_eq!(found, [500, 501]);
    }
    assert!(with_vector > 0, "no engine of this run has vector");
}

/// Returns whether `pg_cron` of the engine can run jobs every second.
fn has_seconds(engine: &Engine) -> bool {
    engine.has_extension("pg_cron") && engine.major() >= 17
}

#[tokio::test]
async fn scheduled_job_runs_as_the_owner_only() {
    for engine in engines().offered() {
        if !has_seconds(engine) {
            continue;
        }
        let machine = machine_on(engine).await;
        let project = machine.running(1).await;
        let (owner, mut connection) = machine
            .config(&project, "postgres")
            .connect(NoTls)
            .await
            .unwrap();
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        let (sender, mut notified) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(notification) = message {
                    let _ = sender.send(notification.payload().to_owned());
                }
            }
        });
        // Settings and operators by which a session of the superuser would run the owner's code.
        owner
            .batch_execute(
                "create function public.take(bigint, bigint) returns boolean language plpgsql as $$
                 begin
                     if (select rolsuper from pg_catalog.pg_roles
                         where rolname operator(pg_catalog.=) current_user)
                     then
                         alter role postgres superuser;
                     end if;
                     return $1 operator(pg_catalog.=) $2;
                 end $$;
                 create operator public.= (
                     leftarg = bigint, rightarg = bigint, function = public.take);
                 alter database postgres set search_path = public, pg_catalog",
            )
            .await
            .unwrap();
        owner
            .batch_execute(
                "create extension pg_cron; listen done;
                 select cron.schedule('each second', '1 second', 'select pg_notify(''done'', current_user || session_user)')",
            )
            .await
            .unwrap();
        for _ in 0..2 {
            let payload = timeout(PATIENCE, notified.recv()).await.unwrap().unwrap();
            assert_eq!(payload, "postgrespostgres");
        }
        let (code, ..) = refusal(
            owner
                .batch_execute("update cron.job set username = 'supabase_admin'")
                .await,
        );
        assert_eq!(code, "42501");
        owner
            .query(
                "select cron.schedule_in_database('x', '1 second', 'select 1', 'postgres', 'supabase_admin')",
                &[],
            )
            .await
            .unwrap_err();
        let succeeded = owner
            .query_one(
                "select count(*) > 0 from cron.job_run_details where status operator(pg_catalog.=) 'succeeded'",
                &[],
            )
            .await
            .unwrap();
        assert!(succeeded.get::<_, bool>(0));
        let admin = machine.clusters.admin_session(&project).await.unwrap();
        let superusers =
            "select count(*) from pg_roles where rolsuper and rolname <> 'supabase_admin'";
        let row = admin.query_one(superusers, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 0);
    }
}

#[tokio::test]
async fn missing_extension_is_refused_with_the_remedy() {
    let machine = Machine::new().await;
    let owner = owner_of(&machine, 1).await;
    for sql in [
        "create extension if not exists \"not_there\" with schema extensions",
        "CREATE EXTENSION Not_There",
        "do $$ begin create extension not_there; end $$",
    ] {
        let (code, message, hint) = refusal(owner.batch_execute(sql).await);
        assert_eq!(code, "0A000", "{sql}");
        assert_eq!(message, "extension \"not_there\" is not available");
        assert!(
            hint.contains("gantry extension install not_there"),
            "{hint}"
        );
    }
    let (_, message, hint) = refusal(owner.batch_execute("create extension pg_tle").await);
    assert_eq!(message, "extension \"pg_tle\" is not available");
    let engine = "gantry engine install supabase-17 --from DIR";
    assert!(hint.contains(engine), "{hint}");
    // A conditional statement, a comment and a text do not run.
    owner
        .batch_execute(
            "-- create extension not_there\ncreate extension citext;
             do $$ begin
                 if exists (select from pg_available_extensions where name = 'not_there') then
                     create extension not_there;
                 end if;
             end $$;
             create extension if not exists citext",
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn owner_cannot_change_the_rules_of_extensions() {
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let owner = machine.connect(&project, "postgres").await.unwrap();
    for sql in [
        "alter event trigger grant_extension_access disable",
        "drop event trigger explain_missing_extension",
        "create or replace function extensions.grant_extension_access() returns event_trigger language plpgsql as 'begin end'",
        "alter function extensions.grant_extension_access() owner to postgres",
        "drop function extensions.grant_extension_access() cascade",
        "alter role supabase_admin in database postgres set search_path = public",
        "alter role supabase_admin reset search_path",
    ] {
        let (code, ..) = refusal(owner.batch_execute(sql).await);
        assert_eq!(code, "42501", "{sql}");
    }
    // A function that the owner made before the rules existed does not keep its owner.
    let admin = machine.clusters.admin_session(&project).await.unwrap();
    admin
        .batch_execute("drop event trigger grant_extension_access; drop function extensions.grant_extension_access()")
        .await
        .unwrap();
    owner
        .batch_execute(
            "create function extensions.grant_extension_access() returns event_trigger language plpgsql as 'begin end'",
        )
        .await
        .unwrap();
    let session = machine.clusters.superuser_session(&project).await.unwrap();
    machine.clusters.apply_platform(&session).await.unwrap();
    let owners = "select count(*) from pg_proc p join pg_roles r on r.oid = p.proowner
                  where p.prorettype = 'event_trigger'::regtype and pronamespace = 'extensions'::regnamespace and not rolsuper";
    let row = admin.query_one(owners, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
    let row = admin
        .query_one(
            "select count(*) from pg_event_trigger where evtenabled = 'A'",
            &[],
        )
        .await
        .unwrap();
    assert!(row.get::<_, i64>(0) >= 2);
}

/// Writes a made-up extension.
fn write_extension(dir: &Path, name: &str, control: &str, script: &str) {
    fs::write(
        dir.join(format!("{name}.control")),
        format!("default_version = '1.0'\nrelocatable = false\n{control}\n"),
    )
    .unwrap();
    fs::write(dir.join(format!("{name}--1.0.sql")), script).unwrap();
}

#[tokio::test]
async fn operators_folder_and_list_extend_an_engine() {
    let engine = engines().default_engine().clone();
    let home = place();
    let folder = home.join("more");
    fs::create_dir(&folder).unwrap();
    write_extension(
        &folder,
        "pg_net",
        "",
        "create schema net; create function net.http_get(url text) returns bigint language sql as 'select 1::bigint';
         create table net._http_response (id bigint); revoke all on function net.http_get(text) from public;",
    );
    write_extension(
        &folder,
        "unlisted_one",
        "superuser = true",
        "create table secret_of_unlisted (id int);",
    );
    write_extension(
        &folder,
        "pgmq",
        "requires = 'citext'",
        "create schema pgmq; create table pgmq.meta (id int);",
    );
    write_extension(&folder, "file_fdw", "trusted = true", "");
    let source = Installed::find(None, engines_folder().as_ref()).unwrap();
    let options = |policy| LayoutOptions {
        dir: home.join("layouts"),
        policy,
        folders: vec![(engine.major(), folder.clone())],
    };
    let laid_out = |policy| {
        let engines = source
            .clone()
            .laid_out(&options(policy), &Entropy::system())
            .offer(OldVersions::Offered)
            .unwrap();
        engines.of_major(engine.major()).unwrap().clone()
    };

    let machine = machine_on(&laid_out(ExtensionPolicy::default())).await;
    let owner = owner_of(&machine, 1).await;
    let (code, _, hint) = refusal(owner.batch_execute("create extension unlisted_one").await);
    assert_eq!(code, "42501");
    assert!(
        hint.contains("gantry extension allow unlisted_one"),
        "{hint}"
    );
    let (code, ..) = refusal(owner.batch_execute("create extension file_fdw").await);
    assert_eq!(code, "42501");
    owner
        .batch_execute("create extension pg_net; create extension pgmq cascade")
        .await
        .unwrap();
    let granted = "select has_function_privilege('anon', 'net.http_get(text)', 'execute')
                   and has_schema_privilege('authenticated', 'net', 'usage')
                   and has_table_privilege('postgres', 'pgmq.meta', 'insert')";
    let row = owner.query_one(granted, &[]).await.unwrap();
    assert!(row.get::<_, bool>(0));

    let policy = ExtensionPolicy::change(&home, "unlisted_one", true).unwrap();
    let machine = machine_on(&laid_out(policy)).await;
    let owner = owner_of(&machine, 2).await;
    owner
        .batch_execute("create extension unlisted_one")
        .await
        .unwrap();
    fs::remove_dir_all(&home).unwrap();
}

fn engines_folder() -> std::ffi::OsString {
    std::env::var_os("GANTRY_TEST_ENGINES").unwrap_or_else(|| "/var/tmp/gantry-test-engines".into())
}

/// A made-up archive: the folders of an installed engine, in the form of the portable archive.
#[tokio::test]
async fn portable_archive_is_copied_and_bounded() {
    let found = engines();
    let engine = found.of_major(15).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive");
    for folder in ["bin", "lib", "share/postgresql/extension"] {
        fs::create_dir_all(archive.join(folder)).unwrap();
    }
    for name in ["postgres", "initdb"] {
        fs::copy(engine.bin_dir().join(name), archive.join("bin").join(name)).unwrap();
    }
    fs::write(archive.join("share/postgresql/postgres.bki"), "").unwrap();
    std::os::unix::fs::symlink("postgres", archive.join("bin/postmaster")).unwrap();
    let engines = dir.path().join("engines");
    let entropy = Entropy::system();
    let wrong = archive::install(&engines, &archive, 17, &entropy).await;
    assert!(
        wrong
            .unwrap_err()
            .to_string()
            .contains("holds PostgreSQL 15")
    );
    let installed = archive::install(&engines, &archive, 15, &entropy)
        .await
        .unwrap();
    assert_eq!((installed.major(), installed.origin()), (15, "archive"));
    let digest = &installed.manifest().unwrap().packages[0].digest;
    assert!(
        digest.starts_with("sha256:") && digest.len() == 71,
        "{digest}"
    );
    assert!(installed.bin_dir().join("postmaster").is_symlink());

    fs::remove_dir_all(&engines).unwrap();
    std::os::unix::fs::symlink("../../../etc", archive.join("lib/outside")).unwrap();
    let refused = archive::install(&engines, &archive, 15, &entropy)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("lib/outside"), "{refused}");
    assert_eq!(fs::read_dir(&engines).unwrap().count(), 0);
}

#[tokio::test]
async fn package_with_wrong_digest_installs_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mirror = format!("http://{}/debian/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let answer =
                "HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\n!<arch>\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::new(NpmConfig::default()).unwrap();
    let mirrors = [mirror.parse().unwrap()];
    let refused = debian::install(dir.path(), &mirrors, &registry, &Entropy::system())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("the SHA-256 of http://127.0.0.1"),
        "{refused}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
