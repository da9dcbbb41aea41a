//! Gives a copied data directory its own system identifier.
//!
//! All copies of one template share its identifier, and PostgreSQL would then accept the WAL and
//! the replicas of one project for another. The identifier stands in `global/pg_control`, guarded
//! by a CRC, and in the first page header of each WAL segment, which the server compares with the
//! former. Both are patched in place, without `pg_resetwal`: that throws WAL away, cannot set the
//! identifier, and runs for tens of milliseconds.
//!
//! Offsets follow `catalog/pg_control.h` and `access/xlog_internal.h`; what is assumed of them
//! holds from PostgreSQL 9.3 to 18 and is checked before anything is written.

use std::{
    fmt, fs, io,
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use gantry_base::clock::Entropy;

/// Size of the system identifier, in bytes. It is at offset 0 of `pg_control`.
const ID: usize = size_of::<u64>();
/// Offset of `xlp_info`, and its flag for a page with the long header.
const INFO_AT: usize = 2;
const LONG_HEADER: u16 = 0x0002;
/// Offset of `xlp_sysid`, which is followed by `xlp_seg_size`.
const WAL_ID_AT: usize = 24;
const SEGMENT_SIZE_AT: usize = WAL_ID_AT + ID;

/// Offset of `state` in `pg_control`, and its value `DB_SHUTDOWNED`.
const STATE_AT: usize = 16;
const SHUT_DOWN: u32 = 1;
/// Offsets of `checkPoint` and `checkPointCopy.ThisTimeLineID` in `pg_control`, since PostgreSQL
/// 11.
const CHECKPOINT_AT: usize = 32;
const TIMELINE_AT: usize = 48;
/// Size of a page of the WAL, in bytes.
const WAL_PAGE: usize = 8192;

/// A PostgreSQL system identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemId(NonZeroU64);

/// A data directory has an unexpected format. The named file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file could not be read or written.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        cause: io::Error,
    },
    /// No offset in `pg_control` holds the checksum of the preceding bytes.
    #[error("pg_control has no valid checksum")]
    NoChecksum,
    /// A WAL segment has the header of another data directory.
    #[error("{} is not a WAL segment of this data directory", .0.display())]
    ForeignSegment(PathBuf),
}

impl SystemId {
    /// Returns a random identifier of 63 bits, which is positive as a signed number as well.
    pub fn generate(entropy: &Entropy) -> Self {
        let random = u64::from_ne_bytes(entropy.bytes()) >> 1;
        Self(NonZeroU64::new(random).unwrap_or(NonZeroU64::MIN))
    }

    /// The identifier as the number that PostgreSQL prints.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes `id` into the cleanly shut down data directory `data`. Does not sync.
pub fn assign(data: &Path, id: SystemId) -> Result<(), IdentityError> {
    let path = data.join("global/pg_control");
    let mut control = read(&path)?;
    let old = patch_control(&mut control, id.get())?;
    let wal = data.join("pg_wal");
    for entry in fs::read_dir(&wal).map_err(at(&wal))? {
        let segment = entry.map_err(at(&wal))?.path();
        if is_segment(&segment) {
            patch_segment(&segment, old, id.get())?;
        }
    }
    // Written last, so that a server rejects an incomplete copy.
    fs::write(&path, control).map_err(at(&path))
}

/// Replaces the identifier and the checksum; returns the old identifier.
///
/// The checksum's position differs between versions, so it is searched for: it is the offset that
/// holds the CRC-32C of everything before it and nothing but padding behind it.
fn patch_control(control: &mut [u8], id: u64) -> Result<u64, IdentityError> {
    let at = checksum_at(control).ok_or(IdentityError::NoChecksum)?;
    let old = u64_at(control, 0).ok_or(IdentityError::NoChecksum)?;
    control[..ID].copy_from_slice(&id.to_ne_bytes());
    let checksum = crc32c::crc32c(&control[..at]);
    control[at..at + 4].copy_from_slice(&checksum.to_ne_bytes());
    Ok(old)
}

/// The state of a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlState {
    /// The system identifier.
    pub system_id: u64,
    /// Whether the server was shut down cleanly.
    pub is_shut_down: bool,
    /// Position of the last checkpoint's record.
    pub checkpoint: u64,
    /// Timeline of that checkpoint.
    pub timeline: u32,
}

impl ControlState {
    /// Size of the file, in bytes.
    pub const BYTES: u64 = 8192;

