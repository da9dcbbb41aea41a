//! `gantry user`, `gantry org` and `gantry member`: manage users, organizations and members.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::OrgSlug,
};
use serde_json::json;

use crate::{
    api::{
        accounts::{self, Account, passwords, sign_in_links},
        organizations,
    },
    app::config::ControlOptions,
    cli::{control::OpenControl, limits::operator, output::Output, secret},
    platform::{
        access::{
            Role, organization_by_slug,
            sessions::{self, SessionSecret, SessionSelection},
        },
        db::Db,
        notifications,
    },
};

/// Options shared by all commands that use the control database.
#[derive(Debug, Args)]
pub(super) struct CommandOptions {
    #[command(flatten)]
    pub(super) control: ControlOptions,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct MigrateCommand {
    #[command(flatten)]
    common: CommandOptions,
}

#[derive(Debug, Subcommand)]
pub(super) enum UserCommand {
    /// Create a user.
    Create {
        /// Email address of the user; unique.
        #[arg(long)]
        email: String,
        /// Name shown to other members. Defaults to the part of the address before the @.
        #[arg(long)]
        username: Option<String>,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Set a user's password for the web pages. Reads the password from the terminal or standard
    /// input, and ends the user's sessions.
    SetPassword {
        /// Email address of the user.
        #[arg(long)]
        email: String,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Create a sign-in link for the web pages. The link works once and expires after 15 minutes.
    SignInLink {
        /// Email address of the user.
        #[arg(long)]
        email: String,
        /// Base URL of this server, as browsers reach it.
        #[arg(long, default_value = "http://127.0.0.1:8080")]
        url: String,
        #[command(flatten)]
        common: CommandOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum OrgCommand {
    /// Create an organization.
    Create {
        /// Display name.
        #[arg(long)]
        name: String,
        /// Identifier in paths. Defaults to 20 random letters.
        #[arg(long)]
        slug: Option<OrgSlug>,
        /// Email address of the organization's owner.
        #[arg(long, value_name = "EMAIL")]
        owner: String,
        #[command(flatten)]
        common: CommandOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum MemberCommand {
    /// Add a user to an organization, or change the role of a member.
    Add {
        /// Slug of the organization.
        #[arg(long)]
        org: OrgSlug,
        /// Email address of the user.
        #[arg(long)]
        email: String,
        /// Role: owner, administrator, developer or read-only.
        #[arg(long)]
        role: Role,
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl MigrateCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let applied =
            OpenControl::with_unmigrated(&self.common.control, async |db| Ok(db.migrate().await?))
                .await?;
        self.common
            .output
            .print(&json!({ "applied": applied }), || {
                match applied.as_slice() {
                    [] => "The control database is up to date.".to_owned(),
                    applied => format!("Applied: {}", applied.join(", ")),
                }
            })
    }
}

impl UserCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let entropy = Entropy::system();
        let now = Clock::system().now();
        match self {
            Self::Create {
                email,
                username,
                common,
            } => {
                let user = OpenControl::with(&common.control, async |db| {
                    let audit = operator("gantry user create")?;
                    Ok(accounts::create(
                        db,
                        &entropy,
                        &email,
                        username.as_deref(),
                        now,
                        Some(&audit),
                    )
                    .await?)
                })
                .await?;
                let value =
                    json!({ "id": user.gotrue_id, "email": user.email, "username": user.username });
                common.output.print(&value, || {
                    format!("Created the user {} ({}).", user.email, user.gotrue_id)
                })
            }
            Self::SetPassword { email, common } => {
                let password = secret::ask("New password")?;
                OpenControl::with(&common.control, async |db| {
                    let owner = user(db, &email).await?;
                    operator("gantry user set-password")?
                        .about_account(owner.id)
                        .announce(db, now)
                        .await?;
                    passwords::set(db, &entropy, &owner, password, now).await?;
                    Ok(sessions::end(db, owner.id, SessionSelection::All, now).await?)
                })
                .await?;
                common.output.print(&json!({ "email": email }), || {
                    format!("{email} has a new password, and all of its sessions are ended.")
                })
            }
            Self::SignInLink { email, url, common } => {
                let link = SessionSecret::generate(&entropy);
                OpenControl::with(&common.control, async |db| {
                    let owner = user(db, &email).await?;
                    operator("gantry user sign-in-link")?
                        .about_account(owner.id)
                        .announce(db, now)
                        .await?;
                    Ok(sign_in_links::create(db, owner.id, &link, now).await?)
                })
                .await?;
                let url = format!(
                    "{}{}",
                    url.trim_end_matches('/'),
                    sign_in_links::path(&link)
                );
                common
                    .output
                    .print(&json!({ "email": email, "url": url }), || url.clone())
            }
        }
    }
}

impl OrgCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self::Create {
            name,
            slug,
            owner,
            common,
        } = self;
        let created = OpenControl::with(&common.control, async |db| {
            let owner = user(db, &owner).await?;
            let audit = operator("gantry org create")?;
            let now = Clock::system().now();
            Ok(organizations::create(
                db,
                &Entropy::system(),
                &name,
                slug,
                owner.id,
                now,
                Some(&audit),
            )
            .await?)
        })
        .await?;
        common.output.print(&created, || {
            format!("Created the organization {} ({name}).", created.slug())
        })
    }
}

impl MemberCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self::Add {
            org,
            email,
            role,
            common,
        } = self;
        OpenControl::with(&common.control, async |db| {
            let user = user(db, &email).await?;
            let organization = organization_by_slug(db, &org)
                .await
                .map_err(|error| about("organization", org.as_str(), error))?;
            let audit = operator("gantry member add")?.about(organization, &org);
            organizations::members::set(
                db,
                organization,
                user.id,
                role,
                Clock::system().now(),
                Some(&audit),
            )
            .await?;
            notifications::settle(db)
                .await
                .context("the role was changed, but not every node has confirmed it; the change takes effect on the remaining nodes when they reconnect")
        })
        .await?;
        common.output.print(
            &json!({ "organization": org, "email": email, "role": role.name() }),
            || format!("{email} is {} of {org}.", role.label()),
        )
    }
}

/// Returns the user with this email address.
pub(super) async fn user(db: &Db, email: &str) -> anyhow::Result<Account> {
    accounts::by_email(db, email)
        .await
        .map_err(|error| about("user", email, error))
}

/// Adds the kind and the name of the missing object to `NotFound`; returns other errors unchanged.
pub(super) fn about(what: &str, name: &str, error: crate::platform::error::Error) -> anyhow::Error {
    match error {
        crate::platform::error::Error::NotFound => anyhow::anyhow!("{what} {name} not found"),
        other => other.into(),
    }
}
