//! Finds a PostgreSQL installation and its version.

use std::{
    cmp::Reverse,
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::engines::{
    engine_error::{EngineError, OLDEST_MAJOR},
    extensions::PRELOADED,
    layout::EngineLayout,
    manifest::EngineManifest,
};

/// Directory of Debian and its derivatives with one directory per major version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A PostgreSQL installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    bin_dir: PathBuf,
    version: Version,
    /// The record of its installation, unless a distribution or the operator installed it.
    manifest: Option<EngineManifest>,
    /// The copy that servers run.
    layout: Option<EngineLayout>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u16,
    /// Everything as printed: `15.18`, `17beta1`.
    text: String,
}

impl Engine {
    /// Returns the installation in `explicit`, else the newest under `/usr/lib/postgresql`, else
    /// the first on `PATH`.
    pub fn find(explicit: Option<&Path>) -> Result<Self, EngineError> {
        if let Some(dir) = explicit {
            return if complete(dir) {
                Self::open(dir)
            } else {
                Err(EngineError::NotFound {
                    looked: dir.display().to_string(),
                })
            };
        }
        let on_path = env::var_os("PATH").unwrap_or_default();
        let candidates = debian_dirs(Path::new(DEBIAN))
            .into_iter()
            .chain(env::split_paths(&on_path));
        match candidates.into_iter().find(|dir| complete(dir)) {
            Some(dir) => Self::open(&dir),
            None => Err(EngineError::NotFound {
                looked: format!("{DEBIAN}/*/bin and PATH"),
            }),
        }
    }

    fn open(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join("postgres");
        let broken = |problem: String| EngineError::Broken {
            path: path.clone(),
            problem,
        };
        // The sandbox grants real paths, so links are resolved once, here.
        let bin_dir = dir.canonicalize().map_err(|e| broken(e.to_string()))?;
        let manifest = EngineManifest::above(&bin_dir);
        let recorded = manifest.as_ref().and_then(|manifest| {
            // Programs with their own C library only run from a layout.
            manifest.runtime.as_ref()?;
            Version::of(&manifest.version)
        });
        let version = if let Some(version) = recorded {
            version
        } else {
            let output = Command::new(&path)
                .arg("--version")
                .output()
                .map_err(|e| broken(e.to_string()))?;
            let said = String::from_utf8_lossy(&output.stdout);
            Version::parse(&said).ok_or_else(|| broken(format!("it said {:?}", said.trim())))?
        };
        if version.major < OLDEST_MAJOR {
            return Err(EngineError::TooOld {
                path,
                version: version.text,
            });
        }
        Ok(Self {
            bin_dir,
            version,
            manifest,
            layout: None,
        })
    }

    /// Returns this installation with the copy that servers run.
    pub(super) fn laid_out(self, layout: EngineLayout) -> Self {
        Self {
            layout: Some(layout),
            ..self
        }
    }

    /// The record of its installation.
    pub fn manifest(&self) -> Option<&EngineManifest> {
        self.manifest.as_ref()
    }

    /// The copy that servers run, if one was made.
    pub fn layout(&self) -> Option<&EngineLayout> {
        self.layout.as_ref()
    }

    /// Returns whether its programs run without a layout.
    pub fn runs_alone(&self) -> bool {
        self.manifest
            .as_ref()
            .is_none_or(|manifest| manifest.runtime.is_none())
    }

    /// Returns where it came from: `debian-13`, `npm`, `archive`, or `system`.
    pub fn origin(&self) -> &str {
        self.manifest
            .as_ref()
            .map_or("system", |manifest| &manifest.source)
    }

    /// Returns the folder of its extensions' control files, if it is found.
    pub fn extensions_dir(&self) -> Option<PathBuf> {
        if let Some(layout) = &self.layout {
            return Some(layout.extensions().to_owned());
        }
        super::layout::share_dir(&self.bin_dir, self.major()).map(|share| share.join("extension"))
    }

    /// Returns the folder of its extensions' libraries, if it is found.
    pub fn libraries_dir(&self) -> Option<PathBuf> {
        if let Some(layout) = &self.layout {
            return Some(layout.libraries().to_owned());
        }
        super::layout::library_dir(&self.bin_dir)
    }

    /// Returns whether it has `pg_upgrade` and the client programs, of its own or added.
    pub fn has_client_programs(&self) -> bool {
        self.tools_dir().is_some() || self.program("pg_upgrade").is_file()
    }

    /// Returns the folder of client programs that were added to it.
    pub fn tools_dir(&self) -> Option<PathBuf> {
        super::tools::programs_of(self)
    }

