//! Variables that several programs have.

use secrecy::{ExposeSecret, SecretString};

use crate::control::service_settings::setting::RenderedVariable;

/// The login of a program in the project's database.
pub(super) struct DatabaseLogin<'a> {
    pub(super) role: &'a str,
    pub(super) password: &'a SecretString,
    /// The folder of the server's socket.
    pub(super) folder: &'a str,
}

/// Returns the address of a database's Unix socket: the parameter takes precedence over the host.
/// libpq and pgx need no `host`; the client of Node.js takes no URL without one.
pub(super) fn database_url(login: &DatabaseLogin<'_>, host: &str) -> SecretString {
    let folder: String = form_urlencoded::byte_serialize(login.folder.as_bytes()).collect();
    let folder = folder.replace('+', "%20");
    // The password has no character that a URI encodes.
    let (role, password) = (login.role, login.password.expose_secret());
    format!("postgresql://{role}:{password}@{host}/postgres?host={folder}").into()
}

/// Returns a variable that is no secret.
pub(super) fn plain(name: &str, value: impl Into<String>) -> RenderedVariable {
    RenderedVariable {
        name: name.to_owned(),
        value: value.into().into(),
        is_secret: false,
    }
}

/// Returns a variable that is a secret.
pub(super) fn secret(name: &str, value: SecretString) -> RenderedVariable {
    RenderedVariable {
        name: name.to_owned(),
        value,
        is_secret: true,
    }
}

/// Fails unless each variable has a name of its own, which is among the documented ones.
#[cfg(test)]
pub(super) fn assert_documented(all: &[RenderedVariable], documented: &str) {
    use std::collections::BTreeSet;

    let documented: BTreeSet<&str> = documented.lines().collect();
    let names: BTreeSet<&str> = all.iter().map(|one| &*one.name).collect();
    assert_eq!(names.len(), all.len());
    let unknown: Vec<_> = names.difference(&documented).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
