//! Dynamic client registration: validation, limits and deletion of unapproved applications.

use gantry::api::oauth::cleanup;
use serde_json::{Value, json};

use super::flow::{CALLBACK, Client, Pair, from_any_address, list_projects_status, parameter};
use crate::support::{TestApp, client::Answer};

async fn register(app: &TestApp, body: &Value) -> Answer {
    from_any_address(app.post("/platform/oauth/apps/register"))
        .json(body)
        .send()
        .await
}

fn right() -> Value {
    json!({"client_name": "Assistant", "redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none", "scope": "projects:read"})
}

fn with(field: &str, value: Value) -> Value {
    let mut body = right();
    body[field] = value;
    body
}

#[tokio::test]
async fn registered_client_obtains_selected_projects() {
    let app = TestApp::new().await;
    let registered = register(&app, &right()).await.expect(201);
    assert_eq!(registered.header("cache-control"), Some("no-store"));
    let body = registered.json();
    assert!(
        body.get("client_secret").is_none()
            && body["scope"] == "projects:read"
            && body["token_endpoint_auth_method"] == "none"
    );
    let client = Client {
        id: body["client_id"].as_str().unwrap().to_owned(),
        secret: None,
    };
    let id = client.ask(&app.node, &[]).await;
    let shown = app
        .get(&format!("/platform/oauth/authorizations/{id}"))
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            &shown["registered_itself"],
            &shown["verified"],
            &shown["project_selection"]
        ),
        (&json!(true), &json!(false), &json!("required"))
    );
    let chosen = json!({"project_refs": [app.home.project]});
    let address = client.approve(&app, &app.read_only, &[], &chosen).await;
    let pair = Pair::of(
        &client
            .exchange(&app.node, &parameter(&address, "code"))
            .await
            .expect(200),
    );
    assert_eq!(list_projects_status(&app.node, &pair.access).await, 200);

    let body = register(&app, &with("token_endpoint_auth_method", Value::Null))
        .await
        .expect(201)
        .json();
    assert_eq!(
        (
            &body["token_endpoint_auth_method"],
            &body["client_secret_expires_at"]
        ),
        (&json!("client_secret_basic"), &json!(0))
    );
    let client = Client {
        id: body["client_id"].as_str().unwrap().to_owned(),
        secret: Some(body["client_secret"].as_str().unwrap().to_owned()),
    };
    let address = client.approve(&app, &app.owner, &[], &chosen).await;
    client
        .exchange(&app.node, &parameter(&address, "code"))
        .await
        .expect(200);
    // A self-registered application requires PKCE even with a secret.
    let text = super::flow::query(&[
        ("client_id", &client.id),
        ("redirect_uri", CALLBACK),
        ("response_type", "code"),
        ("state", "s"),
    ]);
    let answer = from_any_address(app.get(&format!("/v1/oauth/authorize?{text}")))
        .send()
        .await
        .expect(303);
    assert_eq!(
        parameter(answer.header("location").unwrap(), "error"),
        "invalid_request"
    );
}

