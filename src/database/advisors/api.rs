//! Advice about a project's database.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Category, Finding, advise};
use crate::{
    access::{OauthScope as S, Permission as P, Project},
    app::App,
    database::session::Limits,
    error::Error,
    http::{Endpoint, Json, Query, Tag, Verb, mount, needs},
    limits::STANDARD,
    projects,
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&PERFORMANCE, &SECURITY];

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
struct Advice {
    /// What was found.
    lints: Vec<Finding>,
}

async fn performance(project: Project, app: App) -> Result<Json<Advice>, Error> {
    advice(&app, &project, Category::Performance).await
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LintType {
    /// Found by SQL; there are no others.
    Sql,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Which {
    /// Kind of lints.
    #[serde(rename = "lint_type")]
    _lint_type: Option<LintType>,
}

async fn security(project: Project, app: App, Query(_): Query<Which>) -> Result<Json<Advice>, Error> {
    advice(&app, &project, Category::Security).await
}

async fn advice(app: &App, project: &Project, category: Category) -> Result<Json<Advice>, Error> {
    let target = projects::target(app, project).await?;
    Ok(Json(Advice { lints: advise(&target, category, Limits::default()).await? }))
}
