//! The features that organizations of this server have. There are no plans: all organizations have
//! the same, and the list says what is built and what the operator permits.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    api::context::ApiContext,
    control::{
        service_settings::{REALTIME, STORAGE},
        services::pooler,
    },
    platform::{
        access::{OauthScope as S, Organization, Permission as P, needs},
        error::Error,
        http::{Endpoint, Json, Tag, Verb, input::FILE_BODY_BYTES_MAX, mount},
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
enum Extent {
    /// Available or not.
    Switch(bool),
    /// A number with its unit. None: without a limit of the plan.
    Number(Option<u64>, &'static str),
    /// A list of choices.
    Set(Vec<String>),
}

use Extent::{Number, Set, Switch};

/// Returns the extent of a feature on this server.
type ExtentOf = fn(&ApiContext) -> Extent;

/// Every feature of the contract.
const FEATURES: [(&str, ExtentOf); 60] = [
    ("instances.compute_update_available_sizes", compute_sizes),
    ("instances.read_replicas", |_| Switch(false)),
    ("instances.disk_modifications", larger_disks),
    ("instances.high_availability", |_| Switch(false)),
    ("instances.orioledb", |_| Switch(false)),
    ("replication.etl", |_| Switch(false)),
    ("storage.max_file_size", |_| {
        Number(STORAGE.largest("fileSizeLimit"), "byte")
    }),
    ("storage.max_file_size.configurable", |_| Switch(true)),
    ("storage.image_transformations", |_| Switch(false)),
    ("storage.vector_buckets", |_| Switch(false)),
    ("storage.iceberg_catalog", |_| Switch(false)),
    ("security.audit_logs_days", |_| Number(None, "days")),
    ("security.questionnaire", |_| Switch(false)),
    ("security.soc2_report", |_| Switch(false)),
    ("security.iso27001_certificate", |_| Switch(false)),
    ("security.private_link", |_| Switch(false)),
    ("security.enforce_mfa", |_| Switch(false)),
    ("log.retention_days", |context| {
        Number(
            Some(context.api_settings.logs.retention_days.into()),
            "days",
        )
    }),
    ("custom_domain", |_| Switch(true)),
    ("vanity_subdomain", |_| Switch(true)),
    ("ipv4", |_| Switch(false)),
    ("pitr.available_variants", |_| Set(Vec::new())),
    ("log_drains", |_| Switch(true)),
    ("audit_log_drains", |_| Switch(false)),
    ("branching_limit", branches),
    ("branching_persistent", |_| Switch(true)),
    ("auth.mfa_phone", |_| Switch(true)),
    ("auth.mfa_web_authn", |_| Switch(true)),
    ("auth.mfa_enhanced_security", |_| Switch(true)),
    ("auth.hooks", |_| {
        set(&[
            "HOOK_SEND_SMS",
            "HOOK_SEND_EMAIL",
            "HOOK_CUSTOM_ACCESS_TOKEN",
            "HOOK_MFA_VERIFICATION_ATTEMPT",
            "HOOK_PASSWORD_VERIFICATION_ATTEMPT",
            "HOOK_BEFORE_USER_CREATED",
            "HOOK_AFTER_USER_CREATED",
        ])
    }),
    ("auth.platform.sso", |_| Switch(true)),
    ("auth.custom_jwt_template", |_| Switch(true)),
    ("auth.saml_2", |_| Switch(false)),
    ("auth.user_sessions", |_| Switch(true)),
    ("auth.leaked_password_protection", |_| Switch(true)),
    ("auth.advanced_auth_settings", |_| Switch(true)),
    ("auth.performance_settings", |_| Switch(true)),
    ("auth.password_hibp", |_| Switch(true)),
    ("auth.custom_oauth.max_providers", |_| {
        Number(Some(3), "providers")
    }),
    ("backup.retention_days", backup_days),
    ("backup.restore_to_new_project", backups),
    ("backup.schedule", backups),
    ("function.max_count", |_| Number(None, "functions")),
    ("function.size_limit_mb", |_| {
        Number(Some(FILE_BODY_BYTES_MAX as u64 >> 20), "MB")
    }),
    ("realtime.max_concurrent_users", |_| {
        Number(REALTIME.largest("max_concurrent_users"), "users")
    }),
    ("realtime.max_events_per_second", |_| {
        Number(REALTIME.largest("max_events_per_second"), "events/second")
    }),
    ("realtime.max_joins_per_second", |_| {
        Number(REALTIME.largest("max_joins_per_second"), "joins/second")
    }),
    ("realtime.max_channels_per_client", |_| {
        Number(
            REALTIME.largest("max_channels_per_client"),
            "channels/client",
        )
    }),
    ("realtime.max_bytes_per_second", |_| {
        Number(REALTIME.largest("max_bytes_per_second"), "bytes/second")
    }),
    ("realtime.max_presence_events_per_second", |_| {
        Number(
            REALTIME.largest("max_presence_events_per_second"),
            "events/second",
        )
    }),
    ("realtime.max_payload_size_in_kb", |_| {
        Number(REALTIME.largest("max_payload_size_in_kb"), "KB")
    }),
    ("project_scoped_roles", |_| Switch(true)),
    ("security.member_roles", |_| {
        set(&["Owner", "Administrator", "Developer", "Read-only"])
    }),
    ("project_pausing", |_| Switch(true)),
    ("project_cloning", |_| Switch(false)),
    ("project_restore_after_expiry", |_| Switch(false)),
    ("assistant.advance_model", |_| Switch(false)),
    ("integrations.github_connections", |_| Switch(false)),
    ("dedicated_pooler", |context| {
        Switch(pooler::is_installed(context))
    }),
    ("observability.dashboard_advanced_metrics", |_| Switch(true)),
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
    fn new(key: &'static str, extent: Extent) -> Self {
        let (kind, has_access, config) = match extent {
            Switch(enabled) => ("boolean", enabled, json!({ "enabled": enabled })),
            Number(value, unit) => number(value, unit),
            Set(choices) => {
                let enabled = !choices.is_empty();
                let config = json!({ "enabled": enabled, "set": choices });
                ("set", enabled, config)
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

fn set(choices: &[&str]) -> Extent {
    Set(choices.iter().copied().map(str::to_owned).collect())
}

/// The compute sizes that the operator offers.
fn compute_sizes(context: &ApiContext) -> Extent {
    let sizes = context.control_settings.compute_sizes.all().iter();
    Set(sizes
        .map(|offered| format!("ci_{}", offered.size.code()))
        .collect())
}

/// Whether the operator permits larger disks than the default.
fn larger_disks(context: &ApiContext) -> Extent {
    let largest = context.control_settings.project_disk_choice_max;
    let limits = context.driver.resource_limits();
    Switch(limits.is_some_and(|limits| largest > limits.disk_hard_bytes))
}

/// The operator's limit of branches of a project.
fn branches(context: &ApiContext) -> Extent {
    let limit = context.api_settings.branches.per_project_max;
    Number(Some(limit.into()), "branches")
}

/// Whether the server has a store of backups.
fn backups(context: &ApiContext) -> Extent {
    Switch(context.backups.store().is_ok())
}

/// The days for which backups are kept.
fn backup_days(context: &ApiContext) -> Extent {
    let days = context.control_settings.backups.retention_days;
    let kept = context.backups.store().map_or(0, |_| days);
    Number(Some(kept.into()), "days")
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
    let entitlements = FEATURES.map(|(key, extent)| Entitlement::new(key, extent(&context)));
    Ok(Json(EntitlementList {
        entitlements: entitlements.into(),
    }))
}
