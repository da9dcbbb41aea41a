//! The nodes of new projects.

use gantry::control::{
    fleet::{self, node},
    projects::regions::Region,
};
use serde_json::json;
use uuid::Uuid;

use super::{Member, holder};
use crate::support::TestApp;

const ONE: Uuid = Uuid::from_u128(11);
const TWO: Uuid = Uuid::from_u128(12);

#[tokio::test]
async fn projects_of_an_organization_are_spread_over_ready_nodes() {
    let app = TestApp::new().await;
    let one = Member::start(&app, 11, None).await;
    let two = Member::start(&app, 12, None).await;
    one.review().await;
    let mut holders = Vec::new();
    for name in ["first", "second", "third"] {
        let project = one.create(&app, &app.new_project(name)).await;
        holders.push(holder(&app, &project).await);
    }
    assert_eq!(holders, [ONE, TWO, ONE]);
    node::set_cordoned(&app.app.db, "node-12", true, app.clock.now())
        .await
        .unwrap();
    one.review().await;
    let project = one.create(&app, &app.new_project("fourth")).await;
    assert_eq!(holder(&app, &project).await, ONE);
    node::set_cordoned(&app.app.db, "node-12", false, app.clock.now())
        .await
        .unwrap();
    one.review().await;
    let project = one.create(&app, &app.new_project("fifth")).await;
    assert_eq!(holder(&app, &project).await, TWO);
    let unknown = node::set_cordoned(&app.app.db, "node-13", true, app.clock.now()).await;
    assert!(unknown.is_err());
    drop(two);
}

#[tokio::test]
async fn region_chooses_the_node() {
    let app = TestApp::new().await;
    let one = Member::start(&app, 11, Some(Region::UsEast1)).await;
    let two = Member::start(&app, 12, Some(Region::EuCentral1)).await;
    one.review().await;
    let path = format!(
        "/v1/projects/available-regions?organization_slug={}",
        app.home.slug
    );
    let listed = one.node.get(&path).as_(&app.owner).send().await;
    let listed = listed.expect(200).json();
    let codes = listed["all"]["specific"].as_array().unwrap().iter();
    let codes: Vec<_> = codes.map(|region| region["code"].clone()).collect();
    assert_eq!(codes, ["us-east-1", "eu-central-1"]);
    let groups = listed["all"]["smartGroup"].as_array().unwrap().len();
    assert_eq!(groups, 2);

    let of = |name: &str, region: serde_json::Value| {
        let mut new = app.new_project(name);
        new.as_object_mut()
            .unwrap()
            .extend(region.as_object().unwrap().clone());
        new
    };
    for (name, region, expected) in [
        ("default", json!({}), ONE),
        ("named", json!({"region": "eu-central-1"}), TWO),
        (
            "group",
            json!({"region_selection": {"type": "smartGroup", "code": "emea"}}),
            TWO,
        ),
    ] {
        let project = one.create(&app, &of(name, region)).await;
        assert_eq!(holder(&app, &project).await, expected, "{name}");
    }
    let new = of("nowhere", json!({"region": "ap-south-1"}));
    let refused = one.node.post("/v1/projects").as_(&app.owner).json(&new);
    let refused = refused.send().await.expect(400);
    assert!(
        refused.message().contains("available-regions"),
        "{}",
        refused.message()
    );
    let two = two.stop(&one).await;
    let new = of("down", json!({"region": "eu-central-1"}));
    let refused = one.node.post("/v1/projects").as_(&app.owner).json(&new);
    let refused = refused.send().await.expect(400);
    assert!(
        refused.message().contains("node-12 is down"),
        "{}",
        refused.message()
    );
    let sql = "select count(*) from projects where name in ('nowhere', 'down')";
    let left: i64 = app.app.db.query(sql, &[]).await.unwrap()[0].get(0);
    assert_eq!(left, 0);
    drop(two);
}

#[tokio::test]
async fn second_node_of_a_name_is_rejected() {
    let app = TestApp::new().await;
    let one = Member::start(&app, 11, None).await;
    let sql = "update nodes set id = $1 where name = 'node-11'";
    app.app.db.query(sql, &[&TWO]).await.unwrap();
    let refused = fleet::register(&one.node.app).await.unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("another node has the name node-11") && refused.contains("--node-name"),
        "{refused}"
    );
}
