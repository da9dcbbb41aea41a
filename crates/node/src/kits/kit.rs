//! A kit in a folder of this machine: its manifest, and the check of its files.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::service::Service;
use crate::kits::{c_library, manifest::Manifest};

/// Name of the manifest in a kit's folder.
pub const MANIFEST: &str = "kit.toml";
/// Largest manifest, in bytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// A kit cannot be used. Each message is one line that names the file.
#[derive(Debug, thiserror::Error)]
pub enum KitError {
    /// A file cannot be read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The manifest is not valid. The text has the line.
    #[error("{}: {why}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The problem, in one line.
        why: String,
    },
    /// A file of the kit must not be executed as it is.
    #[error("{}: {why}", path.display())]
    Unsafe {
        /// The file or folder.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The kit cannot be installed or checked.
    #[error("{0}")]
    Rejected(String),
}

/// A kit in a folder of this machine, with checked files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledKit {
    /// Its version: the name of its folder.
    pub version: String,
    /// Its folder, without symbolic links.
    pub folder: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
}

impl InstalledKit {
    /// Opens the kit in a folder and checks its files.
    pub fn open(service: Service, version: &str, folder: &Path) -> Result<Self, KitError> {
        let folder = folder.canonicalize().map_err(at(folder))?;
        let path = folder.join(MANIFEST);
        let manifest = match read(&path)? {
            Some(text) => Manifest::parse(&text).map_err(|why| KitError::Manifest {
                path: path.clone(),
                why,
            })?,
            None => Manifest::built_in(service).ok_or_else(|| KitError::Manifest {
                path: path.clone(),
                why: "is missing, and this version of Gantry has none for the service".to_owned(),
            })?,
        };
        if manifest.service != service {
            return Err(KitError::Manifest {
                path,
                why: format!("is a manifest of {}, not of {service}", manifest.service),
            });
        }
        let kit = Self {
            version: version.to_owned(),
            folder,
            manifest,
        };
        kit.check()?;
        Ok(kit)
    }

    /// The program.
    pub fn program(&self) -> PathBuf {
        self.folder.join(&self.manifest.program)
    }

    /// The program that runs before each start.
    pub fn preparation(&self) -> Option<PathBuf> {
        let program = self.manifest.prepare.as_ref()?;
        Some(self.folder.join(program))
    }

    /// Checks that no other account can replace a program and that it grants no privileges.
    fn check(&self) -> Result<(), KitError> {
        self.check_program(&self.program())?;
        self.preparation()
            .map_or(Ok(()), |program| self.check_program(&program))
    }

    fn check_program(&self, program: &Path) -> Result<(), KitError> {
        let found = fs::symlink_metadata(program).map_err(at(program))?;
        let reject = |path: &Path, why: &str| {
            Err(KitError::Unsafe {
                path: path.to_owned(),
                why: why.to_owned(),
            })
        };
        if !found.is_file() {
            return reject(program, "is not a regular file");
        }
        if found.mode() & 0o6000 != 0 {
            return reject(program, "has the setuid or setgid bit");
        }
        if found.mode() & 0o111 == 0 {
            return reject(program, "is not executable");
        }
        if let Some(why) = c_library::problem(program) {
            return reject(program, &why);
        }
        for path in program
            .ancestors()
            .take_while(|path| path.starts_with(&self.folder))
        {
            let found = fs::symlink_metadata(path).map_err(at(path))?;
            if found.is_symlink() {
                return reject(path, "is a symbolic link");
            }
            if found.mode() & 0o022 != 0 {
                return reject(path, "is writable for other accounts");
            }
        }
        Ok(())
    }
}

/// Reads a manifest, if there is one.
fn read(path: &Path) -> Result<Option<String>, KitError> {
    use io::Read;
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(at(path))?,
    };
    let mut text = String::new();
    file.take(MANIFEST_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(at(path))?;
    Ok(Some(text))
}

/// Adds the path to an I/O error.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> KitError {
    let path = path.to_owned();
    move |cause| KitError::Io {
        path: path.clone(),
        cause,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    const MINIMAL: &str = "kit = \"rest\"\nprogram = \"bin/x\"\n";

    #[test]
    fn kit_with_replaceable_or_privileged_files_is_rejected() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("1.0");
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::write(dir.join(MANIFEST), MINIMAL).unwrap();
        let program = dir.join("bin/x");
        fs::write(&program, "").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for path in [&dir, &dir.join("bin"), &program] {
            mode(path, 0o755);
        }
        let open = || InstalledKit::open(Service::Rest, "1.0", &dir);
        assert_eq!(open().unwrap().version, "1.0");
        for (path, bad) in [
            (&program, 0o4755),
            (&program, 0o2755),
            (&program, 0o644),
            (&program, 0o757),
            (&dir.join("bin"), 0o777),
            (&dir, 0o775),
        ] {
            mode(path, bad);
            assert!(open().is_err(), "{} {bad:o}", path.display());
            mode(path, 0o755);
        }
        open().unwrap();
        assert!(InstalledKit::open(Service::Auth, "1.0", &dir).is_err());
        fs::remove_file(&program).unwrap();
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        assert!(open().is_err(), "a link");
    }
}
