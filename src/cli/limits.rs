//! `gantry limits`: raise or lower what operations admit.

use clap::{Args, Subcommand};
use serde_json::json;
use uuid::Uuid;

use crate::{
    api::{endpoints, oauth::applications},
    base::{
        clock::{Clock, Entropy},
        db::Db,
        ids::OrgSlug,
    },
    cli::{
        admin::{Common, about},
        control::OpenControl,
    },
    data_plane::clusters::Account,
    platform::{
        access::organization_by_slug,
        audit::Recorder,
        rate_limits::{overrides, overrides::About},
    },
};

#[derive(Debug, Subcommand)]
pub(super) enum Limits {
    /// Set what an operation's longest window admits. The window's length and a burst limit stay. Every node follows
    /// within a second.
    ///
    /// If several apply to a request, the most specific wins: one that names the operation before one that does not, then
    /// one that names the application, then one that names the organization.
    Set {
        #[command(flatten)]
        about: AboutArgs,
        /// Requests in a window, 1 to 1000000.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        requests: u32,
        #[command(flatten)]
        common: Common,
    },
    /// Go back to the limit that applies without it.
    Unset {
        #[command(flatten)]
        about: AboutArgs,
        #[command(flatten)]
        common: Common,
    },
    /// List what was set, by whom and when.
    List {
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct AboutArgs {
    /// Id of the operation, as in `docs/reference/endpoints.md`. Without it: every operation.
    #[arg(long, value_name = "ID", value_parser = operation)]
    operation: Option<String>,
    /// Slug of the organization whose requests, and whose projects' requests, are meant. Without it: everybody's.
    #[arg(long, value_name = "SLUG")]
    org: Option<OrgSlug>,
    /// Client id of the OAuth application whose requests are meant, as in `gantry application list`. Without it: everybody's.
    #[arg(long, value_name = "ID")]
    application: Option<Uuid>,
}

/// An operation there is: a typing error should not pass for a limit that is set.
fn operation(id: &str) -> Result<String, String> {
    let known = endpoints::all().iter().any(|endpoint| endpoint.id == id);
    known.then(|| id.to_owned()).ok_or_else(|| {
        "there is no such operation; `docs/reference/endpoints.md` lists them".to_owned()
    })
}

impl AboutArgs {
    fn named(&self) -> String {
        let operation = self.operation.as_deref().unwrap_or("every operation");
        let application = self
            .application
            .map(|id| format!(" by the application {id}"))
            .unwrap_or_default();
        let org = self
            .org
            .as_ref()
            .map(|org| format!(" in {org}"))
            .unwrap_or_default();
        format!("{operation}{application}{org}")
    }

    /// As for operations: one that is not there should not pass for one that is limited.
    async fn ensure_application(&self, db: &Db) -> anyhow::Result<()> {
        let Some(id) = self.application else {
            return Ok(());
        };
        anyhow::ensure!(
            applications::by_client_id(db, id).await?.is_some(),
            "there is no application {id}"
        );
        Ok(())
    }

    /// In the organization's log, if there is one.
    async fn concerning(&self, db: &Db, audit: Recorder) -> anyhow::Result<Recorder> {
        let Some(org) = &self.org else {
            return Ok(audit);
        };
        let organization = organization_by_slug(db, org)
            .await
            .map_err(|error| about("organization", org.as_str(), error))?;
        Ok(audit.about(organization, org))
    }
}

impl From<&AboutArgs> for About {
    fn from(args: &AboutArgs) -> Self {
        Self {
            operation: args.operation.clone(),
            application: args.application,
            organization: args.org.clone(),
        }
    }
}

impl Limits {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Set {
                about: args,
                requests,
                common,
            } => {
                let old = OpenControl::with(&common.control, async |db| {
                    args.ensure_application(db).await?;
                    let audit = args.concerning(db, operator("gantry limits set")?).await?;
                    overrides::set(
                        db,
                        &About::from(&args),
                        requests,
                        &actor()?,
                        Clock::system().now(),
                        Some(&audit),
                    )
                    .await
                    .map_err(|error| {
                        about(
                            "organization",
                            args.org.as_ref().map_or("", OrgSlug::as_str),
                            error,
                        )
                    })
                })
                .await?;
                let About {
                    operation,
                    application,
                    organization,
                } = About::from(&args);
                let value = json!({
                    "operation": operation, "application": application, "organization": organization, "requests": requests, "before": old
                });
                common.output.print(&value, || {
                    format!("{requests} requests a window: {}.", args.named())
                })
            }
            Self::Unset {
                about: args,
                common,
            } => {
                let old = OpenControl::with(&common.control, async |db| {
                    let (audit, now) = (
                        args.concerning(db, operator("gantry limits unset")?)
                            .await?,
                        Clock::system().now(),
                    );
                    let unset =
                        overrides::unset(db, &About::from(&args), &actor()?, now, Some(&audit))
                            .await;
                    unset.map_err(|error| about("override for", &args.named(), error))
                })
                .await?;
                let About {
                    operation,
                    application,
                    organization,
                } = About::from(&args);
                let value = json!({ "operation": operation, "application": application, "organization": organization, "before": old });
                common.output.print(&value, || {
                    format!("No longer {old} requests a window: {}.", args.named())
                })
            }
            Self::List { common } => {
                let all =
                    OpenControl::with(&common.control, async |db| Ok(overrides::list(db).await?))
                        .await?;
                common.output.print(&all, || match all.as_slice() {
                    [] => "Every limit is as delivered.".to_owned(),
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

/// What the operator does by this command, for the audit log.
pub(super) fn operator(command: &'static str) -> anyhow::Result<Recorder> {
    Ok(Recorder::operator(&actor()?, &Entropy::system(), command))
}

/// Who does this: the account of the operating system, and behind `sudo` the person.
fn actor() -> anyhow::Result<String> {
    let account = Account::current()?.name;
    Ok(match std::env::var("SUDO_USER") {
        Ok(person) if person != account => format!("{person} as {account}"),
        _ => account,
    })
}
