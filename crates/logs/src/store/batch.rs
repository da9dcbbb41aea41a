//! Lines and reader offsets as callers append them.

use crate::event::Event;

/// Lines of one project that are appended atomically.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The project of the lines.
    pub project: String,
    /// The lines.
    pub events: Vec<Event>,
    /// A reader offset that is stored atomically with the lines.
    pub reader_offset: Option<ReaderOffset>,
}

/// The position of a reader in its input. Stored together with the lines read up to it, which gives
/// exactly-once ingestion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderOffset {
    /// The name of the reader, for example of the file it reads.
    pub name: String,
    /// The position, opaque to the store. An empty value deletes the offset.
    pub value: String,
}
