//! The calls of the Terraform provider, resource by resource, replayed as data: its program cannot
//! be installed from a package registry.

use std::collections::BTreeMap;

use gantry::control::projects::Status;
use gantry_base::ids::ProjectRef;
use serde::Deserialize;
use serde_json::Value;

use crate::support::{TestApp, client::Call};

/// A resource with the calls of its life: create, read, update, delete.
#[derive(Deserialize)]
struct Resource {
    resource: String,
    calls: Vec<RecordedCall>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedCall {
    /// The provider polls the project, or another one, until it has this status.
    Wait { until: Status, of: Option<String> },
    /// A request. `{id}` of a path is the value that an earlier answer had in this field.
    Request {
        method: String,
        /// Path below that of the project, or a whole path.
        path: String,
        body: Option<Value>,
        form: Option<RecordedForm>,
        status: u16,
        /// Fields that the provider reads, with their values.
        answer: Option<Value>,
        /// Fields of the answer that later paths contain.
        #[serde(default)]
        keep: Vec<String>,
    },
}

/// The form of a deployment of a function. The provider sends the metadata last.
#[derive(Deserialize)]
struct RecordedForm {
    files: BTreeMap<String, String>,
    metadata: Value,
}

impl RecordedForm {
    fn fill(&self, call: Call) -> Call {
        let mut body = String::new();
        for (name, content) in &self.files {
            body.extend([
                "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"",
                name,
                "\"\r\nContent-Type: application/octet-stream\r\n\r\n",
                content,
                "\r\n",
            ]);
        }
        body.extend([
            "--x\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n",
            &self.metadata.to_string(),
            "\r\n--x--\r\n",
        ]);
        call.header("content-type", "multipart/form-data; boundary=x")
            .body(body)
    }
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
        let mut kept = BTreeMap::new();
        let fill = |text: &str, kept: &BTreeMap<String, String>| {
            let fields = kept.iter();
            fields.fold(text.to_owned(), |text, (field, value)| {
                text.replace(&format!("{{{field}}}"), value)
            })
        };
        for call in calls {
            let (method, path, body, form, status, answer, keep) = match call {
                RecordedCall::Wait { until, of } => {
                    let other = of.map(|of| fill(&of, &kept).parse::<ProjectRef>().unwrap());
                    app.until(other.as_ref().unwrap_or(&project), until).await;
                    continue;
                }
                RecordedCall::Request {
                    method,
                    path,
                    body,
                    form,
                    status,
                    answer,
                    keep,
                } => (method, path, body, form, status, answer, keep),
            };
            let path = fill(&path, &kept);
            let path = if path.starts_with("/v1/") {
                path
            } else {
                format!("/v1/projects/{project}{path}")
            };
            let mut request = app.request(&method, &path).as_(&app.owner);
            if let Some(body) = &body {
                request = request.json(body);
            }
            if let Some(form) = &form {
                request = form.fill(request);
            }
            let got = request.send().await;
            let what = format!("{resource}: {method} {path}");
            assert_eq!(got.status.as_u16(), status, "{what}: {got:?}");
            if let Some(expected) = answer {
                includes(&got.json(), &expected, &what);
            }
            for field in keep {
                let value = got.json()[&field].as_str().unwrap_or_default().to_owned();
                kept.insert(field, value);
            }
        }
    }
}
