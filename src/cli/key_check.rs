//! `gantry key-check`: whether clients of single projects must send an API key.

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use crate::{
    base::{clock::Clock, error::Error, ids::ProjectRef},
    cli::{
        admin::{Common, about},
        control::OpenControl,
        limits::operator,
    },
    data_plane::service_proxy::key_checks,
    platform::notifications,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    /// Requests need an API key of the project.
    On,
    /// Requests pass without a key; the services check what they need.
    Off,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCheck {
    /// Switch the check of API keys for one project, instead of what `--edge-check-keys` says. Every node follows before this ends.
    Set {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        /// Whether keys are checked.
        switch: Switch,
        #[command(flatten)]
        common: Common,
    },
    /// Go back to what `--edge-check-keys` says.
    Unset {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        #[command(flatten)]
        common: Common,
    },
    /// List the projects for which it was set.
    List {
        #[command(flatten)]
        common: Common,
    },
}

impl KeyCheck {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Set {
                project,
                switch,
                common,
            } => {
                let enabled = switch == Switch::On;
                let before = set(&common, &project, Some(enabled), "gantry key-check set").await?;
                let value = json!({ "project": project, "enabled": enabled, "before": before });
                common.output.print(&value, || match switch {
                    Switch::On => format!("Requests to {project} need one of its API keys."),
                    Switch::Off => format!("Requests to {project} need no API key."),
                })
            }
            Self::Unset { project, common } => {
                let before = set(&common, &project, None, "gantry key-check unset").await?;
                let value = json!({ "project": project, "before": before });
                common.output.print(&value, || format!("Whether requests to {project} need an API key is as --edge-check-keys says."))
            }
            Self::List { common } => {
                let all =
                    OpenControl::with(&common.control, async |db| Ok(key_checks::list(db).await?))
                        .await?;
                common.output.print(&all, || match all.as_slice() {
                    [] => {
                        "Keys are checked as --edge-check-keys says, for all projects.".to_owned()
                    }
                    all => all
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join("\n"),
                })
            }
        }
    }
}

async fn set(
    common: &Common,
    project: &ProjectRef,
    enabled: Option<bool>,
    command: &'static str,
) -> anyhow::Result<Option<bool>> {
    OpenControl::with(&common.control, async |db| {
        let set = key_checks::set(db, project, enabled, &Clock::system(), operator(command)?).await;
        let before = set.map_err(|error: Error| about("project", project.as_str(), error))?;
        notifications::settle(db).await?;
        Ok(before)
    })
    .await
}
