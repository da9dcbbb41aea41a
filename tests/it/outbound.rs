//! Requests to other servers: the lists of hosts, the policy, bounds and metrics of the outgoing
//! client.

mod client;
mod sources;

use serde_json::{Value, json};

use crate::support::TestApp;

#[tokio::test]
async fn put_outbound_hosts_is_returned_and_recorded_and_may_be_removed() {
    let app = TestApp::new().await;
    let slug = format!("/v1/organizations/{}/outbound-hosts", app.home.slug);
    for (path, writer) in [
        (app.at("/outbound-hosts"), &app.administrator),
        (slug, &app.owner),
    ] {
        let get = async || {
            app.get(&path)
                .as_(&app.owner)
                .send()
                .await
                .expect(200)
                .json()
        };
        let put = async |hosts: Value, status| {
            let body = json!({ "allowed_hosts": hosts });
            let request = app.request("PUT", &path).as_(writer).json(&body);
            request.send().await.expect(status)
        };
        assert_eq!(get().await, json!({"allowed_hosts": null}));
        let stored = json!({"allowed_hosts": ["*.example.com", "192.0.2.1"]});
        let given = json!(["*.EXAMPLE.com.", "192.0.2.1"]);
        assert_eq!(put(given, 200).await.json(), stored);
        assert_eq!(get().await, stored);
        for invalid in [
            json!(["https://a.example.com"]),
            json!("a.example.com"),
            json!(vec!["a.example.com"; 101]),
        ] {
            put(invalid, 400).await;
        }
        assert_eq!(get().await, stored);
        put(Value::Null, 200).await;
        assert_eq!(get().await, json!({"allowed_hosts": null}));
    }
}

#[tokio::test]
async fn outbound_hosts_are_written_by_administrators_and_invisible_to_strangers() {
    let app = TestApp::new().await;
    let body = json!({"allowed_hosts": []});
    let project = app.at("/outbound-hosts");
    let organization = format!("/v1/organizations/{}/outbound-hosts", app.home.slug);
    for path in [&project, &organization] {
        let put = |user| app.request("PUT", path).as_(user).json(&body);
        put(&app.developer).send().await.expect(403);
        put(&app.stranger).send().await.expect(404);
        app.get(path).as_(&app.stranger).send().await.expect(404);
    }
    let request = app
        .request("PUT", &organization)
        .as_(&app.administrator)
        .json(&body);
    request.send().await.expect(403);
}
