//! Notebooks: lifecycle, cells, lists, bounds, and their project as boundary.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    Actor, TestApp,
    client::{Answer, Call},
};

/// Path of the notebooks of the home project.
fn at(app: &TestApp, rest: &str) -> String {
    format!("/v2/projects/{}/notebooks{rest}", app.home.project)
}

/// The body of a request with these attributes.
fn body(attributes: &Value) -> Value {
    json!({"data": {"type": "notebook", "attributes": attributes}})
}

fn markdown(text: &str) -> Value {
    json!({"type": "markdown", "text": text})
}

/// A request of a member that creates a notebook.
fn post(app: &TestApp, actor: &Actor, name: &str, cells: &Value) -> Call {
    let attributes = json!({"name": name, "content": {"cells": cells}});
    app.post(&at(app, "")).as_(actor).json(&body(&attributes))
}

/// Creates a notebook, and returns its resource.
async fn create(app: &TestApp, name: &str, cells: &Value) -> Value {
    let answer = post(app, &app.developer, name, cells).send().await;
    answer.expect(201).json()["data"].take()
}

fn id(notebook: &Value) -> &str {
    notebook["id"].as_str().unwrap()
}

async fn patch(app: &TestApp, id: &str, attributes: &Value) -> Answer {
    app.patch(&at(app, &format!("/{id}")))
        .as_(&app.developer)
        .json(&body(attributes))
        .send()
        .await
}

async fn patch_cells(app: &TestApp, id: &str, cells: &Value) -> Answer {
    patch(app, id, &json!({"content": {"cells": cells}})).await
}

async fn get(app: &TestApp, id: &str) -> Value {
    let call = app.get(&at(app, &format!("/{id}"))).as_(&app.read_only);
    call.send().await.expect(200).json()["data"].take()
}

fn cells(notebook: &Value) -> Vec<Value> {
    let cells = notebook["attributes"]["content"]["cells"].as_array();
    cells.unwrap().clone()
}

async fn page(app: &TestApp, path: &str) -> Value {
    let call = app.get(path).as_(&app.read_only);
    call.send().await.expect(200).json()
}

