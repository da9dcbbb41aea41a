//! Installation and verification of the pooler's kit: `PgBouncer` with its libraries, from packages
//! of Debian. Each package is pinned with its digest, so no mirror is trusted, and all files
//! together are pinned with one, so that an installation can be verified later.

use std::path::Path;

use gantry_base::clock::Entropy;
use tokio::process::Command;

use super::service::Service;
use crate::{
    engines::{debian, registry::Registry},
    kits::{
        kit::{InstalledKit, KitError},
        manifest::Manifest,
        pinned_folder::{self, FolderBounds},
        staging::{self, blocking},
    },
};

/// The pinned packages.
const PACKAGES: &str = include_str!("pooler_packages.txt");
/// Name of the program.
const PROGRAM: &str = "pgbouncer";
/// Version of the kit: that of the program, and the number of the list of packages.
pub const VERSION: &str = "1.24.1-1";
/// Bounds of the kit's files.
const BOUNDS: FolderBounds = FolderBounds {
    files: 500,
    file_bytes: 32 << 20,
};

/// Returns the pinned SHA-256 of the kit's files, in hex.
fn pinned_files() -> Option<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Some("1e39faadc04959c3053de6fa87bda89a18cbee68b1abfee3b012c8b134ae64d5"),
        "aarch64" => Some("d1c0db604e2c354d939e35c00f4aacfdb765b61f26297de9bb72b865cbb653d3"),
        _ => None,
    }
}

/// Returns whether the kit can be installed on this machine.
pub fn is_installable() -> bool {
    pinned_files().is_some()
}

/// Installs the pinned packages into `<kits>/pooler/<version>`. An existing installation is kept.
pub async fn install(
    kits: &Path,
    registry: &Registry,
    entropy: &Entropy,
) -> Result<InstalledKit, KitError> {
    let name = Service::Pooler.name();
    let place = kits.join(name).join(VERSION);
    if place.exists() {
        return InstalledKit::open(Service::Pooler, VERSION, &place);
    }
    let fill = async |stage: &Path| {
        let mirrors = debian::mirrors(Path::new("/"));
        let unpacked = debian::unpack_program(PACKAGES, PROGRAM, (&mirrors, registry), stage).await;
        unpacked.map_err(|error| KitError::Rejected(error.to_string()))?;
        let unpacked = stage.to_owned();
        blocking(move || check_files(&unpacked)).await?;
        probe(stage).await
    };
    let place = staging::install((kits, name, VERSION), entropy, fill).await?;
    InstalledKit::open(Service::Pooler, VERSION, &place)
}

/// Checks the files of an installed kit against the pinned digest.
pub fn verify(kit: &InstalledKit) -> Result<(), KitError> {
    if kit.version != VERSION {
        return Err(KitError::Rejected(format!(
            "pooler {} is not pinned in this version of Gantry, so it cannot be verified",
            kit.version
        )));
    }
    check_files(&kit.folder)
}

fn check_files(folder: &Path) -> Result<(), KitError> {
    pinned_folder::check(folder, BOUNDS, pinned_files(), Service::Pooler.name())
}

async fn probe(folder: &Path) -> Result<(), KitError> {
    let manifest = Manifest::built_in(Service::Pooler);
    let loader = manifest.map(|manifest| folder.join(manifest.program));
    let loader = loader.unwrap_or_else(|| folder.to_owned());
    let mut command = Command::new(&loader);
    command
        .arg("--library-path")
        .arg(folder.join("libs"))
        .arg(folder.join("bin").join(PROGRAM));
    staging::probe(&mut command, PROGRAM).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_that_of_the_packages_for_both_architectures() {
        for architecture in ["amd64", "arm64"] {
            let upstream = VERSION.split('-').next().unwrap();
            let name = format!("/pgbouncer_{upstream}-");
            let found = PACKAGES
                .lines()
                .any(|line| line.starts_with(architecture) && line.contains(&name));
            assert!(found, "{architecture}");
        }
    }
}
