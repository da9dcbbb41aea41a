//! Backups of projects: list, restore, restore points, schedule and download.

pub mod download;
pub mod operations;
