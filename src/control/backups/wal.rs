//! The write-ahead log: names and headers of segments, bounds of records and times of commits.
//!
//! Offsets follow `access/xlog_internal.h` and `access/xlogrecord.h`, and hold from PostgreSQL 15
//! to 18. Segments belong to a tenant: every length is checked, and a record counts only with the
//! right checksum.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Size of a page, in bytes.
pub(super) const PAGE: usize = 8192;
/// Size of a page's header, and of that of a segment's first page.
const SHORT_HEADER: usize = 24;
const LONG_HEADER: usize = 40;
/// Flags of a page.
const CONTINUES_RECORD: u16 = 0x0001;
const HAS_LONG_HEADER: u16 = 0x0002;
/// Size of a record's header; its checksum is the last part.
const RECORD_HEADER: usize = 24;
const CHECKSUM_AT: usize = 20;
/// Bytes of a record that are kept: the header, and the begin of a commit.
const HEAD_MAX: usize = 128;
/// Resource managers, and the kinds of their records.
const RM_XLOG: u8 = 0;
const RM_XACT: u8 = 1;
const XLOG_SWITCH: u8 = 0x40;
const XACT_COMMIT: u8 = 0x00;
const XACT_COMMIT_PREPARED: u8 = 0x30;
/// Markers of the parts of a record.
const PART_ORIGIN: u8 = 253;
const PART_TOP_XID: u8 = 252;
const PART_DATA_SHORT: u8 = 255;
const PART_DATA_LONG: u8 = 254;
/// 2000-01-01, the epoch of PostgreSQL, in seconds since 1970.
const POSTGRES_EPOCH: i64 = 946_684_800;

/// A position in the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Lsn(pub u64);

impl Lsn {
    /// The value for a column of type `bigint`.
    pub fn to_column(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// Reads the value of a column.
    pub fn from_column(value: i64) -> Self {
        Self(u64::try_from(value).unwrap_or(0))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (high, low) = text.split_once('/')?;
            let high = u32::from_str_radix(high, 16).ok()?;
            let low = u32::from_str_radix(low, 16).ok()?;
            Some(Self((u64::from(high) << 32) | u64::from(low)))
        };
        parse().ok_or_else(|| format!("{text:?} is not a position in the write-ahead log"))
    }
}

impl TryFrom<String> for Lsn {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Lsn> for String {
    fn from(lsn: Lsn) -> Self {
        lsn.to_string()
    }
}

/// Name of a segment: timeline and position. Names of one timeline are in the order of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Timeline.
    pub timeline: u32,
    high: u32,
    low: u32,
}

impl SegmentName {
    /// Returns the segment that contains a position.
    pub fn of(timeline: u32, at: Lsn, segment_bytes: u64) -> Self {
        let number = at.0 / segment_bytes.max(1);
        let per_file = ((1_u64 << 32) / segment_bytes.max(1)).max(1);
        Self {
            timeline,
            high: u32::try_from(number / per_file).unwrap_or(u32::MAX),
            low: u32::try_from(number % per_file).unwrap_or(u32::MAX),
        }
    }

    /// First position of the segment.
    pub fn start(self, segment_bytes: u64) -> Lsn {
        let within = u64::from(self.low).saturating_mul(segment_bytes);
        Lsn((u64::from(self.high) << 32).saturating_add(within))
    }

    /// First position after the segment.
    pub fn end(self, segment_bytes: u64) -> Lsn {
        Lsn(self.start(segment_bytes).0.saturating_add(segment_bytes))
    }

    /// The segment after this one.
    #[must_use]
    pub fn next(self, segment_bytes: u64) -> Self {
        Self::of(self.timeline, self.end(segment_bytes), segment_bytes)
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}{:08X}{:08X}", self.timeline, self.high, self.low)
    }
}

impl FromStr for SegmentName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let digits = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
            if text.len() != 24 || !text.bytes().all(digits) {
                return None;
            }
            let part = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok();
            Some(Self {
                timeline: part(0)?,
                high: part(8)?,
                low: part(16)?,
            })
        };
        parse().ok_or_else(|| format!("{text:?} is not the name of a segment"))
    }
}

