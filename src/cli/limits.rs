//! `gantry limits`: override rate limits.

use clap::{Args, Subcommand};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::OrgSlug,
};
use gantry_node::supervisor::Account;
use serde_json::json;
use uuid::Uuid;

use crate::{
    api::{endpoints, oauth::applications},
    cli::{
        admin::{CommandOptions, about},
        control::OpenControl,
    },
    platform::{
        access::organization_by_slug,
        audit::Recorder,
        db::Db,
        rate_limits::overrides::{self, OverrideTarget},
    },
};

#[derive(Debug, Subcommand)]
pub(super) enum LimitsCommand {
    /// Override the number of requests in the longest window of an operation. The length of the
    /// window and the burst limit do not change. Nodes apply the change within a second.
    ///
    /// When several overrides match a request, the most specific applies: the operation takes
    /// precedence over the application, and the application over the organization.
    Set {
        #[command(flatten)]
        about: AboutArgs,
        /// Requests per window, 1 to 1000000.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        requests: u32,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Remove an override.
    Unset {
        #[command(flatten)]
        about: AboutArgs,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// List the overrides, with their author and time.
    List {
        #[command(flatten)]
        common: CommandOptions,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct AboutArgs {
    /// Operation id, as in `docs/reference/endpoints.md`. Default: all operations.
    #[arg(long, value_name = "ID", value_parser = operation)]
    operation: Option<String>,
    /// Slug of an organization: the override applies to it and its projects. Default: all
    /// organizations.
    #[arg(long, value_name = "SLUG")]
    org: Option<OrgSlug>,
    /// Client id of an OAuth application, as in `gantry application list`. Default: all clients.
    #[arg(long, value_name = "ID")]
    application: Option<Uuid>,
}

/// Parses an operation id. Unknown ids are rejected, so that a typing error does not go unnoticed.
fn operation(id: &str) -> Result<String, String> {
    let known = endpoints::all().iter().any(|endpoint| endpoint.id == id);
    known.then(|| id.to_owned()).ok_or_else(|| {
        "unknown operation; see `docs/reference/endpoints.md` for the list".to_owned()
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

    /// Checks that the application exists, so that a typing error does not go unnoticed.
    async fn ensure_application(&self, db: &Db) -> anyhow::Result<()> {
        let Some(id) = self.application else {
            return Ok(());
        };
        anyhow::ensure!(
            applications::by_client_id(db, id).await?.is_some(),
            "application {id} not found"
        );
        Ok(())
    }

    /// Directs the audit entry to the log of the organization, if one is given.
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

impl From<&AboutArgs> for OverrideTarget {
    fn from(args: &AboutArgs) -> Self {
        Self {
            operation: args.operation.clone(),
            application: args.application,
            organization: args.org.clone(),
        }
    }
}

impl LimitsCommand {
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
                        &OverrideTarget::from(&args),
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
                let OverrideTarget {
                    operation,
                    application,
                    organization,
                } = OverrideTarget::from(&args);
                let value = json!({
                    "operation": operation, "application": application, "organization": organization, "requests": requests, "before": old
                });
                common.output.print(&value, || {
                    format!(
                        "Limit set to {requests} requests per window: {}.",
                        args.named()
                    )
                })
            }
            Self::Unset {
                about: args,
                common,
            } => {
                let old = OpenControl::with(&common.control, async |db| {
                    let audit = args
                        .concerning(db, operator("gantry limits unset")?)
                        .await?;
                    let now = Clock::system().now();
                    let unset = overrides::unset(
                        db,
                        &OverrideTarget::from(&args),
                        &actor()?,
                        now,
                        Some(&audit),
                    )
                    .await;
                    unset.map_err(|error| about("override for", &args.named(), error))
                })
                .await?;
                let OverrideTarget {
                    operation,
                    application,
                    organization,
                } = OverrideTarget::from(&args);
                let value = json!({ "operation": operation, "application": application, "organization": organization, "before": old });
                common.output.print(&value, || {
                    format!(
                        "Override of {old} requests per window removed: {}.",
                        args.named()
                    )
                })
            }
            Self::List { common } => {
                let all =
                    OpenControl::with(&common.control, async |db| Ok(overrides::list(db).await?))
                        .await?;
                common.output.print(&all, || match all.as_slice() {
                    [] => "No overrides.".to_owned(),
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

/// Returns a recorder for audit entries of this command.
pub(super) fn operator(command: &'static str) -> anyhow::Result<Recorder> {
    Ok(Recorder::operator(&actor()?, &Entropy::system(), command))
}

/// Returns the name of the operating system account, with the name of the `sudo` caller if there is
/// one.
fn actor() -> anyhow::Result<String> {
    let account = Account::current()?.name;
    Ok(match std::env::var("SUDO_USER") {
        Ok(person) if person != account => format!("{person} as {account}"),
        _ => account,
    })
}
