//! Projects on the pages: create, connect, pause, restore, restart, delete.

use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};

use super::browser::{Browser, olga, signed_in};
use crate::{functions, support::TestApp};

const NEW: &str = "/projects/new";

/// Creates a project with the form and returns its ref.
async fn make(app: &TestApp, browser: &mut Browser, name: &str) -> ProjectRef {
    let fields = [
        ("name", name),
        ("organization", app.home.slug.as_str()),
        ("region", "eu-west-1"),
        ("password", "correct horse"),
    ];
    let made = browser.submit(NEW, NEW, &fields).await.expect(303);
    let way = made
        .header("location")
        .unwrap()
        .strip_prefix("/projects/")
        .unwrap();
    way.strip_suffix("?done=created").unwrap().parse().unwrap()
}

async fn status(app: &TestApp, project: &ProjectRef) -> Value {
    app.get(&format!("/v1/projects/{project}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json()["status"]
        .clone()
}

async fn set_status(app: &TestApp, project: &ProjectRef, status: &str, desired: &str) {
    let sql = "update projects set status = $2, desired = $3 where ref = $1";
    app.app
        .db
        .query(sql, &[&project.as_str(), &status, &desired])
        .await
        .unwrap();
}

async fn operations(app: &TestApp) -> Vec<String> {
    let path = format!("/v1/organizations/{}/audit", app.home.slug);
    let page = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["operation"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn new_project_page_polls_until_the_status_is_settled() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let form = browser
        .get(&format!("{NEW}?organization={}", app.home.slug))
        .await
        .expect(200)
        .says("Frankfurt")
        .says("Home");
    let suggested = form
        .html
        .split("class=\"mono\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    assert_eq!(suggested.len(), 24);
    browser.get(NEW).await.expect(200).hides(&suggested);
    let project = make(&app, &mut browser, "shop").await;
    let page = format!("/projects/{project}");
    let polls = "hx-trigger=\"changed, every 10s\"";
    let follows = "hx-trigger=\"changed\"";
    let reloads = "<noscript><meta http-equiv=\"refresh\" content=\"3\"></noscript>";
    browser
        .get(&page)
        .await
        .expect(200)
        .says("Starting")
        .says("shop")
        .says("eu-west-1")
        .says(polls)
        .says(reloads);
    set_status(&app, &project, "ACTIVE_HEALTHY", "active").await;
    browser
        .get(&page)
        .await
        .expect(200)
        .says("Healthy")
        .says(follows)
        .hides(polls)
        .hides(reloads);
    browser
        .get("/projects")
        .await
        .expect(200)
        .says(&format!("href=\"{page}\""));
    assert_eq!(operations(&app).await, ["v1-create-a-project"]);
}

#[tokio::test]
async fn invalid_project_form_returns_422_and_keeps_its_values() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    make(&app, &mut browser, "shop").await;
    let slug = app.home.slug.as_str();
    let cases = [
        (
            [
                ("name", "shop"),
                ("organization", slug),
                ("region", "eu-west-1"),
                ("password", "horse"),
            ],
            "already exists",
        ),
        (
            [
                ("name", ""),
                ("organization", slug),
                ("region", "eu-west-1"),
                ("password", "horse"),
            ],
            "expected 1 to 256 characters",
        ),
        (
            [
                ("name", "other"),
                ("organization", slug),
                ("region", "moon-1"),
                ("password", "horse"),
            ],
            "region-wrong",
        ),
        (
            [
                ("name", "other"),
                ("organization", slug),
                ("region", "eu-west-1"),
                ("password", ""),
            ],
            "password-wrong",
        ),
        (
            [
                ("name", "other"),
                ("organization", ""),
                ("region", "eu-west-1"),
                ("password", "horse"),
            ],
            "Choose an organization.",
        ),
    ];
    for (fields, message) in cases {
        let again = browser
            .submit(NEW, NEW, &fields)
            .await
            .expect(422)
            .says(message)
            .says("role=\"alert\"");
        again
            .says(&format!("value=\"{}\"", fields[0].1))
            .says(&format!("value=\"{}\"", fields[3].1));
    }
}

#[tokio::test]
async fn developer_cannot_create_projects() {
    let app = TestApp::new().await;
    let mut dora = signed_in(&app, &app.developer).await;
    let why = "Requires the Administrator role. Your role is Developer.";
    dora.get(NEW)
        .await
        .expect(200)
        .says("You cannot create projects")
        .says(why)
        .hides("Create project");
    let fields = [
        ("name", "x"),
        ("organization", app.home.slug.as_str()),
        ("region", "eu-west-1"),
        ("password", "horse"),
    ];
    dora.submit("/account", NEW, &fields).await.expect(403);
    let mut adam = signed_in(&app, &app.administrator).await;
    adam.get(NEW)
        .await
        .expect(200)
        .says("Create project")
        .hides(why);
}

#[tokio::test]
async fn project_page_shows_connection_strings_and_reveals_keys() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let project = make(&app, &mut browser, "shop").await;
    set_status(&app, &project, "ACTIVE_HEALTHY", "active").await;
    let page = format!("/projects/{project}");
    let keys = format!("/projects/{project}/keys");
    let direct =
        format!("postgresql://postgres:[YOUR-PASSWORD]@db.{project}.example.test:5432/postgres");
    let shared = format!(
        "postgresql://postgres.{project}:[YOUR-PASSWORD]@pooler.example.test:5432/postgres"
    );
    let shown = browser
        .get(&page)
        .await
        .expect(200)
        .says(&direct)
        .says(&shared)
        .says("Reveal keys")
        .says("default");
    shown.hides("sb_secret_").hides("sb_publishable_");
    browser.get(&keys).await.expect(404);
    browser
        .submit(&page, &keys, &[])
        .await
        .expect(200)
        .says("sb_secret_")
        .says("sb_publishable_")
        .hides("Reveal keys");
    browser.get(&page).await.expect(200).hides("sb_secret_");

    let mut rhea = signed_in(&app, &app.read_only).await;
    let why =
        "You do not have access to API keys. Requires the Developer role. Your role is Read-only.";
    rhea.get(&page)
        .await
        .expect(200)
        .says(&direct)
        .says(why)
        .says("You cannot pause, restart or delete this project.")
        .hides("Reveal keys");
    rhea.submit("/account", &keys, &[])
        .await
        .expect(200)
        .hides("sb_secret_")
        .hides("sb_publishable_");
}

#[tokio::test]
async fn pause_and_delete_require_the_project_name() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let project = &app.home.project;
    let page = format!("/projects/{project}");
    let pause = format!("/projects/{project}/pause");
    let delete = format!("/projects/{project}/delete");
    for form in [&pause, &delete] {
        browser
            .get(form)
            .await
            .expect(200)
            .says("Type the project")
            .says("stub");
        for name in ["", "Stub", "stub2"] {
            browser
                .submit(form, form, &[("name", name)])
                .await
                .expect(422)
                .says("The name does not match.");
        }
    }
    assert!(operations(&app).await.is_empty());
    assert_eq!(status(&app, project).await, "ACTIVE_HEALTHY");
    browser
        .submit(&pause, &pause, &[("name", " stub ")])
        .await
        .leads_to(&format!("{page}?done=pause"));
    assert_eq!(status(&app, project).await, "PAUSING");
    browser
        .get(&page)
        .await
        .expect(200)
        .says("Pausing")
        .says("The project cannot be deleted while it is being paused.")
        .hides(">Restart</a>");
    let early = browser
        .submit(&page, &format!("{page}/restore"), &[])
        .await
        .expect(409);
    early.says("This project is not in a paused state yet, it is PAUSING.");
    set_status(&app, project, "INACTIVE", "paused").await;
    browser
        .get(&page)
        .await
        .expect(200)
        .says("Paused")
        .says(">Restore</button>")
        .hides(">Pause</a>");
    browser
        .submit(&page, &format!("{page}/restore"), &[])
        .await
        .leads_to(&format!("{page}?done=restore"));
    browser
        .get(&page)
        .await
        .expect(200)
        .says("Restoring")
        .says("Cancel restore");
    browser
        .submit(&page, &format!("{page}/cancel"), &[])
        .await
        .leads_to(&format!("{page}?done=cancel"));
    set_status(&app, project, "INACTIVE", "paused").await;
    browser
        .submit(&delete, &delete, &[("name", "stub")])
        .await
        .leads_to("/projects?done=deleted");
    browser
        .get("/projects")
        .await
        .expect(200)
        .hides(project.as_str());
    browser
        .get(&page)
        .await
        .expect(400)
        .says("Resource has been removed");
    let mut done = operations(&app).await;
    done.reverse();
    let expected = [
        "v1-pause-a-project",
        "v1-restore-a-project",
        "v1-restore-a-project",
        "v1-cancel-a-project-restoration",
        "v1-delete-a-project",
    ];
    assert_eq!(done, expected);
}

#[tokio::test]
async fn restart_requires_confirmation_and_permission() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut dora = signed_in(&app, &app.developer).await;
    let mut stan = signed_in(&app, &app.stranger).await;
    let page = format!("/projects/{}", app.home.project);
    let forms = ["restart", "pause", "delete", "restore", "cancel", "keys"]
        .map(|action| format!("{page}/{action}"));
    for form in &forms[..3] {
        dora.get(form)
            .await
            .expect(200)
            .says("You do not have permission for this action. Requires the Administrator role. Your role is Developer.");
        stan.get(form).await.expect(404);
    }
    for form in &forms[..5] {
        dora.submit("/account", form, &[("name", "stub")])
            .await
            .expect(403);
    }
    for form in &forms {
        stan.submit("/account", form, &[("name", "stub")])
            .await
            .expect(404);
    }
    stan.get(&page).await.expect(404);
    assert_eq!(status(&app, &app.home.project).await, "ACTIVE_HEALTHY");
    browser
        .get(&forms[0])
        .await
        .expect(200)
        .says("Restart this project?")
        .hides("Type the project");
    browser
        .submit(&forms[0], &forms[0], &[])
        .await
        .leads_to(&format!("{page}?done=restart"));
    assert_eq!(status(&app, &app.home.project).await, "RESTARTING");
}

