//! Operations on Edge Functions.

mod body;
mod upload;

use std::sync::Arc;

use gantry_base::ids::ProjectRef;
use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::services::functions::{
        self, FunctionChange, FunctionRecord, FunctionSlug, VersionSwitch,
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{
            Call, Endpoint, Input, Json, Output, Tag, Verb, mount, operation_doc::OperationDoc,
            output,
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of functions.
pub(super) static ENDPOINTS: &[&Endpoint] = &[
    &LIST,
    &upload::CREATE,
    &SWITCH,
    &upload::DEPLOY,
    &DELETE,
    &GET,
    &upload::UPDATE,
    &body::BODY,
];

/// Functions in one request.
const SWITCHES_MAX: usize = 1000;

/// A function on the wire.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FunctionResponse")]
struct FunctionDescription {
    /// A UUID.
    id: String,
    slug: String,
    name: String,
    status: FunctionStatus,
    version: i32,
    /// Milliseconds since 1970.
    created_at: i64,
    /// Milliseconds since 1970.
    updated_at: i64,
    /// Whether requests need a token of the project.
    verify_jwt: bool,
    /// Whether the version has an import map.
    import_map: bool,
    /// URL of the first module, as the function sees it.
    entrypoint_path: String,
    /// URL of the import map.
    #[serde(skip_serializing_if = "Option::is_none")]
    import_map_path: Option<String>,
    /// SHA-256 of the uploaded bundle, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    ezbr_sha256: Option<String>,
}

/// Status of a function.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
enum FunctionStatus {
    Active,
    Removed,
    Throttled,
}

impl FunctionDescription {
    /// Sets the response for a request with a key.
    fn set_answer(audit: &Recorder, project: &ProjectRef, status: StatusCode) {
        let project = project.clone();
        audit.answer_with(move |record: &FunctionRecord| {
            output::json(status, &Self::new(&project, record.clone()))
        });
    }

    fn new(project: &ProjectRef, record: FunctionRecord) -> Self {
        let root = functions::public_root(project, record.id, record.version);
        let url = |path: &str| format!("file://{root}/source/{path}");
        Self {
            status: FunctionStatus::Active,
            created_at: record.created_at.timestamp_millis(),
            updated_at: record.updated_at.timestamp_millis(),
            entrypoint_path: url(&record.entrypoint),
            import_map_path: record.import_map.as_deref().map(url),
            import_map: record.import_map.is_some(),
            id: record.id.to_string(),
            slug: record.slug,
            name: record.name,
            version: record.version,
            verify_jwt: record.verify_jwt,
            ezbr_sha256: record.bundle_sha256,
        }
    }
}

/// `{function_slug}` of the path.
struct SlugPath(FunctionSlug);

impl Input for SlugPath {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let slug = call.placeholder("function_slug").unwrap_or_default();
        let parsed = slug.parse().map(Self);
        parsed.map_err(|expected| Error::invalid("function_slug", format!("{expected}")))
    }
}

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-functions",
    summary: "List Edge Functions",
    tag: Tag::EdgeFunctions,
    method: Verb::Get,
    path: "/v1/projects/{ref}/functions",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsRead]], S::EdgeFunctionsRead),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(
    project: Project,
    context: ApiContext,
) -> Result<Json<Vec<FunctionDescription>>, Error> {
    let all = functions::list(&context, project.id).await?;
    let describe = |record| FunctionDescription::new(&project.reference, record);
    Ok(Json(all.into_iter().map(describe).collect()))
}

static GET: Endpoint = Endpoint {
    id: "v1-get-a-function",
    summary: "Get an Edge Function",
    tag: Tag::EdgeFunctions,
    method: Verb::Get,
    path: "/v1/projects/{ref}/functions/{function_slug}",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsRead]], S::EdgeFunctionsRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    SlugPath(slug): SlugPath,
    context: ApiContext,
) -> Result<Json<FunctionDescription>, Error> {
    let record = functions::get(&context, project.id, &slug).await?;
    let record = record.ok_or(functions::NO_FUNCTION)?;
    Ok(Json(FunctionDescription::new(&project.reference, record)))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-delete-a-function",
    summary: "Delete an Edge Function",
    tag: Tag::EdgeFunctions,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/functions/{function_slug}",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite),
    limit: &STANDARD,
    handler: || mount(delete),
};

/// Confirmation of a deletion.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct FunctionDeleted {
    message: &'static str,
}

async fn delete(
    project: Project,
    SlugPath(slug): SlugPath,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<FunctionDeleted>, Error> {
    let done = || Json(FunctionDeleted { message: "ok" });
    audit.answer(done);
    functions::remove(&context, &project, &slug, &audit).await?;
    Ok(done())
}

static SWITCH: Endpoint = Endpoint {
    id: "v1-bulk-update-functions",
    summary: "Update several Edge Functions at once",
    tag: Tag::EdgeFunctions,
    method: Verb::Put,
    path: "/v1/projects/{ref}/functions",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite),
    limit: &STANDARD,
    handler: || {
        mount(switch).sample(
            r#"[{"id": "00000000-0000-0000-0000-000000000000", "slug": "hello", "name": "hello", "status": "ACTIVE", "version": 1}]"#,
        )
    },
};

/// A version to make live, as a deployment returned it.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct SwitchBody {
    /// Ignored: the slug names the function.
    #[expect(dead_code, reason = "required by the contract")]
    id: String,
    #[schemars(regex(pattern = "^[A-Za-z][A-Za-z0-9_-]*$"))]
    slug: String,
    name: String,
    /// Ignored.
    #[expect(dead_code, reason = "required by the contract")]
    status: FunctionStatus,
    version: i32,
    verify_jwt: Option<bool>,
}

/// Versions to make live.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "BulkUpdateFunctionBody")]
struct SwitchesBody(Vec<SwitchBody>);

/// The functions after a switch.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkUpdateFunctionResponse")]
struct SwitchedFunctions {
    functions: Vec<FunctionDescription>,
}

async fn switch(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(SwitchesBody(bodies)): Json<SwitchesBody>,
) -> Result<Json<SwitchedFunctions>, Error> {
    if bodies.len() > SWITCHES_MAX {
        return Err(Error::invalid("body", "has too many functions"));
    }
    let mut switches = Vec::with_capacity(bodies.len());
    for (index, body) in bodies.into_iter().enumerate() {
        switches.push(VersionSwitch {
            slug: upload::deployable(format!("{index}.slug"), &body.slug)?,
            version: body.version,
            change: FunctionChange {
                name: Some(upload::checked_name(body.name)?),
                verify_jwt: body.verify_jwt,
            },
        });
    }
    let reference = project.reference.clone();
    let view = move |records: Vec<FunctionRecord>| {
        let describe = |record| FunctionDescription::new(&reference, record);
        Json(SwitchedFunctions {
            functions: records.into_iter().map(describe).collect(),
        })
    };
    let answer = view.clone();
    audit.answer_with(move |after: &Vec<FunctionRecord>| answer(after.clone()).respond());
    let after = functions::switch(&context, &project, &switches, &audit).await?;
    Ok(view(after))
}
