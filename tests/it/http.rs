//! Steps shared by all requests: transport, routing, bodies, request ids, internal errors.

use std::sync::Arc;

use gantry::{
    api::endpoints,
    platform::{
        access::Access,
        error::Error,
        http::{Api, Endpoint, Tag, Transport, Verb, mount, output::OkEmpty},
        rate_limits::STANDARD,
    },
    web,
};
use serde_json::json;

use crate::support::{TestApp, client::Call, machine::Machine};

// Routing.

#[tokio::test]
async fn unknown_route_returns_404_with_method_and_path() {
    let app = TestApp::new().await;
    for (method, path, message) in [
        ("GET", "/", "Cannot GET /"),
        ("GET", "/x", "Cannot GET /x"),
        ("GET", "/v1", "Cannot GET /v1"),
        ("GET", "/v1/projects/", "Cannot GET /v1/projects/"),
        ("GET", "/v1/nowhere?token=secret", "Cannot GET /v1/nowhere"),
        ("DELETE", "/v1/projects", "Cannot DELETE /v1/projects"),
        ("PUT", "/v1/organizations", "Cannot PUT /v1/organizations"),
        ("POST", "/v1/profile/", "Cannot POST /v1/profile/"),
        ("TRACE", "/v1/profile", "Cannot TRACE /v1/profile"),
        ("FROB", "/v1/profile", "Cannot FROB /v1/profile"),
        ("GET", "/v1/access-tokens", "Cannot GET /v1/access-tokens"),
    ] {
        for call in [
            app.request(method, path),
            app.request(method, path).as_(&app.owner),
        ] {
            let answer = call.send().await.expect(404);
            assert_eq!(answer.json(), json!({"message": message}));
            assert_eq!(answer.quota.limit, 120);
        }
    }
}

#[tokio::test]
async fn path_with_escapes_or_other_case_is_not_normalized() {
    let app = TestApp::new().await;
    let project = app.home.project.as_str();
    for path in [
        format!("/v1/projects/{project}%20"),
        format!(
            "/v1/projects/%{:02x}{}",
            project.as_bytes()[0],
            &project[1..]
        ),
        format!("/v1/projects/{}", project.to_uppercase()),
        "/v1/projects/%2e%2e%2f%2e%2e%2fetc%2fpass".to_owned(),
        format!("/v1/projects/{}", "a".repeat(5000)),
    ] {
        assert_eq!(
            app.get(&path)
                .as_(&app.owner)
                .send()
                .await
                .expect(404)
                .message(),
            "Not Found",
            "{path}"
        );
    }
}

// Bodies.

#[tokio::test]
async fn invalid_json_body_returns_400_naming_the_field() {
    let app = TestApp::new().await;
    for (body, message) in [
        ("", "body: Invalid input: EOF while parsing a value"),
        ("nonsense", "body: Invalid input: expected ident"),
        (
            "{\"name\": \"x\"} trailing",
            "body: Invalid input: trailing characters",
        ),
        ("[]", "body: Invalid input: expected an object"),
        (" [\"by place\"]", "body: Invalid input: expected an object"),
        ("{}", "name: Required"),
        (
            "{\"name\": \"\\ud800\"}",
            "name: Invalid input: unexpected end of hex escape",
        ),
        (
            "{\"name\": null}",
            "name: Invalid input: invalid type: null, expected a string",
        ),
    ] {
        let answer = app
            .post("/v1/organizations")
            .as_(&app.owner)
            .body(body)
            .send()
            .await
            .expect(400);
        assert_eq!(answer.message(), message, "{body}");
    }
    let deep = "[".repeat(100_000);
    let answer = app
        .post("/v1/organizations")
        .as_(&app.owner)
        .body(deep.clone())
        .send()
        .await
        .expect(400);
    assert!(
        answer.message().contains("Invalid input"),
        "{}",
        answer.message()
    );
    // Also if the guard reads the body.
    app.post("/v1/projects")
        .as_(&app.owner)
        .body(deep)
        .send()
        .await
        .expect(400);
}

#[tokio::test]
async fn body_over_the_limit_returns_413() {
    let app = TestApp::new().await;
    let body = |bytes: usize| format!("{{\"name\": \"{}\"}}", "x".repeat(bytes - 12));
    let answer = app
        .post("/v1/organizations")
        .as_(&app.owner)
        .body(body((1 << 20) + 1))
        .send()
        .await
        .expect(413);
    assert_eq!(
        answer.message(),
        "request entity too large: at most 1048576 bytes"
    );
    assert_eq!(
        app.post("/v1/organizations")
            .as_(&app.owner)
            .body(body(1 << 20))
            .send()
            .await
            .expect(400)
            .message(),
        "name: expected 1 to 256 characters"
    );
    // The body of an unauthorized caller is not read.
    let answer = app
        .post(&app.at("/database/query"))
        .as_(&app.stranger)
        .body(body((1 << 20) + 1))
        .send()
        .await;
    assert_eq!(answer.expect(404).message(), "Not Found");
}

