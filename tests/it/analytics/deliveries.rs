//! Deliveries of log drains to local targets: protocols, retries, positions and health.

use std::{collections::BTreeSet, io::Read, sync::Arc};

use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::read::GzDecoder;
use gantry::{api::log_drains, platform::http::Transport};
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt,
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};
use uuid::Uuid;

use super::{
    drains::{body, drains},
    ingest,
};
use crate::support::{
    Node, TestApp,
    collector::{Collected, Collector},
    dawn,
    machine::{Machine, PATIENCE},
    s3::Objects,
    settings,
};

/// An application that delivers, without its other background tasks.
struct DrainApp {
    app: TestApp,
    key: String,
    tasks: JoinSet<()>,
}

impl DrainApp {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let (key, _) = ingest::key(&app, "tests").await;
        let mut drained = Self {
            app,
            key,
            tasks: JoinSet::new(),
        };
        drained.deliver();
        drained
    }

    /// Starts the deliveries.
    fn deliver(&mut self) {
        let context = self.app.app.context.clone();
        self.tasks.spawn(log_drains::run(context));
    }

    /// Creates a drain and returns its id.
    async fn create(&self, kind: &str, config: Value) -> String {
        create_on(&self.app, &self.app, kind, config).await
    }

    /// Adds lines. They are acknowledged on return.
    async fn append(&self, messages: &[&str]) {
        append_on(&self.app, &self.key, messages).await;
    }

    /// Waits until the health of the first drain fulfils a condition, and returns it.
    async fn health(&self, fulfilled: impl Fn(&Value) -> bool) -> Value {
        health_on(&self.app, &self.app, fulfilled).await
    }
}

