//! Bundles of every version, damaged ones, and any bytes.

use proptest::prelude::*;

use super::*;

/// A bundle of version 2.3 with checksums of the kind `checksum`, and one map for each module.
fn bundle(checksum: Checksum, modules: &[(&str, &str, &str)]) -> Vec<u8> {
    let sum = |content: &[u8]| match checksum {
        Checksum::Sha256 => Sha256::digest(content).to_vec(),
        Checksum::XxHash3 => XxHash3_64::oneshot(content).to_be_bytes().to_vec(),
        Checksum::Absent => Vec::new(),
    };
    let number = |number: usize| u32::try_from(number).unwrap().to_be_bytes();
    let section = |content: &[u8]| [&number(content.len()), content, &sum(content)].concat();
    let (mut header, mut blocks) = (Vec::new(), [Vec::new(), Vec::new()]);
    for (name, source, map) in modules {
        header.extend(number(name.len()));
        header.extend(name.as_bytes());
        header.push(0);
        for (block, text) in blocks.iter_mut().zip([source, map]) {
            header.extend(number(if text.is_empty() { 0 } else { block.len() }));
            header.extend(number(text.len()));
            if !text.is_empty() {
                block.extend(text.as_bytes());
                block.extend(sum(text.as_bytes()));
            }
        }
        header.push(0);
    }
    // A redirect and a package.
    for (name, kind, content) in [("a", 1, &b"\0\0\0\x01b"[..]), ("npm:x", 2, &[0, 0, 0, 1])] {
        header.extend(number(name.len()));
        header.extend(name.as_bytes());
        header.push(kind);
        header.extend(content);
    }
    let (kind, size) = match checksum {
        Checksum::Sha256 => (1, 32),
        Checksum::XxHash3 => (2, 8),
        Checksum::Absent => (0, 0),
    };
    let mut bytes = b"ESZIP2.3".to_vec();
    bytes.extend(section(&[0, kind, 1, size, 9, 9]));
    bytes.extend(section(&header));
    bytes.extend(section(b"packages"));
    for block in blocks {
        bytes.extend(number(block.len()));
        bytes.extend(block);
    }
    bytes
}

const MODULES: &[(&str, &str, &str)] = &[
    (
        "file:///home/me/p/supabase/functions/hello/index.ts",
        "const a = 1;",
        r#"{"version":3,"sourcesContent":["const a: number = 1;"]}"#,
    ),
    (
        "file:///home/me/p/supabase/functions/_shared/b%20c.ts",
        "export {};",
        "",
    ),
    (
        "file:///home/me/p/supabase/functions/hello/deno.json",
        "{}",
        "",
    ),
    ("static:hello/data.txt", "text", ""),
    ("https://esm.sh/x", "1", ""),
];

#[test]
fn files_are_found_below_their_common_folder_as_written() {
    for checksum in [Checksum::Absent, Checksum::Sha256, Checksum::XxHash3] {
        let parsed = Bundle::parse(bundle(checksum, MODULES).into()).unwrap();
        let named = ["index.ts", "absent.json"].map(|name| {
            location(&format!(
                "file:///home/me/p/supabase/functions/hello/{name}"
            ))
        });
        let [entry, absent] = &named;
        let (sources, paths) = parsed.sources(&[Some(entry), Some(absent), None]).unwrap();
        assert_eq!(
            paths,
            [
                Some(RelativePath::parse("hello/index.ts").unwrap()),
                None,
                None
            ]
        );
        let files: Vec<_> = sources
            .iter()
            .map(|(path, text)| (path, std::str::from_utf8(text).unwrap()))
            .collect();
        let expected = [
            ("_shared/b c.ts", "export {};"),
            ("hello/data.txt", "text"),
            ("hello/deno.json", "{}"),
            ("hello/index.ts", "const a: number = 1;"),
        ];
        assert_eq!(files, expected, "{checksum:?}");
    }
}

fn location(text: &str) -> ModuleLocation {
    ModuleLocation::parse(text).unwrap()
}

#[test]
fn locations_that_leave_the_root_are_rejected() {
    for text in [
        "/etc/passwd",
        "../../../etc/passwd",
        "C:/x.ts",
        "%2e%2e/x.ts",
        "file:///../etc/passwd",
        "file:///src/%2e%2e/%2e%2e/etc/passwd",
        "file:///src/%252e%252e/x.ts",
        "file:////etc/passwd",
        "file://host/x.ts",
        "https://example.com/x.ts",
        "file:///",
        "",
    ] {
        assert!(ModuleLocation::parse(text).is_err(), "{text}");
    }
    let path = |text: &str| location(text).into_path().to_string();
    assert_eq!(path("file:///home/me/a%20b/x.ts"), "home/me/a b/x.ts");
    assert_eq!(path("functions/x.ts"), "functions/x.ts");
}

