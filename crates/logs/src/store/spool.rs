//! Spool files: lines of one project and segment that readers of a tail have not released. The name
//! records the project, the epoch of the tail, the segment, the number of the first line and the
//! number of lines.

use std::io;

use super::{
    codec,
    disk::{Disk, LogFile},
    index::FrameExtent,
    log,
    log::FrameSalt,
};
use crate::event::Event;

/// Suffix of spool files.
const SUFFIX: &str = ".tail";

/// A spool file, described by its name.
#[derive(Debug, Clone)]
pub(super) struct SpoolFile {
    pub(super) name: String,
    /// The number of the first line.
    pub(super) first: u64,
    pub(super) rows: u64,
    /// The length of the file. Files without lines count as empty.
    pub(super) bytes: u64,
}

impl SpoolFile {
    pub(super) fn new(project: &str, epoch: &str, segment: u64, first: u64, rows: u64) -> Self {
        Self {
            name: format!("{project}.{epoch}.{segment:016x}.{first:016x}.{rows}{SUFFIX}"),
            first,
            rows,
            bytes: 0,
        }
    }

    /// The number after the last line.
    pub(super) fn end(&self) -> u64 {
        self.first + self.rows
    }
}

/// Parses the name of a spool file: project, epoch, segment and the file.
pub(super) fn parse(name: &str) -> Option<(&str, &str, u64, SpoolFile)> {
    let parts: Vec<_> = name.strip_suffix(SUFFIX)?.split('.').collect();
    let [project, epoch, segment, first, rows] = parts.as_slice() else {
        return None;
    };
    let segment = u64::from_str_radix(segment, 16).ok()?;
    let file = SpoolFile {
        name: name.to_owned(),
        first: u64::from_str_radix(first, 16).ok()?,
        rows: rows.parse().ok()?,
        bytes: 0,
    };
    Some((project, epoch, segment, file))
}

/// Frames of a spool file are never searched, so they need no salt.
const FRAMES: FrameSalt = FrameSalt(None);

/// Writes a spool file durably: a frame with the length and the number of lines of each further
/// frame, then the frames of the log. Returns its length.
pub(super) fn write(
    disk: &dyn Disk,
    name: &str,
    segment: &dyn LogFile,
    extents: &[FrameExtent],
) -> io::Result<u64> {
    let mut directory = Vec::with_capacity(extents.len() * 8);
    for extent in extents {
        let length = u32::try_from(extent.length).map_err(io::Error::other)?;
        let rows = u32::try_from(extent.span.rows).map_err(io::Error::other)?;
        directory.extend(length.to_le_bytes());
        directory.extend(rows.to_le_bytes());
    }
    let file = disk.create(name)?;
    let mut bytes = Vec::new();
    FRAMES.append_frame(&mut bytes, &directory, 0);
    let mut at = 0;
    for extent in extents {
        file.write(at, &bytes)?;
        at += bytes.len() as u64;
        bytes.clear();
        let payload = segment.read(extent.offset, extent.length)?;
        FRAMES.append_frame(&mut bytes, &payload, 0);
    }
    file.write(at, &bytes)?;
    file.sync()?;
    Ok(at + bytes.len() as u64)
}

/// Reads the frames of a spool file in order.
pub(super) struct SpoolReader<'a> {
    file: &'a dyn LogFile,
    /// Length and number of lines of each frame.
    directory: Vec<u8>,
    /// Index of the next frame.
    next: usize,
    /// Position of the next frame.
    at: u64,
    /// Number of its first line.
    line: u64,
}

impl<'a> SpoolReader<'a> {
    /// Reads the first frame. `first` is the number of the first line.
    pub(super) fn open(file: &'a dyn LogFile, first: u64) -> io::Result<Self> {
        let (directory, at) = read_frame(file, 0)?;
        Ok(Self {
            file,
            directory,
            next: 0,
            at,
            line: first,
        })
    }

    /// Returns the next frame with a line from `from` on, and the number of its first line.
    pub(super) fn next(&mut self, from: u64) -> io::Result<Option<(u64, Vec<Event>)>> {
        while let Some(entry) = self.directory.get(self.next * 8..self.next * 8 + 8) {
            let length = log::FRAME_HEADER_BYTES as u64 + u64::from(u32_at(entry, 0));
            let (line, at) = (self.line, self.at);
            self.next += 1;
            self.line += u64::from(u32_at(entry, 4));
            self.at += length;
            if self.line > from {
                let (payload, _) = read_frame(self.file, at)?;
                let mut events = Vec::new();
                codec::events(&payload, &mut events).ok_or_else(damaged)?;
                return Ok(Some((line, events)));
            }
        }
        Ok(None)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|it| it.try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the checksum does not match")
}

/// Reads a frame. Returns its payload and the position after it.
fn read_frame(file: &dyn LogFile, at: u64) -> io::Result<(Vec<u8>, u64)> {
    let head = file.read(at, log::FRAME_HEADER_BYTES)?;
    let length = log::FRAME_HEADER_BYTES + u32_at(&head, 4) as usize;
    let end = at + length as u64;
    if end > file.length()? {
        return Err(damaged());
    }
    let bytes = file.read(at, length)?;
    let (payload, _) = FRAMES.read_frame(&bytes).ok_or_else(damaged)?;
    Ok((payload.to_vec(), end))
}
