//! Putting a plan into effect: in all services, or in none.

use gantry_node::kits::Service;
use tokio_postgres::Transaction;

use super::{ProjectSettings, RequestedSettings, SettingsPlan, drift, plan};
use crate::{
    control::{
        context::ControlContext,
        database_access::restrictions,
        projects::{
            self,
            parameters::{self, fallback},
            status_events,
        },
        service_settings::{self, ServiceSettings},
        services::{
            rest,
            trial::{self, ServiceTrial},
        },
    },
    platform::{
        access::Project,
        audit::{Change, Recorder},
        error::{Context, Error},
    },
};

/// Applies the requested settings if the hash is that of their plan, and returns when they are in
/// effect.
///
/// The services that Gantry runs run with the new settings before any is stored, and all are stored
/// in one transaction. A server that does not start with its new settings gets the previous ones
/// back, and so do the services.
///
/// Errors: those of [`plan::plan`]; [`Error::Conflict`] if the settings changed since the plan; and
/// [`Error::Rejected`] with the output of a service that does not start with the new settings. The
/// previous settings then remain.
pub async fn apply(
    context: &ControlContext,
    project: &Project,
    request: &ApplyRequest,
    audit: &Recorder,
) -> Result<SettingsPlan, Error> {
    let hash = &request.hash;
    let prepared = plan::prepare(context, project, &request.requested).await?;
    if prepared.plan.hash != *hash {
        return Err(outdated());
    }
    let (before, after) = (&prepared.before, &prepared.after);
    let change = SettingsChange {
        project,
        before,
        after,
    };
    let stored = async {
        let mut client = context.db.client().await?;
        let transaction = client.transaction().await.context(DOING)?;
        projects::lock(&transaction, project, DOING).await?;
        // No other request can store settings until the transaction ends.
        let current = ProjectSettings::read(context, project).await?;
        if plan::hash(&project.reference, &current, after) != *hash {
            return Err(outdated());
        }
        let generation = change.store(context, &transaction).await?;
        let entry = after.changes_since(before, context, project);
        let events = status_events::changed(&transaction, &[project.id]).await?;
        let change = Change::new(entry, events);
        let now = context.clock.now();
        audit.commit(transaction, DOING, 200, change, now).await?;
        Ok(generation)
    };
    let generation = Box::pin(trial::put_into_effect(
        context,
        project,
        &change.trial(),
        stored,
    ))
    .await?;
    if let Some(generation) = generation {
        parameters::announce(context);
        let outcome = parameters::outcome(context, project, generation, &after.server).await;
        if let Err(error @ Error::Rejected(_)) = outcome {
            Box::pin(revert(context, &change, audit)).await?;
            return Err(error);
        }
        outcome?;
    }
    if request.is_baseline {
        drift::remember(context, project, after, &prepared.named, audit).await?;
    }
    Ok(prepared.plan)
}

/// A request to apply settings.
#[derive(Debug)]
pub struct ApplyRequest {
    /// The settings.
    pub requested: RequestedSettings,
    /// The hash of their plan.
    pub hash: String,
    /// Whether drift is measured from these settings from now on.
    pub is_baseline: bool,
}

/// Completes "failed while …".
const DOING: &str = "applying settings";

fn outdated() -> Error {
    Error::Conflict("The settings are not those of the plan; plan the change again".into())
}

/// Runs the services with the settings that the reconciler restored, after the server did not start
/// with its new ones.
async fn revert(
    context: &ControlContext,
    change: &SettingsChange<'_>,
    audit: &Recorder,
) -> Result<(), Error> {
    let project = change.project;
    let current = ProjectSettings::read(context, project).await?;
    let back = SettingsChange {
        project,
        before: change.after,
        after: &current,
    };
    let recorded = async {
        let mut client = context.db.client().await?;
        let transaction = client.transaction().await.context(DOING)?;
        let entry = current.changes_since(change.after, context, project);
        let now = context.clock.now();
        audit.commit(transaction, DOING, 200, entry, now).await
    };
    Box::pin(trial::put_into_effect(
        context,
        project,
        &back.trial(),
        recorded,
    ))
    .await
}

/// Settings before and after a change.
struct SettingsChange<'a> {
    project: &'a Project,
    before: &'a ProjectSettings,
    after: &'a ProjectSettings,
}

impl<'a> SettingsChange<'a> {
    /// Returns the changed settings of services that Gantry runs.
    fn trial(&self) -> ServiceTrial<'a> {
        let (before, after) = (self.before, self.after);
        let changed = |before: &ServiceSettings, after: &'a ServiceSettings| {
            (after.generation() != before.generation()).then_some(after)
        };
        let auth = changed(&before.auth, &after.auth).map(|auth| (Service::Auth, auth));
        let storage = changed(&before.storage, &after.storage);
        let storage = storage.map(|storage| (Service::Storage, storage));
        ServiceTrial {
            api: (after.api != before.api).then_some((&before.api, &after.api)),
            environment: auth.into_iter().chain(storage).collect(),
            realtime: changed(&before.realtime, &after.realtime),
        }
    }

    /// Stores the changed sections. Returns the generation of the server's configuration, if it
    /// changed: it is put into effect after the commit.
    async fn store(
        &self,
        context: &ControlContext,
        transaction: &Transaction<'_>,
    ) -> Result<Option<i64>, Error> {
        let (before, after) = (self.before, self.after);
        let changes_server = after.server != before.server;
        if changes_server {
            fallback::keep_before(transaction, self.project.id).await?;
        }
        let services = [
            (&before.auth, &after.auth),
            (&before.realtime, &after.realtime),
            (&before.storage, &after.storage),
        ];
        for (before, after) in services {
            if after.generation() != before.generation() {
                service_settings::store(context, transaction, self.project.id, after).await?;
            }
        }
        if after.api != before.api {
            rest::write(transaction, self.project.id, &after.api).await?;
        }
        if after.network != before.network {
            let now = after
                .network
                .updated_at
                .unwrap_or_else(|| context.clock.now());
            restrictions::write(transaction, self.project, &after.network, now).await?;
        }
        if !changes_server {
            return Ok(None);
        }
        fallback::keep_after(transaction, self.project.id).await?;
        let server = &after.server;
        let written = parameters::write_in(context, transaction, self.project, server, true);
        Ok(Some(written.await?.1))
    }
}