#[test]
fn names_outside_of_the_root_are_rejected() {
    for name in [
        "file:///a/%252e%252e/b.ts",
        "file:///a/b%5cc.ts",
        "static:%2e%2e/x",
        "static:C:/x",
        "file:///a/../../b.ts",
        "file:///a/%2e%2e/%2e%2e/b.ts",
        "static:../../etc/x",
        "static:/etc/x",
    ] {
        let modules = [("file:///a/index.ts", "1", ""), (name, "2", "")];
        let parsed = Bundle::parse(bundle(Checksum::Absent, &modules).into()).unwrap();
        assert!(parsed.sources(&[]).is_err(), "{name}");
    }
}

#[test]
fn truncated_bundle_is_rejected_at_every_length() {
    for checksum in [Checksum::Absent, Checksum::Sha256, Checksum::XxHash3] {
        let whole = bundle(checksum, MODULES);
        let maps = 4 + MODULES[0].2.len() + checksum.bytes();
        for length in 0..whole.len() {
            let parsed = Bundle::parse(Bytes::copy_from_slice(&whole[..length]));
            // Maps may be absent as a whole; then the one that is named is missing.
            assert!(
                parsed.is_err(),
                "{checksum:?} {length} of {} ({maps})",
                whole.len()
            );
        }
    }
}

#[test]
fn changed_byte_of_a_checked_bundle_is_rejected() {
    let whole = bundle(Checksum::Sha256, MODULES);
    let mut accepted = 0;
    // The last byte of the magic is the version, of which two have one layout.
    for place in (0..whole.len()).filter(|place| *place != 7) {
        let mut changed = whole.clone();
        changed[place] ^= 0x55;
        accepted += usize::from(Bundle::parse(changed.into()).is_ok());
    }
    assert_eq!(accepted, 0);
}

#[test]
fn large_output_of_a_small_stream_is_rejected() {
    let mut packed = MAGIC.to_vec();
    // A Brotli stream of uncompressed meta-blocks with 65536 zeros each (RFC 7932 §9.2).
    packed.extend(stored_brotli(&vec![0; 1 << 20]));
    assert_eq!(decompress_within(&packed, 1 << 20).unwrap().len(), 1 << 20);
    assert!(decompress_within(&packed, (1 << 20) - 1).is_err());
    for bad in [&b"EZBR"[..], b"EZBR\xff\xff\xff", b"PK\x03\x04", b""] {
        let unpacked = decompress(bad);
        assert!(unpacked.is_err() || Bundle::parse(unpacked.unwrap()).is_err());
    }
}

/// Formats bytes as a Brotli stream without compression.
fn stored_brotli(content: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    // Window of 16 bits (one bit 0), then per meta-block: ISLAST 0, MNIBBLES 4 (00), the length
    // minus one in 16 bits, ISUNCOMPRESSED 1, and padding to the next byte.
    for (n, chunk) in content.chunks(1 << 16).enumerate() {
        let length = u32::try_from(chunk.len() - 1).unwrap();
        let head = length << 3 | 1 << 19;
        let (head, bits) = if n == 0 { (head << 1, 21) } else { (head, 20) };
        stream.extend(&head.to_le_bytes()[..usize::div_ceil(bits, 8)]);
        stream.extend(chunk);
    }
    // ISLAST and ISEMPTY.
    stream.push(3);
    stream
}

#[test]
fn written_sources_are_read_again() {
    let mut sources = Sources::default();
    for (path, text) in [("index.ts", "1"), ("a/b.json", "{}"), ("empty.txt", "")] {
        sources
            .add(path, Bytes::from_static(text.as_bytes()))
            .unwrap();
    }
    let parsed = Bundle::parse(Bundle::write(&sources)).unwrap();
    let entry = location("file:///src/index.ts");
    let (read, paths) = parsed.sources(&[Some(&entry)]).unwrap();
    let index = RelativePath::parse("index.ts").unwrap();
    assert_eq!((read, paths), (sources, vec![Some(index)]));
}

proptest! {
    #[test]
    fn any_bytes_are_rejected_without_a_panic(
        version in 0..4_usize,
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let magic = [b"ESZIP_V2", b"ESZIP2.1", b"ESZIP2.2", b"ESZIP2.3"][version];
        let bytes = [&magic[..], &rest].concat();
        if let Ok(parsed) = Bundle::parse(bytes.into()) {
            let _ = parsed.sources(&[]);
        }
        let _ = decompress_within(&[MAGIC, &rest].concat(), 1 << 16);
    }

    #[test]
    fn changed_bundle_is_rejected_without_a_panic(
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = bundle(Checksum::Absent, MODULES);
        let place = place.index(bytes.len());
        bytes[place] = byte;
        if let Ok(parsed) = Bundle::parse(bytes.into()) {
            let entry = location("file:///home/me/p/supabase/functions/hello/index.ts");
            let _ = parsed.sources(&[Some(&entry)]);
        }
    }
}
