//! Calls that databases make with `pg_net`, on real clusters with a local receiver.

mod faults;
mod limits;
mod log;
mod receiver;

use std::{sync::Arc, time::Duration};

use gantry::{
    app::Settings,
    control::projects::{Status, idle},
    platform::http::Transport,
    proxy::service_proxy::{self, upstreams::ServiceUpstream},
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use self::receiver::Receiver;
use crate::{
    edge::Gate,
    support::{Node, TestApp, machine::Machine, settings},
};

/// A node with one project that has the extension, and a receiver of its calls.
struct Caller {
    app: TestApp,
    node: Node,
    project: ProjectRef,
    receiver: Receiver,
    database: Client,
}

/// Returns settings of a node that permit calls to the receiver.
fn permitting(receiver: &Receiver) -> Settings {
    let mut settings = settings(Transport::default(), Uuid::from_u128(2));
    let port = receiver.address.port();
    settings.services.egress = format!("80,{port}").parse().unwrap();
    settings
}

impl Caller {
    async fn new() -> Self {
        Self::with(|settings, _| settings).await
    }

    async fn with(change: impl FnOnce(Settings, &Receiver) -> Settings) -> Self {
        let app = TestApp::new().await;
        let receiver = Receiver::start().await;
        let settings = change(permitting(&receiver), &receiver);
        let mut node = app.another_with(settings, Arc::new(Machine::new().await));
        node.start();
        let (project, database) = project(&app, &node, "caller").await;
        Self {
            app,
            node,
            project,
            receiver,
            database,
        }
    }

    /// Returns the only value of the only row, as text.
    async fn text(&self, sql: &str) -> String {
        text(&self.database, sql).await
    }

    /// Makes a call and returns the row of its response, when it is there.
    async fn response(&self, call: &str) -> Value {
        response(&self.database, call).await
    }
}

/// Creates a project with the extension.
async fn project(app: &TestApp, node: &Node, name: &str) -> (ProjectRef, Client) {
    let project = app.create_project_on(node, name).await;
    node.until(&project, Status::ActiveHealthy).await;
    let database = node.machine.connect(&project, "postgres").await.unwrap();
    database
        .batch_execute("create extension pg_net with schema extensions")
        .await
        .unwrap();
    node.app.database_calls.wake();
    (project, database)
}

async fn text(database: &Client, sql: &str) -> String {
    let row = database.query_one(sql, &[]).await;
    row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0)
}

async fn response(database: &Client, call: &str) -> Value {
    let id = text(database, &format!("select {call}::text")).await;
    // Waits in the database until the response is committed.
    let awaited = format!("select net._await_response({id})::text");
    assert_eq!(text(database, &awaited).await, "true", "{call}");
    let row = format!(
        "select row_to_json(r)::text from (select status_code, content_type, content, timed_out, \
         error_msg, headers from net._http_response where id = {id}) r"
    );
    serde_json::from_str(&text(database, &row).await).unwrap()
}

