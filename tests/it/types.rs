//! Types generated from a project's catalog. `tests/clients` checks them with TypeScript.

use gantry::api::database::{catalog::Catalog, openapi, typescript::generate};
use serde_json::json;

use crate::{
    sql::{LIMITS, run, server},
    support::TestApp,
};

/// Version of the Data API in generated types.
const VERSION: &str = "12.0.2";

const SHOP: &str = include_str!("../clients/types/shop.sql");

#[tokio::test]
async fn database_yields_typescript_type() {
    let target = server().await;
    run(&target, SHOP).await.unwrap();
    let catalog = Catalog::read(&target, &["public".into(), "private".into()], LIMITS)
        .await
        .unwrap();
    let generated = generate(&catalog, VERSION);
    assert!(
        generated == include_str!("types/shop.ts"),
        "tests/it/types/shop.ts differs; generated is\n{generated}"
    );

    // Of other schemas, only the types of values appear.
    let public = generate(
        &Catalog::read(&target, &["public".into()], LIMITS)
            .await
            .unwrap(),
        VERSION,
    );
    assert!(
        public.contains("          mood: \"sad\" | \"glad\" | null\n"),
        "{public}"
    );
    assert!(
        public.contains("          entry: unknown | null\n") && !public.contains("private"),
        "{public}"
    );
}

#[tokio::test]
async fn empty_database_yields_empty_type() {
    let target = server().await;
    let catalog = Catalog::read(
        &target,
        &["public".into(), "nowhere".into(), "pg_catalog".into()],
        LIMITS,
    )
    .await
    .unwrap();
    assert_eq!(catalog.schemas, ["public"]);
    let generated = generate(&catalog, VERSION);
    for list in ["Tables", "Views", "Functions", "Enums", "CompositeTypes"] {
        assert!(
            generated.contains(&format!(
                "    {list}: {{\n      [_ in never]: never\n    }}\n"
            )),
            "{list}: {generated}"
        );
    }
}

#[tokio::test]
async fn generate_types_returns_typescript() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}");
    let sql =
        json!({"query": "create table t (id int); create schema other; create table other.o ()"});
    app.post(&format!("{path}/database/query"))
        .as_(&app.owner)
        .json(&sql)
        .send()
        .await
        .expect(201);
    let types = async |query: &str| {
        let answer = app
            .get(&format!("{path}/types/typescript{query}"))
            .as_(&app.read_only)
            .send()
            .await
            .expect(200);
        answer.json()["types"].as_str().unwrap().to_owned()
    };
    let public = types("").await;
    // Without a program, the version that Gantry installs.
    assert!(public.contains("PostgrestVersion: \"12.0.2\""), "{public}");
    assert!(
        public.contains("export type Database = {")
            && public.contains("      t: {")
            && !public.contains("other"),
        "{public}"
    );
    let both = types("?included_schemas=other,%20public,nowhere").await;
    assert!(
        both.contains("  other: {")
            && both.contains("      o: {")
            && both.contains("      t: {")
            && !both.contains("nowhere"),
        "{both}"
    );
    let document = app
        .get(&format!("{path}/database/openapi?schema=other"))
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        document["paths"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["/o"]
    );
    let nowhere = app
        .get(&format!("{path}/database/openapi?schema=nowhere"))
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&nowhere["swagger"], &nowhere["paths"]),
        (&json!("2.0"), &json!({}))
    );
    let many = format!(
        "{path}/types/typescript?included_schemas={}",
        vec!["x"; 101].join(",")
    );
    let refused = app
        .get(&many)
        .as_(&app.read_only)
        .send()
        .await
        .expect(400)
        .message();
    assert_eq!(
        refused,
        "included_schemas: Invalid input: expected at most 100 schemas"
    );
}

#[tokio::test]
async fn get_openapi_describes_data_api_of_schema() {
    let target = server().await;
    run(&target, SHOP).await.unwrap();
    let catalog = Catalog::read(&target, &["public".into()], LIMITS)
        .await
        .unwrap();
    let document = serde_json::Value::from(openapi::generate(&catalog, "public"));
    assert_eq!(document["swagger"], "2.0");
    let customers = &document["definitions"]["customers"];
    assert_eq!(customers["description"], "Who buys.");
    assert_eq!(
        customers["required"],
        json!(["email", "id", "name", "settings"])
    );
    assert_eq!(
        customers["properties"]["id"],
        json!({"type": "integer", "format": "bigint", "readOnly": true, "description": "Primary key.<pk/>"})
    );
    assert_eq!(
        customers["properties"]["born"],
        json!({"type": "string", "format": "date", "description": "For birthday cards."})
    );
    let orders = &document["definitions"]["orders"]["properties"];
    assert_eq!(
        orders["customer_id"]["description"],
        "Refers to `customers.id`.<fk table='customers' column='id'/>"
    );
    assert_eq!(
        orders["states"],
        json!({"type": "array", "items": {"type": "string", "enum": ["new", "in transit", "done"]}, "format": "public.order_state[]"})
    );
    let verbs = |path: &str| {
        document["paths"][path]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(verbs("/orders"), ["delete", "get", "patch", "post"]);
    assert_eq!(
        (verbs("/totals"), verbs("/top")),
        (vec!["get".to_owned()], vec!["get".to_owned()])
    );
    let statistics = &document["paths"]["/rpc/statistics"]["post"]["parameters"][0]["schema"];
    assert_eq!(
        statistics,
        &json!({"type": "object", "required": ["since"], "properties": {"since": {"type": "string"}}})
    );
    assert!(
        document["paths"].get("/rpc/unnamed").is_none()
            && document["paths"].get("/diary").is_none()
    );
}
