//! The page with the calls of a project's database.

use gantry::control::database_calls::call_log::{CallTarget, EndedCall};

use super::browser::olga;
use crate::support::{TestApp, dawn};

#[tokio::test]
async fn database_calls_page_shows_calls_and_failing_receivers() {
    let mut app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let path = format!("/projects/{}/database-calls", app.home.project);
    let page = browser.get(&path).await.expect(200);
    page.says("No calls in the last 24 hours");
    for (host, minutes, status) in [
        ("up.test", 61, Some(201)),
        ("down.test", 61, Some(500)),
        ("down.test", 0, None),
    ] {
        let queued = app.app.database_calls.log.add(EndedCall {
            at: dawn() - chrono::TimeDelta::minutes(minutes),
            project: app.home.project.clone(),
            target: CallTarget {
                method: "POST".to_owned(),
                host: host.to_owned(),
                path: "/<hook>".to_owned(),
            },
            status,
            error: status.is_none().then(|| "it is <away>".to_owned()),
            took_millis: 7,
        });
        assert!(queued);
    }
    app.node.start();
    app.app.analytics.close().await;
    let page = browser.get(&path).await.expect(200);
    page.says("up.test/&#60;hook&#62;")
        .says("201, 7 ms")
        .says("it is &#60;away&#62;, 7 ms")
        .says("Failing receivers")
        .says("2 failures since");
    let project = format!("/projects/{}", app.home.project);
    let page = browser.get(&project).await.expect(200);
    page.says("Database calls");
}