#[tokio::test]
async fn upgrade_page_without_newer_version_says_how_to_install_one() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut dora = signed_in(&app, &app.developer).await;
    let mut stan = signed_in(&app, &app.stranger).await;
    let page = format!("/projects/{}/upgrade", app.home.project);
    browser
        .get(&page)
        .await
        .expect(200)
        .says("There is no version that it can be upgraded to.");
    let version = [("version", "99")];
    browser
        .submit(&page, &page, &version)
        .await
        .expect(409)
        .says("cannot be upgraded to 99");
    dora.get(&page)
        .await
        .expect(200)
        .says("You do not have permission for this action.");
    dora.submit("/account", &page, &version).await.expect(403);
    stan.get(&page).await.expect(404);
    stan.submit("/account", &page, &version).await.expect(404);
}

#[tokio::test]
async fn custom_hostname_page_shows_checks_and_next_steps() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let page = format!("/projects/{}", app.home.project);
    let checks = format!("{page}/hostname");
    browser
        .get(&page)
        .await
        .expect(200)
        .hides("Custom hostname");
    browser
        .get(&checks)
        .await
        .expect(200)
        .says("No custom hostname configuration found.");
    let call = app
        .post(&app.at("/custom-hostname/initialize"))
        .as_(&app.owner);
    call.json(&serde_json::json!({"custom_hostname": "api.customer.test"}))
        .send()
        .await
        .expect(201);
    browser
        .get(&page)
        .await
        .expect(200)
        .says("api.customer.test")
        .says("Waiting for DNS")
        .says(&format!("href=\"{checks}\""));
    let shown = browser
        .get(&checks)
        .await
        .expect(200)
        .says("CNAME record")
        .says("DNS could not be asked: no server answers");
    shown
        .says("See to it that the name servers of the domain answer to everybody")
        .says("Skipped");
}

