//! `gantry upstream`: override upstream URLs for single projects.

use clap::Subcommand;
use gantry_base::{clock::Clock, ids::ProjectRef};
use gantry_node::kits::Service;
use serde_json::json;

use crate::{
    cli::{
        admin::{CommandOptions, about},
        control::OpenControl,
        limits::operator,
    },
    control::operator_settings::upstreams,
    platform::error::Error,
    proxy::service_proxy::upstreams::ServiceUpstream,
};

#[derive(Debug, Subcommand)]
pub(super) enum UpstreamCommand {
    /// Override `--upstream` for a service of one project. Returns after every node has applied the
    /// change.
    Set {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        /// The service (`rest`, `auth`, `storage`, `realtime` or `functions`) and its URL. `{ref}`
        /// is replaced by the project ref.
        #[arg(value_name = "SERVICE=URL")]
        upstream: ServiceUpstream,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Remove an override, so that `--upstream` applies.
    Unset {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        /// The service: `rest`, `auth`, `storage`, `realtime` or `functions`.
        service: Service,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// List the overrides.
    List {
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl UpstreamCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Set {
                project,
                upstream,
                common,
            } => {
                let before = set(
                    &common,
                    &project,
                    upstream.service,
                    Some(&upstream),
                    "gantry upstream set",
                )
                .await?;
                let service = upstream.service;
                let url = upstream.template.to_string();
                let value = json!({ "project": project, "service": service.name(), "url": url, "before": before });
                common.output.print(&value, || {
                    format!("The upstream URL of {service} of {project} is {url}.")
                })
            }
            Self::Unset {
                project,
                service,
                common,
            } => {
                let before = set(&common, &project, service, None, "gantry upstream unset").await?;
                let value =
                    json!({ "project": project, "service": service.name(), "before": before });
                common.output.print(&value, || {
                    format!("The {service} service of {project} uses the URL of --upstream.")
                })
            }
            Self::List { common } => {
                let all =
                    OpenControl::with(&common.control, async |db| Ok(upstreams::list(db).await?))
                        .await?;
                common.output.print(&all, || match all.as_slice() {
                    [] => "No overrides: --upstream applies to all projects.".to_owned(),
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
    service: Service,
    named: Option<&ServiceUpstream>,
    command: &'static str,
) -> anyhow::Result<Option<String>> {
    OpenControl::with(&common.control, async |db| {
        let set = upstreams::set(
            db,
            project,
            service,
            named,
            &Clock::system(),
            operator(command)?,
        )
        .await;
        set.map_err(|error: Error| about("project", project.as_str(), error))
    })
    .await
}
