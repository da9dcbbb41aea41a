//! Streams of changes for open pages.

use gantry_base::ids::ProjectRef;
use serde_json::json;

use super::browser::{BrowserResponse, olga, signed_in};
use crate::{
    events::cursor::{listen, until_waiting},
    platform_webhooks::{emit, emit_project},
    support::TestApp,
};

const CHANGED: &str = "v1.project.status.changed";

/// Returns the address of the stream on a page.
fn address(page: &BrowserResponse) -> String {
    let (_, rest) = page.html.split_once("data-changes=\"").unwrap();
    let (address, _) = rest.split_once('"').unwrap();
    address.replace("&#38;", "&").replace("&amp;", "&")
}

async fn emit_about(app: &TestApp, project: &ProjectRef) {
    emit(app, app.home.id, CHANGED, Some(project), &json!({})).await;
}

#[tokio::test]
async fn stream_of_a_project_ends_with_its_first_change() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let sibling = app.stub(app.home.id, "sibling").await;
    emit_project(&app, CHANGED, &json!({})).await;
    let page = browser
        .get(&format!("/projects/{}", app.home.project))
        .await
        .expect(200);
    let address = address(&page);
    assert!(address.ends_with("?after=1&branches=false"), "{address}");
    emit_about(&app, &sibling).await;
    emit_project(&app, CHANGED, &json!({})).await;
    let stream = browser.get(&address).await.expect(200);
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    let text = "retry: 1000\nid: 1\nevent: begin\ndata\n\nid: 3\nevent: changed\ndata\n\n";
    assert_eq!(stream.html, text);
}

#[tokio::test]
async fn open_stream_is_told_of_a_change() {
    let app = TestApp::new().await;
    let _hub = listen(&app.node);
    let mut browser = olga(&app).await;
    let path = format!(
        "/projects/{}/changes?after=0&branches=true",
        app.home.project
    );
    let change = async {
        until_waiting(&app.node, 1).await;
        emit_project(&app, CHANGED, &json!({})).await;
        app.app.events.announce();
    };
    let (stream, ()) = tokio::join!(browser.get(&path), change);
    stream.expect(200).says("id: 1\nevent: changed");
}

#[tokio::test]
async fn changes_of_a_foreign_project_are_not_found() {
    let app = TestApp::new().await;
    let mut browser = signed_in(&app, &app.stranger).await;
    let path = format!(
        "/projects/{}/changes?after=0&branches=false",
        app.home.project
    );
    browser.get(&path).await.expect(404);
}
