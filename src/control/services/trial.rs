//! A trial of settings that are not stored yet, in all services that they concern.

use gantry_node::kits::Service;

use super::{
    environment,
    instance_id::InstanceId,
    rest::{self, settings::runs_here, stored_settings::StoredSettings},
    stop,
};
use crate::{
    control::{context::ControlContext, service_settings::ServiceSettings},
    platform::{access::Project, error::Error, tables::Table},
};

/// Changed settings of services that Gantry runs.
pub(in crate::control) struct ServiceTrial<'a> {
    /// Settings of the Data API, before and after.
    pub(in crate::control) api: Option<(&'a StoredSettings, &'a StoredSettings)>,
    /// Settings of services that start again with them: Auth, then Storage.
    pub(in crate::control) environment: Vec<(Service, &'a ServiceSettings)>,
    /// Settings of Realtime, which its running process takes.
    pub(in crate::control) realtime: Option<&'a ServiceSettings>,
}

/// Runs the services with new settings, then stores these. If a service refuses its settings, or
/// they are not stored, all services use the stored settings, at the latest with the next request.
pub(in crate::control) async fn put_into_effect<T>(
    context: &ControlContext,
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
    let (rest, realtime) = (instance(Service::Rest), instance(Service::Realtime));
    let environment: Vec<_> = trial
        .environment
        .iter()
        .map(|(service, after)| (instance(*service), *after))
        .collect();
    // Always in this order.
    let _rest_lock = rest.replacing.lock().await;
    let mut locks = Vec::new();
    for (instance, _) in &environment {
        locks.push(instance.replacing.lock().await);
    }
    let _realtime_lock = realtime.replacing.lock().await;
    let outcome = async {
        if let Some((before, after)) = trial.api
            && !after.settings.is_off()
            && runs_here(context, project, Service::Rest).await?
        {
            rest::settings::try_out(context, &rest, before, after).await?;
        }
        for (instance, after) in &environment {
            if runs_here(context, project, instance.id.service).await? {
                environment::settings::try_out(context, instance, after).await?;
            }
        }
        store.await
    };
    let outcome = outcome.await;
    let is_off = |(_, after): (&StoredSettings, &StoredSettings)| after.settings.is_off();
    if trial.api.is_some() && (outcome.is_err() || trial.api.is_some_and(is_off)) {
        stop::stop(context, &rest).await;
    }
    if outcome.is_err() {
        for (instance, _) in &environment {
            stop::stop(context, instance).await;
        }
        return outcome;
    }
    if let Some(after) = trial.realtime {
        environment::settings::push(context, &realtime, after).await;
    }
    rest.forget_failure();
    for (instance, _) in &environment {
        instance.forget_failure();
    }
    context.table_changed(Table::RestSettings);
    outcome
}
