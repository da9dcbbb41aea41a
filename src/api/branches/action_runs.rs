//! Operations on action runs.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{
    operations::OkMessage,
    runs,
    runs::{RunStep, RunView, StepStatus},
    target::RunId,
    text::PlainText,
};
use crate::{
    api::context::ApiContext,
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::{Context as _, Error},
        http::{
            Endpoint, Json, Query, Tag, Verb,
            body::Response,
            mount,
            operation_doc::OperationDoc,
            output::{Output, empty},
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &COUNT, &GET, &LOGS, &UPDATE_STATUS];

/// Runs on a page, unless the caller asks for another number.
const PAGE: i64 = 20;
/// Bounds of the page.
const PAGE_MIN: i64 = 10;
const PAGE_MAX: i64 = 100;

static LIST: Endpoint = Endpoint {
    id: "v1-list-action-runs",
    summary: "List action runs",
    tag: Tag::Environments,
    method: Verb::Get,
    path: "/v1/projects/{ref}/actions",
    aliases: &[],
    access: needs(&[&[P::ActionRunsRead]], S::EnvironmentRead),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct RunPageQuery {
    /// Number of runs to skip.
    #[serde(default)]
    #[schemars(range(min = 0))]
    offset: i64,
    /// Maximum number of runs.
    #[serde(default = "RunPageQuery::limit")]
    #[schemars(range(min = 10, max = 100))]
    limit: i64,
}

impl RunPageQuery {
    fn limit() -> i64 {
        PAGE
    }
}

async fn list(
    project: Project,
    context: ApiContext,
    Query(page): Query<RunPageQuery>,
) -> Result<Json<Vec<RunView>>, Error> {
    if page.offset < 0 {
        return Err(Error::invalid("offset", "expected a number from 0"));
    }
    if page.limit < PAGE_MIN {
        return Err(Error::invalid("limit", "expected a number from 10"));
    }
    let limit = page.limit.min(PAGE_MAX);
    let runs = runs::list(&context, project.id, page.offset, limit).await?;
    Ok(Json(runs))
}

static COUNT: Endpoint = Endpoint {
    id: "v1-count-action-runs",
    summary: "Count action runs",
    tag: Tag::Environments,
    method: Verb::Head,
    path: "/v1/projects/{ref}/actions",
    aliases: &[],
    access: needs(&[&[P::ActionRunsRead]], S::EnvironmentRead),
    limit: &STANDARD,
    handler: || mount(count),
};

/// 200 without a body, and the number in `X-Total-Count`.
struct TotalCount(i64);

const TOTAL_COUNT: HeaderName = HeaderName::from_static("x-total-count");

impl Output for TotalCount {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        let mut response = empty(StatusCode::OK);
        response
            .headers_mut()
            .insert(TOTAL_COUNT, HeaderValue::from(self.0));
        response
    }
}

async fn count(project: Project, context: ApiContext) -> Result<TotalCount, Error> {
    Ok(TotalCount(runs::count(&context, project.id).await?))
}

static GET: Endpoint = Endpoint {
    id: "v1-get-action-run",
    summary: "Get an action run",
    tag: Tag::Environments,
    method: Verb::Get,
    path: "/v1/projects/{ref}/actions/{run_id}",
    aliases: &[],
    access: needs(&[&[P::ActionRunsRead]], S::EnvironmentRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    context: ApiContext,
    RunId(run): RunId,
) -> Result<Json<RunView>, Error> {
    Ok(Json(runs::get(&context, project.id, &run).await?))
}

static LOGS: Endpoint = Endpoint {
    id: "v1-get-action-run-logs",
    summary: "Get an action run's logs",
    tag: Tag::Environments,
    method: Verb::Get,
    path: "/v1/projects/{ref}/actions/{run_id}/logs",
    aliases: &[],
    access: needs(&[&[P::ActionRunsRead]], S::EnvironmentRead),
    limit: &STANDARD,
    handler: || mount(logs),
};

async fn logs(
    project: Project,
    context: ApiContext,
    RunId(run): RunId,
) -> Result<PlainText, Error> {
    Ok(PlainText(runs::logs(&context, project.id, &run).await?))
}

static UPDATE_STATUS: Endpoint = Endpoint {
    id: "v1-update-action-run-status",
    summary: "Update an action run's status",
    tag: Tag::Environments,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/actions/{run_id}/status",
    aliases: &[],
    access: needs(&[&[P::ActionRunsWrite]], S::EnvironmentWrite),
    limit: &STANDARD,
    handler: || mount(update_status).sample(r#"{"seed": "EXITED"}"#),
};

/// New status by step. The work of the run does not depend on it.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateRunStatusBody")]
struct StatusRequest {
    clone: Option<StepStatus>,
    pull: Option<StepStatus>,
    health: Option<StepStatus>,
    configure: Option<StepStatus>,
    migrate: Option<StepStatus>,
    seed: Option<StepStatus>,
    deploy: Option<StepStatus>,
}

async fn update_status(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<StatusRequest>,
    RunId(run): RunId,
) -> Result<Json<OkMessage>, Error> {
    let doing = "recording a change";
    runs::get(&context, project.id, &run).await?;
    let steps = [
        (RunStep::Clone, request.clone),
        (RunStep::Pull, request.pull),
        (RunStep::Health, request.health),
        (RunStep::Configure, request.configure),
        (RunStep::Migrate, request.migrate),
        (RunStep::Seed, request.seed),
        (RunStep::Deploy, request.deploy),
    ];
    for (step, status) in steps {
        if let Some(status) = status {
            runs::set_step(&context, &run, step, status).await?;
        }
    }
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let change = (None, Some(json!({"run": run})));
    let done = || Json(OkMessage { message: "ok" });
    audit.answer(done);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(done())
}
