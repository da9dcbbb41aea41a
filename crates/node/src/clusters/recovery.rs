//! Clusters that are built from a backup beside others, and exchanged with them by `rename`.
//!
//! A cluster in the making lies in `tmp/`. Its server runs in quarantine, replays the write-ahead
//! log that lies in its folder up to the target, and is stopped. With a new system identifier, or
//! with a new timeline of its log, it is moved to `restored/`, where it survives a restart of
//! Gantry (decision 0172). The exchange is two renames: the project's folder to `replaced/`, then
//! the restored one to `projects/`. The names tell how far an interrupted exchange came.

mod finish;
mod rebuild;

pub(super) use self::finish::complete;
pub use self::rebuild::{
    KeptCluster, RecoveredCluster, RecoveredIdentity, RecoveryChecks, RecoveryOptions,
    RecoveryTarget, TimelineFork, UnfinishedCluster,
};
pub(in crate::clusters) use self::rebuild::{REPLAY_PATIENCE, STOP_PATIENCE, quarantine_settings};
