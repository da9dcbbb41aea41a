//! Extensions that come with Gantry: scripts without a library, with the interface of
//! extensions that the engines lack (decision 0096).
//!
//! A layout contains them unless the engine or the operator has an extension of that name.

use std::collections::BTreeSet;

use crate::engines::extensions::with_trust;

/// An extension of one script.
#[derive(Debug)]
pub struct BundledExtension {
    /// Name of the extension.
    pub name: &'static str,
    /// The default version. The script has its interface.
    pub version: &'static str,
    control: &'static str,
    script: &'static str,
    /// An extension that the script needs. Without it this one is left out.
    pub requires: Option<&'static str>,
    /// Further versions that can be named, as in `create extension … version '0.7.1'`. They have
    /// the same contents.
    versions: &'static [&'static str],
}

macro_rules! bundled {
    ($name:literal, $version:literal, $requires:expr, $versions:expr) => {
        BundledExtension {
            name: $name,
            version: $version,
            control: include_str!(concat!("recipes/bundled/", $name, ".control")),
            script: include_str!(concat!("recipes/bundled/", $name, ".sql")),
            requires: $requires,
            versions: &$versions,
        }
    };
}

/// All bundled extensions. Versions are those that migrations of applications name, as tools that
/// compare databases write them.
pub const BUNDLED: &[BundledExtension] = &[
    bundled!(
        "index_advisor",
        "0.2.0",
        Some("hypopg"),
        ["0.1.0", "0.1.1", "0.1.2"]
    ),
    bundled!(
        "pg_graphql",
        "1.5.11",
        None,
        [
            "0.2.1", "0.3.1", "0.4.0", "0.4.1", "0.5.0", "1.0.0", "1.0.2", "1.1.0", "1.2.0",
            "1.2.2", "1.2.3", "1.3.0", "1.4.0", "1.4.1", "1.4.2", "1.4.4", "1.5.0", "1.5.1",
            "1.5.3", "1.5.4", "1.5.6", "1.5.7", "1.5.9", "1.5.12"
        ]
    ),
    bundled!("pg_hashids", "1.3", None, ["1.0", "1.1", "1.2", "1.2.1"]),
    bundled!(
        "pg_jsonschema",
        "0.3.3",
        None,
        [
            "0.1.0", "0.1.3", "0.1.4", "0.2.0", "0.3.0", "0.3.1", "0.3.2", "0.3.4"
        ]
    ),
    bundled!(
        "pg_net",
        "0.19.5",
        None,
        [
            "0.1", "0.2", "0.3", "0.4", "0.5", "0.5.1", "0.6", "0.6.1", "0.7", "0.7.1", "0.7.2",
            "0.7.3", "0.8.0", "0.9.1", "0.9.2", "0.9.3", "0.10.0", "0.11.0", "0.12.0", "0.13.0",
            "0.14.0", "0.15.0", "0.16.0", "0.17.0", "0.18.0", "0.19.0", "0.19.1", "0.19.2",
            "0.19.3", "0.19.4", "0.19.6", "0.19.7", "0.20.0"
        ]
    ),
    bundled!("pgjwt", "0.2.0", None, ["0.1.0", "0.1.1"]),
    bundled!(
        "pgmq",
        "1.5.1",
        None,
        [
            "1.4.0", "1.4.1", "1.4.2", "1.4.3", "1.4.4", "1.4.5", "1.5.0"
        ]
    ),
];

impl BundledExtension {
    /// Returns names and texts of the files: the control file, which makes the extension trusted if
    /// `trusted`, the script, and empty updates between the versions.
    pub fn files(&self, trusted: bool) -> Vec<(String, String)> {
        let Self { name, version, .. } = self;
        let mut files = vec![
            (format!("{name}.control"), with_trust(self.control, trusted)),
            (format!("{name}--{version}.sql"), self.script.to_owned()),
        ];
        for other in self.versions {
            for (from, to) in [(version, other), (other, version)] {
                let update = format!("-- The contents are those of {version}.\n");
                files.push((format!("{name}--{from}--{to}.sql"), update));
            }
        }
        files
    }
}

/// Returns the bundled extensions that a folder with files of the given names lacks, and can have.
pub fn missing_from(files: &BTreeSet<&str>) -> Vec<&'static BundledExtension> {
    let has = |extension: &str| files.contains(format!("{extension}.control").as_str());
    let mut missing = Vec::new();
    for extension in BUNDLED {
        if !has(extension.name) && extension.requires.is_none_or(has) {
            missing.push(extension);
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::extensions::PERMITTED;

    #[test]
    fn control_files_name_the_version_and_what_the_script_needs() {
        for extension in BUNDLED {
            let name = extension.name;
            assert!(PERMITTED.contains(&name), "{name}");
            let version = format!("default_version = '{}'\n", extension.version);
            assert!(extension.control.contains(&version), "{name}");
            let requires = extension.control.contains("requires");
            assert_eq!(requires, extension.requires.is_some(), "{name}");
            assert!(!extension.versions.contains(&extension.version), "{name}");
            // Statements that would take over objects of the tenant.
            let script = extension.script.to_lowercase();
            assert!(!script.contains("or replace"), "{name}");
            let files = extension.files(true);
            let unique: BTreeSet<_> = files.iter().map(|(file, _)| file).collect();
            assert_eq!(unique.len(), files.len(), "{name}");
        }
        assert!(BUNDLED.is_sorted_by_key(|extension| extension.name));
    }

    #[test]
    fn extension_of_the_engine_comes_before_the_bundled_one() {
        let names = |files: &[&str]| -> Vec<&str> {
            let files = files.iter().copied().collect();
            let missing = missing_from(&files);
            missing.iter().map(|extension| extension.name).collect()
        };
        assert!(!names(&[]).contains(&"index_advisor"));
        assert!(names(&[]).contains(&"pgmq"));
        let found = names(&["hypopg.control", "pgmq.control"]);
        assert!(found.contains(&"index_advisor"));
        assert!(!found.contains(&"pgmq"));
    }
}