#[tokio::test]
async fn chunked_body_over_the_limit_returns_413() {
    let app = TestApp::new().await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    let chunks = futures_util::stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    });
    // More than is read and dropped after the limit, 64 MB; stops when the receiver is dropped.
    let feed = tokio::spawn(async move {
        let mut fed = 0;
        while fed < 2000 && sender.send(Ok(vec![b' '; 64 << 10].into())).await.is_ok() {
            fed += 1;
        }
        fed
    });
    app.post("/v1/organizations")
        .as_(&app.owner)
        .body(axum::body::Body::from_stream(Box::pin(chunks)))
        .send()
        .await
        .expect(413);
    assert!(feed.await.unwrap() < 1100);
}

#[tokio::test]
async fn truncated_body_returns_400() {
    let app = TestApp::new().await;
    let chunks =
        futures_util::stream::iter([Ok("{\"name\": "), Err(std::io::Error::other("reset"))]);
    let answer = app
        .post("/v1/organizations")
        .as_(&app.owner)
        .body(axum::body::Body::from_stream(chunks))
        .send()
        .await
        .expect(400);
    assert_eq!(answer.message(), "body: could not be read to its end");
}

// Request ids.

#[tokio::test]
async fn request_id_is_echoed_or_generated() {
    let app = TestApp::new().await;
    let made = app
        .get("/v1/profile")
        .send()
        .await
        .header("x-request-id")
        .unwrap()
        .to_owned();
    assert!(
        made.len() == 32 && made.bytes().all(|b| b.is_ascii_hexdigit()),
        "{made}"
    );
    assert_ne!(
        app.get("/v1/profile").send().await.header("x-request-id"),
        Some(&*made)
    );
    for fit in ["7", "req_01-abc:def/~", &"x".repeat(128)] {
        assert_eq!(
            app.get("/nowhere")
                .header("x-request-id", fit)
                .send()
                .await
                .header("x-request-id"),
            Some(fit)
        );
    }
    for unfit in ["", "two words", "caf\u{e9}", &"x".repeat(129)] {
        let answer = app
            .get("/nowhere")
            .header("x-request-id", unfit)
            .send()
            .await;
        assert_eq!(
            answer.header("x-request-id").map(str::len),
            Some(32),
            "{unfit}"
        );
    }
}

// Transport.

const INSECURE: &str = "This API answers over HTTPS only. Use https, or let the proxy in front send X-Forwarded-Proto: https and name it in --trusted-proxies.";

