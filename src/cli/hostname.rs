//! `gantry hostname`: which custom hostnames this server does not serve.

use clap::Subcommand;
use serde_json::json;

use crate::{
    base::clock::Clock,
    cli::{admin::Common, control::OpenControl, limits::operator},
    data_plane::domains::hostnames::blocked,
};

#[derive(Debug, Subcommand)]
pub(super) enum Hostname {
    /// Serve nobody under a name and all below it, and let nobody ask for them.
    Block {
        /// A name of DNS, such as `customer.com`.
        name: String,
        #[command(flatten)]
        common: Common,
    },
    /// Let a name be served again.
    Unblock {
        /// The name that was blocked.
        name: String,
        #[command(flatten)]
        common: Common,
    },
    /// List the names that are blocked.
    Blocked {
        #[command(flatten)]
        common: Common,
    },
}

impl Hostname {
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
                        "No name is blocked.".to_owned()
                    } else {
                        all.join("\n")
                    }
                })
            }
        }
    }
}

async fn set(
    common: &Common,
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
            "{name} and all names below it {}.",
            if block {
                "are not served"
            } else {
                "may be served"
            }
        )
    })
}
