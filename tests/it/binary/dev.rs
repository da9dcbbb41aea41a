//! `gantry dev`, used as the README describes.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use rustix::process::Signal;
use serde_json::json;

use super::{
    machine::{Gantry, Machine, PASSWORD, field},
    wire::Answer,
};

/// Runs the command of the greeting unchanged. A curl configuration file adds the response headers
/// to the output.
fn paste(machine: &Machine, gantry: &Gantry) -> Answer {
    let begin = gantry
        .greeting
        .iter()
        .position(|line| line.contains("curl "))
        .expect("a curl");
    let lines = gantry.greeting[begin..]
        .iter()
        .take_while(|line| !line.is_empty());
    let text = lines.cloned().collect::<Vec<_>>().join("\n");
    fs::write(
        machine.dir().join(".curlrc"),
        "include\nno-progress-meter\nshow-error\n",
    )
    .unwrap();
    let output = Command::new("bash")
        .args(["-c", &text])
        .current_dir("/")
        .env("CURL_HOME", machine.dir())
        .output()
        .unwrap();
    assert!(output.status.success(), "{text}: {output:?}");
    Answer::parse(&String::from_utf8(output.stdout).unwrap())
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

#[test]
fn dev_second_start_reuses_token_and_organization() {
    let machine = Machine::new();
    let (env, profile) = (
        machine.data().join("dev.env"),
        machine.data().join("profile.yaml"),
    );

    let mut first = machine.dev(&[]);
    let url = format!("http://{}", first.address);
    assert_eq!(field(&first.greeting, "API"), url);
    assert!(
        field(&first.greeting, "Token").starts_with(&first.token),
        "{:?}",
        first.greeting
    );
    assert!(
        field(&first.greeting, "Pages").starts_with(&format!("{url}/sign-in/link/")),
        "{:?}",
        first.greeting
    );
    assert!(
        field(&first.greeting, "CLI").contains(profile.to_str().unwrap()),
        "{:?}",
        first.greeting
    );
    let text = fs::read_to_string(&env).unwrap();
    assert_eq!(
        text,
        format!(
            "GANTRY_URL={url}\nGANTRY_TOKEN={}\nGANTRY_ORG={}\n",
            first.token, first.organization
        )
    );
    assert_eq!(mode(&env), 0o600, "it holds the token");
    assert_eq!(
        fs::read_to_string(&profile).unwrap(),
        format!(
            "name: gantry\napi_url: {url}\ndashboard_url: {url}\nproject_host: localhost\npooler_host: pooler.localhost\n"
        )
    );

    let created = paste(&machine, &first);
    let project = created.expect(201);
    assert_eq!(
        (
            created.header("x-ratelimit-limit"),
            created.header("x-ratelimit-remaining")
        ),
        ("120", "119")
    );
    assert_eq!(created.header("x-ratelimit-reset"), "60");
    assert_eq!(created.header("x-request-id").len(), 32);
    assert_eq!(created.header("x-gotrue-id").len(), 36);
    assert_eq!(
        (&project["status"], &project["name"]),
        (&json!("COMING_UP"), &json!("first"))
    );
    let reference = project["ref"].as_str().unwrap();
    first.healthy(reference);
    assert_eq!(
        first
            .query(reference, "create table kept (); select 1 as one")
            .status,
        201
    );
    assert_eq!(first.stop(Signal::INT).code(), Some(0), "{}", first.log());
    assert_eq!(machine.servers(), [], "{}", first.log());

    let mut second = machine.dev(&[]);
    assert_eq!(
        (&second.token, &second.organization),
        (&first.token, &first.organization)
    );
    assert!(!second.stdout.all().contains(&first.token), "shown once");
    // No waiting: a request right after the greeting succeeds.
    let kept = second.query(
        reference,
        "select count(*)::int as tables from pg_class where relname = 'kept'",
    );
    assert_eq!(
        kept.expect(201),
        json!([{ "tables": 1 }]),
        "{}",
        second.log()
    );
    second.healthy(reference);
    // The pasted token is accepted; the name is rejected.
    let again = paste(&machine, &second);
    assert!(
        again.expect(400)["message"]
            .as_str()
            .unwrap()
            .contains("already exists"),
        "{again:?}"
    );
    let organizations = second.get("/v1/organizations").expect(200);
    assert_eq!(organizations[0]["id"], second.organization.as_str());
    assert_eq!(
        second.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        second.log()
    );
    assert_eq!(machine.servers(), []);
}

#[test]
fn dev_restarts_crashed_project_server() {
    let machine = Machine::new();
    let gantry = machine.dev(&[]);
    let project = gantry.create("fallen");
    gantry.healthy(&project);
    gantry.kill();
    let postmaster = machine.postmaster(&format!("projects/{project}")).unwrap();
    rustix::process::kill_process(postmaster, Signal::KILL).unwrap();
    super::machine::until("the end of the server", || {
        (!super::machine::alive(postmaster)).then_some(())
    });

    let gantry = machine.dev(&[]);
    assert_eq!(
        gantry.query(&project, "select 1 as one").expect(201),
        json!([{ "one": 1 }]),
        "{}",
        gantry.log()
    );
    gantry.healthy(&project);
}

/// When the default PostgreSQL port is in use, another port is used and printed.
#[test]
fn dev_prints_reachable_database_address() {
    let machine = Machine::new();
    // The port is in use, by this test or by another process. A server of another test gives it
    // back within seconds.
    let _held = (0..100).find_map(|_| {
        let held = std::net::TcpListener::bind("127.0.0.1:5432").ok();
        if held.is_none() {
            super::crash::let_pass(100);
        }
        held
    });
    let mut gantry = machine.dev(&[]);
    let line = field(&gantry.greeting, "Databases");
    assert!(
        line.contains("5432") && line.ends_with("in use by another program)"),
        "{line}"
    );
    let address: std::net::SocketAddr = line.split(',').next().unwrap().parse().unwrap();
    let project = gantry.create("reached");
    let pooler = gantry
        .get(&format!("/v1/projects/{project}/config/database/pooler"))
        .expect(200);
    assert_eq!(pooler[0]["db_host"], "pooler.localhost");
    // That of the pooler, if it is installed.
    let published = format!("127.0.0.1:{}", pooler[0]["db_port"]);
    assert!(line.contains(&published), "{published} is not in {line}");
    let mut config = tokio_postgres::Config::new();
    config
        .host("127.0.0.1")
        .port(address.port())
        .user(format!("postgres.{project}"))
        .password(PASSWORD)
        .dbname("postgres");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = runtime.block_on(async {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.simple_query("select 1").await.unwrap();
        client
    });
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
    assert!(
        runtime.block_on(client.simple_query("select 1")).is_err(),
        "the session outlives the router"
    );
    assert_eq!(machine.servers(), [], "{}", gantry.log());
}

/// Starts a service that responds with the first line of each request.
pub(super) fn service() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{line}",
                line.len()
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

/// Returns a request to a project's service, without credentials of the machine.
pub(super) fn request(gantry: &Gantry, project: &str, path: &str) -> Command {
    let port = field(&gantry.greeting, "Services")
        .strip_prefix("https://<ref>.localhost:")
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    let authority = field(&gantry.greeting, "certificate authority:").trim_matches('\'');
    let url = format!("https://{project}.localhost:{port}{path}");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--cacert", authority, &url]);
    curl
}

/// Returns the response of a project's service.
#[track_caller]
pub(super) fn reached(gantry: &Gantry, project: &str, path: &str) -> String {
    let output = request(gantry, project, path).output().unwrap();
    assert!(output.status.success(), "{path}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn dev_serves_project_services_by_host() {
    let machine = Machine::new();
    let (all, one) = (service(), service());
    let mut gantry = machine.dev(&["--upstream", &format!("rest=http://{all}")]);
    let project = gantry.create("served");
    let curl = |path: &str| reached(&gantry, &project, path);
    assert_eq!(curl("/rest/v1/todos?a=b"), "GET /todos?a=b HTTP/1.1\r\n");
    assert!(curl("/auth/v1/").contains("The auth service of this project is not configured."));
    let set = machine.json(&[
        "upstream",
        "set",
        &project,
        &format!("auth=http://{one}/own"),
    ]);
    assert_eq!(set["before"], json!(null));
    // The change reaches the proxy by notification.
    super::machine::until("the other service", || {
        (curl("/auth/v1/x") == "GET /own/x HTTP/1.1\r\n").then_some(())
    });
    assert_eq!(
        machine.json(&["upstream", "list"]),
        json!([{ "project": project, "service": "auth", "url": format!("http://{one}/own") }])
    );
    assert_eq!(
        machine.json(&["upstream", "unset", &project, "auth"])["before"],
        json!(format!("http://{one}/own"))
    );
    let refused = machine.run(&["upstream", "set", &project, "auth=https://elsewhere"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let unknown = machine.run(&[
        "upstream",
        "set",
        &"z".repeat(20),
        "auth=http://127.0.0.1:1",
    ]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
}
