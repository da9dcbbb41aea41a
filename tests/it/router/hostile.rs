//! Malicious clients and servers.

use std::fs;

use gantry::{
    api::database::query::{SqlQuery, run_query},
    control::database_session::session::ConnectTarget,
};
use gantry_base::clock::Entropy;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use tokio::io::AsyncReadExt;
use tokio_postgres::{NoTls, error::SqlState};

use super::{PASSWORD, Way, config, connect, number, packet, refusal, startup};
use crate::sql::LIMITS;

use crate::support::machine::SuperuserClients as _;

/// Reserved roles that exist in every project.
const OURS: [&str; 7] = [
    "supabase_admin",
    "gantry_owner",
    "supabase_read_only_user",
    "authenticator",
    "anon",
    "authenticated",
    "service_role",
];

#[tokio::test]
async fn reserved_role_or_wrong_password_is_rejected() {
    let way = Way::new().await;
    for role in OURS {
        for password in ["", PASSWORD, role] {
            let mut config = way.config(role);
            config.password(password);
            let (code, message) = refusal(&config).await;
            assert_eq!(
                (code, message),
                (
                    SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
                    format!("role \"{role}\" is not for logging in")
                )
            );
        }
    }
    for password in ["", "wrong", "SCRAM-SHA-256$4096:", "\u{1F40E}"] {
        let mut config = way.config("postgres");
        config.password(password);
        assert!(connect(&config).await.is_err(), "{password:?}");
    }
    // Names that PostgreSQL would truncate to a reserved one are rejected as well.
    for role in [
        "Supabase_Admin",
        "\"supabase_admin\"",
        "supabase_admin ",
        " supabase_admin",
        "root",
        "postgres\u{200b}",
        "POSTGRES",
    ] {
        let mut config = way.config(role);
        config.password("");
        assert!(connect(&config).await.is_err(), "{role:?}");
    }
    let long = format!("postgres{}", "x".repeat(60));
    assert_eq!(
        refusal(&way.config(&long)).await.0,
        SqlState::PROTOCOL_VIOLATION
    );
}

#[tokio::test]
async fn server_requires_scram_of_local_clients() {
    let way = Way::new().await;
    // Connects directly to the server's socket, as the proxy does.
    let socket = way.app.machine.clusters.socket_path(&way.project);
    for role in [
        "postgres",
        "authenticator",
        "anon",
        "service_role",
        "nobody_at_all",
    ] {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(socket.parent().unwrap())
            .user(role)
            .dbname("postgres");
        let error = config
            .connect(NoTls)
            .await
            .err()
            .unwrap_or_else(|| panic!("{role} is let in without a password"));
        assert!(
            format!("{error:?}").contains("password missing"),
            "{role}: {error:?}"
        );
    }
}

#[tokio::test]
async fn server_without_scram_is_rejected() {
    let way = Way::new().await;
    let machine = &way.app.machine;
    let data = way.app.machine.data(&way.project);
    let admin = machine.clusters.admin_session(&way.project).await.unwrap();
    admin.batch_execute("create role plain login; alter role plain password 'md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'").await.unwrap();
    // The account that runs the tests may be called postgres.
    let me = fs::read_to_string(data.join("pg_ident.conf")).unwrap();
    fs::write(
        data.join("pg_ident.conf"),
        format!("{me}{}", me.replace("gantry_owner", "postgres")),
    )
    .unwrap();
    for (method, role) in [
        ("trust", "postgres"),
        ("peer map=gantry", "postgres"),
        ("password", "postgres"),
        ("md5", "plain"),
    ] {
        let loaded = async || {
            machine
                .clusters
                .admin_session(&way.project)
                .await
                .unwrap()
                .query_one("select pg_conf_load_time()::text", &[])
                .await
                .unwrap()
                .get(0)
        };
        let before: String = loaded().await;
        let hba = format!("local all supabase_admin peer map=gantry\nlocal all all {method}\n");
        fs::write(data.join("pg_hba.conf"), hba).unwrap();
        admin
            .batch_execute("select pg_reload_conf()")
            .await
            .unwrap();
        while loaded().await == before {}
        if method == "trust" || method.starts_with("peer") {
            let mut direct = tokio_postgres::Config::new();
            direct
                .host_path(machine.clusters.socket_path(&way.project).parent().unwrap())
                .user(role)
                .dbname("postgres");
            drop(
                direct
                    .connect(NoTls)
                    .await
                    .expect("the server was to be open"),
            );
        }
        let (code, message) = refusal(&way.config(role)).await;
        assert_eq!(
            code,
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
            "{method}: {message}"
        );
        assert!(
            message.contains("does not authenticate by SCRAM-SHA-256"),
            "{method}: {message}"
        );
    }
}

