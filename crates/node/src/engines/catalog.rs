//! The PostgreSQL installations of this machine, one for each major version, and the versions that
//! are offered to new projects.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use gantry_base::clock::Entropy;

use super::{engine::Engine, engine_error::EngineError, layout::LayoutOptions};
use crate::{
    engines::{layout, manifest::EngineManifest},
    error::ClusterError,
    files,
};

/// Folders of distributions with one folder for each major version, and the prefix of its name.
const PLACES: [(&str, &str); 2] = [("/usr/lib/postgresql", ""), ("/usr", "pgsql-")];
/// The first major version in which roles cannot escalate their privileges. In earlier versions a
/// role with CREATEROLE can join any role that is not a superuser, including the predefined roles
/// that run programs and write files of the server.
const SAFE_MAJOR: u16 = 16;
/// The default major version of new projects, if it is installed.
pub const DEFAULT_MAJOR: u16 = 17;

/// Extensions that existing applications use most and that are not part of PostgreSQL. Of two
/// installations of one version, the one with more of them is used.
const PREFERRED: [&str; 3] = ["vector", "pg_cron", "postgis"];

/// Use of versions before 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldVersions {
    /// Not offered. Existing projects continue to run.
    Existing,
    /// Offered, by the operator's choice.
    Offered,
    /// Neither offered nor started, because there is no sandbox to contain them.
    Unusable,
}

/// All installations of the machine, offered or not. At least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    engines: Vec<Engine>,
    /// Whether the operator configured the first one.
    named: bool,
}

impl Installed {
    /// Finds the installations. The first is that of [`Engine::find`]. For each other major version
    /// follows that of the distribution, else that of `gantry engine install` in `installed`. Of
    /// two for one version, the one with more of the preferred extensions comes first, unless
    /// `explicit` names the other.
    pub fn find(explicit: Option<&Path>, installed: &Path) -> Result<Self, EngineError> {
        let mut engines = match Engine::find(explicit) {
            Ok(engine) => vec![engine],
            Err(EngineError::NotFound { looked }) if explicit.is_none() => {
                match newest(installed) {
                    Some(engine) => vec![engine],
                    None => return Err(EngineError::NotFound { looked }),
                }
            }
            Err(error) => return Err(error),
        };
        let places = PLACES
            .iter()
            .map(|(root, prefix)| (Path::new(root), *prefix))
            .chain([(installed, "")]);
        for (root, prefix) in places {
            for engine in engines_in(root, prefix) {
                let known = engines
                    .iter_mut()
                    .find(|known| known.major() == engine.major());
                match known {
                    None => engines.push(engine),
                    Some(known) => {
                        let is_named =
                            explicit.is_some_and(|_| known.bin_dir() == named_dir(explicit));
                        if !is_named && richness(&engine) > richness(known) {
                            *known = engine;
                        }
                    }
                }
            }
        }
        engines[1..].sort_by_key(Engine::major);
        Ok(Self {
            engines,
            named: explicit.is_some(),
        })
    }

    /// Returns whether an installation of this major version has the extension `vector`.
    pub fn has_vector(&self, major: u16) -> bool {
        let mut engines = self.engines.iter();
        engines.any(|engine| engine.major() == major && engine.has_extension("vector"))
    }

    /// Makes a layout of each installation, in which the permitted extensions can be created.
    /// Installations without one are kept if they run without it, with a warning in the log.
    #[must_use]
    pub fn laid_out(self, options: &LayoutOptions, entropy: &Entropy) -> Self {
        let mut engines = Vec::new();
        for engine in self.engines {
            match layout::lay_out(&engine, options, entropy) {
                Ok(laid_out) if laid_out.layout().is_some() || engine.runs_alone() => {
                    engines.push(laid_out);
                }
                Ok(_) => tracing::warn!(%engine, "its folders were not found; it is not used"),
                Err(error) => {
                    tracing::warn!(%engine, %error, "its extensions could not be prepared");
                    if engine.runs_alone() || engines.is_empty() {
                        engines.push(engine);
                    }
                }
            }
        }
        Self { engines, ..self }
    }

    /// Removes layouts that have not been used for a day, in the data folder of this process.
    pub fn remove_unused_layouts(
        &self,
        options: &LayoutOptions,
        now: SystemTime,
    ) -> Result<(), ClusterError> {
        let used: Vec<&Engine> = self.engines.iter().collect();
        layout::remove_unused(&options.dir, &used, now)
    }

    /// All installations, in the order of [`Self::find`].
    pub fn all(&self) -> &[Engine] {
        &self.engines
    }

