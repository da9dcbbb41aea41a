//! Personal access tokens on the command line: classic and scoped ones.

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use clap::{Args, Subcommand};
use ipnet::IpNet;
use serde_json::json;

use crate::{
    api::{
        tokens,
        tokens::{
            LIFE_DAYS_MAX, scoped,
            scoped::{Draft, LIFE_DAYS_DEFAULT, Resources},
        },
    },
    base::{
        clock::{Clock, Entropy},
        ids::{OrgSlug, ProjectRef, TokenId},
    },
    cli::{
        admin::{Common, about, user},
        control::OpenControl,
        limits::operator,
    },
    platform::{access::Reach, notifications},
};

#[derive(Debug, Subcommand)]
pub(super) enum Token {
    /// Create a token. A classic one may do whatever its owner may, a scoped one less. Shown once.
    Create(Create),
    /// List a user's live tokens.
    List {
        /// The user's address.
        #[arg(long)]
        email: String,
        #[command(flatten)]
        common: Common,
    },
    /// Revoke a token: the next request with it is refused.
    Revoke {
        /// Its number, from the list.
        id: i64,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Args)]
pub(super) struct Create {
    /// Address of the user it acts for.
    #[arg(long)]
    email: String,
    /// What it is for.
    #[arg(long)]
    name: String,
    /// Days until it stops working, 1 to 366. Without it: never, and seven if it is scoped.
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..=LIFE_DAYS_MAX))]
    expires_in_days: Option<i64>,
    /// Create a scoped token: it may do what is named here, as long as its owner may.
    #[arg(long, requires = "permission")]
    scoped: bool,
    /// A permission of docs/reference/permissions.md; several with commas.
    #[arg(long, requires = "scoped", value_delimiter = ',')]
    permission: Vec<String>,
    /// An organization it reaches, with all its projects. Without this and --project: the whole account.
    #[arg(
        long,
        requires = "scoped",
        conflicts_with = "project",
        value_delimiter = ',',
        value_name = "SLUG"
    )]
    org: Vec<OrgSlug>,
    /// A project it reaches. Several must be of one organization.
    #[arg(long, requires = "scoped", value_delimiter = ',', value_name = "REF")]
    project: Vec<ProjectRef>,
    /// A network it may be sent from, such as 192.0.2.0/24. Without it: from anywhere.
    #[arg(long, requires = "scoped", value_delimiter = ',', value_name = "CIDR")]
    network: Vec<IpNet>,
    /// When it begins to work, such as 2027-01-31T08:00:00Z. Without it: at once.
    #[arg(long, requires = "scoped", value_name = "TIME")]
    not_before: Option<DateTime<Utc>>,
    #[command(flatten)]
    common: Common,
}

impl Token {
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
                        .context("the token is revoked, but not every node has confirmed it")
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
        let (entropy, now) = (Entropy::system(), Clock::system().now());
        let expires_at = self
            .expires_in_days
            .or(scoped.then_some(LIFE_DAYS_DEFAULT))
            .map(|days| now + TimeDelta::days(days));
        let draft = Draft {
            resources: Resources::named(self.org, self.project)?,
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
                "{}\nKeep it now: it is not shown again. It {}.",
                minted.expose(),
                until(token.expires_at)
            )
        })
    }
}

fn line(token: &tokens::Token) -> String {
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