#[tokio::test]
async fn startup_parameters_do_not_change_the_role() {
    let way = Way::new().await;
    for options in [
        "-c session_authorization=supabase_admin",
        "-c role=supabase_admin",
        "-c role=gantry_owner",
        "--role=supabase_admin",
        "-c is_superuser=on",
        "-c session_preload_libraries=x",
        "-c local_preload_libraries=x",
        "--local-preload-libraries=x",
        "-c local_preload_libraries=../x",
        "-c log_statement=none",
        "-O",
        "-c allow_system_table_mods=on",
        "-P",
        "-f s -c zero_damaged_pages=on",
    ] {
        let mut config = way.config("postgres");
        config.options(options);
        if let Ok(client) = connect(&config).await {
            let row =
                client.query_one("select current_user::text, session_user::text, current_setting('is_superuser')", &[]).await.unwrap();
            assert_eq!(
                [0, 1, 2].map(|n| row.get::<_, String>(n)),
                ["postgres", "postgres", "off"],
                "{options}"
            );
            assert!(options.starts_with("-P"), "{options} is accepted");
        }
    }
    for (name, value) in [
        ("session_authorization", "supabase_admin"),
        ("role", "supabase_admin"),
        ("role", "gantry_owner"),
    ] {
        let mut raw = way.raw().await;
        raw.send(&startup(&[
            ("user", &format!("postgres.{}", way.project)),
            ("database", "postgres"),
            (name, value),
        ]))
        .await;
        // The server requests a password first.
        let mut first = [0];
        raw.0.read_exact(&mut first).await.unwrap();
        assert_eq!(first[0], b'R');
    }
    let client = way.connect().await;
    for sql in [
        "set role gantry_owner",
        "set session authorization gantry_owner",
        "set role supabase_admin",
        "grant supabase_admin to postgres",
    ] {
        assert!(client.batch_execute(sql).await.is_err(), "{sql}");
    }
}

/// PostgreSQL lets a role name libraries for its own sessions, and the owner of a database for all
/// sessions in it. A session that does not find one of them ends.
#[tokio::test]
async fn libraries_of_role_and_database_lock_no_session_out() {
    let way = Way::new().await;
    let machine = &way.app.machine;
    let owner = way.connect().await;
    let set = "alter role postgres set local_preload_libraries = 'absent';
        alter role postgres in database postgres set local_preload_libraries = 'absent';
        alter database postgres set local_preload_libraries = 'absent'";
    for sql in set.split(';') {
        owner.batch_execute(sql).await.unwrap();
    }
    let sql = "select current_setting('local_preload_libraries')";
    let row = way.connect().await.query_one(sql, &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "");
    let target = ConnectTarget::new(machine.clusters.socket(&way.project));
    let query = SqlQuery {
        text: sql.into(),
        parameters: Vec::new(),
        read_only: true,
    };
    run_query(&target, &query, LIMITS).await.unwrap();
    for role in ["postgres", "gantry_rows"] {
        let session = machine.clusters.session_as(&way.project, role, "postgres");
        session.await.unwrap();
    }
    let session = machine.clusters.superuser_session(&way.project).await;
    session.unwrap();
    let admin = machine.clusters.admin_session(&way.project).await;
    let admin = admin.unwrap();
    // Each start does this.
    machine.clusters.repair_roles(&way.project).await.unwrap();
    let left = "select count(*) from pg_db_role_setting
        where array_to_string(setconfig, ' ') like '%local_preload_libraries%'";
    assert_eq!(
        admin.query_one(left, &[]).await.unwrap().get::<_, i64>(0),
        0
    );
    for name in ["local_preload_libraries", "LOCAL_PRELOAD_LIBRARIES"] {
        let mut raw = way.raw().await;
        let user = format!("postgres.{}", way.project);
        let parameters = [
            ("user", user.as_str()),
            ("database", "postgres"),
            (name, "x"),
        ];
        raw.send(&startup(&parameters)).await;
        let mut first = [0];
        raw.0.read_exact(&mut first).await.unwrap();
        assert_eq!(first[0], b'E', "{name}");
    }
}

