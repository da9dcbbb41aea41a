//! Deployments of functions: files, bundles and texts.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{FunctionDescription, SlugPath};
use crate::{
    api::context::ApiContext,
    control::services::functions::{
        self, DeployRule, FunctionChange, FunctionSlug, FunctionUpload, PathProblem, RelativePath,
        eszip::{self, Bundle, ModuleLocation},
        sources::Sources,
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{
            Call, Endpoint, Input, Json, Query, Tag, Verb, input::FileBody, json as json_body,
            mount, multipart, operation_doc::OperationDoc, output::Created,
        },
        rate_limits::STANDARD,
    },
};

/// Media type of bundles.
const ESZIP: &str = "application/vnd.denoland.eszip";
/// Path of the only file of a function that is sent as a text.
const TEXT_ENTRYPOINT: &str = "index.ts";
/// Longest display name, in characters.
const NAME_CHARS_MAX: usize = 256;
/// Largest number of patterns of static files.
const STATIC_PATTERNS_MAX: usize = 1000;

/// Parses a slug that begins with a letter.
pub(super) fn deployable(
    field: impl Into<Cow<'static, str>>,
    slug: &str,
) -> Result<FunctionSlug, Error> {
    let parsed: Option<FunctionSlug> = slug.parse().ok();
    parsed
        .filter(FunctionSlug::begins_with_letter)
        .ok_or_else(|| {
            Error::invalid(
                field,
                "Invalid string: must match pattern /^[A-Za-z][A-Za-z0-9_-]*$/",
            )
        })
}

/// Checks a display name.
pub(super) fn checked_name(name: String) -> Result<String, Error> {
    crate::platform::names::check("name", &name, NAME_CHARS_MAX)?;
    Ok(name)
}

pub(super) static DEPLOY: Endpoint = Endpoint {
    id: "v1-deploy-a-function",
    summary: "Deploy an Edge Function",
    tag: Tag::EdgeFunctions,
    method: Verb::Post,
    path: "/v1/projects/{ref}/functions/deploy",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite),
    limit: &STANDARD,
    handler: || mount(deploy).without_dry_run(),
};

/// Query of a deployment.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DeployQuery {
    /// The name of the function in paths. Absent: the name in the metadata.
    slug: Option<String>,
    /// Whether to store the version without making it live.
    #[serde(default)]
    bundle_only: bool,
}

/// The part `metadata` of a deployment.
#[derive(Debug, Deserialize, JsonSchema)]
struct DeployMetadata {
    entrypoint_path: String,
    import_map_path: Option<String>,
    /// Checked only: static files are uploaded like all others.
    static_patterns: Option<Vec<String>>,
    verify_jwt: Option<bool>,
    name: Option<String>,
}

impl DeployMetadata {
    /// Returns the paths of the first module and the import map.
    fn paths(&self) -> Result<(RelativePath, Option<RelativePath>), Error> {
        let patterns = self.static_patterns.as_deref().unwrap_or_default();
        if patterns.len() > STATIC_PATTERNS_MAX {
            let problem = format!("must have at most {STATIC_PATTERNS_MAX} patterns");
            return Err(Error::invalid("static_patterns", problem));
        }
        for (index, pattern) in patterns.iter().enumerate() {
            RelativePath::parse(pattern)
                .map_err(|problem| bad_path(format!("static_patterns.{index}"), problem))?;
        }
        let entrypoint = RelativePath::parse_reported(&self.entrypoint_path)
            .map_err(|problem| bad_path("entrypoint_path", problem))?;
        // Clients send an empty path for a function without a map.
        let import_map = self.import_map_path.as_deref();
        let import_map = import_map
            .filter(|path| !path.is_empty())
            .map(RelativePath::parse_reported)
            .transpose()
            .map_err(|problem| bad_path("import_map_path", problem))?;
        Ok((entrypoint, import_map))
    }
}

fn bad_path(field: impl Into<Cow<'static, str>>, problem: PathProblem) -> Error {
    Error::invalid(field, problem.to_string())
}

/// A body of files with their metadata.
struct FilesForm {
    metadata: DeployMetadata,
    sources: Sources,
    body: FileBody,
}