/// The first page header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// System identifier of the cluster.
    pub system_id: u64,
    /// Size of a segment, in bytes.
    pub segment_bytes: u64,
    /// Timeline of the first page.
    pub timeline: u32,
    /// Position of the first byte.
    pub start: Lsn,
}

impl SegmentHeader {
    /// Size of the header, in bytes.
    pub const BYTES: usize = LONG_HEADER;

    /// Reads the header. `None` if the bytes do not begin a segment.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let info = u16_at(bytes, 2)?;
        let is_page = u32_at(bytes, 36)? as usize == PAGE && u16_at(bytes, 0)? != 0;
        if info & HAS_LONG_HEADER == 0 || !is_page {
            return None;
        }
        let segment_bytes = u64::from(u32_at(bytes, 32)?);
        let sizes = (1 << 20)..=(1 << 30);
        if !segment_bytes.is_power_of_two() || !sizes.contains(&segment_bytes) {
            return None;
        }
        Some(Self {
            system_id: u64_at(bytes, 24)?,
            segment_bytes,
            timeline: u32_at(bytes, 4)?,
            start: Lsn(u64_at(bytes, 8)?),
        })
    }
}

/// Returns the size of the whole pages at the begin of a segment that were written for this
/// segment. The others are from its earlier use, or were never written.
pub(super) fn written_bytes(segment: &[u8], start: Lsn) -> usize {
    let mut at = 0;
    while let Some(page) = segment.get(at..at + PAGE) {
        if u16_at(page, 0).unwrap_or(0) == 0 || u64_at(page, 8) != Some(start.0 + at as u64) {
            break;
        }
        at += PAGE;
    }
    at
}

/// A whole record with the right checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalRecord {
    /// Position of its first byte.
    pub start: Lsn,
    /// First position after it.
    pub end: Lsn,
    /// Time of the commit, if it is one.
    pub committed_at: Option<DateTime<Utc>>,
}

/// The reason why a scan ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanEnd {
    /// The segment has been read to its end.
    Segment,
    /// The log ends here.
    Log,
    /// The visitor asked to stop.
    Stopped,
}

/// Reads the records of consecutive segments.
#[derive(Debug, Default)]
pub struct WalScanner {
    /// The record in progress.
    record: Option<PartialRecord>,
    /// Rest of a record that began before the scan, in bytes.
    skipped: u64,
    is_started: bool,
    /// Whether the rest of the segment is unused.
    is_switched: bool,
}

#[derive(Debug)]
struct PartialRecord {
    start: u64,
    total: u64,
    read: u64,
    head: Vec<u8>,
    checksum: u32,
}

impl WalScanner {
    /// Reads one segment, which follows that of the call before, and calls `visit` with each whole
    /// record. `visit` returns whether to continue.
    pub fn scan(
        &mut self,
        segment: &[u8],
        start: Lsn,
        visit: &mut impl FnMut(&WalRecord) -> bool,
    ) -> ScanEnd {
        self.is_switched = false;
        for (number, page) in segment.chunks(PAGE).enumerate() {
            if self.is_switched {
                return ScanEnd::Segment;
            }
            let address = start.0 + (number * PAGE) as u64;
            if page.len() < PAGE
                || u16_at(page, 0).unwrap_or(0) == 0
                || u64_at(page, 8) != Some(address)
            {
                return ScanEnd::Log;
            }
            match self.scan_page(page, address, visit) {
                ScanEnd::Segment => {}
                end => return end,
            }
        }
        ScanEnd::Segment
    }

