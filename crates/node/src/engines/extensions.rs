//! The extensions that the owner of a project can create, and the file of the operator's additions.
//!
//! PostgreSQL lets a role without superuser rights create an extension if its control file says
//! `trusted`. [`layout`](super::layout) writes that line for the extensions that this list permits.
//! The script of such an extension runs as superuser, so the list holds extensions with objects
//! that give their user no access outside of the database.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{
    error::{ClusterError, Result},
    files,
    supervisor::ProcessOwner,
};

/// Extensions that the owner of a project can create where their files are installed.
pub const PERMITTED: &[&str] = &[
    "address_standardizer",
    "address_standardizer_data_us",
    "autoinc",
    "bloom",
    "btree_gin",
    "btree_gist",
    "citext",
    "cube",
    "dblink",
    "dict_int",
    "dict_xsyn",
    "earthdistance",
    "fuzzystrmatch",
    "hll",
    "hstore",
    "http",
    "hypopg",
    "index_advisor",
    "insert_username",
    "intagg",
    "intarray",
    "isn",
    "ltree",
    "moddatetime",
    "pg_buffercache",
    "pg_cron",
    "pg_freespacemap",
    "pg_graphql",
    "pg_hashids",
    "pg_jsonschema",
    "pg_net",
    "pg_partman",
    "pg_prewarm",
    "pg_repack",
    "pg_stat_statements",
    "pg_trgm",
    "pg_visibility",
    "pgaudit",
    "pgcrypto",
    "pgjwt",
    "pgmq",
    "pgroonga",
    "pgroonga_database",
    "pgrouting",
    "pgrowlocks",
    "pgsodium",
    "pgstattuple",
    "pgtap",
    "plpgsql",
    "plpgsql_check",
    "plv8",
    "postgis",
    "postgis_raster",
    "postgis_sfcgal",
    "postgis_tiger_geocoder",
    "postgis_topology",
    "postgres_fdw",
    "refint",
    "rum",
    "seg",
    "sslinfo",
    "supabase_vault",
    "tablefunc",
    "tcn",
    "timescaledb",
    "tsm_system_rows",
    "tsm_system_time",
    "unaccent",
    "uuid-ossp",
    "vector",
    "wrappers",
    "xml2",
];

/// Extensions that neither the owner nor the operator's list can enable: they read or damage files
/// of the server, bypass the rights of tables, or execute programs.
pub const FORBIDDEN: &[&str] = &[
    "adminpack",
    "amcheck",
    "file_fdw",
    "lo",
    "pageinspect",
    "pg_surgery",
    "pg_walinspect",
    "plperlu",
    "plpython2u",
    "plpython3u",
    "plpythonu",
    "plsh",
    "pltclu",
];

/// Extensions with a library that is loaded when the server starts, in the order of loading.
pub const PRELOADED: &[&str] = &["pg_stat_statements", "pgaudit", "pg_cron", "pg_net"];

/// Maximum size of the list of the operator, in bytes.
const LIST_BYTES_MAX: u64 = 64 << 10;
/// Maximum length of a name, in bytes, as of every identifier of PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

/// How an extension may be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtensionRule {
    /// By the owner of the project.
    Permitted,
    /// As its control file says: by the owner if it is trusted there.
    Unlisted,
    /// Never by the owner.
    Forbidden,
}

/// The permitted extensions of this data folder: Gantry's list and the operator's additions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtensionPolicy {
    added: BTreeSet<String>,
}

impl ExtensionPolicy {
    /// Reads the operator's additions from the data folder `home`. Invalid and forbidden names are
    /// ignored.
    pub fn read(home: &Path) -> Self {
        let text = files::read_bounded(&list_of(home), LIST_BYTES_MAX).unwrap_or_default();
        let names = text.lines().map(str::trim);
        let added = names
            .filter(|name| is_name(name) && !FORBIDDEN.contains(name))
            .map(str::to_owned)
            .collect();
        Self { added }
    }

    /// Adds a name to the operator's list in the data folder `home`, or removes it.
    pub fn change(home: &Path, name: &str, permitted: bool) -> Result<Self> {
        if !is_name(name) {
            return Err(ClusterError::NotInstalled(format!(
                "{name:?} is not the name of an extension"
            )));
        }
        if FORBIDDEN.contains(&name) {
            return Err(ClusterError::NotInstalled(format!(
                "{name} cannot be permitted: it gives access to files or programs of the server"
            )));
        }
        let mut policy = Self::read(home);
        if permitted {
            policy.added.insert(name.to_owned());
        } else {
            policy.added.remove(name);
        }
        policy.write(home)?;
        Ok(policy)
    }

