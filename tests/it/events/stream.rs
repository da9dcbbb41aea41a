//! Server-Sent Events.

use bytes::Bytes;
use gantry::platform::http::Body;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::timeout;

use super::cursor::{listen, until_waiting};
use crate::support::{Actor, Node, TestApp, client::Call, machine::PATIENCE};

fn ask(node: &Node, app: &TestApp, who: &Actor, query: &str) -> Call {
    let path = format!("/v1/organizations/{}/events{query}", app.home.slug);
    node.get(&path)
        .as_(who)
        .header("accept", "text/event-stream")
}

/// A stream and the events that were received over it.
struct Stream {
    body: Body,
    text: String,
    /// Numbers of the blocks with data.
    seen: Vec<i64>,
    /// The last id, which `EventSource` would send.
    last_id: String,
}

impl Stream {
    async fn open(call: Call) -> Self {
        let (status, headers, body) = call.open().await;
        assert_eq!(status, 200);
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["cache-control"], "no-store");
        Self {
            body,
            text: String::new(),
            seen: Vec::new(),
            last_id: String::new(),
        }
    }

    /// Reads the next part. Returns `false` at the end of the stream.
    async fn more(&mut self) -> bool {
        let frame = timeout(PATIENCE, self.body.frame())
            .await
            .expect("nothing was sent");
        let Some(frame) = frame else {
            return false;
        };
        let data: Bytes = frame.unwrap().into_data().unwrap();
        self.text.push_str(std::str::from_utf8(&data).unwrap());
        while let Some((block, rest)) = self.text.split_once("\n\n") {
            for line in block.lines() {
                if let Some(id) = line.strip_prefix("id: ") {
                    id.clone_into(&mut self.last_id);
                } else if let Some(data) = line.strip_prefix("data: ") {
                    let event: Value = serde_json::from_str(data).unwrap();
                    assert_eq!(event["number"].to_string(), self.last_id);
                    self.seen.push(event["number"].as_i64().unwrap());
                } else {
                    assert!(line.starts_with(':'), "{line}");
                }
            }
            self.text = rest.to_owned();
        }
        true
    }

    async fn until(&mut self, count: usize) {
        while self.seen.len() < count {
            assert!(self.more().await, "the stream ended after {:?}", self.seen);
        }
    }
}

#[tokio::test]
async fn stream_resumes_on_another_node_without_loss_or_repetition() {
    let app = TestApp::new().await;
    let other = app.another(2, app.machine.clone());
    let _tasks = (listen(&app.node), listen(&other));
    app.create_project("a").await;
    let mut stream = Stream::open(ask(&app.node, &app, &app.owner, "")).await;
    stream.until(1).await;
    app.create_project("b").await;
    app.create_project("c").await;
    stream.until(3).await;
    let (mut seen, last) = (stream.seen.clone(), stream.last_id.clone());
    drop(stream);
    until_waiting(&app.node, 0).await;
    app.create_project("d").await;
    let resumed = ask(&other, &app, &app.owner, "").header("last-event-id", &last);
    let mut stream = Stream::open(resumed).await;
    stream.until(1).await;
    app.create_project("e").await;
    stream.until(2).await;
    seen.extend(&stream.seen);
    assert_eq!(seen, [1, 2, 3, 4, 5]);
}

/// More events than one read has are sent without another one.
#[tokio::test]
async fn stream_sends_all_earlier_events_at_once() {
    use gantry::platform::events::{self, EventPayload, payloads::ProjectRestarted};
    let app = TestApp::new().await;
    let mut client = app.app.db.client().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let new = vec![ProjectRestarted {}.about_organization(app.home.id); 250];
    let now = app.clock.now();
    events::append(&transaction, &new, None, &app.app.entropy, now)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let mut stream = Stream::open(ask(&app.node, &app, &app.owner, "?after=10")).await;
    stream.until(240).await;
    assert_eq!(stream.seen, (11..=250).collect::<Vec<_>>());
    // Nothing matches: the id still advances.
    let other = "?type=v1.project.paused";
    let mut stream = Stream::open(ask(&app.node, &app, &app.owner, other)).await;
    assert!(stream.more().await);
    assert_eq!((stream.seen.len(), stream.last_id.as_str()), (0, "250"));
}

#[tokio::test]
async fn stream_of_a_revoked_token_ends() {
    let app = TestApp::new().await;
    let _tasks = listen(&app.node);
    let mut stream = Stream::open(ask(&app.node, &app, &app.administrator, "")).await;
    assert!(stream.more().await);
    let path = format!("/v1/tokens/{}", app.administrator.token_id);
    let revoked = app.delete(&path).as_(&app.administrator).send().await;
    assert!(revoked.status.is_success(), "{revoked:?}");
    while stream.more().await {}
    app.create_project("a").await;
    assert_eq!(stream.seen, [] as [i64; 0]);
    until_waiting(&app.node, 0).await;
}

#[tokio::test]
async fn stream_of_a_removed_member_ends() {
    let app = TestApp::new().await;
    let _tasks = listen(&app.node);
    let mut stream = Stream::open(ask(&app.node, &app, &app.administrator, "")).await;
    let path = format!(
        "/v2/organizations/{}/members/{}",
        app.home.slug, app.administrator.gotrue_id
    );
    let removed = app.delete(&path).as_(&app.owner).send().await;
    assert!(removed.status.is_success(), "{removed:?}");
    while stream.more().await {}
    until_waiting(&app.node, 0).await;
}

#[tokio::test]
async fn stream_ends_at_a_shutdown_and_is_refused_to_strangers() {
    let app = TestApp::new().await;
    ask(&app.node, &app, &app.stranger, "")
        .send()
        .await
        .expect(404);
    let bad = ask(&app.node, &app, &app.owner, "").header("last-event-id", "x");
    bad.send().await.expect(400);
    let mut stream = Stream::open(ask(&app.node, &app, &app.owner, "")).await;
    assert!(stream.more().await);
    app.app.events.close();
    while stream.more().await {}
}