#[tokio::test]
async fn log_drains_page_shows_the_state_of_deliveries() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let path = format!("/projects/{}/log-drains", app.home.project);
    browser.get(&path).await.expect(200).says("No log drains");
    let drain = json!({ "data": { "type": "log_drain", "attributes": {
        "name": "Our <Loki>", "backend_type": "loki", "config": { "url": "http://127.0.0.1:9/" },
    } } });
    app.post(&format!(
        "/v2/projects/{}/analytics/log-drains",
        app.home.project
    ))
    .as_(&app.owner)
    .json(&drain)
    .send()
    .await
    .expect(201);
    let page = browser.get(&path).await.expect(200);
    page.says("Waiting for lines").says("Our &#60;Loki&#62;");
    let sql = "update log_drain_progress set error = 'the target answered 500', failing_since = updated_at, \
               delivered = 41, dropped = 42, lag = 43";
    app.app.db.query(sql, &[]).await.unwrap();
    let page = browser.get(&path).await.expect(200);
    page.says("Failing")
        .says("the target answered 500")
        .says("<dd>41</dd>")
        .says("<dd>42</dd>")
        .says("<dd>43</dd>");
    let project = format!("/projects/{}", app.home.project);
    browser.get(&project).await.expect(200).says("Log drains");
}

