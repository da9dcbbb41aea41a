//! `gantry logs`: check and repair stored log lines.

use std::{fs, path::PathBuf, sync::Arc};

use clap::{Args, Subcommand};
use gantry_base::clock::{Clock, Entropy};
use gantry_logs::store::{FileDamage, RepairSource, RepairedFile, StoreFolders, StoreReport};
use serde_json::{Value, json};

use crate::{
    app::config::ControlOptions,
    cli::output::Output,
    platform::object_store::{Flags, RequestTimeouts, S3},
};

#[derive(Debug, Subcommand)]
pub(super) enum LogsCommand {
    /// Verify the checksums of all log files and of the write-ahead logs.
    ///
    /// Changes nothing, and can run beside a server. Fails if something is damaged.
    Verify(StoreArguments),
    /// Rebuild damaged log files from what is still readable.
    ///
    /// A file is rebuilt from the write-ahead log if it still has all its lines, otherwise from the
    /// readable parts of the file. Damaged files and segments are moved to `damaged` in the folder
    /// of the logs. Stop the servers of the data folder first.
    Repair(StoreArguments),
}

/// The location of a store.
#[derive(Debug, Args)]
pub(super) struct StoreArguments {
    #[command(flatten)]
    control: ControlOptions,
    /// Folder for log lines of projects. Default: `logs` in the data folder.
    #[arg(long, env = "GANTRY_LOGS_FOLDER", value_name = "DIR")]
    logs_folder: Option<PathBuf>,
    #[command(flatten)]
    store: Flags,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl LogsCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Verify(arguments) => verify(&arguments).await,
            Self::Repair(arguments) => repair(&arguments).await,
        }
    }
}

impl StoreArguments {
    /// Returns the folders of all process names, and the object store if one is configured.
    fn folders(&self) -> anyhow::Result<StoreFolders> {
        let shared = match &self.logs_folder {
            Some(folder) => folder.clone(),
            None => self.control.home().join("logs"),
        };
        anyhow::ensure!(shared.is_dir(), "there are no logs in {}", shared.display());
        let mut folders = vec![shared.clone()];
        for entry in fs::read_dir(&shared)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("beside-") {
                folders.push(entry.path());
            }
        }
        folders.sort();
        let objects = match self.store.place()? {
            None => None,
            Some(place) => {
                let timeouts = RequestTimeouts::default();
                let store = S3::new(place, Clock::system(), Entropy::system(), timeouts)?;
                Some(Arc::new(store) as _)
            }
        };
        Ok(StoreFolders {
            folders,
            files: shared.join("objects"),
            objects,
        })
    }
}

async fn verify(arguments: &StoreArguments) -> anyhow::Result<()> {
    let report = arguments.folders()?.verify().await?;
    arguments
        .output
        .print(&report_json(&report), || report_text(&report))?;
    anyhow::ensure!(
        report.is_sound(),
        "the logs are damaged; stop the servers, then run 'gantry logs repair'"
    );
    Ok(())
}

async fn repair(arguments: &StoreArguments) -> anyhow::Result<()> {
    let repaired = arguments.folders()?.repair().await?;
    let all: Vec<_> = repaired.iter().map(repaired_json).collect();
    let text = || {
        let mut lines: Vec<_> = repaired.iter().map(repaired_text).collect();
        lines.push(format!("{} files repaired", repaired.len()));
        lines.join("\n")
    };
    arguments.output.print(&json!(all), text)
}

fn damage_json(damage: &FileDamage) -> Value {
    json!({ "file": damage.path.as_ref(), "lines": damage.rows, "cause": damage.cause })
}

fn report_json(report: &StoreReport) -> Value {
    let files: Vec<_> = report.damaged_files.iter().map(damage_json).collect();
    let mut segments = Vec::new();
    for damage in &report.log_damage {
        let (file, offset, bytes) = (&damage.file, damage.offset, damage.bytes);
        segments.push(json!({ "file": file, "offset": offset, "bytes": bytes }));
    }
    json!({
        "files": report.files,
        "lines": report.rows,
        "damaged_files": files,
        "damaged_segments": segments,
        "set_aside": report.set_aside,
    })
}

fn report_text(report: &StoreReport) -> String {
    let mut lines = vec![format!(
        "{} files with {} lines are intact",
        report.files, report.rows
    )];
    for FileDamage { path, rows, cause } in &report.damaged_files {
        lines.push(format!("damaged: {path} with {rows} lines: {cause}"));
    }
    for damage in &report.log_damage {
        let (file, offset, bytes) = (&damage.file, damage.offset, damage.bytes);
        lines.push(format!(
            "damaged: {file} at byte {offset}: {bytes} bytes are not readable"
        ));
    }
    for path in &report.set_aside {
        lines.push(format!("set aside: {}", path.display()));
    }
    lines.join("\n")
}

fn source(repaired: &RepairedFile) -> &'static str {
    match repaired.source {
        RepairSource::Log => "log",
        RepairSource::File => "file",
        RepairSource::Nothing => "nothing",
    }
}

fn repaired_json(repaired: &RepairedFile) -> Value {
    let mut json = damage_json(&repaired.damage);
    json["rebuilt_from"] = source(repaired).into();
    json["rebuilt_lines"] = repaired.rows.into();
    json
}

fn repaired_text(repaired: &RepairedFile) -> String {
    let FileDamage { path, rows, .. } = &repaired.damage;
    let kept = repaired.rows;
    format!(
        "{path}: {kept} of {rows} lines rebuilt from {}",
        source(repaired)
    )
}
