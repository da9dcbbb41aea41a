//! `gantry recover`: bring an installation back on an empty machine.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use clap::Args;
use gantry_base::clock::Clock;
use gantry_node::{
    clusters::{Home, Location},
    engines::{Engine, Installed},
    supervisor::Account,
};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    app::config::ControlOptions,
    cli::{backup, control, key, output::Output},
    control::{
        backups::BackupStore,
        installation::{
            content::{About, ControlSnapshot, SnapshotName},
            error::InstallationError,
            fence::{self, StoreEpoch},
            files,
            objects::InstallationStore,
            recovery::{self, RecoveredFolder, RecoveredProjects, RecoveryPlan},
        },
    },
    platform::{db::Db, object_store},
};

/// The scheme of object stores.
const S3_SCHEME: &str = "s3://";

/// Recovers the control database, the sealing key and the files of the data folder. The server that
/// is started afterwards restores the projects from their own backups.
///
/// Stop the lost server first if it still runs. An interrupted recovery is continued by the same
/// command.
#[derive(Debug, Args)]
pub(super) struct RecoverCommand {
    /// Store of backups of the lost server: `s3://bucket/prefix`, with the endpoint and the access
    /// key of `--logs-s3-…`, or a folder.
    #[arg(long, group = "object_stores", value_name = "URL|DIR")]
    from: String,
    /// File that `gantry key export` wrote, or the key file of the lost server.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// File with the passphrase of an exported key, in one line. Default: asked for.
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Snapshot to recover, as `gantry backup list` shows it. Default: the newest that is complete.
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// Node that this machine replaces, if the installation had several.
    #[arg(long, value_name = "ID")]
    node: Option<Uuid>,
    /// Do not wait until the lost server counts as ended, up to a minute. Two servers would operate
    /// the same projects if it still ran.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    store: object_store::Flags,
    #[command(flatten)]
    control: ControlOptions,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The result, as printed.
#[derive(Debug, Serialize)]
struct RecoveryReport {
    installation: Uuid,
    snapshot: String,
    rows: u64,
    node: Uuid,
    active: Vec<String>,
    paused: Vec<String>,
    without_backup: Vec<String>,
    unknown: Vec<String>,
    missing_engines: Vec<u16>,
    installed_before: Vec<String>,
}

impl RecoverCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (sealing, key) = key::read_any(&self.key, self.passphrase_file.as_deref())?;
        let objects = self.objects()?;
        let store = InstallationStore::new(objects.clone(), &sealing)?;
        let about = recovery::identify(&store).await?;
        let home = self.control.home();
        let folder = RecoveredFolder::check(&home, about.installation)?;
        // Before anything is written: without an engine, nothing can be recovered here.
        Installed::find(
            self.control.postgres_bin.as_deref(),
            &Home::engines_of(&home),
        )?;
        self.wait_for_end(&store).await?;
        Home::create(&home)?;
        folder.begin(about.installation)?;
        let host = Location::of(&home)?.host;
        let epoch = StoreEpoch::raise(&store, &host, &Clock::system()).await?;
        let recovered = self
            .recover(&store, &folder, about, &key, epoch, &objects)
            .await?;
        let report = self.report(&recovered)?;
        folder.complete()?;
        self.output.print(&report, || self.text(&report))
    }

    fn objects(&self) -> anyhow::Result<BackupStore> {
        if self.from.starts_with(S3_SCHEME) {
            let place = self.store.place_of("--from", Some(&self.from))?;
            anyhow::ensure!(
                place.is_some(),
                "--from {} needs --logs-s3-access-key-id and --logs-s3-secret-access-key",
                self.from
            );
            return backup::open(place, Path::new(""));
        }
        let folder = Path::new(&self.from);
        anyhow::ensure!(
            folder.join("objects").is_dir(),
            "{} is not a folder of backups: give s3://bucket/prefix, or the folder of --backups-folder, which has a folder `objects`",
            folder.display()
        );
        backup::open(None, folder)
    }

    async fn wait_for_end(&self, store: &InstallationStore) -> anyhow::Result<()> {
        if self.no_wait {
            return Ok(());
        }
        fence::until_ended(store, &Clock::system(), |server, left| {
            anstream::eprintln!(
                "The server on {} was alive at {}. Waiting {} seconds, to be sure that it has ended.",
                server.host,
                server.renewed_at.format("%H:%M:%S UTC"),
                left.as_secs()
            );
        })
        .await?;
        Ok(())
    }

    /// Writes the data folder and the control database, from the newest complete snapshot.
    async fn recover(
        &self,
        store: &InstallationStore,
        folder: &RecoveredFolder,
        about: About,
        key: &SecretString,
        epoch: u64,
        objects: &BackupStore,
    ) -> anyhow::Result<(RecoveryPlan, RecoveredProjects)> {
        let home = Arc::new(Home::open(&self.control.home(), Account::for_servers()?)?);
        Location::confirm(home.dir())?;
        let (db, started) = if let Some(url) = &self.control.database_url {
            let url = url.expose_secret().parse();
            let url = url.context("--database-url is not a PostgreSQL URL")?;
            (Db::new(url)?, None)
        } else {
            let control = control::start(&home, &self.control).await?;
            (Db::new(control.config())?, Some(control))
        };
        let recovered = async {
            recovery::check_database(&db, folder, &about).await?;
            let (plan, mut projects) = self.load(store, &db, about, epoch).await?;
            projects.unknown = recovery::unknown_projects(&db, objects).await?;
            if let Some(node) = &plan.files {
                files::restore(home.dir(), store, &node.folders).await?;
            }
            folder.identify(&plan, key)?;
            Ok((plan, projects))
        };
        let recovered = recovered.await;
        db.close();
        if let Some(control) = started {
            control.stop().await?;
        }
        recovered
    }

    /// Tries the snapshots, newest first, until one is complete.
    async fn load(
        &self,
        store: &InstallationStore,
        db: &Db,
        about: About,
        epoch: u64,
    ) -> anyhow::Result<(RecoveryPlan, RecoveredProjects)> {
        let mut names = SnapshotName::all(store).await?;
        if let Some(wanted) = &self.snapshot {
            names.retain(|name| name.to_string() == *wanted);
            anyhow::ensure!(
                !names.is_empty(),
                "the store has no snapshot {wanted}; `gantry backup list` shows them"
            );
        }
        anyhow::ensure!(
            !names.is_empty(),
            "the store has an installation, but no snapshot of its control database: nothing can be recovered"
        );
        let mut last = None;
        for name in names.into_iter().rev() {
            match self.load_one(store, db, &about, name, epoch).await {
                Ok(loaded) => return Ok(loaded),
                Err(error) if error.is_damage() => {
                    anstream::eprintln!(
                        "The snapshot {name} is not complete ({error}). Trying an older one."
                    );
                    last = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let cause = last.map_or_else(String::new, |error| format!(" ({error})"));
        anyhow::bail!(
            "no snapshot in the store is complete{cause}: look for another copy of the store"
        )
    }

    async fn load_one(
        &self,
        store: &InstallationStore,
        db: &Db,
        about: &About,
        name: SnapshotName,
        epoch: u64,
    ) -> Result<(RecoveryPlan, RecoveredProjects), InstallationError> {
        let snapshot = ControlSnapshot::get(store, name).await?;
        let (node, files) = recovery::choose_node(store, &snapshot, self.node).await?;
        let plan = RecoveryPlan {
            about: about.clone(),
            name,
            snapshot,
            node,
            files,
        };
        let now = Clock::system().now();
        let projects = recovery::load_database(db, store, &plan, epoch, now).await?;
        Ok((plan, projects))
    }

    fn report(
        &self,
        (plan, projects): &(RecoveryPlan, RecoveredProjects),
    ) -> anyhow::Result<RecoveryReport> {
        let home = self.control.home();
        let engines = Home::engines_of(&home);
        let installed = Installed::find(self.control.postgres_bin.as_deref(), &engines)?;
        let majors: Vec<u16> = installed.all().iter().map(Engine::major).collect();
        let missing = projects
            .majors
            .iter()
            .filter(|major| !majors.contains(major));
        Ok(RecoveryReport {
            installation: plan.about.installation,
            snapshot: plan.name.to_string(),
            rows: plan.snapshot.rows(),
            node: plan.node,
            active: projects.active.clone(),
            paused: projects.paused.clone(),
            without_backup: projects.without_backup.clone(),
            unknown: projects.unknown.clone(),
            missing_engines: missing.copied().collect(),
            installed_before: plan
                .files
                .as_ref()
                .map_or_else(Vec::new, |node| node.installed.clone()),
        })
    }

    fn text(&self, report: &RecoveryReport) -> String {
        let home = self.control.home();
        let data_dir = format!("--data-dir '{}'", home.display());
        let mut lines = vec![format!(
            "Recovered the installation {} from the snapshot {} with {} rows into {}.",
            report.installation,
            report.snapshot,
            report.rows,
            home.display()
        )];
        lines.push(format!(
            "The server restores {} projects when it starts, and {} paused ones when they are resumed.",
            report.active.len(),
            report.paused.len()
        ));
        if !report.without_backup.is_empty() {
            lines.push(format!(
                "Without a complete backup, and therefore lost: {}.",
                report.without_backup.join(", ")
            ));
        }
        if !report.unknown.is_empty() {
            lines.push(format!(
                "Created after the snapshot, so that only their backups exist: {}.",
                report.unknown.join(", ")
            ));
        }
        for major in &report.missing_engines {
            lines.push(format!(
                "PostgreSQL {major} is missing here; projects wait for it. Install it with: gantry engine install {major} {data_dir}"
            ));
        }
        if !report.installed_before.is_empty() {
            lines.push(format!(
                "The lost server had these programs: {}. Services are installed with `gantry service install`.",
                report.installed_before.join(", ")
            ));
        }
        let store = if self.from.starts_with(S3_SCHEME) {
            format!("--backups-url {}", self.from)
        } else {
            format!("--backups-folder '{}'", self.from)
        };
        lines.push(format!(
            "Start the server with its other options and: gantry serve {data_dir} {store}"
        ));
        lines.join("\n")
    }
}