#[tokio::test]
async fn call_is_sent_and_its_response_stored() {
    let caller = Caller::new().await;
    let url = caller.receiver.url("/echo");
    let post = format!(
        "net.http_post('{url}', '{{\"a\": 1}}', headers := '{{\"X-A\": \"1\", \"Authorization\": \"Bearer t\"}}')"
    );
    let row = caller.response(&post).await;
    assert_eq!(row["status_code"], 201, "{row}");
    assert_eq!(row["content_type"], "text/plain");
    assert_eq!(row["content"], "noted");
    assert_eq!(row["headers"]["x-b"], "2");
    assert_eq!(
        (&row["timed_out"], &row["error_msg"]),
        (&json!(false), &json!(null))
    );
    let call = &caller.receiver.until("/echo", 1).await[0];
    assert_eq!(
        (call.method.as_str(), &call.body[..]),
        ("POST", &b"{\"a\": 1}"[..])
    );
    for (name, value) in [
        ("x-a", "1"),
        ("authorization", "Bearer t"),
        ("content-type", "application/json"),
        ("user-agent", "pg_net/0.19.5"),
    ] {
        assert_eq!(call.headers[name], value, "{name}");
    }
    let url = caller.receiver.url("/other");
    caller.response(&format!("net.http_get('{url}')")).await;
    let delete = format!("net.http_delete('{url}', body := '[2]')");
    caller.response(&delete).await;
    let calls = caller.receiver.until("/other", 2).await;
    let methods: Vec<_> = calls.iter().map(|call| call.method.as_str()).collect();
    assert_eq!(methods, ["GET", "DELETE"]);
    assert_eq!(calls[1].body, "[2]");
    for (sql, expected) in [
        ("select count(*)::text from net.http_request_queue", "0"),
        (
            "select (net.http_collect_response(1)).status::text",
            "SUCCESS",
        ),
        ("select coalesce(net.check_worker_is_up()::text, '')", ""),
    ] {
        assert_eq!(caller.text(sql).await, expected, "{sql}");
    }
    let metrics = caller.node.app.metrics.render();
    let counted = "gantry_database_calls_total{result=\"answered\"} 3";
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn call_without_a_response_stores_the_reason() {
    let caller = Caller::new().await;
    let receiver = &caller.receiver;
    for (url, headers, expected) in [
        (receiver.url("/slow"), "{}", "Timeout of 300 ms reached"),
        (receiver.url("/large"), "{}", "more than 1048576 bytes"),
        (
            "http://10.0.0.1/".to_owned(),
            "{}",
            "10.0.0.1 is not a public address",
        ),
        (
            receiver.url("/away"),
            "{}",
            "10.0.0.1 is not a public address",
        ),
        (
            "http://127.0.0.1:9/".to_owned(),
            "{}",
            "permits no calls to port 9",
        ),
        ("http://127.0.0.1/".to_owned(), "{}", "cannot be reached"),
        (
            receiver.url("/no"),
            r#"{"a b": "secret"}"#,
            "\"a b\" is not valid",
        ),
        ("http://a b/".to_owned(), "{}", "the URL is invalid"),
    ] {
        let call =
            format!("net.http_get('{url}', headers := '{headers}', timeout_milliseconds := 300)");
        let row = caller.response(&call).await;
        let error = row["error_msg"].as_str().unwrap();
        assert!(error.contains(expected), "{url}: {error}");
        assert_eq!(row["status_code"], json!(null), "{url}");
        assert_eq!(row["timed_out"], expected.contains("Timeout"), "{url}");
    }
    assert_eq!(receiver.count("/no"), 0);
    // As the original, a redirect is followed; a POST becomes a GET.
    let url = receiver.url("/moved");
    let row = caller.response(&format!("net.http_post('{url}')")).await;
    assert_eq!(row["status_code"], 201);
    assert_eq!(receiver.until("/echo", 1).await[0].method, "GET");
}

#[tokio::test]
async fn webhook_and_job_call() {
    let caller = Caller::new().await;
    let enable = format!("/v1/projects/{}/database/webhooks/enable", caller.project);
    let enabled = caller.node.post(&enable).as_(&caller.app.owner);
    enabled.send().await.expect(201);
    let hook = format!(
        "create table orders (id int);
         create trigger told after insert on orders for each row execute function
             supabase_functions.http_request('{}', 'POST', '{{\"X-A\": \"1\"}}', '{{}}', '5000');
         insert into orders values (7)",
        caller.receiver.url("/hook")
    );
    caller.database.batch_execute(&hook).await.unwrap();
    let call = &caller.receiver.until("/hook", 1).await[0];
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!(body["record"], json!({"id": 7}));
    assert_eq!(call.headers["x-a"], "1");
    let due = "select hook_name || (request_id is not null)::text from supabase_functions.hooks";
    assert_eq!(caller.text(due).await, "toldtrue");
    let has_jobs = "select count(*)::text from pg_available_extensions where name = 'pg_cron'
        and default_version >= '1.5'";
    if caller.text(has_jobs).await == "0" {
        return crate::support::note_skipped("no pg_cron 1.5");
    }
    let job = format!(
        "create extension pg_cron; select cron.schedule('1 second', $$select net.http_get('{}')$$)",
        caller.receiver.url("/job")
    );
    caller.database.batch_execute(&job).await.unwrap();
    caller.receiver.until("/job", 1).await;
}

#[tokio::test]
async fn call_to_the_own_host_goes_inside_with_its_key_checked() {
    let caller = Caller::with(|settings, receiver| {
        let rest = format!("rest=http://{}/base", receiver.address);
        let rest: ServiceUpstream = rest.parse().unwrap();
        let service_proxy = service_proxy::Options {
            upstreams: [rest].into_iter().collect(),
            check_keys: true,
            ..settings.service_proxy.clone()
        };
        Settings {
            service_proxy,
            ..settings
        }
    });
    let Caller {
        app,
        node,
        project,
        receiver,
        database,
    } = caller.await;
    let gate = Gate::of(app, node, project.clone()).await;
    let keys = gate
        .node
        .get(&format!("/v1/projects/{project}/api-keys?reveal=true"))
        .as_(&gate.app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let key = keys[0]["api_key"].as_str().unwrap();
    // The listener of `gantry dev` is not at the port of HTTPS.
    let url = format!("https://{project}.example.test:8443/rest/v1/todos?a=1");
    let call = |headers: &str| format!("net.http_get('{url}', headers := '{headers}')");
    let without = response(&database, &call("{}")).await;
    assert_eq!(without["status_code"], 401, "{without}");
    let with = response(&database, &call(&format!("{{\"apikey\": \"{key}\"}}"))).await;
    assert_eq!(with["status_code"], 201, "{with}");
    let seen = &receiver.until("/base/todos?a=1", 1).await[0];
    assert_eq!(
        seen.headers["x-forwarded-host"],
        format!("{project}.example.test")
    );
    // Another project is reached from outside only.
    let other = "https://aaaaaaaaaaaaaaaaaaaa.example.test/rest/v1/todos";
    let other = response(&database, &format!("net.http_get('{other}')")).await;
    assert_eq!(other["status_code"], json!(null), "{other}");
}

#[tokio::test]
async fn idle_server_with_the_extension_sleeps_after_its_calls() {
    const AFTER: Duration = Duration::from_mins(10);
    let caller = Caller::with(|settings, _| Settings {
        idle_pause_after: Some(AFTER),
        ..settings
    });
    let Caller {
        app,
        node,
        project,
        receiver,
        database,
    } = caller.await;
    response(
        &database,
        &format!("net.http_get('{}')", receiver.url("/echo")),
    )
    .await;
    let slow = format!(
        "select net.http_get('{}', timeout_milliseconds := 60000)::text",
        receiver.url("/slow")
    );
    text(&database, &slow).await;
    receiver.until("/slow", 1).await;
    drop(database);
    let asleep = async || -> bool {
        let sql = "select asleep from projects where ref = $1";
        node.app.db.query(sql, &[&project.as_str()]).await.unwrap()[0].get(0)
    };
    app.advance(601);
    idle::stop_idle(&node.app).await.unwrap();
    assert!(!asleep().await, "a call is in flight");
    receiver.release();
    // The session of the sender alone does not keep the server awake.
    while !asleep().await {
        app.advance(601);
        idle::stop_idle(&node.app).await.unwrap();
    }
}