#[tokio::test]
async fn cancel_request_needs_the_exact_key() {
    let way = Way::new().await;
    let client = way.connect().await;
    let pid: i32 = client
        .query_one("select pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    let sleeping =
        tokio::spawn(async move { client.simple_query("select pg_sleep(1)").await.map(drop) });
    for secret in [[0; 4], [0xff; 4], Entropy::system().bytes()] {
        let mut raw = way.raw().await;
        raw.send(&packet(
            &[
                &80_877_102_u32.to_be_bytes()[..],
                &pid.to_be_bytes(),
                &secret,
            ]
            .concat(),
        ))
        .await;
        assert_eq!(raw.rest().await, b"", "nobody is told anything");
    }
    sleeping
        .await
        .unwrap()
        .expect("it was cancelled by a stranger");
}

#[tokio::test]
async fn malformed_startup_packet_returns_an_error() {
    let way = Way::new().await;
    let user = format!("postgres.{}", way.project);
    let long = "x".repeat(9000);
    for (what, bytes, code) in [
        ("too long", 10_001_u32.to_be_bytes().to_vec(), "08P01"),
        ("gigantic", u32::MAX.to_be_bytes().to_vec(), "08P01"),
        ("too short", 7_u32.to_be_bytes().to_vec(), "08P01"),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec(), "08P01"),
        ("SSH", b"SSH-2.0-x\r\n".to_vec(), "08P01"),
        (
            "version 2",
            packet(&[&[0, 2, 0, 0][..], &[0; 288]].concat()),
            "0A000",
        ),
        ("no terminator", packet(b"\0\x03\0\0user\0x"), "08P01"),
        (
            "bytes after the terminator",
            packet(&[&startup(&[("user", &user)])[4..], b"x\0"].concat()),
            "08P01",
        ),
        (
            "a zero in a name",
            startup(&[("user", &format!("postgres\0.{}", way.project))]),
            "08P01",
        ),
        (
            "two users",
            startup(&[("user", &user), ("user", "supabase_admin")]),
            "08P01",
        ),
        ("no user", startup(&[("database", "postgres")]), "28000"),
        (
            "nobody",
            startup(&[("user", &format!(".{}", way.project))]),
            "28000",
        ),
        (
            "an unknown project",
            startup(&[("user", "postgres.aaaaaaaaaaaaaaaaaaaa")]),
            "XX000",
        ),
        (
            "a path",
            startup(&[("user", "postgres.../../control/./../")]),
            "XX000",
        ),
        (
            "a long database",
            startup(&[("user", &user), ("database", &long)]),
            "08P01",
        ),
        (
            "questions without end",
            packet(&80_877_104_u32.to_be_bytes()).repeat(9),
            "",
        ),
    ] {
        let mut raw = way.raw().await;
        raw.send(&bytes).await;
        if what.starts_with("questions") {
            let rest = raw.rest().await;
            assert!(rest.starts_with(b"NNN") && rest.len() < 400, "{rest:?}");
        } else {
            assert_eq!(raw.refused().await.as_deref(), Some(code), "{what}");
        }
    }
    // The project still works.
    assert_eq!(number(&way.connect().await, "select 1::bigint").await, 1);
    assert_eq!(
        refusal(&config(way.address, "x.aaaaaaaaaaaaaaaaaaaa"))
            .await
            .0,
        SqlState::INTERNAL_ERROR
    );
}

#[tokio::test]
async fn plain_text_before_the_tls_handshake_is_discarded() {
    let way = Way::new().await;
    let mut raw = way.raw().await;
    // In one segment with the request: an attacker in the network could have inserted it.
    let injected = [
        packet(&80_877_103_u32.to_be_bytes()),
        startup(&[("user", &format!("postgres.{}", way.project))]),
    ]
    .concat();
    raw.send(&injected).await;
    let rest = raw.rest().await;
    assert!(rest[0] == b'S' && !rest.contains(&b'R'), "{rest:?}");
}

/// Random variations of valid packets.
#[tokio::test]
async fn random_bytes_do_not_crash_the_proxy() {
    let way = Way::new().await;
    let valid = startup(&[
        ("user", &format!("postgres.{}", way.project)),
        ("database", "postgres"),
        ("options", "-c a=b"),
    ]);
    let strategy = (
        proptest::collection::vec((0..valid.len(), any::<u8>()), 0..6),
        0..=valid.len(),
        any::<bool>(),
        proptest::collection::vec(any::<u8>(), 0..200),
    );
    let mut runner = TestRunner::deterministic();
    for _ in 0..200 {
        let (changes, cut, noise, tail) = strategy.new_tree(&mut runner).unwrap().current();
        let mut bytes = valid.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        if noise {
            bytes.extend_from_slice(&tail);
        }
        let mut raw = way.raw().await;
        raw.send(&bytes).await;
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut raw.0).await;
        let rest = raw.rest().await;
        // At most a challenge, no session.
        assert!(
            rest.is_empty() || [b'E', b'R', b'N', b'S'].contains(&rest[0]),
            "{rest:?}"
        );
        assert!(!rest.ends_with(b"Z\0\0\0\x05I"), "{rest:?}");
    }
    assert_eq!(number(&way.connect().await, "select 1::bigint").await, 1);
}
