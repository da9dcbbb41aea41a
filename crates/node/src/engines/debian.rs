//! Installs the engine `debian-17`: PostgreSQL with its extensions from the packages of Debian 13,
//! and the C library that they need, so that it runs on any Linux (decision 0088). Other programs
//! are unpacked in the same way, by [`unpack_program`].
//!
//! The packages and their digests are pinned, so no mirror is trusted.

use std::{fs, path::Path, process::Command};

use bytes::Bytes;
use gantry_base::clock::Entropy;
use sha2::{Digest, Sha256};
use url::Url;

use super::engine::Engine;
use crate::{
    background::blocking,
    engines::{
        manifest::{EngineManifest, EngineRuntime, InstalledPackage},
        packages::{PackageContents, PackageFilter, unpack},
        registry::Registry,
    },
    error::{At, ClusterError, Result},
    files,
};

/// The major version of the engine.
pub const MAJOR: u16 = 17;
/// Name of the source in the record of the engine.
const SOURCE: &str = "debian-13";
const PINNED: &str = include_str!("recipes/debian-17.txt");
/// Number of the list of packages of one version of PostgreSQL, part of the folder's name: an
/// installation of an earlier list is kept beside it.
const REVISION: u16 = 2;
/// Places of the packages after the mirrors of this machine: the public mirror, and the archive of
/// past versions, for when a mirror has only a newer one.
const PUBLIC: [&str; 2] = [
    "https://deb.debian.org/debian",
    "https://snapshot.debian.org/archive/debian/20261123T000000Z",
];
/// Largest configuration file of apt that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of configuration files and of mirrors.
const MIRRORS_MAX: usize = 32;

/// A pinned package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PinnedPackage {
    sha256: &'static str,
    bytes: usize,
    /// Path on a mirror.
    path: &'static str,
}

impl PinnedPackage {
    fn installed(self) -> InstalledPackage {
        let file = self.path.rsplit('/').next().unwrap_or(self.path);
        let mut parts = file.split('_');
        InstalledPackage {
            name: parts.next().unwrap_or(file).to_owned(),
            version: parts.next().unwrap_or_default().replace("%3a", ":"),
            digest: format!("sha256:{}", self.sha256),
        }
    }
}

/// A processor as Debian names it, and its loader.
struct Architecture {
    name: &'static str,
    triplet: &'static str,
    loader: &'static str,
}

fn architecture() -> Result<Architecture> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(Architecture {
            name: "amd64",
            triplet: "x86_64-linux-gnu",
            loader: "ld-linux-x86-64.so.2",
        }),
        "aarch64" => Ok(Architecture {
            name: "arm64",
            triplet: "aarch64-linux-gnu",
            loader: "ld-linux-aarch64.so.1",
        }),
        other => Err(refused(format!(
            "there are no pinned packages for {other}; install PostgreSQL from your distribution"
        ))),
    }
}

/// Returns the packages of a list that are for an architecture.
fn pinned(list: &'static str, architecture: &str) -> Vec<PinnedPackage> {
    let mut packages = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split_whitespace();
        let (Some(of), Some(sha256), Some(bytes), Some(path)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if let (true, Ok(bytes)) = (of == architecture, bytes.parse()) {
            packages.push(PinnedPackage {
                sha256,
                bytes,
                path,
            });
        }
    }
    packages
}

/// Returns the mirrors in apt's configuration below `root`, then the public ones.
pub fn mirrors(root: &Path) -> Vec<Url> {
    let apt = root.join("etc/apt");
    let mut configured = vec![apt.join("sources.list")];
    let listed = fs::read_dir(apt.join("sources.list.d"));
    for entry in listed.into_iter().flatten().flatten().take(MIRRORS_MAX) {
        configured.push(entry.path());
    }
    configured.sort();
    let mut words = Vec::new();
    for file in configured {
        let text = files::read_bounded(&file, CONFIG_BYTES_MAX).unwrap_or_default();
        for line in text.lines().map(str::trim) {
            // One line of the older format, or one field of the newer.
            if line.starts_with("deb ") || line.starts_with("URIs:") {
                words.extend(line.split_whitespace().map(str::to_owned));
            }
        }
    }
    words.extend(PUBLIC.map(str::to_owned));
    let mut mirrors: Vec<Url> = Vec::new();
    for word in words {
        let Ok(url) = Url::parse(&format!("{}/", word.trim_end_matches('/'))) else {
            continue;
        };
        // Other repositories, such as that of security updates, have other packages.
        let is_debian = url.path().ends_with("/debian/") || url.path().contains("/debian/2");
        if matches!(url.scheme(), "http" | "https")
            && is_debian
            && !mirrors.contains(&url)
            && mirrors.len() < MIRRORS_MAX
        {
            mirrors.push(url);
        }
    }
    mirrors
}

