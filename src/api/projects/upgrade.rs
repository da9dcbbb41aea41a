//! Upgrades of projects to another major version of PostgreSQL: eligibility, request, progress.

use std::sync::Arc;

use gantry_node::{clusters::UpgradeBlockers, engines::Engine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::timestamp;
use crate::{
    api::context::ApiContext,
    control::projects::{
        Status, status,
        upgrades::{self, ProjectUpgrade, UpgradeProgress},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, Query, Tag, Verb, mount, output::Created},
        rate_limits::STANDARD,
    },
};

/// Endpoints of upgrades.
pub static ENDPOINTS: &[&Endpoint] = &[&UPGRADE, &ELIGIBILITY, &STATUS];

/// Estimate for every upgrade here, in hours: the smallest that the contract can state.
const ESTIMATE_HOURS: u32 = 1;

static UPGRADE: Endpoint = Endpoint {
    id: "v1-upgrade-postgres-version",
    summary: "Upgrade a project's PostgreSQL version",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/upgrade",
    aliases: &[],
    access: needs(
        &[&[P::ProjectAdminWrite, P::DatabaseWrite]],
        S::ProjectsWrite,
    ),
    limit: &STANDARD,
    handler: || mount(upgrade).sample(r#"{"target_version": "17"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpgradeDatabaseBody")]
struct UpgradeRequest {
    /// One of `target_upgrade_versions[].postgres_version`.
    target_version: String,
    /// Release channel: `ga` or `beta`.
    release_channel: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ProjectUpgradeInitiateResponse")]
struct UpgradeBegun {
    tracking_id: Uuid,
}

async fn upgrade(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<UpgradeRequest>,
) -> Result<Created<UpgradeBegun>, Error> {
    let (current, targets) = upgrades::targets(&context, &project).await?;
    let target = choose(&current, &targets, &request)?;
    if status(&context, project.id).await? == Status::ActiveHealthy {
        let blockers = upgrades::blockers(&context, &project, target).await?;
        if let Some(reasons) = reasons(&blockers) {
            let text = format!("This project cannot be upgraded: {reasons}");
            return Err(Error::Rejected(text.into()));
        }
    }
    let view = |tracking_id| Created(UpgradeBegun { tracking_id });
    audit.answer_with(move |id: &Uuid| view(*id).respond());
    let id = upgrades::begin(&context, &project, target, &audit).await?;
    Ok(view(id))
}

/// Returns the requested target, by major version or by `app_version`.
fn choose<'a>(
    current: &str,
    targets: &'a [Engine],
    request: &UpgradeRequest,
) -> Result<&'a Engine, Error> {
    let wanted = &request.target_version;
    let channel = request.release_channel.as_deref();
    let found = targets.iter().find(|engine| {
        let names = [
            engine.major().to_string(),
            engine.text().to_owned(),
            app_version(engine.text()),
        ];
        names.contains(wanted) && channel.is_none_or(|channel| engine.channel() == channel)
    });
    found.ok_or_else(|| {
        let known: Vec<String> = targets
            .iter()
            .map(|engine| engine.major().to_string())
            .collect();
        let known = if known.is_empty() {
            "no newer version with pg_upgrade is installed".to_owned()
        } else {
            format!("available: {}", known.join(", "))
        };
        let text = format!(
            "This project runs PostgreSQL {current} and cannot be upgraded to {wanted}; {known}"
        );
        Error::Rejected(text.into())
    })
}

/// Returns everything that prevents an upgrade, as one text. `None` if nothing does.
fn reasons(blockers: &UpgradeBlockers) -> Option<String> {
    let mut reasons = blockers.machine.clone();
    if !blockers.extensions.is_empty() {
        let names: Vec<&str> = blockers.extensions.iter().map(String::as_str).collect();
        reasons.push(format!(
            "the new version lacks the extensions {}; drop them, or ask the operator to install them",
            names.join(", ")
        ));
    }
    if !blockers.slots.is_empty() {
        let names = blockers.slots.join(", ");
        reasons.push(format!("drop the logical replication slots first: {names}"));
    }
    if !blockers.objects.is_empty() {
        let names = blockers.objects.join(", ");
        reasons.push(format!("remove these first: {names}"));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

static ELIGIBILITY: Endpoint = Endpoint {
    id: "v1-get-postgres-upgrade-eligibility",
    summary: "Check whether a project's PostgreSQL version can be upgraded",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/upgrade/eligibility",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead, P::DatabaseRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(eligibility),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ProjectUpgradeEligibilityResponse")]
struct Eligibility {
    eligible: bool,
    current_app_version: String,
    current_app_version_release_channel: String,
    latest_app_version: String,
    target_upgrade_versions: Vec<UpgradeTarget>,
    duration_estimate_hours: u32,
    legacy_auth_custom_roles: Vec<String>,
    /// Things to remove first: prepared transactions, tablespaces, columns of types that store
    /// numbers of catalog rows.
    #[schemars(extend("deprecated" = true))]
    objects_to_be_dropped: Vec<String>,
    #[schemars(extend("deprecated" = true))]
    unsupported_extensions: Vec<String>,
    #[schemars(extend("deprecated" = true))]
    user_defined_objects_in_internal_schemas: Vec<String>,
    validation_errors: Vec<ValidationError>,
    /// Changes that an upgrade makes. None occurs here.
    warnings: Vec<Value>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct UpgradeTarget {
    postgres_version: String,
    release_channel: String,
    app_version: String,
}

/// A reason why a project cannot be upgraded. The contract has further ones, which do not occur
/// here.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ValidationError {
    UnsupportedExtension {
        extension_name: String,
    },
    ActiveReplicationSlot {
        slot_name: String,
    },
    /// The project is paused.
    ProjectHibernating,
}

/// Returns the version as clients compare it.
fn app_version(version: &str) -> String {
    format!("postgres-{version}")
}

async fn eligibility(project: Project, context: ApiContext) -> Result<Json<Eligibility>, Error> {
    let (current, targets) = upgrades::targets(&context, &project).await?;
    let is_running = status(&context, project.id).await? == Status::ActiveHealthy;
    let mut possible = Vec::new();
    let mut blocked = UpgradeBlockers::default();
    for target in targets.iter().filter(|_| is_running) {
        let blockers = upgrades::blockers(&context, &project, target).await?;
        if blockers.is_empty() {
            possible.push(target);
        } else {
            blocked = blockers;
        }
    }
    if !possible.is_empty() {
        blocked = UpgradeBlockers::default();
    }
    let latest = targets.last().map_or(current.as_str(), Engine::text);
    let channel = |version: &str| {
        let engines = context.driver.engines().offered();
        let engine = engines.iter().find(|engine| engine.text() == version);
        engine.map_or("ga", Engine::channel).to_owned()
    };
    let mut validation_errors = errors(&blocked);
    if !is_running && !targets.is_empty() {
        validation_errors.push(ValidationError::ProjectHibernating);
    }
    Ok(Json(Eligibility {
        eligible: !possible.is_empty(),
        current_app_version: app_version(&current),
        current_app_version_release_channel: channel(&current),
        latest_app_version: app_version(latest),
        target_upgrade_versions: possible
            .into_iter()
            .map(|engine| UpgradeTarget {
                postgres_version: engine.major().to_string(),
                release_channel: engine.channel().to_owned(),
                app_version: app_version(engine.text()),
            })
            .collect(),
        duration_estimate_hours: ESTIMATE_HOURS,
        legacy_auth_custom_roles: Vec::new(),
        objects_to_be_dropped: blocked.objects,
        unsupported_extensions: blocked.extensions.into_iter().collect(),
        user_defined_objects_in_internal_schemas: Vec::new(),
        validation_errors,
        warnings: Vec::new(),
    }))
}

fn errors(blockers: &UpgradeBlockers) -> Vec<ValidationError> {
    let extensions = blockers.extensions.iter().cloned();
    let slots = blockers.slots.iter().cloned();
    extensions
        .map(|extension_name| ValidationError::UnsupportedExtension { extension_name })
        .chain(slots.map(|slot_name| ValidationError::ActiveReplicationSlot { slot_name }))
        .collect()
}

static STATUS: Endpoint = Endpoint {
    id: "v1-get-postgres-upgrade-status",
    summary: "Get the status of a PostgreSQL upgrade",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/upgrade/status",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead, P::DatabaseRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(upgrade_status),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct StatusQuery {
    /// The upgrade. Otherwise the latest one.
    tracking_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DatabaseUpgradeStatusResponse")]
#[serde(rename_all = "camelCase")]
struct UpgradeStatusResponse {
    database_upgrade_status: Option<UpgradeStatus>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct UpgradeStatus {
    initiated_at: String,
    latest_status_at: String,
    target_version: u16,
    /// The failed step.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    progress: UpgradeProgress,
    /// 0 while it runs, 1 after success, 2 after a failure.
    status: u8,
}

async fn upgrade_status(
    project: Project,
    context: ApiContext,
    Query(query): Query<StatusQuery>,
) -> Result<Json<UpgradeStatusResponse>, Error> {
    // Members of a removed project may know that it existed.
    if status(&context, project.id).await?.goal_is_removed() {
        return Err(crate::control::projects::removed());
    }
    let id = match query.tracking_id.as_deref() {
        None => Ok(None),
        Some(text) => text.parse().map(Some),
    };
    let found = match id {
        Ok(id) => upgrades::latest(&context, project.id, id).await?,
        // An identifier that no upgrade has.
        Err(_) => None,
    };
    Ok(Json(UpgradeStatusResponse {
        database_upgrade_status: found.map(status_of),
    }))
}

fn status_of(upgrade: ProjectUpgrade) -> UpgradeStatus {
    UpgradeStatus {
        initiated_at: timestamp(upgrade.initiated_at),
        latest_status_at: timestamp(upgrade.changed_at),
        target_version: upgrade.target_major(),
        status: match (&upgrade.error, upgrade.is_running) {
            (Some(_), _) => 2,
            (None, true) => 0,
            (None, false) => 1,
        },
        error: upgrade.error,
        progress: upgrade.progress,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_name_everything_that_prevents_an_upgrade() {
        assert_eq!(reasons(&UpgradeBlockers::default()), None);
        let blockers = UpgradeBlockers {
            extensions: ["vector".to_owned()].into(),
            slots: vec!["s".to_owned()],
            objects: vec!["prepared transaction x".to_owned()],
            machine: vec!["no space".to_owned()],
        };
        assert_eq!(
            reasons(&blockers).unwrap(),
            "no space; the new version lacks the extensions vector; drop them, or ask the operator to install them; \
             drop the logical replication slots first: s; remove these first: prepared transaction x"
        );
    }
}
