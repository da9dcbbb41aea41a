//! The settings that a process is started with.

use gantry_node::kits::Service;

use super::{
    environment::catalog,
    instance_id::InstanceId,
    rest::stored_settings::{self, StoredSettings},
    start_failure::StartFailure,
};
use crate::{
    control::{context::ControlContext, service_settings::ServiceSettings},
    proxy::unavailable::UnavailableReason,
};

/// The settings that a process is started with. No `Debug`, because they may contain secrets.
pub(super) enum StartSettings {
    /// Those of a Data API, or none.
    DataApi(StoredSettings),
    /// Those of a program that reads them from its environment.
    Environment(Box<ServiceSettings>),
}

impl StartSettings {
    /// Returns the settings of a Data API. For others, its defaults with their generation.
    pub(super) fn of_data_api(&self) -> StoredSettings {
        match self {
            Self::DataApi(stored) => stored.clone(),
            Self::Environment(settings) => StoredSettings {
                generation: settings.generation(),
                ..StoredSettings::default()
            },
        }
    }

    /// Reads the stored settings of a service.
    pub(super) async fn stored(
        context: &ControlContext,
        id: &InstanceId,
    ) -> Result<Self, StartFailure> {
        if let Some(settings) = catalog::stored(context, id).await? {
            return Ok(Self::Environment(Box::new(settings)));
        }
        if id.service != Service::Rest {
            return Ok(Self::DataApi(StoredSettings::default()));
        }
        let stored = stored_settings::stored(&context.db, id.project).await;
        stored
            .map(Self::DataApi)
            .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error))
    }
}
