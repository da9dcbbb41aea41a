//! `gantry key-check`: require API keys for single projects.

use clap::{Subcommand, ValueEnum};
use gantry_base::{clock::Clock, ids::ProjectRef};
use serde_json::json;

use crate::{
    cli::{
        admin::{CommandOptions, about},
        control::OpenControl,
        limits::operator,
    },
    control::operator_settings::key_checks,
    platform::{error::Error, notifications},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KeyCheckMode {
    /// Require an API key of the project.
    On,
    /// Forward requests without an API key; the services do their own checks.
    Off,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCheckCommand {
    /// Override `--edge-check-keys` for one project. Returns after every node has applied the
    /// change.
    Set {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        /// Whether an API key is required.
        switch: KeyCheckMode,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Remove the override of one project, so that `--edge-check-keys` applies.
    Unset {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// List the overrides.
    List {
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl KeyCheckCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Set {
                project,
                switch,
                common,
            } => {
                let enabled = switch == KeyCheckMode::On;
                let before = set(&common, &project, Some(enabled), "gantry key-check set").await?;
                let value = json!({ "project": project, "enabled": enabled, "before": before });
                common.output.print(&value, || match switch {
                    KeyCheckMode::On => format!("Requests to {project} require an API key."),
                    KeyCheckMode::Off => {
                        format!("Requests to {project} do not require an API key.")
                    }
                })
            }
            Self::Unset { project, common } => {
                let before = set(&common, &project, None, "gantry key-check unset").await?;
                let value = json!({ "project": project, "before": before });
                common.output.print(&value, || {
                    format!("The override for {project} is removed: --edge-check-keys applies.")
                })
            }
            Self::List { common } => {
                let all =
                    OpenControl::with(&common.control, async |db| Ok(key_checks::list(db).await?))
                        .await?;
                common.output.print(&all, || match all.as_slice() {
                    [] => "No overrides: --edge-check-keys applies to all projects.".to_owned(),
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
    common: &CommandOptions,
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
