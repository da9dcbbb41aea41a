//! The list of the last calls, and the lines in the project's logs.

use serde_json::{Value, json};

use super::Caller;

async fn listed(caller: &Caller) -> Value {
    let path = format!("/v1/projects/{}/database/calls", caller.project);
    let request = caller.node.get(&path).as_(&caller.app.read_only);
    request.send().await.expect(200).json()
}

#[tokio::test]
async fn list_database_calls_returns_the_last_ones_without_queries() {
    let caller = Caller::new().await;
    assert_eq!(listed(&caller).await, json!({"calls": [], "failing": []}));
    let url = caller.receiver.url("/echo?token=secret");
    let post = format!("net.http_post('{url}', headers := '{{\"Authorization\": \"secret\"}}')");
    caller.response(&post).await;
    caller
        .response("net.http_get('http://10.0.0.1/private')")
        .await;
    // The last lines are written.
    caller.node.app.analytics.close().await;
    let list = listed(&caller).await;
    let calls = list["calls"].as_array().unwrap();
    let call = |method: &str| calls.iter().find(|call| call["method"] == method).unwrap();
    let (post, get) = (call("POST"), call("GET"));
    assert_eq!(calls.len(), 2, "{list}");
    assert_eq!(post["host"], caller.receiver.address.to_string());
    assert_eq!(
        (&post["path"], &post["status"]),
        (&json!("/echo"), &json!(201))
    );
    assert_eq!(
        (&post["error"], &get["status"]),
        (&json!(null), &json!(null))
    );
    assert_eq!(
        (&get["host"], &get["path"]),
        (&json!("10.0.0.1"), &json!("/private"))
    );
    let error = get["error"].as_str().unwrap();
    assert!(
        error.starts_with("10.0.0.1 is not a public address"),
        "{error}"
    );
    assert!(!list.to_string().contains("secret"), "{list}");
    let path = format!("/v1/projects/{}/database/calls", caller.project);
    let refused = caller.node.get(&path).as_(&caller.app.stranger);
    refused.send().await.expect(404);
    for limit in ["0", "501"] {
        let request = caller.node.get(&format!("{path}?limit={limit}"));
        request.as_(&caller.app.owner).send().await.expect(400);
    }
}

#[tokio::test]
async fn list_database_calls_names_hosts_that_failed_for_an_hour() {
    let caller = Caller::new().await;
    let failing = "net.http_get('http://10.0.0.1/')";
    let recovered = format!("net.http_get('{}')", caller.receiver.url("/echo"));
    for call in [failing, "net.http_get('http://10.0.0.2/')", &recovered] {
        caller.response(call).await;
    }
    caller.app.advance(3_700);
    caller.node.app.database_calls.wake();
    for call in [failing, &recovered] {
        caller.response(call).await;
    }
    caller.node.app.analytics.close().await;
    let list = listed(&caller).await;
    let hosts = list["failing"].as_array().unwrap();
    assert_eq!(hosts.len(), 1, "{list}");
    assert_eq!(
        (&hosts[0]["host"], &hosts[0]["failures"]),
        (&json!("10.0.0.1"), &json!(2))
    );
}
