//! The write-ahead log: appended lines that are not in files yet.
//!
//! One log serves all projects of a node, in segments of bounded size. A segment starts with a
//! header, which records the valid length of the previous segment, followed by the current reader
//! offsets and then by frames. Each frame records the durable length of its segment at the time of
//! writing. Damage beyond that length is a torn write that was never acknowledged; damage before it
//! is corruption.

use std::{collections::HashMap, io, sync::Arc};

use super::{
    StoreError, codec,
    disk::{Disk, LogFile},
    index::{Index, Segment},
};

const MAGIC: &[u8; 8] = b"gantry\x01\n";
const FRAME_MAGIC: u32 = 0x6c6f_6766;
/// Magic, own number, previous number, valid length of the previous segment, checksum.
const HEADER: usize = 8 + 8 + 8 + 8 + 4;
/// Magic, payload length, durable length, checksum.
const FRAME: usize = 16;
/// Maximum number of reader offsets of one frame.
const MARKS_A_FRAME: usize = 4096;

/// Returns the file name of a segment.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:016x}.log")
}

/// The number and the valid length of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) number: u64,
    /// Valid length in bytes.
    pub(super) length: u64,
}

/// Creates the next segment durably, with the current reader offsets. Returns its file and its
/// length.
pub(super) fn create(
    disk: &dyn Disk,
    before: Before,
    marks: &HashMap<String, String>,
) -> io::Result<(Arc<dyn LogFile>, u64)> {
    let number = before.number + 1;
    let mut bytes = header(number, before);
    let marks: Vec<_> = marks.iter().collect();
    for marks in marks.chunks(MARKS_A_FRAME) {
        frame(&mut bytes, &codec::marks(marks.iter().copied()), 0);
    }
    let file = disk.create(&file_name(number))?;
    file.write(0, &bytes)?;
    file.sync()?;
    disk.sync()?;
    Ok((file, bytes.len() as u64))
}

fn header(number: u64, before: Before) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(
        [number, before.number, before.length]
            .iter()
            .flat_map(|it| it.to_le_bytes()),
    );
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

fn read_header(bytes: &[u8]) -> Option<(u64, Before)> {
    let bytes: &[u8; HEADER] = bytes.first_chunk()?;
    let (body, sum) = bytes.split_at(HEADER - 4);
    let word = |at: usize| body[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let fits = body.starts_with(MAGIC) && crc32c::crc32c(body).to_le_bytes() == sum;
    fits.then_some(())?;
    Some((
        word(8)?,
        Before {
            number: word(16)?,
            length: word(24)?,
        },
    ))
}

/// Appends a frame. Returns the position of its payload in `to`.
pub(super) fn frame(to: &mut Vec<u8>, payload: &[u8], durable: u32) -> usize {
    // Payloads are limited to far less. An oversized one would be rejected as damaged on recovery.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    to.extend(FRAME_MAGIC.to_le_bytes());
    to.extend(length.to_le_bytes());
    to.extend(durable.to_le_bytes());
    to.extend(sum(length, durable, payload).to_le_bytes());
    to.extend(payload);
    to.len() - payload.len()
}

fn sum(length: u32, durable: u32, payload: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&length.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, &durable.to_le_bytes()), payload)
}

/// Decodes the frame at the start of `bytes`. Returns its payload and the recorded durable length,
/// or `None` if it is damaged.
fn read_frame(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (head, rest) = bytes.split_first_chunk::<FRAME>()?;
    let word = |at: usize| head[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let (length, durable) = (word(4)?, word(8)?);
    let payload = rest.get(..length as usize)?;
    (word(0)? == FRAME_MAGIC && word(12)? == sum(length, durable, payload))
        .then_some((payload, durable))
}

/// Reads the log after a start. Returns its index and the end of its last segment, or `None` for an
/// empty log.
pub(super) fn recover(disk: &dyn Disk) -> Result<(Index, Option<Before>), StoreError> {
    let names = disk.list()?;
    let number = |name: &String| u64::from_str_radix(name.strip_suffix(".log")?, 16).ok();
    let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let mut index = Index::default();
    let mut segments = Vec::new();
    for (at, number) in numbers.iter().enumerate() {
        let name = file_name(*number);
        let file = disk.open(&name)?;
        let head = file.read(
            0,
            HEADER.min(usize::try_from(file.length()?).unwrap_or(HEADER)),
        )?;
        match read_header(&head) {
            Some((said, before)) if said == *number => segments.push((*number, before, file)),
            // The creation of the last segment was interrupted before any append.
            _ if at + 1 == numbers.len() && !appended(&file)? => disk.remove(&name)?,
            _ => return Err(corrupt(&name, 0)),
        }
    }
    let mut last = None;
    for (at, (number, _, file)) in segments.iter().enumerate() {
        let counts = match segments.get(at + 1) {
            None => None,
            Some((_, before, _)) if before.number == *number => Some(before.length),
            Some((next, ..)) => return Err(corrupt(&file_name(*next), 0)),
        };
        let length = read_segment(&mut index, *number, file, counts)?;
        if counts.is_none() {
            // The end of the segment may only be in the page cache. The header of the next segment
            // relies on it.
            file.sync()?;
        }
        last = Some(Before {
            number: *number,
            length,
        });
    }
    Ok((index, last))
}

/// Reads the valid part of one segment into the index. Without a known length, reads up to the
/// first torn frame.
fn read_segment(
    index: &mut Index,
    number: u64,
    file: &Arc<dyn LogFile>,
    counts: Option<u64>,
) -> Result<u64, StoreError> {
    let broken = |at: usize| corrupt(&file_name(number), at as u64);
    let length = usize::try_from(file.length()?).map_err(|_| broken(0))?;
    let bytes = file.read(0, length)?;
    let end = counts.map_or(length, |counts| {
        usize::try_from(counts).unwrap_or(usize::MAX)
    });
    let bytes = bytes.get(..end).ok_or_else(|| broken(length))?;
    index
        .segments
        .push_back(Segment::new(number, Arc::clone(file), 0));
    let mut at = HEADER;
    while at < bytes.len() {
        let Some((payload, _)) = read_frame(&bytes[at..]) else {
            if counts.is_some() || acknowledged(&bytes[at..], at) {
                return Err(broken(at));
            }
            break;
        };
        let record = codec::record(payload).ok_or_else(|| broken(at))?;
        index.apply(record, (at + FRAME) as u64, payload.len());
        at += FRAME + payload.len();
    }
    if let Some(segment) = index.segments.back_mut() {
        segment.length = at as u64;
    }
    Ok(at as u64)
}

/// Whether a segment with a damaged header contains frames, which proves that its header was once
/// durable.
fn appended(file: &Arc<dyn LogFile>) -> io::Result<bool> {
    let bytes = file.read(
        0,
        usize::try_from(file.length()?).map_err(io::Error::other)?,
    )?;
    Ok(acknowledged(&bytes, 0))
}

/// Whether a frame after the damage recorded the damaged position as durable.
fn acknowledged(bytes: &[u8], at: usize) -> bool {
    let magic = FRAME_MAGIC.to_le_bytes();
    (1..bytes.len()).any(|skip| {
        let rest = &bytes[skip..];
        rest.starts_with(&magic)
            && read_frame(rest).is_some_and(|(_, durable)| durable as usize > at)
    })
}

fn corrupt(name: &str, offset: u64) -> StoreError {
    StoreError::Corrupt {
        file: name.to_owned(),
        offset,
    }
}