#[tokio::test]
async fn register_with_invalid_metadata_is_rejected() {
    let app = TestApp::new().await;
    let redirect = |address: &str| with("redirect_uris", json!([address]));
    let many: Vec<_> = (0..21)
        .map(|n| format!("https://app.example/{n}"))
        .collect();
    for (case, body, error) in [
        (
            "none",
            with("redirect_uris", json!([])),
            "invalid_redirect_uri",
        ),
        (
            "too many",
            with("redirect_uris", json!(many)),
            "invalid_redirect_uri",
        ),
        (
            "http",
            redirect("http://app.example/cb"),
            "invalid_redirect_uri",
        ),
        (
            "wildcard",
            redirect("https://*.example/cb"),
            "invalid_redirect_uri",
        ),
        (
            "wildcard path",
            redirect("https://app.example/*"),
            "invalid_redirect_uri",
        ),
        (
            "fragment",
            redirect("https://app.example/cb#x"),
            "invalid_redirect_uri",
        ),
        (
            "user",
            redirect("https://app.example@evil.example/"),
            "invalid_redirect_uri",
        ),
        (
            "script",
            redirect("javascript:alert(1)"),
            "invalid_redirect_uri",
        ),
        ("data", redirect("data:text/html,x"), "invalid_redirect_uri"),
        (
            "file",
            redirect("file:///etc/passwd"),
            "invalid_redirect_uri",
        ),
        ("relative", redirect("/cb"), "invalid_redirect_uri"),
        (
            "scheme-relative",
            redirect("//app.example/cb"),
            "invalid_redirect_uri",
        ),
        (
            "a short scheme",
            redirect("myapp:/cb"),
            "invalid_redirect_uri",
        ),
        (
            "a space",
            redirect(" https://app.example/cb"),
            "invalid_redirect_uri",
        ),
        (
            "one bad among good",
            with("redirect_uris", json!([CALLBACK, "http://app.example"])),
            "invalid_redirect_uri",
        ),
        (
            "our name",
            with("client_name", json!("Gantry Console")),
            "invalid_client_metadata",
        ),
        (
            "the service's name",
            with("client_name", json!("SUPABASE official")),
            "invalid_client_metadata",
        ),
        (
            "a name turned around",
            with("client_name", json!("evil\u{202e}gnp")),
            "invalid_client_metadata",
        ),
        (
            "a hidden mark",
            with("client_name", json!("Ac\u{200b}me")),
            "invalid_client_metadata",
        ),
        (
            "a line end",
            with("client_name", json!("Acme\n")),
            "invalid_client_metadata",
        ),
        (
            "full-width letters",
            with("client_name", json!("Ｓｕｐａｂａｓｅ")),
            "invalid_client_metadata",
        ),
        (
            "a joiner",
            with("client_name", json!("Supa\u{34f}base")),
            "invalid_client_metadata",
        ),
        (
            "tag characters",
            with("client_name", json!("Acme\u{e0041}\u{e007f}")),
            "invalid_client_metadata",
        ),
        (
            "a Hangul filler",
            with("client_name", json!("\u{3164}Acme")),
            "invalid_client_metadata",
        ),
        (
            "letters of another script",
            with("client_name", json!("G\u{430}ntry")),
            "invalid_client_metadata",
        ),
        (
            "an accent",
            with("client_name", json!("Ga\u{301}ntry")),
            "invalid_client_metadata",
        ),
        (
            "a host that is no host",
            redirect("https://a;sandbox/cb"),
            "invalid_redirect_uri",
        ),
        (
            "two hosts",
            redirect("https://a,b/cb"),
            "invalid_redirect_uri",
        ),
        (
            "an encoded wildcard",
            redirect("https://%2A.a.test/cb"),
            "invalid_redirect_uri",
        ),
        (
            "no name",
            with("client_name", json!("")),
            "invalid_client_metadata",
        ),
        (
            "a long name",
            with("client_name", json!("x".repeat(101))),
            "invalid_client_metadata",
        ),
        (
            "implicit",
            with("grant_types", json!(["implicit"])),
            "invalid_client_metadata",
        ),
        (
            "password",
            with("grant_types", json!(["authorization_code", "password"])),
            "invalid_client_metadata",
        ),
        (
            "token",
            with("response_types", json!(["token"])),
            "invalid_client_metadata",
        ),
        (
            "a key",
            with("token_endpoint_auth_method", json!("private_key_jwt")),
            "invalid_client_metadata",
        ),
        (
            "scopes",
            with("scope", json!("everything")),
            "invalid_client_metadata",
        ),
    ] {
        super::flow::assert_oauth_error(case, &register(&app, &body).await, error);
    }
    for body in [
        json!([]),
        json!({"redirect_uris": "https://app.example"}),
        json!({"redirect_uris": [1]}),
    ] {
        register(&app, &body).await.expect(400);
    }
    let left: i64 = app
        .app
        .db
        .query("select count(*) from oauth_applications", &[])
        .await
        .unwrap()[0]
        .get(0);
    assert_eq!(left, 0);
    // Other metadata is ignored.
    let body = register(&app, &with("logo_uri", json!("javascript:alert(1)")))
        .await
        .expect(201)
        .json();
    let icon: Option<String> = app
        .app
        .db
        .query("select icon from oauth_applications", &[])
        .await
        .unwrap()[0]
        .get(0);
    assert!(icon.is_none() && body.get("logo_uri").is_none());
}

/// A self-registered application has no organization, so its event is in the server's log.
#[tokio::test]
async fn registration_is_in_audit_log() {
    let app = TestApp::new().await;
    register(&app, &with("client_name", json!("")))
        .await
        .expect(400);
    let registered = register(&app, &with("token_endpoint_auth_method", Value::Null))
        .await
        .expect(201)
        .json();
    let sql = "select operation, status, actor::text, token, before, after from audit_entries where chain = 'server' order by number";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let [row] = rows.as_slice() else {
        panic!("{rows:?}")
    };
    assert_eq!(
        (row.get(0), row.get(1), row.get(3)),
        ("gantry-register-oauth-application", 201_i16, 0_i64)
    );
    assert_eq!(
        (row.get(2), row.get(4)),
        (registered["client_id"].as_str().unwrap(), None::<String>)
    );
    let after: Value = serde_json::from_str(row.get(5)).unwrap();
    let expected = json!({
        "application": registered["client_id"], "name": "Assistant", "redirect_uris": [CALLBACK], "scopes": ["projects:read"],
    });
    assert_eq!(after, expected, "and no secret");
}

