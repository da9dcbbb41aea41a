//! Checksums of Parquet files.
//!
//! A table with the CRC-32C of each block of the file is stored directly before the Parquet footer,
//! where other Parquet readers ignore it. Every byte is covered: the blocks cover the data and the
//! indexes, and the table has checksums of the footer and of itself.
//!
//! ```text
//! data and indexes | table: u32 per block, data length u64, footer u32, table u32, magic | footer
//! ```

use std::ops::Range;

use bytes::Bytes;

/// Size of a block in bytes. A read is extended to whole blocks.
pub(super) const BLOCK_BYTES: u64 = BLOCK_LENGTH as u64;
/// [`BLOCK_BYTES`] as the length of a slice.
const BLOCK_LENGTH: usize = 32 * 1024;
/// The last bytes of the table.
const TABLE_MAGIC: &[u8; 8] = b"gantry\x01c";
/// Data length, checksum of the footer, checksum of the table, magic.
const TABLE_END_BYTES: usize = 8 + 4 + 4 + 8;
/// Length of the footer, magic.
const FOOTER_END_BYTES: usize = 4 + 4;
const PARQUET_MAGIC: &[u8; 4] = b"PAR1";
/// The creator in the footer of files with a table. Its absence identifies files of earlier
/// versions, which have no checksums.
pub(super) const CREATED_BY: &str = "gantry with checksums";

/// Maximum distance of the creator from the end of a file in bytes.
const CREATOR_BYTES_MAX: usize = 1024;
/// Minimum size of a file in bytes.
const FILE_BYTES_MIN: u64 = 12;

/// Whether a file of this size is too small to be valid.
pub(super) fn is_cut(size: u64) -> bool {
    size < FILE_BYTES_MIN
}

/// The content of a file differs from the content that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The file ends early or has no valid end.
    #[error("the file is cut or its end is damaged")]
    End,
    /// The table of checksums is damaged.
    #[error("the table of checksums is damaged")]
    Table,
    /// The footer is damaged.
    #[error("the footer is damaged")]
    Footer,
    /// A block is damaged.
    #[error("the block at byte {0} is damaged")]
    Block(u64),
    /// The disk cannot read the file.
    #[error("the disk cannot read the file")]
    Unreadable,
    /// The file has no checksums and is not a valid Parquet file.
    #[error("the file is not a valid Parquet file")]
    Format,
    /// The file was written and does not exist.
    #[error("the file is missing")]
    Missing,
}

/// Inserts the table into a complete Parquet file.
pub(super) fn seal(mut file: Vec<u8>) -> Vec<u8> {
    let Some(footer_start) = footer_start(&file, file.len() as u64) else {
        return file;
    };
    let footer = file.split_off(footer_start);
    let data_length = file.len() as u64;
    let mut table = Vec::new();
    for block in file.chunks(BLOCK_LENGTH) {
        table.extend(crc32c::crc32c(block).to_le_bytes());
    }
    table.extend(data_length.to_le_bytes());
    table.extend(crc32c::crc32c(&footer).to_le_bytes());
    table.extend(crc32c::crc32c(&table).to_le_bytes());
    table.extend(TABLE_MAGIC);
    file.extend(table);
    file.extend(footer);
    file
}

/// Returns the offset of the footer in the last bytes of a file, or `None` if they do not contain
/// it.
fn footer_start(tail: &[u8], size: u64) -> Option<usize> {
    let rest = tail.strip_suffix(PARQUET_MAGIC)?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize + FOOTER_END_BYTES;
    if length as u64 > size {
        return None;
    }
    tail.len().checked_sub(length)
}

/// The checksums of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileChecksums {
    /// Size of the file in bytes.
    size: u64,
    /// Length of the part that blocks cover, in bytes.
    data_length: u64,
    blocks: Vec<u32>,
    footer: u32,
    footer_start: u64,
}

/// The result of reading the checksums from the end of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TailContent {
    Checksums(FileChecksums),
    /// A file of an earlier version, without checksums.
    Unchecked,
    /// More bytes are needed: the length of the end of the file.
    Incomplete(u64),
}