    fn scan_page(
        &mut self,
        page: &[u8],
        address: u64,
        visit: &mut impl FnMut(&WalRecord) -> bool,
    ) -> ScanEnd {
        let info = u16_at(page, 2).unwrap_or(0);
        let remaining = u64::from(u32_at(page, 16).unwrap_or(0));
        let continues = info & CONTINUES_RECORD != 0;
        let mut at = if info & HAS_LONG_HEADER == 0 {
            SHORT_HEADER
        } else {
            LONG_HEADER
        };
        if !self.is_started {
            self.is_started = true;
            self.skipped = if continues { remaining } else { 0 };
        }
        let expected = self.record.as_ref().map(|it| it.total - it.read);
        if expected.is_some_and(|rest| !continues || rest != remaining) {
            // A crash cut the record off; its rest was never written.
            self.record = None;
            self.skipped = if continues { remaining } else { 0 };
        }
        let skipped = self.skipped.min((PAGE - at) as u64);
        self.skipped -= skipped;
        at += usize::try_from(skipped).unwrap_or(PAGE);
        if self.skipped > 0 {
            return ScanEnd::Segment;
        }
        at = at.next_multiple_of(8);
        while at < PAGE {
            let mut record = match self.record.take() {
                Some(record) => record,
                None => match PartialRecord::begin(page, at, address) {
                    Some(record) => record,
                    None => return ScanEnd::Log,
                },
            };
            at += record.add(&page[at..]);
            if record.read < record.total {
                self.record = Some(record);
                break;
            }
            at = at.next_multiple_of(8);
            let Some(whole) = record.finish(address + at as u64) else {
                return ScanEnd::Log;
            };
            self.is_switched = record.kind() == Some((RM_XLOG, XLOG_SWITCH));
            if !visit(&whole) {
                return ScanEnd::Stopped;
            }
            if self.is_switched {
                break;
            }
        }
        ScanEnd::Segment
    }
}

impl PartialRecord {
    /// Begins a record. `None` if there is none.
    fn begin(page: &[u8], at: usize, address: u64) -> Option<Self> {
        let total = u64::from(u32_at(page, at)?);
        (total >= RECORD_HEADER as u64).then(|| Self {
            start: address + at as u64,
            total,
            read: 0,
            head: Vec::new(),
            checksum: 0,
        })
    }

    /// Adds the bytes of the record in this page, and returns their number.
    fn add(&mut self, page: &[u8]) -> usize {
        let wanted = usize::try_from(self.total - self.read).unwrap_or(page.len());
        let part = &page[..wanted.min(page.len())];
        let read = usize::try_from(self.read).unwrap_or(usize::MAX);
        let kept = HEAD_MAX.saturating_sub(read).min(part.len());
        self.head.extend_from_slice(&part[..kept]);
        // The checksum begins with the bytes after the header.
        let header = RECORD_HEADER.saturating_sub(read).min(part.len());
        self.checksum = crc32c::crc32c_append(self.checksum, &part[header..]);
        self.read += part.len() as u64;
        part.len()
    }

    /// Returns the complete record. `None` if its checksum is wrong.
    fn finish(&self, end: u64) -> Option<WalRecord> {
        let checksum = crc32c::crc32c_append(self.checksum, self.head.get(..CHECKSUM_AT)?);
        (u32_at(&self.head, CHECKSUM_AT)? == checksum).then(|| WalRecord {
            start: Lsn(self.start),
            end: Lsn(end),
            committed_at: self.committed_at(),
        })
    }

    /// Resource manager, and kind of record with the flags of that manager.
    fn kind(&self) -> Option<(u8, u8)> {
        Some((*self.head.get(17)?, *self.head.get(16)? & 0xF0))
    }

    fn committed_at(&self) -> Option<DateTime<Utc>> {
        let (manager, info) = self.kind()?;
        let kind = info & 0x70;
        if manager != RM_XACT || (kind != XACT_COMMIT && kind != XACT_COMMIT_PREPARED) {
            return None;
        }
        let mut at = RECORD_HEADER;
        loop {
            match *self.head.get(at)? {
                PART_ORIGIN => at += 3,
                PART_TOP_XID => at += 5,
                PART_DATA_SHORT | PART_DATA_LONG => break,
                _ => return None,
            }
        }
        at += if self.head[at] == PART_DATA_SHORT {
            2
        } else {
            5
        };
        let micros = i64::try_from(u64_at(&self.head, at)?).ok()?;
        DateTime::from_timestamp_micros(micros.checked_add(POSTGRES_EPOCH * 1_000_000)?)
    }
}

// PostgreSQL writes these files in the byte order of the machine.

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk().copied();
    bytes.map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk().copied();
    bytes.map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk().copied();
    bytes.map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests;