    /// Returns the installation for a data directory: of the major version that created it, else
    /// the first.
    pub fn fitting(&self, data: &Path) -> &Engine {
        fitting(&self.engines, data).unwrap_or(&self.engines[0])
    }

    /// Selects the installations for projects. Fails if none is offered to new projects.
    pub fn offer(self, old: OldVersions) -> Result<Engines, EngineError> {
        let Self {
            engines: mut installed,
            named,
        } = self;
        let first = installed[0].clone();
        if old == OldVersions::Unusable {
            installed.retain(|engine| engine.major() >= SAFE_MAJOR);
        }
        let mut offered: Vec<_> = installed
            .iter()
            .filter(|engine| engine.major() >= SAFE_MAJOR || old == OldVersions::Offered)
            .cloned()
            .collect();
        // The default comes first: the configured one, else 17, else the newest.
        offered.sort_by_key(|engine| {
            let rank = (
                named && *engine == first,
                engine.major() == DEFAULT_MAJOR,
                engine.major(),
            );
            std::cmp::Reverse(rank)
        });
        if offered.is_empty() {
            Err(EngineError::NoneForProjects {
                found: first.text().to_owned(),
            })
        } else {
            Ok(Engines { installed, offered })
        }
    }
}

/// The installations that projects run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engines {
    /// For existing projects.
    installed: Vec<Engine>,
    /// For new projects. At least one; the first is the default.
    offered: Vec<Engine>,
}

impl Engines {
    /// Offers a single installation of any version.
    pub fn only(engine: Engine) -> Self {
        Self {
            installed: vec![engine.clone()],
            offered: vec![engine],
        }
    }

    /// The default version of new projects.
    pub fn default_engine(&self) -> &Engine {
        &self.offered[0]
    }

    /// The installations for new projects, the default first.
    pub fn offered(&self) -> &[Engine] {
        &self.offered
    }

    /// The installation of a major version, offered or not.
    pub fn of_major(&self, major: u16) -> Option<&Engine> {
        self.installed.iter().find(|engine| engine.major() == major)
    }

    /// Returns the installation for a data directory: of the major version that created it, else
    /// the default.
    pub fn fitting(&self, data: &Path) -> &Engine {
        fitting(&self.installed, data).unwrap_or(self.default_engine())
    }
}

fn fitting<'a>(engines: &'a [Engine], data: &Path) -> Option<&'a Engine> {
    let made_by = files::read_untrusted(&data.join("PG_VERSION"), 16)
        .ok()?
        .trim()
        .parse::<u16>()
        .ok()?;
    engines.iter().find(|engine| engine.major() == made_by)
}

/// Returns the engines in `<root>/<prefix>*/bin`, newest first, without broken or too old ones.
fn engines_in(root: &Path, prefix: &str) -> Vec<Engine> {
    let named = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(prefix));
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let entries = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(named);
    let mut engines: Vec<_> = entries
        .filter_map(|entry| Engine::find(Some(&programs_in(&entry.path()))).ok())
        .collect();
    engines.sort_by(|a, b| {
        let richness = richness(b).cmp(&richness(a));
        b.major()
            .cmp(&a.major())
            .then(richness)
            .then(b.cmp_version(a))
    });
    engines
}

/// Returns the folder of the programs of an engine folder.
fn programs_in(folder: &Path) -> PathBuf {
    EngineManifest::of(folder).map_or_else(
        || folder.join("bin"),
        |manifest| folder.join(manifest.programs),
    )
}

/// Returns how many of the preferred extensions an installation has.
fn richness(engine: &Engine) -> usize {
    PREFERRED
        .iter()
        .filter(|name| engine.has_extension(name))
        .count()
}

fn named_dir(explicit: Option<&Path>) -> PathBuf {
    explicit
        .and_then(|dir| dir.canonicalize().ok())
        .unwrap_or_default()
}

