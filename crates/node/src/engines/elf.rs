//! Points a program at a dynamic loader and libraries of its own.
//!
//! A program names its loader by an absolute path, and finds its libraries in folders of the
//! system. For an engine with a C library of its own, both are changed in a copy of the program:
//! the loader's path is appended to the file, and the place of the former path takes the text of a
//! `DT_RPATH`, which also applies to libraries that the program loads later. The format is that of
//! the System V ABI (gABI 4.1, chapters 4 and 5), 64 bits, little endian.

use std::path::Path;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const PROGRAM_HEADERS: usize = 32;
const PROGRAM_HEADER_COUNT: usize = 56;
/// Size of a program header, in bytes.
const PROGRAM_HEADER: usize = 56;
/// Size of an entry of the dynamic section, in bytes.
const DYNAMIC_ENTRY: usize = 16;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// An error of changing a program.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ElfError {
    /// The file ends before a structure that it announces.
    #[error("the program is truncated")]
    Truncated,
    /// There is no place for another entry or text.
    #[error("the program has no place for a library path")]
    Full,
}

struct ProgramHeader {
    /// Offset of the header itself.
    header: usize,
    offset: usize,
    address: u64,
    size: usize,
}

/// Returns whether the bytes are a program with a dynamic loader. Scripts and libraries are not.
pub(super) fn has_loader(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC) && find(bytes, PT_INTERP).is_ok_and(|found| found.is_some())
}

/// Changes a program to use the loader at the absolute path `loader`, and to search libraries in
/// `library_path` first, which may begin with `$ORIGIN`.
pub(super) fn relocate(
    bytes: &mut Vec<u8>,
    loader: &Path,
    library_path: &str,
) -> Result<(), ElfError> {
    let interpreter = find(bytes, PT_INTERP)?.ok_or(ElfError::Truncated)?;
    let dynamic = find(bytes, PT_DYNAMIC)?.ok_or(ElfError::Truncated)?;
    let mut strings = None;
    let mut free = None;
    for index in 0..dynamic.size / DYNAMIC_ENTRY {
        let entry = dynamic.offset + index * DYNAMIC_ENTRY;
        match word(bytes, entry)? {
            DT_STRTAB => strings = Some(word(bytes, entry + 8)?),
            DT_RPATH | DT_RUNPATH => return Err(ElfError::Full),
            DT_NULL => {
                free = free.or(Some(entry));
            }
            _ => {}
        }
    }
    let strings = strings.ok_or(ElfError::Truncated)?;
    let free = free.ok_or(ElfError::Full)?;
    // The entry after the new one must still end the list.
    let end = free + DYNAMIC_ENTRY;
    if end + DYNAMIC_ENTRY > dynamic.offset + dynamic.size || word(bytes, end)? != DT_NULL {
        return Err(ElfError::Full);
    }
    let text = [library_path.as_bytes(), b"\0"].concat();
    if text.len() > interpreter.size {
        return Err(ElfError::Full);
    }
    put(bytes, interpreter.offset, &text)?;
    put(bytes, free, &DT_RPATH.to_le_bytes())?;
    // Offsets count from the string table, modulo 2^64: the text is before the table.
    let offset = interpreter.address.wrapping_sub(strings);
    put(bytes, free + 8, &offset.to_le_bytes())?;

    let path = [loader.as_os_str().as_encoded_bytes(), b"\0"].concat();
    let place = (bytes.len() as u64).to_le_bytes();
    let length = (path.len() as u64).to_le_bytes();
    bytes.extend_from_slice(&path);
    // The kernel reads the path from the file. The address in memory stays that of the old path.
    put(bytes, interpreter.header + 8, &place)?;
    put(bytes, interpreter.header + 32, &length)?;
    put(bytes, interpreter.header + 40, &length)
}

fn find(bytes: &[u8], kind: u32) -> Result<Option<ProgramHeader>, ElfError> {
    let first = size(bytes, PROGRAM_HEADERS)?;
    let count = bytes
        .get(PROGRAM_HEADER_COUNT..PROGRAM_HEADER_COUNT + 2)
        .ok_or(ElfError::Truncated)?;
    let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
    for index in 0..count {
        let header = first
            .checked_add(index * PROGRAM_HEADER)
            .ok_or(ElfError::Truncated)?;
        // The type is the lower half of the first word.
        if word(bytes, header)? & 0xffff_ffff != u64::from(kind) {
            continue;
        }
        let found = ProgramHeader {
            header,
            offset: size(bytes, header + 8)?,
            address: word(bytes, header + 16)?,
            size: size(bytes, header + 32)?,
        };
        let end = found.offset.checked_add(found.size);
        return match end {
            Some(end) if end <= bytes.len() => Ok(Some(found)),
            _ => Err(ElfError::Truncated),
        };
    }
    Ok(None)
}

