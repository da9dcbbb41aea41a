//! Deliveries, tests and retries.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    MEMBER_ADDED, PAUSED, RESTARTED, SECRET, create, deliveries, emit, emit_project, endpoint,
    is_signed_by, of_organization, of_project, pass, patch, statuses, url,
};
use crate::support::{TestApp, client::Answer, collector::Collector};

async fn post(app: &TestApp, path: &str, body: Option<&Value>) -> Answer {
    let call = app.post(path).as_(&app.owner);
    match body {
        Some(body) => call.json(body).send().await,
        None => call.send().await,
    }
}

fn id_of(answer: &Answer) -> Uuid {
    answer.json()["data"]["id"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn event_is_delivered_to_endpoints_of_organization_and_project() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let (organization, project) = (of_organization(&app), of_project(&app));
    // Not delivered: it is older than the endpoints.
    emit_project(&app, PAUSED, &json!({"reason": "other"})).await;
    let first = create(
        &app,
        &organization,
        &url(&collector, "/organization"),
        &["*"],
    )
    .await;
    create(&app, &project, &url(&collector, "/project"), &["*"]).await;
    create(
        &app,
        &organization,
        &url(&collector, "/never"),
        &[RESTARTED],
    )
    .await;
    let mut body = endpoint(&url(&collector, "/headers"), &[PAUSED]);
    body["data"]["attributes"]["custom_headers"] = json!({"X-Tenant": "a"});
    post(&app, &format!("{project}/endpoints"), Some(&body))
        .await
        .expect(201);
    let sibling = app.stub(app.home.id, "sibling").await;
    let path = format!("/v2/projects/{sibling}/webhooks");
    create(&app, &path, &url(&collector, "/sibling"), &["*"]).await;
    emit_project(&app, PAUSED, &json!({"reason": "inactivity"})).await;
    let member = json!({"member": {"user_id": app.owner.gotrue_id}});
    emit(&app, app.home.id, MEMBER_ADDED, None, &member).await;
    emit(
        &app,
        app.foreign.id,
        PAUSED,
        Some(&app.foreign.project),
        &json!({}),
    )
    .await;
    pass(&app.node).await;

    let sent = collector.collected();
    let mut paths: Vec<_> = sent.iter().map(|request| request.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        ["/headers", "/organization", "/organization", "/project"]
    );
    let mut ids = Vec::new();
    for request in &sent {
        let event = request.json();
        let id: Uuid = event["id"].as_str().unwrap().parse().unwrap();
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(request.header("webhook-id"), id.to_string());
        assert_eq!(request.header("content-type"), "application/json");
        let now = app.clock.now().timestamp().to_string();
        assert_eq!(request.header("webhook-timestamp"), now);
        assert!(is_signed_by(request, SECRET));
        let has_header = request.headers.contains_key("x-tenant");
        assert_eq!(has_header, request.path == "/headers");
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "each endpoint has a copy with its own id");
    let of_organization: Vec<_> = sent
        .iter()
        .filter(|it| it.path == "/organization")
        .collect();
    let event = of_organization[0].json();
    let payload = json!({
        "organization_slug": app.home.slug, "project_ref": app.home.project,
        "actor": {"user_id": app.owner.gotrue_id}, "reason": "inactivity",
    });
    let expected = json!({
        "id": event["id"], "type": PAUSED, "timestamp": "2026-11-21T09:15:03.000Z",
        "payload": payload,
    });
    assert_eq!(event, expected);
    assert_eq!(
        of_organization[1].json()["payload"]["project_ref"],
        Value::Null
    );

    let listed = deliveries(&app, &organization, first).await;
    assert_eq!(listed.len(), 2);
    let delivery = &listed[1];
    assert_eq!(delivery["attributes"]["event_id"], event["id"]);
    assert_eq!(delivery["attributes"]["status"], "success");
    assert_eq!(delivery["attributes"]["response_code"], 200);
    let body = "hush: what the target says is not repeated";
    assert_eq!(delivery["attributes"]["response_body"], body);
    assert_eq!(delivery["attributes"]["error_code"], Value::Null);
    let path = format!(
        "{organization}/deliveries/{}",
        delivery["id"].as_str().unwrap()
    );
    let read = app.get(&path).as_(&app.read_only).send().await.expect(200);
    assert_eq!(read.json()["data"], *delivery);
    let event = &read.json()["data"]["attributes"]["event"];
    assert_eq!(event["payload"], payload);
    assert_eq!(event["timestamp"], "2026-11-21T09:15:03.000Z");
    let other = format!("{project}/deliveries/{}", delivery["id"].as_str().unwrap());
    let answer = app.get(&other).as_(&app.owner).send().await.expect(404);
    assert_eq!(answer.json()["error"]["code"], "delivery_not_found");
}

#[tokio::test]
async fn test_is_marked_and_sent_once() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_organization(&app);
    let id = create(&app, &base, &url(&collector, "/x"), &[MEMBER_ADDED, PAUSED]).await;
    let path = format!("{base}/endpoints/{id}/test");
    let tested = post(&app, &path, None).await.expect(201);
    assert_eq!(tested.json()["data"]["type"], "ingress");
    let named = json!({"data": {"type": "event", "attributes": {"type": "project.v1.paused"}}});
    collector.answer([200, 500]);
    let failed = post(&app, &path, Some(&named)).await.expect(201);
    pass(&app.node).await;
    let sent = collector.collected();
    assert_eq!(sent.len(), 1);
    let event = sent[0].json();
    assert_eq!(event["payload"]["is_test"], true);
    assert_eq!(event["payload"]["organization_slug"], json!(app.home.slug));
    assert!(is_signed_by(&sent[0], SECRET));
    app.advance(3600);
    pass(&app.node).await;
    collector.until_rejected(1).await;
    assert_eq!(statuses(&app, &base, id).await, ["success", "failure"]);
    let delivery = format!("{base}/deliveries/{}", id_of(&failed));
    let read = app.get(&delivery).as_(&app.owner).send().await.expect(200);
    let attributes = &read.json()["data"]["attributes"];
    assert_eq!(attributes["event"]["type"], PAUSED);
    assert_eq!(attributes["response_code"], 500);
    assert_eq!(attributes["error_code"], "unexpected_status");

    // A retry is another attempt of the same event, and the only one.
    collector.answer([500]);
    let retried = post(&app, &format!("{delivery}/retry"), None)
        .await
        .expect(201);
    pass(&app.node).await;
    app.advance(3600);
    pass(&app.node).await;
    let again = format!("{base}/deliveries/{}/retry", id_of(&retried));
    post(&app, &again, None).await.expect(201);
    pass(&app.node).await;
    let sent = collector.collected();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1].json()["id"], attributes["event_id"]);
    let expected = ["success", "failure", "failure", "success"];
    assert_eq!(statuses(&app, &base, id).await, expected);
}