    /// Reads the content of `global/pg_control`. `None` if its checksum is wrong.
    pub fn read(control: &[u8]) -> Option<Self> {
        checksum_at(control)?;
        Some(Self {
            system_id: u64_at(control, 0)?,
            is_shut_down: u32_at(control, STATE_AT)? == SHUT_DOWN,
            checkpoint: u64_at(control, CHECKPOINT_AT)?,
            timeline: u32_at(control, TIMELINE_AT)?,
        })
    }
}

/// Returns the offset of the checksum.
fn checksum_at(control: &[u8]) -> Option<usize> {
    (ID..control.len().saturating_sub(3))
        .step_by(4)
        .find(|&at| {
            u32_at(control, at) == Some(crc32c::crc32c(&control[..at]))
                && control[at + 4..].iter().all(|byte| *byte == 0)
        })
}

/// Returns whether the content of `pg_control` has a valid checksum. A read during a write has
/// none.
pub(super) fn is_valid_control(control: &[u8]) -> bool {
    checksum_at(control).is_some()
}

/// Deletes the WAL of a cleanly shut down data directory but the segment of the last checkpoint,
/// and overwrites the rest of that segment, which may be recycled. Does not sync.
///
/// The server must have switched to a new segment before its shutdown: otherwise the segment also
/// contains records of earlier changes.
pub(super) fn forget_wal(data: &Path) -> Result<(), IdentityError> {
    use std::os::unix::fs::FileExt;

    let control = read(&data.join("global/pg_control"))?;
    if !is_valid_control(&control) {
        return Err(IdentityError::NoChecksum);
    }
    let wal = data.join("pg_wal");
    let checkpoint = u64_at(&control, CHECKPOINT_AT).ok_or(IdentityError::NoChecksum)?;
    let timeline = u32_at(&control, TIMELINE_AT).ok_or(IdentityError::NoChecksum)?;
    let mut kept = None;
    for entry in fs::read_dir(&wal).map_err(at(&wal))? {
        let path = entry.map_err(at(&wal))?.path();
        if !is_segment(&path) {
            continue;
        }
        let size = fs::symlink_metadata(&path).map_err(at(&path))?.len();
        let name = segment_name(timeline, checkpoint, size.max(1));
        if path.file_name().is_some_and(|found| found == &*name) {
            kept = Some((path, size));
        } else {
            fs::remove_file(&path).map_err(at(&path))?;
        }
    }
    let Some((path, size)) = kept else {
        return Err(IdentityError::ForeignSegment(wal));
    };
    let file = open(&path)?;
    let start = checkpoint % size;
    let mut length = [0; 4];
    file.read_exact_at(&mut length, start).map_err(at(&path))?;
    let end = start + u64::from(u32::from_ne_bytes(length));
    // The server zeroes a page before it writes to it.
    let mut offset = end.next_multiple_of(WAL_PAGE as u64);
    while offset < size {
        file.write_all_at(&[0; WAL_PAGE], offset)
            .map_err(at(&path))?;
        offset += WAL_PAGE as u64;
    }
    Ok(())
}

/// Returns the name of the segment that contains a position of the WAL.
pub(super) fn segment_name(timeline: u32, position: u64, segment_bytes: u64) -> String {
    let number = position / segment_bytes;
    let per_file = (1_u64 << 32) / segment_bytes.max(1);
    let (high, low) = (number / per_file.max(1), number % per_file.max(1));
    format!("{timeline:08X}{high:08X}{low:08X}")
}

/// Replaces the identifier in a segment's first page header, which has no checksum.
fn patch_segment(path: &Path, old: u64, id: u64) -> Result<(), IdentityError> {
    use std::os::unix::fs::FileExt;

    let file = open(path)?;
    let size = file.metadata().map_err(at(path))?.len();
    let mut header = [0; SEGMENT_SIZE_AT + 4];
    file.read_exact_at(&mut header, 0).map_err(at(path))?;
    if header.iter().all(|byte| *byte == 0) {
        return Ok(()); // Preallocated and never written.
    }
    let long = u16_at(&header, INFO_AT).is_some_and(|info| info & LONG_HEADER != 0);
    let ours = u64_at(&header, WAL_ID_AT) == Some(old)
        && u32_at(&header, SEGMENT_SIZE_AT).map(u64::from) == Some(size);
    if !(long && ours) {
        return Err(IdentityError::ForeignSegment(path.to_owned()));
    }
    file.write_all_at(&id.to_ne_bytes(), WAL_ID_AT as u64)
        .map_err(at(path))
}