/// Installs the engine into `<engines>/<version>-debian13.<revision>`. An existing installation is
/// kept.
pub async fn install(
    engines: &Path,
    mirrors: &[Url],
    registry: &Registry,
    entropy: &Entropy,
) -> Result<Engine> {
    let architecture = architecture()?;
    let packages = pinned(PINNED, architecture.name);
    let version = version(&packages)?;
    let place = engines.join(format!("{version}-debian13.{REVISION}"));
    let programs = Path::new("usr/lib/postgresql")
        .join(MAJOR.to_string())
        .join("bin");
    if !place.exists() {
        let unpacked = super::install::unfinished_folder(engines, entropy)?;
        let made = async {
            let contents = PackageContents::Engine(MAJOR);
            fetch_all(
                &packages,
                contents,
                &architecture,
                (mirrors, registry),
                &unpacked,
            )
            .await?;
            let manifest = EngineManifest {
                source: SOURCE.to_owned(),
                version,
                programs: programs.clone(),
                runtime: Some(EngineRuntime {
                    loader: Path::new("libs").join(architecture.loader),
                    libraries: "libs".into(),
                }),
                packages: packages.iter().map(|package| package.installed()).collect(),
                folder: unpacked.clone(),
            };
            commit(manifest, &unpacked, &place).await
        }
        .await;
        let removed = files::remove_tree(&unpacked);
        made?;
        removed?;
    }
    Ok(Engine::find(Some(&place.join(programs)))?)
}

/// Downloads the packages of a list for this machine's processor, and unpacks the program of this
/// name to `bin/` below `to`, with its libraries and loader in `libs/`.
pub async fn unpack_program(
    list: &'static str,
    program: &'static str,
    (mirrors, registry): (&[Url], &Registry),
    to: &Path,
) -> Result<()> {
    let architecture = architecture()?;
    let packages = pinned(list, architecture.name);
    let contents = PackageContents::Program(program);
    fetch_all(&packages, contents, &architecture, (mirrors, registry), to).await?;
    let to = to.to_owned();
    blocking(move || {
        super::install::open_up(&to)?;
        files::sync_fs(&to)
    })
    .await
}

/// Downloads, verifies and unpacks all packages.
async fn fetch_all(
    packages: &[PinnedPackage],
    contents: PackageContents,
    architecture: &Architecture,
    (mirrors, registry): (&[Url], &Registry),
    unpacked: &Path,
) -> Result<()> {
    let mut first = 0;
    for package in packages {
        let (archive, from) = fetch(*package, mirrors, first, registry).await?;
        // The next package is most likely there as well.
        first = from;
        let to = unpacked.to_owned();
        let filter = PackageFilter {
            contents,
            triplet: architecture.triplet,
        };
        blocking(move || unpack(&archive, &filter, &to)).await?;
    }
    Ok(())
}

/// Downloads a package from the first mirror that has it, beginning at `first`.
async fn fetch(
    package: PinnedPackage,
    mirrors: &[Url],
    first: usize,
    registry: &Registry,
) -> Result<(Bytes, usize)> {
    let mut last = refused("no mirror is configured".to_owned());
    for offset in 0..mirrors.len() {
        let index = (first + offset) % mirrors.len();
        let url = mirrors[index]
            .join(package.path)
            .map_err(|error| refused(error.to_string()))?;
        match registry.download(url.clone(), package.bytes).await {
            Ok(archive) if hex::encode(Sha256::digest(&archive)) == package.sha256 => {
                return Ok((archive, index));
            }
            Ok(_) => {
                last = refused(format!(
                    "the SHA-256 of {url} is wrong; nothing was installed"
                ));
            }
            Err(error) => last = refused(error.to_string()),
        }
    }
    Err(last)
}

