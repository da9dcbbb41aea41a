//! The PostgreSQL installations of this machine: one for each major version, and one of them for whoever names none.

use std::{fs, path::Path};

use super::{Engine, EngineError, files};

/// Where distributions keep one folder for each major version, and what in it holds the programs.
const PLACES: [(&str, &str); 2] = [("/usr/lib/postgresql", ""), ("/usr", "pgsql-")];

/// At least one installation; the first is the default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engines(Vec<Engine>);

impl Engines {
    /// The installation that [`Engine::find`] finds is the default. Beside it stands, for each other major version, what the
    /// distribution has, or else what `gantry engine install` put into `installed`.
    pub fn find(explicit: Option<&Path>, installed: &Path) -> Result<Self, EngineError> {
        let mut engines = match Engine::find(explicit) {
            Ok(engine) => vec![engine],
            Err(EngineError::NotFound { looked }) if explicit.is_none() => match newest(installed) {
                Some(engine) => vec![engine],
                None => return Err(EngineError::NotFound { looked }),
            },
            Err(error) => return Err(error),
        };
        let places = PLACES.iter().map(|(root, prefix)| (Path::new(root), *prefix)).chain([(installed, "")]);
        for (root, prefix) in places {
            for engine in engines_in(root, prefix) {
                if engines.iter().all(|known| known.major() != engine.major()) {
                    engines.push(engine);
                }
            }
        }
        engines[1..].sort_by_key(Engine::major);
        Ok(Self(engines))
    }

    /// This one alone.
    pub fn only(engine: Engine) -> Self {
        Self(vec![engine])
    }

    /// For who names none.
    pub fn default_engine(&self) -> &Engine {
        &self.0[0]
    }

    /// All of them, the default first.
    pub fn all(&self) -> &[Engine] {
        &self.0
    }

    /// The one of a major version.
    pub fn of_major(&self, major: u16) -> Option<&Engine> {
        self.0.iter().find(|engine| engine.major() == major)
    }

    /// The one for a data directory: of the major version that made it, or the default if there is none such.
    pub fn fitting(&self, data: &Path) -> &Engine {
        let made_by = files::read_untrusted(&data.join("PG_VERSION"), 16).ok().and_then(|text| text.trim().parse().ok());
        made_by.and_then(|major| self.of_major(major)).unwrap_or(self.default_engine())
    }

    /// Those whose owner role stays inside without a sandbox, too: before 16 whoever may create roles may become any role,
    /// also one that runs programs. None if there is none.
    pub fn safe_without_sandbox(&self) -> Option<Self> {
        let safe: Vec<_> = self.0.iter().filter(|engine| engine.major() >= 16).cloned().collect();
        (!safe.is_empty()).then_some(Self(safe))
    }
}

/// Engines in `<root>/<prefix>*/bin`, newest first. What is broken or too old is passed by.
fn engines_in(root: &Path, prefix: &str) -> Vec<Engine> {
    let named = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(prefix));
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let entries = fs::read_dir(root).into_iter().flatten().flatten().filter(named);
    let mut engines: Vec<_> = entries.filter_map(|entry| Engine::find(Some(&entry.path().join("bin"))).ok()).collect();
    engines.sort_by(|a, b| b.cmp_version(a));
    engines
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
            fs::write(&program, format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        bin
    }

    #[test]
    fn there_is_one_for_each_major_and_the_named_one_is_the_default() {
        let root = tempfile::tempdir().unwrap();
        let installed = root.path().join("installed");
        for version in ["97.9", "97.10", "98.1", "12.0"] {
            fake(&installed, version, version);
        }
        let explicit = fake(root.path(), "mine", "98.7");
        let engines = Engines::find(Some(&explicit), &installed).unwrap();
        assert_eq!(engines.default_engine().text(), "98.7");
        let text = |major| engines.of_major(major).map(Engine::text);
        assert_eq!((text(98), text(97), text(12)), (Some("98.7"), Some("97.10"), None));

        let data = root.path().join("data");
        fs::create_dir(&data).unwrap();
        for (made_by, fits) in [("97\n", "97.10"), ("98\n", "98.7"), ("12\n", "98.7"), ("junk", "98.7")] {
            fs::write(data.join("PG_VERSION"), made_by).unwrap();
            assert_eq!(engines.fitting(&data).text(), fits, "{made_by}");
        }
    }

    #[test]
    fn without_a_sandbox_only_newer_ones_are_left() {
        let root = tempfile::tempdir().unwrap();
        let old = Engine::find(Some(&fake(root.path(), "old", "15.1"))).unwrap();
        let new = Engine::find(Some(&fake(root.path(), "new", "17beta1"))).unwrap();
        assert_eq!(Engines::only(old.clone()).safe_without_sandbox(), None);
        let both = Engines(vec![old, new.clone()]);
        assert_eq!(both.safe_without_sandbox(), Some(Engines::only(new.clone())));
        assert_eq!((both.default_engine().channel(), new.channel()), ("ga", "beta"));
    }
}
