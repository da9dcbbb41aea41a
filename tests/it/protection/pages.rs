//! Pages of protected projects.

use super::Protected;
use crate::{
    support::TestApp,
    web::browser::{olga, signed_in},
};

#[tokio::test]
async fn page_protects_a_project_and_leads_to_the_approval_that_its_end_needs() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let page = format!("/projects/{}/approvals", app.home.project);
    let form = format!("/projects/{}/protection", app.home.project);
    browser.get(&page).await.expect(200).says("Not protected");
    let protect = browser.submit(&page, &form, &[("protected", "true")]).await;
    protect.leads_to(&format!("{page}?done=protected"));
    let end = browser
        .submit(&page, &form, &[("protected", "false")])
        .await;
    let approval = end.expect(303).header("location").unwrap().to_owned();
    assert!(approval.starts_with(&page), "{approval}");
    let shown = browser.get(&approval).await.expect(200);
    shown
        .says("Your request waits for an approval")
        .says("This request ends the protection of the project.");
    browser
        .get(&page)
        .await
        .expect(200)
        .says("gantry-put-project-protection");
}

#[tokio::test]
async fn pausing_on_the_page_leads_to_the_approval() {
    let protected = Protected::stub().await;
    let mut browser = signed_in(&protected.app, &protected.app.administrator).await;
    let path = format!("/projects/{}/pause", protected.project);
    let answer = browser.submit(&path, &path, &[("name", "stub")]).await;
    let approval = answer.expect(303).header("location").unwrap().to_owned();
    assert!(approval.contains("/approvals/"), "{approval}");
    browser
        .get(&approval)
        .await
        .expect(200)
        .says("pauses the project");
}

#[tokio::test]
async fn password_in_a_request_is_not_shown() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let call = app.patch(&protected.path("/database/password"));
    let body = r#"{"password": "another horse battery staple"}"#;
    let id = protected
        .refused(call.as_(&app.administrator).body(body))
        .await;
    let mut browser = olga(app).await;
    let page = browser.get(&protected.page(&id)).await.expect(200);
    page.says("[redacted]").hides("battery staple");
}

#[tokio::test]
async fn body_of_a_request_is_shown_as_text_and_stored_sealed() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let body = r#"{"query": "drop table \"<script>alert(1)</script>\" -- secret-of-the-body\n;"}"#;
    let call = app.post(&protected.path("/database/query"));
    let id = protected
        .refused(call.as_(&app.administrator).body(body))
        .await;
    let mut browser = olga(app).await;
    let page = browser.get(&protected.page(&id)).await.expect(200);
    page.says("-- secret-of-the-body\n;</pre>")
        .hides("<script>alert");
    let sql = "select position('secret' in encode(body, 'escape')) from approvals";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, i32>(0), 0);
}
