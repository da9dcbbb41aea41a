//! U+0000, which PostgreSQL cannot store, is a client error in every parameter and field.

use gantry::{api::endpoints, platform::http::Endpoint};
use serde_json::{Map, Value, json};

use super::{Findings, built};
use crate::{
    support::{
        TestApp,
        client::{Answer, Call},
        document::DOCUMENT,
    },
    web::browser::Browser,
};

const NUL: &str = "a\0b";
/// Largest depth of fields in a schema.
const DEPTH_MAX: usize = 4;

/// Returns the documentation of an operation.
fn described(endpoint: &Endpoint) -> &'static Value {
    &DOCUMENT["paths"][endpoint.path][endpoint.method.name().to_lowercase()]
}

/// Returns a request of the owner without the tested text.
fn request(app: &TestApp, endpoint: &Endpoint, odd_segment: bool, query: &str) -> Call {
    let segment = |part: &str| match part {
        "{ref}" | "{branch_id_or_ref}" => app.home.project.to_string(),
        "{slug}" => app.home.slug.to_string(),
        name if name.starts_with('{') => if odd_segment { "x%00" } else { "x1" }.to_owned(),
        literal => literal.to_owned(),
    };
    let path: Vec<_> = endpoint.path.split('/').map(segment).collect();
    app.request(
        endpoint.method.name(),
        &format!("{}{query}", path.join("/")),
    )
    .as_(&app.owner)
}

fn resolved(schema: &'static Value) -> &'static Value {
    match schema["$ref"].as_str() {
        Some(reference) => {
            &DOCUMENT["components"]["schemas"][reference.rsplit('/').next().unwrap()]
        }
        None => schema,
    }
}

/// Paths of the fields of a schema that may be strings. A list stands for its first value.
fn strings(schema: &'static Value, path: &[String], depth: usize, found: &mut Vec<Vec<String>>) {
    let schema = resolved(schema);
    if depth > DEPTH_MAX {
        return;
    }
    if schema["type"] == "string" {
        found.push(path.to_vec());
    }
    let below = |name: &str| [path, &[name.to_owned()]].concat();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        strings(property, &below(name), depth + 1, found);
    }
    if schema["items"].is_object() {
        strings(&schema["items"], &below("0"), depth + 1, found);
    }
    if schema["additionalProperties"].is_object() {
        strings(
            &schema["additionalProperties"],
            &below("field"),
            depth + 1,
            found,
        );
    }
    for one in ["anyOf", "oneOf", "allOf"]
        .iter()
        .flat_map(|kind| schema[kind].as_array().into_iter().flatten())
    {
        strings(one, path, depth + 1, found);
    }
}

/// Sets the tested text at a path of the body, and creates missing objects of the path.
fn with(body: &mut Value, path: &[String]) {
    let Some((name, rest)) = path.split_first() else {
        *body = NUL.into();
        return;
    };
    if name == "0" {
        if !body.is_array() {
            *body = json!([null]);
        }
        let list = body.as_array_mut().unwrap();
        if list.is_empty() {
            list.push(Value::Null);
        }
        return with(&mut list[0], rest);
    }
    if !body.is_object() {
        *body = Value::Object(Map::new());
    }
    with(&mut body[name.as_str()], rest);
}

/// Advances the clock past the rate limit.
fn rest(app: &TestApp, endpoint: &Endpoint) {
    app.advance(
        endpoint
            .limit
            .windows
            .iter()
            .filter(|window| window.requests < 120)
            .map(|window| window.secs)
            .max()
            .unwrap_or(1),
    );
}

fn names_it(answer: &Answer) -> bool {
    answer.status == 400 && answer.text().contains("U+0000")
}

#[tokio::test]
async fn null_byte_in_query_or_path_never_returns_500() {
    let app = TestApp::new().await;
    let mut found = Findings::default();
    for endpoint in endpoints::all()
        .iter()
        .copied()
        .filter(|endpoint| endpoint.method.name() != "HEAD")
    {
        let documented = described(endpoint)["parameters"]
            .as_array()
            .into_iter()
            .flatten();
        let names = documented
            .filter(|it| it["in"] == "query")
            .map(|it| it["name"].as_str().unwrap());
        for name in names.chain(["undocumented"]) {
            let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
            let answer = request(&app, endpoint, false, &format!("?{name}=a%00b"))
                .send()
                .await;
            // One operation resolves its subject from the query first.
            let nowhere = answer.status == 404 && ["ref", "slug"].contains(&&*name);
            if !names_it(&answer) && !nowhere {
                found.add(endpoint, format_args!("{name}: {answer:?}"));
            }
            rest(&app, endpoint);
        }
        if endpoint.path.contains('{') {
            let answer = request(&app, endpoint, true, "").send().await;
            if answer.status == 500 {
                found.add(endpoint, format_args!("in its path: {answer:?}"));
            }
            rest(&app, endpoint);
        }
    }
    found.verdict("nul");
}

