//! Writing files past the page cache.
//!
//! Pages of a copy that wait for the disk delay the commits of all servers on it: before ext4
//! confirms that one file is durable, it writes the waiting pages of every file in its journal's
//! transaction.

use std::{fs::File, io, os::unix::fs::FileExt};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

/// Alignment of memory, positions and lengths, in bytes. Enough for all common disks.
const ALIGNMENT: usize = 4096;

/// Memory from which direct writes are possible.
pub(super) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    pub(super) fn new(bytes: usize) -> Self {
        let memory = vec![0; bytes + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        // The offset is unknown only in constant evaluation. Unaligned memory is merely slower.
        let start = if start < ALIGNMENT { start } else { 0 };
        Self { memory, start }
    }

    /// Returns the first bytes.
    pub(super) fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.memory[self.start..][..bytes]
    }
}

/// A new file. It is written past the page cache as far as the file system permits.
pub(super) struct DirectFile<'a> {
    file: &'a File,
    is_direct: bool,
}

impl<'a> DirectFile<'a> {
    pub(super) fn new(file: &'a File) -> Self {
        let mut new = Self {
            file,
            is_direct: false,
        };
        new.is_direct = new.switch(true).is_ok();
        new
    }

    /// A file that is written through the page cache, which is faster for small files.
    pub(super) fn cached(file: &'a File) -> Self {
        Self {
            file,
            is_direct: false,
        }
    }

    /// Writes all bytes at this position.
    pub(super) fn write_all_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.is_direct {
            let is_aligned =
                bytes.len().is_multiple_of(ALIGNMENT) && at.is_multiple_of(ALIGNMENT as u64);
            if is_aligned {
                match self.file.write_all_at(bytes, at) {
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {}
                    written => return written,
                }
            }
            self.switch(false)?;
            self.is_direct = false;
        }
        self.file.write_all_at(bytes, at)
    }

    fn switch(&self, is_direct: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(self.file)?;
        flags.set(OFlags::DIRECT, is_direct);
        Ok(fcntl_setfl(self.file, flags)?)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, ops::Range};

    use super::*;

    #[test]
    fn file_has_all_bytes_whatever_their_positions() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut buffer = AlignedBuffer::new(3 * ALIGNMENT);
        for (index, byte) in buffer.first(3 * ALIGNMENT).iter_mut().enumerate() {
            *byte = u8::try_from(index % 251).unwrap();
        }
        let bytes = buffer.first(3 * ALIGNMENT).to_vec();
        let cases: [&[Range<usize>]; 3] = [
            &[0..4096, 4096..12_288],
            &[0..4096, 4096..5000, 5000..12_288],
            &[0..1, 1..12_288],
        ];
        for (number, ranges) in cases.into_iter().enumerate() {
            let path = dir.path().join(number.to_string());
            let file = File::create(&path).unwrap();
            let mut direct = DirectFile::new(&file);
            for range in ranges {
                let part = &buffer.first(bytes.len())[range.clone()];
                direct.write_all_at(part, range.start as u64).unwrap();
            }
            assert!(fs::read(&path).unwrap() == bytes, "{ranges:?}");
        }
    }

    #[test]
    fn memory_is_aligned() {
        let mut buffer = AlignedBuffer::new(10);
        assert_eq!(buffer.first(10).as_ptr().align_offset(ALIGNMENT), 0);
    }
}
