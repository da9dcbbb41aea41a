//! Reads ZIP archives: the central directory, and files that are stored or deflated.
//!
//! Enough for wheels with a pinned digest. Encrypted archives, those in several parts and those of
//! more than 4 GiB are rejected. The format is that of APPNOTE.TXT 6.3.10.

use std::io::{self, Read};

use flate2::read::DeflateDecoder;

/// End of central directory: signature, and size without the comment.
const END: (u32, usize) = (0x0605_4b50, 22);
/// Header in the central directory: signature, and size without name, extra field and comment.
const DIRECTORY: (u32, usize) = (0x0201_4b50, 46);
/// Header before the content: signature, and size without name and extra field.
const LOCAL: (u32, usize) = (0x0403_4b50, 30);
/// Maximum size of the comment at the end of an archive.
const COMMENT_MAX: usize = 0xffff;
/// Methods of compression.
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// A file of an archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZipEntry<'a> {
    /// Path in the archive. Not checked: it may be absolute, or lead outside.
    pub(super) name: &'a str,
    archive: &'a [u8],
    /// Offset of the header before the content.
    offset: usize,
    compressed: usize,
    size: u64,
    method: u16,
}

/// Returns the files of an archive in the order of its directory.
pub(super) fn entries(archive: &[u8]) -> io::Result<Vec<ZipEntry<'_>>> {
    let latest = archive.len().checked_sub(END.1).ok_or_else(broken)?;
    let earliest = latest.saturating_sub(COMMENT_MAX);
    let mut places = (earliest..=latest).rev();
    let end = places
        .find(|place| u32_at(archive, *place).is_ok_and(|found| found == END.0))
        .ok_or_else(broken)?;
    let count = u16_at(archive, end + 10)?;
    let mut place = size_at(archive, end + 16)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        if u32_at(archive, place)? != DIRECTORY.0 {
            return Err(broken());
        }
        let name_length = usize::from(u16_at(archive, place + 28)?);
        let name = bytes_at(archive, place + DIRECTORY.1, name_length)?;
        entries.push(ZipEntry {
            name: std::str::from_utf8(name).map_err(|_| broken())?,
            archive,
            offset: size_at(archive, place + 42)?,
            compressed: size_at(archive, place + 20)?,
            size: u32_at(archive, place + 24)?.into(),
            method: u16_at(archive, place + 10)?,
        });
        let extra = usize::from(u16_at(archive, place + 30)?);
        let comment = usize::from(u16_at(archive, place + 32)?);
        place += DIRECTORY.1 + name_length + extra + comment;
    }
    Ok(entries)
}

impl ZipEntry<'_> {
    /// Returns the content of the file. Fails if it has more than `bytes_max` bytes, or not the
    /// recorded size.
    pub(super) fn content(&self, bytes_max: u64) -> io::Result<Vec<u8>> {
        if self.size > bytes_max || u32_at(self.archive, self.offset)? != LOCAL.0 {
            return Err(broken());
        }
        let name = usize::from(u16_at(self.archive, self.offset + 26)?);
        let extra = usize::from(u16_at(self.archive, self.offset + 28)?);
        let place = self.offset + LOCAL.1 + name + extra;
        let compressed = bytes_at(self.archive, place, self.compressed)?;
        let mut content = Vec::new();
        // One byte more than recorded, to notice a longer content.
        let read = match self.method {
            STORED => compressed.take(self.size + 1).read_to_end(&mut content)?,
            DEFLATED => DeflateDecoder::new(compressed)
                .take(self.size + 1)
                .read_to_end(&mut content)?,
            _ => return Err(broken()),
        };
        if read as u64 == self.size {
            Ok(content)
        } else {
            Err(broken())
        }
    }
}

fn broken() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the archive is damaged or of an unknown kind",
    )
}

fn bytes_at(archive: &[u8], place: usize, length: usize) -> io::Result<&[u8]> {
    place
        .checked_add(length)
        .and_then(|end| archive.get(place..end))
        .ok_or_else(broken)
}

fn u16_at(archive: &[u8], place: usize) -> io::Result<u16> {
    let bytes = bytes_at(archive, place, 2)?;
    Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn u32_at(archive: &[u8], place: usize) -> io::Result<u32> {
    let bytes = bytes_at(archive, place, 4)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn size_at(archive: &[u8], place: usize) -> io::Result<usize> {
    usize::try_from(u32_at(archive, place)?).map_err(|_| broken())
}

/// Makes an archive of deflated files.
#[cfg(test)]
pub(super) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    use std::io::Write;

    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for (name, content) in files {
        let mut encoder =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        let compressed = encoder.finish().unwrap();
        let word = |value: usize| u32::try_from(value).unwrap().to_le_bytes();
        // Flags, method, time and date; the checksum is not read.
        let mut common = vec![20, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        common.extend(word(compressed.len()));
        common.extend(word(content.len()));
        common.extend(&word(name.len())[..2]);
        common.extend([0, 0]);
        directory.extend(DIRECTORY.0.to_le_bytes());
        directory.extend([20, 0]);
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(word(archive.len()));
        directory.extend(name.as_bytes());
        archive.extend(LOCAL.0.to_le_bytes());
        archive.extend(common);
        archive.extend(name.as_bytes());
        archive.extend(compressed);
    }
    let start = u32::try_from(archive.len()).unwrap();
    let size = u32::try_from(directory.len()).unwrap();
    let count = u16::try_from(files.len()).unwrap();
    archive.extend(directory);
    archive.extend(END.0.to_le_bytes());
    archive.extend([0; 4]);
    archive.extend(count.to_le_bytes());
    archive.extend(count.to_le_bytes());
    archive.extend(size.to_le_bytes());
    archive.extend(start.to_le_bytes());
    archive.extend([0, 0]);
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_archive_are_read() {
        let long = vec![b'x'; 100_000];
        let archive = archive(&[("a/b.txt", b"hello"), ("long", &long), ("empty", b"")]);
        let entries = entries(&archive).unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["a/b.txt", "long", "empty"]);
        assert_eq!(entries[0].content(5).unwrap(), b"hello");
        entries[0].content(4).unwrap_err();
        assert_eq!(entries[1].content(1 << 20).unwrap(), long);
        assert_eq!(entries[2].content(0).unwrap(), b"");
    }

    #[test]
    fn damaged_archives_are_rejected_without_a_panic() {
        let whole = archive(&[("a", b"hello"), ("b", b"world")]);
        for length in 0..whole.len() {
            let read = entries(&whole[..length]);
            assert!(read.is_err(), "{length}");
        }
        for place in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[place] = value;
                for entry in entries(&damaged).unwrap_or_default() {
                    // The outcome depends on the byte; it must not exceed the limit.
                    let content = entry.content(1000);
                    assert!(content.is_err() || content.unwrap().len() <= 1000);
                }
            }
        }
    }
}
