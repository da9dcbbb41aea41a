//! The outgoing client against local servers.

use std::time::Duration;

use bytes::Bytes;
use gantry::platform::outbound::{
    BodyUse, OutboundError, OutboundUse, UrlOwner, uses::SAML_METADATA,
};
use gantry_base::ids::{OrganizationId, ProjectId};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};

use crate::support::TestApp;

/// A use that is counted as another.
const BOUNDED: OutboundUse = OutboundUse {
    name: SAML_METADATA.name,
    timeout: Duration::from_secs(2),
    body: BodyUse::Returned(1000),
    redirects_max: 0,
    http2: false,
};

/// A server that answers each connection with the bytes of a path, and then keeps it open.
struct Server {
    port: u16,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                connections.spawn(async move {
                    let mut head = vec![0; 4000];
                    let read = stream.read(&mut head).await.unwrap();
                    let head = String::from_utf8_lossy(&head[..read]).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    // The client may end the connection at its bound.
                    let _ = stream.write_all(&answer(&path)).await;
                    let _ = stream.read(&mut [0]).await;
                });
            }
        });
        Self {
            port,
            _tasks: tasks,
        }
    }
}

fn answer(path: &str) -> Vec<u8> {
    let complete = |head: &str, body: &[u8]| {
        let length = body.len();
        let mut all =
            format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
                .into_bytes();
        all.extend(body);
        all
    };
    match path {
        "/ok" => complete("200 OK", b"hello"),
        "/error" => complete("503 -", b""),
        "/moved" => complete("302 -\r\nlocation: http://169.254.169.254/", b""),
        "/long" => complete("200 OK", &[b'a'; 1001]),
        // 1 MB of zeros, compressed twice, would be 1 MB again.
        "/compressed" => complete("200 OK\r\ncontent-encoding: gzip", &[0x1f, 0x8b, 8, 0]),
        "/slow" => b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_vec(),
        "/head" => {
            let fields = "x-a: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";
            let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
            head.extend(fields.repeat(100_000).into_bytes());
            head
        }
        _ => Vec::new(),
    }
}

async fn send(app: &TestApp, owner: UrlOwner, url: &str) -> Result<(u16, Bytes), OutboundError> {
    let request = Request::get(url).body(Full::default()).unwrap();
    let sent = app.app.outbound.send(&BOUNDED, owner, request).await?;
    Ok((sent.status.as_u16(), sent.body))
}

async fn ids(app: &TestApp) -> (ProjectId, OrganizationId) {
    let sql = "select id, organization_id from projects where ref = $1";
    let reference = app.home.project.as_str();
    let rows = app.app.db.query(sql, &[&reference]).await.unwrap();
    (ProjectId(rows[0].get(0)), OrganizationId(rows[0].get(1)))
}

#[tokio::test]
async fn responses_are_bounded_in_head_body_and_time_and_counted() {
    let (app, server) = (TestApp::new().await, Server::start().await);
    let owner = UrlOwner::Project(ids(&app).await.0);
    let at = |path: &str| format!("http://127.0.0.1:{}{path}", server.port);
    let outcome = async |path: &str| send(&app, owner, &at(path)).await;
    assert_eq!(outcome("/ok").await.unwrap(), (200, "hello".into()));
    assert_eq!(outcome("/error").await.unwrap().0, 503);
    assert_eq!(outcome("/moved").await.unwrap().0, 302, "not followed");
    // A body that claims to be compressed is returned as received.
    assert_eq!(outcome("/compressed").await.unwrap().1.len(), 4);
    let long = outcome("/long").await.unwrap_err();
    assert!(matches!(long, OutboundError::TooLong(1000)), "{long}");
    let head = outcome("/head").await.unwrap_err();
    assert!(matches!(head, OutboundError::Broken), "{head}");
    for path in ["/slow", "/silent"] {
        let slow = outcome(path).await.unwrap_err();
        assert!(matches!(slow, OutboundError::TimedOut), "{path}: {slow}");
    }
    let refused = send(&app, owner, "http://169.254.169.254/latest").await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, OutboundError::Refused(_)), "{refused}");
    let metrics = app.app.metrics.render();
    for (outcome, count) in [
        ("success", 3),
        ("error_status", 1),
        ("refused", 1),
        ("timed_out", 2),
        ("failed", 2),
    ] {
        let line = format!(
            "gantry_outbound_requests_total{{use=\"saml_metadata\",outcome=\"{outcome}\"}} {count}"
        );
        assert!(metrics.contains(&line), "{line}");
    }
}

#[tokio::test]
async fn host_must_be_in_the_lists_of_project_and_organization() {
    let (app, server) = (TestApp::new().await, Server::start().await);
    let (project, organization) = ids(&app).await;
    let url = format!("http://127.0.0.1:{}/ok", server.port);
    let of_project = app.at("/outbound-hosts");
    let of_organization = format!("/v1/organizations/{}/outbound-hosts", app.home.slug);
    let put = async |path: &str, hosts: Value| {
        let request = app.request("PUT", path).as_(&app.owner);
        let request = request.json(&json!({ "allowed_hosts": hosts }));
        request.send().await.expect(200);
    };
    // Each change applies to the next request.
    for (own, common, of_project_sent, of_organization_sent) in [
        (json!(null), json!(null), true, true),
        (json!(["*.example.com"]), json!(null), false, true),
        (json!(["127.0.0.1"]), json!(null), true, true),
        (json!(["127.0.0.1"]), json!(["127.0.0.2"]), false, false),
        (json!(null), json!(["127.0.0.1"]), true, true),
        (json!([]), json!(["127.0.0.1"]), false, true),
    ] {
        put(&of_project, own).await;
        put(&of_organization, common).await;
        for (owner, expected) in [
            (UrlOwner::Project(project), of_project_sent),
            (UrlOwner::Organization(organization), of_organization_sent),
        ] {
            let sent = send(&app, owner, &url).await;
            assert_eq!(sent.is_ok(), expected, "{owner:?}: {sent:?}");
        }
    }
    let error = send(&app, UrlOwner::Project(project), &url).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("127.0.0.1 is not among the hosts"),
        "{error}"
    );
}
