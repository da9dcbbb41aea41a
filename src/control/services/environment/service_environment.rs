//! The environment of a process.

use std::path::Path;

use gantry_base::ids::ProjectRef;
use gantry_node::{
    clusters::superuser,
    kits::{
        Service,
        manifest::{Manifest, login_role},
    },
};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::{auth, realtime, storage, variables::DatabaseLogin};
use crate::{
    control::{
        api_keys::issuer::{VerifierKeys, verifier_keys},
        context::ControlContext,
        projects::request::verifier as password_verifier,
        service_settings::{ServiceSettings, setting::RenderedVariable},
        services::{
            folder::{InstanceFolder, StartedKit},
            instance_id::InstanceId,
            start_failure::StartFailure,
        },
    },
    platform::random_secret::random_secret,
    proxy::unavailable::UnavailableReason,
};

/// The environment of a process, without the variables that differ with each start. No `Debug`,
/// because it contains secrets.
#[derive(Clone)]
pub(in crate::control::services) struct ServiceEnvironment {
    service: Service,
    variables: Vec<RenderedVariable>,
    /// The settings that it was built from.
    pub(in crate::control::services) settings: ServiceSettings,
    /// Generation of the settings.
    pub(in crate::control::services) generation: i64,
    /// Identifies the keys in it.
    pub(in crate::control::services) keys: u64,
}

impl ServiceEnvironment {
    /// Reads the keys of a project, and builds the environment of its service with these settings.
    pub(in crate::control::services) async fn build(
        context: &ControlContext,
        id: &InstanceId,
        settings: &ServiceSettings,
    ) -> Result<Self, StartFailure> {
        let (variables, keys) = match id.service {
            Service::Storage | Service::Realtime => {
                let keys = verifier(context, id).await?;
                let id_of_keys = keys.id;
                let variables = if id.service == Service::Realtime {
                    realtime::variables(&keys, &id.reference)
                } else {
                    let unused = random_secret(&context.entropy);
                    storage::variables(settings, keys, &id.reference, unused)
                };
                (variables, id_of_keys)
            }
            _ => auth::variables(context, id, settings).await?,
        };
        Ok(Self {
            service: id.service,
            variables,
            settings: settings.clone(),
            generation: settings.generation(),
            keys,
        })
    }

    /// Returns the record of a process with this environment. Secrets are not part of the digest:
    /// the generation changes with them.
    pub(in crate::control::services) fn started(&self, kit_version: &str) -> StartedKit {
        let mut digest = Sha256::new();
        for RenderedVariable {
            name,
            value,
            is_secret,
        } in &self.variables
        {
            let value = if *is_secret {
                ""
            } else {
                value.expose_secret()
            };
            digest.update(format!("{name}={value}\0"));
        }
        digest.update(self.keys.to_le_bytes());
        StartedKit {
            version: kit_version.to_owned(),
            settings: self.generation,
            digest: hex::encode(digest.finalize()),
            function: None,
            ports: Vec::new(),
        }
    }

    /// Gives the login role of the program a new password, and writes the environment into the
    /// folder. Returns the password.
    pub(in crate::control::services) async fn write(
        &self,
        context: &ControlContext,
        reference: &ProjectRef,
        folder: &InstanceFolder,
        (ports, data): (&[u16], &Path),
    ) -> Result<SecretString, StartFailure> {
        let refused = |error| StartFailure::new(UnavailableReason::DatabaseRefuses, error);
        let password = random_secret(&context.entropy);
        let role = login_role(self.service).unwrap_or_default();
        let verifier = password_verifier(password.clone())
            .await
            .map_err(|error| StartFailure::new(UnavailableReason::Failed, error))?;
        if self.service == Service::Realtime {
            prepare_database(context, reference).await?;
        }
        context
            .driver
            .set_password(reference, role, &verifier)
            .await
            .map_err(refused)?;
        let database = context.driver.socket(reference);
        let database = database.path().parent().unwrap_or(database.path());
        let login = DatabaseLogin {
            role,
            password: &password,
            folder: &database.to_string_lossy(),
        };
        let mut all = self.variables.clone();
        all.extend(match self.service {
            Service::Storage => storage::of_start(&login, ports, data),
            Service::Realtime => realtime::of_start(&login, ports),
            _ => auth::of_start(&login, ports),
        });
        folder
            .write_environment(&format(&all))
            .map_err(|error| StartFailure::new(UnavailableReason::Failed, error))?;
        Ok(password)
    }
}

/// Creates the login role and the schema of Realtime in a project's database. Idempotent.
async fn prepare_database(
    context: &ControlContext,
    reference: &ProjectRef,
) -> Result<(), StartFailure> {
    let refused = |error: &dyn std::error::Error| {
        StartFailure::new(UnavailableReason::DatabaseRefuses, error.to_string())
    };
    let session = context
        .driver
        .superuser_session(reference)
        .await
        .map_err(|error| refused(&error))?;
    let prepared = session.run(&superuser::PREPARE_REALTIME).await;
    prepared.map_err(|error| {
        let why = error.as_db_error().map(|error| error.message().to_owned());
        StartFailure::new(
            UnavailableReason::DatabaseRefuses,
            why.unwrap_or_else(|| error.to_string()),
        )
    })
}

/// Reads the keys by which a service verifies tokens.
async fn verifier(context: &ControlContext, id: &InstanceId) -> Result<VerifierKeys, StartFailure> {
    let keys = verifier_keys(context, id.project, &id.reference)
        .await
        .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error))?;
    keys.ok_or_else(|| {
        StartFailure::new(UnavailableReason::Failed, "the project has no internal key")
    })
}

/// Checks that a manifest gives no variable that Gantry sets.
pub(in crate::control::services) fn check_manifest(
    manifest: &Manifest,
    environment: &ServiceEnvironment,
) -> Result<(), StartFailure> {
    let twice = environment
        .variables
        .iter()
        .find(|variable| manifest.environment.contains_key(&variable.name));
    match twice {
        None => Ok(()),
        Some(variable) => Err(StartFailure::new(
            UnavailableReason::BrokenKit,
            format!("kit.toml sets {}, which Gantry sets", variable.name),
        )),
    }
}

/// Formats an environment: each variable ends with a NUL, which no setting contains.
fn format(variables: &[RenderedVariable]) -> SecretString {
    let mut text = String::new();
    for variable in variables {
        text.extend([&*variable.name, "=", variable.value.expose_secret(), "\0"]);
    }
    text.into()
}
