//! Operations on add-ons: the compute sizes that the operator offers, at the operator's prices.
//! Nothing is billed by Gantry.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    api::context::ApiContext,
    control::{
        projects::{self, InstanceSize, parameters},
        services::pooler,
    },
    platform::{
        access::{Permission as P, Project, pat_only},
        audit::Recorder,
        error::{Context, Error},
        http::{
            Call, Endpoint, Input, Json, Tag, Verb, mount, operation_doc::OperationDoc,
            output::OkEmpty,
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of add-ons.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &APPLY, &REMOVE];

/// Beginning of the ids of compute sizes.
const SIZE_PREFIX: &str = "ci_";
/// Bytes of a gigabyte.
const GB: u64 = 1 << 30;
/// Hours of a month, for its price.
const HOURS_OF_MONTH: f64 = 730.0;

/// Returns the size of an add-on's id.
fn size_of(variant: &str) -> Option<InstanceSize> {
    let size = InstanceSize::of_code(variant.strip_prefix(SIZE_PREFIX)?);
    // The contract has no add-on for the smallest size of all.
    size.filter(|size| *size != InstanceSize::Nano)
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
    description: String,
    r#type: &'static str,
    interval: &'static str,
    amount: f64,
}

impl AddonVariant {
    fn of_size(context: &ApiContext, size: InstanceSize) -> Self {
        let amount = context.control_settings.compute_sizes.hourly_price(size);
        let description = if amount == 0.0 {
            "$0/hour (not billed)".to_owned()
        } else {
            format!("${amount}/hour (~${:.0}/month)", amount * HOURS_OF_MONTH)
        };
        Self {
            id: format!("{SIZE_PREFIX}{}", size.code()),
            name: size.name(),
            price: AddonPrice {
                description,
                r#type: "usage",
                interval: "hourly",
                amount,
            },
            meta: meta(context, size),
        }
    }
}

/// Returns gigabytes, rounded to a hundredth.
fn gigabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "rounded to a hundredth")]
    let hundredths = (bytes / (GB / 100)) as f64;
    hundredths / 100.0
}

/// Returns what a size has on this server.
fn meta(context: &ApiContext, size: InstanceSize) -> Value {
    let smallest = context.driver.resource_limits().copied();
    let limits = size.limits(&smallest.unwrap_or_default());
    let connections = size.connections();
    let of_pooler_port = if pooler::is_installed(context) {
        connections.pooled
    } else {
        connections.direct
    };
    json!({
        "memory_gb": gigabytes(limits.memory_bytes),
        "cpu_dedicated": false,
        "connections_direct": connections.direct,
        "connections_pooler": of_pooler_port,
    })
}

async fn list(project: Project, context: ApiContext) -> Result<Json<ProjectAddons>, Error> {
    let sql = "select instance_size from projects where id = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a project's size")?;
    let stored: &str = rows.first().ok_or_else(projects::removed)?.get(0);
    let chosen = InstanceSize::of_code(stored).filter(|size| *size != InstanceSize::Nano);
    let chosen = chosen.unwrap_or(InstanceSize::Micro);
    let offered = context.control_settings.compute_sizes.all();
    Ok(Json(ProjectAddons {
        selected_addons: vec![SelectedAddon {
            r#type: "compute_instance",
            variant: AddonVariant::of_size(&context, chosen),
        }],
        available_addons: vec![AvailableAddon {
            r#type: "compute_instance",
            name: "Compute Instance",
            variants: offered
                .iter()
                .map(|offered| AddonVariant::of_size(&context, offered.size))
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
    let sizes = &context.control_settings.compute_sizes;
    if !sizes.offers(size) {
        let offered: Vec<_> = sizes
            .all()
            .iter()
            .map(|offered| format!("{SIZE_PREFIX}{}", offered.size.code()))
            .collect();
        let problem = format!("Invalid input: this server offers {}", offered.join(", "));
        return Err(Error::invalid("addon_variant", problem));
    }
    parameters::resize(&context, &project, size, &audit).await?;
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
    parameters::resize(&context, &project, InstanceSize::Micro, &audit).await?;
    Ok(OkEmpty)
}
