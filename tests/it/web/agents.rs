//! The page that connects an agent to a project.

use super::browser::{olga, signed_in};
use crate::support::TestApp;

#[tokio::test]
async fn agents_page_shows_the_address_and_configurations() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let project = format!("/projects/{}", app.home.project);
    let page = format!("{project}/agents");
    browser
        .get(&project)
        .await
        .expect(200)
        .says(&format!("href=\"{page}\""));
    let address = format!("/mcp?project_ref={}", app.home.project);
    browser
        .get(&page)
        .await
        .expect(200)
        .says(&format!("{address}&#38;read_only=true</code>"))
        .says("claude mcp add --transport http gantry")
        .says(".cursor/mcp.json")
        .says(".vscode/mcp.json")
        .says("Bearer ${GANTRY_TOKEN}")
        .says("href=\"/account/tokens/new\"")
        .hides("sbp_");
}

#[tokio::test]
async fn form_changes_the_address_and_unknown_values_are_ignored() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let page = format!("/projects/{}/agents", app.home.project);
    let address = format!("/mcp?project_ref={}", app.home.project);
    let query = "read_only=false&features=storage&features=database";
    browser
        .get(&format!("{page}?{query}"))
        .await
        .expect(200)
        .says(&format!("{address}&#38;features=database,storage</code>"))
        .says("value=\"false\" checked")
        .says("value=\"storage\" checked")
        .hides("value=\"branching\" checked");
    let query = "read_only=%3Cscript%3E&features=%22%3E%3Cscript%3Ealert(1)";
    browser
        .get(&format!("{page}?{query}"))
        .await
        .expect(200)
        .says(&format!("{address}&#38;read_only=true</code>"))
        .says("value=\"branching\" checked")
        .hides("alert(1)");
}

#[tokio::test]
async fn agents_page_of_a_foreign_project_returns_404_and_names_are_escaped() {
    let app = TestApp::new().await;
    let sql = "update projects set name = $2 where ref = $1";
    let name = "<script>alert(1)</script>";
    app.app
        .db
        .query(sql, &[&app.home.project.as_str(), &name])
        .await
        .unwrap();
    let page = format!("/projects/{}/agents", app.home.project);
    let mut reader = signed_in(&app, &app.read_only).await;
    reader
        .get(&page)
        .await
        .expect(200)
        .says("&#60;script&#62;alert(1)")
        .hides("<script>alert");
    let mut stranger = signed_in(&app, &app.stranger).await;
    stranger.get(&page).await.expect(404);
}
