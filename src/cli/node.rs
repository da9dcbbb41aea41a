//! `gantry node`: show and adopt data folders.

use std::path::Path;

use anyhow::Context as _;
use clap::Subcommand;
use gantry_base::clock::Entropy;
use gantry_node::{
    clusters::{Home, Likeness, Location},
    supervisor::Account,
};
use serde_json::json;
use uuid::Uuid;

use crate::{
    cli::{admin::CommandOptions, control::OpenControl},
    data_plane::projects::lease,
};

const NEVER_USED: &str = "this data folder was never used by a server, so it needs no adoption; start the server with `gantry serve`";

#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Show the machine and path where the data folder was last used.
    Show {
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Adopt a data folder that was copied or moved to this machine.
    ///
    /// Gantry does not start from a data folder that was last used on another machine or path,
    /// because two copies of a database would then run for one project. Stop Gantry there first,
    /// and never start it there again.
    Adopt {
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl NodeCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Show { common } => show(&common).await,
            Self::Adopt { common } => adopt(&common).await,
        }
    }
}

async fn show(common: &CommandOptions) -> anyhow::Result<()> {
    let dir = folder(common)?;
    let here = Location::of(&dir)?;
    let (earlier, running) = if common.control.database_url.is_none() {
        (Location::recorded(&dir)?, None)
    } else {
        let node = node(&dir)?;
        match OpenControl::with(&common.control, async |db| {
            Ok(lease::last_used(db, node).await?)
        })
        .await?
        {
            Some((earlier, expired)) => (earlier, Some(!expired)),
            None => (None, None),
        }
    };
    let likeness = earlier.as_ref().map(|earlier| here.likeness(earlier));
    let value = json!({
        "data_dir": dir,
        "last_used_on": earlier.as_ref().map(|earlier| &earlier.host),
        "here": likeness.map(|likeness| likeness != Likeness::Other),
        "in_use": running,
    });
    common.output.print(&value, || {
        let Some(earlier) = &earlier else {
            return format!("{} has not been used yet.", dir.display());
        };
        let location = if likeness == Some(Likeness::Other) {
            "another machine or path: run `gantry node adopt` to use it here"
        } else {
            "this machine"
        };
        format!(
            "{} was last used on {}, {location}.",
            dir.display(),
            earlier.host
        )
    })
}

async fn adopt(common: &CommandOptions) -> anyhow::Result<()> {
    let dir = folder(common)?;
    let here = Location::of(&dir)?;
    if common.control.database_url.is_some() {
        let node = node(&dir)?;
        OpenControl::with(&common.control, async |db| {
            let (earlier, expired) = lease::last_used(db, node).await?.context(NEVER_USED)?;
            if earlier.as_ref().is_some_and(|earlier| here.likeness(earlier) != Likeness::Other) {
                return Ok(());
            }
            let host = earlier.map_or_else(|| "another machine".to_owned(), |earlier| earlier.host);
            anyhow::ensure!(
                expired && lease::adopt(db, node, &here, &Entropy::system()).await?,
                "a server on {host} is running with the original of this data folder; stop it there and try again (after a kill, its lease expires within 15 s)"
            );
            Ok(())
        })
        .await?;
    } else {
        // Hold the lock of the data folder, so that no server starts on it meanwhile.
        let home = Home::open(&dir, Account::for_servers()?)?;
        anyhow::ensure!(home.control_data().exists(), NEVER_USED);
        here.record(home.dir())?;
    }
    common
        .output
        .print(&json!({ "data_dir": dir, "adopted": true }), || {
            format!("Adopted {}.", dir.display())
        })
}

/// Returns the data folder with symbolic links resolved.
fn folder(common: &CommandOptions) -> anyhow::Result<std::path::PathBuf> {
    let dir = common.control.home();
    dir.canonicalize()
        .with_context(|| format!("cannot open {}", dir.display()))
}

/// Returns the node id of the data folder.
fn node(dir: &Path) -> anyhow::Result<Uuid> {
    let text = std::fs::read_to_string(dir.join("node")).context(NEVER_USED)?;
    text.trim()
        .parse()
        .context("the file `node` of the data folder does not contain a UUID")
}
