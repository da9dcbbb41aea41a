//! Changed settings in a running PostgREST: the configuration is replaced and read again.
//!
//! Configuration and key set are read together, so the probes of a new key set prove that the new
//! configuration is in use.

use std::{io, sync::Arc, time::Duration};

use gantry_node::kits::Service;
use hyper::StatusCode;
use rustix::process::Signal;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

use super::{
    process::{CONFIG, KEYS, KeySetCheck, with_settings},
    stored_settings::{StoredSettings, stored},
};
use crate::{
    control::{
        api_keys,
        context::ControlContext,
        services::{
            instance::{Instance, RunningInstance},
            probe, stop,
        },
    },
    proxy::accepted_keys::AcceptedKeys,
};

/// Longest time of one load of the schema cache. Requests are answered from the old one meanwhile.
const CACHE_MAX: Duration = Duration::from_secs(2);
/// Part of the line that PostgREST writes when it cannot read its configuration.
const CONFIG_REFUSED: &str = "Failed reloading config";
/// Part of the line that PostgREST writes after it loaded its schema cache.
const CACHE_LOADED: &str = "Schema cache loaded";

/// Settings could not be changed in a running process.
#[derive(Debug)]
pub(super) enum ReloadFailure {
    /// PostgREST rejects the settings, with this message. It runs with the previous ones.
    Refused(String),
    /// The process does not answer as expected. Its settings are unknown.
    Unconfirmed(String),
}

impl From<io::Error> for ReloadFailure {
    fn from(error: io::Error) -> Self {
        Self::Unconfirmed(error.to_string())
    }
}

/// Returns whether a running process can change from one to the other without a restart: the pool
/// is made at the start.
pub(super) fn is_reloadable(before: &StoredSettings, after: &StoredSettings) -> bool {
    before.settings.db_pool == after.settings.db_pool && !after.settings.is_off()
}

/// Puts settings into effect in a running process, without interrupting requests.
pub(super) async fn reload(
    context: &ControlContext,
    running: &RunningInstance,
    after: &StoredSettings,
) -> Result<(), ReloadFailure> {
    let _one = running.loading.lock().await;
    let before = running.settings.lock().clone();
    let id = &running.id;
    let keys = api_keys::accepted_keys(context, id.project, &id.reference)
        .await
        .map_err(|error| ReloadFailure::Unconfirmed(error.to_string()))?;
    let old = SecretString::from(running.folder.read(CONFIG)?);
    let new = with_settings(old.expose_secret(), &after.settings);
    // If Gantry ends before the settings are stored, the process is not adopted.
    running.folder.forget()?;
    let mut applied = apply(context, running, &new, &keys).await;
    if applied.is_ok() && before.settings.db_schema != after.settings.db_schema {
        applied = check_schema(running, after).await;
        if applied.is_ok() {
            load_schemas(running).await?;
        }
    }
    match applied {
        Ok(()) => {
            running.settings.lock().clone_from(after);
            running
                .folder
                .record(&after.started(&running.kit.version))?;
            Ok(())
        }
        Err(ReloadFailure::Refused(why)) => {
            apply(context, running, &old, &keys).await?;
            running
                .folder
                .record(&before.started(&running.kit.version))?;
            Err(ReloadFailure::Refused(why))
        }
        Err(failure) => Err(failure),
    }
}

/// Writes a configuration and a new key set, and waits until both are in use.
async fn apply(
    context: &ControlContext,
    running: &RunningInstance,
    config: &SecretString,
    keys: &AcceptedKeys,
) -> Result<(), ReloadFailure> {
    let check = KeySetCheck::new(&context.entropy, keys);
    let (folder, lines) = (&running.folder, &running.output.lines);
    folder.write(KEYS, check.text.expose_secret(), running.owner)?;
    folder.write(CONFIG, config.expose_secret(), running.owner)?;
    let seen = lines.count();
    running.handle.signal(Signal::USR2)?;
    tokio::select! {
        confirmed = check.confirm(running, keys) => {
            confirmed.map_err(|failure| ReloadFailure::Unconfirmed(failure.why))?;
        }
        refused = lines.wait_for(&[CONFIG_REFUSED], seen) => {
            return Err(ReloadFailure::Refused(refused));
        }
        _ = running.handle.ended() => {
            return Err(ReloadFailure::Unconfirmed("the program ended".to_owned()));
        }
    }
    Ok(())
}

/// Waits until the tables and functions of newly exposed schemas are loaded, for a bounded time.
async fn load_schemas(running: &RunningInstance) -> Result<(), ReloadFailure> {
    // The first line may be that of a load that began before the new configuration was in use, and
    // during which the signal has no effect.
    for _ in 0..2 {
        let seen = running.output.lines.count();
        running.handle.signal(Signal::USR1)?;
        let loaded = running.output.lines.wait_for(&[CACHE_LOADED], seen);
        let _ = timeout(CACHE_MAX, loaded).await;
    }
    Ok(())
}

/// Checks that the first exposed schema is in use. Settings in the database take precedence over
/// those of the configuration.
pub(super) async fn check_schema(
    running: &RunningInstance,
    after: &StoredSettings,
) -> Result<(), ReloadFailure> {
    let schema = after.settings.first_schema();
    let status = probe::head(&running.address, "/", &[("accept-profile", schema)]).await;
    if status.is_ok_and(|status| status == StatusCode::NOT_ACCEPTABLE) {
        return Err(ReloadFailure::Refused(format!(
            "PostgREST does not expose the schema {schema} with these settings; \
             the role authenticator may have other ones in pgrst.db_schemas"
        )));
    }
    Ok(())
}

/// Brings a running process to the stored settings, which another server changed. Stops it if that
/// fails: the next request starts it with them.
pub(in crate::control::services) async fn refresh(
    context: &ControlContext,
    instance: &Arc<Instance>,
) {
    // A change over the API is under way, and ends in this state.
    let Ok(_one) = instance.replacing.try_lock() else {
        return;
    };
    let Some(running) = instance.running() else {
        return;
    };
    let Ok(stored) = stored(&context.db, running.id.project).await else {
        return;
    };
    let before = running.settings.lock().clone();
    if before == stored {
        return;
    }
    let is_reloadable = running.kit.manifest.needs.postgrest && is_reloadable(&before, &stored);
    if !is_reloadable || reload(context, &running, &stored).await.is_err() {
        let project = &running.id.reference;
        tracing::debug!(%project, service = %Service::Rest, "service with outdated settings stopped");
        stop::stop(context, instance).await;
    }
}