/// Ten registrations per hour and address; unapproved applications are deleted.
#[tokio::test]
async fn registration_is_rate_limited_and_unused_clients_expire() {
    let app = TestApp::new().await;
    for _ in 0..10 {
        app.post("/platform/oauth/apps/register")
            .json(&right())
            .send()
            .await
            .expect(201);
    }
    app.post("/platform/oauth/apps/register")
        .json(&right())
        .send()
        .await
        .expect(429);
    app.advance(3_600);
    let used = app
        .post("/platform/oauth/apps/register")
        .json(&right())
        .send()
        .await
        .expect(201)
        .json();
    let used = Client {
        id: used["client_id"].as_str().unwrap().to_owned(),
        secret: None,
    };
    used.approve(
        &app,
        &app.owner,
        &[],
        &json!({"project_refs": [app.home.project]}),
    )
    .await;
    let count = async || {
        app.app
            .db
            .query("select count(*) from oauth_applications", &[])
            .await
            .unwrap()[0]
            .get::<_, i64>(0)
    };
    cleanup::clean(&app.app.db, app.clock.now()).await.unwrap();
    assert_eq!(count().await, 11);
    app.advance(30 * 86_400);
    cleanup::clean(&app.app.db, app.clock.now()).await.unwrap();
    // A grant without any token is deleted after a week.
    assert_eq!(count().await, 0);
}

/// Inserts unapproved applications, to reach the bound without ten thousand requests.
async fn flood(app: &TestApp, count: i32, secs_ago: f64) {
    let sql = "insert into oauth_applications (client_id, name, website, redirect_uris, scopes, public, bind_to_authorizing_user, \
               project_selection, source, created_at, registered_from) \
               select gen_random_uuid(), 'flood', '', array['https://app.example/cb'], array['projects:read'], true, true, 'required', \
               'dcr', $2::timestamptz - make_interval(secs => $3 + n::float8 / 1000), '192.0.2.' || (n % 250) from generate_series(1, $1) n";
    app.app
        .db
        .query(sql, &[&count, &app.clock.now(), &secs_ago])
        .await
        .unwrap();
}

async fn unused(app: &TestApp) -> i64 {
    let sql = "select count(*) from oauth_applications a where not exists (select 1 from oauth_grants g where g.application_id = a.id)";
    app.app.db.query(sql, &[]).await.unwrap()[0].get(0)
}

/// At the bound, registration is blocked for half an hour at most.
#[tokio::test]
async fn full_registration_evicts_oldest_unapproved() {
    let app = TestApp::new().await;
    let used = register(&app, &right()).await.expect(201).json();
    let used = Client {
        id: used["client_id"].as_str().unwrap().to_owned(),
        secret: None,
    };
    used.approve(
        &app,
        &app.owner,
        &[],
        &json!({"project_refs": [app.home.project]}),
    )
    .await;
    app.advance(7_200);
    // Near the bound, recent applications are kept.
    flood(&app, 7_999, 3_600.0).await;
    register(&app, &right()).await.expect(201);
    assert_eq!(unused(&app).await, 8_000);
    register(&app, &right()).await.expect(201);
    assert_eq!(unused(&app).await, 7_501, "the 500 oldest made room");
    app.app
        .db
        .query("delete from oauth_applications where name = 'flood'", &[])
        .await
        .unwrap();
    flood(&app, 10_000, 0.0).await;
    let full = register(&app, &right()).await.expect(503);
    assert!(full.header("retry-after").is_some(), "{full:?}");
    app.advance(1_801);
    register(&app, &right()).await.expect(201);
    let sql = "select count(*) from oauth_applications where client_id = $1::text::uuid";
    assert_eq!(
        app.app.db.query(sql, &[&used.id]).await.unwrap()[0].get::<_, i64>(0),
        1,
        "the one that was approved"
    );
    let sql = "select count(*) from oauth_applications where name = 'flood' and created_at < $1";
    let oldest = app.clock.now() - chrono::TimeDelta::milliseconds(1_801_000 + 9_501);
    assert_eq!(
        app.app.db.query(sql, &[&oldest]).await.unwrap()[0].get::<_, i64>(0),
        0,
        "the oldest went"
    );
}

/// One address replaces its own oldest registration and no other.
#[tokio::test]
async fn registration_share_of_address_is_bounded() {
    let app = TestApp::new().await;
    flood(&app, 40, 60.0).await;
    let mut first = None;
    for _ in 0..6 {
        for _ in 0..10 {
            let made = app
                .post("/platform/oauth/apps/register")
                .json(&right())
                .send()
                .await
                .expect(201)
                .json();
            first.get_or_insert(made["client_id"].clone());
        }
        app.advance(3_600);
    }
    assert_eq!(unused(&app).await, 40 + 50);
    let sql = "select count(*) from oauth_applications where client_id = $1::text::uuid";
    assert_eq!(
        app.app
            .db
            .query(sql, &[&first.unwrap().as_str().unwrap()])
            .await
            .unwrap()[0]
            .get::<_, i64>(0),
        0
    );
}
