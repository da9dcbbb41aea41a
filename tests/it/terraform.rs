//! The calls of the Terraform provider, resource by resource, replayed as data: its program cannot
//! be installed from a package registry.

use gantry::data_plane::projects::Status;
use serde::Deserialize;
use serde_json::Value;

use crate::support::TestApp;

/// A resource with the calls of its life: create, read, update, delete.
#[derive(Deserialize)]
struct Resource {
    resource: String,
    calls: Vec<RecordedCall>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedCall {
    /// The provider polls the project until it has this status.
    Wait { until: Status },
    /// A request. `{id}` of a path is the value that an earlier answer had.
    Request {
        method: String,
        /// Path below that of the project, or a whole path.
        path: String,
        body: Option<Value>,
        status: u16,
        /// Fields that the provider reads, with their values.
        answer: Option<Value>,
        /// Field of the answer that later paths contain.
        keep: Option<String>,
    },
}

/// Checks that `answer` has all fields of `expected`.
fn includes(answer: &Value, expected: &Value, what: &str) {
    match (answer, expected) {
        (Value::Object(answer), Value::Object(expected)) => {
            for (name, value) in expected {
                includes(&answer[name], value, &format!("{what}.{name}"));
            }
        }
        (Value::Array(answer), Value::Array(expected)) => {
            assert_eq!(answer.len(), expected.len(), "{what}");
            for (answer, expected) in answer.iter().zip(expected) {
                includes(answer, expected, what);
            }
        }
        _ => assert_eq!(answer, expected, "{what}"),
    }
}

#[tokio::test]
async fn calls_of_the_terraform_provider_are_answered_as_it_expects() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let resources: Vec<Resource> =
        serde_json::from_str(include_str!("terraform/calls.json")).unwrap();
    for Resource { resource, calls } in resources {
        let mut kept = String::new();
        for call in calls {
            let (method, path, body, status, answer, keep) = match call {
                RecordedCall::Wait { until } => {
                    app.until(&project, until).await;
                    continue;
                }
                RecordedCall::Request {
                    method,
                    path,
                    body,
                    status,
                    answer,
                    keep,
                } => (method, path, body, status, answer, keep),
            };
            let path = path.replace("{id}", &kept);
            let path = if path.starts_with("/v1/") {
                path
            } else {
                format!("/v1/projects/{project}{path}")
            };
            let mut request = app.request(&method, &path).as_(&app.owner);
            if let Some(body) = &body {
                request = request.json(body);
            }
            let got = request.send().await;
            let what = format!("{resource}: {method} {path}");
            assert_eq!(got.status.as_u16(), status, "{what}: {got:?}");
            if let Some(expected) = answer {
                includes(&got.json(), &expected, &what);
            }
            if let Some(field) = keep {
                let body = got.json();
                kept = body[&field].as_str().unwrap_or_default().to_owned();
            }
        }
    }
}
