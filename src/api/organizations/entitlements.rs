//! The features that organizations of this server have. There are no plans: all organizations have
//! the same, and the list says what is built and what the operator permits.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    api::context::ApiContext,
    base::error::Error,
    platform::{
        access::{OauthScope as S, Organization, Permission as P, needs},
        http::{Endpoint, Json, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of entitlements.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST];

static LIST: Endpoint = Endpoint {
    id: "v1-get-organization-entitlements",
    summary: "List an organization's entitlements",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/entitlements",
    aliases: &[],
    access: needs(&[&[P::OrganizationAdminRead]], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(list),
};

/// The kind of a feature, with its extent on this server.
#[derive(Debug, Clone, Copy)]
enum Extent {
    /// Available or not.
    Switch(bool),
    /// A number with its unit. None: without a limit of the plan.
    Number(Option<u64>, &'static str),
    /// A list of choices.
    Set(&'static [&'static str]),
    /// The compute sizes that the operator offers.
    Sizes,
    /// Whether the operator permits larger disks than the default.
    LargerDisks,
    /// The operator's limit of branches of a project.
    Branches,
}

use Extent::{Branches, LargerDisks, Number, Set, Sizes, Switch};

/// Every feature of the contract.
const FEATURES: [(&str, Extent); 60] = [
    ("instances.compute_update_available_sizes", Sizes),
    ("instances.read_replicas", Switch(false)),
    ("instances.disk_modifications", LargerDisks),
    ("instances.high_availability", Switch(false)),
    ("instances.orioledb", Switch(false)),
    ("replication.etl", Switch(false)),
    (
        "storage.max_file_size",
        Number(Some(536_870_912_000), "byte"),
    ),
    ("storage.max_file_size.configurable", Switch(true)),
    ("storage.image_transformations", Switch(false)),
    ("storage.vector_buckets", Switch(false)),
    ("storage.iceberg_catalog", Switch(false)),
    ("security.audit_logs_days", Number(None, "days")),
    ("security.questionnaire", Switch(false)),
    ("security.soc2_report", Switch(false)),
    ("security.iso27001_certificate", Switch(false)),
    ("security.private_link", Switch(false)),
    ("security.enforce_mfa", Switch(false)),
    ("log.retention_days", Number(None, "days")),
    ("custom_domain", Switch(true)),
    ("vanity_subdomain", Switch(true)),
    ("ipv4", Switch(false)),
    ("pitr.available_variants", Set(&[])),
    ("log_drains", Switch(true)),
    ("audit_log_drains", Switch(false)),
    ("branching_limit", Branches),
    ("branching_persistent", Switch(true)),
    ("auth.mfa_phone", Switch(true)),
    ("auth.mfa_web_authn", Switch(true)),
    ("auth.mfa_enhanced_security", Switch(true)),
    (
        "auth.hooks",
        Set(&[
            "HOOK_SEND_SMS",
            "HOOK_SEND_EMAIL",
            "HOOK_CUSTOM_ACCESS_TOKEN",
            "HOOK_MFA_VERIFICATION_ATTEMPT",
            "HOOK_PASSWORD_VERIFICATION_ATTEMPT",
            "HOOK_BEFORE_USER_CREATED",
            "HOOK_AFTER_USER_CREATED",
        ]),
    ),
    ("auth.platform.sso", Switch(true)),
    ("auth.custom_jwt_template", Switch(true)),
    ("auth.saml_2", Switch(false)),
    ("auth.user_sessions", Switch(true)),
    ("auth.leaked_password_protection", Switch(true)),
    ("auth.advanced_auth_settings", Switch(true)),
    ("auth.performance_settings", Switch(true)),
    ("auth.password_hibp", Switch(true)),
    (
        "auth.custom_oauth.max_providers",
        Number(Some(3), "providers"),
    ),
    ("backup.retention_days", Number(Some(0), "days")),
    ("backup.restore_to_new_project", Switch(false)),
    ("backup.schedule", Switch(false)),
    ("function.max_count", Number(None, "functions")),
    ("function.size_limit_mb", Number(Some(20), "MB")),
    (
        "realtime.max_concurrent_users",
        Number(Some(50_000), "users"),
    ),
    (
        "realtime.max_events_per_second",
        Number(Some(50_000), "events/second"),
    ),
    (
        "realtime.max_joins_per_second",
        Number(Some(5_000), "joins/second"),
    ),
    (
        "realtime.max_channels_per_client",
        Number(Some(10_000), "channels/client"),
    ),
    (
        "realtime.max_bytes_per_second",
        Number(Some(10_000_000), "bytes/second"),
    ),
    (
        "realtime.max_presence_events_per_second",
        Number(Some(5_000), "events/second"),
    ),
    (
        "realtime.max_payload_size_in_kb",
        Number(Some(10_000), "KB"),
    ),
    ("project_scoped_roles", Switch(true)),
    (
        "security.member_roles",
        Set(&["Owner", "Administrator", "Developer", "Read-only"]),
    ),
    ("project_pausing", Switch(true)),
    ("project_cloning", Switch(false)),
    ("project_restore_after_expiry", Switch(false)),
    ("assistant.advance_model", Switch(false)),
    ("integrations.github_connections", Switch(false)),
    ("dedicated_pooler", Switch(false)),
    ("observability.dashboard_advanced_metrics", Switch(true)),
];

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1ListEntitlementsResponse")]
struct EntitlementList {
    entitlements: Vec<Entitlement>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
struct Entitlement {
    feature: EntitledFeature,
    has_access: bool,
    r#type: &'static str,
    /// `enabled`, and for numbers and sets their extent.
    config: Value,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct EntitledFeature {
    key: &'static str,
    r#type: &'static str,
}

impl Entitlement {
    fn new(context: &ApiContext, key: &'static str, extent: Extent) -> Self {
        let settings = &context.data_plane_settings;
        let (kind, has_access, config) = match extent {
            Switch(enabled) => ("boolean", enabled, json!({ "enabled": enabled })),
            LargerDisks => {
                let limits = context.driver.resource_limits();
                let enabled =
                    limits.is_some_and(|it| settings.project_disk_choice_max > it.disk_hard_bytes);
                ("boolean", enabled, json!({ "enabled": enabled }))
            }
            Sizes => {
                let sizes = settings.compute_sizes.all().iter();
                let codes: Vec<_> = sizes
                    .map(|offered| format!("ci_{}", offered.size.code()))
                    .collect();
                ("set", true, json!({ "enabled": true, "set": codes }))
            }
            Number(value, unit) => number(value, unit),
            Branches => {
                let limit = context.api_settings.branches.per_project_max;
                number(Some(limit.into()), "branches")
            }
            Set(choices) => {
                let enabled = !choices.is_empty();
                (
                    "set",
                    enabled,
                    json!({ "enabled": enabled, "set": choices }),
                )
            }
        };
        Self {
            feature: EntitledFeature { key, r#type: kind },
            has_access,
            r#type: kind,
            config,
        }
    }
}

/// Returns type, access and configuration of a feature with a number.
fn number(value: Option<u64>, unit: &str) -> (&'static str, bool, Value) {
    let enabled = value != Some(0);
    let unlimited = value.is_none();
    let value = value.unwrap_or(0);
    let config = json!({
        "enabled": enabled, "value": value, "unlimited": unlimited, "unit": unit,
    });
    ("numeric", enabled, config)
}

async fn list(_: Organization, context: ApiContext) -> Result<Json<EntitlementList>, Error> {
    let entitlements = FEATURES.map(|(key, extent)| Entitlement::new(&context, key, extent));
    Ok(Json(EntitlementList {
        entitlements: entitlements.into(),
    }))
}