fn names(page: &Value) -> Vec<&str> {
    page["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|notebook| notebook["attributes"]["name"].as_str().unwrap())
        .collect()
}

/// Checks the status, code and message of an error.
#[track_caller]
fn check_error(answer: Answer, status: u16, code: &str, start: &str) {
    let answer = answer.expect(status);
    let message = answer.message();
    assert!(message.starts_with(start), "{message}");
    assert_eq!(answer.json()["error"]["code"], code, "{message}");
}

#[tokio::test]
async fn notebook_is_created_changed_and_deleted_by_a_developer() {
    let app = TestApp::new().await;
    let chart = json!({
        "type": "line", "x_column": "day", "y_series": [{"column": "orders"}], "scale": "linear",
        "cumulative": true, "show_labels": false,
    });
    let sent = json!([
        markdown("# Orders"),
        {"type": "database", "sql": "select 1", "title": "Days", "view": "chart", "chart": chart},
        {"type": "log", "sql": "select 2", "time_range": {"type": "relative", "unit": "day", "amount": 7}},
    ]);
    let created = create(&app, "Orders", &sent).await;
    let dora = json!({"id": app.developer.user.0, "username": "dora"});
    let attributes = &created["attributes"];
    assert_eq!(created["type"], "notebook");
    assert_eq!(attributes["name"], "Orders");
    assert_eq!(attributes["description"], Value::Null);
    assert_eq!(attributes["favorite"], false);
    assert_eq!(attributes["inserted_at"], "2026-11-21T09:15:03Z");
    assert_eq!(
        (&attributes["owner"], &attributes["updated_by"]),
        (&dora, &dora)
    );
    assert_eq!(attributes["content"]["schema_version"], 1);
    let stored = cells(&created);
    assert_eq!(stored[0]["text"], "# Orders");
    assert_eq!(stored[1]["row_limit"], 100);
    assert_eq!(stored[1]["chart"], chart);
    assert_eq!(stored[2]["time_range"]["amount"], 7);
    assert!(stored.iter().all(|cell| cell["id"].is_string()));
    assert_eq!(get(&app, id(&created)).await, created);

    app.advance(60);
    let changes = json!({"name": "Sales", "description": "By day", "favorite": true});
    let changed = patch(&app, id(&created), &changes).await.expect(200).json();
    let attributes = &changed["data"]["attributes"];
    assert_eq!(attributes["name"], "Sales");
    assert_eq!(attributes["description"], "By day");
    assert_eq!(attributes["favorite"], true);
    assert_eq!(attributes["updated_at"], "2026-11-21T09:16:03Z");
    assert_eq!(attributes["inserted_at"], "2026-11-21T09:15:03Z");
    assert_eq!(cells(&changed["data"]), stored, "absent attributes stay");
    let removed = json!({"description": null});
    let removed = patch(&app, id(&created), &removed).await.expect(200).json();
    let attributes = &removed["data"]["attributes"];
    assert_eq!(attributes["description"], Value::Null);
    assert_eq!(attributes["name"], "Sales");

    let path = at(&app, &format!("/{}", id(&created)));
    let delete = || app.delete(&path).as_(&app.developer).send();
    let deleted = delete().await.expect(204);
    assert!(deleted.body.is_empty());
    let not_found = "Not Found: Notebook not found";
    check_error(delete().await, 404, "notebook_not_found", not_found);
    let gone = app.get(&path).as_(&app.owner).send().await;
    check_error(gone, 404, "notebook_not_found", not_found);
    let gone = patch(&app, id(&created), &json!({})).await;
    check_error(gone, 404, "notebook_not_found", not_found);
}

#[tokio::test]
async fn update_by_another_member_keeps_the_owner() {
    let app = TestApp::new().await;
    let created = create(&app, "x", &json!([])).await;
    let path = at(&app, &format!("/{}", id(&created)));
    let call = app.patch(&path).as_(&app.owner);
    let changed = call.json(&body(&json!({"favorite": true}))).send().await;
    let attributes = changed.expect(200).json()["data"]["attributes"].take();
    assert_eq!(attributes["owner"]["username"], "dora");
    assert_eq!(attributes["updated_by"]["username"], "olga");
}

#[tokio::test]
async fn update_of_cells_keeps_echoed_ids_and_replaces_the_others() {
    let app = TestApp::new().await;
    let sent = json!([markdown("a"), markdown("b"), markdown("c")]);
    let created = create(&app, "x", &sent).await;
    let before = cells(&created);
    let mut kept = before[2].clone();
    kept["text"] = "c2".into();
    let sent = json!([kept, markdown("new"), before[0]]);
    patch_cells(&app, id(&created), &sent).await.expect(200);
    let after = cells(&get(&app, id(&created)).await);
    assert_eq!(after.len(), 3);
    assert_eq!((&after[0], &after[2]), (&kept, &before[0]));
    let new = &after[1]["id"];
    assert!(new.is_string() && before.iter().all(|cell| cell["id"] != *new));
    // The id of a removed cell is unknown from now on.
    let unknown = patch_cells(&app, id(&created), &json!([before[1]])).await;
    let start = "data.attributes.content.cells.0.id: ";
    check_error(unknown, 400, "notebook_cell_unknown", start);
    patch_cells(&app, id(&created), &json!([]))
        .await
        .expect(200);
    assert!(cells(&get(&app, id(&created)).await).is_empty());
}

#[tokio::test]
async fn repeated_or_unknown_cell_id_is_rejected_and_changes_nothing() {
    let app = TestApp::new().await;
    let created = create(&app, "x", &json!([markdown("a")])).await;
    let cell = &cells(&created)[0];
    let twice = patch_cells(&app, id(&created), &json!([cell, cell])).await;
    let start = "data.attributes.content.cells.1.id: ";
    check_error(twice, 400, "notebook_cell_duplicate", start);
    let mut foreign = markdown("b");
    foreign["id"] = Uuid::from_u128(7).to_string().into();
    let unknown = patch_cells(&app, id(&created), &json!([cell, foreign])).await;
    check_error(unknown, 400, "notebook_cell_unknown", start);
    let twice = post(&app, &app.developer, "y", &json!([foreign, foreign]));
    check_error(twice.send().await, 400, "notebook_cell_duplicate", start);
    assert_eq!(get(&app, id(&created)).await, created);
    // A new notebook takes over the ids that it is created with.
    let copy = create(&app, "y", &json!([foreign])).await;
    assert_eq!(cells(&copy), [foreign]);
}

#[tokio::test]
async fn concurrent_updates_leave_the_cells_of_one_of_them() {
    let app = TestApp::new().await;
    let created = create(&app, "x", &json!([markdown("0")])).await;
    let bodies: Vec<Value> = (1..=8)
        .map(|n| json!([markdown(&n.to_string()), markdown(&n.to_string())]))
        .collect();
    let calls = bodies
        .iter()
        .map(|cells| patch_cells(&app, id(&created), cells));
    for answer in futures_util::future::join_all(calls).await {
        answer.expect(200);
    }
    let left = cells(&get(&app, id(&created)).await);
    assert_eq!(left.len(), 2);
    assert_eq!(left[0]["text"], left[1]["text"]);
}

#[tokio::test]
async fn list_notebooks_omits_content_and_paginates_in_every_order() {
    let app = TestApp::new().await;
    // Two notebooks per timestamp, so that the id breaks ties.
    for (n, name) in ["d", "B", "a", "c", "d"].into_iter().enumerate() {
        create(&app, name, &json!([markdown("x")])).await;
        app.advance(u32::try_from(n % 2).unwrap());
    }
    let all = page(&app, &at(&app, "")).await;
    assert_eq!(all["links"], json!({"prev": null, "next": null}));
    assert_eq!(names(&all).len(), 5);
    for notebook in all["data"].as_array().unwrap() {
        assert!(
            notebook["attributes"].get("content").is_none(),
            "{notebook}"
        );
    }
    for (sort, back) in [("name", "-name"), ("inserted_at", "-inserted_at")] {
        let of = |sort: &str| at(&app, &format!("?sort={sort}"));
        let forwards = page(&app, &of(sort)).await["data"].take();
        let mut backwards = page(&app, &of(back)).await["data"].take();
        backwards.as_array_mut().unwrap().reverse();
        assert_eq!(forwards, backwards, "{sort}");
        for size in 1..=5 {
            let (mut found, mut last) = (Vec::new(), Value::Null);
            let mut next = json!(format!("{}&page[size]={size}", of(sort)));
            while let Some(path) = next.as_str() {
                last = page(&app, path).await;
                found.extend(last["data"].as_array().unwrap().clone());
                next = last["links"]["next"].clone();
                app.advance(2);
            }
            assert_eq!(Value::from(found), forwards, "{sort}, {size} at a time");
            let mut found = last["data"].as_array().unwrap().clone();
            while let Some(path) = last["links"]["prev"].as_str() {
                last = page(&app, path).await;
                found = [last["data"].as_array().unwrap().clone(), found].concat();
                app.advance(2);
            }
            assert_eq!(Value::from(found), forwards, "{sort}, {size} back");
        }
    }
    let sorted = page(&app, &at(&app, "?sort=name")).await;
    assert_eq!(names(&sorted), ["B", "a", "c", "d", "d"]);
    let filtered = at(&app, "?filter[name]=d&page[size]=1");
    let filtered = page(&app, &filtered).await;
    assert_eq!(names(&filtered), ["d"]);
    let next = page(&app, filtered["links"]["next"].as_str().unwrap()).await;
    assert_eq!(names(&next), ["d"]);
    assert_eq!(next["links"]["next"], Value::Null);
    let none = page(&app, &at(&app, "?filter[name]=D")).await;
    assert_eq!(names(&none), [""; 0]);
}

#[tokio::test]
async fn list_notebooks_with_invalid_parameters_is_rejected() {
    let app = TestApp::new().await;
    for name in ["a", "b"] {
        create(&app, name, &json!([])).await;
    }
    let first = page(&app, &at(&app, "?sort=name&page[size]=1")).await;
    let next = first["links"]["next"].as_str().unwrap();
    let cursor = next.rsplit_once('=').unwrap().1;
    for (query, code, field) in [
        ("page[size]=0", "validation_failed", "page[size]"),
        ("page[size]=101", "validation_failed", "page[size]"),
        ("page[size]=x", "validation_failed", "page[size]"),
        ("filter[name]=", "validation_failed", "filter[name]"),
        ("sort=size", "notebook_sort_invalid", "sort"),
        ("sort=", "notebook_sort_invalid", "sort"),
        ("page[after]=", "pagination_cursor_invalid", "page[after]"),
        ("page[after]=x", "pagination_cursor_invalid", "page[after]"),
        (
            "page[before]=x",
            "pagination_cursor_invalid",
            "page[before]",
        ),
        // A cursor of another order.
        (
            &*format!("sort=-name&page[after]={cursor}"),
            "pagination_cursor_invalid",
            "page[after]",
        ),
        (
            &*format!("sort=name&page[after]={cursor}&page[before]={cursor}"),
            "validation_failed",
            "page[before]",
        ),
    ] {
        let path = at(&app, &format!("?{query}"));
        let answer = app.get(&path).as_(&app.owner).send().await;
        check_error(answer, 400, code, &format!("{field}: "));
    }
}

#[tokio::test]
async fn notebook_of_another_project_is_not_found() {
    let app = TestApp::new().await;
    let created = create(&app, "x", &json!([])).await;
    let sibling = app.stub(app.home.id, "sibling").await;
    let foreign = app.foreign.project.clone();
    for (project, actor) in [(sibling, &app.owner), (foreign, &app.stranger)] {
        let list = format!("/v2/projects/{project}/notebooks");
        let path = format!("{list}/{}", id(&created));
        for method in ["GET", "PATCH", "DELETE"] {
            let call = app.request(method, &path).as_(actor);
            let answer = if method == "PATCH" {
                call.json(&body(&json!({"name": "taken"}))).send().await
            } else {
                call.send().await
            };
            check_error(answer, 404, "notebook_not_found", "Not Found: ");
        }
        let listed = app.get(&list).as_(actor).send().await.expect(200).json();
        assert_eq!(names(&listed), [""; 0]);
    }
    let path = at(&app, &format!("/{}", id(&created)));
    app.get(&path).as_(&app.stranger).send().await.expect(404);
    app.get(&path).send().await.expect(401);
    assert_eq!(get(&app, id(&created)).await, created);
}

#[tokio::test]
async fn write_to_notebooks_by_a_read_only_member_is_rejected() {
    let app = TestApp::new().await;
    let created = create(&app, "x", &json!([])).await;
    let path = at(&app, &format!("/{}", id(&created)));
    let call = post(&app, &app.read_only, "y", &json!([]));
    call.send().await.expect(403);
    let call = app.patch(&path).as_(&app.read_only);
    let call = call.json(&body(&json!({"name": "y"})));
    call.send().await.expect(403);
    app.delete(&path)
        .as_(&app.read_only)
        .send()
        .await
        .expect(403);
}

#[tokio::test]
async fn notebook_with_an_invalid_body_is_rejected() {
    let app = TestApp::new().await;
    let created = create(&app, "x", &json!([])).await;
    let cells = |cell: Value| json!({"name": "x", "content": {"cells": [cell]}});
    let long = "x".repeat(256);
    let described =
        json!({"name": "x", "description": "x".repeat(10_001), "content": {"cells": []}});
    let unit = json!({"type": "relative", "unit": "second", "amount": 1});
    for (attributes, field) in [
        (json!({"content": {"cells": []}}), "data.attributes.name"),
        (json!({"name": "x"}), "data.attributes.content"),
        (
            json!({"name": "x", "content": {}}),
            "data.attributes.content",
        ),
        (
            json!({"name": "", "content": {"cells": []}}),
            "data.attributes.name",
        ),
        (
            json!({"name": long, "content": {"cells": []}}),
            "data.attributes.name",
        ),
        (
            json!({"name": "a\nb", "content": {"cells": []}}),
            "data.attributes.name",
        ),
        (
            json!({"name": "a\0b", "content": {"cells": []}}),
            "data.attributes.name",
        ),
        (
            json!({"name": 7, "content": {"cells": []}}),
            "data.attributes.name",
        ),
        (described, "data.attributes.description"),
        (cells(markdown("a\0b")), "data.attributes.content.cells"),
        (
            cells(json!({"type": "markdown"})),
            "data.attributes.content.cells",
        ),
        (
            cells(json!({"type": "python", "text": ""})),
            "data.attributes.content.cells",
        ),
        (
            cells(json!({"type": "markdown", "text": 1})),
            "data.attributes.content.cells",
        ),
        (
            cells(json!({"type": "database", "sql": "", "row_limit": 0})),
            "data.attributes.content.cells.0.row_limit",
        ),
        (
            cells(json!({"type": "database", "sql": "", "row_limit": -1})),
            "data.attributes.content.cells",
        ),
        (
            cells(json!({"type": "log", "sql": "", "time_range": unit})),
            "data.attributes.content.cells",
        ),
        (cells(json!("text")), "data.attributes.content.cells"),
    ] {
        let call = app.post(&at(&app, "")).as_(&app.developer);
        let answer = call.json(&body(&attributes)).send().await;
        check_error(answer, 400, "validation_failed", field);
    }
    for whole in [
        json!({}),
        json!([]),
        json!({"data": {"type": "snippet", "attributes": {}}}),
        json!({"data": {"attributes": {"name": "x", "content": {"cells": []}}}}),
    ] {
        let call = app.post(&at(&app, "")).as_(&app.developer);
        call.json(&whole).send().await.expect(400);
        let path = at(&app, &format!("/{}", id(&created)));
        let call = app.patch(&path).as_(&app.developer);
        call.json(&whole).send().await.expect(400);
    }
    let answer = app.get(&at(&app, "/x")).as_(&app.owner).send().await;
    assert_eq!(answer.expect(400).message(), "id: expected a UUID");
    assert_eq!(get(&app, id(&created)).await, created);
}

#[tokio::test]
async fn notebook_beyond_a_bound_is_rejected() {
    let app = TestApp::new().await;
    let start = "data.attributes.content";
    let many = Value::from(vec![markdown(""); 201]);
    let answer = post(&app, &app.developer, "x", &many).send().await;
    check_error(answer, 400, "validation_failed", start);
    let most = Value::from(vec![markdown(""); 200]);
    assert_eq!(cells(&create(&app, "x", &most).await).len(), 200);
    let large = json!([markdown(&"x".repeat(512 << 10))]);
    let answer = post(&app, &app.developer, "x", &large).send().await;
    check_error(answer, 400, "validation_failed", start);
    let huge = json!([markdown(&"x".repeat(1 << 20))]);
    let answer = post(&app, &app.developer, "x", &huge).send().await;
    check_error(answer, 413, "request_too_large", "request entity too large");

    let sql = "insert into notebooks (id, project_id, name, favorite, content, inserted_at, updated_at) \
               select gen_random_uuid(), p.id, 'n' || n, false, '[]', now(), now() \
               from projects p, generate_series(1, 199) n where p.ref = $1";
    let db = &app.app.db;
    db.query(sql, &[&app.home.project.as_str()]).await.unwrap();
    let full = post(&app, &app.developer, "x", &json!([])).send().await;
    let start = "A project can have 200 notebooks; delete one first";
    check_error(full, 400, "bad_request", start);
}

#[tokio::test]
async fn notebooks_are_deleted_with_their_project_and_outlive_their_owner() {
    let app = TestApp::new().await;
    let created = create(&app, "x", &json!([])).await;
    let db = &app.app.db;
    let sql = "update notebooks set owner_id = null where name = 'x'";
    db.query(sql, &[]).await.unwrap();
    let without_owner = get(&app, id(&created)).await;
    assert_eq!(without_owner["attributes"]["owner"], Value::Null);
    let call = app.delete(&app.at("")).as_(&app.owner);
    call.send().await.expect(200);
    let rows = db.query("select count(*) from notebooks", &[]).await;
    assert_eq!(rows.unwrap()[0].get::<_, i64>(0), 0);
}

#[tokio::test]
async fn changes_of_notebooks_are_in_the_audit_log_without_their_content() {
    let app = TestApp::new().await;
    let created = create(&app, "x", &json!([markdown("hush")])).await;
    let rename = json!({"name": "y"});
    patch(&app, id(&created), &rename).await.expect(200);
    let sql = "select operation, after from audit_entries \
               where operation like 'v2-%-notebook' order by number";
    let rows = app.app.db.query(sql, &[]).await.unwrap();
    let found: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(found[0].0, "v2-create-notebook");
    assert_eq!(found[1].0, "v2-update-notebook");
    assert!(found[1].1.contains(r#""name":"y""#), "{found:?}");
    assert!(
        found.iter().all(|(_, after)| !after.contains("hush")),
        "{found:?}"
    );
}
