//! Unpacks packages of Debian into the folder of an engine, or of another program.
//!
//! A `.deb` file is an `ar` archive (deb(5)) with a compressed `tar` archive of the files. Of
//! these, an engine takes programs and libraries of PostgreSQL, shared libraries and copyright
//! notices; another program takes itself, shared libraries and copyright notices. Everything else
//! is skipped. Sizes and counts are bounded, links are kept within their
//! folder.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use crate::error::{At, ClusterError, Result};

/// First bytes of an `ar` archive.
const AR_MAGIC: &[u8] = b"!<arch>\n";
/// Size of the header of a member, in bytes.
const AR_HEADER: usize = 60;
/// The member with the files.
const DATA: &str = "data.tar.xz";
/// Maximum memory of the decompression, in KiB. The largest setting of `xz` needs 65 MiB.
const XZ_KIB_MAX: u32 = 256 << 10;
/// Maximum size of the unpacked files of one package, in bytes.
const UNPACKED_BYTES_MAX: u64 = 512 << 20;
/// Maximum number of entries of one package.
const ENTRIES_MAX: usize = 50_000;

/// The purpose of packages.
#[derive(Debug, Clone, Copy)]
pub(super) enum PackageContents {
    /// An engine of this major version of PostgreSQL.
    Engine(u16),
    /// The program of this name in `/usr/sbin`.
    Program(&'static str),
}

/// The parts of packages that are needed.
#[derive(Debug)]
pub(super) struct PackageFilter {
    pub(super) contents: PackageContents,
    /// Folder of the shared libraries: `x86_64-linux-gnu`.
    pub(super) triplet: &'static str,
}

impl PackageFilter {
    /// Returns the place of a file of a package in the folder, if it is needed.
    fn place(&self, path: &Path) -> Option<PathBuf> {
        let mut parts = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => parts.push(name.to_str()?),
                Component::CurDir => {}
                _ => return None,
            }
        }
        match parts.as_slice() {
            ["usr", "lib", triplet, name] | ["lib", triplet, name]
                if *triplet == self.triplet && is_library(name) =>
            {
                return Some(Path::new("libs").join(name));
            }
            ["usr", "share", "doc", package, "copyright"] => {
                return Some(Path::new("licenses").join(package));
            }
            _ => {}
        }
        match self.contents {
            PackageContents::Engine(major) => place_in_engine(&parts, &major.to_string()),
            PackageContents::Program(program) => {
                (parts == ["usr", "sbin", program]).then(|| Path::new("bin").join(program))
            }
        }
    }
}

/// Returns the place in the engine's folder of a file of PostgreSQL.
fn place_in_engine(parts: &[&str], major: &str) -> Option<PathBuf> {
    match parts {
        ["usr", "lib", "postgresql", of, "bin", _] if *of == major => Some(parts.iter().collect()),
        // Compilation to machine code needs LLVM, which is larger than everything else.
        ["usr", "lib", "postgresql", of, "lib", name]
            if *of == major
                && is_library(name)
                && is_complete(name)
                && !name.starts_with("llvmjit") =>
        {
            Some(parts.iter().collect())
        }
        ["usr", "share", "postgresql", of, "extension", name] if *of == major => {
            let folder: PathBuf = parts[..parts.len() - 1].iter().collect();
            is_complete(name).then(|| folder.join(without_alternative(name)))
        }
        ["usr", "share", "postgresql", of, first, ..] if *of == major && *first != "man" => {
            Some(parts.iter().collect())
        }
        // Coordinate systems of PostGIS. The library finds them relative to the program.
        ["usr", "share", "proj", _] => Some(parts.iter().collect()),
        _ => None,
    }
}

/// Returns whether the libraries of an extension's file are among the packages. Those of rasters
/// and of solids are several times larger than everything else.
fn is_complete(name: &str) -> bool {
    !name.starts_with("postgis_raster") && !name.starts_with("postgis_sfcgal")
}

/// Returns the name of a control file after the configuration of its package, which chooses among
/// alternatives: `postgis.control` of `postgis-3.control`.
fn without_alternative(name: &str) -> String {
    let stem = name.strip_suffix(".control").unwrap_or_default();
    match stem.rsplit_once('-') {
        Some((extension, version))
            if !extension.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            format!("{extension}.control")
        }
        _ => name.to_owned(),
    }
}

fn is_library(name: &str) -> bool {
    name.contains(".so")
}

/// Unpacks a package into the folder `to`. The caller has verified its digest.
pub(super) fn unpack(package: &[u8], filter: &PackageFilter, to: &Path) -> Result<()> {
    let data = member(package, DATA).ok_or_else(|| refused(format!("a package without {DATA}")))?;
    let reader = lzma_rust2::XzReader::new_mem_limit(data, true, XZ_KIB_MAX);
    let mut archive = tar::Archive::new(reader.take(UNPACKED_BYTES_MAX));
    let entries = archive.entries().at("unpacking", to)?;
    for (count, entry) in entries.enumerate() {
        if count >= ENTRIES_MAX {
            return Err(refused(format!(
                "a package has more than {ENTRIES_MAX} files"
            )));
        }
        let mut entry = entry.at("unpacking", to)?;
        let path = entry.path().at("unpacking", to)?.into_owned();
        let Some(place) = filter.place(&path) else {
            continue;
        };
        let target = to.join(place);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).at("creating", parent)?;
        }
        match entry.header().entry_type() {
            tar::EntryType::Regular => write(&mut entry, &target)?,
            tar::EntryType::Symlink => link(&mut entry, &target)?,
            _ => {}
        }
    }
    Ok(())
}