fn newest(root: &Path) -> Option<Engine> {
    engines_in(root, "").into_iter().next()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

    use super::*;

    fn fake(root: &Path, name: &str, version: &str) -> PathBuf {
        let bin = root.join(name).join("bin");
        fs::create_dir_all(&bin).unwrap();
        for name in ["postgres", "initdb"] {
            let program = bin.join(name);
            fs::write(
                &program,
                format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n"),
            )
            .unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        bin
    }

    #[test]
    fn find_lists_each_major_once_and_explicit_engine_first() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("installed");
        for version in ["97.9", "97.10", "98.1", "12.0"] {
            fake(&folder, version, version);
        }
        // An installation in progress.
        fake(&folder, ".unpacking-abcdefgh", "99.1");
        let explicit = fake(root.path(), "mine", "96.7");
        let found = Installed::find(Some(&explicit), &folder).unwrap();
        let engines = found.offer(OldVersions::Existing).unwrap();
        assert_eq!(engines.default_engine().text(), "96.7");
        let text = |major| engines.of_major(major).map(Engine::text);
        assert_eq!(
            (text(99), text(98), text(97), text(96), text(12)),
            (None, Some("98.1"), Some("97.10"), Some("96.7"), None)
        );

        let data = root.path().join("data");
        fs::create_dir(&data).unwrap();
        for (made_by, fits) in [
            ("97\n", "97.10"),
            ("98\n", "98.1"),
            ("12\n", "96.7"),
            ("junk", "96.7"),
        ] {
            fs::write(data.join("PG_VERSION"), made_by).unwrap();
            assert_eq!(engines.fitting(&data).text(), fits, "{made_by}");
        }
    }

    #[test]
    fn installation_with_more_extensions_is_preferred() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("installed");
        for (name, version) in [("97.9", "97.9"), ("97.10", "97.10"), ("98.1", "98.1")] {
            fake(&folder, name, version);
        }
        let share = folder.join("97.9/share");
        fs::create_dir_all(share.join("extension")).unwrap();
        fs::write(share.join("postgres.bki"), "").unwrap();
        fs::write(share.join("extension/vector.control"), "").unwrap();
        let explicit = folder.join("98.1/bin");
        let found = Installed::find(Some(&explicit), &folder).unwrap();
        assert!(found.has_vector(97) && !found.has_vector(98));
        let named = Installed::find(Some(&folder.join("97.10/bin")), &folder).unwrap();
        let text = |found: Installed| {
            let engines = found.offer(OldVersions::Existing).unwrap();
            engines.of_major(97).unwrap().text().to_owned()
        };
        assert_eq!((text(found), text(named)), ("97.9".into(), "97.10".into()));
    }

    #[test]
    fn offer_defaults_to_17_and_excludes_15_by_default() {
        use OldVersions::{Existing, Offered, Unusable};

        let root = tempfile::tempdir().unwrap();
        let engine =
            |version: &str| Engine::find(Some(&fake(root.path(), version, version))).unwrap();
        let installed = |versions: &[&str], named| Installed {
            engines: versions.iter().map(|version| engine(version)).collect(),
            named,
        };
        let offered = |versions: &[&str], named, old| {
            let engines = installed(versions, named).offer(old).ok()?;
            Some(
                engines
                    .offered()
                    .iter()
                    .map(|engine| engine.major().to_string())
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        let cases: &[(&[&str], bool, OldVersions, Option<&str>)] = &[
            (
                &["15.1", "16.1", "17.1", "18.1"],
                false,
                Existing,
                Some("17 18 16"),
            ),
            (&["15.1", "16.1", "18.1"], false, Existing, Some("18 16")),
            (&["15.1", "17.1"], false, Offered, Some("17 15")),
            (&["15.1", "17.1"], true, Offered, Some("15 17")),
            (&["16.1", "17.1"], true, Existing, Some("16 17")),
            (&["15.1", "17.1"], true, Existing, Some("17")),
            (&["15.1"], false, Existing, None),
            (&["15.1"], false, Offered, Some("15")),
            (&["15.1"], false, Unusable, None),
        ];
        for (versions, named, old, expected) in cases {
            assert_eq!(
                offered(versions, *named, *old).as_deref(),
                *expected,
                "{versions:?} {named} {old:?}"
            );
        }
        let old = |old| {
            installed(&["15.1", "17.1"], false)
                .offer(old)
                .unwrap()
                .of_major(15)
                .is_some()
        };
        assert!(old(Existing), "projects that have 15 keep it");
        assert!(!old(Unusable), "without a sandbox nothing starts on 15");
        let refused = installed(&["15.1"], false)
            .offer(Existing)
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("gantry engine install 17") && refused.contains("--allow-postgres-15"),
            "{refused}"
        );
    }

    #[test]
    fn prerelease_has_channel_beta() {
        let root = tempfile::tempdir().unwrap();
        let channel = |version: &str| {
            Engine::find(Some(&fake(root.path(), version, version)))
                .unwrap()
                .channel()
        };
        assert_eq!((channel("15.1"), channel("17beta1")), ("ga", "beta"));
    }
}