impl Input for FilesForm {
    fn describe(described: &mut OperationDoc) {
        FileBody::describe(described);
        let file = json!({"type": "string", "format": "binary"});
        let metadata = json!({
            "type": "object",
            "required": ["entrypoint_path"],
            "properties": {
                "entrypoint_path": {"type": "string"},
                "import_map_path": {"type": "string"},
                "static_patterns": {"type": "array", "items": {"type": "string"}},
                "verify_jwt": {"type": "boolean"},
                "name": {"type": "string"},
            },
        });
        let schema = json!({
            "type": "object",
            "required": ["metadata"],
            "properties": {"file": {"type": "array", "items": file}, "metadata": metadata},
        });
        described.body_media("multipart/form-data", schema);
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let body = FileBody::take(call).await?;
        let boundary = multipart::boundary(&body.content_type)?;
        let mut metadata = None;
        let mut sources = Sources::default();
        for part in multipart::parse(&boundary, &body.bytes)? {
            match part.name.as_str() {
                "metadata" => metadata = Some(json_body::parse(&part.content)?),
                "file" => {
                    let name = part.file_name.ok_or_else(|| {
                        Error::invalid("file", "Invalid input: expected a file with a name")
                    })?;
                    sources.add(&name, part.content)?;
                }
                // Later clients may send more.
                _ => {}
            }
        }
        Ok(Self {
            metadata: metadata.ok_or_else(|| Error::invalid("metadata", "Required"))?,
            sources,
            body,
        })
    }
}

async fn deploy(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(query): Query<DeployQuery>,
    form: FilesForm,
) -> Result<Created<FunctionDescription>, Error> {
    let metadata = form.metadata;
    let (entrypoint, import_map) = metadata.paths()?;
    let slug = query.slug.as_deref().or(metadata.name.as_deref());
    let upload = FunctionUpload {
        slug: deployable("slug", slug.unwrap_or_default())?,
        name: metadata.name.map(checked_name).transpose()?,
        verify_jwt: metadata.verify_jwt,
        entrypoint,
        import_map,
        sources: form.sources,
        bundle: None,
        live: !query.bundle_only,
    };
    FunctionDescription::set_answer(&audit, &project.reference, StatusCode::CREATED);
    let record =
        functions::deploy(&context, &project, upload, DeployRule::Any, (&audit, 201)).await?;
    drop(form.body);
    Ok(Created(FunctionDescription::new(
        &project.reference,
        record,
    )))
}

/// Query of an upload.
#[derive(Debug, Deserialize, JsonSchema)]
struct UploadQuery {
    slug: Option<String>,
    name: Option<String>,
    verify_jwt: Option<bool>,
    /// Ignored: whether there is an import map follows from its path.
    #[expect(dead_code, reason = "published in the contract")]
    import_map: Option<bool>,
    /// URL of the first module in the bundle.
    entrypoint_path: Option<String>,
    /// URL of the import map in the bundle.
    import_map_path: Option<String>,
    /// Ignored: computed from the body.
    #[expect(dead_code, reason = "published in the contract")]
    ezbr_sha256: Option<String>,
}

/// The modules that a query names.
struct NamedModules {
    entrypoint: Option<ModuleLocation>,
    import_map: Option<ModuleLocation>,
}

impl UploadQuery {
    /// Parses the places of the modules, whether the body uses them or not.
    fn modules(&self) -> Result<NamedModules, Error> {
        let parse = |field: &'static str, text: &Option<String>| {
            let named = text.as_deref().filter(|text| !text.is_empty());
            let location = named.map(ModuleLocation::parse).transpose();
            location.map_err(|problem| bad_path(field, problem))
        };
        Ok(NamedModules {
            entrypoint: parse("entrypoint_path", &self.entrypoint_path)?,
            import_map: parse("import_map_path", &self.import_map_path)?,
        })
    }
}

/// A function as one text.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1CreateFunctionBody")]
struct FunctionText {
    #[schemars(regex(pattern = "^[A-Za-z][A-Za-z0-9_-]*$"))]
    slug: String,
    name: String,
    /// The source text.
    body: String,
    verify_jwt: Option<bool>,
}

/// A change of a function.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1UpdateFunctionBody")]
struct FunctionUpdateBody {
    name: Option<String>,
    /// The source text.
    body: Option<String>,
    verify_jwt: Option<bool>,
}

/// A body with a bundle, or JSON of the type `T`.
struct BundleOrJson<T> {
    content: BundleContent<T>,
    body: FileBody,
}

enum BundleContent<T> {
    Bundle,
    Json(T),
}

impl<T: serde::de::DeserializeOwned + JsonSchema + Send> Input for BundleOrJson<T> {
    fn describe(described: &mut OperationDoc) {
        FileBody::describe(described);
        described.body_schema::<T>();
        described.body_media(ESZIP, json!({"type": "string", "format": "binary"}));
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let body = FileBody::take(call).await?;
        let content = if body.media_type == ESZIP {
            BundleContent::Bundle
        } else {
            BundleContent::Json(body.json()?)
        };
        Ok(Self { content, body })
    }
}