#[tokio::test]
async fn branches_page_shows_branches_and_runs() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let path = format!("/projects/{}/branches", app.home.project);
    browser.get(&path).await.expect(200).says("No branches");
    let body = json!({"branch_name": "feature <one>", "with_data": true});
    let made = app
        .post(&app.at("/branches"))
        .as_(&app.owner)
        .json(&body)
        .send()
        .await
        .expect(201)
        .json();
    let page = browser.get(&path).await.expect(200);
    page.says("feature &#60;one&#62;")
        .says("with data")
        .says("default branch")
        .says("Action runs")
        .says(made["project_ref"].as_str().unwrap())
        .says("hx-trigger=\"changed, every 2s\"");
    let own = made["project_ref"].as_str().unwrap();
    let branch = format!("{path}/{own}");
    let page = browser.get(&branch).await.expect(200);
    page.says("feature &#60;one&#62;")
        .says("schema and data")
        .says("Outgoing connections")
        .says("Ends unless it is used")
        .says("clone")
        .says(&format!("{branch}/merge"));
    browser
        .get(&format!("{path}/{}", app.home.project))
        .await
        .expect(404);
    let page = browser.get(&format!("{branch}/merge")).await.expect(200);
    page.says("Merge this branch?").says("Merge branch");
    let project = format!("/projects/{}", app.home.project);
    browser.get(&project).await.expect(200).says(">Branches<");
}

#[tokio::test]
async fn functions_page_lists_functions_and_names_of_secrets() {
    let app = functions::app().await;
    let mut browser = olga(&app).await;
    let path = format!("/projects/{}/functions", app.home.project);
    browser
        .get(&path)
        .await
        .expect(200)
        .says("No functions")
        .says("No secrets");
    let secrets = json!([{"name": "GREETING", "value": "a-hidden-value"}]);
    app.post(&app.at("/secrets"))
        .as_(&app.owner)
        .json(&secrets)
        .send()
        .await
        .expect(201);
    let files = [("index.ts", "Deno.serve(() => new Response('hello'));")];
    let metadata =
        json!({"name": "Hello <you>", "entrypoint_path": "index.ts", "verify_jwt": false});
    functions::form(
        app.post(&app.at("/functions/deploy?slug=hello"))
            .as_(&app.owner),
        &metadata,
        &files,
    )
    .send()
    .await
    .expect(201);
    let page = browser.get(&path).await.expect(200);
    let page = page
        .says("Hello &#60;you&#62;")
        .says("/functions/v1/hello")
        .says("open to all requests")
        .says("GREETING")
        .says("0 calls in a day")
        .says("source=function_edge_logs")
        .says("source=function_logs");
    assert!(!page.html.contains("a-hidden-value"));
}
