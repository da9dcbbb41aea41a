//! Receivers that hang, lie, redirect, or answer without an end, and addresses that are not
//! permitted.

use std::sync::Arc;

use gantry::{control::platform_webhooks, platform::http::Transport};
use gantry_base::net::outbound::OutboundPolicy;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use uuid::Uuid;

use super::{
    PAUSED, create, deliveries, emit, emit_project, endpoint, of_organization, of_project, pass,
    statuses, url,
};
use crate::support::{
    TestApp,
    collector::Collector,
    machine::{Machine, PATIENCE},
    settings,
};

/// A receiver that answers only when a test does.
pub(super) struct Silent(TcpListener);

/// A request to a [`Silent`] receiver.
pub(super) struct SilentRequest {
    head: String,
    stream: TcpStream,
}

impl Silent {
    pub(super) async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(super) fn url(&self) -> String {
        let port = self.0.local_addr().unwrap().port();
        format!("http://localhost:{port}/")
    }

    /// Returns the next request.
    pub(super) async fn next(&self) -> SilentRequest {
        let accepted = timeout(PATIENCE, self.0.accept()).await.unwrap();
        let (mut stream, _) = accepted.unwrap();
        let mut head = Vec::new();
        while !head.windows(4).any(|part| part == b"\r\n\r\n") {
            let mut part = [0; 4096];
            let read = stream.read(&mut part).await.unwrap();
            assert!(read > 0, "the request ended early");
            head.extend_from_slice(&part[..read]);
        }
        SilentRequest {
            head: String::from_utf8_lossy(&head).into_owned(),
            stream,
        }
    }
}

impl SilentRequest {
    pub(super) fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_else(|| panic!("no {name} in {}", self.head))
    }

    pub(super) async fn answer(mut self, answer: &str) {
        self.stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

/// Delivers one event to an endpoint that a receiver answers with these bytes.
async fn delivered(app: &TestApp, answer: &str) -> serde_json::Value {
    let silent = Silent::start().await;
    let base = of_organization(app);
    let id = create(app, &base, &silent.url(), &["*"]).await;
    emit_project(app, PAUSED, &json!({})).await;
    let serve = async { silent.next().await.answer(answer).await };
    tokio::join!(pass(&app.node), serve);
    let listed = deliveries(app, &base, id).await;
    let path = format!("{base}/endpoints/{id}");
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    listed.last().unwrap()["attributes"].clone()
}

#[tokio::test]
async fn only_complete_responses_of_2xx_are_a_success() {
    let app = TestApp::new().await;
    let big = "x".repeat(100_000);
    let big = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{big}",
        big.len()
    );
    let long_header = format!(
        "HTTP/1.1 200 OK\r\nx-a: {}\r\ncontent-length: 0\r\n\r\n",
        "y".repeat(9000)
    );
    for (answer, status, response_code, error_code) in [
        (
            "HTTP/1.1 201 -\r\nx-b: c\r\ncontent-length: 2\r\n\r\nok",
            "success",
            201,
            None,
        ),
        (
            "HTTP/1.1 200 -\r\ncontent-length: 3\r\n\r\n\0a\u{e9}",
            "success",
            200,
            None,
        ),
        // Not stored, because it is too long.
        (&*big, "success", 200, None),
        (&*long_header, "success", 200, None),
        (
            "HTTP/1.1 404 -\r\ncontent-length: 0\r\n\r\n",
            "failure",
            404,
            Some("unexpected_status"),
        ),
        (
            "HTTP/1.1 302 -\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
            "failure",
            302,
            Some("unexpected_status"),
        ),
        (
            "HTTP/1.1 200 -\r\ncontent-length: 10\r\n\r\nends",
            "failure",
            0,
            Some("connection_failed"),
        ),
        (
            "SSH-2.0-OpenSSH_10.0\r\n",
            "failure",
            0,
            Some("connection_failed"),
        ),
        ("", "failure", 0, Some("connection_failed")),
    ] {
        let delivery = delivered(&app, answer).await;
        assert_eq!(delivery["status"], status, "{answer:.60}: {delivery}");
        assert_eq!(delivery["response_code"], response_code, "{answer:.60}");
        assert_eq!(delivery["error_code"], json!(error_code), "{answer:.60}");
        assert_eq!(delivery["error_message"].is_string(), error_code.is_some());
    }
    let delivery = delivered(
        &app,
        "HTTP/1.1 201 -\r\nx-b: c\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    assert_eq!(delivery["response_body"], "ok");
    assert_eq!(delivery["response_headers"]["x-b"], "c");
    assert_eq!(delivered(&app, &big).await["response_body"], json!(null));
}

/// The body trickles, so that only the limit for the whole response ends it.
#[tokio::test]
async fn response_without_an_end_fails_after_20_seconds() {
    let app = TestApp::new().await;
    let silent = Silent::start().await;
    let base = of_organization(&app);
    let id = create(&app, &base, &silent.url(), &["*"]).await;
    emit_project(&app, PAUSED, &json!({})).await;
    let trickle = async {
        let mut request = silent.next().await;
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        request.stream.write_all(head).await.unwrap();
        let mut second = tokio::time::interval(std::time::Duration::from_secs(1));
        loop {
            second.tick().await;
            if request.stream.write_all(b"1\r\nx\r\n").await.is_err() {
                break;
            }
        }
    };
    tokio::join!(pass(&app.node), trickle);
    let delivery = &deliveries(&app, &base, id).await;
    let failed = &delivery.last().unwrap()["attributes"];
    assert_eq!(failed["status"], "failure");
    assert_eq!(failed["error_code"], "timeout");
}

#[tokio::test]
async fn deleted_endpoint_has_no_deliveries_and_its_attempt_is_not_recorded() {
    let app = TestApp::new().await;
    let silent = Silent::start().await;
    let base = of_project(&app);
    let id = create(&app, &base, &silent.url(), &["*"]).await;
    emit_project(&app, PAUSED, &json!({})).await;
    emit_project(&app, PAUSED, &json!({})).await;
    let control = app.app.control.clone();
    let running = tokio::spawn(async move { platform_webhooks::pass(&control).await });
    let request = silent.next().await;
    let path = format!("{base}/endpoints");
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    request
        .answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await;
    running.await.unwrap().unwrap();
    let sql =
        "select (select count(*) from webhook_deliveries), (select count(*) from webhook_events)";
    let row = &app.app.db.query(sql, &[]).await.unwrap()[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 0));
    let path = format!("{base}/endpoints/{id}/deliveries");
    app.get(&path).as_(&app.owner).send().await.expect(404);
}

