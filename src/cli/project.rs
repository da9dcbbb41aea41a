//! `gantry project`: list and purge deleted projects.

use clap::Subcommand;
use gantry_base::{clock::Clock, ids::ProjectRef};
use serde_json::json;

use crate::{
    cli::{
        admin::{CommandOptions, about},
        control::OpenControl,
        limits,
    },
    control::projects::held::{self, HeldProject},
};

#[derive(Debug, Subcommand)]
pub(super) enum ProjectCommand {
    /// List the deleted projects that can be restored.
    Removed {
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Delete the data of a deleted project now. It cannot be restored afterwards.
    Purge {
        /// Ref of the deleted project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl ProjectCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Removed { common } => list(&common).await,
            Self::Purge { project, common } => {
                let audit = limits::operator("gantry project purge")?;
                OpenControl::with(&common.control, async |db| {
                    let purged = held::purge(db, &project, &Clock::system(), audit).await;
                    purged.map_err(|error| about("removed project", project.as_str(), error))
                })
                .await?;
                let print =
                    || format!("The data of {project} is deleted by the server of its node.");
                common.output.print(&json!({"ref": project}), print)
            }
        }
    }
}

async fn list(common: &CommandOptions) -> anyhow::Result<()> {
    let all = OpenControl::with(&common.control, async |db| Ok(held::list(db, None).await?));
    let all = all.await?;
    let line = |project: &HeldProject| {
        format!(
            "{}  until {}  {}  {}",
            project.reference,
            project.held_until.format("%Y-%m-%d %H:%M"),
            project.organization,
            project.name
        )
    };
    common.output.print(&all, || {
        if all.is_empty() {
            "There are no removed projects that can be restored.".to_owned()
        } else {
            all.iter().map(line).collect::<Vec<_>>().join("\n")
        }
    })
}
