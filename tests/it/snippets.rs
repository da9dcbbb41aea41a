//! SQL snippets: visibility, order and pagination.

use gantry::{
    api::{
        projects,
        snippets::{self, NewSnippet, SQL_BYTES_MAX, Visibility},
    },
    platform::access::Project,
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Actor, TestApp, client::Call};

async fn about(app: &TestApp, who: &Actor, project: &ProjectRef) -> Project {
    projects::of_member(&app.app.db, who.user, &[project.clone()].into())
        .await
        .unwrap()
        .remove(0)
}

async fn add(
    app: &TestApp,
    who: &Actor,
    project: &ProjectRef,
    name: &str,
    visibility: Visibility,
) -> Uuid {
    let project = about(app, who, project).await.id;
    let sql = format!("select '{name}'");
    let new = NewSnippet {
        owner: who.user,
        project,
        visibility,
        name: name.to_owned(),
        description: None,
        sql,
    };
    snippets::add(&app.app.db, &app.app.entropy, &new, app.clock.now(), None)
        .await
        .unwrap()
}

async fn page(call: Call) -> (Vec<String>, Option<String>) {
    let page = call.send().await.expect(200).json();
    let names = page["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|snippet| snippet["name"].as_str().unwrap().to_owned())
        .collect();
    (
        names,
        page.get("cursor")
            .map(|cursor| cursor.as_str().unwrap().to_owned()),
    )
}

async fn names(call: Call) -> Vec<String> {
    page(call).await.0
}

#[tokio::test]
async fn get_snippet_respects_visibility() {
    let app = TestApp::new().await;
    let list = |who: &Actor| app.get("/v1/snippets?sort_by=name&sort_order=asc").as_(who);
    let mine = add(
        &app,
        &app.developer,
        &app.home.project,
        "mine",
        Visibility::User,
    )
    .await;
    let ours = add(
        &app,
        &app.developer,
        &app.home.project,
        "ours",
        Visibility::Project,
    )
    .await;
    add(
        &app,
        &app.stranger,
        &app.foreign.project,
        "theirs",
        Visibility::Project,
    )
    .await;
    assert_eq!(names(list(&app.developer)).await, ["mine", "ours"]);
    assert_eq!(
        names(list(&app.read_only)).await,
        ["ours"],
        "not even an owner sees what is somebody's own"
    );
    assert_eq!(names(list(&app.owner)).await, ["ours"]);
    assert_eq!(names(list(&app.stranger)).await, ["theirs"]);
    let get = |id: Uuid, who: &Actor| app.get(&format!("/v1/snippets/{id}")).as_(who);
    get(mine, &app.owner).send().await.expect(404);
    get(ours, &app.stranger).send().await.expect(404);
    get(Uuid::nil(), &app.owner).send().await.expect(404);
    let whole = get(ours, &app.owner).send().await.expect(200).json();
    let (project, dora) = (
        about(&app, &app.owner, &app.home.project).await,
        json!({"id": app.developer.user.0, "username": "dora"}),
    );
    assert_eq!(
        whole,
        json!({
            "id": ours, "inserted_at": "2026-11-21T09:15:03Z", "updated_at": "2026-11-21T09:15:03Z", "type": "sql",
            "visibility": "project", "name": "ours", "description": null, "project": {"id": project.id.0, "name": "stub"},
            "owner": dora, "updated_by": dora, "favorite": false,
            "content": {"schema_version": "1.0", "sql": "select 'ours'"},
        })
    );
    // When a member leaves, shared snippets stay.
    let leave = format!(
        "/v2/organizations/{}/members/{}",
        app.home.slug, app.developer.gotrue_id
    );
    app.delete(&leave).as_(&app.owner).send().await.expect(200);
    assert_eq!(names(list(&app.developer)).await, [] as [String; 0]);
    get(mine, &app.developer).send().await.expect(404);
    assert_eq!(names(list(&app.owner)).await, ["ours"]);
}

#[tokio::test]
async fn list_snippets_respects_token_reach() {
    let app = TestApp::new().await;
    let second = app.stub(app.home.id, "second").await;
    let third = app.tenant("Third", &app.owner).await;
    for (project, name) in [
        (&app.home.project, "first"),
        (&second, "second"),
        (&third.project, "third"),
    ] {
        add(&app, &app.owner, project, name, Visibility::Project).await;
    }
    let token = async |scope: Value| {
        let mut body = json!({"name": "reads", "permissions": ["snippets_read"]});
        body.as_object_mut()
            .unwrap()
            .extend(scope.as_object().unwrap().clone());
        let made = app
            .post("/v1/tokens")
            .as_(&app.owner)
            .json(&body)
            .send()
            .await
            .expect(201)
            .json();
        made["token"].as_str().unwrap().to_owned()
    };
    let list = "/v1/snippets?sort_by=name&sort_order=asc";
    assert_eq!(
        names(app.get(list).token(&token(json!({})).await)).await,
        ["first", "second", "third"]
    );
    assert_eq!(
        names(
            app.get(list)
                .token(&token(json!({"organization_slugs": [app.home.slug]})).await)
        )
        .await,
        ["first", "second"]
    );
    let narrow = token(json!({"project_refs": [second]})).await;
    assert_eq!(names(app.get(list).token(&narrow)).await, ["second"]);
    assert_eq!(
        names(
            app.get(&format!("{list}&project_ref={}", app.home.project))
                .token(&narrow)
        )
        .await,
        [] as [String; 0]
    );
    assert_eq!(
        names(
            app.get(&format!("{list}&project_ref={}", third.project))
                .as_(&app.owner)
        )
        .await,
        ["third"]
    );
    assert_eq!(
        names(
            app.get(&format!("{list}&project_ref={}", app.foreign.project))
                .as_(&app.owner)
        )
        .await,
        [] as [String; 0]
    );
}

#[tokio::test]
async fn list_snippets_paginates_in_every_order() {
    let app = TestApp::new().await;
    // Two snippets per timestamp, so that the id breaks ties.
    for (n, name) in ["d", "B", "a", "c", "E"].into_iter().enumerate() {
        add(&app, &app.owner, &app.home.project, name, Visibility::User).await;
        app.advance(u32::try_from(n % 2).unwrap());
    }
    for sort in ["sort_by=name", "sort_by=inserted_at"] {
        let all = names(
            app.get(&format!("/v1/snippets?{sort}&sort_order=asc"))
                .as_(&app.owner),
        )
        .await;
        let back = names(app.get(&format!("/v1/snippets?{sort}")).as_(&app.owner)).await;
        assert!(
            all.len() == 5 && all.iter().eq(back.iter().rev()),
            "{all:?} {back:?}"
        );
        for limit in 1..=5 {
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let from =
                    cursor.map_or(String::new(), |cursor: String| format!("&cursor={cursor}"));
                let (names, next) = page(
                    app.get(&format!(
                        "/v1/snippets?{sort}&sort_order=asc&limit={limit}{from}"
                    ))
                    .as_(&app.owner),
                )
                .await;
                assert!(!names.is_empty() && names.len() <= limit);
                found.extend(names);
                cursor = next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(found, all, "{sort}, {limit} at a time");
        }
    }
    assert_eq!(
        names(
            app.get("/v1/snippets?sort_by=name&sort_order=asc")
                .as_(&app.owner)
        )
        .await,
        ["B", "E", "a", "c", "d"]
    );
    let (_, cursor) = page(app.get("/v1/snippets?limit=1").as_(&app.owner)).await;
    for (query, field) in [
        ("limit=0".to_owned(), "limit"),
        ("limit=101".to_owned(), "limit"),
        ("limit=x".to_owned(), "limit"),
        ("sort_by=size".to_owned(), "sort_by"),
        ("sort_order=up".to_owned(), "sort_order"),
        ("project_ref=short".to_owned(), "project_ref"),
        ("cursor=nonsense".to_owned(), "cursor"),
        (format!("sort_by=name&cursor={}", cursor.unwrap()), "cursor"),
    ] {
        let message = app
            .get(&format!("/v1/snippets?{query}"))
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .message();
        assert!(
            message.starts_with(&format!("{field}: ")),
            "{query}: {message}"
        );
    }
    assert_eq!(
        app.get("/v1/snippets/x")
            .as_(&app.owner)
            .send()
            .await
            .expect(400)
            .message(),
        "id: expected a UUID"
    );
}

#[tokio::test]
async fn add_snippet_replaces_by_name_and_remove_deletes_by_id() {
    let app = TestApp::new().await;
    let first = add(
        &app,
        &app.owner,
        &app.home.project,
        "same",
        Visibility::User,
    )
    .await;
    app.advance(60);
    assert_eq!(
        add(
            &app,
            &app.owner,
            &app.home.project,
            "same",
            Visibility::Project
        )
        .await,
        first
    );
    let again = app
        .get(&format!("/v1/snippets/{first}"))
        .as_(&app.developer)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&again["inserted_at"], &again["updated_at"]),
        (
            &json!("2026-11-21T09:15:03Z"),
            &json!("2026-11-21T09:16:03Z")
        )
    );
    assert_ne!(
        add(
            &app,
            &app.developer,
            &app.home.project,
            "same",
            Visibility::Project
        )
        .await,
        first,
        "somebody else's is another"
    );

    snippets::remove(&app.app.db, first, app.clock.now(), None)
        .await
        .unwrap();
    assert!(
        snippets::remove(&app.app.db, first, app.clock.now(), None)
            .await
            .is_err()
    );
    app.get(&format!("/v1/snippets/{first}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
    app.delete(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        app.app
            .db
            .query("select count(*) from snippets", &[])
            .await
            .unwrap()[0]
            .get::<_, i64>(0),
        0,
        "they go with the project"
    );
}

#[tokio::test]
async fn add_snippet_with_invalid_field_is_rejected() {
    let app = TestApp::new().await;
    let project = about(&app, &app.owner, &app.home.project).await.id;
    let keep = async |name: &str, description: Option<String>, sql: String| {
        let new = NewSnippet {
            owner: app.owner.user,
            project,
            visibility: Visibility::User,
            name: name.to_owned(),
            description,
            sql,
        };
        snippets::add(&app.app.db, &app.app.entropy, &new, app.clock.now(), None).await
    };
    for (name, description, sql, field) in [
        ("", None, String::new(), "name"),
        (&*"x".repeat(257), None, String::new(), "name"),
        ("x", Some("x".repeat(1025)), String::new(), "description"),
        ("x", None, "x".repeat(SQL_BYTES_MAX + 1), "sql"),
        ("x", None, "\0".to_owned(), "sql"),
    ] {
        let message = keep(name, description, sql).await.unwrap_err().to_string();
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
    }
    let sql = "insert into snippets select gen_random_uuid(), $1, $2, 'user', 'n' || n, null, '', now(), now(), $2 from generate_series(1, 1000) n";
    app.app
        .db
        .query(sql, &[&project.0, &app.owner.user.0])
        .await
        .unwrap();
    assert_eq!(
        keep("another", None, String::new())
            .await
            .unwrap_err()
            .to_string(),
        "A user can keep 1000 snippets on a project"
    );
    keep("n7", None, "select 7".to_owned()).await.unwrap();
}