#[tokio::test]
async fn test_of_other_type_or_disabled_endpoint_is_rejected() {
    let app = TestApp::new().await;
    let base = of_project(&app);
    let id = create(&app, &base, "http://localhost:9/", &[PAUSED]).await;
    let path = format!("{base}/endpoints/{id}/test");
    let code = |answer: &Answer| answer.json()["error"]["code"].as_str().unwrap().to_owned();
    for name in [RESTARTED, "v1.no.such.type"] {
        let body = json!({"data": {"type": "event", "attributes": {"type": name}}});
        let answer = post(&app, &path, Some(&body)).await.expect(400);
        assert_eq!(code(&answer), "endpoint_event_type_not_subscribed");
        let text = "Bad Request: Provided event type is not subscribed to by the endpoint";
        assert_eq!(answer.message(), text);
    }
    let tested = post(&app, &path, None).await.expect(201);
    let retry = format!("{base}/deliveries/{}/retry", id_of(&tested));
    let pending = post(&app, &retry, None).await.expect(400);
    assert_eq!(code(&pending), "bad_request");
    app.patch(&format!("{base}/endpoints/{id}"))
        .as_(&app.owner)
        .json(&patch(&json!({"enabled": false})))
        .send()
        .await
        .expect(200);
    for path in [&path, &retry] {
        let answer = post(&app, path, None).await.expect(400);
        assert_eq!(code(&answer), "endpoint_disabled");
        assert_eq!(answer.message(), "Bad Request: Endpoint is disabled");
    }
    let unknown = format!("{base}/deliveries/{id}/retry");
    let answer = post(&app, &unknown, None).await.expect(404);
    assert_eq!(code(&answer), "delivery_not_found");
    // 10 a minute: three requests were made to the first path, and two to the second.
    for _ in 0..6 {
        post(&app, &path, None).await.expect(400);
    }
    post(&app, &path, None).await.expect(429);
}

