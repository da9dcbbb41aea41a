//! Tests of reading the write-ahead log.

use super::*;

const SEGMENT: u64 = 1 << 20;
const START: Lsn = Lsn(3 << 20);

/// Writes records into pages as the server does.
struct Writer {
    bytes: Vec<u8>,
    start: u64,
}

impl Writer {
    fn new(start: Lsn) -> Self {
        Self {
            bytes: Vec::new(),
            start: start.0,
        }
    }

    fn page(&mut self, rest: usize) {
        let address = self.start + self.bytes.len() as u64;
        let is_first = address.is_multiple_of(SEGMENT);
        let flags = u16::from(rest > 0) | if is_first { HAS_LONG_HEADER } else { 0 };
        self.bytes.extend(0xD110_u16.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(1_u32.to_ne_bytes());
        self.bytes.extend(address.to_ne_bytes());
        self.bytes
            .extend(u32::try_from(rest).unwrap().to_ne_bytes());
        self.bytes.extend([0; 4]);
        if is_first {
            self.bytes.extend(42_u64.to_ne_bytes());
            self.bytes
                .extend(u32::try_from(SEGMENT).unwrap().to_ne_bytes());
            self.bytes
                .extend(u32::try_from(PAGE).unwrap().to_ne_bytes());
        }
    }

    /// Appends a record, and returns its position.
    fn add(&mut self, manager: u8, info: u8, data: &[u8]) -> u64 {
        let mut record = Vec::new();
        let total = u32::try_from(RECORD_HEADER + data.len()).unwrap();
        record.extend(total.to_ne_bytes());
        record.extend([0; 12]);
        record.extend([info, manager, 0, 0]);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(data), &record);
        record.extend(checksum.to_ne_bytes());
        record.extend(data);
        if self.bytes.len().is_multiple_of(PAGE) {
            self.page(0);
        }
        let start = self.start + self.bytes.len() as u64;
        let mut rest = record.as_slice();
        while !rest.is_empty() {
            if self.bytes.len().is_multiple_of(PAGE) {
                self.page(rest.len());
            }
            let room = PAGE - self.bytes.len() % PAGE;
            let (now, later) = rest.split_at(rest.len().min(room));
            self.bytes.extend(now);
            rest = later;
        }
        let aligned = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(aligned, 0);
        start
    }

    fn commit(&mut self, second: i64) -> u64 {
        let micros = (second - POSTGRES_EPOCH) * 1_000_000;
        let mut data = vec![PART_ORIGIN, 1, 0, PART_DATA_SHORT, 8];
        data.extend(micros.to_ne_bytes());
        self.add(RM_XACT, XACT_COMMIT | 0x80, &data)
    }

    fn padded(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        bytes
    }
}

fn scanned(parts: &[(&[u8], Lsn)]) -> (Vec<WalRecord>, ScanEnd) {
    let (mut scanner, mut found) = (WalScanner::default(), Vec::new());
    let mut end = ScanEnd::Segment;
    for (bytes, start) in parts {
        end = scanner.scan(bytes, *start, &mut |record| {
            found.push(*record);
            true
        });
    }
    (found, end)
}

#[test]
fn lsn_and_segment_names_round_trip() {
    let lsn: Lsn = "A/3000028".parse().unwrap();
    assert_eq!(
        (lsn.0, lsn.to_string()),
        (0xA_0300_0028, "A/3000028".into())
    );
    for text in ["", "0", "x/1", "1/2/3", "100000000/0"] {
        assert!(text.parse::<Lsn>().is_err(), "{text}");
    }
    let name = SegmentName::of(2, Lsn(0xFFF0_0000), SEGMENT);
    assert_eq!(name.to_string(), "000000020000000000000FFF");
    assert_eq!(name.next(SEGMENT).to_string(), "000000020000000100000000");
    assert_eq!(name.to_string().parse(), Ok(name));
    assert_eq!(name.start(SEGMENT), Lsn(0xFFF0_0000));
    assert!(name < name.next(SEGMENT));
    for text in [
        "",
        "00000002000000000000fff0",
        "000000020000000000000FFF.partial",
    ] {
        assert!(text.parse::<SegmentName>().is_err(), "{text}");
    }
}

