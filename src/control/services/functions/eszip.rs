//! Reader and writer of bundles: `EZBR`, a Brotli stream, and in it an archive of modules (eszip,
//! versions 2.0 to 2.3).
//!
//! ```text
//! magic      8 bytes: ESZIP_V2, ESZIP2.1, ESZIP2.2 or ESZIP2.3
//! options    section, from 2.2: pairs of bytes; 0 is the kind of checksums, 1 their length
//! modules    section: entries of name, kind, and positions in the last two blocks
//! packages   section, from 2.1: versions of npm packages
//! sources    length, then each source with its checksum
//! maps       length, then each source map with its checksum
//! ```
//!
//! A section is a length of four bytes, content and checksum. Numbers are big-endian. Bundles come
//! from clients: every length is checked against the bytes that are there, and the unpacked size is
//! bounded.

use std::{collections::BTreeMap, io::Read};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use twox_hash::XxHash3_64;

use super::{
    PathProblem,
    relative_path::{RelativePath, decode},
    sources::{FILES_MAX, SOURCE_BYTES_MAX, Sources},
};
use crate::platform::error::Error;

/// The first bytes of a compressed bundle.
pub const MAGIC: &[u8] = b"EZBR";
/// Longest name of a module, in bytes.
const NAME_BYTES_MAX: usize = 4096;
/// Prefix of names of modules in files of the developer's machine.
const FILE: &str = "file:///";
/// Prefix of names of static files.
const STATIC: &str = "static:";

/// A module of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BundledModule {
    source: Bytes,
    map: Bytes,
}

/// An unpacked bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bundle {
    modules: BTreeMap<String, BundledModule>,
}

/// The place of a module, as uploads of bundles name it: a `file:///` URL of the developer's
/// machine, or a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleLocation {
    /// The text after `file:///`.
    url: Option<String>,
    /// The path from the root of the developer's machine, or the path that was sent.
    path: RelativePath,
}

impl ModuleLocation {
    /// Parses a URL or a path.
    pub fn parse(text: &str) -> Result<Self, PathProblem> {
        let url = text.strip_prefix(FILE);
        Ok(Self {
            url: url.map(str::to_owned),
            path: url.map_or_else(
                || RelativePath::parse(text),
                |url| RelativePath::parse(&decode(url)),
            )?,
        })
    }

    /// Returns the path below a folder of the developer's machine. `None`: it is elsewhere.
    fn below(&self, root: &str) -> Option<RelativePath> {
        match &self.url {
            Some(url) => RelativePath::parse(&decode(url.strip_prefix(root)?)).ok(),
            None => Some(self.path.clone()),
        }
    }

    /// The whole path.
    pub fn into_path(self) -> RelativePath {
        self.path
    }
}

/// Kind of the checksums of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checksum {
    Absent,
    Sha256,
    XxHash3,
}

impl Checksum {
    const fn bytes(self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Sha256 => 32,
            Self::XxHash3 => 8,
        }
    }

    fn check(self, content: &[u8], sum: &[u8]) -> Result<(), Error> {
        let fits = match self {
            Self::Absent => true,
            Self::Sha256 => Sha256::digest(content)[..] == *sum,
            Self::XxHash3 => XxHash3_64::oneshot(content).to_be_bytes()[..] == *sum,
        };
        if fits {
            Ok(())
        } else {
            Err(broken("a checksum does not match"))
        }
    }
}

fn broken(why: &str) -> Error {
    Error::invalid("body", format!("is not a valid bundle: {why}"))
}

/// Unpacks the Brotli stream of an `EZBR` body, to at most 512 MB.
pub fn decompress(body: &[u8]) -> Result<Bytes, Error> {
    decompress_within(body, SOURCE_BYTES_MAX)
}

fn decompress_within(body: &[u8], bytes_max: usize) -> Result<Bytes, Error> {
    let packed = body
        .strip_prefix(MAGIC)
        .ok_or_else(|| broken("it does not begin with EZBR"))?;
    let reader = brotli_decompressor::Decompressor::new(packed, 64 << 10);
    let mut archive = Vec::new();
    reader
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut archive)
        .map_err(|_| broken("its compression is damaged"))?;
    if archive.len() > bytes_max {
        return Err(broken("it is too large when unpacked"));
    }
    Ok(archive.into())
}

