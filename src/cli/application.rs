//! `gantry application`: verify OAuth applications.

use clap::Subcommand;
use gantry_base::{clock::Clock, ids::OrgSlug};
use uuid::Uuid;

use crate::{
    api::oauth::applications::verify::{self, VerificationCandidate},
    cli::{
        admin::{CommandOptions, about},
        control::OpenControl,
        limits::operator,
    },
    platform::access::organization_by_slug,
};

#[derive(Debug, Subcommand)]
pub(super) enum ApplicationCommand {
    /// List OAuth applications, newest first. Shows at most 1,000.
    List {
        /// Only applications of the organization with this slug.
        #[arg(long, value_name = "SLUG")]
        org: Option<OrgSlug>,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Verify an OAuth application: the consent page then shows it as verified. Before that, check
    /// that its name and URLs belong to the organization that registered it. A later change of the
    /// name or a URL removes the verification.
    Verify {
        /// Client id of the application, as in `gantry application list`.
        #[arg(value_name = "CLIENT_ID")]
        id: Uuid,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Remove the verification of an OAuth application. Existing authorizations are kept.
    Unverify {
        /// Client id of the application.
        #[arg(value_name = "CLIENT_ID")]
        id: Uuid,
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl ApplicationCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List { org, common } => {
                let found = OpenControl::with(&common.control, async |db| {
                    let organization = match &org {
                        Some(slug) => {
                            let found = organization_by_slug(db, slug).await;
                            Some(
                                found
                                    .map_err(|error| about("organization", slug.as_str(), error))?,
                            )
                        }
                        None => None,
                    };
                    Ok(verify::list(db, organization).await?)
                })
                .await?;
                common.output.print(&found, || match found.as_slice() {
                    [] => "No application is registered.".to_owned(),
                    found => found.iter().map(line).collect::<Vec<_>>().join("\n"),
                })
            }
            Self::Verify { id, common } => {
                set(id, true, &common, "gantry application verify").await
            }
            Self::Unverify { id, common } => {
                set(id, false, &common, "gantry application unverify").await
            }
        }
    }
}

async fn set(
    id: Uuid,
    verified: bool,
    common: &CommandOptions,
    command: &'static str,
) -> anyhow::Result<()> {
    let now = OpenControl::with(&common.control, async |db| {
        let set = verify::set(db, id, verified, operator(command)?, Clock::system().now()).await;
        set.map_err(|error| about("application", &id.to_string(), error))
    })
    .await?;
    common.output.print(&now, || line(&now))
}

fn line(application: &VerificationCandidate) -> String {
    let VerificationCandidate {
        client_id,
        name,
        organization,
        website,
        icon,
        redirect_uris,
        verified,
    } = application;
    let state = if *verified {
        "verified"
    } else {
        "not verified"
    };
    let addresses = [website]
        .into_iter()
        .chain(icon)
        .chain(redirect_uris)
        .filter(|address| !address.is_empty());
    let addresses = addresses.map(String::as_str).collect::<Vec<_>>().join(" ");
    format!("{client_id}  {state:<12}  {organization}  {name}  {addresses}")
}
