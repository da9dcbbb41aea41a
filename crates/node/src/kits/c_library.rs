//! The version of the GNU C library that a program needs, from its version requirements (LSB Core,
//! "Symbol Versioning"; ELF64, little endian).

use std::{fs::File, io, os::unix::fs::FileExt, path::Path, sync::OnceLock};

/// Type of the section with the required versions.
const SHT_GNU_VERNEED: u32 = 0x6fff_fffe;
/// Type of the section with the versions that a library provides.
const SHT_GNU_VERDEF: u32 = 0x6fff_fffd;
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
/// Largest number of sections that are read.
const SECTIONS_MAX: usize = 256;
/// Largest table of names that is read, in bytes.
const NAMES_BYTES_MAX: u64 = 8 << 20;
/// Beginning of the versions of the library.
const PREFIX: &[u8] = b"GLIBC_2.";
/// Places of the library.
const LIBRARIES: [&str; 5] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/aarch64-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
    "/usr/lib64/libc.so.6",
    "/usr/lib/libc.so.6",
];

/// Returns the problem of a program that needs a newer C library than this machine has.
pub(super) fn problem(program: &Path) -> Option<String> {
    let needed = newest_version(program).ok().flatten()?;
    let present = of_machine()?;
    (needed > present)
        .then(|| format!("needs glibc 2.{needed}, and this machine has glibc 2.{present}"))
}

/// Returns the minor version of this machine's library. `None`: another or unknown library.
fn of_machine() -> Option<u32> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    let find = || {
        let versions = LIBRARIES.iter().map(|path| newest_version(Path::new(path)));
        versions.flatten().flatten().max()
    };
    *FOUND.get_or_init(find)
}

/// Returns the newest minor version 2.x that a program needs or a library provides. `None`: none,
/// or no program of this form.
fn newest_version(path: &Path) -> io::Result<Option<u32>> {
    let file = File::open(path)?;
    let mut header = [0; HEADER_BYTES];
    if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(b"\x7fELF\x02\x01") {
        return Ok(None);
    }
    let count = usize::from(u16::from_le_bytes([header[60], header[61]]));
    let mut sections = vec![0; count.min(SECTIONS_MAX) * SECTION_BYTES];
    file.read_exact_at(&mut sections, number(&header, 40))?;
    let (sections, _) = sections.as_chunks::<SECTION_BYTES>();
    let mut newest = None;
    for section in sections {
        let kind = word(section, 4);
        if kind != SHT_GNU_VERNEED && kind != SHT_GNU_VERDEF {
            continue;
        }
        let names = usize::try_from(word(section, 40)).ok();
        let Some(names) = names.and_then(|index| sections.get(index)) else {
            continue;
        };
        let length = number(names, 32).min(NAMES_BYTES_MAX);
        let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
        file.read_exact_at(&mut text, number(names, 24))?;
        let versions = text.split(|byte| *byte == 0).filter_map(minor);
        newest = newest.max(versions.max());
    }
    Ok(newest)
}

/// Returns 34 of `GLIBC_2.34` and of `GLIBC_2.34.1`.
fn minor(name: &[u8]) -> Option<u32> {
    let rest = std::str::from_utf8(name.strip_prefix(PREFIX)?).ok()?;
    rest.split('.').next()?.parse().ok()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_for_a_newer_c_library_is_recognised() {
        let Some(present) = of_machine() else {
            return;
        };
        let own = std::env::current_exe().unwrap();
        let needed = newest_version(&own).unwrap().unwrap();
        assert!((2..=present).contains(&needed), "{needed} {present}");
        assert_eq!(problem(&own), None);
        let place = tempfile::tempdir().unwrap();
        let newer = place.path().join("newer");
        let mut bytes = std::fs::read("/bin/true").unwrap();
        let old = newest_version(Path::new("/bin/true")).unwrap().unwrap();
        let (old, new) = (format!("GLIBC_2.{old}\0"), "GLIBC_2.99\0");
        assert_eq!(old.len(), new.len(), "a version with two digits");
        let at = bytes
            .windows(old.len())
            .position(|text| text == old.as_bytes());
        let at = at.unwrap();
        bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
        std::fs::write(&newer, bytes).unwrap();
        let problem = problem(&newer).unwrap();
        assert!(problem.starts_with("needs glibc 2.99, and "), "{problem}");
    }

    #[test]
    fn damaged_program_is_no_error_of_the_reader() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        let bytes = std::fs::read("/bin/true").unwrap();
        for length in [0, 5, 63, 64, 1000, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            assert_eq!(problem(&path), None, "{length}");
        }
        std::fs::write(&path, vec![0xff; 4096]).unwrap();
        assert_eq!(problem(&path), None);
    }
}