/// Waits until the health of the first drain fulfils a condition, and returns it.
pub(super) async fn health_on(
    node: &Node,
    app: &TestApp,
    fulfilled: impl Fn(&Value) -> bool,
) -> Value {
    let path = app.at("/analytics/log-drains/health");
    let waiting = async {
        loop {
            let request = node.get(&path).as_(&app.developer);
            let health = request.send().await.expect(200).json()[0].clone();
            if fulfilled(&health) {
                return health;
            }
            // Progress is a row, and nothing announces it.
            sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap()
}

pub(super) async fn create_on(node: &Node, app: &TestApp, kind: &str, config: Value) -> String {
    let drain = json!({ "name": kind, "backend_type": kind, "config": config });
    let created = node
        .post(&drains(app))
        .as_(&app.administrator)
        .json(&body(&drain))
        .send()
        .await
        .expect(201);
    node.app.drains.wake();
    created.json()["data"]["id"].as_str().unwrap().to_owned()
}

pub(super) async fn append_on(node: &Node, key: &str, messages: &[&str]) {
    let line = |message: &&str| {
        json!({
            "event_message": message, "timestamp": dawn(), "id": message,
            "metadata": { "level": "error", "request": { "path": "/x" } },
        })
    };
    let lines: Vec<Value> = messages.iter().map(line).collect();
    node.post("/api/logs?source_name=auth_logs")
        .header("x-api-key", key)
        .json(&Value::from(lines))
        .send()
        .await
        .expect(200);
}

/// The messages of all lines of webhook requests.
pub(super) fn messages(collected: &[Collected]) -> Vec<String> {
    let mut all = Vec::new();
    for request in collected {
        for line in request.json().as_array().unwrap() {
            all.push(line["event_message"].as_str().unwrap().to_owned());
        }
    }
    all
}

pub(super) fn numbered(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("line-{n:04}")).collect()
}

pub(super) fn texts(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn webhook_drain_posts_signed_compressed_batches_in_order() {
    let app = DrainApp::new().await;
    let collector = Collector::start().await;
    app.append(&["before the drain"]).await;
    let config = json!({
        "url": collector.url("/in?a=b"),
        "gzip": true,
        "headers": { "authorization": "Bearer abc", "webhook-secret": "whsec_aHVzaA==" },
    });
    app.create("webhook", config).await;
    let sent = numbered(0..600);
    app.append(&texts(&sent)).await;
    let collected = collector
        .until(|requests| messages(requests).len() == 600)
        .await;
    assert_eq!(messages(&collected), sent);
    assert_eq!(collected.len(), 3, "at most 250 lines each");
    for request in &collected {
        assert_eq!(request.path, "/in?a=b");
        assert_eq!(request.header("authorization"), "Bearer abc");
        assert_eq!(request.header("content-encoding"), "gzip");
        assert!(request.headers.get("webhook-secret").is_none());
        let signed = [
            request.header("webhook-id").as_bytes(),
            b".",
            request.header("webhook-timestamp").as_bytes(),
            b".",
            &request.raw,
        ]
        .concat();
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"hush"), &signed);
        let expected = format!("v1,{}", BASE64_STANDARD.encode(tag));
        assert_eq!(request.header("webhook-signature"), expected);
    }
    let line = &collected[0].json()[0];
    assert_eq!(
        *line,
        json!({
            "id": "line-0000", "timestamp": dawn().timestamp_micros(), "event_message": "line-0000",
            "source": "auth_logs", "severity": "ERROR", "project": app.app.home.project,
            "metadata": { "level": "error", "request": { "path": "/x" } },
        })
    );
    let health = app.health(|health| health["delivered"] == 600).await;
    assert_eq!(
        (&health["state"], &health["lag"], &health["dropped"]),
        (&json!("healthy"), &json!(0), &json!(0))
    );
    let metrics = app.app.app.metrics.render();
    let counted = r#"gantry_log_drain_lines_total{type="webhook",outcome="delivered"} 600"#;
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn loki_otlp_and_datadog_drains_send_the_format_of_their_target() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let mut options = settings(Transport::default(), Uuid::from_u128(2));
    options.log_drains.datadog_url = Some(collector.url("/datadog/{region}"));
    let node = app.another_with(options, Arc::new(Machine::bare()));
    let (key, _) = ingest::key(&app, "tests").await;
    let mut tasks = JoinSet::new();
    tasks.spawn(log_drains::run(node.app.context.clone()));
    let url = |path: &str| collector.url(path);
    for (kind, config) in [
        (
            "loki",
            json!({ "url": url(""), "username": "ada", "password": "pw" }),
        ),
        (
            "otlp",
            json!({ "endpoint": url("/otlp"), "protocol": "http/json", "headers": { "x-key": "k" } }),
        ),
        ("otlp", json!({ "endpoint": url(""), "gzip": false })),
        ("datadog", json!({ "api_key": "dd", "region": "EU" })),
    ] {
        create_on(&node, &app, kind, config).await;
    }
    append_on(&node, &key, &["m"]).await;
    let collected = collector.until(|requests| requests.len() == 4).await;
    let at = |path: &str| collected.iter().find(|it| it.path == path).unwrap();
    let nanos = dawn().timestamp_nanos_opt().unwrap().to_string();
    let project = app.home.project.as_str();

    let loki = at("/loki/api/v1/push");
    assert_eq!(loki.header("authorization"), "Basic YWRhOnB3");
    let metadata =
        json!({ "id": "m", "severity": "ERROR", "level": "error", "request_path": "/x" });
    assert_eq!(
        loki.json(),
        json!({ "streams": [{
            "stream": { "source": "auth_logs", "project": project },
            "values": [[nanos, "m", metadata]],
        }] })
    );

    let otlp = at("/otlp");
    assert_eq!(otlp.header("x-key"), "k");
    let resource = &otlp.json()["resourceLogs"][0];
    let service = &resource["resource"]["attributes"][0]["value"]["stringValue"];
    let record = &resource["scopeLogs"][0]["logRecords"][0];
    assert_eq!(
        (service, &record["timeUnixNano"]),
        (&json!("auth_logs"), &json!(nanos))
    );
    assert_eq!(record["body"], json!({ "stringValue": "m" }));
    let protobuf = at("/v1/logs");
    assert_eq!(protobuf.header("content-type"), "application/x-protobuf");
    let contains = |text: &str| {
        let body = protobuf.body.windows(text.len());
        body.into_iter().any(|part| part == text.as_bytes())
    };
    assert!(contains("auth_logs") && contains(project));

    let datadog = at("/datadog/EU");
    assert_eq!(datadog.header("dd-api-key"), "dd");
    let line = &datadog.json()[0];
    assert_eq!(
        (
            &line["service"],
            &line["ddsource"],
            &line["status"],
            &line["message"]
        ),
        (
            &json!("auth_logs"),
            &json!("Supabase"),
            &json!("error"),
            &json!("m")
        )
    );
}