impl FileChecksums {
    /// Reads the checksums from the last bytes of a file of `size` bytes.
    pub(super) fn of_tail(tail: &[u8], size: u64) -> Result<TailContent, Damage> {
        if !tail.ends_with(PARQUET_MAGIC) || tail.len() < FOOTER_END_BYTES {
            return Err(Damage::End);
        }
        let complete = tail.len() as u64 >= size;
        let Some(footer_start) = footer_start(tail, size) else {
            return match footer_length(tail) {
                Some(length) if !complete && length < size => Ok(TailContent::Incomplete(
                    (length + TABLE_END_BYTES as u64).min(size),
                )),
                _ => Err(Damage::End),
            };
        };
        let (before, footer) = tail.split_at(footer_start);
        // The creator is near the end. A damaged length of the footer must not hide it.
        let end = &tail[tail.len().saturating_sub(CREATOR_BYTES_MAX)..];
        let is_checked = contains(end, CREATED_BY.as_bytes());
        let Some((table, end)) = before.split_last_chunk::<TABLE_END_BYTES>() else {
            let needed = (footer.len() + TABLE_END_BYTES) as u64;
            return match (complete, is_checked) {
                (false, _) if needed <= size => Ok(TailContent::Incomplete(needed)),
                (_, true) => Err(Damage::Table),
                (_, false) => Ok(TailContent::Unchecked),
            };
        };
        if !end.ends_with(TABLE_MAGIC) {
            return if is_checked {
                Err(Damage::Table)
            } else {
                Ok(TailContent::Unchecked)
            };
        }
        let data_length = u64_at(end, 0).ok_or(Damage::Table)?;
        let table_bytes = data_length.div_ceil(BLOCK_BYTES).saturating_mul(4);
        let tail_bytes = table_bytes.saturating_add((TABLE_END_BYTES + footer.len()) as u64);
        if data_length.checked_add(tail_bytes) != Some(size) {
            return Err(Damage::Table);
        }
        if tail_bytes > tail.len() as u64 {
            return Ok(TailContent::Incomplete(tail_bytes));
        }
        let table_length = usize::try_from(table_bytes).map_err(|_| Damage::Table)?;
        let blocks = &table[table.len() - table_length..];
        let checksum = crc32c::crc32c_append(crc32c::crc32c(blocks), &end[..12]);
        if u32_at(end, 12) != Some(checksum) {
            return Err(Damage::Table);
        }
        let checksums = Self {
            size,
            data_length,
            blocks: blocks
                .chunks_exact(4)
                .filter_map(|it| u32_at(it, 0))
                .collect(),
            footer: u32_at(end, 8).ok_or(Damage::Table)?,
            footer_start: size - footer.len() as u64,
        };
        if crc32c::crc32c(footer) != checksums.footer {
            return Err(Damage::Footer);
        }
        Ok(TailContent::Checksums(checksums))
    }

    /// Approximate size in memory in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.blocks.len() * size_of::<u32>()
    }

    /// Extends a range to whole blocks, and to the end of the file if it reaches beyond the blocks.
    pub(super) fn extend(&self, range: &Range<u64>) -> Range<u64> {
        let start = range.start.min(self.data_length) / BLOCK_BYTES * BLOCK_BYTES;
        let end = if range.end <= self.data_length {
            let end = range.end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
            end.min(self.data_length)
        } else {
            self.size
        };
        start..end
    }

    /// Verifies the end of a file, from the start of a block or from within the table on.
    pub(super) fn verify_tail(&self, range: &Range<u64>, tail: &[u8]) -> Result<(), Damage> {
        if range.start >= self.data_length {
            // The table and the footer were verified when they were read.
            return Ok(());
        }
        self.verify(range, tail)
    }

    /// Verifies the bytes of an extended range.
    pub(super) fn verify(&self, range: &Range<u64>, bytes: &[u8]) -> Result<(), Damage> {
        if bytes.len() as u64 != range.end - range.start {
            return Err(Damage::End);
        }
        let data_end = self.data_length.saturating_sub(range.start);
        let data_end = usize::try_from(data_end).unwrap_or(usize::MAX);
        let data = &bytes[..data_end.min(bytes.len())];
        let mut at = range.start;
        for block in data.chunks(BLOCK_LENGTH) {
            let number = usize::try_from(at / BLOCK_BYTES).unwrap_or(usize::MAX);
            if self.blocks.get(number) != Some(&crc32c::crc32c(block)) {
                return Err(Damage::Block(at));
            }
            at += block.len() as u64;
        }
        if range.end == self.size && range.start <= self.footer_start {
            let footer = usize::try_from(self.footer_start - range.start).unwrap_or(usize::MAX);
            let footer = bytes.get(footer..).ok_or(Damage::End)?;
            if crc32c::crc32c(footer) != self.footer {
                return Err(Damage::Footer);
            }
        }
        Ok(())
    }
}

/// Verifies a complete file. Returns whether it has checksums.
pub(super) fn verify_file(file: &Bytes) -> Result<bool, Damage> {
    let size = file.len() as u64;
    match FileChecksums::of_tail(file, size)? {
        TailContent::Checksums(checksums) => {
            checksums.verify(&(0..size), file)?;
            Ok(true)
        }
        TailContent::Unchecked => Ok(false),
        TailContent::Incomplete(_) => Err(Damage::End),
    }
}