#[tokio::test]
async fn null_byte_in_body_never_returns_500() {
    let app = TestApp::new().await;
    let mut found = Findings::default();
    let (mut tried, mut named) = (0, 0);
    for endpoint in endpoints::all()
        .iter()
        .copied()
        .filter(|endpoint| built(endpoint))
    {
        let content = &described(endpoint)["requestBody"]["content"];
        let (json, form) = (
            &content["application/json"]["schema"],
            &content["application/x-www-form-urlencoded"]["schema"],
        );
        let (mut fields, mut form_fields) = (Vec::new(), Vec::new());
        strings(json, &[], 0, &mut fields);
        strings(form, &[], 0, &mut form_fields);
        let sample = (endpoint.handler)().sample;
        let filled = sample
            .body
            .unwrap_or("{}")
            .replace("{{GANTRY_ORG}}", app.home.slug.as_str());
        let sample: Value = serde_json::from_str(&filled).unwrap();
        for path in fields {
            let mut body = sample.clone();
            with(&mut body, &path);
            let answer = request(&app, endpoint, false, "").json(&body).send().await;
            (tried, named) = (tried + 1, named + usize::from(names_it(&answer)));
            if answer.status == 500 {
                found.add(endpoint, format_args!("{}: {answer:?}", path.join(".")));
            }
            rest(&app, endpoint);
        }
        for path in form_fields {
            let answer = request(&app, endpoint, false, "")
                .form(&[(path[0].as_str(), NUL)])
                .send()
                .await;
            (tried, named) = (tried + 1, named + usize::from(names_it(&answer)));
            if answer.status != 400 {
                found.add(endpoint, format_args!("{}: {answer:?}", path.join(".")));
            }
        }
    }
    assert!(
        tried > 150 && named > tried / 2,
        "{named} of {tried} named the field"
    );
    found.verdict("nul");
}

/// Public pages that look up a text in the database.
#[tokio::test]
async fn sign_in_with_null_byte_returns_400() {
    let app = TestApp::new().await;
    let mut browser = Browser::new(&app.node);
    for fields in [
        [("email", NUL), ("password", "x")],
        [("email", "olga@example.com"), ("password", NUL)],
    ] {
        browser
            .post("/sign-in", &fields)
            .await
            .expect(400)
            .says("U+0000");
    }
    browser.get("/sign-in?next=%00").await.expect(400);
}

/// An escaped backslash before `u0000` is permitted.
#[tokio::test]
async fn name_with_invisible_characters_returns_400() {
    let app = TestApp::new().await;
    for hidden in [
        "a\u{1b}[31mb",
        "a\u{202e}b",
        "a\nb",
        "a\u{7f}b",
        "\u{3164}",
        "a\u{e0041}b",
    ] {
        let organization = app
            .post("/v1/organizations")
            .as_(&app.owner)
            .json(&json!({"name": hidden}))
            .send()
            .await
            .expect(400);
        let project = app
            .post("/v1/projects")
            .as_(&app.owner)
            .json(&app.new_project(hidden))
            .send()
            .await
            .expect(400);
        let renamed = app
            .patch(&app.at(""))
            .as_(&app.owner)
            .json(&json!({"name": hidden}))
            .send()
            .await
            .expect(400);
        let token = json!({
            "name": hidden, "expires_in_days": 7, "organization_slugs": [app.home.slug], "permissions": ["database_read"],
        });
        let token = app
            .post("/v1/tokens")
            .as_(&app.owner)
            .json(&token)
            .send()
            .await
            .expect(400);
        for answer in [organization, project, renamed, token] {
            assert!(
                answer
                    .message()
                    .starts_with("name: expected 1 to 256 visible characters"),
                "{hidden:?}: {answer:?}"
            );
        }
    }
    let escaped = r"a\u0000b";
    app.patch(&app.at(""))
        .as_(&app.owner)
        .json(&json!({"name": escaped}))
        .send()
        .await
        .expect(200);
}