/// Reads numbers and texts from bytes that may end anywhere.
struct BundleReader {
    rest: Bytes,
}

impl BundleReader {
    fn take(&mut self, count: usize) -> Result<Bytes, Error> {
        if count > self.rest.len() {
            return Err(broken("it ends too early"));
        }
        Ok(self.rest.split_to(count))
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<usize, Error> {
        let bytes = self.take(4)?;
        let number = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        usize::try_from(number).map_err(|_| broken("a length is too large"))
    }

    fn section(&mut self, checksum: Checksum) -> Result<Bytes, Error> {
        let length = self.number()?;
        let content = self.take(length)?;
        let sum = self.take(checksum.bytes())?;
        checksum.check(&content, &sum)?;
        Ok(content)
    }

    fn text(&mut self) -> Result<String, Error> {
        let length = self.number()?;
        if length > NAME_BYTES_MAX {
            return Err(broken("a name is too long"));
        }
        let bytes = self.take(length)?;
        String::from_utf8(bytes.into()).map_err(|_| broken("a name is not UTF-8"))
    }
}

/// A part of a block of sources.
type BlockPart = (usize, usize);

/// Returns a part of a block, after its checksum was compared.
fn part(block: &Bytes, (offset, length): BlockPart, checksum: Checksum) -> Result<Bytes, Error> {
    if length == 0 {
        return Ok(Bytes::new());
    }
    let end = offset.checked_add(length);
    let end = end.filter(|end| *end <= block.len());
    let end = end.ok_or_else(|| broken("a module lies outside of it"))?;
    let sum = block
        .get(end..end + checksum.bytes())
        .ok_or_else(|| broken("it ends too early"))?;
    let content = block.slice(offset..end);
    checksum.check(&content, sum)?;
    Ok(content)
}

/// Reads the checksums' kind of a bundle from version 2.2 on.
fn read_options(reader: &mut BundleReader) -> Result<Checksum, Error> {
    let length = reader.number()?;
    let content = reader.take(length)?;
    let (mut kind, mut size) = (0, None);
    for pair in content.chunks(2) {
        match *pair {
            [0, value] => kind = value,
            [1, value] => size = Some(value),
            [_, _] => {}
            _ => return Err(broken("its options are damaged")),
        }
    }
    let checksum = match kind {
        0 => Checksum::Absent,
        1 => Checksum::Sha256,
        2 => Checksum::XxHash3,
        _ => return Err(broken("its checksums are unknown")),
    };
    if size.is_some_and(|size| usize::from(size) != checksum.bytes()) {
        return Err(broken("its checksums have another length"));
    }
    let sum = reader.take(checksum.bytes())?;
    checksum.check(&content, &sum)?;
    Ok(checksum)
}

impl Bundle {
    /// Parses an unpacked bundle.
    pub fn parse(archive: Bytes) -> Result<Self, Error> {
        let mut reader = BundleReader { rest: archive };
        let magic = reader.take(8)?;
        let version = match &magic[..] {
            b"ESZIP_V2" => 0,
            b"ESZIP2.1" => 1,
            b"ESZIP2.2" => 2,
            b"ESZIP2.3" => 3,
            _ => return Err(broken("its version is unknown")),
        };
        let checksum = if version >= 2 {
            read_options(&mut reader)?
        } else {
            Checksum::Sha256
        };
        let header = reader.section(checksum)?;
        let entries = read_entries(header)?;
        if version >= 1 {
            reader.section(checksum)?;
        }
        let blocks = [
            block(&mut reader)?,
            // Absent in a bundle without maps.
            if reader.rest.is_empty() {
                Bytes::new()
            } else {
                block(&mut reader)?
            },
        ];
        let mut modules = BTreeMap::new();
        for (name, source, map) in entries {
            let module = BundledModule {
                source: part(&blocks[0], source, checksum)?,
                map: part(&blocks[1], map, checksum)?,
            };
            modules.insert(name, module);
        }
        Ok(Self { modules })
    }

