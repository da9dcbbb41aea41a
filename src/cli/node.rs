//! `gantry node`: list, cordon, drain and remove nodes, move projects, adopt data folders.

use std::path::Path;

use anyhow::Context as _;
use clap::Subcommand;
use gantry_base::{
    clock::{Clock, Entropy},
    ids::ProjectRef,
};
use gantry_node::{
    clusters::{Home, Likeness, Location},
    supervisor::Account,
};
use serde_json::json;
use uuid::Uuid;

use crate::{
    cli::{admin::CommandOptions, control::OpenControl, moves},
    control::{
        fleet::{
            node::{self, Node},
            rebuild::{self, RebuiltProject},
        },
        projects::lease,
    },
    platform::error::Error,
};

const NEVER_USED: &str = "this data folder was never used by a server, so it needs no adoption; start the server with `gantry serve`";

#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// List the nodes of the installation with their regions, states and projects.
    List {
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Place no new projects on a node. Its projects continue to run.
    Cordon {
        /// Name of the node.
        name: String,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Place new projects on a node again.
    Uncordon {
        /// Name of the node.
        name: String,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Move a running project and its branches to another node.
    ///
    /// The project is stopped for the seconds in which the other node restores the end of its log.
    /// Clients have to connect again. Waits until the move has ended; it continues without the
    /// command.
    Move {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        reference: ProjectRef,
        /// Name of the new node.
        #[arg(long, value_name = "NODE")]
        to: String,
        /// Return when the move is requested.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Move all projects of a node to other nodes, and place no new ones on it.
    Drain {
        /// Name of the node.
        name: String,
        /// Return when the moves are requested.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// List the moves of projects: the open ones, then the last ones that have ended.
    Moves {
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Cancel the move of a project that has not been handed over. It stays where it is.
    CancelMove {
        /// Ref of the project.
        #[arg(value_name = "REF")]
        reference: ProjectRef,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Restore the projects of a lost node on other nodes, from their backups.
    ///
    /// Commits that were not archived are lost: the output has the time of the last one that is
    /// recovered. A node that returns starts none of these projects, and keeps its copies of them
    /// until `gantry node discard-copies`.
    Rebuild {
        /// Name of the lost node.
        name: String,
        /// Confirm that the machine is off, or that no client can reach it.
        #[arg(long, required = true)]
        fenced: bool,
        /// Name of the node that restores them. Default: those with room in their regions.
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Discard the copies that a node keeps of projects that were rebuilt on other nodes. It
    /// deletes them when it starts next.
    DiscardCopies {
        /// Name of the node.
        name: String,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Remove a node that is stopped and holds no project. Other nodes reject it from then on.
    ///
    /// It returns when its server is started again with the control database and the sealing key.
    Remove {
        /// Name of the node.
        name: String,
        #[command(flatten)]
        common: CommandOptions,
    },
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
            Self::List { common } => list(&common).await,
            Self::Cordon { name, common } => cordon(&name, true, &common).await,
            Self::Uncordon { name, common } => cordon(&name, false, &common).await,
            Self::Move {
                reference,
                to,
                no_wait,
                common,
            } => moves::request(&reference, &to, !no_wait, &common).await,
            Self::Drain {
                name,
                no_wait,
                common,
            } => moves::drain(&name, !no_wait, &common).await,
            Self::Moves { common } => moves::list(&common).await,
            Self::CancelMove { reference, common } => moves::cancel(&reference, &common).await,
            Self::Rebuild {
                name, to, common, ..
            } => rebuild(&name, to.as_deref(), &common).await,
            Self::DiscardCopies { name, common } => discard_copies(&name, &common).await,
            Self::Remove { name, common } => remove(&name, &common).await,
            Self::Show { common } => show(&common).await,
            Self::Adopt { common } => adopt(&common).await,
        }
    }
}

async fn list(common: &CommandOptions) -> anyhow::Result<()> {
    let nodes = OpenControl::with(&common.control, async |db| Ok(node::list(db).await?)).await?;
    common.output.print(&nodes, || {
        if nodes.is_empty() {
            return "No node has been started.".to_owned();
        }
        nodes.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

/// Returns one line about a node.
pub(super) fn line(node: &Node) -> String {
    let state = match node.down_since {
        Some(since) => format!("down since {}", since.format("%Y-%m-%d %H:%M:%S")),
        None => node.state.name().to_owned(),
    };
    format!(
        "{}  {state}  region {}  {} projects  {}  Gantry {}",
        node.name,
        node.region.as_deref().unwrap_or("any"),
        node.projects,
        node.address.as_deref().unwrap_or("no fleet port"),
        node.version,
    )
}

async fn cordon(name: &str, cordoned: bool, common: &CommandOptions) -> anyhow::Result<()> {
    OpenControl::with(&common.control, async |db| {
        let now = Clock::system().now();
        let set = node::set_cordoned(db, name, cordoned, now).await;
        set.map_err(|error| unknown(error, name))
    })
    .await?;
    let value = json!({ "name": name, "cordoned": cordoned });
    common.output.print(&value, || {
        if cordoned {
            format!("Cordoned {name}: no new projects are placed on it.")
        } else {
            format!("Uncordoned {name}: new projects are placed on it again.")
        }
    })
}

async fn remove(name: &str, common: &CommandOptions) -> anyhow::Result<()> {
    OpenControl::with(&common.control, async |db| {
        let removed = node::remove(db, name, Clock::system().now()).await;
        removed.map_err(|error| unknown(error, name))
    })
    .await?;
    let value = json!({ "name": name, "removed": true });
    common.output.print(&value, || format!("Removed {name}."))
}

async fn rebuild(name: &str, to: Option<&str>, common: &CommandOptions) -> anyhow::Result<()> {
    let outcome = OpenControl::with(&common.control, async |db| {
        let sources = (&Entropy::system(), Clock::system().now());
        let rebuilt = rebuild::rebuild(db, name, to, sources).await;
        rebuilt.map_err(|error| unknown(error, name))
    })
    .await?;
    common.output.print(&outcome, || {
        let line = |project: &RebuiltProject| {
            let until = match project.recovered_until {
                Some(until) => format!("recovered until {}", until.format("%Y-%m-%d %H:%M:%S UTC")),
                None => "created again".to_owned(),
            };
            format!("{}  {}  {until}", project.reference, project.node)
        };
        let rebuilt = outcome.rebuilt.iter().map(line);
        let left = outcome.without_backup.iter();
        let left = left.map(|reference| format!("{reference}  stays on {name}: it has no backup"));
        let lines: Vec<String> = rebuilt.chain(left).collect();
        if lines.is_empty() {
            format!("{name} holds no project.")
        } else {
            lines.join("\n")
        }
    })
}

async fn discard_copies(name: &str, common: &CommandOptions) -> anyhow::Result<()> {
    let count = OpenControl::with(&common.control, async |db| {
        let discarded = rebuild::discard_copies(db, name).await;
        discarded.map_err(|error| unknown(error, name))
    })
    .await?;
    let value = json!({ "name": name, "discarded": count });
    common.output.print(&value, || {
        format!("Discarded {count} copies; {name} deletes them when it starts next.")
    })
}

/// Returns the error of a command for a node.
pub(super) fn unknown(error: Error, name: &str) -> anyhow::Error {
    match error {
        Error::NotFound => {
            anyhow::anyhow!("there is no node {name}; `gantry node list` shows the nodes")
        }
        Error::Conflict(reason) => anyhow::anyhow!(reason),
        other => other.into(),
    }
}

async fn show(common: &CommandOptions) -> anyhow::Result<()> {
    let dir = folder(common)?;
    let here = Location::of(&dir)?;
    let (earlier, running) = if common.control.database_url.is_none() {
        (Location::recorded(&dir)?, None)
    } else {
        let node = node_id(&dir)?;
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
        let node = node_id(&dir)?;
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
fn node_id(dir: &Path) -> anyhow::Result<Uuid> {
    let text = std::fs::read_to_string(dir.join("node")).context(NEVER_USED)?;
    text.trim()
        .parse()
        .context("the file `node` of the data folder does not contain a UUID")
}
