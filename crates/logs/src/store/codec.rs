//! Binary encoding of log records. Repeated keys are written once per frame; lines keep their
//! order.

use hashbrown::hash_map::{Entry, HashMap};
use serde::{
    Deserialize,
    de::{
        IntoDeserializer,
        value::{Error as DecodeError, StrDeserializer},
    },
};

use super::batch::ReaderOffset;
use crate::{
    event::{Attributes, Event, Severity, Source, TEXT_BYTES_MAX, Value},
    layout,
};

/// Maximum size of the attributes of one line in bytes. Further attributes are dropped.
pub const ROW_BYTES_MAX: usize = 1024 * 1024;
/// Maximum length of the id of a line in bytes. Longer ids are truncated.
const ID_BYTES_MAX: usize = 256;

/// The content of one log frame.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Record {
    /// A batch of lines of one project. The lines follow the header.
    Lines {
        project: String,
        reader_offset: Option<ReaderOffset>,
        span: LineSpan,
    },
    /// Current reader offsets.
    ReaderOffsets(Vec<ReaderOffset>),
    /// Deletes all earlier lines of a project.
    Forget { project: String },
}

/// Number and time range of the lines in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineSpan {
    pub(super) rows: u64,
    pub(super) earliest: i64,
    pub(super) latest: i64,
}

impl LineSpan {
    pub(super) fn of(events: &[Event]) -> Self {
        let earliest = events.iter().map(|event| event.timestamp).min();
        let latest = events.iter().map(|event| event.timestamp).max();
        Self {
            rows: events.len() as u64,
            earliest: earliest.unwrap_or(0),
            latest: latest.unwrap_or(0),
        }
    }

    /// Returns the span of two sets of lines.
    pub(super) fn union(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            earliest: self.earliest.min(other.earliest),
            latest: self.latest.max(other.latest),
        }
    }
}

const LINES: u8 = 1;
const READER_OFFSETS: u8 = 2;
const FORGET: u8 = 3;

/// Encodes a batch of lines.
pub(super) fn lines(
    project: &str,
    events: &[Event],
    reader_offset: Option<&ReaderOffset>,
) -> (Record, Vec<u8>) {
    let span = LineSpan::of(events);
    let mut to = Vec::with_capacity(64 + events.len() * 512);
    to.push(LINES);
    text(&mut to, project);
    varint(&mut to, u64::from(reader_offset.is_some()));
    if let Some(ReaderOffset { name, value }) = reader_offset {
        put_reader_offset(&mut to, name, value);
    }
    varint(&mut to, span.rows);
    signed(&mut to, span.earliest);
    signed(&mut to, span.latest);
    let mut words = WordNumbers::default();
    for event in events {
        put_event(&mut to, event, span.earliest, &mut words);
    }
    (
        Record::Lines {
            project: project.to_owned(),
            reader_offset: reader_offset.cloned(),
            span,
        },
        to,
    )
}

/// Encodes reader offsets.
pub(super) fn reader_offsets<'a>(
    reader_offsets: impl ExactSizeIterator<Item = (&'a String, &'a String)>,
) -> Vec<u8> {
    let mut to = vec![READER_OFFSETS];
    varint(&mut to, reader_offsets.len() as u64);
    for (name, value) in reader_offsets {
        put_reader_offset(&mut to, name, value);
    }
    to
}

/// Encodes the deletion of a project.
pub(super) fn forget(project: &str) -> (Record, Vec<u8>) {
    let mut to = vec![FORGET];
    text(&mut to, project);
    (
        Record::Forget {
            project: project.to_owned(),
        },
        to,
    )
}

/// Decodes the header of a frame. Returns `None` if the payload is malformed.
pub(super) fn record(payload: &[u8]) -> Option<Record> {
    read_record(&mut Decoder(payload))
}

/// Decodes the lines of a frame. Returns `None` if the payload is malformed.
pub(super) fn events(payload: &[u8], into: &mut Vec<Event>) -> Option<()> {
    let from = &mut Decoder(payload);
    let Record::Lines { span, .. } = read_record(from)? else {
        return Some(());
    };
    let mut words = Vec::new();
    for _ in 0..span.rows {
        into.push(read_event(from, span.earliest, &mut words)?);
    }
    Some(())
}

