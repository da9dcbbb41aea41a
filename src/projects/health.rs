//! Whether the services of a project answer.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Status;
use crate::{
    access::Project,
    app::App,
    database::{self, Target},
    error::Error,
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

/// What is known of a service.
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

/// Asks each service, within `timeout` in all.
pub async fn check(app: &App, project: &Project, services: &[Service], timeout: Duration) -> Result<Vec<ServiceHealth>, Error> {
    let status = super::status(app, project.id).await?;
    if matches!(status, Status::GoingDown | Status::Removed) {
        return Err(super::removed());
    }
    let target = Target::new(app.clusters.socket_path(&project.reference));
    let mut answers = Vec::with_capacity(services.len());
    for service in services {
        answers.push(match service {
            Service::Db | Service::DbPostgresUser if status == Status::ComingUp => health(*service, ServiceStatus::ComingUp, None),
            Service::Db | Service::DbPostgresUser => match database::ping(&target, timeout).await {
                Ok(()) => health(*service, ServiceStatus::ActiveHealthy, None),
                Err(error) => health(*service, ServiceStatus::Unhealthy, Some(error.message().into_owned())),
            },
            _ => health(*service, ServiceStatus::Unhealthy, Some("this service is not run by this server".to_owned())),
        });
    }
    Ok(answers)
}

fn health(name: Service, status: ServiceStatus, error: Option<String>) -> ServiceHealth {
    ServiceHealth { name, healthy: status == ServiceStatus::ActiveHealthy, status, error }
}
