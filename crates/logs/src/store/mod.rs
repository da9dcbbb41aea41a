//! Durable storage of log lines.
//!
//! [`Store::append`] returns after a batch is durable in the write-ahead log of the node.
//! [`Store::upkeep`], called about once a second, flushes the log to Parquet files in an object
//! store (one file per project and day), merges small files and deletes expired ones. The name of a
//! file records the node and the log segments that it was made from. Names alone decide which files
//! are valid, so a flush repeated after a crash creates no duplicates. Nodes share the files; the
//! log of a node is read by that node only.

mod append;
mod batch;
mod batch_keys;
mod checksums;
mod codec;
mod counters;
mod damage;
mod disk;
mod error;
mod files;
mod index;
mod known_files;
mod listing;
mod log;
mod merge_policy;
mod names;
pub(crate) mod objects;
mod open;
mod options;
mod pins;
mod recovery;
mod repair;
mod spool;
mod state;
mod sweep;
mod tail;
mod tail_state;
mod upkeep;
mod upkeep_state;
mod verified;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use self::{
    append::{BATCH_BYTES_MAX, READER_OFFSET_BYTES_MAX, READER_OFFSETS_MAX},
    batch::{Batch, ReaderOffset},
    batch_keys::{BATCH_KEYS_PROJECT_MAX, BatchKey},
    checksums::Damage,
    codec::ROW_BYTES_MAX,
    error::StoreError,
    names::FileEntry,
    options::Options,
    recovery::LogDamage,
    repair::{FileDamage, RepairSource, RepairedFile, StoreFolders, StoreReport},
    state::{Stats, Store},
    tail::{TailBatch, TailLimit},
    tail_state::TailState,
    view::View,
};
pub(crate) use self::{error::error_chain, verified::TAIL_BYTES};