/// Opens a file to change it in place. Does not follow a link.
fn open(path: &Path) -> Result<fs::File, IdentityError> {
    use std::os::unix::fs::OpenOptionsExt;

    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(at(path))
}

/// Returns whether the file name is that of a WAL segment: 24 hexadecimal digits.
fn is_segment(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        name.len() == 24 && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit)
    })
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    fs::read(path).map_err(at(path))
}

fn at(path: &Path) -> impl Fn(io::Error) -> IdentityError {
    |cause| IdentityError::Io {
        path: path.to_owned(),
        cause,
    }
}

// PostgreSQL writes these files in the byte order of the machine.

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    chunk_at(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    chunk_at(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    chunk_at(bytes, at).map(u64::from_ne_bytes)
}

fn chunk_at<const LENGTH: usize>(bytes: &[u8], at: usize) -> Option<[u8; LENGTH]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: u64 = 7_300_000_000_000_000_001;
    const SEGMENT: &str = "000000010000000000000002";

    fn new_id() -> SystemId {
        SystemId::generate(&Entropy::seeded(1))
    }

    /// A `pg_control` of 8 KiB with its checksum at offset `at`.
    fn control(at: usize) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        bytes[..at]
            .iter_mut()
            .enumerate()
            .for_each(|(n, byte)| *byte = u8::try_from(n % 251).unwrap());
        bytes[..ID].copy_from_slice(&OLD.to_ne_bytes());
        let checksum = crc32c::crc32c(&bytes[..at]);
        bytes[at..at + 4].copy_from_slice(&checksum.to_ne_bytes());
        bytes
    }

    fn segment(id: u64) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        bytes[0..2].copy_from_slice(&0xD110_u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&LONG_HEADER.to_ne_bytes());
        bytes[24..32].copy_from_slice(&id.to_ne_bytes());
        bytes[32..36].copy_from_slice(&1024_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn patch_control_finds_checksum_at_any_offset() {
        for at in [288, 296, 300] {
            let mut bytes = control(at);
            assert_eq!(patch_control(&mut bytes, 42).unwrap(), OLD);
            assert_eq!(u64_at(&bytes, 0), Some(42));
            assert_eq!(u32_at(&bytes, at), Some(crc32c::crc32c(&bytes[..at])));
            assert_eq!(bytes[8..at], control(at)[8..at]);
        }
    }

    #[test]
    fn damaged_control_file_is_rejected_unchanged() {
        let mut bytes = control(296);
        bytes[100] ^= 1;
        let damaged = bytes.clone();
        assert!(matches!(
            patch_control(&mut bytes, 42),
            Err(IdentityError::NoChecksum)
        ));
        assert_eq!(bytes, damaged);
        for len in 0..16 {
            assert!(patch_control(&mut vec![0; len], 42).is_err() || len >= 12);
        }
    }

    #[test]
    fn assign_writes_control_file_and_segments() {
        let dir = tempfile::tempdir().unwrap();
        let (global, wal) = (dir.path().join("global"), dir.path().join("pg_wal"));
        fs::create_dir(&global).unwrap();
        fs::create_dir_all(wal.join("archive_status")).unwrap();
        fs::write(global.join("pg_control"), control(296)).unwrap();
        fs::write(wal.join(SEGMENT), segment(OLD)).unwrap();
        fs::write(wal.join("000000010000000000000003"), [0; 1024]).unwrap();

        assign(dir.path(), new_id()).unwrap();

        assert_eq!(
            u64_at(&fs::read(global.join("pg_control")).unwrap(), 0),
            Some(new_id().get())
        );
        assert_eq!(
            fs::read(wal.join(SEGMENT)).unwrap(),
            segment(new_id().get())
        );
        assert_eq!(
            fs::read(wal.join("000000010000000000000003")).unwrap(),
            [0; 1024]
        );
    }

    #[test]
    fn segment_of_another_cluster_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SEGMENT);
        fs::write(&path, segment(OLD + 1)).unwrap();
        assert!(matches!(
            patch_segment(&path, OLD, 42),
            Err(IdentityError::ForeignSegment(_))
        ));
        assert_eq!(fs::read(&path).unwrap(), segment(OLD + 1));
    }

    #[test]
    fn generated_identifier_is_positive_as_signed_integer() {
        assert!(i64::try_from(new_id().get()).unwrap() > 0);
    }
}