fn word(bytes: &[u8], at: usize) -> Result<u64, ElfError> {
    let end = at.checked_add(8).ok_or(ElfError::Truncated)?;
    let found = bytes.get(at..end).ok_or(ElfError::Truncated)?;
    found
        .try_into()
        .map(u64::from_le_bytes)
        .map_err(|_| ElfError::Truncated)
}

fn size(bytes: &[u8], at: usize) -> Result<usize, ElfError> {
    usize::try_from(word(bytes, at)?).map_err(|_| ElfError::Truncated)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Result<(), ElfError> {
    let end = at.checked_add(value.len()).ok_or(ElfError::Truncated)?;
    bytes
        .get_mut(at..end)
        .ok_or(ElfError::Truncated)?
        .copy_from_slice(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a program with a loader path at 0x100 and `spare` unused dynamic entries.
    fn program(spare: usize) -> Vec<u8> {
        let mut bytes = vec![0; 0x100];
        bytes[..6].copy_from_slice(MAGIC);
        put(&mut bytes, PROGRAM_HEADERS, &64_u64.to_le_bytes()).unwrap();
        put(&mut bytes, PROGRAM_HEADER_COUNT, &2_u16.to_le_bytes()).unwrap();
        let loader = b"/lib64/ld-linux-x86-64.so.2\0";
        bytes.extend_from_slice(loader);
        bytes.resize(0x140, 0);
        let entries = 1 + spare;
        for (header, kind, at, size) in [
            (64, PT_INTERP, 0x100_u64, loader.len()),
            (120, PT_DYNAMIC, 0x140, entries * DYNAMIC_ENTRY),
        ] {
            put(&mut bytes, header, &kind.to_le_bytes()).unwrap();
            for field in [8, 16] {
                put(&mut bytes, header + field, &at.to_le_bytes()).unwrap();
            }
            put(&mut bytes, header + 32, &(size as u64).to_le_bytes()).unwrap();
        }
        bytes.extend_from_slice(&DT_STRTAB.to_le_bytes());
        bytes.extend_from_slice(&0x120_u64.to_le_bytes());
        bytes.resize(0x140 + entries * DYNAMIC_ENTRY, 0);
        bytes
    }

    #[test]
    fn loader_and_library_path_are_replaced() {
        let mut bytes = program(2);
        assert!(has_loader(&bytes));
        let length = bytes.len();
        relocate(&mut bytes, Path::new("/engine/ld.so"), "$ORIGIN/../libs").unwrap();
        let interpreter = find(&bytes, PT_INTERP).unwrap().unwrap();
        assert_eq!((interpreter.offset, interpreter.address), (length, 0x100));
        assert_eq!(&bytes[length..], b"/engine/ld.so\0");
        assert_eq!(&bytes[0x100..0x110], b"$ORIGIN/../libs\0");
        assert_eq!(word(&bytes, 0x150).unwrap(), DT_RPATH);
        let offset = word(&bytes, 0x158).unwrap();
        assert_eq!(offset.wrapping_add(0x120), 0x100);
    }

    #[test]
    fn program_without_space_is_rejected() {
        for spare in [0, 1] {
            let refused = relocate(&mut program(spare), Path::new("/ld.so"), "$ORIGIN/libs");
            assert_eq!(refused, Err(ElfError::Full), "{spare}");
        }
        let long = "$ORIGIN/a/path/that/is/longer/than/the/loader";
        let refused = relocate(&mut program(2), Path::new("/ld.so"), long);
        assert_eq!(refused, Err(ElfError::Full));
    }

    #[test]
    fn damaged_program_is_rejected() {
        let whole = program(2);
        for length in 0..whole.len() {
            let mut cut = whole[..length].to_vec();
            relocate(&mut cut, Path::new("/ld.so"), "$ORIGIN/libs").unwrap_err();
        }
        for text in [&b"#!/bin/sh\n"[..], b"", b"\x7fELF\x01\x01"] {
            assert!(!has_loader(text));
        }
    }
}
