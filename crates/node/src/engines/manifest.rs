//! The record of an engine that Gantry installed: `engine.json` in the engine's folder.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{At, ClusterError, Result},
    files,
};

/// Name of the file.
pub(super) const FILE: &str = "engine.json";
/// Maximum size of the file, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Levels between the folder of the programs and that of the file, at most:
/// `usr/lib/postgresql/17/bin`.
const DEPTH_MAX: usize = 6;

/// Source, version and content of an installed engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineManifest {
    /// The kind of source: `debian-13`, `npm` or `archive`.
    pub source: String,
    /// Version of PostgreSQL: `17.12`.
    pub version: String,
    /// Folder of the programs, relative to the engine's folder.
    pub programs: PathBuf,
    /// C library of the programs. Absent if they use that of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<EngineRuntime>,
    /// The packages of which it consists.
    pub packages: Vec<InstalledPackage>,
    /// The folder of the file. Not part of it, so that the engine can be moved.
    #[serde(skip)]
    pub(super) folder: PathBuf,
}

/// The C library of an engine. Paths are relative to the engine's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRuntime {
    /// The dynamic loader.
    pub loader: PathBuf,
    /// Folder of the shared libraries.
    pub libraries: PathBuf,
}

/// A package of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledPackage {
    /// Name in its registry.
    pub name: String,
    /// Version in its registry.
    pub version: String,
    /// Digest of its archive: `sha256:` and hexadecimal digits, or `sha512-` and Base64.
    pub digest: String,
}

impl EngineManifest {
    /// Reads the record of an engine folder. `None` if there is none, or an invalid one.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let text = files::read_bounded(&folder.join(FILE), BYTES_MAX).ok()?;
        let mut manifest: Self = serde_json::from_str(&text).ok()?;
        let mut paths = vec![&manifest.programs];
        if let Some(runtime) = &manifest.runtime {
            paths.extend([&runtime.loader, &runtime.libraries]);
        }
        if !paths.into_iter().all(|path| is_inside(path)) {
            return None;
        }
        folder.clone_into(&mut manifest.folder);
        Some(manifest)
    }

    /// Reads the record of the engine with this folder of programs.
    pub(super) fn above(programs: &Path) -> Option<Self> {
        let mut folders = programs.ancestors().take(DEPTH_MAX);
        let found = folders.find_map(Self::of);
        found.filter(|manifest| manifest.folder.join(&manifest.programs) == programs)
    }

    /// Writes the record into an engine folder that is not in use yet.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let file = folder.join(FILE);
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| ClusterError::NotInstalled(error.to_string()))?;
        fs::write(&file, text + "\n").at("writing", &file)
    }
}

/// Returns whether a relative path stays below its folder.
pub(super) fn is_inside(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
}
