//! The pages of webhooks, without JavaScript.

use uuid::Uuid;

use super::{PAUSED, create, of_organization, of_project, pass, url};
use crate::{
    support::{TestApp, collector::Collector},
    web::browser::{olga, signed_in},
};

#[tokio::test]
async fn endpoint_is_created_tested_rotated_and_deleted_on_pages_of_both_scopes() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let mut browser = olga(&app).await;
    let target = url(&collector, "/<b>");
    for home in [
        format!("/organizations/{}", app.home.slug),
        format!("/projects/{}", app.home.project),
    ] {
        browser
            .get(&home)
            .await
            .expect(200)
            .says(&format!("{home}/webhooks\""));
        let list = format!("{home}/webhooks");
        browser
            .get(&list)
            .await
            .expect(200)
            .says("No endpoints")
            .says("whsec_");
        let fields = [
            ("url", target.as_str()),
            ("description", "<i>first</i>"),
            ("type", PAUSED),
            ("headers", "X-Tenant: hush-header"),
            ("secret", "hush-secret"),
            ("enabled", "yes"),
        ];
        let mut invalid = fields;
        invalid[0].1 = "http://127.0.0.1/";
        let page = browser.submit(&list, &list, &invalid).await.expect(422);
        page.says("Endpoint URL needs a domain name")
            .says("&#60;i&#62;first");
        let made = browser.submit(&list, &list, &fields).await.expect(303);
        let page = made.header("location").unwrap().to_owned();
        let one = page.strip_suffix("?done=created").unwrap();
        browser
            .get(&page)
            .await
            .expect(200)
            .says("Endpoint created")
            .says("x-tenant: [redacted]")
            .says("No deliveries")
            .hides("hush")
            .hides("<i>first");
        let test = format!("{one}/test");
        let tested = browser.submit(one, &test, &[("type", "")]).await;
        tested.leads_to(&format!("{one}?done=tested"));
        pass(&app.node).await;
        let shown = browser
            .get(one)
            .await
            .expect(200)
            .says("Delivered")
            .says(PAUSED);
        let (_, rest) = shown
            .html
            .split_once(&format!("{one}/deliveries/"))
            .unwrap();
        let delivery = format!("{one}/deliveries/{}", rest.split('"').next().unwrap());
        browser
            .get(&delivery)
            .await
            .expect(200)
            .says("is_test")
            .says("what the target says")
            .says("Send again");
        let again = browser.submit(&delivery, &delivery, &[]).await;
        again.leads_to(&format!("{one}?done=retried"));
        let secret = [("secret", "another secret"), ("overlap_hours", "24")];
        let rotated = browser.submit(one, &format!("{one}/secret"), &secret).await;
        rotated.leads_to(&format!("{one}?done=rotated"));
        browser.get(one).await.expect(200).says("Former secret");
        let short = [("secret", "x"), ("overlap_hours", "0")];
        let rotated = browser.submit(one, &format!("{one}/secret"), &short).await;
        rotated.expect(422).says("8 to 64 characters");
        let disabled = [
            ("url", target.as_str()),
            ("type", "*"),
            ("headers", "x-tenant: [redacted]"),
        ];
        let updated = browser.submit(one, one, &disabled).await;
        updated.leads_to(&format!("{one}?done=updated"));
        browser
            .get(one)
            .await
            .expect(200)
            .says("Disabled")
            .says("all events");
        let deleted = browser.submit(one, &format!("{one}/delete"), &[]).await;
        deleted.leads_to(&format!("{list}?done=deleted"));
        browser.get(one).await.expect(404);
        browser.get(&delivery).await.expect(404);
    }
}

#[tokio::test]
async fn member_without_the_permission_reads_but_has_no_forms() {
    let app = TestApp::new().await;
    let id = create(&app, &of_project(&app), "http://localhost:9/", &["*"]).await;
    let mut browser = signed_in(&app, &app.read_only).await;
    let list = format!("/projects/{}/webhooks", app.home.project);
    let page = browser
        .get(&list)
        .await
        .expect(200)
        .says("http://localhost:9/");
    page.says("You cannot create or change endpoints")
        .hides("New endpoint");
    let one = format!("{list}/{id}");
    let page = browser.get(&one).await.expect(200);
    page.says("You cannot change this endpoint")
        .hides("Delete endpoint");
    let token = browser.get("/account").await.expect(200).form_token();
    let fields = [("form_token", token.as_str())];
    browser
        .post(&format!("{one}/delete"), &fields)
        .await
        .expect(403);
    // Without the token of the session, a form is rejected.
    let mut owner = olga(&app).await;
    owner.post(&format!("{one}/delete"), &[]).await.expect(403);
    let mut stranger = signed_in(&app, &app.stranger).await;
    stranger.get(&list).await.expect(404);
    owner
        .get(&format!("{list}/{}", Uuid::nil()))
        .await
        .expect(404);
    let elsewhere = create(&app, &of_organization(&app), "http://localhost:9/", &["*"]).await;
    owner.get(&format!("{list}/{elsewhere}")).await.expect(404);
}
