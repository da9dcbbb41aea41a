//! `gantry config`: settings of a project or an organization in one file.
//!
//! The commands call the Management API, so they need what their user may do, and nothing else.

mod api_client;
mod file;
mod organization;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use gantry_base::ids::{OrgSlug, ProjectRef};
use serde_json::{Map, Value, json};

use self::{
    api_client::{ApiClient, ApiOptions},
    organization::OrganizationPlan,
};
use super::output::Output;
use crate::control::project_settings::{ChangeEffect, PlannedChange, SettingsPlan};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print the settings of a project or an organization as a file. Secrets are left out.
    Export {
        #[command(flatten)]
        subject: SubjectArgs,
        /// Include settings with their default.
        #[arg(long)]
        all: bool,
        /// Print JSON instead of TOML.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        api: ApiOptions,
    },
    /// Show what a file changes, and what restarts. Changes nothing.
    Plan {
        #[command(flatten)]
        subject: SubjectArgs,
        /// File in TOML, or in JSON if its name ends with `.json`. `env(NAME)` is replaced by the
        /// value of an environment variable.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        api: ApiOptions,
        /// Output format.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Apply a file: the settings of a project change as a whole or not at all.
    Apply {
        #[command(flatten)]
        subject: SubjectArgs,
        /// File in TOML, or in JSON if its name ends with `.json`.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Hash that `gantry config plan` printed. The command fails if the file or the settings
        /// changed since. Default: plan and apply at once.
        #[arg(long, value_name = "HASH")]
        hash: Option<String>,
        #[command(flatten)]
        api: ApiOptions,
        /// Output format.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct SubjectArgs {
    /// Ref of the project.
    #[arg(long, value_name = "REF")]
    project: Option<ProjectRef>,
    /// Slug of the organization: its members, applications and projects.
    #[arg(long, value_name = "SLUG")]
    org: Option<OrgSlug>,
}

/// The subject of a command.
enum Subject {
    Project(ProjectRef),
    Organization(OrgSlug),
}

impl SubjectArgs {
    fn subject(self) -> anyhow::Result<Subject> {
        match (self.project, self.org) {
            (Some(project), None) => Ok(Subject::Project(project)),
            (None, Some(org)) => Ok(Subject::Organization(org)),
            _ => anyhow::bail!("name a project with --project, or an organization with --org"),
        }
    }
}

impl ConfigCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Export {
                subject,
                all,
                json,
                api,
            } => export(subject.subject()?, all, json, &api.client()?).await,
            Self::Plan {
                subject,
                file,
                api,
                output,
            } => {
                let (api, document) = (api.client()?, file::read(&file)?);
                match subject.subject()? {
                    Subject::Project(project) => {
                        let plan = plan_project(&api, &project, &document).await?;
                        output.print(&plan, || describe(&plan))
                    }
                    Subject::Organization(org) => {
                        let plan = OrganizationPlan::new(&api, &org, document).await?;
                        output.print(&plan, || plan.describe())
                    }
                }
            }
            Self::Apply {
                subject,
                file,
                hash,
                api,
                output,
            } => {
                let (api, document) = (api.client()?, file::read(&file)?);
                match subject.subject()? {
                    Subject::Project(project) => {
                        let hash = match hash {
                            Some(hash) => hash,
                            None => plan_project(&api, &project, &document).await?.hash,
                        };
                        let plan = apply_project(&api, &project, &document, &hash).await?;
                        output.print(&plan, || describe_applied(&plan))
                    }
                    Subject::Organization(org) => {
                        let plan = OrganizationPlan::new(&api, &org, document).await?;
                        anyhow::ensure!(
                            hash.is_none_or(|hash| hash == plan.hash),
                            "the file or the organization changed since the plan; plan again"
                        );
                        plan.apply(&api).await?;
                        output.print(&plan, || plan.describe_applied())
                    }
                }
            }
        }
    }
}

async fn export(subject: Subject, all: bool, json: bool, api: &ApiClient) -> anyhow::Result<()> {
    let (document, secrets) = match subject {
        Subject::Project(project) => export_project(api, &project, all).await?,
        Subject::Organization(org) => organization::export(api, &org, all).await?,
    };
    if !secrets.is_empty() {
        anstream::eprintln!(
            "Secrets are not exported. Add them as env(NAME): {}",
            secrets.join(", ")
        );
    }
    let text = if json {
        serde_json::to_string_pretty(&document)? + "\n"
    } else {
        toml::to_string_pretty(&document).context("writing TOML")?
    };
    anstream::print!("{text}");
    Ok(())
}

/// Returns the settings of a project, and the paths of its secrets.
async fn export_project(
    api: &ApiClient,
    project: &ProjectRef,
    all: bool,
) -> anyhow::Result<(Map<String, Value>, Vec<String>)> {
    let path = format!("/v1/projects/{project}/config/document?all={all}");
    let answer = api.get(&path).await?;
    let document = answer["document"].as_object().cloned().unwrap_or_default();
    let secrets = serde_json::from_value(answer["secrets"].clone())?;
    Ok((document, secrets))
}

async fn plan_project(
    api: &ApiClient,
    project: &ProjectRef,
    document: &Map<String, Value>,
) -> anyhow::Result<SettingsPlan> {
    let path = format!("/v1/projects/{project}/config/plan");
    let answer = api.post(&path, &json!({"document": document})).await?;
    Ok(serde_json::from_value(answer)?)
}

async fn apply_project(
    api: &ApiClient,
    project: &ProjectRef,
    document: &Map<String, Value>,
    hash: &str,
) -> anyhow::Result<SettingsPlan> {
    let path = format!("/v1/projects/{project}/config/apply");
    let body = json!({"document": document, "hash": hash, "baseline": true});
    Ok(serde_json::from_value(api.post(&path, &body).await?)?)
}

fn describe(plan: &SettingsPlan) -> String {
    if plan.changes.is_empty() {
        return "No changes.".to_owned();
    }
    let mut lines: Vec<String> = plan.changes.iter().map(line).collect();
    if !plan.restarts.is_empty() {
        lines.push(format!("Restarts: {}.", plan.restarts.join(", ")));
    }
    lines.push(format!("Apply with --hash {}", plan.hash));
    lines.join("\n")
}

fn describe_applied(plan: &SettingsPlan) -> String {
    match plan.changes.len() {
        0 => "No changes.".to_owned(),
        1 => "1 setting changed.".to_owned(),
        count => format!("{count} settings changed."),
    }
}

/// Returns the line of a change: `auth.jwt_exp: 3600 -> 60 (restart)`.
fn line(change: &PlannedChange) -> String {
    let value = |value: &Value| match value {
        Value::Null => "unset".to_owned(),
        _ if change.secret => "(secret)".to_owned(),
        value => value.to_string(),
    };
    let effect = match change.effect {
        ChangeEffect::Immediate => "",
        ChangeEffect::Reload => " (reload)",
        ChangeEffect::Restart => " (restart)",
    };
    format!(
        "{}: {} -> {}{effect}",
        change.setting,
        value(&change.before),
        value(&change.after)
    )
}
