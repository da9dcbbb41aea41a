//! Operations on endpoints.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{MEMBER_ADDED, PAUSED, SECRET, create, endpoint, of_organization, of_project, patch};
use crate::support::{TestApp, client::Answer};

const URL: &str = "http://localhost:9/hook?token=hush-query";

async fn change(app: &TestApp, base: &str, id: Uuid, attributes: &Value) -> Answer {
    app.patch(&format!("{base}/endpoints/{id}"))
        .as_(&app.owner)
        .json(&patch(attributes))
        .send()
        .await
}

fn code(answer: &Answer) -> String {
    let code = &answer.json()["error"]["code"];
    code.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn endpoint_is_created_read_changed_and_deleted_in_both_scopes() {
    let app = TestApp::new().await;
    for base in [of_organization(&app), of_project(&app)] {
        let mut body = endpoint(URL, &[PAUSED, "*"]);
        body["data"]["attributes"]["description"] = "first".into();
        let created = app
            .post(&format!("{base}/endpoints"))
            .as_(&app.administrator)
            .json(&body)
            .send()
            .await
            .expect(201)
            .json();
        let id = created["data"]["id"].as_str().unwrap();
        assert_eq!(id.parse::<Uuid>().unwrap().get_version_num(), 7);
        let expected = json!({"data": {"type": "endpoint", "id": id, "attributes": {
            "id": id, "url": URL, "enabled": true, "description": "first",
            "event_types": [{"type": PAUSED}, {"type": "*"}], "custom_headers": {},
            "created_by": app.administrator.gotrue_id, "created_at": "2026-11-21T09:15:03Z",
        }}});
        assert_eq!(created, expected);
        let one = format!("{base}/endpoints/{id}");
        let read = app.get(&one).as_(&app.read_only).send().await.expect(200);
        assert_eq!(read.json(), expected);
        let attributes = json!({"description": null, "enabled": false});
        let id = id.parse().unwrap();
        let changed = change(&app, &base, id, &attributes).await.expect(200);
        let mut expected = expected.clone();
        expected["data"]["attributes"]["description"] = Value::Null;
        expected["data"]["attributes"]["enabled"] = false.into();
        assert_eq!(changed.json(), expected);
        // Absent attributes stay.
        let same = change(&app, &base, id, &json!({})).await.expect(200);
        assert_eq!(same.json(), expected);
        let deleted = app.delete(&one).as_(&app.owner).send().await.expect(200);
        assert_eq!(deleted.json(), expected);
        let gone = app.get(&one).as_(&app.owner).send().await.expect(404);
        assert_eq!(code(&gone), "endpoint_not_found");
        let gone = app.delete(&one).as_(&app.owner).send().await.expect(404);
        assert_eq!(code(&gone), "endpoint_not_found");
    }
}

#[tokio::test]
async fn endpoint_of_one_scope_is_not_found_in_another() {
    let app = TestApp::new().await;
    let (organization, project) = (of_organization(&app), of_project(&app));
    let first = create(&app, &organization, URL, &["*"]).await;
    let second = create(&app, &project, URL, &["*"]).await;
    let sibling = app.stub(app.home.id, "sibling").await;
    let sibling = format!("/v2/projects/{sibling}/webhooks");
    for (base, id) in [
        (&project, first),
        (&organization, second),
        (&sibling, second),
    ] {
        for rest in ["", "/deliveries"] {
            let path = format!("{base}/endpoints/{id}{rest}");
            let answer = app.get(&path).as_(&app.owner).send().await.expect(404);
            assert_eq!(code(&answer), "endpoint_not_found");
        }
        let test = format!("{base}/endpoints/{id}/test");
        let answer = app.post(&test).as_(&app.owner).send().await.expect(404);
        assert_eq!(code(&answer), "endpoint_not_found");
        assert_eq!(change(&app, base, id, &json!({})).await.status, 404);
    }
    let path = format!("{organization}/endpoints/{first}");
    app.get(&path).as_(&app.stranger).send().await.expect(404);
    let path = format!("{organization}/endpoints");
    app.post(&path)
        .as_(&app.developer)
        .json(&endpoint(URL, &["*"]))
        .send()
        .await
        .expect(403);
    // Deleting all leaves those of the other scope.
    let deleted = app.delete(&path).as_(&app.owner).send().await.expect(200);
    let ids: Vec<_> = deleted.json()["data"].as_array().unwrap().clone();
    assert_eq!(ids.len(), 1);
    assert_eq!(ids[0]["id"], json!(first));
    let path = format!("{project}/endpoints/{second}");
    app.get(&path).as_(&app.owner).send().await.expect(200);
}

#[tokio::test]
async fn secrets_are_in_no_answer_no_audit_entry_and_no_row() {
    let app = TestApp::new().await;
    let base = of_organization(&app);
    let mut body = endpoint(URL, &["*"]);
    body["data"]["attributes"]["custom_headers"] = json!({"Authorization": "Bearer hush-header"});
    let path = format!("{base}/endpoints");
    let created = app.post(&path).as_(&app.owner).json(&body).send().await;
    let created = created.expect(201);
    let id: Uuid = created.json()["data"]["id"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let headers = &created.json()["data"]["attributes"]["custom_headers"];
    assert_eq!(*headers, json!({"authorization": "[redacted]"}));
    let rotation = json!({"signing_secret": "hush-other-secret"});
    let changed = change(&app, &base, id, &rotation).await.expect(200);
    let listed = app.get(&path).as_(&app.owner).send().await.expect(200);
    let audit = format!("/v1/organizations/{}/audit", app.home.slug);
    let audit = app.get(&audit).as_(&app.owner).send().await.expect(200);
    assert!(
        audit.text().contains("webhooks-endpoints-post"),
        "{audit:?}"
    );
    assert!(!audit.text().contains("hush"), "{audit:?}");
    for answer in [&created, &changed, &listed, &audit] {
        for secret in [SECRET, "hush-other", "hush-header"] {
            assert!(!answer.text().contains(secret), "{answer:?}");
        }
    }
    let sql = "select e::text || encode(e.secrets, 'escape') from webhook_endpoints e";
    let row: String = app.app.db.query(sql, &[]).await.unwrap()[0].get(0);
    for secret in [&SECRET[6..], "hush-other", "hush-header"] {
        assert!(!row.contains(secret), "{row}");
    }
}

#[tokio::test]
async fn stored_header_is_kept_for_one_destination_only() {
    let app = TestApp::new().await;
    let base = of_organization(&app);
    let id = create(&app, &base, URL, &["*"]).await;
    let headers = json!({"custom_headers": {"x-a": "hush", "x-b": "1"}});
    change(&app, &base, id, &headers).await.expect(200);
    let kept = json!({
        "url": "http://localhost:9/other", "custom_headers": {"X-A": "[redacted]"},
    });
    let changed = change(&app, &base, id, &kept).await.expect(200);
    let headers = &changed.json()["data"]["attributes"]["custom_headers"];
    assert_eq!(*headers, json!({"x-a": "[redacted]"}));
    for moved in [
        json!({"url": "http://localhost:10/"}),
        json!({"url": "http://localhost:10/", "custom_headers": {"x-a": "[redacted]"}}),
        json!({"custom_headers": {"x-c": "[redacted]"}}),
    ] {
        let answer = change(&app, &base, id, &moved).await.expect(400);
        assert_eq!(code(&answer), "validation_failed");
    }
    let moved = json!({"url": "http://localhost:10/", "custom_headers": {}});
    change(&app, &base, id, &moved).await.expect(200);
}

#[tokio::test]
async fn invalid_attributes_are_rejected_by_create_and_update() {
    let app = TestApp::new().await;
    let base = of_project(&app);
    let id = create(&app, &base, URL, &["*"]).await;
    let unresolvable = "endpoint_url_unresolvable";
    let invalid = "validation_failed";
    for (attributes, expected) in [
        (json!({"url": "https://127.0.0.1/"}), unresolvable),
        (json!({"url": "https://0x7f000001/"}), unresolvable),
        (json!({"url": "https://[::1]/"}), unresolvable),
        (
            json!({"url": "https://no-such-host.invalid/"}),
            unresolvable,
        ),
        (json!({"url": "ftp://localhost/"}), invalid),
        (json!({"url": "http://u:p@localhost/"}), invalid),
        (json!({"event_types": []}), invalid),
        (
            json!({"event_types": [{"type": "v1.project.exploded"}]}),
            invalid,
        ),
        (json!({"signing_secret": "short"}), invalid),
        (json!({"signing_secret": "x".repeat(65)}), invalid),
        (json!({"description": "x".repeat(513)}), invalid),
        (json!({"custom_headers": {"host": "a"}}), invalid),
        (json!({"custom_headers": {"webhook-id": "a"}}), invalid),
        (json!({"custom_headers": {"x": "a\nb"}}), invalid),
    ] {
        let answer = change(&app, &base, id, &attributes).await.expect(400);
        assert_eq!(code(&answer), expected, "{attributes}");
        let mut body = endpoint(URL, &["*"]);
        for (name, value) in attributes.as_object().unwrap() {
            body["data"]["attributes"][name] = value.clone();
        }
        let path = format!("{base}/endpoints");
        let answer = app.post(&path).as_(&app.owner).json(&body).send().await;
        assert_eq!(code(&answer.expect(400)), expected, "{attributes}");
    }
    for attributes in [
        json!({"signing_secret_overlap_secs": 60}),
        json!({"signing_secret": "long-enough", "signing_secret_overlap_secs": 86_401}),
    ] {
        let answer = change(&app, &base, id, &attributes).await.expect(400);
        assert_eq!(code(&answer), invalid, "{attributes}");
    }
    let untouched = app
        .get(&format!("{base}/endpoints/{id}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(untouched.json()["data"]["attributes"]["url"], URL);
    // Types of organizations are possible for a project, which gets no such events.
    create(&app, &base, URL, &[MEMBER_ADDED]).await;
}

#[tokio::test]
async fn endpoints_are_paged_and_bounded() {
    let app = TestApp::new().await;
    let base = of_organization(&app);
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(create(&app, &base, URL, &["*"]).await);
        app.advance(1);
    }
    let path = format!("{base}/endpoints");
    let body = endpoint(URL, &["*"]);
    let answer = app.post(&path).as_(&app.owner).json(&body).send().await;
    assert_eq!(code(&answer.expect(400)), "bad_request");
    // A project has a number of its own.
    create(&app, &of_project(&app), URL, &["*"]).await;
    let mut next = Some(format!("{path}?page[limit]=8"));
    let mut listed: Vec<Uuid> = Vec::new();
    let mut previous = Vec::new();
    while let Some(path) = next {
        let answer = app.get(&path).as_(&app.owner).send().await.expect(200);
        let page = answer.json();
        for resource in page["data"].as_array().unwrap() {
            listed.push(resource["id"].as_str().unwrap().parse().unwrap());
        }
        previous.push(page["links"]["prev"].as_str().map(str::to_owned));
        next = page["links"]["next"].as_str().map(str::to_owned);
    }
    assert_eq!(listed, ids);
    let link = |offset: u32| Some(format!("{path}?page[offset]={offset}&page[limit]=8"));
    assert_eq!(previous, [None, link(0), link(8)]);
    for query in [
        "page[limit]=0",
        "page[limit]=101",
        "page[offset]=3&page[limit]=2",
        "page[offset]=-2&page[limit]=2",
        "page[limit]=x",
    ] {
        let path = format!("{path}?{query}");
        app.get(&path).as_(&app.owner).send().await.expect(400);
    }
}
