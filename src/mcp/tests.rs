//! Rules that all tools have to follow.

use std::collections::BTreeSet;

use super::{
    catalog,
    selection::{Feature, McpQuery, Selection},
};

#[test]
fn names_are_unique_and_fit_the_limits_of_clients() {
    let mut names = BTreeSet::new();
    for tool in catalog::all() {
        assert!(names.insert(&*tool.name), "{} is declared twice", tool.name);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        assert!(
            tool.name.len() <= 64 && tool.name.chars().all(is_plain),
            "{}",
            tool.name
        );
        assert!(!tool.description.is_empty(), "{}", tool.name);
    }
    // Those of `@supabase/mcp-server-supabase`, and most operations.
    for name in [
        "execute_sql",
        "create_branch",
        "deploy_edge_function",
        "v1-get-project",
    ] {
        assert!(names.contains(name), "{name}");
    }
    assert!(names.len() > 200, "{}", names.len());
}

#[test]
fn schemas_are_valid_and_have_each_required_argument() {
    for tool in catalog::all() {
        let schema = serde_json::Value::Object(tool.schema.clone());
        jsonschema::validator_for(&schema)
            .unwrap_or_else(|error| panic!("{}: {error}\n{schema}", tool.name));
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap();
            assert!(
                schema["properties"].get(name).is_some(),
                "{}: {name}",
                tool.name
            );
        }
    }
}

#[test]
fn read_only_selection_has_no_tool_that_changes_something() {
    let query: McpQuery = serde_json::from_value(serde_json::json!({
        "read_only": true, "features": "database,branching,operations",
    }))
    .unwrap();
    let selection = Selection::new(&query).unwrap();
    let names: Vec<_> = catalog::all()
        .iter()
        .filter(|tool| tool.is_in(&selection))
        .map(|tool| (&*tool.name, tool.hints_in(&selection)))
        .collect();
    for (name, hints) in &names {
        assert!(hints.is_read_only && !hints.is_destructive, "{name}");
    }
    let has = |wanted: &str| names.iter().any(|(name, _)| *name == wanted);
    assert!(has("execute_sql") && has("list_branches") && has("v1-get-project"));
    assert!(!has("apply_migration") && !has("v1-delete-a-project"));
}

#[test]
fn selection_of_a_project_has_only_tools_of_projects_without_their_ref() {
    let query: McpQuery = serde_json::from_value(serde_json::json!({
        "project_ref": "abcdefghijklmnopqrst", "features": "account,branching,operations",
    }))
    .unwrap();
    let selection = Selection::new(&query).unwrap();
    for tool in catalog::all().iter().filter(|tool| tool.is_in(&selection)) {
        assert_ne!(tool.name, "list_organizations");
        assert_ne!(tool.name, "v1-list-all-projects");
        let properties = &tool.schema_in(&selection)["properties"];
        for argument in ["project_id", "ref"] {
            assert!(properties.get(argument).is_none(), "{}", tool.name);
        }
    }
}

#[test]
fn tools_that_may_change_something_are_destructive_unless_they_create() {
    let find = |name: &str| {
        catalog::all()
            .iter()
            .find(|tool| tool.name == name)
            .unwrap()
    };
    for (name, is_read_only, is_destructive) in [
        ("execute_sql", false, true),
        ("delete_branch", false, true),
        ("create_branch", false, false),
        ("list_tables", true, false),
        ("v1-delete-a-project", false, true),
        ("v1-create-a-project", false, false),
        ("v1-list-all-projects", true, false),
    ] {
        let hints = find(name).hints;
        assert_eq!(hints.is_read_only, is_read_only, "{name}");
        assert_eq!(hints.is_destructive, is_destructive, "{name}");
    }
    assert_eq!(find("execute_sql").feature, Feature::Database);
}
