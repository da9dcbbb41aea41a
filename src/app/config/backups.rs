//! Options of backups.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use super::sections;
use crate::{
    control::backups::state::BackupOptions,
    platform::object_store::{self, Place, PlaceError},
};

/// Where backups are stored.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::BACKUPS.heading)]
pub struct BackupPlaceFlags {
    /// Object store for backups: `s3://bucket/prefix`, with the endpoint and the access key of
    /// `--logs-s3-…`. Servers with other control databases use other prefixes. Without it, backups
    /// are stored in a folder.
    #[arg(long, env = "GANTRY_BACKUPS_URL", group = "object_stores", requires_all = ["logs_s3_access_key_id", "logs_s3_secret_access_key"], value_name = "URL")]
    pub backups_url: Option<String>,

    /// Folder for backups of projects, unless `--backups-url` is set. It should be on another disk
    /// than the data folder. Default: `backups` in the data folder.
    #[arg(
        long,
        env = "GANTRY_BACKUPS_FOLDER",
        conflicts_with = "backups_url",
        value_name = "DIR"
    )]
    pub backups_folder: Option<PathBuf>,
}

impl BackupPlaceFlags {
    /// Returns the object store, with the endpoint and the access key of `store`. `None` selects
    /// the folder.
    pub fn place(&self, store: &object_store::Flags) -> Result<Option<Place>, PlaceError> {
        store.place_of("--backups-url", self.backups_url.as_deref())
    }

    /// The folder of a server with the data folder `home`.
    pub fn folder(&self, home: &Path) -> PathBuf {
        let default = || home.join("backups");
        self.backups_folder.clone().unwrap_or_else(default)
    }
}

/// Whether projects are backed up, and how long backups are kept.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::BACKUPS.heading)]
pub struct BackupFlags {
    /// Do not back up projects. Backups that exist are kept.
    #[arg(long, env = "GANTRY_NO_BACKUPS")]
    pub no_backups: bool,

    /// Where they are stored.
    #[command(flatten)]
    pub place: BackupPlaceFlags,

    /// Days to which a project can be taken back.
    #[arg(long, env = "GANTRY_BACKUPS_RETENTION_DAYS", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=3650), value_name = "DAYS")]
    pub backups_retention_days: u16,

    /// Backups of a project that are kept in any case.
    #[arg(long, env = "GANTRY_BACKUPS_RETENTION_COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "COUNT")]
    pub backups_retention_count: u16,

    /// Hours for which the cluster that a restore replaced is kept.
    #[arg(long, env = "GANTRY_BACKUPS_UNDO_HOURS", default_value_t = 24, value_parser = clap::value_parser!(u16).range(0..=720), value_name = "HOURS")]
    pub backups_undo_hours: u16,

    /// Days after which the last backup of a project is restored for a test.
    #[arg(long, env = "GANTRY_BACKUPS_VERIFY_DAYS", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=365), value_name = "DAYS")]
    pub backups_verify_days: u16,

    /// Write-ahead log of one project that waits while the store is not available, in MB, and at
    /// most a tenth of the free space. Beyond it, the log is dropped and a new backup is made.
    #[arg(long, env = "GANTRY_BACKUPS_BACKLOG_MB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..=1_048_576), value_name = "MB")]
    pub backups_backlog_mb: u32,

    /// Seconds between two looks for new write-ahead log: at most this much is lost with the disk.
    #[arg(long, env = "GANTRY_BACKUPS_INTERVAL", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600), value_name = "SECONDS")]
    pub backups_interval: u16,
}

impl BackupFlags {
    /// Returns the options. The object store has the endpoint and the access key of `store`.
    pub fn options(&self, store: &object_store::Flags) -> Result<BackupOptions, PlaceError> {
        Ok(BackupOptions {
            enabled: !self.no_backups,
            place: self.place.place(store)?,
            folder: self.place.backups_folder.clone(),
            retention_days: self.backups_retention_days,
            retention_count: self.backups_retention_count.into(),
            backlog_bytes_max: u64::from(self.backups_backlog_mb) << 20,
            undo_hours: self.backups_undo_hours,
            verify_days: self.backups_verify_days,
            look: Duration::from_secs(self.backups_interval.into()),
        })
    }
}
