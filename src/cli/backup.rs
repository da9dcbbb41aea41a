//! `gantry backup`: snapshots of the installation in the store of backups.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use gantry_base::clock::{Clock, Entropy};
use gantry_node::clusters::Location;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    app::config::{BackupPlaceFlags, ControlOptions},
    cli::{control::OpenControl, output::Output},
    control::{
        backups::{self, BackupStore},
        installation::{
            content::{ControlSnapshot, Node, SnapshotName},
            keeper::{Keeper, KeptInstallation},
            objects::InstallationStore,
            recovery, verification,
        },
    },
    platform::{object_store, sealing::SealingKey},
};

/// Options shared by all commands about the store.
#[derive(Debug, Args)]
pub(super) struct BackupCommandOptions {
    #[command(flatten)]
    control: ControlOptions,
    #[command(flatten)]
    place: BackupPlaceFlags,
    #[command(flatten)]
    store: object_store::Flags,
    /// File with the sealing key. Default: `sealing-key` in the data folder.
    #[arg(long, env = "GANTRY_SEALING_KEY", value_name = "FILE")]
    sealing_key: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Subcommand)]
pub(super) enum BackupCommand {
    /// Write a snapshot of the control database and of the data folder's files to the store. The
    /// server does this by itself whenever something changes.
    Now {
        #[command(flatten)]
        common: BackupCommandOptions,
    },
    /// List the snapshots of the installation in the store.
    List {
        #[command(flatten)]
        common: BackupCommandOptions,
    },
    /// Read everything that a recovery needs, and compare it with its checksums: the newest
    /// snapshot, the files of all nodes, and the newest backup of each project.
    Verify {
        #[command(flatten)]
        common: BackupCommandOptions,
    },
}

impl BackupCommandOptions {
    /// Opens the store of backups.
    fn objects(&self) -> anyhow::Result<BackupStore> {
        let home = self.control.home();
        let place = self.place.place(&self.store)?;
        let folder = self.place.folder(&home);
        anyhow::ensure!(
            place.is_some() || folder.join("objects").is_dir(),
            "{} has no backups; set --backups-url or --backups-folder to the value that the server has",
            folder.display()
        );
        open(place, &folder)
    }

    fn installation(&self) -> anyhow::Result<InstallationStore> {
        let default = || self.control.home().join("sealing-key");
        let key = SealingKey::read(&self.sealing_key.clone().unwrap_or_else(default))?;
        Ok(InstallationStore::new(self.objects()?, &key)?)
    }
}

/// Opens a store of backups beside a running server.
pub(super) fn open(
    place: Option<object_store::Place>,
    folder: &Path,
) -> anyhow::Result<BackupStore> {
    let entropy = Entropy::system();
    // The server removes unfinished files in its own folder at its start.
    let unfinished = format!("unfinished-{}", entropy.letters(8));
    let clock = Clock::system();
    let opened = backups::open_objects(place, folder, &unfinished, clock, entropy.clone());
    let opened = opened.map(|objects| BackupStore::new(objects, entropy));
    opened.with_context(|| format!("cannot open the store of backups in {}", folder.display()))
}

impl BackupCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Now { common } => now(&common).await,
            Self::List { common } => list(&common).await,
            Self::Verify { common } => verify(&common).await,
        }
    }
}

async fn now(common: &BackupCommandOptions) -> anyhow::Result<()> {
    let store = common.installation()?;
    let home = common.control.home();
    let node = std::fs::read_to_string(home.join("node"))
        .with_context(|| format!("{} was never used by a server", home.display()))?;
    let node: Uuid = node
        .trim()
        .parse()
        .context("the file `node` does not contain a UUID")?;
    let host = Location::of(&home)?.host;
    let written = OpenControl::with(&common.control, async |db| {
        let kept = KeptInstallation {
            db: db.clone(),
            home,
            node,
            host,
            clock: Clock::system(),
            store,
        };
        Ok(Keeper::default().write_now(&kept).await?)
    })
    .await?;
    let written = written.context("another process writes a snapshot at this moment; try again")?;
    let value = json!({
        "snapshot": written.name.to_string(),
        "rows": written.rows,
        "written_bytes": written.written_bytes,
    });
    common.output.print(&value, || {
        format!(
            "Wrote the snapshot {} with {} rows, {} bytes of which were new in the store.",
            written.name, written.rows, written.written_bytes
        )
    })
}

async fn list(common: &BackupCommandOptions) -> anyhow::Result<()> {
    let store = common.installation()?;
    let about = recovery::identify(&store).await?;
    let mut listed: Vec<Value> = Vec::new();
    let mut lines = vec![format!("Installation {}", about.installation)];
    for name in SnapshotName::all(&store).await?.into_iter().rev() {
        let (rows, problem) = match ControlSnapshot::get(&store, name).await {
            Ok(snapshot) => (Some(snapshot.rows()), None),
            Err(error) => (None, Some(error.to_string())),
        };
        lines.push(match (rows, &problem) {
            (Some(rows), _) => format!("{name}  {}  {rows} rows", name.taken_at),
            (None, problem) => format!("{name}  {}", problem.as_deref().unwrap_or_default()),
        });
        listed.push(json!({
            "name": name.to_string(),
            "taken_at": name.taken_at,
            "rows": rows,
            "problem": problem,
        }));
    }
    let value = json!({ "installation": about.installation, "snapshots": listed });
    common.output.print(&value, || lines.join("\n"))
}

async fn verify(common: &BackupCommandOptions) -> anyhow::Result<()> {
    let store = common.installation()?;
    recovery::identify(&store).await?;
    let name = SnapshotName::all(&store).await?.pop();
    let name = name.context("the store has no snapshot yet; take one with `gantry backup now`")?;
    let snapshot = ControlSnapshot::get(&store, name).await?;
    let mut problems = verification::snapshot(&store, &snapshot).await?;
    let nodes: Vec<Node> = verification::nodes(&store, &mut problems).await?;
    let key = common.sealing_key.clone();
    let key = SealingKey::read(&key.unwrap_or_else(|| common.control.home().join("sealing-key")))?;
    let projects = verification::projects(&common.objects()?, &key, &mut problems).await?;
    let value = json!({
        "snapshot": name.to_string(),
        "rows": snapshot.rows(),
        "nodes": nodes.len(),
        "projects": projects,
        "problems": problems,
    });
    common.output.print(&value, || {
        let mut lines = vec![format!(
            "Read the snapshot {name} with {} rows, the files of {} nodes and the backups of {projects} projects.",
            snapshot.rows(),
            nodes.len()
        )];
        lines.extend(problems.iter().map(|problem| format!("NO  {problem}")));
        lines.join("\n")
    })?;
    anyhow::ensure!(
        problems.is_empty(),
        "{} parts of the store cannot be recovered; the next snapshot stores them again",
        problems.len()
    );
    Ok(())
}
