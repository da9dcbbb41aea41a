//! Operations that preview and make a transfer.

use std::sync::Arc;

use gantry_base::ids::OrgSlug;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Findings, Transfer};
use crate::{
    api::{context::ApiContext, organizations::v2::Envelope},
    platform::{
        access::{
            Organization, Permission as P, Project, ResourceName, Role, Subject, User, pat_only,
        },
        audit::{Chain, Recorder},
        error::{Context, Error},
        http::{Endpoint, Json, Tag, Verb, mount, output::OkEmpty},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this part of the slice.
pub static ENDPOINTS: &[&Endpoint] = &[&PREVIEW, &TRANSFER];

const SAMPLE: &str = r#"{"data": {"type": "project_transfer_input", "attributes": {"target_organization_slug": "{{GANTRY_ORG}}"}}}"#;

static PREVIEW: Endpoint = Endpoint {
    id: "v2-preview-a-project-transfer",
    summary: "Preview a project's transfer",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v2/projects/{ref}/transfers/previews",
    aliases: &[],
    access: pat_only(&[&[P::ProjectAdminRead]]),
    limit: &STANDARD,
    handler: || mount(preview).sample(SAMPLE).read_only(),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ProjectTransferBody")]
struct TransferRequest {
    data: TransferInput,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct TransferInput {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: TransferInputType,
    attributes: TransferAttributes,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TransferInputType {
    ProjectTransferInput,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct TransferAttributes {
    target_organization_slug: OrgSlug,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TransferResult {
    r#type: &'static str,
    attributes: Findings,
}

async fn preview(
    project: Project,
    context: ApiContext,
    user: User,
    Json(request): Json<TransferRequest>,
) -> Result<Json<Envelope<TransferResult>>, Error> {
    let target = find_target(&context, &user, request).await?;
    let findings = super::preview(&context, &by_caller(&project, target.as_ref(), &user)).await?;
    let data = TransferResult {
        r#type: "project_transfer_result",
        attributes: findings,
    };
    Ok(Json(Envelope { data }))
}

static TRANSFER: Endpoint = Endpoint {
    id: "v2-transfer-a-project",
    summary: "Transfer a project",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v2/projects/{ref}/transfers",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(transfer)
            .destructive("transfers the project to another organization")
            .sample(SAMPLE)
    },
};

async fn transfer(
    project: Project,
    context: ApiContext,
    user: User,
    audit: Arc<Recorder>,
    Json(request): Json<TransferRequest>,
) -> Result<OkEmpty, Error> {
    let target = find_target(&context, &user, request).await?;
    let target = target.ok_or(Error::Missing("Organization not found"))?;
    let transfer = by_caller(&project, Some(&target), &user);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(super::DOING)?;
    super::lock(&transaction, &transfer).await?;
    let records = (&*audit, Chain::Organization(target.id), 200);
    super::execute(&context, transaction, &transfer, records).await?;
    Ok(OkEmpty)
}

/// Returns the target, unless the user or the token does not reach it.
async fn find_target(
    context: &ApiContext,
    user: &User,
    request: TransferRequest,
) -> Result<Option<Organization>, Error> {
    let slug = request.data.attributes.target_organization_slug;
    let name = ResourceName::Organization(slug);
    let found = context.directory.resolve(user, &name).await?;
    Ok(found.and_then(|(subject, _)| match subject {
        Subject::Organization(organization) => Some(organization),
        Subject::Account | Subject::Project(_) => None,
    }))
}

/// Returns the transfer by an owner of the source that is a member of the target.
fn by_caller<'a>(
    project: &'a Project,
    target: Option<&'a Organization>,
    user: &User,
) -> Transfer<'a> {
    Transfer {
        project,
        target,
        owner: user.id,
        recipient: user.id,
        recipient_role: Role::ReadOnly,
    }
}