/// Reads the uploaded bundle. Unpacking takes processor time, so it runs on a thread for blocking
/// work.
async fn unpack(
    slug: FunctionSlug,
    query: UploadQuery,
    modules: NamedModules,
    bytes: Bytes,
) -> Result<FunctionUpload, Error> {
    let unpacked = tokio::task::spawn_blocking(move || {
        let entry = modules.entrypoint;
        let entry = entry.ok_or_else(|| Error::invalid("entrypoint_path", "Required"))?;
        let bundle = Bundle::parse(eszip::decompress(&bytes)?)?;
        let (sources, paths) = bundle.sources(&[Some(&entry), modules.import_map.as_ref()])?;
        let mut paths = paths.into_iter();
        let found = paths.next().flatten();
        Ok(FunctionUpload {
            slug,
            name: query.name.map(checked_name).transpose()?,
            verify_jwt: query.verify_jwt,
            // One that is absent is reported with the path that the client sent.
            entrypoint: found.unwrap_or_else(|| entry.into_path()),
            import_map: paths.next().flatten(),
            sources,
            bundle: Some((hex::encode(Sha256::digest(&bytes)), bytes)),
            live: true,
        })
    });
    unpacked
        .await
        .map_err(|error| Error::internal("reading a bundle", error))?
}

/// Returns an upload of one text.
fn text(slug: FunctionSlug, text: String) -> Result<FunctionUpload, Error> {
    let entrypoint = RelativePath::parse(TEXT_ENTRYPOINT)
        .map_err(|problem| bad_path("entrypoint_path", problem))?;
    let mut sources = Sources::default();
    sources.add(TEXT_ENTRYPOINT, text.into())?;
    Ok(FunctionUpload {
        slug,
        name: None,
        verify_jwt: None,
        entrypoint,
        import_map: None,
        sources,
        bundle: None,
        live: true,
    })
}

pub(super) static CREATE: Endpoint = Endpoint {
    id: "v1-create-a-function",
    summary: "Create an Edge Function",
    tag: Tag::EdgeFunctions,
    method: Verb::Post,
    path: "/v1/projects/{ref}/functions",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite),
    limit: &STANDARD,
    handler: || {
        mount(create).without_dry_run().sample(
            r#"{"slug": "hello", "name": "hello", "body": "Deno.serve(() => new Response('hello'))"}"#,
        )
    },
};

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(query): Query<UploadQuery>,
    body: BundleOrJson<FunctionText>,
) -> Result<Created<FunctionDescription>, Error> {
    let modules = query.modules()?;
    let upload = match body.content {
        BundleContent::Bundle => {
            let slug = deployable("slug", query.slug.as_deref().unwrap_or_default())?;
            unpack(slug, query, modules, body.body.bytes.clone()).await?
        }
        BundleContent::Json(sent) => FunctionUpload {
            name: Some(checked_name(sent.name)?),
            verify_jwt: sent.verify_jwt,
            ..text(deployable("slug", &sent.slug)?, sent.body)?
        },
    };
    FunctionDescription::set_answer(&audit, &project.reference, StatusCode::CREATED);
    let record = functions::deploy(
        &context,
        &project,
        upload,
        DeployRule::Create,
        (&audit, 201),
    )
    .await?;
    drop(body.body);
    Ok(Created(FunctionDescription::new(
        &project.reference,
        record,
    )))
}

pub(super) static UPDATE: Endpoint = Endpoint {
    id: "v1-update-a-function",
    summary: "Update an Edge Function",
    tag: Tag::EdgeFunctions,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/functions/{function_slug}",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite),
    limit: &STANDARD,
    handler: || {
        mount(update)
            .without_dry_run()
            .sample(r#"{"verify_jwt": false}"#)
    },
};

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(query): Query<UploadQuery>,
    body: BundleOrJson<FunctionUpdateBody>,
    SlugPath(slug): SlugPath,
) -> Result<Json<FunctionDescription>, Error> {
    let modules = query.modules()?;
    FunctionDescription::set_answer(&audit, &project.reference, StatusCode::OK);
    let upload = match body.content {
        BundleContent::Bundle => unpack(slug, query, modules, body.body.bytes.clone()).await?,
        BundleContent::Json(FunctionUpdateBody {
            name,
            body: Some(source),
            verify_jwt,
        }) => FunctionUpload {
            name: name.map(checked_name).transpose()?,
            verify_jwt,
            ..text(slug, source)?
        },
        BundleContent::Json(FunctionUpdateBody {
            name, verify_jwt, ..
        }) => {
            let name = name.or(query.name).map(checked_name).transpose()?;
            let verify_jwt = verify_jwt.or(query.verify_jwt);
            let change = FunctionChange { name, verify_jwt };
            let record = functions::update(&context, &project, &slug, &change, &audit).await?;
            return Ok(Json(FunctionDescription::new(&project.reference, record)));
        }
    };
    let record = functions::deploy(
        &context,
        &project,
        upload,
        DeployRule::Update,
        (&audit, 200),
    )
    .await?;
    drop(body.body);
    Ok(Json(FunctionDescription::new(&project.reference, record)))
}
