//! The settings of services that are configured by variables.

use gantry_node::kits::Service;

use crate::{
    control::{
        context::ControlContext,
        service_settings::{
            self, AUTH, POOLER, REALTIME, STORAGE, ServiceSettings, catalog::SettingsCatalog,
        },
        services::{instance_id::InstanceId, start_failure::StartFailure},
    },
    proxy::unavailable::UnavailableReason,
};

/// Returns the settings of a service with a program that reads them at its start.
pub(super) const fn catalog(service: Service) -> Option<&'static SettingsCatalog> {
    match service {
        Service::Auth => Some(&AUTH),
        Service::Storage => Some(&STORAGE),
        Service::Realtime => Some(&REALTIME),
        Service::Pooler => Some(&POOLER),
        Service::Rest | Service::Functions => None,
    }
}

/// Reads the stored settings of a service, if its program reads them at its start.
pub(in crate::control::services) async fn stored(
    context: &ControlContext,
    id: &InstanceId,
) -> Result<Option<ServiceSettings>, StartFailure> {
    let Some(catalog) = catalog(id.service) else {
        return Ok(None);
    };
    let settings = service_settings::read(context, id.project, catalog).await;
    settings
        .map(Some)
        .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error))
}