#[tokio::test]
async fn endpoints_that_do_not_answer_do_not_delay_others() {
    let app = TestApp::new().await;
    let silent = Silent::start().await;
    let collector = Collector::start().await;
    // More than there are places for endpoints that have not answered yet.
    let mut tenants = Vec::new();
    for number in 0..3 {
        tenants.push(app.tenant(&format!("dead {number}"), &app.owner).await);
    }
    for tenant in &tenants {
        let base = format!("/v2/organizations/{}/webhooks", tenant.slug);
        for _ in 0..20 {
            create(&app, &base, &silent.url(), &["*"]).await;
        }
    }
    let base = of_organization(&app);
    let id = create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    emit_project(&app, PAUSED, &json!({"number": 0})).await;
    pass(&app.node).await;
    assert_eq!(statuses(&app, &base, id).await, ["success"]);
    for tenant in &tenants {
        emit(&app, tenant.id, PAUSED, Some(&tenant.project), &json!({})).await;
    }
    let control = app.app.control.clone();
    let dead = tokio::spawn(async move { platform_webhooks::run(control).await });
    let mut held = Vec::new();
    // An organization has eight places.
    for _ in 0..24 {
        held.push(silent.next().await);
    }
    emit_project(&app, PAUSED, &json!({"number": 1})).await;
    app.app.platform_webhooks.wake();
    collector.until(|sent| sent.len() == 2).await;
    let sql = "select count(*), count(*) filter (where claim is not null) from webhook_endpoints \
               where due_at is not null and not proven";
    let row = &app.app.db.query(sql, &[]).await.unwrap()[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (60, 24));
    dead.abort();
}

#[tokio::test]
async fn address_is_checked_again_at_each_connection() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_organization(&app);
    // The name resolved to a permitted address when the endpoint was created.
    let id = create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    let mut strict = settings(Transport::default(), Uuid::from_u128(2));
    strict.outbound = OutboundPolicy::default();
    let other = app.another_with(strict, Arc::new(Machine::bare()));
    emit_project(&app, PAUSED, &json!({})).await;
    pass(&other).await;
    assert_eq!(collector.collected().len(), 0);
    let listed = deliveries(&app, &base, id).await;
    let failed = &listed.last().unwrap()["attributes"];
    assert_eq!(failed["error_code"], "address_refused");
    let path = format!("{base}/endpoints");
    let body = endpoint(&url(&collector, "/x"), &["*"]);
    let answer = other.post(&path).as_(&app.owner).json(&body).send().await;
    let code = &answer.expect(400).json()["error"]["code"];
    assert_eq!(*code, "endpoint_url_unresolvable");
}
