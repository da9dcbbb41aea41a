//! A trial of settings that are not stored yet, in all services that they concern.

use super::{
    environment,
    instance::InstanceId,
    rest,
    rest::{StoredSettings, runs_here},
    stop,
};
use crate::{
    base::error::Error,
    data_plane::{
        context::DataPlaneContext, service_proxy::upstreams::Service,
        service_settings::ServiceSettings,
    },
    platform::{access::Project, tables::Table},
};

/// Changed settings of services that Gantry runs.
pub(in crate::data_plane) struct ServiceTrial<'a> {
    /// Settings of the Data API, before and after.
    pub(in crate::data_plane) api: Option<(&'a StoredSettings, &'a StoredSettings)>,
    /// Settings of the Auth service.
    pub(in crate::data_plane) auth: Option<&'a ServiceSettings>,
}

/// Runs the services with new settings, then stores these. If a service refuses its settings, or
/// they are not stored, all services use the stored settings, at the latest with the next request.
pub(in crate::data_plane) async fn put_into_effect<T>(
    context: &DataPlaneContext,
    project: &Project,
    trial: &ServiceTrial<'_>,
    store: impl Future<Output = Result<T, Error>> + Send,
) -> Result<T, Error> {
    let instance = |service| {
        context.services.instance(&InstanceId {
            project: project.id,
            reference: project.reference.clone(),
            service,
            function: None,
        })
    };
    let (rest, auth) = (instance(Service::Rest), instance(Service::Auth));
    // Always in this order.
    let _rest_lock = rest.replacing.lock().await;
    let _auth_lock = auth.replacing.lock().await;
    let outcome = async {
        if let Some((before, after)) = trial.api
            && !after.settings.is_off()
            && runs_here(context, project, Service::Rest).await?
        {
            rest::try_out(context, &rest, before, after).await?;
        }
        if let Some(after) = trial.auth
            && runs_here(context, project, Service::Auth).await?
        {
            environment::try_out(context, &auth, after).await?;
        }
        store.await
    };
    let outcome = outcome.await;
    let is_off = |(_, after): (&StoredSettings, &StoredSettings)| after.settings.is_off();
    if trial.api.is_some() && (outcome.is_err() || trial.api.is_some_and(is_off)) {
        stop::stop(context, &rest).await;
    }
    if trial.auth.is_some() && outcome.is_err() {
        stop::stop(context, &auth).await;
    }
    if outcome.is_ok() {
        rest.forget_failure();
        auth.forget_failure();
        context.table_changed(Table::RestSettings);
    }
    outcome
}
