//! The audit log on the pages: filter, pages, export.

use serde_json::json;

use super::at;
use crate::{support::TestApp, web::browser::olga};

#[tokio::test]
async fn audit_log_is_filtered_paged_and_exported() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let log = at(&app, "/audit");
    browser.get(&log).await.expect(200).says("No entries yet");
    for number in 0..60 {
        let name = json!({"name": format!("name {number}")});
        app.patch(&app.at(""))
            .as_(&app.administrator)
            .json(&name)
            .send()
            .await
            .expect(200);
    }
    app.delete(&app.at(""))
        .as_(&app.developer)
        .send()
        .await
        .expect(403);
    let first = browser
        .get(&log)
        .await
        .expect(200)
        .says("Rename a project")
        .says("adam@example.com")
        .says("name 59")
        .says("Denied");
    assert_eq!(first.html.matches("<details>").count(), 50);
    let older = first
        .html
        .split("<a class=\"button\" href=\"")
        .find(|part| part.contains(">Older entries"))
        .unwrap();
    let older = older.split('"').next().unwrap().replace("&#38;", "&");
    browser
        .get(&older)
        .await
        .expect(200)
        .says("name 0")
        .hides("name 59");
    let refused = browser
        .get(&format!("{log}?outcome=refused&actor=&operation=&subject="))
        .await
        .expect(200);
    assert_eq!(
        refused
            .says("Delete a project")
            .says("dora@example.com")
            .html
            .matches("<details>")
            .count(),
        1
    );
    let by_dora = browser
        .get(&format!(
            "{log}?actor={}&outcome=done",
            app.developer.gotrue_id
        ))
        .await
        .expect(200);
    by_dora.says("No entries match").says("Clear filters");
    browser
        .get(&format!("{log}?actor=nobody"))
        .await
        .expect(400)
        .says("Request failed");

    let exported = browser.get(&at(&app, "/audit/export")).await.expect(200);
    assert_eq!(
        exported.header("content-type"),
        Some("application/x-ndjson")
    );
    assert_eq!(exported.header("cache-control"), Some("no-store"));
    assert!(
        exported
            .header("content-disposition")
            .unwrap()
            .starts_with("attachment; filename=\"audit-")
    );
    let verified = gantry::platform::audit::verify::verify(exported.html.as_bytes()).unwrap();
    assert_eq!(verified.numbers, (1, 61));
}
