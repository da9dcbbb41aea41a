//! Environments of programs that get their settings as variables: those of the catalog, the
//! project's keys, and the address of the database.
//!
//! Secrets reach a program by a file that its launcher reads and deletes, never by arguments, which
//! other accounts can read.

mod auth;
mod settings;

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

pub(super) use self::settings::try_out;
pub use self::settings::update;
use super::{
    folder::{InstanceFolder, StartedKit},
    instance::{InstanceId, UnavailableReason},
    kit::{Manifest, login_role},
    rest,
    start::StartFailure,
};
use crate::{
    base::ids::ProjectRef,
    data_plane::{
        context::DataPlaneContext,
        projects,
        service_proxy::upstreams::Service,
        service_settings,
        service_settings::{AUTH, ServiceSettings, SettingsCatalog, setting::RenderedVariable},
    },
};

/// Returns the settings of a service with a program that reads them from its environment.
const fn catalog(service: Service) -> Option<&'static SettingsCatalog> {
    match service {
        Service::Auth => Some(&AUTH),
        Service::Rest | Service::Storage | Service::Realtime | Service::Functions => None,
    }
}

/// Reads the stored settings of a service, if its program reads them from its environment.
pub(super) async fn stored(
    context: &DataPlaneContext,
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

/// The environment of a process, without the variables that differ with each start. No `Debug`,
/// because it contains secrets.
#[derive(Clone)]
pub(super) struct ServiceEnvironment {
    service: Service,
    variables: Vec<RenderedVariable>,
    /// Generation of the settings.
    pub(super) generation: i64,
    /// Identifies the keys in it.
    pub(super) keys: u64,
}

impl ServiceEnvironment {
    /// Reads the keys of a project, and builds the environment of its service with these settings.
    pub(super) async fn build(
        context: &DataPlaneContext,
        id: &InstanceId,
        settings: &ServiceSettings,
    ) -> Result<Self, StartFailure> {
        let (variables, keys) = auth::variables(context, id, settings).await?;
        Ok(Self {
            service: id.service,
            variables,
            generation: settings.generation(),
            keys,
        })
    }

    /// Returns the record of a process with this environment. Secrets are not part of the digest:
    /// the generation changes with them.
    pub(super) fn started(&self, kit_version: &str) -> StartedKit {
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
            port: None,
        }
    }

    /// Gives the login role of the program a new password, and writes the environment into the
    /// folder.
    pub(super) async fn write(
        &self,
        context: &DataPlaneContext,
        reference: &ProjectRef,
        folder: &InstanceFolder,
        port: Option<u16>,
    ) -> Result<(), StartFailure> {
        let password = rest::mint(&context.entropy);
        let role = login_role(self.service).unwrap_or_default();
        let verifier = projects::verifier(password.clone())
            .await
            .map_err(|error| StartFailure::new(UnavailableReason::Failed, error))?;
        context
            .driver
            .set_password(reference, role, &verifier)
            .await
            .map_err(|error| StartFailure::new(UnavailableReason::DatabaseRefuses, error))?;
        let database = context.driver.socket(reference);
        let database = database.path().parent().unwrap_or(database.path());
        let url = database_url(role, &password, &database.to_string_lossy());
        let mut all = self.variables.clone();
        all.extend(auth::of_start(port, url));
        folder
            .write_environment(&format(&all))
            .map_err(|error| StartFailure::new(UnavailableReason::Failed, error))
    }
}

/// Checks that a manifest gives no variable that Gantry sets.
pub(super) fn check_manifest(
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

/// Returns the address of a database's Unix socket. libpq and pgx read it alike.
fn database_url(role: &str, password: &SecretString, folder: &str) -> SecretString {
    let host: String = form_urlencoded::byte_serialize(folder.as_bytes()).collect();
    let host = host.replace('+', "%20");
    // The password has no character that a URI encodes.
    let password = password.expose_secret();
    format!("postgresql://{role}:{password}@/postgres?host={host}").into()
}

/// Formats an environment: each variable ends with a NUL, which no setting contains.
fn format(variables: &[RenderedVariable]) -> SecretString {
    let mut text = String::new();
    for variable in variables {
        text.extend([&*variable.name, "=", variable.value.expose_secret(), "\0"]);
    }
    text.into()
}

/// Returns a variable that is no secret.
fn plain(name: &str, value: impl Into<String>) -> RenderedVariable {
    RenderedVariable {
        name: name.to_owned(),
        value: value.into().into(),
        is_secret: false,
    }
}

/// Returns a variable that is a secret.
fn secret(name: &str, value: SecretString) -> RenderedVariable {
    RenderedVariable {
        name: name.to_owned(),
        value,
        is_secret: true,
    }
}
