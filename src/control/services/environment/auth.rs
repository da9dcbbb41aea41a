//! The environment of the Auth service (contract `behaviour-2.md` §5.1).

use secrecy::SecretString;

use super::variables::{DatabaseLogin, database_url, plain, secret};
use crate::{
    control::{
        api_keys::issuer::{IssuerKeys, issuer_keys},
        context::ControlContext,
        service_settings::{ServiceSettings, setting::RenderedVariable},
        services::{
            functions::environment::public_url, instance_id::InstanceId,
            start_failure::StartFailure,
        },
    },
    platform::random_secret::random_secret,
    proxy::unavailable::UnavailableReason,
};

/// Emails with a link to the service.
const LINKS: [&str; 4] = ["INVITE", "CONFIRMATION", "RECOVERY", "EMAIL_CHANGE"];
/// Suffix of the variables of sign-in providers that have an address to return to.
const CLIENT_ID: &str = "_CLIENT_ID";

/// Returns the variables of a project, and the identifier of the keys in them.
pub(super) async fn variables(
    context: &ControlContext,
    id: &InstanceId,
    settings: &ServiceSettings,
) -> Result<(Vec<RenderedVariable>, u64), StartFailure> {
    let keys = issuer_keys(context, id.project, &id.reference)
        .await
        .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error))?;
    let Some(keys) = keys else {
        return Err(StartFailure::new(
            UnavailableReason::Failed,
            "no key of the project signs tokens; create a signing key, or enable the legacy keys",
        ));
    };
    let external = format!("{}/auth/v1", public_url(context, &id.reference));
    let key_set = keys.id;
    // Required, and never the secret of tokens if those are not accepted.
    let unused = random_secret(&context.entropy);
    Ok((all(settings, keys, &external, unused), key_set))
}

fn all(
    settings: &ServiceSettings,
    keys: IssuerKeys,
    external: &str,
    unused: SecretString,
) -> Vec<RenderedVariable> {
    let mut all = settings.variables();
    let redirects: Vec<_> = all
        .iter()
        .filter_map(|variable| variable.name.strip_suffix(CLIENT_ID))
        .map(|provider| {
            plain(
                &format!("{provider}_REDIRECT_URI"),
                format!("{external}/callback"),
            )
        })
        .collect();
    all.extend(redirects);
    let pool = settings.value("db_max_pool_size");
    let is_percent = settings.value("db_max_pool_size_unit") == "percent";
    let pool_name = if is_percent {
        "GOTRUE_DB_CONN_PERCENTAGE"
    } else {
        "GOTRUE_DB_MAX_POOL_SIZE"
    };
    if pool.is_number() {
        all.push(plain(pool_name, pool.to_string()));
    }
    all.extend([
        plain("API_EXTERNAL_URL", external),
        plain("GOTRUE_API_HOST", "127.0.0.1"),
        plain("GOTRUE_DB_DRIVER", "postgres"),
        plain("GOTRUE_JWT_ADMIN_ROLES", "service_role"),
        plain("GOTRUE_JWT_AUD", "authenticated"),
        plain("GOTRUE_JWT_DEFAULT_GROUP_NAME", "authenticated"),
        plain("GOTRUE_JWT_ISSUER", external),
        plain("GOTRUE_JWT_VALID_METHODS", "HS256,RS256,ES256"),
        // The service proxy sets it.
        plain("GOTRUE_RATE_LIMIT_HEADER", "X-Forwarded-For"),
        secret("GOTRUE_JWT_KEYS", keys.keys),
        secret("GOTRUE_JWT_SECRET", keys.legacy.unwrap_or(unused)),
    ]);
    for link in LINKS {
        let name = format!("GOTRUE_MAILER_URLPATHS_{link}");
        all.push(plain(&name, format!("{external}/verify")));
    }
    all
}

/// Returns the variables that differ with each start.
pub(super) fn of_start(login: &DatabaseLogin<'_>, ports: &[u16]) -> Vec<RenderedVariable> {
    let mut all = vec![secret("GOTRUE_DB_DATABASE_URL", database_url(login, ""))];
    if let Some(port) = ports.first() {
        all.push(plain("GOTRUE_API_PORT", port.to_string()));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::{super::variables::assert_documented, *};
    use crate::control::service_settings::AUTH;

    /// The variables that the program documents in its configuration.
    const DOCUMENTED: &str = include_str!("../../service_settings/auth/documented_variables.txt");

    #[test]
    fn environment_is_complete_documented_and_has_each_name_once() {
        let settings = ServiceSettings::new(&AUTH);
        let change = json!({
            "db_max_pool_size": 20, "db_max_pool_size_unit": "percent",
            "external_github_enabled": true, "external_github_client_id": "id",
            "external_github_secret": "hidden",
        });
        let reference = "abcdefghijklmnopqrst".parse().unwrap();
        let settings = settings
            .update(&reference, change.as_object().unwrap())
            .unwrap();
        let keys = IssuerKeys {
            id: 1,
            keys: "[]".into(),
            legacy: None,
        };
        let mut all = all(&settings, keys, "https://x/auth/v1", "unused".into());
        let password = "p".into();
        let login = DatabaseLogin {
            role: "supabase_auth_admin",
            password: &password,
            folder: "/run/my dir",
        };
        all.extend(of_start(&login, &[23_000]));
        assert_documented(&all, DOCUMENTED);
        let values: BTreeMap<_, _> = all
            .iter()
            .map(|one| (&*one.name, (one.value.expose_secret(), one.is_secret)))
            .collect();
        for (name, value) in [
            ("API_EXTERNAL_URL", ("https://x/auth/v1", false)),
            ("GOTRUE_API_PORT", ("23000", false)),
            ("GOTRUE_DB_CONN_PERCENTAGE", ("20", false)),
            (
                "GOTRUE_DB_DATABASE_URL",
                (
                    "postgresql://supabase_auth_admin:p@/postgres?host=%2Frun%2Fmy%20dir",
                    true,
                ),
            ),
            (
                "GOTRUE_EXTERNAL_GITHUB_REDIRECT_URI",
                ("https://x/auth/v1/callback", false),
            ),
            ("GOTRUE_EXTERNAL_GITHUB_SECRET", ("hidden", true)),
            ("GOTRUE_JWT_KEYS", ("[]", true)),
            ("GOTRUE_JWT_SECRET", ("unused", true)),
            (
                "GOTRUE_MAILER_URLPATHS_INVITE",
                ("https://x/auth/v1/verify", false),
            ),
            ("GOTRUE_SITE_URL", ("http://localhost:3000", false)),
        ] {
            assert_eq!(values.get(name), Some(&value), "{name}");
        }
        assert!(!values.contains_key("GOTRUE_DB_MAX_POOL_SIZE"));
    }
}
