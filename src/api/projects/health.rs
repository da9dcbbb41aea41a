//! Health of a project's services.

use std::time::Duration;

use gantry_node::kits::Service as ProxiedService;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::{
        backups,
        database_session::{self, ConnectTarget},
        fleet,
        operator_settings::upstreams,
        project_settings,
        projects::{Status, removed},
        services::{self, state::ServiceState},
    },
    platform::{
        access::Project,
        error::{Context, Error},
    },
};

/// A service of a project: the contract's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the contract's names")]
pub enum Service {
    Auth,
    Db,
    DbPostgresUser,
    Pooler,
    Realtime,
    Rest,
    Storage,
    PgBouncer,
}

/// Status of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum ServiceStatus {
    ComingUp,
    ActiveHealthy,
    Unhealthy,
}

/// Health of one service.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1ServiceHealthResponse")]
pub struct ServiceHealth {
    name: Service,
    #[schemars(extend("deprecated" = true))]
    healthy: bool,
    status: ServiceStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Checks each service, within a total time of `timeout`.
pub async fn check(
    context: &ApiContext,
    project: &Project,
    services: &[Service],
    timeout: Duration,
) -> Result<Vec<ServiceHealth>, Error> {
    let sql = "select status, last_error, asleep, resource_warning, read_only, platform_conflicts, \
               privilege_findings from projects where id = $1";
    let rows = context
        .db
        .query(sql, &[&project.id.0])
        .await
        .context("reading a project's status")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    let status = Status::read(row, 0)?;
    let cause = row.get::<_, Option<String>>(1);
    let warning: Option<String> = row.get(3);
    let read_only: bool = row.get(4);
    let conflicts: Option<String> = row.get(5);
    let findings: Option<String> = row.get(6);
    // None makes a database unhealthy by itself.
    let notes = [
        warning.clone(),
        conflicts.as_deref().map(platform_conflicts),
        findings.as_deref().map(privilege_findings),
    ];
    let drift = project_settings::drift_note(context, project).await?;
    let mut notes: Vec<String> = notes.into_iter().chain([drift]).flatten().collect();
    notes.extend(backups::health::notes(context, project.id).await?);
    // The contract has no service for functions.
    notes.extend(services::function_notes(context, project.id));
    let notes = (!notes.is_empty()).then(|| notes.join("; "));
    match status {
        Status::GoingDown | Status::Removed => return Err(removed()),
        Status::Pausing | Status::Inactive => {
            return Err(Error::Rejected(
                inactive(warning.filter(|_| read_only)).into(),
            ));
        }
        _ => {}
    }
    if let Some(reason) = fleet::unreachable_holder(context, project.id).await? {
        let unhealthy =
            |service: &Service| health(*service, ServiceStatus::Unhealthy, Some(reason.clone()));
        return Ok(services.iter().map(unhealthy).collect());
    }
    let asleep: bool = row.get(2);
    let target = ConnectTarget::of(&context.driver, &project.reference);
    let mut answers = Vec::with_capacity(services.len());
    for service in services {
        answers.push(match service {
            // A health check must not wake a server that sleeps.
            Service::Db | Service::DbPostgresUser if asleep => {
                let asleep = health(*service, ServiceStatus::ActiveHealthy, None);
                restricted(asleep, notes.clone(), read_only)
            }
            Service::Db | Service::DbPostgresUser => {
                let answer = database(*service, status, cause.clone(), &target, timeout).await;
                restricted(answer, notes.clone(), read_only)
            }
            Service::Rest => {
                proxied(context, project, *service, ProxiedService::Rest, timeout).await?
            }
            Service::Auth => {
                proxied(context, project, *service, ProxiedService::Auth, timeout).await?
            }
            Service::Storage => {
                proxied(context, project, *service, ProxiedService::Storage, timeout).await?
            }
            Service::Realtime => {
                proxied(
                    context,
                    project,
                    *service,
                    ProxiedService::Realtime,
                    timeout,
                )
                .await?
            }
            Service::Pooler | Service::PgBouncer => {
                proxied(context, project, *service, ProxiedService::Pooler, timeout).await?
            }
        });
    }
    Ok(answers)
}

fn not_run(service: Service) -> ServiceHealth {
    let why = "this service is not run by this server";
    health(service, ServiceStatus::Unhealthy, Some(why.to_owned()))
}

/// Returns the health of a service behind the service proxy: of the one that requests reach.
async fn proxied(
    context: &ApiContext,
    project: &Project,
    name: Service,
    service: ProxiedService,
    timeout: Duration,
) -> Result<ServiceHealth, Error> {
    let own = upstreams::of(&context.db, &project.reference).await?;
    let template = own.get(service).or_else(|| {
        context
            .control_settings
            .service_proxy
            .upstreams
            .get(service)
    });
    if let Some(upstream) = template.and_then(|template| template.fill(&project.reference)) {
        return Ok(if upstream.accepts_connections(timeout).await {
            health(name, ServiceStatus::ActiveHealthy, None)
        } else {
            let why = "the address that the operator set for this service accepts no connections";
            health(name, ServiceStatus::Unhealthy, Some(why.to_owned()))
        });
    }
    if services::has_kit(context, service) {
        return instance(context, project, name, service).await;
    }
    Ok(not_run(name))
}

/// Returns the health of a service that this server runs. A stopped instance is healthy: the next
/// request starts it.
async fn instance(
    context: &ApiContext,
    project: &Project,
    name: Service,
    service: ProxiedService,
) -> Result<ServiceHealth, Error> {
    let is_rest = service == ProxiedService::Rest;
    if is_rest && services::rest::get(context, project).await?.is_off() {
        let why = "the Data API is switched off in the project's settings";
        return Ok(health(name, ServiceStatus::Unhealthy, Some(why.to_owned())));
    }
    let state = services::observe(context, project.id, service).await;
    Ok(match state {
        ServiceState::Asleep | ServiceState::Running => {
            health(name, ServiceStatus::ActiveHealthy, None)
        }
        ServiceState::Changing => health(name, ServiceStatus::ComingUp, None),
        ServiceState::Failed(why) => health(name, ServiceStatus::Unhealthy, Some(why)),
    })
}

/// Connects to the database unless the project is stopped. The result includes the last error.
async fn database(
    service: Service,
    status: Status,
    cause: Option<String>,
    target: &ConnectTarget,
    timeout: Duration,
) -> ServiceHealth {
    match status {
        Status::ComingUp | Status::Restoring | Status::Restarting | Status::Upgrading => {
            health(service, ServiceStatus::ComingUp, cause)
        }
        Status::InitFailed | Status::PauseFailed | Status::RestoreFailed => {
            health(service, ServiceStatus::Unhealthy, cause)
        }
        _ => match database_session::ping(target, timeout).await {
            Ok(()) => health(service, ServiceStatus::ActiveHealthy, None),
            Err(error @ Error::DatabaseRefuses(_)) => {
                // The cause is reported once: the repair that follows removes it.
                let target = target.clone();
                tokio::spawn(async move { target.repair().await });
                health(
                    service,
                    ServiceStatus::Unhealthy,
                    Some(error.message().into_owned()),
                )
            }
            Err(error) => health(
                service,
                ServiceStatus::Unhealthy,
                cause.or_else(|| Some(error.message().into_owned())),
            ),
        },
    }
}

/// Returns the error of a stopped project, with the reason if it exceeded its resources.
fn inactive(warning: Option<String>) -> String {
    let refusal = "No active services available";
    warning.map_or_else(
        || refusal.to_owned(),
        |warning| format!("{refusal}: {warning}"),
    )
}

/// Returns the note on parts of the platform that objects of the tenant are in the way of.
fn platform_conflicts(conflicts: &str) -> String {
    format!("the platform's schemas are not complete: {conflicts}")
}

/// Returns the note on privileges that only the platform has.
fn privilege_findings(findings: &str) -> String {
    format!(
        "privileges of the platform were found at the last start, and revoked as far as possible: \
         {findings}; see the audit log of the organization, and ask the operator of this server"
    )
}

/// Combines a database's health with a resource warning. A read-only database is unhealthy.
fn restricted(answer: ServiceHealth, warning: Option<String>, read_only: bool) -> ServiceHealth {
    match (answer.status, warning) {
        (ServiceStatus::ActiveHealthy, Some(warning)) if read_only => {
            health(answer.name, ServiceStatus::Unhealthy, Some(warning))
        }
        (_, Some(warning)) => {
            let error = answer
                .error
                .map_or_else(|| warning.clone(), |error| format!("{error}; {warning}"));
            ServiceHealth {
                error: Some(error),
                ..answer
            }
        }
        (_, None) => answer,
    }
}

fn health(name: Service, status: ServiceStatus, error: Option<String>) -> ServiceHealth {
    ServiceHealth {
        name,
        healthy: status == ServiceStatus::ActiveHealthy,
        status,
        error,
    }
}