fn write(entry: &mut tar::Entry<'_, impl Read>, target: &Path) -> Result<()> {
    let mode = entry.header().mode().at("unpacking", target)?;
    let mut file = File::create_new(target).at("writing", target)?;
    io::copy(entry, &mut file).at("writing", target)?;
    let open = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
    file.set_permissions(fs::Permissions::from_mode(open))
        .at("opening up", target)
}

/// Creates a link to a file of the same folder. Other links lead to files that are not part of the
/// engine, and are skipped.
fn link(entry: &mut tar::Entry<'_, impl Read>, target: &Path) -> Result<()> {
    let Some(name) = entry.link_name().at("unpacking", target)? else {
        return Ok(());
    };
    let mut parts = name.components();
    if let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) {
        symlink(name, target).at("linking", target)?;
    }
    Ok(())
}

/// Returns the content of a member of an `ar` archive.
fn member<'a>(archive: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let mut rest = archive.strip_prefix(AR_MAGIC)?;
    while rest.len() >= AR_HEADER {
        let (header, content) = rest.split_at(AR_HEADER);
        let name = std::str::from_utf8(&header[..16]).ok()?;
        let size = std::str::from_utf8(&header[48..58]).ok()?;
        let size: usize = size.trim().parse().ok()?;
        let found = content.get(..size)?;
        if name.trim_end().trim_end_matches('/') == wanted {
            return Some(found);
        }
        // Members begin at even offsets.
        rest = content.get(size + size % 2..)?;
    }
    None
}

fn refused(why: String) -> ClusterError {
    ClusterError::NotInstalled(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTER: PackageFilter = PackageFilter {
        contents: PackageContents::Engine(17),
        triplet: "x86_64-linux-gnu",
    };

    #[test]
    fn only_files_of_an_engine_are_taken() {
        for (path, place) in [
            (
                "./usr/lib/x86_64-linux-gnu/libc.so.6",
                Some("libs/libc.so.6"),
            ),
            ("./usr/lib/x86_64-linux-gnu/gconv/UTF-7.so", None),
            (
                "./usr/lib/postgresql/17/bin/postgres",
                Some("usr/lib/postgresql/17/bin/postgres"),
            ),
            ("./usr/lib/postgresql/16/bin/postgres", None),
            ("./usr/lib/postgresql/17/lib/llvmjit.so", None),
            ("./usr/lib/postgresql/17/lib/bitcode/x.bc", None),
            ("./usr/lib/postgresql/17/lib/../../../../../etc/x.so", None),
            ("./usr/share/postgresql/17/man/man1/psql.1.gz", None),
            (
                "./usr/share/postgresql/17/extension/vector.control",
                Some("usr/share/postgresql/17/extension/vector.control"),
            ),
            (
                "./usr/share/postgresql/17/extension/postgis-3.control",
                Some("usr/share/postgresql/17/extension/postgis.control"),
            ),
            (
                "./usr/share/postgresql/17/extension/uuid-ossp.control",
                Some("usr/share/postgresql/17/extension/uuid-ossp.control"),
            ),
            (
                "./usr/share/postgresql/17/extension/postgis_raster-3.control",
                None,
            ),
            ("./usr/lib/postgresql/17/lib/postgis_sfcgal-3.so", None),
            ("./usr/share/proj/proj.db", Some("usr/share/proj/proj.db")),
            ("./usr/share/doc/libc6/copyright", Some("licenses/libc6")),
            ("/usr/share/doc/libc6/copyright", None),
            ("./etc/passwd", None),
        ] {
            let found = FILTER.place(Path::new(path));
            assert_eq!(found.as_deref(), place.map(Path::new), "{path}");
        }
    }

    #[test]
    fn only_the_program_and_its_libraries_are_taken() {
        let filter = PackageFilter {
            contents: PackageContents::Program("pgbouncer"),
            triplet: "x86_64-linux-gnu",
        };
        for (path, place) in [
            ("./usr/sbin/pgbouncer", Some("bin/pgbouncer")),
            ("./usr/sbin/other", None),
            ("./usr/lib/postgresql/17/bin/postgres", None),
            (
                "./usr/lib/x86_64-linux-gnu/libc.so.6",
                Some("libs/libc.so.6"),
            ),
            ("./usr/share/doc/libc6/copyright", Some("licenses/libc6")),
            ("./etc/pgbouncer/pgbouncer.ini", None),
        ] {
            let found = filter.place(Path::new(path));
            assert_eq!(found.as_deref(), place.map(Path::new), "{path}");
        }
    }

    #[test]
    fn member_of_archive_is_found_and_bounded() {
        let entry = |name: &str, size: &str, content: &str| {
            format!("{name:<16}{:<32}{size:<10}`\n{content}", "")
        };
        let archive = format!(
            "!<arch>\n{}{}{}",
            entry("debian-binary", "3", "2.0\n"),
            entry("control.tar.xz/", "2", "ab"),
            entry("data.tar.xz", "4", "file")
        );
        assert_eq!(member(archive.as_bytes(), DATA), Some(&b"file"[..]));
        assert_eq!(member(archive.as_bytes(), "other"), None);
        let lying = format!("!<arch>\n{}", entry(DATA, "5", "file"));
        assert_eq!(member(lying.as_bytes(), DATA), None);
        for length in 0..archive.len() {
            assert_eq!(member(&archive.as_bytes()[..length], DATA), None);
        }
    }

    #[test]
    fn damaged_package_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        for package in ["", "!<arch>\n", "junk"] {
            unpack(package.as_bytes(), &FILTER, dir.path()).unwrap_err();
        }
        let name = format!("{DATA:<16}{:<32}{:<10}`\njunk", "", "4");
        unpack(format!("!<arch>\n{name}").as_bytes(), &FILTER, dir.path()).unwrap_err();
    }
}