    /// Returns whether the files of an extension are installed.
    pub fn has_extension(&self, name: &str) -> bool {
        self.extensions_dir()
            .is_some_and(|dir| dir.join(format!("{name}.control")).is_file())
    }

    /// Returns the libraries to load at the start of a server: the installed ones of
    /// [`PRELOADED`]. None without a layout.
    pub fn preload(&self) -> Vec<&'static str> {
        let Some(layout) = &self.layout else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for name in PRELOADED {
            let library = layout.libraries().join(format!("{name}.so"));
            if library.is_file() && self.has_extension(name) {
                found.push(*name);
            }
        }
        found
    }

    /// Returns the release channel: `ga`, or `beta` for a version before the first release.
    pub fn channel(&self) -> &'static str {
        // Versions of releases have digits and dots only, unlike `17beta1`, `17rc1` and `18devel`.
        if self
            .version
            .text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
        {
            "ga"
        } else {
            "beta"
        }
    }

    /// Compares two installations by version.
    pub(super) fn cmp_version(&self, other: &Self) -> std::cmp::Ordering {
        let minor = |engine: &Self| {
            engine
                .text()
                .split('.')
                .nth(1)
                .and_then(|minor| minor.parse::<u32>().ok())
        };
        (self.major(), minor(self)).cmp(&(other.major(), minor(other)))
    }

    /// Major version: `15`.
    pub fn major(&self) -> u16 {
        self.version.major
    }

    /// Version as text: `15.18`.
    pub fn text(&self) -> &str {
        &self.version.text
    }

    /// Directory of the server programs, without symbolic links.
    pub fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    /// Path of one of its programs, in the layout if there is one.
    pub fn program(&self, name: &str) -> PathBuf {
        let layout = self.layout.as_ref();
        layout
            .map_or(self.bin_dir.as_path(), EngineLayout::programs)
            .join(name)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PostgreSQL {} in {}",
            self.text(),
            self.bin_dir.display()
        )
    }
}

impl Version {
    /// Reads `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
    fn parse(line: &str) -> Option<Self> {
        let text = line
            .split_once("(PostgreSQL) ")?
            .1
            .split_whitespace()
            .next()?;
        Self::of(text)
    }

    /// Reads `15.18` or `18beta1`.
    fn of(text: &str) -> Option<Self> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        Some(Self {
            major: text[..digits].parse().ok()?,
            text: text.to_owned(),
        })
    }
}

/// Returns whether both server programs exist. A client-only package creates the same directory.
fn complete(dir: &Path) -> bool {
    ["postgres", "initdb"]
        .iter()
        .all(|name| dir.join(name).is_file())
}

/// Returns the directories `<root>/<major>/bin`, newest major version first.
fn debian_dirs(root: &Path) -> Vec<PathBuf> {
    let mut majors: Vec<u16> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    majors.sort_unstable_by_key(|major| Reverse(*major));
    majors
        .into_iter()
        .map(|major| root.join(major.to_string()).join("bin"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn engine_version_is_parsed() {
        for (line, major, text) in [
            (
                "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n",
                15,
                "15.18",
            ),
            ("postgres (PostgreSQL) 17.10", 17, "17.10"),
            ("postgres (PostgreSQL) 18beta1", 18, "18beta1"),
            ("postgres (PostgreSQL) 9.6.24", 9, "9.6.24"),
        ] {
            let version = Version::parse(line).unwrap();
            assert_eq!((version.major, version.text.as_str()), (major, text));
        }
        for bad in [
            "",
            "postgres",
            "postgres (PostgreSQL) ",
            "postgres (PostgreSQL) devel",
        ] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn debian_dirs_lists_newest_major_first() {
        let root = tempfile::tempdir().unwrap();
        for name in ["9", "15", "17", "junk"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let found: Vec<_> = debian_dirs(root.path())
            .iter()
            .map(|dir| dir.strip_prefix(root.path()).unwrap().display().to_string())
            .collect();
        assert_eq!(found, ["17/bin", "15/bin", "9/bin"]);
    }

    #[test]
    fn engine_errors_are_one_line_with_the_remedy() {
        let empty = tempfile::tempdir().unwrap();
        let missing = Engine::find(Some(empty.path())).unwrap_err().to_string();
        assert!(
            missing.ends_with("apt-get install -y postgresql") && !missing.contains('\n'),
            "{missing}"
        );

        for name in ["postgres", "initdb"] {
            let program = empty.path().join(name);
            fs::write(&program, "#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let old = Engine::find(Some(empty.path())).unwrap_err().to_string();
        assert!(
            old.contains("/postgres is PostgreSQL 14.9") && !old.contains('\n'),
            "{old}"
        );
    }
}
