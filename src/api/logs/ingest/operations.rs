//! Ingest endpoints for stacks and collectors. The ingest key in the request identifies the
//! project.

use gantry_base::ids::ProjectRef;
use gantry_logs::event::Event;
use http::{HeaderMap, StatusCode, header};
use schemars::JsonSchema;
use secrecy::ExposeSecret as _;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{BYTES_MAX, logflare, otlp, recent, source, unpacked};
use crate::{
    api::{context::ApiContext, logs::keys},
    platform::{
        access::Access,
        error::{CredentialProblem, Error},
        http::{
            Body, Call, Endpoint, Input, Json, Output, Response, Tag, Verb, mount,
            operation_doc::OperationDoc, output::with_type,
        },
        rate_limits::{Limit, LimitKey, per},
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[&LOGFLARE, &OTLP];

/// Permits several senders behind one address, each with one batch per second.
static LIMIT: Limit = Limit {
    key: LimitKey::Path,
    windows: &[per(1_200, 60)],
};

static LOGFLARE: Endpoint = Endpoint {
    id: "gantry-ingest-logs",
    summary: "Add log lines, as Logflare takes them",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/api/logs",
    aliases: &[
        "/logs",
        "/api/events",
        "/api/logs/vector",
        "/api/logs/json",
        "/api/logs/syslog",
        "/api/logs/cloudflare",
        "/logs/vector",
        "/logs/json",
        "/logs/syslog",
        "/logs/cloudflare",
    ],
    access: Access::Public,
    limit: &LIMIT,
    handler: || mount(logflare).sample(r#"{"event_message": "hello"}"#),
};

static OTLP: Endpoint = Endpoint {
    id: "gantry-ingest-otlp-logs",
    summary: "Add log lines, as OpenTelemetry sends them",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/logs",
    aliases: &[],
    access: Access::Public,
    limit: &LIMIT,
    handler: || mount(otlp).sample(r#"{"resourceLogs": []}"#),
};

/// One object or an array of objects with arbitrary fields.
#[derive(JsonSchema)]
#[schemars(rename = "LogLines", untagged)]
#[expect(
    dead_code,
    reason = "says what a body looks like; bodies are read as their type says"
)]
enum Lines {
    One(Map<String, Value>),
    Several(Vec<Map<String, Value>>),
}

/// An authenticated ingest request.
struct IngestRequest {
    project: ProjectRef,
    /// Source named by the request.
    source: Option<String>,
    content_type: String,
    body: bytes::Bytes,
}

impl Input for IngestRequest {
    fn describe(described: &mut OperationDoc) {
        described.body_schema::<Lines>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let context = ApiContext::take(call).await?;
        let [source, key, content_type, encoding] = said(call);
        // Collectors of OpenTelemetry send the key as a bearer token.
        let bearer = || call.bearer().map(|key| key.expose_secret().to_owned());
        let key =
            (key.or_else(bearer)).ok_or(Error::Unauthenticated(CredentialProblem::Missing))?;
        // Do not read the body of an unauthenticated caller.
        let project = keys::project(&context.db, &key, context.clock.now())
            .await?
            .ok_or(Error::Unauthenticated(CredentialProblem::Unknown))?;
        let body = call.body_within(BYTES_MAX).await?;
        Ok(Self {
            project,
            source,
            content_type: content_type.unwrap_or_default(),
            body: unpacked(body, encoding.as_deref())?,
        })
    }
}

/// Source, key, content type and content encoding of a request, where present.
fn said(call: &Call<'_>) -> [Option<String>; 4] {
    let mut query = form_urlencoded::parse(call.uri().query().unwrap_or_default().as_bytes());
    let named = query
        .find(|(name, _)| name == "source_name" || name == "source")
        .map(|(_, value)| value.into_owned());
    let [source, key, content_type, encoding] =
        ["x-source", "x-api-key", "content-type", "content-encoding"]
            .map(|name| text(call.headers(), name));
    [named.or(source), key, content_type, encoding]
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LogsIngested")]
struct Ingested {
    message: &'static str,
}

/// Stores lines. A repetition of a recent batch with the same ids is accepted and not stored.
async fn store(
    context: &ApiContext,
    project: &ProjectRef,
    events: Vec<Event>,
    has_given_ids: bool,
) -> Result<(), Error> {
    if events.is_empty() {
        return Ok(());
    }
    let analytics = &context.analytics;
    if !has_given_ids {
        return analytics.append(project, events, None).await;
    }
    let key = recent::batch_key(&events);
    let _exclusive = analytics.batch_locks.lock(project).await;
    if analytics.has_batch(project, &key).await? {
        return Ok(());
    }
    analytics.append_with_key(project, events, &key).await
}

async fn logflare(context: ApiContext, sent: IngestRequest) -> Result<Json<Ingested>, Error> {
    let source = source(
        sent.source
            .as_deref()
            .ok_or_else(|| Error::invalid("source_name", "Required"))?,
    )?;
    let mut made = 0;
    let events = logflare::events(&sent.body, source, context.clock.now(), || {
        made += 1;
        context.entropy.uuid().to_string()
    })?;
    store(&context, &sent.project, events, made == 0).await?;
    Ok(Json(Ingested { message: "Logged!" }))
}

/// An empty `ExportLogsServiceResponse`, in the encoding of the request.
struct Exported(otlp::Encoding);

/// All lines were accepted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LogsExported")]
struct AllTaken {}

impl Output for Exported {
    fn describe(described: &mut OperationDoc) {
        <Json<AllTaken> as Output>::describe(described);
    }

    fn respond(self) -> Response {
        match self.0 {
            otlp::Encoding::Protobuf => {
                with_type(StatusCode::OK, "application/x-protobuf", Body::empty())
            }
            otlp::Encoding::Json => Json(AllTaken {}).respond(),
        }
    }
}

async fn otlp(context: ApiContext, sent: IngestRequest) -> Result<Exported, Error> {
    let encoding = match sent.content_type.split(';').next().map(str::trim) {
        Some("application/x-protobuf" | "application/protobuf") => otlp::Encoding::Protobuf,
        Some("application/json") => otlp::Encoding::Json,
        _ => {
            return Err(Error::invalid(
                header::CONTENT_TYPE.as_str().to_owned(),
                "expected application/x-protobuf or application/json",
            ));
        }
    };
    let named = sent.source.as_deref().map(source).transpose()?;
    let mut made = 0;
    let events = otlp::events(&sent.body, encoding, named, context.clock.now(), || {
        made += 1;
        context.entropy.uuid().to_string()
    })?;
    store(&context, &sent.project, events, made == 0).await?;
    Ok(Exported(encoding))
}
