//! Named tools that make requests of their own.

use gantry_base::ids::ProjectRef;
use http::Method;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::{
    arguments::{ArgumentError, Values},
    client::encoded,
    edge_functions,
    tool::{ToolContext, ToolError, ToolResult},
};
use crate::platform::{error::Error, random_secret};

/// The schemas that are listed by default.
const SCHEMAS: &[&str] = &["public"];

/// Tables of the schemas in the JSON array `$1`.
const TABLES: &str = "select n.nspname || '.' || c.relname as name, \
    c.relrowsecurity as rls_enabled, greatest(c.reltuples, 0)::bigint as rows, \
    obj_description(c.oid, 'pg_class') as comment \
    from pg_class c join pg_namespace n on n.oid = c.relnamespace \
    where c.relkind in ('r', 'p') \
    and n.nspname in (select json_array_elements_text($1::text::json)) \
    order by n.nspname, c.relname limit 1000";

/// Tables with their columns and keys.
const TABLES_VERBOSE: &str = "select n.nspname || '.' || c.relname as name, \
    c.relrowsecurity as rls_enabled, greatest(c.reltuples, 0)::bigint as rows, \
    obj_description(c.oid, 'pg_class') as comment, \
    (select json_agg(json_build_object('name', a.attname, \
        'type', format_type(a.atttypid, a.atttypmod), 'nullable', not a.attnotnull, \
        'default', pg_get_expr(d.adbin, d.adrelid), 'identity', nullif(a.attidentity::text, ''), \
        'comment', col_description(c.oid, a.attnum)) order by a.attnum) \
     from pg_attribute a left join pg_attrdef d on (d.adrelid, d.adnum) = (c.oid, a.attnum) \
     where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns, \
    (select json_agg(json_build_object('name', k.conname, \
        'definition', pg_get_constraintdef(k.oid)) order by k.contype, k.conname) \
     from pg_constraint k where k.conrelid = c.oid) as constraints \
    from pg_class c join pg_namespace n on n.oid = c.relnamespace \
    where c.relkind in ('r', 'p') \
    and n.nspname in (select json_array_elements_text($1::text::json)) \
    order by n.nspname, c.relname limit 1000";

const EXTENSIONS: &str = "select a.name, e.extversion as installed_version, n.nspname as schema, \
    a.default_version, a.comment from pg_available_extensions a \
    left join pg_extension e on e.extname = a.name \
    left join pg_namespace n on n.oid = e.extnamespace \
    order by e.extname is null, a.name";

/// Services of logs, and their tables.
const LOGS: [(&str, &str); 8] = [
    ("api", "edge_logs"),
    ("branch-action", "workflow_run_logs"),
    ("postgres", "postgres_logs"),
    ("edge-function", "function_edge_logs"),
    ("edge-function-runtime", "function_logs"),
    ("auth", "auth_logs"),
    ("storage", "storage_logs"),
    ("realtime", "realtime_logs"),
];

/// Calls the tool with this name.
pub(super) async fn call(
    tool: &str,
    context: &ToolContext,
    values: &Values,
) -> Result<ToolResult, ToolError> {
    let value = match tool {
        "get_cost" => {
            let organization = encoded(values.text("organization_id")?);
            context
                .client
                .get(&format!("/v1/organizations/{organization}"))
                .await?;
            json!({"type": values.text("type")?, "amount": 0, "recurrence": "monthly"})
        }
        "confirm_cost" => json!({"confirmation_id": context.api.entropy.uuid()}),
        "create_project" => create_project(context, values).await?,
        "list_tables" => list_tables(context, values).await?,
        "list_extensions" => query(context, values, EXTENSIONS, json!([])).await?,
        "execute_sql" => return execute_sql(context, values).await,
        "get_logs" => return logs(context, values).await,
        "get_advisors" => {
            let kind = encoded(values.text("type")?);
            context
                .client
                .get(&path(values, &format!("/advisors/{kind}"))?)
                .await?
        }
        "get_project_url" => project_url(context, values).await?,
        "get_publishable_keys" => publishable_keys(context, values).await?,
        "get_edge_function" => return edge_functions::get(context, values).await,
        "deploy_edge_function" => return edge_functions::deploy(context, values).await,
        "list_branches" => branches(context, values.text("project_id")?).await?,
        other => return Err(Error::internal("calling a tool", other.to_owned()).into()),
    };
    Ok(ToolResult::Value(value))
}

