//! The environment of the Storage service. It has one tenant, the project, and keeps its files in
//! a folder of the data folder.

use std::path::Path;

use gantry_base::ids::ProjectRef;
use secrecy::SecretString;

use super::variables::{DatabaseLogin, database_url, plain, secret};
use crate::control::{
    api_keys::issuer::VerifierKeys,
    service_settings::{ServiceSettings, setting::RenderedVariable},
};

/// The prefix of the service's paths at the service proxy.
const PREFIX: &str = "/storage/v1";

/// Returns the variables of a project, without those that differ with each start.
pub(super) fn variables(
    settings: &ServiceSettings,
    keys: VerifierKeys,
    reference: &ProjectRef,
    unused: SecretString,
) -> Vec<RenderedVariable> {
    let mut all = settings.variables();
    all.extend([
        plain("MULTI_TENANT", "false"),
        plain("TENANT_ID", reference.as_str()),
        plain("SERVER_HOST", "127.0.0.1"),
        plain("SERVER_REGION", "local"),
        // The platform's roles exist, and the program must not change them.
        plain("DB_INSTALL_ROLES", "false"),
        plain("STORAGE_BACKEND", "file"),
        // Required, and not used by the backend of files.
        plain("STORAGE_S3_BUCKET", "files"),
        plain("STORAGE_S3_REGION", "local"),
        plain("S3_PROTOCOL_PREFIX", PREFIX),
        plain("TUS_URL_PATH", format!("{PREFIX}/upload/resumable")),
        // Queues would create a schema of their own in the project's database.
        plain("PG_QUEUE_ENABLE", "false"),
        plain("RATE_LIMITER_ENABLED", "false"),
        plain("S3_PROTOCOL_ACCESS_KEY_ID", reference.as_str()),
        secret(
            "S3_PROTOCOL_ACCESS_KEY_SECRET",
            keys.derive("storage: S3 protocol"),
        ),
        secret("JWT_JWKS", keys.key_set),
        // Required, and never the secret of tokens if those are not accepted.
        secret("AUTH_JWT_SECRET", keys.legacy.unwrap_or(unused)),
    ]);
    all
}

/// Returns the variables that differ with each start.
pub(super) fn of_start(
    login: &DatabaseLogin<'_>,
    ports: &[u16],
    data: &Path,
) -> Vec<RenderedVariable> {
    let mut all = vec![
        secret("DATABASE_URL", database_url(login, "localhost")),
        plain("STORAGE_FILE_BACKEND_PATH", data.to_string_lossy()),
    ];
    if let Some(port) = ports.first() {
        all.push(plain("SERVER_PORT", port.to_string()));
    }
    all
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::{super::variables::assert_documented, *};
    use crate::control::service_settings::STORAGE;

    /// Variables that the program reads, from its documentation.
    const DOCUMENTED: &str = include_str!("storage_variables.txt");

    #[test]
    fn environment_is_complete_documented_and_has_each_name_once() {
        let reference: ProjectRef = "abcdefghijklmnopqrst".parse().unwrap();
        let change = json!({"fileSizeLimit": 1000});
        let settings = ServiceSettings::new(&STORAGE)
            .update(&reference, change.as_object().unwrap())
            .unwrap();
        let keys = VerifierKeys::for_tests();
        let mut all = variables(&settings, keys, &reference, "unused".into());
        let password = "p".into();
        let login = DatabaseLogin {
            role: "supabase_storage_admin",
            password: &password,
            folder: "/run/x",
        };
        all.extend(of_start(&login, &[23_000], Path::new("/d/storage/x")));
        assert_documented(&all, DOCUMENTED);
        let value = |name: &str| {
            let found = all.iter().find(|one| one.name == name).unwrap();
            (found.value.expose_secret().to_owned(), found.is_secret)
        };
        for (name, expected, is_secret) in [
            ("UPLOAD_FILE_SIZE_LIMIT", "1000", false),
            ("S3_PROTOCOL_ENABLED", "true", false),
            ("VECTOR_MAX_INDEXES", "5", false),
            ("TENANT_ID", "abcdefghijklmnopqrst", false),
            ("SERVER_PORT", "23000", false),
            ("STORAGE_FILE_BACKEND_PATH", "/d/storage/x", false),
            ("AUTH_JWT_SECRET", "unused", true),
            ("JWT_JWKS", "{}", true),
        ] {
            assert_eq!(value(name), (expected.to_owned(), is_secret), "{name}");
        }
        let (url, is_secret) = value("DATABASE_URL");
        assert!(is_secret && url.starts_with("postgresql://supabase_storage_admin:p@localhost/"));
        assert!(url.ends_with("/postgres?host=%2Frun%2Fx"), "{url}");
    }
}