#[tokio::test]
async fn plain_http_from_another_host_returns_403_before_authentication() {
    let app = TestApp::new().await;
    for path in ["/v1/profile", "/v1/compatibility", "/nowhere"] {
        let answer = app
            .get(path)
            .from("203.0.113.9")
            .as_(&app.owner)
            .header("x-forwarded-proto", "https")
            .send()
            .await
            .expect(403);
        assert_eq!(answer.message(), INSECURE);
        assert_eq!(answer.header("x-gotrue-id"), None, "the token was not read");
        assert_eq!(answer.quota.remaining, 119);
    }
    app.get("/v1/profile")
        .from("::1")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.get("/v1/profile")
        .from("::ffff:127.0.0.1")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn tls_listener_serves_any_address() {
    let app = TestApp::with(
        Transport {
            tls: true,
            ..Transport::default()
        },
        Arc::new(Machine::bare()),
    )
    .await;
    app.get("/v1/profile")
        .from("203.0.113.9")
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn trusted_proxy_headers_set_the_client_address() {
    let transport = Transport {
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
        ..Transport::default()
    };
    let app = TestApp::with(transport, Arc::new(Machine::bare())).await;
    let through = |client: &str| {
        app.get("/v1/profile")
            .from("10.1.2.3")
            .header("x-forwarded-for", client)
            .header("x-forwarded-proto", "https")
    };
    assert_eq!(
        through("203.0.113.9")
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .quota
            .remaining,
        119
    );
    // Unauthenticated requests are counted by the address that the proxy appended.
    assert_eq!(
        through("203.0.113.9")
            .send()
            .await
            .expect(401)
            .quota
            .remaining,
        119
    );
    assert_eq!(
        through("6.6.6.6, 203.0.113.9")
            .send()
            .await
            .expect(401)
            .quota
            .remaining,
        118
    );
    assert_eq!(
        through("203.0.113.10")
            .send()
            .await
            .expect(401)
            .quota
            .remaining,
        119
    );
    // IPv6 addresses of one /64 share a counter.
    assert_eq!(
        through("2001:db8::1")
            .send()
            .await
            .expect(401)
            .quota
            .remaining,
        119
    );
    assert_eq!(
        through("2001:db8::ffff:1")
            .send()
            .await
            .expect(401)
            .quota
            .remaining,
        118
    );
    assert_eq!(
        through("2001:db8:0:1::1")
            .send()
            .await
            .expect(401)
            .quota
            .remaining,
        119
    );

    for proto in [None, Some("http"), Some("https, http")] {
        let call = app
            .get("/v1/profile")
            .from("10.1.2.3")
            .header("x-forwarded-for", "203.0.113.9")
            .as_(&app.owner);
        let call = proto
            .into_iter()
            .fold(call, |call, proto| call.header("x-forwarded-proto", proto));
        assert_eq!(
            call.send().await.expect(403).message(),
            INSECURE,
            "{proto:?}"
        );
    }
    app.get("/v1/profile")
        .from("203.0.113.9")
        .header("x-forwarded-proto", "https")
        .as_(&app.owner)
        .send()
        .await
        .expect(403);
}

// Internal errors.

static PANICS: Endpoint = Endpoint {
    id: "test-panics",
    summary: "Panics",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/panics",
    aliases: &[],
    access: Access::Caller,
    limit: &STANDARD,
    handler: || mount(panics),
};

async fn panics() -> Result<OkEmpty, Error> {
    panic!("the password is hunter2")
}

#[tokio::test]
async fn panic_returns_500_without_details() {
    let app = TestApp::new().await;
    let api = Api::new(
        &app.app.platform,
        std::sync::Arc::new(app.app.context.clone()),
        &[&PANICS],
        &endpoints::UNKNOWN,
        &web::served(),
    );
    let answer = Call::new(api.clone(), "GET", "/panics")
        .as_(&app.owner)
        .header("x-request-id", "abc")
        .send()
        .await
        .expect(500);
    assert_eq!(
        answer.json(),
        json!({"message": "Internal Server Error", "errorEventId": "abc"})
    );
    assert_eq!((answer.quota.limit, answer.quota.remaining), (120, 119));
    assert_eq!(
        answer.header("x-gotrue-id"),
        Some(&*app.owner.gotrue_id.to_string())
    );
    let logged = app.log.take_errors();
    assert!(
        matches!(&*logged, [line] if line.contains("abc") && line.contains("test-panics") && line.contains("hunter2")),
        "{logged:?}"
    );
    // The next request is served.
    Call::new(api, "GET", "/nowhere").send().await.expect(404);
}

#[tokio::test]
async fn control_database_error_returns_500_without_details() {
    let app = TestApp::new().await;
    app.app
        .db
        .query("drop table projects cascade", &[])
        .await
        .unwrap();
    let answer = app
        .get("/v1/projects")
        .as_(&app.owner)
        .send()
        .await
        .expect(500);
    let id = answer.header("x-request-id").unwrap().to_owned();
    assert_eq!(
        answer.json(),
        json!({"message": "Internal Server Error", "errorEventId": id})
    );
    let logged = app.log.take_errors();
    assert!(
        matches!(&*logged, [line] if line.contains(&id) && line.contains("listing projects") && line.contains("relation")),
        "{logged:?}"
    );
}

// Operations of Gantry itself.

#[tokio::test]
async fn openapi_document_and_reference_pages_are_public() {
    let app = TestApp::new().await;
    let served = app.get("/api/v1-json").send().await.expect(200);
    assert_eq!(served.json(), *crate::support::document::DOCUMENT);
    for path in ["/docs", "/api/v1"] {
        let page = app.get(path).send().await.expect(200);
        assert!(
            page.header("content-type")
                .is_some_and(|kind| kind.starts_with("text/html")),
            "{page:?}"
        );
        assert!(
            page.header("content-security-policy")
                .is_some_and(|policy| !policy.contains("http")),
            "{page:?}"
        );
    }
    assert_eq!(
        app.get("/docs/../../etc/passwd")
            .send()
            .await
            .expect(404)
            .message(),
        "Cannot GET /docs/../../etc/passwd"
    );
    app.get("/docs/no-such-file.js").send().await.expect(404);
}

#[tokio::test]
async fn compatibility_lists_every_operation() {
    let app = TestApp::new().await;
    let listed = app.get("/v1/compatibility").send().await.expect(200).json();
    let count = |state: &str| {
        listed
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["state"] == state)
            .count()
    };
    let built = endpoints::all()
        .iter()
        .filter(|endpoint| (endpoint.handler)().built)
        .count();
    assert_eq!(
        listed.as_array().unwrap().len(),
        endpoints::all().len(),
        "{listed}"
    );
    assert_eq!(
        (count("built"), count("planned")),
        (built, endpoints::all().len() - built),
        "{}",
        listed[0]
    );
    for row in listed.as_array().unwrap() {
        assert_eq!(
            row["reason"].is_string(),
            row["state"] == "planned",
            "{row}"
        );
        assert!(
            row["reason"].is_string() || row["reason"].is_null(),
            "{row}"
        );
    }
}

#[tokio::test]
async fn unimplemented_operation_answers_the_reason_of_the_compatibility_list() {
    let app = TestApp::new().await;
    let listed = app.get("/v1/compatibility").send().await.expect(200).json();
    let id = "v2-list-private-link-associations";
    let row = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["operation"] == id)
        .unwrap();
    let path = app
        .at("/private-link/associations")
        .replacen("/v1", "/v2", 1);
    let answer = app.get(&path).as_(&app.owner).send().await.expect(501);
    let reason = row["reason"].as_str().unwrap();
    assert!(reason.contains("use network restrictions"), "{reason}");
    assert!(answer.message().contains(reason), "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "not_implemented");
}
