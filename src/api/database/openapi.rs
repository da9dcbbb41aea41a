//! Swagger 2.0 document of a schema's data API: tables, views and functions.

use serde_json::{Map, Value, json};

use super::catalog::{
    Catalog, Function, FunctionArgument, Oid, Relation, RelationColumn, RelationKind,
};

/// Maximum depth of domains over domains.
const DEPTH_MAX: u8 = 16;
const KINDS: &[RelationKind] = &[
    RelationKind::Table,
    RelationKind::View,
    RelationKind::Materialized,
];

/// Returns the document of `schema`, for which the catalog was read.
pub fn generate(catalog: &Catalog, schema: &str) -> Map<String, Value> {
    let relations: Vec<_> = catalog.relations_of(schema, KINDS).collect();
    let mut paths = Map::new();
    let mut definitions = Map::new();
    for relation in &relations {
        paths.insert(format!("/{}", relation.name), operations(relation));
        definitions.insert(relation.name.clone(), definition(catalog, relation));
    }
    for function in catalog
        .functions
        .iter()
        .filter(|function| function.schema == schema)
    {
        // Of overloads the last one is used, because Swagger has one operation per path.
        if function
            .arguments
            .iter()
            .all(|argument| !argument.name.is_empty())
        {
            paths.insert(format!("/rpc/{}", function.name), call(catalog, function));
        }
    }
    let document = json!({
        "swagger": "2.0",
        "info": {"title": format!("Data API of {schema}"), "version": env!("CARGO_PKG_VERSION")},
        "basePath": "/",
        "consumes": ["application/json"],
        "produces": ["application/json"],
        "paths": paths,
        "definitions": definitions,
    });
    match document {
        Value::Object(document) => document,
        _ => Map::new(),
    }
}

fn operations(relation: &Relation) -> Value {
    let rows = json!({"$ref": format!("#/definitions/{}", pointer(&relation.name))});
    let filters = || {
        relation
            .columns
            .iter()
            .map(|column| text("query", &column.name, "Filter, such as `eq.1`"))
    };
    let shape = [
        text("query", "select", "Columns, separated by commas"),
        text("query", "order", "Columns to sort by, such as `id.desc`"),
        text("query", "limit", "Most rows to answer"),
        text("query", "offset", "Rows to pass over"),
    ];
    let body = json!({"name": "row", "in": "body", "schema": rows});
    let operation = |parameters: Vec<Value>, status: &str, responses: Value| {
        json!({
            "tags": [relation.name], "parameters": parameters, "responses": {status: responses},
        })
    };
    let mut all = Map::new();
    let read = json!({"description": "Rows", "schema": {"type": "array", "items": rows}});
    let mut get = operation(filters().chain(shape).collect(), "200", read);
    if let Some(comment) = &relation.comment {
        get["summary"] = comment.clone().into();
    }
    all.insert("get".into(), get);
    if relation.insertable {
        all.insert(
            "post".into(),
            operation(vec![body.clone()], "201", json!({"description": "Created"})),
        );
    }
    if relation.updatable {
        all.insert(
            "patch".into(),
            operation(
                filters().chain([body]).collect(),
                "204",
                json!({"description": "Changed"}),
            ),
        );
        all.insert(
            "delete".into(),
            operation(
                filters().collect(),
                "204",
                json!({"description": "Removed"}),
            ),
        );
    }
    all.into()
}

fn text(place: &str, name: &str, description: &str) -> Value {
    json!({"name": name, "in": place, "required": false, "type": "string", "description": description})
}

/// Escapes a name for a JSON pointer.
fn pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn definition(catalog: &Catalog, relation: &Relation) -> Value {
    let required: Vec<_> = relation
        .columns
        .iter()
        .filter(|column| !column.nullable)
        .map(|column| &column.name)
        .collect();
    let properties: Map<_, _> = relation
        .columns
        .iter()
        .map(|column| (column.name.clone(), property(catalog, relation, column)))
        .collect();
    let mut definition = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        definition["required"] = json!(required);
    }
    if let Some(comment) = &relation.comment {
        definition["description"] = comment.clone().into();
    }
    definition
}

fn property(catalog: &Catalog, relation: &Relation, column: &RelationColumn) -> Value {
    let mut property = schema(catalog, column.kind, 0);
    property["format"] = column.format.clone().into();
    if column.always_generated {
        property["readOnly"] = true.into();
    }
    // Tools recognise keys by these marks.
    let mut notes: Vec<String> = column.comment.iter().cloned().collect();
    if relation.primary_key.contains(&column.name) {
        notes.push("Primary key.<pk/>".to_owned());
    }
    for key in catalog
        .foreign_keys
        .iter()
        .filter(|key| key.table == relation.id)
    {
        let pairs = key
            .columns
            .iter()
            .zip(&key.referenced_columns)
            .filter(|(name, _)| **name == column.name);
        notes.extend(pairs.map(|(_, to)| {
            let table = &key.referenced_table;
            format!("Refers to `{table}.{to}`.<fk table='{table}' column='{to}'/>")
        }));
    }
    if !notes.is_empty() {
        property["description"] = notes.join("\n\n").into();
    }
    property
}

/// Returns the JSON schema of a type. A type without a JSON equivalent is a string.
fn schema(catalog: &Catalog, id: Oid, depth: u8) -> Value {
    let Some(kind) = catalog.types.get(&id).filter(|_| depth < DEPTH_MAX) else {
        return json!({});
    };
    if let Some(element) = kind.element {
        return json!({"type": "array", "items": schema(catalog, element, depth + 1)});
    }
    if let Some(base) = kind.base {
        return schema(catalog, base, depth + 1);
    }
    if let Some(labels) = &kind.labels {
        return json!({"type": "string", "enum": labels});
    }
    match kind.name.as_str() {
        "bool" => json!({"type": "boolean"}),
        "int2" | "int4" | "int8" => json!({"type": "integer"}),
        "float4" | "float8" | "numeric" => json!({"type": "number"}),
        // Any JSON value.
        "json" | "jsonb" => json!({}),
        _ if kind.relation.is_some() => json!({"type": "object"}),
        _ => json!({"type": "string"}),
    }
}

fn call(catalog: &Catalog, function: &Function) -> Value {
    let argument =
        |argument: &FunctionArgument| (argument.name.clone(), schema(catalog, argument.kind, 0));
    let required: Vec<_> = function
        .arguments
        .iter()
        .filter(|argument| !argument.has_default)
        .map(|argument| &argument.name)
        .collect();
    let mut body = json!({"type": "object", "properties": function.arguments.iter().map(argument).collect::<Map<_, _>>()});
    if !required.is_empty() {
        body["required"] = json!(required);
    }
    let mut post = json!({
        "tags": [format!("(rpc) {}", function.name)],
        "parameters": [{"name": "args", "in": "body", "required": true, "schema": body}],
        "responses": {"200": {"description": "Result of the function"}},
    });
    if let Some(comment) = &function.comment {
        post["summary"] = comment.clone().into();
    }
    json!({"post": post})
}
