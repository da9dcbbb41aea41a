//! Variables that the platform sets in the environment of all functions of a project.

use gantry_base::ids::{ProjectId, ProjectRef};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use crate::{
    control::{
        api_keys,
        context::ControlContext,
        database_session::{DATABASE, OWNER},
    },
    platform::error::Error,
};

/// Port in the address of the database.
pub(super) const DATABASE_PORT: u16 = 5432;
/// Port of pooled connections, which some clients put into the address. It leads to the same
/// socket.
pub(super) const POOLER_PORT: u16 = 6543;

/// Returns the platform's variables by name. Their names begin with
/// [`RESERVED_PREFIX`](super::secrets::RESERVED_PREFIX).
pub(super) async fn platform_variables(
    context: &ControlContext,
    project: ProjectId,
    reference: &ProjectRef,
) -> Result<Vec<(&'static str, SecretString)>, Error> {
    let keys = api_keys::key_values(context, project, reference).await?;
    let accepted = api_keys::accepted_keys(context, project, reference).await?;
    let of = |keys: &[(String, SecretString)]| {
        let values = keys
            .iter()
            .map(|(name, key)| (name.clone(), Value::from(key.expose_secret())));
        Value::Object(values.collect()).to_string()
    };
    let mut all = vec![
        ("SUPABASE_URL", public_url(context, reference)),
        ("SUPABASE_DB_URL", database_url(context, reference)),
        ("SUPABASE_PUBLISHABLE_KEYS", of(&keys.publishable)),
        ("SUPABASE_SECRET_KEYS", of(&keys.secret)),
        ("SUPABASE_JWKS", accepted.public_key_set().to_string()),
    ];
    if let Some([anon, service_role]) = keys.legacy {
        for (name, key) in [
            ("SUPABASE_ANON_KEY", anon),
            ("SUPABASE_SERVICE_ROLE_KEY", service_role),
        ] {
            all.push((name, key.expose_secret().to_owned()));
        }
    }
    let sealed = all.into_iter().map(|(name, value)| (name, value.into()));
    Ok(sealed.collect())
}

/// The address of a project's services.
pub(in crate::control::services) fn public_url(
    context: &ControlContext,
    project: &ProjectRef,
) -> String {
    let port = context.service_proxy.https_port();
    let port = port
        .filter(|port| *port != 443)
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!(
        "https://{project}.{}{port}",
        context.settings.project_domain
    )
}

/// The host in the address of a project's database.
pub(super) fn database_host(context: &ControlContext, project: &ProjectRef) -> String {
    format!("db.{project}.{}", context.settings.project_domain)
}

/// The address of a project's database. It has a password because clients ask for one; the socket
/// behind it is only that of the function, and needs none.
fn database_url(context: &ControlContext, project: &ProjectRef) -> String {
    let host = database_host(context, project);
    format!("postgresql://{OWNER}:function@{host}:{DATABASE_PORT}/{DATABASE}")
}
