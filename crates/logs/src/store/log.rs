//! The write-ahead log: appended lines that are not in files yet.
//!
//! One log serves all projects of a node, in segments of bounded size. A segment starts with a
//! header, which records the valid length of the previous segment, followed by the current reader
//! offsets and then by frames. Each frame records the durable length of its segment at the time of
//! writing. Damage beyond that length is a torn write that was never acknowledged; damage before it
//! is corruption.
//!
//! A separate file records the end of the log after each flush, without a flush of its own. After a
//! power loss the record may be too small, never too large, so it proves which lines existed.

use std::{collections::HashMap, io, sync::Arc};

use super::{
    codec,
    disk::{Disk, LogFile},
};

/// The start of a segment of an earlier version. Its frames have no salt.
const MAGIC_UNSALTED: &[u8; 8] = b"gantry\x01\n";
const MAGIC: &[u8; 8] = b"gantry\x02\n";
const FRAME_MAGIC: u32 = 0x6c6f_6766;
/// Magic, own number, previous number, valid length of the previous segment, salt, checksum.
pub(super) const HEADER_BYTES: usize = 8 + 8 + 8 + 8 + 8 + 4;
/// The header without a salt.
const UNSALTED_HEADER_BYTES: usize = 8 + 8 + 8 + 8 + 4;
/// Magic, payload length, durable length, checksum.
pub(super) const FRAME_HEADER_BYTES: usize = 16;
/// Maximum number of reader offsets of one frame.
const READER_OFFSETS_PER_FRAME: usize = 4096;
/// The file that records the end of the log.
const END_FILE: &str = "end";
/// Number and durable length of the last segment, checksum.
const END_BYTES: usize = 8 + 8 + 4;

/// Returns the file name of a segment.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:016x}.log")
}

/// Returns the number of a segment, or `None` for another file.
pub(super) fn segment_number(file_name: &str) -> Option<u64> {
    u64::from_str_radix(file_name.strip_suffix(".log")?, 16).ok()
}

/// The suffix of a damaged segment that was set aside.
const SET_ASIDE_SUFFIX: &str = ".damaged";

/// Returns the name of a damaged segment that was set aside.
pub(super) fn set_aside_name(number: u64) -> String {
    format!("{}{SET_ASIDE_SUFFIX}", file_name(number))
}

/// Whether a file is a damaged segment that was set aside.
pub(super) fn is_set_aside(file_name: &str) -> bool {
    file_name.ends_with(SET_ASIDE_SUFFIX)
}

/// Returns the number of damaged segments that were set aside.
pub(super) fn count_set_aside(disk: &dyn Disk) -> io::Result<usize> {
    let names = disk.list()?;
    Ok(names.iter().filter(|name| is_set_aside(name)).count())
}

/// The number and the valid length of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentEnd {
    pub(super) number: u64,
    /// Valid length in bytes.
    pub(super) length: u64,
}

/// Makes the frames of a segment unforgeable: without it, a log line that contains the bytes of a
/// frame could pass for one when frames are searched after damage. `None` in segments of an earlier
/// version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameSalt(pub(super) Option<u64>);

impl FrameSalt {
    /// Derives the salt of a segment from the seed of the process (`SplitMix64`).
    pub(super) fn derive(seed: u64, number: u64) -> Self {
        let mut mixed = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(Some(mixed ^ (mixed >> 31)))
    }

    fn magic(self) -> u32 {
        let high = self.0.map_or(0, |salt| salt >> 32);
        FRAME_MAGIC ^ u32::try_from(high).unwrap_or(0)
    }

    fn checksum(self, length: u32, durable: u32, payload: &[u8]) -> u32 {
        let checksum = match self.0 {
            Some(salt) => crc32c::crc32c(&salt.to_le_bytes()),
            None => 0,
        };
        let checksum = crc32c::crc32c_append(checksum, &length.to_le_bytes());
        let checksum = crc32c::crc32c_append(checksum, &durable.to_le_bytes());
        crc32c::crc32c_append(checksum, payload)
    }

    /// Adds a frame to a buffer. Returns the position of its payload in `to`.
    pub(super) fn append_frame(self, to: &mut Vec<u8>, payload: &[u8], durable: u32) -> usize {
        // Payloads are limited to far less. An oversized one would be rejected as damaged on
        // recovery.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        to.extend(self.magic().to_le_bytes());
        to.extend(length.to_le_bytes());
        to.extend(durable.to_le_bytes());
        to.extend(self.checksum(length, durable, payload).to_le_bytes());
        to.extend(payload);
        to.len() - payload.len()
    }

