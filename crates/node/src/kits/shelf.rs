//! Where kits are found: in the folder of the operator, then in the data folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::service::Service;
use crate::kits::{
    kit::{InstalledKit, KitError, at},
    schema_diff::{self, SchemaDiffKit},
};

/// Prefix of unfinished installations.
pub(super) const UNFINISHED: &str = ".";
/// Largest number of versions of a kit that are considered.
const VERSIONS_MAX: usize = 1000;

/// The folders that contain kits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KitShelf {
    /// The operator's folder: `<service>/<version>/<os>-<arch>` or `<service>/<version>`.
    own: Option<PathBuf>,
    /// The data folder's: `<service>/<version>`.
    installed: Option<PathBuf>,
}

/// A version of a kit, usable or not.
#[derive(Debug)]
pub struct KitVersion {
    /// The service.
    pub service: Service,
    /// The name of its folder.
    pub version: String,
    /// The kit, or the reason why it cannot be used.
    pub kit: Result<InstalledKit, KitError>,
}

impl KitShelf {
    /// A shelf with these folders, which need not exist.
    pub fn new(own: Option<PathBuf>, installed: PathBuf) -> Self {
        Self {
            own,
            installed: Some(installed),
        }
    }

    /// Returns the newest usable kit of a service: the operator's before installed ones. `None` if
    /// there is no folder of the service.
    ///
    /// Errors: the problem of the newest version, if none is usable.
    pub fn find(&self, service: Service) -> Result<Option<InstalledKit>, KitError> {
        self.find_unless(service, |_| false)
    }

    /// Does [`Self::find`], and prefers versions that are not `left`.
    pub fn find_unless(
        &self,
        service: Service,
        left: impl Fn(&str) -> bool,
    ) -> Result<Option<InstalledKit>, KitError> {
        let (mut problem, mut other) = (None, None);
        for version in self.list_service(service)? {
            match version.kit {
                Ok(kit) if left(&kit.version) => other = other.or(Some(kit)),
                Ok(kit) => return Ok(Some(kit)),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        match (other, problem) {
            (Some(kit), _) => Ok(Some(kit)),
            (None, problem) => problem.map_or(Ok(None), Err),
        }
    }

    /// Returns all versions of all services, the preferred version of each service first.
    pub fn list(&self) -> Result<Vec<KitVersion>, KitError> {
        let mut all = Vec::new();
        for service in Service::WITH_PROGRAMS {
            all.extend(self.list_service(service)?);
        }
        Ok(all)
    }

    /// Returns the kit that compares schemas, verified. `None` if it is not installed. Blocks.
    pub fn find_diff(&self) -> Result<Option<SchemaDiffKit>, KitError> {
        for folder in self.own.iter().chain(&self.installed) {
            if let Some(kit) = schema_diff::find(folder)? {
                return Ok(Some(kit));
            }
        }
        Ok(None)
    }

    fn list_service(&self, service: Service) -> Result<Vec<KitVersion>, KitError> {
        let platform = format!("{}-{}", std::env::consts::OS, architecture());
        let mut all = Vec::new();
        for folder in self.own.iter().chain(&self.installed) {
            let folder = folder.join(service.name());
            for version in versions(&folder)? {
                let place = folder.join(&version);
                let inner = place.join(&platform);
                let place = if inner.is_dir() { inner } else { place };
                all.push(KitVersion {
                    service,
                    kit: InstalledKit::open(service, &version, &place),
                    version,
                });
            }
        }
        Ok(all)
    }
}

/// Returns the name of this machine's processor in archives: `x64` or `arm64`.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the versions in the folder of a service, newest first.
fn versions(folder: &Path) -> Result<Vec<String>, KitError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(at(folder))?,
    };
    let mut all = Vec::new();
    for entry in entries.take(VERSIONS_MAX) {
        let entry = entry.map_err(at(folder))?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if !name.is_empty() && !name.starts_with(UNFINISHED) && entry.path().is_dir() {
            all.push(name);
        }
    }
    all.sort_by_cached_key(|version| std::cmp::Reverse(numbers(version)));
    Ok(all)
}

/// Returns the numbers of a version, by which versions are ordered.
fn numbers(version: &str) -> (Vec<u64>, String) {
    let numbers = version
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    (numbers, version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_comes_first_and_unfinished_ones_are_ignored() {
        let place = tempfile::tempdir().unwrap();
        for version in ["12.0.2-2", "12.0.10-1", "9.9", "13.0.0", ".unpacking-x"] {
            fs::create_dir(place.path().join(version)).unwrap();
        }
        fs::write(place.path().join("14.0.0"), "a file").unwrap();
        assert_eq!(
            versions(place.path()).unwrap(),
            ["13.0.0", "12.0.10-1", "12.0.2-2", "9.9"]
        );
        assert!(versions(&place.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn usable_older_version_replaces_a_broken_newer_one() {
        let place = tempfile::tempdir().unwrap();
        let shelf = KitShelf::new(None, place.path().to_owned());
        assert!(shelf.find(Service::Rest).unwrap().is_none());
        fs::create_dir_all(place.path().join("rest/2.0")).unwrap();
        assert!(shelf.find(Service::Rest).is_err(), "no program");
        let bin = place.path().join("rest/1.0/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy("/bin/true", bin.join("postgrest")).unwrap();
        assert_eq!(shelf.find(Service::Rest).unwrap().unwrap().version, "1.0");
    }
}