    fn write(&self, home: &Path) -> Result<()> {
        let file = list_of(home);
        if let Some(folder) = file.parent() {
            files::make_dir(folder, 0o700)?;
        }
        let names: Vec<&str> = self.added.iter().map(String::as_str).collect();
        let text = format!("{}\n", names.join("\n"));
        files::replace(&file, &text, 0o600, ProcessOwner::own_account())
    }

    /// Returns how an extension may be created.
    pub fn rule(&self, name: &str) -> ExtensionRule {
        if FORBIDDEN.contains(&name) {
            ExtensionRule::Forbidden
        } else if PERMITTED.contains(&name) || self.added.contains(name) {
            ExtensionRule::Permitted
        } else {
            ExtensionRule::Unlisted
        }
    }

    /// The operator's additions.
    pub fn added(&self) -> impl Iterator<Item = &str> {
        self.added.iter().map(String::as_str)
    }
}

/// Returns the operator's folder with further extensions for a major version, in the data folder
/// `home`.
pub fn folder_of(home: &Path, major: u16) -> PathBuf {
    home.join("extensions").join(major.to_string())
}

fn list_of(home: &Path) -> PathBuf {
    home.join("extensions").join("permitted")
}

/// Returns whether a file of an extension is a library.
pub fn is_library(file: &str) -> bool {
    Path::new(file)
        .extension()
        .is_some_and(|suffix| suffix == "so")
}

/// Returns whether the text can be the name of an extension, and of its files.
pub fn is_name(name: &str) -> bool {
    let first = name.bytes().next();
    first.is_some_and(|first| first.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES_MAX
        && !name.contains("--")
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// Returns the text of a control file that makes the extension trusted, or not.
pub(super) fn with_trust(control: &str, trusted: bool) -> String {
    let is_trust = |line: &&str| {
        line.trim_start()
            .strip_prefix("trusted")
            .is_some_and(|rest| {
                rest.trim_start()
                    .starts_with(['=', 't', 'f', '\'', '1', '0'])
            })
    };
    let mut text = String::new();
    for line in control.lines().filter(|line| !is_trust(line)) {
        text.push_str(line);
        text.push('\n');
    }
    if trusted {
        text.push_str("trusted = true\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn no_extension_is_both_permitted_and_forbidden() {
        assert!(PERMITTED.iter().all(|name| !FORBIDDEN.contains(name)));
        assert!(PERMITTED.is_sorted() && FORBIDDEN.is_sorted());
        assert!(PERMITTED.iter().chain(FORBIDDEN).all(|name| is_name(name)));
        assert!(PRELOADED.iter().all(|name| PERMITTED.contains(name)));
    }

    #[test]
    fn control_file_gets_or_loses_trust() {
        let control = "# comment\ncomment = 'x'\ntrusted=false\nmodule_pathname = '$libdir/x'";
        let trusted = "# comment\ncomment = 'x'\nmodule_pathname = '$libdir/x'\ntrusted = true\n";
        assert_eq!(with_trust(control, true), trusted);
        assert_eq!(with_trust(trusted, true), trusted);
        assert!(!with_trust(trusted, false).contains("trusted"));
    }

    #[test]
    fn operator_list_is_kept_and_never_holds_forbidden_names() {
        let home = tempfile::tempdir().unwrap();
        ExtensionPolicy::change(home.path(), "h3", true).unwrap();
        ExtensionPolicy::change(home.path(), "prefix", true).unwrap();
        ExtensionPolicy::change(home.path(), "h3", false).unwrap();
        for bad in ["file_fdw", "", "../x", "a--b", "a b", "x;y"] {
            ExtensionPolicy::change(home.path(), bad, true).unwrap_err();
        }
        let mut text = fs::read_to_string(list_of(home.path())).unwrap();
        text.push_str("lo\n../../etc\n");
        fs::write(list_of(home.path()), text).unwrap();
        let policy = ExtensionPolicy::read(home.path());
        assert_eq!(policy.added().collect::<Vec<_>>(), ["prefix"]);
        assert_eq!(policy.rule("prefix"), ExtensionRule::Permitted);
        assert_eq!(policy.rule("lo"), ExtensionRule::Forbidden);
        assert_eq!(policy.rule("h3"), ExtensionRule::Unlisted);
    }
}
