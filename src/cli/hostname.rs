//! `gantry hostname`: block custom hostnames.

use clap::Subcommand;
use gantry_base::clock::Clock;
use serde_json::json;

use crate::{
    cli::{admin::CommandOptions, control::OpenControl, limits::operator},
    control::domains::hostnames::blocked,
};

#[derive(Debug, Subcommand)]
pub(super) enum HostnameCommand {
    /// Block a host name and its subdomains: requests to them are rejected, and projects cannot
    /// claim them.
    Block {
        /// DNS name, such as `customer.com`.
        name: String,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Unblock a host name.
    Unblock {
        /// The blocked name.
        name: String,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// List blocked host names.
    Blocked {
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl HostnameCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Block { name, common } => {
                set(&common, &name, true, "gantry hostname block").await
            }
            Self::Unblock { name, common } => {
                set(&common, &name, false, "gantry hostname unblock").await
            }
            Self::Blocked { common } => {
                let all =
                    OpenControl::with(&common.control, async |db| Ok(blocked::list(db).await?))
                        .await?;
                common.output.print(&all, || {
                    if all.is_empty() {
                        "No host name is blocked.".to_owned()
                    } else {
                        all.join("\n")
                    }
                })
            }
        }
    }
}

async fn set(
    common: &CommandOptions,
    name: &str,
    block: bool,
    command: &'static str,
) -> anyhow::Result<()> {
    let set = OpenControl::with(&common.control, async |db| {
        Ok(blocked::set(db, name, block, &Clock::system(), operator(command)?).await?)
    });
    let (name, changed) = set.await?;
    let value = json!({ "name": name, "blocked": block, "changed": changed });
    common.output.print(&value, || {
        format!(
            "{name} and its subdomains are {}.",
            if block { "blocked" } else { "not blocked" }
        )
    })
}
