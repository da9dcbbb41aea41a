//! Checks before the content of a request: its media type, and its number of credentials.

use super::{Findings, built, call, callable, spellings};
use crate::support::{TestApp, client::Call, document::DOCUMENT};

/// Whether the operation documents a JSON body.
fn reads_json(endpoint: &gantry::platform::http::Endpoint) -> bool {
    let method = endpoint.method.name().to_lowercase();
    !DOCUMENT["paths"][endpoint.path][method]["requestBody"]["content"]["application/json"]
        .is_null()
}

/// Replaces the content type of a request.
fn as_media(call: Call, media: Option<&str>) -> Call {
    let call = call.without("content-type");
    if let Some(media) = media {
        call.header("content-type", media)
    } else {
        call
    }
}

#[tokio::test]
async fn non_json_media_type_returns_415_from_every_json_operation() {
    let app = TestApp::new().await;
    let (mut found, mut checked) = (Findings::default(), 0);
    for endpoint in callable()
        .into_iter()
        .filter(|endpoint| built(endpoint) && reads_json(endpoint))
    {
        // Also reads forms, as RFC 7009 defines.
        if endpoint.id == "v1-revoke-token" {
            continue;
        }
        let request = || {
            call(&app, endpoint, endpoint.path, &app.home)
                .json(&serde_json::json!({"organization_slug": app.home.slug}))
        };
        let sent = async |media| as_media(request(), media).as_(&app.owner).send().await;
        for media in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/json; charset=utf-16",
        ] {
            let answer = sent(Some(media)).await;
            // The path is parsed first, and its placeholder is not a valid id.
            if answer.status == 400
                && ["id: ", "user_id: ", "version: "]
                    .iter()
                    .any(|field| answer.message().starts_with(field))
            {
                continue;
            }
            if answer.status != 415
                || answer.message() != "Unsupported Media Type: send the body as application/json"
            {
                found.add(endpoint, format_args!("{media}: {answer:?}"));
            }
        }
        for media in [
            None,
            Some("application/json"),
            Some("Application/JSON; charset=UTF-8"),
            Some("application/merge-patch+json"),
        ] {
            let answer = sent(media).await;
            if answer.status == 415 {
                found.add(endpoint, format_args!("{media:?}: {answer:?}"));
            }
        }
        checked += 1;
    }
    assert!(checked > 20, "{checked} operations");
    found.verdict("media");
}

#[tokio::test]
async fn unauthorized_callers_do_not_get_415() {
    let app = TestApp::new().await;
    let request = || {
        as_media(
            app.post(&app.at("/database/migrations")).body("x"),
            Some("text/plain"),
        )
    };
    request().as_(&app.stranger).send().await.expect(404);
    request().send().await.expect(401);
    request().as_(&app.owner).send().await.expect(415);
}

#[tokio::test]
async fn two_authorization_fields_return_400_from_every_operation() {
    let app = TestApp::new().await;
    let mut found = Findings::default();
    for endpoint in gantry::api::endpoints::all().iter().copied() {
        for spelling in spellings(endpoint) {
            let request = call(&app, endpoint, spelling, &app.home);
            let (first, second) = (format!("Bearer {}", app.owner.token), "Basic eDp5");
            let answer = request
                .header("authorization", &first)
                .header("authorization", second)
                .send()
                .await;
            let has_message = endpoint.method.name() == "HEAD"
                || answer
                    .message()
                    .starts_with("Authorization: was sent more than once");
            if answer.status != 400 || !has_message || answer.header("x-gotrue-id").is_some() {
                found.add(endpoint, format_args!("{spelling}: {answer:?}"));
            }
        }
    }
    found.verdict("credentials");
    // Counted by address, as all unauthenticated requests.
    let twice = async || {
        let request = app.get("/v1/profile").from("127.0.0.9");
        request
            .as_(&app.owner)
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .quota
            .remaining
    };
    assert_eq!((twice().await, twice().await), (119, 118));
}
