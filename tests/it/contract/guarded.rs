//! Authorization: every operation is called without a credential, by a stranger and in every role.

use gantry::platform::access::Role;
use serde_json::json;

use super::{FACTS, Findings, built, call, callable, is_public, may, names_subject, spellings};
use crate::support::{
    Actor, TestApp,
    client::{Answer, Call},
};

const ROLE_MESSAGE: &str = "Your account does not have the necessary privileges to access this endpoint. \
                            For more details, refer to our documentation https://supabase.com/docs/guides/platform/access-control";

/// Invalid credentials, and the messages about them.
const CREDENTIALS: [(Option<&str>, &str); 5] = [
    (None, "Unauthorized"),
    (Some("sbp_0123"), "JWT could not be decoded"),
    (
        Some("sbp_0000000000000000000000000000000000000000x"),
        "JWT could not be decoded",
    ),
    (
        Some("eyJhbGciOiJIUzI1NiJ9.eyJyb2xlIjoiYW5vbiJ9.c2ln"),
        "JWT failed verification",
    ),
    (
        Some("sbp_0000000000000000000000000000000000000000"),
        "Unauthorized",
    ),
];

#[tokio::test]
async fn unauthenticated_caller_gets_401_from_every_operation() {
    let app = TestApp::new().await;
    let mut found = Findings::default();
    for endpoint in callable()
        .into_iter()
        .filter(|endpoint| !is_public(endpoint))
    {
        for spelling in spellings(endpoint) {
            for (n, (token, message)) in CREDENTIALS.into_iter().enumerate() {
                // Unauthenticated requests are counted by address: one address for each credential.
                let request =
                    call(&app, endpoint, spelling, &app.home).from(&format!("127.0.0.{}", n + 1));
                let answer = token.into_iter().fold(request, Call::token).send().await;
                let wrong_message = endpoint.method.name() != "HEAD" && answer.message() != message;
                if answer.status != 401
                    || wrong_message
                    || !has_challenge(&answer, token)
                    || answer.header("x-gotrue-id").is_some()
                {
                    found.add(
                        endpoint,
                        format_args!("{spelling} with {token:?}: {answer:?}"),
                    );
                }
            }
        }
    }
    found.verdict("nobody");
}

#[tokio::test]
async fn stranger_gets_404_from_every_operation() {
    let app = TestApp::new().await;
    let mut found = Findings::default();
    for endpoint in callable()
        .into_iter()
        .filter(|endpoint| names_subject(endpoint) && !is_public(endpoint))
    {
        for spelling in spellings(endpoint) {
            let answer = call(&app, endpoint, spelling, &app.home)
                .as_(&app.stranger)
                .send()
                .await;
            let wrong_message = endpoint.method.name() != "HEAD" && answer.message() != "Not Found";
            if answer.status != 404 || wrong_message || !has_user_id(&answer, &app.stranger) {
                found.add(endpoint, format_args!("{spelling}: {answer:?}"));
            }
        }
    }
    found.verdict("stranger");
}

#[tokio::test]
async fn each_role_is_permitted_as_in_the_contract() {
    let app = TestApp::new().await;
    // Without it the list of SSO providers is a 404.
    app.request("PATCH", &app.at("/config/auth"))
        .as_(&app.owner)
        .json(&json!({"saml_enabled": true}))
        .send()
        .await
        .expect(200);
    app.mark_restore_point(&app.home.project).await;
    let mut found = Findings::default();
    let (mut refused, mut admitted) = (0, 0);
    for endpoint in callable() {
        // The lowest role first: an owner may delete resources that the others need.
        for (actor, role) in app.members().into_iter().rev() {
            let answer = call(&app, endpoint, endpoint.path, &app.home)
                .as_(actor)
                .send()
                .await;
            let problem = if names_subject(endpoint) && !may(endpoint, role) {
                refused += 1;
                refusal(&answer, endpoint.method.name())
            } else {
                admitted += 1;
                admission(&answer, endpoint.method.name(), built(endpoint))
            };
            if let Some(problem) =
                problem.or_else(|| (!has_user_id(&answer, actor)).then_some("headers"))
            {
                found.add(endpoint, format_args!("{role}: {problem}: {answer:?}"));
            }
            let windows = endpoint.limit.windows;
            if !windows
                .iter()
                .any(|window| window.requests == answer.quota.limit)
            {
                found.add(
                    endpoint,
                    format_args!(
                        "{role}: the limit is {} and not of {windows:?}",
                        answer.quota.limit
                    ),
                );
            }
        }
    }
    assert!(
        refused > 100 && admitted > 500,
        "{refused} were refused, {admitted} let in"
    );
    found.verdict("roles");
}

fn refusal(answer: &Answer, method: &str) -> Option<&'static str> {
    let has_message = method == "HEAD" || answer.message() == ROLE_MESSAGE;
    (answer.status != 403 || !has_message).then_some("should be rejected")
}

fn admission(answer: &Answer, method: &str, built: bool) -> Option<&'static str> {
    if built {
        return [401, 403, 404, 429, 501]
            .contains(&answer.status.as_u16())
            .then_some("should be permitted");
    }
    let has_message = method == "HEAD"
        || answer.message().contains(" is not available. ")
            && answer.message().contains("GET /v1/compatibility");
    // Without it clients retry a 5xx.
    let final_answer = answer.header("retry-after") == Some("86400");
    (answer.status != 501 || !has_message || !final_answer)
        .then_some("should be a 501 that names the reason")
}

/// Whether a 401 has the metadata URL, and `invalid_token` if a token was sent.
fn has_challenge(answer: &Answer, token: Option<&str>) -> bool {
    let challenge = answer.header("www-authenticate").unwrap_or_default();
    let wrong = challenge.starts_with("Bearer error=\"invalid_token\", ");
    challenge.starts_with("Bearer ")
        && challenge.contains("resource_metadata=\"http://")
        && wrong == token.is_some()
}

/// Whether the response has the id of the caller.
fn has_user_id(answer: &Answer, actor: &Actor) -> bool {
    answer.header("x-gotrue-id") == Some(&*actor.gotrue_id.to_string())
}

#[test]
fn contract_permits_more_to_higher_roles() {
    let held = |role| {
        callable()
            .into_iter()
            .filter(|endpoint| FACTS.contains_key(endpoint.id) && may(endpoint, role))
            .count()
    };
    let counts = [
        Role::ReadOnly,
        Role::Developer,
        Role::Administrator,
        Role::Owner,
    ]
    .map(held);
    assert!(counts.is_sorted_by(|a, b| a < b), "{counts:?}");
}