/// Returns the path of an operation of the project.
fn path(values: &Values, rest: &str) -> Result<String, ToolError> {
    Ok(format!(
        "/v1/projects/{}{rest}",
        encoded(values.text("project_id")?)
    ))
}

/// Creates a project with a random password. SQL runs through the API, without it.
async fn create_project(context: &ToolContext, values: &Values) -> Result<Value, ToolError> {
    let password = random_secret::random_secret(&context.api.entropy);
    let mut body = json!({
        "name": values.text("name")?,
        "organization_slug": values.text("organization_id")?,
        "db_pass": password.expose_secret(),
    });
    if let Some(region) = values.optional_text("region")? {
        body["region"] = region.into();
    }
    let created = context
        .client
        .call(Method::POST, "/v1/projects", Some(&body))
        .await?;
    Ok(created)
}

/// Runs a statement in a read-only transaction.
async fn query(
    context: &ToolContext,
    values: &Values,
    sql: &str,
    parameters: Value,
) -> Result<Value, ToolError> {
    let body = json!({"query": sql, "parameters": parameters});
    let path = path(values, "/database/query/read-only")?;
    Ok(context
        .client
        .call(Method::POST, &path, Some(&body))
        .await?)
}

async fn list_tables(context: &ToolContext, values: &Values) -> Result<Value, ToolError> {
    let mut schemas = values.texts("schemas")?;
    if schemas.is_empty() {
        schemas = SCHEMAS.iter().map(ToString::to_string).collect();
    }
    let sql = if values.flag("verbose") {
        TABLES_VERBOSE
    } else {
        TABLES
    };
    let schemas = json!([json!(schemas).to_string()]);
    query(context, values, sql, schemas).await
}

async fn execute_sql(context: &ToolContext, values: &Values) -> Result<ToolResult, ToolError> {
    let sql = values.text("query")?;
    if context.selection.read_only {
        return Ok(ToolResult::Untrusted(
            query(context, values, sql, json!([])).await?,
        ));
    }
    let body = json!({ "query": sql });
    let path = path(values, "/database/query")?;
    let rows = context
        .client
        .call(Method::POST, &path, Some(&body))
        .await?;
    Ok(ToolResult::Untrusted(rows))
}

async fn logs(context: &ToolContext, values: &Values) -> Result<ToolResult, ToolError> {
    let service = values.text("service")?;
    let table = LOGS.iter().find(|(name, _)| *name == service);
    let unknown = || ArgumentError(format!("service: there is no log of {service}"));
    let (_, table) = table.ok_or_else(unknown)?;
    let sql = format!(
        "select id, timestamp, event_message from {table} order by timestamp desc limit 100"
    );
    let rest = format!("/analytics/endpoints/logs.all?sql={}", encoded(&sql));
    let lines = context.client.get(&path(values, &rest)?).await?;
    Ok(ToolResult::Untrusted(lines))
}

async fn project_url(context: &ToolContext, values: &Values) -> Result<Value, ToolError> {
    // The project must exist and be visible to the caller.
    context.client.get(&path(values, "")?).await?;
    let domain = &context.api.settings.project_domain;
    let reference = values.text("project_id")?;
    Ok(json!({ "url": format!("https://{reference}.{domain}") }))
}

async fn publishable_keys(context: &ToolContext, values: &Values) -> Result<Value, ToolError> {
    let keys = context.client.get(&path(values, "/api-keys")?).await?;
    let is_public = |key: &&Value| {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        text("type") == Some("publishable") || text("name") == Some("anon")
    };
    Ok(keys
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_public)
        .cloned()
        .collect())
}

/// Returns the branches of a project; none if it has no branches.
pub(super) async fn branches(context: &ToolContext, project: &str) -> Result<Value, ToolError> {
    let path = format!("/v1/projects/{}/branches", encoded(project));
    match context.client.get(&path).await {
        Err(Error::Unprocessable(_)) => Ok(json!([])),
        branches => Ok(branches?),
    }
}

/// Rejects a branch that does not belong to the project of a selection.
pub(super) async fn require_branch(
    context: &ToolContext,
    project: &ProjectRef,
    branch: &str,
) -> Result<(), ToolError> {
    let branches = branches(context, project.as_str()).await?;
    let is_named = |entry: &Value| {
        let is = |key: &str| entry.get(key).and_then(Value::as_str) == Some(branch);
        is("id") || is("project_ref")
    };
    if branches.as_array().into_iter().flatten().any(is_named) {
        return Ok(());
    }
    let text = format!("branch_id: {branch} is no branch of the project {project}");
    Err(ArgumentError(text).into())
}