#[tokio::test]
async fn deliveries_are_paged_in_both_directions_and_end_after_two_weeks() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_organization(&app);
    let id = create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    for number in 0..7 {
        emit_project(&app, PAUSED, &json!({"number": number})).await;
        pass(&app.node).await;
        app.advance(1);
    }
    let path = format!("{base}/endpoints/{id}/deliveries");
    let read = async |path: &str| {
        app.get(path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()
    };
    let numbers = |page: &Value| {
        let rows = page["data"].as_array().unwrap().clone();
        let number = |row: &Value| row["attributes"]["event"]["payload"]["number"].as_u64();
        rows.iter()
            .map(|row| number(row).unwrap())
            .collect::<Vec<_>>()
    };
    let newest = read(&format!("{path}?page[size]=3")).await;
    assert_eq!(numbers(&newest), [6, 5, 4]);
    assert_eq!(newest["links"]["prev"], Value::Null);
    let last = newest["data"][2]["id"].as_str().unwrap();
    let next = newest["links"]["next"].as_str().unwrap();
    assert_eq!(next, format!("{path}?page[size]=3&page[after]={last}"));
    let second = read(next).await;
    assert_eq!(numbers(&second), [3, 2, 1]);
    let third = read(second["links"]["next"].as_str().unwrap()).await;
    assert_eq!(numbers(&third), [0]);
    assert_eq!(third["links"]["next"], Value::Null);
    let back = read(third["links"]["prev"].as_str().unwrap()).await;
    assert_eq!(back["data"], second["data"]);
    let start = read(back["links"]["prev"].as_str().unwrap()).await;
    assert_eq!(start["data"], newest["data"]);
    assert_eq!(start["links"]["prev"], Value::Null);
    for query in [
        format!("page[after]={id}"),
        format!("page[before]={last}&page[after]={last}"),
        "page[size]=0".to_owned(),
        "page[after]=x".to_owned(),
    ] {
        let path = format!("{path}?{query}");
        app.get(&path).as_(&app.owner).send().await.expect(400);
    }

    // 14 days after the fourth.
    app.advance(14 * 86_400 - 4);
    let page = read(&path).await;
    assert_eq!(numbers(&page), [6, 5, 4]);
    let old = format!(
        "{base}/deliveries/{}",
        third["data"][0]["id"].as_str().unwrap()
    );
    app.get(&old).as_(&app.owner).send().await.expect(404);
    post(&app, &format!("{old}/retry"), None).await.expect(404);
    let (db, now) = (&app.app.db, app.clock.now());
    gantry::control::platform_webhooks::history::remove_expired(db, now)
        .await
        .unwrap();
    let sql =
        "select (select count(*) from webhook_deliveries), (select count(*) from webhook_events)";
    let row = &db.query(sql, &[]).await.unwrap()[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (3, 3));
}

#[tokio::test]
async fn rotation_signs_with_both_secrets_during_the_overlap() {
    let app = TestApp::new().await;
    let collector = Collector::start().await;
    let base = of_organization(&app);
    let id = create(&app, &base, &url(&collector, "/x"), &["*"]).await;
    let rotate = async |attributes: Value| {
        let changed = app
            .patch(&format!("{base}/endpoints/{id}"))
            .as_(&app.owner)
            .json(&patch(&attributes))
            .send()
            .await
            .expect(200);
        changed.json()["data"]["attributes"]["previous_secret_expires_at"].clone()
    };
    let next = "the second secret";
    let until = rotate(json!({"signing_secret": next, "signing_secret_overlap_secs": 60})).await;
    assert_eq!(until, "2026-11-21T09:16:03Z");
    let signed = async || {
        emit_project(&app, PAUSED, &json!({})).await;
        pass(&app.node).await;
        let last = collector.collected().pop().unwrap();
        let count = last.header("webhook-signature").split(' ').count();
        (
            is_signed_by(&last, SECRET),
            is_signed_by(&last, next),
            count,
        )
    };
    assert_eq!(signed().await, (true, true, 2));
    app.advance(60);
    assert_eq!(signed().await, (false, true, 1));
    // Without an overlap the former secret ends at once.
    assert_eq!(rotate(json!({"signing_secret": SECRET})).await, Value::Null);
    assert_eq!(signed().await, (true, false, 1));
}