/// Checks that the engine runs on this machine, and moves it to its place.
async fn commit(manifest: EngineManifest, unpacked: &Path, place: &Path) -> Result<()> {
    let unpacked = unpacked.to_owned();
    let place = place.to_owned();
    blocking(move || {
        manifest.write(&unpacked)?;
        super::install::open_up(&unpacked)?;
        check(&manifest, &unpacked)?;
        files::sync_fs(&unpacked)?;
        files::commit(&unpacked, &place)
    })
    .await
}

fn check(manifest: &EngineManifest, folder: &Path) -> Result<()> {
    let Some(runtime) = &manifest.runtime else {
        return Ok(());
    };
    let loader = folder.join(&runtime.loader);
    let postgres = folder.join(&manifest.programs).join("postgres");
    let output = Command::new(&loader)
        .arg("--library-path")
        .arg(folder.join(&runtime.libraries))
        .arg(&postgres)
        .arg("--version")
        .env_clear()
        .output()
        .at("running", &loader)?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains(&format!("(PostgreSQL) {}", manifest.version)) {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(refused(format!(
        "the packages do not run on this machine: {}",
        complaint.lines().next().unwrap_or_default()
    )))
}

/// Returns the version of PostgreSQL: `17.12` of `17.12-0+deb13u1`.
fn version(packages: &[PinnedPackage]) -> Result<String> {
    let server = format!("postgresql-{MAJOR}");
    let found = packages
        .iter()
        .map(|package| package.installed())
        .find(|package| package.name == server);
    found
        .and_then(|package| Some(package.version.split_once('-')?.0.to_owned()))
        .ok_or_else(|| refused("the list of packages has no server".to_owned()))
}

fn refused(why: String) -> ClusterError {
    ClusterError::NotInstalled(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_packages_are_complete_for_both_architectures() {
        let names = |architecture| {
            let mut names = Vec::new();
            for package in pinned(PINNED, architecture) {
                assert_eq!(hex::decode(package.sha256).unwrap().len(), 32);
                assert!((1000..64 << 20).contains(&package.bytes), "{package:?}");
                assert!(package.path.starts_with("pool/main/"));
                names.push(package.installed().name);
            }
            names
        };
        let amd64 = names("amd64");
        assert_eq!(amd64, names("arm64"));
        for needed in ["libc6", "postgresql-17", "postgresql-17-pgvector"] {
            assert!(amd64.iter().any(|name| name == needed), "{needed}");
        }
        assert!(
            version(&pinned(PINNED, "amd64"))
                .unwrap()
                .starts_with("17.")
        );
        let digest = hex::encode(&Sha256::digest(PINNED)[..4]);
        assert_eq!(
            (digest.as_str(), REVISION),
            ("af0486e0", 2),
            "a changed list of packages needs another revision"
        );
    }

    #[test]
    fn mirrors_of_both_formats_come_before_the_public_ones() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("etc/apt/sources.list.d");
        fs::create_dir_all(&dir).unwrap();
        let old = "# deb http://no.example/debian x main\ndeb [arch=amd64] http://a.example/debian stable main\n\
                   deb http://a.example/debian-security stable main\n";
        fs::write(root.path().join("etc/apt/sources.list"), old).unwrap();
        let new = "Types: deb\nURIs: https://b.example/mirror/debian/ ftp://c.example/debian\n";
        fs::write(dir.join("debian.sources"), new).unwrap();
        let found: Vec<String> = mirrors(root.path()).iter().map(Url::to_string).collect();
        let own = [
            "http://a.example/debian/",
            "https://b.example/mirror/debian/",
        ];
        assert_eq!(&found[..2], own);
        assert_eq!(found.len(), 2 + PUBLIC.len());
    }
}