/// Numbers of the words that the frame already contains.
type WordNumbers<'a> = HashMap<&'a str, u64>;

fn put_event<'a>(to: &mut Vec<u8>, event: &'a Event, earliest: i64, words: &mut WordNumbers<'a>) {
    text(to, truncate(&event.id, ID_BYTES_MAX));
    varint(to, event.timestamp.wrapping_sub(earliest).cast_unsigned());
    word(to, event.source.as_str(), words);
    word(to, event.severity.as_str(), words);
    text(to, truncate(&event.message, TEXT_BYTES_MAX));
    let count = fitting_attributes(&event.attributes);
    varint(to, count as u64);
    for (key, value) in event.attributes.iter().take(count) {
        word(to, key, words);
        put_value(to, value);
    }
}

fn put_value(to: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Boolean(false) => to.push(0),
        Value::Boolean(true) => to.push(1),
        Value::Integer(number) => {
            to.push(2);
            signed(to, *number);
        }
        Value::Float(number) => {
            to.push(3);
            to.extend(number.to_le_bytes());
        }
        Value::Text(content) => {
            to.push(4);
            text(to, content);
        }
    }
}

/// Returns how many attributes fit into [`ROW_BYTES_MAX`].
fn fitting_attributes(attributes: &Attributes) -> usize {
    let mut bytes = 0;
    let mut count = 0;
    for (key, value) in attributes.iter() {
        bytes += key.len();
        bytes += match value {
            Value::Text(text) => text.len(),
            Value::Boolean(_) | Value::Integer(_) | Value::Float(_) => 8,
        };
        if bytes > ROW_BYTES_MAX {
            break;
        }
        count += 1;
    }
    count
}

fn read_event<'a>(
    from: &mut Decoder<'a>,
    earliest: i64,
    words: &mut Vec<&'a str>,
) -> Option<Event> {
    let id = from.text()?.to_owned();
    let timestamp = earliest.wrapping_add(from.varint()?.cast_signed());
    let source: Source = from.word(words)?.parse().ok()?;
    let severity: StrDeserializer<'_, DecodeError> = from.word(words)?.into_deserializer();
    let severity = Severity::deserialize(severity).ok()?;
    let message = from.text()?.to_owned();
    let mut attributes = Attributes::default();
    for _ in 0..from.varint()? {
        let key = layout::static_key(from.word(words)?);
        let value = match from.byte()? {
            0 => Value::Boolean(false),
            1 => Value::Boolean(true),
            2 => Value::Integer(from.signed()?),
            3 => Value::Float(f64::from_le_bytes(from.take(8)?.try_into().ok()?)),
            4 => Value::Text(from.text()?.to_owned()),
            _ => return None,
        };
        attributes.add(key, value);
    }
    Some(Event {
        id,
        timestamp,
        source,
        severity,
        message,
        attributes,
    })
}

fn read_record(from: &mut Decoder<'_>) -> Option<Record> {
    Some(match from.byte()? {
        LINES => {
            let project = from.text()?.to_owned();
            let reader_offset = match from.varint()? {
                0 => None,
                _ => Some(from.reader_offset()?),
            };
            Record::Lines {
                project,
                reader_offset,
                span: LineSpan {
                    rows: from.varint()?,
                    earliest: from.signed()?,
                    latest: from.signed()?,
                },
            }
        }
        READER_OFFSETS => {
            let count = from.varint()?;
            let mut reader_offsets = Vec::new();
            for _ in 0..count {
                reader_offsets.push(from.reader_offset()?);
            }
            Record::ReaderOffsets(reader_offsets)
        }
        FORGET => Record::Forget {
            project: from.text()?.to_owned(),
        },
        _ => return None,
    })
}