/// Whether the bytes of a range are intact, as far as checksums exist.
pub(super) fn is_intact(file: &Bytes, range: &Range<u64>) -> bool {
    match FileChecksums::of_tail(file, file.len() as u64) {
        Ok(TailContent::Checksums(checksums)) => {
            let extended = checksums.extend(range);
            let start = usize::try_from(extended.start).unwrap_or(usize::MAX);
            let end = usize::try_from(extended.end).unwrap_or(usize::MAX);
            let bytes = file.get(start..end);
            bytes.is_some_and(|bytes| checksums.verify(&extended, bytes).is_ok())
        }
        Ok(TailContent::Unchecked) => true,
        Ok(TailContent::Incomplete(_)) | Err(_) => false,
    }
}

/// Returns the length of the footer and its end in the last bytes of a file.
fn footer_length(tail: &[u8]) -> Option<u64> {
    let rest = tail.strip_suffix(PARQUET_MAGIC)?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    Some(u64::from(u32::from_le_bytes(*length)) + FOOTER_END_BYTES as u64)
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with the structure that the checksums rely on.
    fn sealed(data: usize) -> Bytes {
        let mut file: Vec<u8> = (0..data)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect();
        let footer = format!("schema {CREATED_BY} statistics");
        file.extend(footer.as_bytes());
        file.extend(u32::try_from(footer.len()).unwrap().to_le_bytes());
        file.extend(PARQUET_MAGIC);
        seal(file).into()
    }

    fn checksums(file: &Bytes) -> FileChecksums {
        match FileChecksums::of_tail(file, file.len() as u64).unwrap() {
            TailContent::Checksums(checksums) => checksums,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_flipped_bit_of_a_file_is_detected() {
        let file = sealed(3000);
        assert_eq!(verify_file(&file), Ok(true));
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut damaged = file.to_vec();
                damaged[at] ^= 1 << bit;
                assert!(verify_file(&damaged.into()).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn every_cut_of_a_file_is_detected() {
        let file = sealed(100);
        for length in 0..file.len() {
            assert!(verify_file(&file.slice(..length)).is_err(), "{length}");
        }
    }

    #[test]
    fn extended_ranges_are_verified_block_by_block() {
        let block = BLOCK_BYTES;
        let file = sealed(3 * BLOCK_LENGTH + 100);
        let checksums = checksums(&file);
        let size = file.len() as u64;
        for (range, extended) in [
            (5..6, 0..block),
            (block - 1..block + 1, 0..2 * block),
            (3 * block + 1..3 * block + 2, 3 * block..3 * block + 100),
            (2 * block..3 * block + 101, 2 * block..size),
            (size - 8..size, 3 * block..size),
        ] {
            assert_eq!(checksums.extend(&range), extended, "{range:?}");
            let part = |file: &Bytes| {
                let start = usize::try_from(extended.start).unwrap();
                let end = usize::try_from(extended.end).unwrap();
                file.slice(start..end)
            };
            assert_eq!(checksums.verify(&extended, &part(&file)), Ok(()));
            let mut damaged = file.to_vec();
            damaged[usize::try_from(extended.start).unwrap() + 7] ^= 1;
            let damage = checksums.verify(&extended, &part(&damaged.into()));
            assert_eq!(damage, Err(Damage::Block(extended.start)));
        }
    }

    #[test]
    fn incomplete_tail_names_the_length_that_suffices() {
        let file = sealed(40 * BLOCK_LENGTH);
        let size = file.len() as u64;
        let mut length = FOOTER_END_BYTES as u64;
        let mut reads = 0;
        loop {
            let tail = file.slice(usize::try_from(size - length).unwrap()..);
            match FileChecksums::of_tail(&tail, size).unwrap() {
                TailContent::Incomplete(longer) => {
                    assert!(longer > length);
                    length = longer;
                }
                content => {
                    assert_eq!(content, TailContent::Checksums(checksums(&file)));
                    break;
                }
            }
            reads += 1;
            assert!(reads <= 3);
        }
    }

    #[test]
    fn file_of_an_earlier_version_is_unchecked() {
        let mut file = b"PAR1 some data and a footer without the new creator".to_vec();
        file.extend(20_u32.to_le_bytes());
        file.extend(PARQUET_MAGIC);
        assert_eq!(verify_file(&file.into()), Ok(false));
        assert_eq!(verify_file(&Bytes::new()), Err(Damage::End));
    }
}
