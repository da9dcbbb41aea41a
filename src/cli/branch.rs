//! `gantry branch`: list, delete and expire branches, mask their data, and seed them.

use std::{fs::File, io::Read, path::PathBuf};

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::Subcommand;
use gantry_base::{clock::Clock, ids::ProjectRef};
use serde_json::json;

use crate::{
    api::branches::operator::{self, BranchScripts, OperatedBranch, SCRIPT_BYTES_MAX},
    cli::{
        admin::{CommandOptions, about},
        control::OpenControl,
        limits,
    },
};

#[derive(Debug, Subcommand)]
pub(super) enum BranchCommand {
    /// List the branches of all projects, or of one.
    List {
        /// Ref of the parent project.
        #[arg(long, value_name = "REF")]
        parent: Option<ProjectRef>,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Delete a branch. The server does it at once, or when it starts.
    Delete {
        /// Ref of the branch.
        #[arg(value_name = "REF")]
        branch: ProjectRef,
        /// Delete a persistent branch, too.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Set the time at which a branch is deleted.
    Expire {
        /// Ref of the branch.
        #[arg(value_name = "REF")]
        branch: ProjectRef,
        /// Time, such as `2027-01-31T12:00:00Z`: at most 365 days from now.
        #[arg(value_name = "TIME")]
        at: DateTime<Utc>,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Set the masking of branches with data: SQL that runs as `postgres` before a copy can be
    /// reached, in one transaction. Without files, the masking is removed. A branch is not created
    /// if its masking fails.
    Mask {
        /// Ref of the parent project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        /// Files with SQL, in the order of execution.
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Set the seed of branches without data: SQL that runs once in each as `postgres`, after the
    /// migrations, in one transaction. Without files, the seed is removed.
    Seed {
        /// Ref of the parent project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        /// Files with SQL, in the order of execution.
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Print the seed of a project.
    Seeds {
        /// Ref of the parent project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Print the masking of a project.
    Masking {
        /// Ref of the parent project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl BranchCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let clock = Clock::system();
        match self {
            Self::List { parent, common } => list(parent, &common).await,
            Self::Delete {
                branch,
                force,
                common,
            } => {
                let audit = limits::operator("gantry branch delete")?;
                OpenControl::with(&common.control, async |db| {
                    let deleted = operator::delete(db, &branch, force, &clock, audit).await;
                    deleted.map_err(|error| about("branch", branch.as_str(), error))
                })
                .await?;
                let answer = json!({"ref": branch});
                let print = || format!("{branch} is deleted by the server of its node.");
                common.output.print(&answer, print)
            }
            Self::Expire { branch, at, common } => {
                let audit = limits::operator("gantry branch expire")?;
                OpenControl::with(&common.control, async |db| {
                    let set = operator::expire(db, &branch, at, &clock, audit).await;
                    set.map_err(|error| about("branch", branch.as_str(), error))
                })
                .await?;
                let answer = json!({"ref": branch, "expires_at": at});
                common
                    .output
                    .print(&answer, || format!("{branch} is deleted at {at}."))
            }
            Self::Mask {
                project,
                files,
                common,
            } => set(BranchScripts::Masking, &project, &files, &common).await,
            Self::Seed {
                project,
                files,
                common,
            } => set(BranchScripts::Seed, &project, &files, &common).await,
            Self::Masking { project, common } => {
                show(BranchScripts::Masking, &project, &common).await
            }
            Self::Seeds { project, common } => show(BranchScripts::Seed, &project, &common).await,
        }
    }
}

/// Replaces the scripts of a project by those of files.
async fn set(
    kind: BranchScripts,
    project: &ProjectRef,
    files: &[PathBuf],
    common: &CommandOptions,
) -> anyhow::Result<()> {
    let (command, done) = match kind {
        BranchScripts::Masking => ("gantry branch mask", "masked"),
        BranchScripts::Seed => ("gantry branch seed", "seeded"),
    };
    let scripts: anyhow::Result<Vec<String>> = files.iter().map(read).collect();
    let scripts = scripts?;
    let audit = limits::operator(command)?;
    let clock = Clock::system();
    OpenControl::with(&common.control, async |db| {
        let set = operator::set_scripts(db, kind, project, &scripts, &clock, audit).await;
        set.map_err(|error| about("project", project.as_str(), error))
    })
    .await?;
    let answer = json!({"ref": project, "scripts": scripts.len()});
    common.output.print(&answer, || match scripts.len() {
        0 => format!("Branches of {project} are not {done}."),
        count => format!("New branches of {project} are {done} by {count} scripts."),
    })
}

/// Prints the scripts of a project.
async fn show(
    kind: BranchScripts,
    project: &ProjectRef,
    common: &CommandOptions,
) -> anyhow::Result<()> {
    let scripts = OpenControl::with(&common.control, async |db| {
        Ok(operator::scripts(db, kind, project).await?)
    });
    let scripts = scripts.await?;
    common.output.print(&scripts, || scripts.join("\n"))
}

async fn list(parent: Option<ProjectRef>, common: &CommandOptions) -> anyhow::Result<()> {
    let all = OpenControl::with(&common.control, async |db| {
        Ok(operator::list(db, parent.as_ref()).await?)
    });
    let all = all.await?;
    let line = |branch: &OperatedBranch| {
        let ends = branch.ends_at.map_or_else(
            || "persistent".to_owned(),
            |at| format!("until {}", at.format("%Y-%m-%d %H:%M")),
        );
        let data = if branch.with_data { "data" } else { "schema" };
        let OperatedBranch {
            reference,
            parent,
            name,
            status,
            ..
        } = branch;
        format!(
            "{reference}  of {parent}  {data:<6}  {ends}  {}  {name}",
            status.name()
        )
    };
    common.output.print(&all, || {
        if all.is_empty() {
            "There are no branches.".to_owned()
        } else {
            all.iter().map(line).collect::<Vec<_>>().join("\n")
        }
    })
}

/// Reads a script.
fn read(path: &PathBuf) -> anyhow::Result<String> {
    let bound = u64::try_from(SCRIPT_BYTES_MAX).unwrap_or(u64::MAX);
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(bound + 1).read_to_string(&mut text))
        .with_context(|| format!("reading {}", path.display()))?;
    Ok(text)
}
