//! `gantry upstream`: where services of single projects answer.

use clap::Subcommand;
use serde_json::json;

use crate::{
    base::{clock::Clock, error::Error, ids::ProjectRef},
    cli::{
        admin::{Common, about},
        control::OpenControl,
        limits::operator,
    },
    data_plane::service_proxy::{
        overrides,
        upstreams::{Service, ServiceUpstream},
    },
};

#[derive(Debug, Subcommand)]
pub(super) enum Upstream {
    /// Say where a service of a project answers, instead of where `--upstream` says. Every node follows at once.
    Set {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        /// The service, `rest`, `auth`, `storage`, `realtime` or `functions`, and its address. `{ref}` stands for the ref.
        #[arg(value_name = "SERVICE=URL")]
        upstream: ServiceUpstream,
        #[command(flatten)]
        common: Common,
    },
    /// Go back to what `--upstream` says.
    Unset {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        project: ProjectRef,
        /// `rest`, `auth`, `storage`, `realtime` or `functions`.
        service: Service,
        #[command(flatten)]
        common: Common,
    },
    /// List what was set.
    List {
        #[command(flatten)]
        common: Common,
    },
}

impl Upstream {
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
                let (service, url) = (upstream.service, upstream.template.to_string());
                let value = json!({ "project": project, "service": service.name(), "url": url, "before": before });
                common.output.print(&value, || {
                    format!("The {service} service of {project} answers at {url}.")
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
                    format!("The {service} service of {project} answers where --upstream says.")
                })
            }
            Self::List { common } => {
                let all =
                    OpenControl::with(&common.control, async |db| Ok(overrides::list(db).await?))
                        .await?;
                common.output.print(&all, || match all.as_slice() {
                    [] => "All services answer where --upstream says.".to_owned(),
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
    service: Service,
    named: Option<&ServiceUpstream>,
    command: &'static str,
) -> anyhow::Result<Option<String>> {
    OpenControl::with(&common.control, async |db| {
        let set = overrides::set(
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
