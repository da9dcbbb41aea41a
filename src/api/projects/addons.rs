//! Operations on add-ons. Nothing is billed here: every compute size costs nothing, and is kept for
//! clients that compare it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    api::context::ApiContext,
    base::error::{Context, Error},
    data_plane::projects,
    platform::{
        access::{Permission as P, Project, pat_only},
        audit::Recorder,
        http::{
            Call, Endpoint, Input, Json, Tag, Verb, mount, openapi::OperationDoc, output::OkEmpty,
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of add-ons.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &APPLY, &REMOVE];

/// Compute sizes of the contract, with their names in listings.
const SIZES: [(&str, &str); 18] = [
    ("micro", "Micro"),
    ("small", "Small"),
    ("medium", "Medium"),
    ("large", "Large"),
    ("xlarge", "XL"),
    ("2xlarge", "2XL"),
    ("4xlarge", "4XL"),
    ("8xlarge", "8XL"),
    ("12xlarge", "12XL"),
    ("16xlarge", "16XL"),
    ("24xlarge", "24XL"),
    ("24xlarge_optimized_cpu", "24XL - Optimized CPU"),
    ("24xlarge_optimized_memory", "24XL - Optimized Memory"),
    ("24xlarge_high_memory", "24XL - High Memory"),
    ("48xlarge", "48XL"),
    ("48xlarge_optimized_cpu", "48XL - Optimized CPU"),
    ("48xlarge_optimized_memory", "48XL - Optimized Memory"),
    ("48xlarge_high_memory", "48XL - High Memory"),
];
/// The size of a project without the add-on.
const SMALLEST: &str = "micro";
/// Beginning of the ids of compute sizes.
const SIZE_PREFIX: &str = "ci_";

/// Returns the size of an add-on's id.
fn size_of(variant: &str) -> Option<&'static str> {
    let code = variant.strip_prefix(SIZE_PREFIX)?;
    let mut sizes = SIZES.iter().map(|(size, _)| *size);
    sizes.find(|size| *size == code)
}

static LIST: Endpoint = Endpoint {
    id: "v1-list-project-addons",
    summary: "List a project's add-ons",
    tag: Tag::Billing,
    method: Verb::Get,
    path: "/v1/projects/{ref}/billing/addons",
    aliases: &[],
    access: pat_only(&[&[P::InfraAddOnsRead]]),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ListProjectAddonsResponse")]
struct ProjectAddons {
    selected_addons: Vec<SelectedAddon>,
    available_addons: Vec<AvailableAddon>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct SelectedAddon {
    r#type: &'static str,
    variant: AddonVariant,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct AvailableAddon {
    r#type: &'static str,
    name: &'static str,
    variants: Vec<AddonVariant>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct AddonVariant {
    id: String,
    name: &'static str,
    price: AddonPrice,
    meta: Value,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct AddonPrice {
    description: &'static str,
    r#type: &'static str,
    interval: &'static str,
    amount: u32,
}

impl AddonVariant {
    fn of_size(size: &str, name: &'static str) -> Self {
        Self {
            id: format!("{SIZE_PREFIX}{size}"),
            name,
            price: AddonPrice {
                description: "$0/hour (not billed)",
                r#type: "usage",
                interval: "hourly",
                amount: 0,
            },
            meta: json!({}),
        }
    }
}

async fn list(project: Project, context: ApiContext) -> Result<Json<ProjectAddons>, Error> {
    let sql = "select instance_size from projects where id = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a project's size")?;
    let stored: &str = rows.first().ok_or_else(projects::removed)?.get(0);
    // The contract has no add-on for the smallest size of all.
    let chosen = SIZES.iter().find(|(size, _)| *size == stored);
    let (size, name) = chosen.unwrap_or(&SIZES[0]);
    Ok(Json(ProjectAddons {
        selected_addons: vec![SelectedAddon {
            r#type: "compute_instance",
            variant: AddonVariant::of_size(size, name),
        }],
        available_addons: vec![AvailableAddon {
            r#type: "compute_instance",
            name: "Compute Instance",
            variants: SIZES
                .iter()
                .map(|(size, name)| AddonVariant::of_size(size, name))
                .collect(),
        }],
    }))
}

static APPLY: Endpoint = Endpoint {
    id: "v1-apply-project-addon",
    summary: "Apply an add-on to a project",
    tag: Tag::Billing,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/billing/addons",
    aliases: &[],
    access: pat_only(&[&[P::InfraAddOnsWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(apply).sample(r#"{"addon_type": "compute_instance", "addon_variant": "ci_small"}"#)
    },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum AddonType {
    CustomDomain,
    ComputeInstance,
    Pitr,
    Ipv4,
    AuthMfaPhone,
    AuthMfaWebAuthn,
    LogDrain,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ApplyProjectAddonBody")]
struct AddonChoice {
    addon_type: AddonType,
    /// `ci_` and a compute size.
    addon_variant: String,
}

async fn apply(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(choice): Json<AddonChoice>,
) -> Result<OkEmpty, Error> {
    let size = size_of(&choice.addon_variant)
        .filter(|_| choice.addon_type == AddonType::ComputeInstance)
        .ok_or_else(|| Error::invalid("addon_variant", "Invalid input"))?;
    resize(&context, &project, size, &audit).await
}

async fn resize(
    context: &ApiContext,
    project: &Project,
    size: &str,
    audit: &Recorder,
) -> Result<OkEmpty, Error> {
    let doing = "changing a project's size";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql =
        "select instance_size from projects where id = $1 and desired <> 'removed' for update";
    let row = transaction.query_opt(sql, &[&project.id.0]).await;
    let row = row.context(doing)?.ok_or_else(projects::removed)?;
    let before: &str = row.get(0);
    let sql = "update projects set instance_size = $2 where id = $1";
    let updated = transaction.execute(sql, &[&project.id.0, &size]).await;
    updated.context(doing)?;
    let entry = |size: &str| Some(json!({ "instance_size": size }));
    let now = context.clock.now();
    let change = (entry(before), entry(size));
    audit.write_in(&transaction, 200, change, now).await?;
    transaction.commit().await.context(doing)?;
    Ok(OkEmpty)
}

static REMOVE: Endpoint = Endpoint {
    id: "v1-remove-project-addon",
    summary: "Remove an add-on from a project",
    tag: Tag::Billing,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/billing/addons/{addon_variant}",
    aliases: &[],
    access: pat_only(&[&[P::InfraAddOnsWrite]]),
    limit: &STANDARD,
    handler: || mount(remove),
};

/// `{addon_variant}` of the path: `ci_` and a compute size.
struct AddonSize;

impl Input for AddonSize {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let size = call.placeholder("addon_variant").and_then(size_of);
        size.map(|_| Self)
            .ok_or_else(|| Error::invalid("addon_variant", "Invalid input"))
    }
}

/// A project without the add-on has the smallest size.
async fn remove(
    project: Project,
    _: AddonSize,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    resize(&context, &project, SMALLEST, &audit).await
}