#[tokio::test]
async fn s3_drain_writes_compressed_objects() {
    let app = DrainApp::new().await;
    let objects = Objects::start().await;
    let (endpoint, bucket, region, (id, secret)) = objects.permanent_key();
    let config = json!({
        "s3_bucket": bucket, "storage_region": region, "access_key_id": id,
        "secret_access_key": secret, "endpoint": endpoint, "batch_timeout": 100,
    });
    app.create("s3", config).await;
    let sent = numbered(0..400);
    app.append(&texts(&sent)).await;
    app.health(|health| health["delivered"] == 400).await;
    let mut lines = Vec::new();
    for key in objects.keys() {
        let folder = format!("{}/2026-11-21/09/", app.app.home.project);
        assert!(
            key.starts_with(&folder) && key.ends_with(".ndjson.gz"),
            "{key}"
        );
        let mut text = String::new();
        GzDecoder::new(&objects.content(&key)[..])
            .read_to_string(&mut text)
            .unwrap();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            lines.push(line["event_message"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(lines, sent);
    objects.refuse_writes();
    app.append(&["refused"]).await;
    let failing = app.health(|health| health["state"] == "failing").await;
    assert_eq!(
        failing["error"],
        "the object store rejects the access key; check it and its permissions"
    );
}

#[tokio::test]
async fn syslog_drain_sends_octet_counted_messages() {
    let app = DrainApp::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = json!({ "host": "127.0.0.1", "port": port, "tls": false });
    app.create("syslog", config).await;
    app.append(&["one", "two"]).await;
    let (mut stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    drop(stream);
    let mut rest = text.as_str();
    let mut found = Vec::new();
    while let Some((count, after)) = rest.split_once(' ') {
        let (message, next) = after.split_at(count.parse().unwrap());
        let head = format!(
            "<131>1 2026-11-21T09:15:03.000000Z {} auth_logs - - - ",
            app.app.home.project
        );
        let line: Value = serde_json::from_str(message.strip_prefix(&head).unwrap()).unwrap();
        found.push(line["event_message"].as_str().unwrap().to_owned());
        rest = next;
    }
    assert_eq!(found, ["one", "two"]);
    app.health(|health| health["delivered"] == 2).await;
}

#[tokio::test]
async fn unavailable_target_gets_every_line_after_it_returns() {
    let app = DrainApp::new().await;
    let collector = Collector::start().await;
    app.create("webhook", json!({ "url": collector.url("/") }))
        .await;
    app.append(&["first"]).await;
    collector.until(|requests| requests.len() == 1).await;
    collector.away(true);
    app.append(&["second", "third"]).await;
    collector.until_rejected(1).await;
    let failing = app.health(|health| health["state"] == "failing").await;
    assert_eq!(failing["lag"], 2);
    assert!(failing["failing_since"].is_string());
    collector.away(false);
    collector.answer([500, 401]);
    let collected = collector
        .until(|requests| messages(requests).len() == 3)
        .await;
    assert_eq!(messages(&collected), ["first", "second", "third"]);
    let health = app.health(|health| health["state"] == "healthy").await;
    assert_eq!(
        (&health["error"], &health["lag"]),
        (&Value::Null, &json!(0))
    );
}

#[tokio::test]
async fn rejected_line_is_isolated_dropped_and_counted() {
    let app = DrainApp::new().await;
    let collector = Collector::start().await;
    collector.judge(|body| {
        if body.windows(6).any(|part| part == b"poison") {
            400
        } else {
            200
        }
    });
    app.create("webhook", json!({ "url": collector.url("/") }))
        .await;
    app.append(&["a", "b", "poison", "c", "d"]).await;
    let collected = collector
        .until(|requests| messages(requests).contains(&"d".to_owned()))
        .await;
    let delivered: BTreeSet<_> = messages(&collected).into_iter().collect();
    assert_eq!(delivered, ["a", "b", "c", "d"].map(str::to_owned).into());
    let health = app.health(|health| health["lag"] == 0).await;
    assert_eq!(
        (&health["delivered"], &health["dropped"]),
        (&json!(4), &json!(1))
    );
}

#[tokio::test]
async fn deliveries_continue_after_restart_and_change_of_settings() {
    let mut app = DrainApp::new().await;
    let collector = Collector::start().await;
    let id = app
        .create("webhook", json!({ "url": collector.url("/one") }))
        .await;
    app.append(&["a"]).await;
    app.health(|health| health["delivered"] == 1).await;
    app.tasks.shutdown().await;
    app.append(&["b", "c"]).await;
    app.deliver();
    collector
        .until(|requests| messages(requests).len() == 3)
        .await;
    app.health(|health| health["delivered"] == 3).await;
    let change = json!({ "backend_type": "webhook", "config": { "url": collector.url("/two") } });
    app.app
        .request("PUT", &format!("{}/{id}", drains(&app.app)))
        .as_(&app.app.administrator)
        .json(&body(&change))
        .send()
        .await
        .expect(200);
    app.app.app.drains.wake();
    app.append(&["d"]).await;
    let collected = collector
        .until(|requests| messages(requests).len() == 4)
        .await;
    assert_eq!(messages(&collected), ["a", "b", "c", "d"]);
    let at = format!("{}/{id}", drains(&app.app));
    app.app
        .delete(&at)
        .as_(&app.app.administrator)
        .send()
        .await
        .expect(204);
    app.app.app.drains.wake();
}

#[tokio::test]
async fn error_of_a_drain_does_not_repeat_the_response_or_secrets() {
    let app = DrainApp::new().await;
    let collector = Collector::start().await;
    collector.judge(|_| 401);
    let config = json!({
        "url": collector.url("/?token=hush"),
        "headers": { "authorization": "Bearer hush" },
    });
    app.create("webhook", config).await;
    app.append(&["a"]).await;
    let failing = app.health(|health| health["state"] == "failing").await;
    assert_eq!(
        failing["error"],
        "the target answered 401 Unauthorized; check the credentials"
    );
}
