//! Copies a running cluster without stopping it, as a new cluster that is isolated from the
//! original (decision 0098).
//!
//! The copy is made, started in quarantine, isolated and stopped in a folder of its own. It gets
//! its place as the last step, by one `rename`: a cluster in its place is always isolated. An
//! interrupted attempt leaves a folder that the next start removes, and a temporary replication
//! slot and a backup that end with their session.

mod backup;
mod copier;
mod copy;
mod direct_io;
mod emptying;
mod isolation;
mod masking;
mod progress;
mod scratch;
mod snapshot;

pub(super) use self::{
    backup::{QUARANTINE, QUARANTINE_17},
    isolation::{Isolation, isolate},
};
pub use self::{
    copier::copy_needs,
    copy::{CopyReport, CopySpec},
    isolation::IsolationStep,
    progress::{CopyPhase, CopyProgress},
    scratch::ScratchCopy,
    snapshot::Snapshot,
};
