//! Operations of API v2 on branches.

use std::sync::Arc;

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    branch_row::SchemaSource,
    create::{self, NewBranch},
    operations::{NAME_MAX, check_git_branch, check_url},
    view::BranchView,
};
use crate::{
    api::context::ApiContext,
    control::projects::InstanceSize,
    platform::{
        access::{AnyOf, Case, OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, Tag, Verb, mount, output::Created},
        names,
        rate_limits::STANDARD,
    },
};

/// Endpoints of this part of the slice.
pub static ENDPOINTS: &[&Endpoint] = &[&CREATE];

/// A branch that contains production data requires the permissions for production.
const BY_DATA: &[Case] = &[
    Case {
        when: "`with_data` is true",
        applies: |asked| asked.body().is_none_or(DataChoice::has_data),
        permissions: AnyOf(&[&[P::BranchingProductionCreate]]),
    },
    Case::otherwise(AnyOf(&[&[P::BranchingDevelopmentCreate]])),
];

#[derive(Deserialize)]
struct DataChoice {
    data: Option<ResourceChoice>,
}

#[derive(Deserialize)]
struct ResourceChoice {
    attributes: AttributesChoice,
}

#[derive(Deserialize)]
struct AttributesChoice {
    #[serde(default)]
    with_data: bool,
}

impl DataChoice {
    fn has_data(self) -> bool {
        self.data.is_some_and(|data| data.attributes.with_data)
    }
}

static CREATE: Endpoint = Endpoint {
    id: "v2-create-a-branch",
    summary: "Create a branch",
    tag: Tag::Environments,
    method: Verb::Post,
    path: "/v2/projects/{ref}/branches",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentCreate],
            &[P::BranchingProductionCreate],
        ],
        S::EnvironmentWrite,
    )
    .by_case(BY_DATA),
    limit: &STANDARD,
    handler: || {
        mount(create)
            .sample(r#"{"data": {"type": "branch", "attributes": {"name": "develop-v2"}}}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V2CreateBranchBody")]
struct CreateBranchEnvelope {
    data: NewBranchResource,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct NewBranchResource {
    r#type: BranchType,
    attributes: NewBranchAttributes,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum BranchType {
    Branch,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct NewBranchAttributes {
    #[schemars(length(min = 1, max = 200))]
    name: String,
    git_branch: Option<String>,
    /// Accepted and ignored: a branch is on the machine of its parent.
    #[expect(dead_code, reason = "accepted from clients")]
    region: Option<String>,
    #[serde(default)]
    persistent: bool,
    /// Copy the data of the parent, too.
    #[serde(default)]
    with_data: bool,
    desired_instance_size: Option<InstanceSize>,
    /// Accepted and ignored: the operator bounds the disk space.
    #[expect(dead_code, reason = "accepted from clients")]
    desired_disk_size_gb: Option<i64>,
    notify_url: Option<String>,
}

/// Envelope of a branch.
#[derive(Debug, Serialize, JsonSchema)]
struct BranchEnvelope {
    data: BranchResource,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BranchResource {
    r#type: BranchType,
    id: Uuid,
    attributes: BranchAttributes,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BranchAttributes {
    name: String,
    project_ref: ProjectRef,
    parent_project_ref: ProjectRef,
    is_default: bool,
    persistent: bool,
    with_data: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    git_branch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notify_url: Option<String>,
    created_at: String,
    updated_at: String,
}

impl From<&BranchView> for BranchEnvelope {
    fn from(branch: &BranchView) -> Self {
        let attributes = BranchAttributes {
            name: branch.name.clone(),
            project_ref: branch.project_ref.clone(),
            parent_project_ref: branch.parent_project_ref.clone(),
            is_default: branch.is_default,
            persistent: branch.persistent,
            with_data: branch.with_data,
            git_branch: branch.git_branch.clone(),
            notify_url: branch.notify_url.clone(),
            created_at: branch.created_at.clone(),
            updated_at: branch.updated_at.clone(),
        };
        Self {
            data: BranchResource {
                r#type: BranchType::Branch,
                id: branch.id,
                attributes,
            },
        }
    }
}

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateBranchEnvelope>,
) -> Result<Created<BranchEnvelope>, Error> {
    let NewBranchResource {
        r#type: BranchType::Branch,
        attributes,
    } = request.data;
    names::check("data.attributes.name", &attributes.name, NAME_MAX)?;
    check_git_branch(attributes.git_branch.as_deref())?;
    check_url(attributes.notify_url.as_deref())?;
    let new = NewBranch {
        name: attributes.name,
        git_branch: attributes.git_branch.filter(|name| !name.is_empty()),
        is_default: false,
        persistent: attributes.persistent,
        with_data: attributes.with_data,
        size: attributes.desired_instance_size,
        engine: None,
        notify_url: attributes.notify_url.filter(|url| !url.is_empty()),
        expires_at: None,
        schema_source: SchemaSource::Migrations,
        secrets: Vec::new(),
    };
    let view = |branch: &BranchView| Created(BranchEnvelope::from(branch));
    audit.answer_with(move |branch| view(branch).respond());
    let branch = create::create(&context, &project, new, &audit).await?;
    Ok(view(&branch))
}
