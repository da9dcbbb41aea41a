//! `gantry token`: manage classic and scoped personal access tokens.

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use clap::{Args, Subcommand};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::{OrgSlug, ProjectRef, TokenId},
};
use ipnet::IpNet;
use serde_json::json;

use crate::{
    api::tokens::{
        self, LIFE_DAYS_MAX,
        scoped::{self, LIFE_DAYS_DEFAULT, TokenDraft, TokenResources},
    },
    cli::{
        admin::{CommandOptions, about, user},
        control::OpenControl,
        limits::operator,
    },
    platform::{access::Reach, notifications},
};

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token and print it once. A classic token has all permissions of its owner, a scoped
    /// token only those listed.
    Create(Create),
    /// List a user's active tokens.
    List {
        /// Email address of the user.
        #[arg(long)]
        email: String,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Revoke a token. It is rejected from the next request on.
    Revoke {
        /// Number of the token, as in `gantry token list`.
        id: i64,
        #[command(flatten)]
        common: CommandOptions,
    },
}

#[derive(Debug, Args)]
pub(super) struct Create {
    /// Email address of the owner.
    #[arg(long)]
    email: String,
    /// Name of the token.
    #[arg(long)]
    name: String,
    /// Days until the token expires, 1 to 366. Default: never, or 7 for a scoped token.
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..=LIFE_DAYS_MAX))]
    expires_in_days: Option<i64>,
    /// Create a scoped token, limited to the permissions, organizations, projects and networks
    /// given here.
    #[arg(long, requires = "permission")]
    scoped: bool,
    /// Permissions, as in docs/reference/permissions.md, separated by commas.
    #[arg(long, requires = "scoped", value_delimiter = ',')]
    permission: Vec<String>,
    /// Organizations that the token can access, with all their projects. Default, without
    /// --project: the whole account.
    #[arg(
        long,
        requires = "scoped",
        conflicts_with = "project",
        value_delimiter = ',',
        value_name = "SLUG"
    )]
    org: Vec<OrgSlug>,
    /// Projects that the token can access. All must belong to one organization.
    #[arg(long, requires = "scoped", value_delimiter = ',', value_name = "REF")]
    project: Vec<ProjectRef>,
    /// Networks that the token may be used from, such as 192.0.2.0/24. Default: any.
    #[arg(long, requires = "scoped", value_delimiter = ',', value_name = "CIDR")]
    network: Vec<IpNet>,
    /// Start of validity, such as 2027-01-31T08:00:00Z. Default: now.
    #[arg(long, requires = "scoped", value_name = "TIME")]
    not_before: Option<DateTime<Utc>>,
    #[command(flatten)]
    common: CommandOptions,
}

impl TokenCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Create(create) => create.run().await,
            Self::List { email, common } => {
                let tokens = OpenControl::with(&common.control, async |db| {
                    Ok(tokens::list(db, user(db, &email).await?.id).await?)
                })
                .await?;
                common.output.print(&tokens, || {
                    tokens.iter().map(line).collect::<Vec<_>>().join("\n")
                })
            }
            Self::Revoke { id, common } => {
                OpenControl::with(&common.control, async |db| {
                    let unknown = |error| about("live token", &id.to_string(), error);
                    let audit = operator("gantry token revoke")?
                        .about_account(tokens::owner(db, TokenId(id)).await.map_err(unknown)?);
                    tokens::revoke(db, TokenId(id), Clock::system().now(), Some(&audit))
                        .await
                        .map_err(unknown)?;
                    notifications::settle(db)
                        .await
                        .context("the token is revoked, but not every node has confirmed it yet")
                })
                .await?;
                common
                    .output
                    .print(&json!({ "revoked": id }), || format!("Revoked token {id}."))
            }
        }
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        let Self {
            email,
            name,
            common,
            scoped,
            ..
        } = self;
        let entropy = Entropy::system();
        let now = Clock::system().now();
        let expires_at = self
            .expires_in_days
            .or(scoped.then_some(LIFE_DAYS_DEFAULT))
            .map(|days| now + TimeDelta::days(days));
        let draft = TokenDraft {
            resources: TokenResources::from_names(self.org, self.project)?,
            permissions: self.permission,
            networks: self.network,
            not_before: self.not_before,
        };
        let (minted, token) = OpenControl::with(&common.control, async |db| {
            let owner = user(db, &email).await?;
            let audit = operator("gantry token create")?.about_account(owner.id);
            let Some(expires_at) = expires_at.filter(|_| scoped) else {
                let minted = tokens::mint_classic(&entropy);
                let token =
                    tokens::create(db, owner.id, &name, &minted, now, expires_at, Some(&audit))
                        .await?;
                return Ok((minted, token));
            };
            let grant = draft.resolve(db, owner.id).await?;
            let minted = scoped::mint(&entropy);
            let token = scoped::create(
                db,
                owner.id,
                &name,
                &minted,
                (now, expires_at),
                &grant,
                Some(&audit),
            )
            .await?;
            Ok((minted, token))
        })
        .await?;
        let mut value = serde_json::to_value(&token)?;
        value["token"] = minted.expose().into();
        common.output.print(&value, || {
            format!(
                "{}\nSave it now: it is not shown again. It {}.",
                minted.expose(),
                until(token.expires_at)
            )
        })
    }
}

fn line(token: &tokens::AccessToken) -> String {
    let reach = match &token.scope {
        None => "classic".to_owned(),
        Some(scope) if scope.reach == Reach::Account.name() => "account".to_owned(),
        Some(scope) if scope.project_refs.is_empty() => scope.organization_slugs.join(","),
        Some(scope) => scope.project_refs.join(","),
    };
    format!(
        "{:>6}  {}  {}  {}  {reach}",
        token.id,
        token.alias,
        token.name,
        until(token.expires_at)
    )
}

fn until(expires_at: Option<DateTime<Utc>>) -> String {
    expires_at.map_or_else(
        || "does not expire".to_owned(),
        |at| format!("expires {}", at.format("%Y-%m-%d %H:%M UTC")),
    )
}