#[test]
fn scan_finds_records_across_pages_and_segments() {
    let mut writer = Writer::new(START);
    let mut starts = Vec::new();
    for second in 0..100 {
        starts.push(writer.add(10, 0, &vec![7; 20_000]));
        starts.push(writer.commit(1_700_000_000 + second));
    }
    let bytes = writer.padded();
    let (first, rest) = bytes.split_at(usize::try_from(SEGMENT).unwrap());
    let second = SegmentName::of(1, START, SEGMENT).end(SEGMENT);
    let (records, end) = scanned(&[(first, START), (rest, second)]);
    assert_eq!(end, ScanEnd::Log);
    let found: Vec<u64> = records.iter().map(|record| record.start.0).collect();
    assert_eq!(found, starts);
    let times: Vec<i64> = records
        .iter()
        .filter_map(|record| Some(record.committed_at?.timestamp()))
        .collect();
    assert_eq!(times, (1_700_000_000..1_700_000_100).collect::<Vec<_>>());
    assert!(records.windows(2).all(|pair| pair[0].end <= pair[1].start));
    // A scan that begins in the middle skips the rest of a record.
    let (later, _) = scanned(&[(rest, second)]);
    assert_eq!(later, records[records.len() - later.len()..]);
    assert!(!later.is_empty());
}

#[test]
fn scan_ends_at_a_damaged_record() {
    let mut writer = Writer::new(START);
    let starts: Vec<u64> = (0..50).map(|second| writer.commit(second)).collect();
    let bytes = writer.padded();
    for damaged in [3_usize, 20, 49] {
        let mut bytes = bytes.clone();
        let at = usize::try_from(starts[damaged] - START.0).unwrap();
        bytes[at + RECORD_HEADER] ^= 1;
        let (records, end) = scanned(&[(&bytes, START)]);
        assert_eq!((records.len(), end), (damaged, ScanEnd::Log));
    }
}

#[test]
fn scan_continues_after_a_switch_in_the_next_segment() {
    let mut first = Writer::new(START);
    first.commit(1);
    first.add(RM_XLOG, XLOG_SWITCH, &[]);
    let mut bytes = first.padded();
    bytes.resize(usize::try_from(SEGMENT).unwrap(), 0);
    let second = SegmentName::of(1, START, SEGMENT).end(SEGMENT);
    let mut next = Writer::new(second);
    next.commit(2);
    let (records, _) = scanned(&[(&bytes, START), (&next.padded(), second)]);
    assert_eq!(records.len(), 3);
    assert_eq!(records[2].start.0, second.0 + LONG_HEADER as u64);
}

#[test]
fn pages_of_an_earlier_use_do_not_count() {
    let mut writer = Writer::new(START);
    writer.add(10, 0, &vec![1; 3 * PAGE]);
    let mut bytes = writer.padded();
    let written = bytes.len();
    let mut old = Writer::new(Lsn(0));
    old.add(10, 0, &vec![1; 5 * PAGE]);
    bytes.extend(&old.padded()[written..]);
    assert_eq!(written_bytes(&bytes, START), written);
    assert_eq!(written_bytes(&bytes, Lsn(0)), 0);
    assert_eq!(written_bytes(&[0; PAGE], START), 0);
}

#[test]
fn header_of_a_segment_is_read() {
    let mut writer = Writer::new(START);
    writer.commit(1);
    let header = SegmentHeader::read(&writer.bytes).unwrap();
    let expected = SegmentHeader {
        system_id: 42,
        segment_bytes: SEGMENT,
        timeline: 1,
        start: START,
    };
    assert_eq!(header, expected);
    assert_eq!(SegmentHeader::read(&[0; 40]), None);
    assert_eq!(SegmentHeader::read(&writer.bytes[..39]), None);
}

#[test]
fn scan_of_random_bytes_terminates() {
    let entropy = gantry_base::clock::Entropy::seeded(5);
    for _ in 0..2000 {
        let mut writer = Writer::new(START);
        for second in 0..400 {
            writer.commit(second);
        }
        let mut bytes = writer.padded();
        for _ in 0..8 {
            let at = usize::from(u16::from_ne_bytes(entropy.bytes())) % bytes.len();
            bytes[at] = entropy.bytes::<1>()[0];
        }
        let (records, _) = scanned(&[(&bytes, START)]);
        assert!(records.len() <= 400);
    }
}