    /// Decodes the frame at the start of `bytes`. Returns its payload and the recorded durable
    /// length, or `None` if it is damaged.
    pub(super) fn read_frame(self, bytes: &[u8]) -> Option<(&[u8], u32)> {
        let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>()?;
        let length = u32_at(head, 4)?;
        let durable = u32_at(head, 8)?;
        if u32_at(head, 0)? != self.magic() {
            return None;
        }
        let payload = rest.get(..length as usize)?;
        if u32_at(head, 12)? != self.checksum(length, durable, payload) {
            return None;
        }
        Some((payload, durable))
    }
}

/// The content of a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) number: u64,
    /// The end of the previous segment.
    pub(super) previous: SegmentEnd,
    pub(super) salt: FrameSalt,
}

impl SegmentHeader {
    /// The offset of the first frame.
    pub(super) fn length(&self) -> usize {
        match self.salt.0 {
            Some(_) => HEADER_BYTES,
            None => UNSALTED_HEADER_BYTES,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = match self.salt.0 {
            Some(_) => MAGIC.to_vec(),
            None => MAGIC_UNSALTED.to_vec(),
        };
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.previous.number.to_le_bytes());
        bytes.extend(self.previous.length.to_le_bytes());
        if let Some(salt) = self.salt.0 {
            bytes.extend(salt.to_le_bytes());
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes a header. Returns `None` if it is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let salt = match bytes.first_chunk::<8>()? {
            MAGIC => Some(u64_at(bytes, 32)?),
            MAGIC_UNSALTED => None,
            _ => return None,
        };
        let header = Self {
            number: u64_at(bytes, 8)?,
            previous: SegmentEnd {
                number: u64_at(bytes, 16)?,
                length: u64_at(bytes, 24)?,
            },
            salt: FrameSalt(salt),
        };
        bytes.starts_with(&header.encode()).then_some(header)
    }
}

/// Creates a segment durably, with the current reader offsets. Returns its file and its length.
pub(super) fn create(
    disk: &dyn Disk,
    header: &SegmentHeader,
    reader_offsets: &HashMap<String, String>,
) -> io::Result<(Arc<dyn LogFile>, u64)> {
    let mut bytes = header.encode();
    let reader_offsets: Vec<_> = reader_offsets.iter().collect();
    for chunk in reader_offsets.chunks(READER_OFFSETS_PER_FRAME) {
        let payload = codec::reader_offsets(chunk.iter().copied());
        header.salt.append_frame(&mut bytes, &payload, 0);
    }
    let file = disk.create(&file_name(header.number))?;
    file.write(0, &bytes)?;
    file.sync()?;
    disk.sync()?;
    Ok((file, bytes.len() as u64))
}

/// The record of the end of the log.
#[derive(Debug)]
pub(super) struct EndRecord(Option<Arc<dyn LogFile>>);

impl EndRecord {
    /// Creates the record. Without one, the loss of the last lines goes unnoticed.
    pub(super) fn create(disk: &dyn Disk) -> Self {
        let file = disk.create(END_FILE);
        if let Err(error) = &file {
            tracing::warn!(%error, "end of the log cannot be recorded; the loss of its last lines would go unnoticed");
        }
        Self(file.ok())
    }

    /// Stores the durable end. Not flushed: a record that is too old is harmless.
    pub(super) fn store(&self, end: SegmentEnd) {
        let Some(file) = &self.0 else { return };
        let mut bytes = end.number.to_le_bytes().to_vec();
        bytes.extend(end.length.to_le_bytes());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        if let Err(error) = file.write(0, &bytes) {
            tracing::debug!(%error, "end of the log was not recorded");
        }
    }

    /// Reads the record. Returns `None` if there is none or if it is damaged.
    pub(super) fn load(disk: &dyn Disk) -> io::Result<Option<SegmentEnd>> {
        if !disk.list()?.iter().any(|name| name == END_FILE) {
            return Ok(None);
        }
        let file = disk.open(END_FILE)?;
        let Ok(bytes) = file.read(0, END_BYTES) else {
            return Ok(None);
        };
        Ok(Self::decode(&bytes))
    }

    fn decode(bytes: &[u8]) -> Option<SegmentEnd> {
        let (body, checksum) = bytes.split_at_checked(END_BYTES - 4)?;
        if crc32c::crc32c(body).to_le_bytes() != checksum {
            return None;
        }
        Some(SegmentEnd {
            number: u64_at(body, 0)?,
            length: u64_at(body, 8)?,
        })
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
