//! `gantry status`: the state of the installation on one screen.

use std::fmt::Write;

use chrono::{DateTime, Utc};
use clap::Args;
use gantry_base::clock::Clock;

use crate::{
    cli::{admin::CommandOptions, control::OpenControl, node},
    control::installation::status::{
        BackupStatus, CertificateStatus, FaultyProject, InstallationStatus, StatusCount, WorkCount,
    },
};

#[derive(Debug, Args)]
pub(super) struct StatusCommand {
    /// Exit with 1 if a node is down, a project is faulty, backups are behind, or a certificate
    /// ends soon.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    common: CommandOptions,
}

impl StatusCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let now = Clock::system().now();
        let read = async |db: &_| Ok(InstallationStatus::read(db, now).await?);
        let status = OpenControl::with(&self.common.control, read).await?;
        self.common.output.print(&status, || text(&status))?;
        anyhow::ensure!(
            !self.check || !status.needs_attention(),
            "the installation needs attention"
        );
        Ok(())
    }
}

fn text(status: &InstallationStatus) -> String {
    let mut text = String::from("Nodes\n");
    for node in &status.nodes {
        let _ = writeln!(text, "  {}", node::line(node));
    }
    text += "\nProjects and branches\n";
    for StatusCount { status, count } in &status.projects {
        let _ = writeln!(text, "  {count:>6}  {status}");
    }
    if status.projects.is_empty() {
        text += "  none\n";
    }
    for FaultyProject {
        reference,
        name,
        status,
    } in &status.faulty
    {
        let _ = writeln!(text, "  ! {reference}  {status}  {name}");
    }
    text += "\nOpen work\n";
    let open: Vec<_> = status.work.iter().filter(|work| work.count > 0).collect();
    if open.is_empty() {
        text += "  none\n";
    }
    for WorkCount {
        kind,
        count,
        oldest,
    } in open
    {
        let _ = writeln!(
            text,
            "  {count:>6}  {kind}, the oldest since {}",
            time(*oldest)
        );
    }
    text += &backups(&status.backups);
    if !status.certificates.is_empty() {
        text += "\nCertificates\n";
    }
    for CertificateStatus { host, ends, error } in &status.certificates {
        let error = error.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  ! {host}  ends {}  {error}", time(*ends));
    }
    text.truncate(text.trim_end().len());
    text
}

fn backups(backups: &BackupStatus) -> String {
    let BackupStatus {
        last_completed,
        without_backup,
        behind,
        failed_tests,
    } = backups;
    let mut text = format!("\nBackups\n  last completed {}\n", time(*last_completed));
    for (mark, count, meaning) in [
        (' ', without_backup, "running projects have no backup yet"),
        (
            '!',
            behind,
            "running projects shipped no log for 15 minutes",
        ),
        (
            '!',
            failed_tests,
            "projects have a backup that failed its test",
        ),
    ] {
        if *count > 0 {
            let _ = writeln!(text, "  {mark} {count} {meaning}");
        }
    }
    text
}

fn time(time: Option<DateTime<Utc>>) -> String {
    time.map_or_else(
        || "never".to_owned(),
        |time| time.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}
