//! Files of tar archives, within bounds.

use std::io::{self, Read};

use tar::{Archive, Entry};

/// Largest number of entries of an archive.
const ENTRIES_MAX: usize = 10_000;

/// Returns the content of one regular file of an archive.
///
/// Errors: a broken archive, one without the file, or a file larger than `bytes_max`.
pub(super) fn member(archive: impl Read, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
    for entry in Archive::new(archive).entries()?.take(ENTRIES_MAX) {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() && entry.path_bytes() == name.as_bytes() {
            return content(&mut entry, bytes_max);
        }
    }
    Err(invalid("the program is missing"))
}

/// Calls `each` with the name and the content of every regular file of an archive.
///
/// Errors: those of `each`; a broken archive; too many files, or one larger than `bytes_max`.
pub(super) fn each_file(
    archive: impl Read,
    bytes_max: u64,
    mut each: impl FnMut(&str, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    for (number, entry) in Archive::new(archive).entries()?.enumerate() {
        if number >= ENTRIES_MAX {
            return Err(invalid("too many files"));
        }
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let content = content(&mut entry, bytes_max)?;
            each(&String::from_utf8_lossy(&entry.path_bytes()), &content)?;
        }
    }
    Ok(())
}

fn content(entry: &mut Entry<'_, impl Read>, bytes_max: u64) -> io::Result<Vec<u8>> {
    let size = entry.size();
    if size > bytes_max {
        return Err(invalid("a file is too large"));
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content)?;
    if content.len() as u64 == size {
        Ok(content)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a file to an archive, with a size that may not be that of the content.
    fn add(archive: &mut Vec<u8>, name: &str, content: &[u8], size: u64) {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(size);
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }

    #[test]
    fn only_the_named_file_is_unpacked() {
        let mut two = Vec::new();
        add(&mut two, "package/other", b"abc", 3);
        add(&mut two, "package/x", b"hello", 5);
        two.resize(two.len() + 1024, 0);
        assert_eq!(member(&two[..], "package/x", 5).unwrap(), b"hello");
        assert_eq!(member(&two[..], "package/other", 5).unwrap(), b"abc");
        assert!(member(&two[..], "package/absent", 5).is_err());
        assert!(member(&two[..], "package/x", 4).is_err(), "too large");
        let mut found = Vec::new();
        let all = each_file(&two[..], 5, |name, content| {
            found.push((name.to_owned(), content.len()));
            Ok(())
        });
        all.unwrap();
        let expected = [("package/other".to_owned(), 3), ("package/x".to_owned(), 5)];
        assert_eq!(found, expected);
    }

    #[test]
    fn malformed_archive_is_rejected() {
        let (mut short, mut unsigned) = (Vec::new(), Vec::new());
        add(&mut short, "x", b"abc", 40_000);
        add(&mut unsigned, "x", b"abc", 3);
        unsigned[0] = b'y';
        for bytes in [&short[..], &unsigned, &[0; 100], &[]] {
            assert!(member(bytes, "x", 1 << 20).is_err());
        }
        assert!(each_file(&short[..], 1 << 20, |_, _| Ok(())).is_err());
    }
}