fn truncate(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn put_reader_offset(to: &mut Vec<u8>, name: &str, value: &str) {
    text(to, name);
    text(to, value);
}

/// Writes a repeating text: zero and the text on first use, later its number, counted from one.
fn word<'a>(to: &mut Vec<u8>, content: &'a str, words: &mut WordNumbers<'a>) {
    let next = words.len() as u64 + 1;
    match words.entry(content) {
        Entry::Occupied(number) => varint(to, *number.get()),
        Entry::Vacant(entry) => {
            entry.insert(next);
            varint(to, 0);
            text(to, content);
        }
    }
}

fn text(to: &mut Vec<u8>, content: &str) {
    varint(to, content.len() as u64);
    to.extend(content.as_bytes());
}

/// LEB128: seven bits per byte, least significant group first.
fn varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    to.push((number & 0x7f) as u8);
}

/// Zigzag encoding, which keeps small numbers of either sign short.
fn signed(to: &mut Vec<u8>, number: i64) {
    varint(to, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

/// Reads the parts of a payload from its start.
struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn text(&mut self) -> Option<&'a str> {
        let count = usize::try_from(self.varint()?).ok()?;
        str::from_utf8(self.take(count)?).ok()
    }

    fn word(&mut self, words: &mut Vec<&'a str>) -> Option<&'a str> {
        match self.varint()? {
            0 => {
                words.push(self.text()?);
                words.last().copied()
            }
            number => words.get(usize::try_from(number - 1).ok()?).copied(),
        }
    }

    fn reader_offset(&mut self) -> Option<ReaderOffset> {
        Some(ReaderOffset {
            name: self.text()?.to_owned(),
            value: self.text()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<bool>().prop_map(Value::Boolean),
            any::<i64>().prop_map(Value::Integer),
            (-1e300..1e300).prop_map(Value::Float),
            ".{0,20}".prop_map(Value::Text),
        ]
    }

    fn event() -> impl Strategy<Value = Event> {
        let attributes = proptest::collection::vec(("[a-e.]{1,3}", value()), 0..8);
        (
            ".{0,30}",
            any::<i64>(),
            0..Source::ALL.len(),
            ".{0,50}",
            attributes,
        )
            .prop_map(|(id, timestamp, source, message, all)| {
                let mut attributes = Attributes::default();
                for (key, value) in all {
                    attributes.add(key, value);
                }
                Event::new(id, timestamp, Source::ALL[source], message, attributes)
            })
    }

    proptest! {
        #[test]
        fn encoded_lines_decode_unchanged(
            all in proptest::collection::vec(event(), 0..10),
            with_offset: bool,
        ) {
            let reader_offset = with_offset.then(|| ReaderOffset {
                name: "n".into(),
                value: "v".into(),
            });
            let (record_written, payload) = lines("p", &all, reader_offset.as_ref());
            let mut read = Vec::new();
            events(&payload, &mut read).unwrap();
            prop_assert_eq!(record(&payload).unwrap(), record_written);
            prop_assert_eq!(read, all);
        }

        #[test]
        fn damaged_payloads_decode_without_panic(
            all in proptest::collection::vec(event(), 1..4),
            at: prop::sample::Index,
            to: u8,
        ) {
            let (_, mut payload) = lines("p", &all, None);
            let at = at.index(payload.len());
            payload[at] = to;
            let _ = events(&payload, &mut Vec::new());
            let _ = events(&payload[..at], &mut Vec::new());
        }
    }

    #[test]
    fn oversized_id_and_attributes_are_truncated() {
        let mut attributes = Attributes::default();
        (0..64)
            .for_each(|n| attributes.add(format!("k{n}"), Value::Text("x".repeat(TEXT_BYTES_MAX))));
        let event = Event::new("i".repeat(1000), 0, Source::Edge, String::new(), attributes);
        let (_, payload) = lines("p", &[event], None);
        assert!(payload.len() <= ROW_BYTES_MAX + 1000, "{}", payload.len());
        let mut read = Vec::new();
        events(&payload, &mut read).unwrap();
        assert_eq!(
            (read[0].id.len(), read[0].attributes.iter().count()),
            (ID_BYTES_MAX, 15)
        );
    }
}