    /// Returns the files of the developer's machine that the bundle contains, below their common
    /// folder, and the paths that `named` modules have there.
    ///
    /// Source maps have the text as written, while modules are compiled; so a map is preferred.
    pub fn sources(
        &self,
        named: &[Option<&ModuleLocation>],
    ) -> Result<(Sources, Vec<Option<RelativePath>>), Error> {
        let mut files: BTreeMap<&str, Bytes> = BTreeMap::new();
        for (name, module) in &self.modules {
            if let Some(path) = name.strip_prefix(FILE) {
                files.insert(path, module.text());
            }
        }
        let root = common_folder(files.keys().copied());
        let mut sources = Sources::default();
        for (path, content) in files {
            let path = decode(&path[root.len()..]);
            sources.add(&path, content)?;
        }
        for (name, module) in &self.modules {
            if let Some(path) = name.strip_prefix(STATIC) {
                let stored = RelativePath::parse(path).map(|path| sources.find(&path));
                // A name that is not allowed is reported by the addition.
                if !matches!(stored, Ok(Some(_))) {
                    sources.add(path, module.source.clone())?;
                }
            }
        }
        let mut paths = Vec::new();
        for location in named {
            let path = location.and_then(|location| location.below(root));
            paths.push(path.and_then(|path| sources.find(&path)));
        }
        Ok((sources, paths))
    }

    /// Formats sources as a bundle of version 2.0, each file as a module of `file:///src/`.
    pub fn write(sources: &Sources) -> Bytes {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes();
        let (mut header, mut block) = (Vec::new(), Vec::new());
        for (path, content) in sources.iter() {
            let name = format!("{FILE}src/{path}");
            header.extend(number(name.len()));
            header.extend(name.as_bytes());
            // A module.
            header.push(0);
            header.extend(number(if content.is_empty() { 0 } else { block.len() }));
            header.extend(number(content.len()));
            header.extend([0; 8]);
            header.push(kind_of(path));
            if !content.is_empty() {
                block.extend_from_slice(content);
                block.extend(Sha256::digest(content));
            }
        }
        let mut bundle = b"ESZIP_V2".to_vec();
        bundle.extend(number(header.len()));
        bundle.extend(&header);
        bundle.extend(Sha256::digest(&header));
        bundle.extend(number(block.len()));
        bundle.extend(block);
        bundle.extend([0; 4]);
        bundle.into()
    }
}

impl BundledModule {
    /// Returns the text as written, if the map has it.
    fn text(&self) -> Bytes {
        let map: Option<SourceMap> = serde_json::from_slice(&self.map).ok();
        let written = map.and_then(|map| map.contents.into_iter().next().flatten());
        written.map_or_else(|| self.source.clone(), Bytes::from)
    }
}

/// The part of a source map (ECMA-426) with the original texts.
#[derive(serde::Deserialize)]
struct SourceMap {
    #[serde(rename = "sourcesContent", default)]
    contents: Vec<Option<String>>,
}

/// Number of a module's kind, by the ending of its name.
fn kind_of(path: &str) -> u8 {
    match path.rsplit('.').next() {
        Some("js" | "mjs" | "ts" | "mts" | "jsx" | "tsx") => 0,
        Some("json") => 1,
        Some("jsonc") => 2,
        _ => 3,
    }
}

fn block(reader: &mut BundleReader) -> Result<Bytes, Error> {
    let length = reader.number()?;
    reader.take(length)
}

/// Reads the names and positions of modules. Redirects and packages are skipped.
fn read_entries(header: Bytes) -> Result<Vec<(String, BlockPart, BlockPart)>, Error> {
    let mut reader = BundleReader { rest: header };
    let mut entries = Vec::new();
    let mut count = 0;
    while !reader.rest.is_empty() {
        count += 1;
        if count > FILES_MAX {
            return Err(broken("it has too many modules"));
        }
        let name = reader.text()?;
        match reader.byte()? {
            0 => {
                let source = (reader.number()?, reader.number()?);
                let map = (reader.number()?, reader.number()?);
                reader.byte()?;
                entries.push((name, source, map));
            }
            1 => drop(reader.text()?),
            2 => drop(reader.number()?),
            _ => return Err(broken("it has an entry of an unknown kind")),
        }
    }
    Ok(entries)
}

/// Returns the longest common folder of paths, with its slash.
fn common_folder<'a>(mut paths: impl Iterator<Item = &'a str>) -> &'a str {
    let folder = |path: &'a str| &path[..path.rfind('/').map_or(0, |end| end + 1)];
    let mut common = paths.next().map_or("", folder);
    for path in paths {
        while !path.starts_with(common) {
            common = folder(&common[..common.len() - 1]);
        }
    }
    common
}

#[cfg(test)]
mod tests;
