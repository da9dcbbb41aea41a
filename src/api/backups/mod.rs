//! Backups of projects: list, restore, restore points, schedule and download.

pub mod download;
pub(in crate::api) mod moment;
pub mod operations;
pub mod restores;
