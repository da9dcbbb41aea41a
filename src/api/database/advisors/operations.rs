//! Operations that run advisors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LintCategory, LintFinding, LintSelection, advise};
use crate::{
    api::context::ApiContext,
    control::{database_session::session::SessionLimits, projects},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs, pat_only},
        error::Error,
        http::{Endpoint, Json, Query, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of advisors.
pub static ENDPOINTS: &[&Endpoint] = &[&PERFORMANCE, &SECURITY, &RUN];

static PERFORMANCE: Endpoint = Endpoint {
    id: "v1-get-performance-advisors",
    summary: "Get advice about performance",
    tag: Tag::Advisors,
    method: Verb::Get,
    path: "/v1/projects/{ref}/advisors/performance",
    aliases: &[],
    access: needs(&[&[P::AdvisorsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(performance),
};

static SECURITY: Endpoint = Endpoint {
    id: "v1-get-security-advisors",
    summary: "Get advice about security",
    tag: Tag::Advisors,
    method: Verb::Get,
    path: "/v1/projects/{ref}/advisors/security",
    aliases: &[],
    access: needs(&[&[P::AdvisorsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(security),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1ProjectAdvisorsResponse")]
struct AdvisorsResponse {
    /// Findings.
    lints: Vec<LintFinding>,
}

async fn performance(
    project: Project,
    context: ApiContext,
) -> Result<Json<AdvisorsResponse>, Error> {
    advice(&context, &project, LintCategory::Performance).await
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LintType {
    /// Lints in SQL, which are all lints.
    Sql,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct SecurityAdvisorsQuery {
    /// Type of lints.
    #[serde(rename = "lint_type")]
    _lint_type: Option<LintType>,
}

async fn security(
    project: Project,
    context: ApiContext,
    Query(_): Query<SecurityAdvisorsQuery>,
) -> Result<Json<AdvisorsResponse>, Error> {
    advice(&context, &project, LintCategory::Security).await
}

async fn advice(
    context: &ApiContext,
    project: &Project,
    category: LintCategory,
) -> Result<Json<AdvisorsResponse>, Error> {
    let target = projects::target(context, project).await?;
    Ok(Json(AdvisorsResponse {
        lints: advise(&target, category, SessionLimits::default()).await?,
    }))
}

static RUN: Endpoint = Endpoint {
    id: "v2-run-project-advisors",
    summary: "Run selected advisor checks",
    tag: Tag::Advisors,
    method: Verb::Post,
    path: "/v2/projects/{ref}/advisors/run",
    aliases: &[],
    access: pat_only(&[&[P::AdvisorsRead]]),
    limit: &STANDARD,
    handler: || {
        mount(run).sample(r#"{"data": {"type": "project_advisors", "attributes": {"lints": [{"name": "no_primary_key"}]}}}"#)
    },
};

/// Maximum number of lints in a request.
const LINTS_MAX: usize = 15;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RunProjectAdvisorsBody")]
struct RunAdvisorsRequest {
    data: AdvisorsResource<RunAdvisorsAttributes>,
}

/// Resource object of the v2 API.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Resource")]
struct AdvisorsResource<T> {
    r#type: AdvisorsResourceType,
    attributes: T,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResourceType")]
enum AdvisorsResourceType {
    ProjectAdvisors,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Wanted")]
struct RunAdvisorsAttributes {
    /// Lints to run: 1 to 15.
    #[schemars(length(min = 1, max = LINTS_MAX))]
    lints: Vec<LintName>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct LintName {
    name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RunProjectAdvisorsResponse")]
struct RunAdvisorsResponse {
    data: AdvisorsResource<AdvisorsResponse>,
}

async fn run(
    project: Project,
    context: ApiContext,
    Json(request): Json<RunAdvisorsRequest>,
) -> Result<Json<RunAdvisorsResponse>, Error> {
    let names = request.data.attributes.lints;
    if !(1..=LINTS_MAX).contains(&names.len()) {
        return Err(Error::invalid(
            "data.attributes.lints",
            format!("Invalid input: expected 1 to {LINTS_MAX} lints"),
        ));
    }
    let unknown = |name: &str| {
        Error::invalid(
            "data.attributes.lints",
            format!("Invalid input: there is no lint {name}"),
        )
    };
    let asked = names
        .iter()
        .map(|lint| LintSelection::named(&lint.name).ok_or_else(|| unknown(&lint.name)))
        .collect::<Result<Vec<_>, _>>()?;
    let target = projects::target(&context, &project).await?;
    let lints = super::run(&target, &asked, SessionLimits::default()).await?;
    Ok(Json(RunAdvisorsResponse {
        data: AdvisorsResource {
            r#type: AdvisorsResourceType::ProjectAdvisors,
            attributes: AdvisorsResponse { lints },
        },
    }))
}
