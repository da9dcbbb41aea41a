//! Vanity subdomains: activation, reservation and release.

use serde_json::{Value, json};

use crate::support::{
    Actor, Tenant, TestApp,
    client::{Answer, Call},
};

fn at(tenant: &Tenant, rest: &str) -> String {
    format!("/v1/projects/{}/vanity-subdomain{rest}", tenant.project)
}

fn ask(app: &TestApp, who: &Actor, tenant: &Tenant, what: &str, name: &str) -> Call {
    app.post(&at(tenant, what))
        .as_(who)
        .json(&json!({"vanity_subdomain": name}))
}

async fn activate(app: &TestApp, who: &Actor, tenant: &Tenant, name: &str) -> Answer {
    ask(app, who, tenant, "/activate", name).send().await
}

async fn available(app: &TestApp, who: &Actor, tenant: &Tenant, name: &str) -> bool {
    let answer = ask(app, who, tenant, "/check-availability", name)
        .send()
        .await
        .expect(201)
        .json();
    answer["available"].as_bool().unwrap()
}

async fn used(app: &TestApp, who: &Actor, tenant: &Tenant) -> Value {
    app.get(&at(tenant, ""))
        .as_(who)
        .send()
        .await
        .expect(200)
        .json()
}

#[tokio::test]
async fn vanity_subdomain_is_activated_read_and_deactivated() {
    let app = TestApp::new().await;
    assert_eq!(
        used(&app, &app.owner, &app.home).await,
        json!({"status": "not-used"})
    );
    let made = activate(&app, &app.owner, &app.home, "My-Shop")
        .await
        .expect(201)
        .json();
    assert_eq!(made, json!({"custom_domain": "my-shop.example.test"}));
    let told = json!({"status": "active", "custom_domain": "my-shop.example.test"});
    assert_eq!(used(&app, &app.owner, &app.home).await, told);
    let spelled = app
        .get(&app.at("/config/vanity-subdomain"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        (spelled.json(), spelled.quota.limit, spelled.quota.remaining),
        (told, 10, 7),
        "both spellings have one counter"
    );
    activate(&app, &app.owner, &app.home, "my-shop")
        .await
        .expect(201);
    for _ in 0..2 {
        let gone = app
            .delete(&at(&app.home, ""))
            .as_(&app.owner)
            .send()
            .await
            .expect(200);
        assert!(gone.body.is_empty() && gone.header("content-type").is_none());
    }
    assert_eq!(
        used(&app, &app.owner, &app.home).await,
        json!({"status": "not-used"})
    );
}

#[tokio::test]
async fn vanity_subdomain_of_another_project_is_rejected() {
    let app = TestApp::new().await;
    activate(&app, &app.owner, &app.home, "shop")
        .await
        .expect(201);
    assert!(
        available(&app, &app.owner, &app.home, "shop").await,
        "it is its own"
    );
    assert!(!available(&app, &app.stranger, &app.foreign, "SHOP").await);
    let refused = activate(&app, &app.stranger, &app.foreign, "shop")
        .await
        .expect(400);
    assert_eq!(
        refused.message(),
        "The vanity subdomain shop is not available. Choose another one."
    );
    for reserved in ["api", "abcdefghijklmnopqrst"] {
        assert!(!available(&app, &app.owner, &app.home, reserved).await);
        activate(&app, &app.owner, &app.home, reserved)
            .await
            .expect(400);
    }
    for malformed in ["shop.example.test", "xn--80ak6aa92e", "a", ""] {
        let refused = ask(
            &app,
            &app.administrator,
            &app.home,
            "/check-availability",
            malformed,
        )
        .send()
        .await
        .expect(400);
        assert!(
            refused
                .message()
                .starts_with("vanity_subdomain: expected 3 to 63 letters"),
            "{}",
            refused.message()
        );
    }
}

#[tokio::test]
async fn reserved_vanity_subdomain_is_rejected_but_kept_by_its_holder() {
    let app = TestApp::new().await;
    for reserved in [
        "mta-sts",
        "ns1",
        "metrics",
        "autodiscover",
        "wpad",
        "isatap",
        "localhost",
        "adm1n",
    ] {
        activate(&app, &app.administrator, &app.home, reserved)
            .await
            .expect(400);
    }
    // As if the name had been reserved after its activation.
    let sql = "insert into vanity_subdomains (project_id, name, created_at) select id, 'metrics', now() from projects where ref = $1";
    app.app
        .db
        .query(sql, &[&app.home.project.as_str()])
        .await
        .unwrap();
    assert_eq!(
        used(&app, &app.owner, &app.home).await["custom_domain"],
        "metrics.example.test"
    );
    assert!(
        available(&app, &app.owner, &app.home, "metrics").await,
        "it has it"
    );
    activate(&app, &app.owner, &app.home, "metrics")
        .await
        .expect(201);
    activate(&app, &app.owner, &app.home, "other")
        .await
        .expect(201);
    activate(&app, &app.owner, &app.home, "metrics")
        .await
        .expect(400);
}

#[tokio::test]
async fn concurrent_activations_have_one_winner() {
    let app = TestApp::new().await;
    let mut tenants = Vec::new();
    for n in 0..4 {
        tenants.push(app.tenant(&format!("Tenant {n}"), &app.stranger).await);
    }
    let answers = futures_util::future::join_all(
        tenants
            .iter()
            .map(|tenant| activate(&app, &app.stranger, tenant, "prize")),
    )
    .await;
    let won = answers.iter().filter(|answer| answer.status == 201).count();
    assert!(
        won == 1
            && answers
                .iter()
                .all(|answer| [201, 400].contains(&answer.status.as_u16())),
        "{answers:?}"
    );
}

#[tokio::test]
async fn released_vanity_subdomain_is_reserved_for_the_organization() {
    let app = TestApp::new().await;
    let sibling = Tenant {
        project: app.stub(app.home.id, "sibling").await,
        ..app.home.clone()
    };
    activate(&app, &app.owner, &app.home, "shop")
        .await
        .expect(201);
    // Activating another name releases the first one.
    activate(&app, &app.owner, &app.home, "store")
        .await
        .expect(201);
    assert!(!available(&app, &app.stranger, &app.foreign, "shop").await);
    activate(&app, &app.stranger, &app.foreign, "shop")
        .await
        .expect(400);
    activate(&app, &app.owner, &sibling, "shop")
        .await
        .expect(201);
    // Deleting the project releases the name.
    app.delete(&app.at(""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.get(&at(&app.home, ""))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
    activate(&app, &app.stranger, &app.foreign, "store")
        .await
        .expect(400);
    app.advance(90 * 24 * 3600);
    assert!(available(&app, &app.stranger, &app.foreign, "store").await);
    activate(&app, &app.stranger, &app.foreign, "store")
        .await
        .expect(201);
    activate(&app, &app.stranger, &app.foreign, "shop")
        .await
        .expect(400);
}

#[tokio::test]
async fn vanity_subdomain_excludes_custom_hostname() {
    let app = TestApp::new().await;
    activate(&app, &app.owner, &app.home, "shop")
        .await
        .expect(201);
    app.delete(&at(&app.home, ""))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    let sql = "insert into custom_hostnames (project_id, id, host, state, not_before, created_at) \
               select id, gen_random_uuid(), 'api.customer.test', 'initiated', now(), now() from projects where ref = $1";
    app.app
        .db
        .query(sql, &[&app.home.project.as_str()])
        .await
        .unwrap();
    assert_eq!(
        used(&app, &app.owner, &app.home).await,
        json!({"status": "custom-domain-used", "custom_domain": "api.customer.test"})
    );
    let refused = activate(&app, &app.owner, &app.home, "shop")
        .await
        .expect(400);
    assert!(
        refused
            .message()
            .starts_with("The project uses the custom hostname api.customer.test."),
        "{}",
        refused.message()
    );
    let sql = "select operation, before::text, after::text from audit_entries where subject = $1 and status < 300 order by number";
    let rows = app
        .app
        .db
        .query(sql, &[&app.home.project.as_str()])
        .await
        .unwrap();
    let told: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row.get::<_, String>(0),
                row.get::<_, Option<String>>(1),
                row.get(2),
            )
        })
        .collect();
    let shop = Some(r#"{"vanity_subdomain":"shop"}"#.to_owned());
    assert_eq!(
        told,
        [
            (
                "v1-activate-vanity-subdomain-config".to_owned(),
                None,
                shop.clone()
            ),
            (
                "v1-deactivate-vanity-subdomain-config".to_owned(),
                shop,
                None
            )
        ]
    );
}

#[tokio::test]
async fn released_vanity_subdomains_are_limited() {
    let app = TestApp::new().await;
    for n in 0..22 {
        activate(&app, &app.owner, &app.home, &format!("name-{n}"))
            .await
            .expect(201);
        // Stays below rate limits, and gives each release another time.
        app.advance(10);
    }
    // Twenty-one names were released.
    let free = async |n| available(&app, &app.stranger, &app.foreign, &format!("name-{n}")).await;
    assert!(free(0).await && !free(1).await && !free(20).await && !free(21).await);
}
