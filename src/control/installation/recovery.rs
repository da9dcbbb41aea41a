//! Brings an installation back on an empty machine.
//!
//! The steps can be repeated: the rows are written in one transaction, and files into a folder that
//! is emptied first. Projects are restored by the server that starts afterwards, from their own
//! backups, as their rows say.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use chrono::{DateTime, TimeDelta, Utc};
use secrecy::SecretString;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{
    content::{self, About, ControlSnapshot, Node, SnapshotName},
    error::{InstallationError, Result, damaged, sql_error},
    files, load,
    objects::InstallationStore,
};
use crate::{
    control::{
        backups::{BackupStore, recover::request_recovery},
        projects,
    },
    platform::{db::Db, error::Context, sealing},
};

const DOING: &str = "adopting the recovered projects";
/// Numbers of base backups that are not used again.
const NUMBERS_SKIPPED: i64 = 1_000_000;

/// A snapshot with the node that a machine recovers.
#[derive(Debug)]
pub struct RecoveryPlan {
    /// The installation.
    pub about: About,
    /// Name of the snapshot.
    pub name: SnapshotName,
    /// The snapshot.
    pub snapshot: ControlSnapshot,
    /// The node that the machine replaces.
    pub node: Uuid,
    /// Its files. `None` if the store has none.
    pub files: Option<Node>,
}

/// The projects of a recovered node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveredProjects {
    /// Refs of projects that the server restores when it starts.
    pub active: Vec<String>,
    /// Refs of paused projects, which are restored when they are resumed.
    pub paused: Vec<String>,
    /// Refs of projects without a complete backup.
    pub without_backup: Vec<String>,
    /// Major versions of PostgreSQL that they need.
    pub majors: BTreeSet<u16>,
    /// Refs of projects with backups that the control database does not know.
    pub unknown: Vec<String>,
}

/// Name of the file that marks a data folder with an incomplete recovery.
const UNFINISHED: &str = "recovering";

/// Entries of an empty data folder: programs may be installed before a recovery.
const PROGRAMS: [&str; 4] = ["engines", "kits", "templates", "lost+found"];

/// Checks that a data folder was not left by an interrupted recovery.
///
/// Errors: [`InstallationError::Refused`] with the remedy.
pub fn check_complete(home: &Path) -> Result<()> {
    if !home.join(UNFINISHED).exists() {
        return Ok(());
    }
    Err(InstallationError::Refused(format!(
        "the recovery into {} was interrupted: run `gantry recover` again with the same options",
        home.display()
    )))
}

/// A data folder that is being recovered.
#[derive(Debug)]
pub struct RecoveredFolder {
    home: PathBuf,
    marker: PathBuf,
    /// Whether an interrupted recovery goes on.
    pub continues: bool,
}

impl RecoveredFolder {
    /// Checks that a folder is empty, or is left by an interrupted recovery of this installation.
    /// Programs in it stay.
    pub fn check(home: &Path, installation: Uuid) -> Result<Self> {
        let marker = home.join(UNFINISHED);
        let found = match fs::read_to_string(&marker) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => {
                return Err(InstallationError::File {
                    path: marker,
                    cause,
                });
            }
        };
        let continues = found.is_some();
        if found.is_some_and(|text| text.trim() != installation.to_string()) {
            return Err(InstallationError::Refused(format!(
                "{} was left by an interrupted recovery of another installation: remove it, or choose another --data-dir",
                home.display()
            )));
        }
        if !continues
            && let Some(name) = files::names(home)?
                .into_iter()
                .find(|name| !PROGRAMS.contains(&name.as_str()))
        {
            return Err(InstallationError::Refused(format!(
                "{} is not empty: it has {name}. Recover into an empty folder, and keep the old one until the projects run again",
                home.display()
            )));
        }
        Ok(Self {
            home: home.to_owned(),
            marker,
            continues,
        })
    }

    /// Marks the folder, which must exist, and removes files of an interrupted attempt.
    pub fn begin(&self, installation: Uuid) -> Result<()> {
        self.write(UNFINISHED, &installation.to_string())?;
        for folder in files::FOLDERS {
            let path = self.home.join(folder);
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(InstallationError::File { path, cause: error });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the files that identify the folder.
    pub fn identify(&self, plan: &RecoveryPlan, key: &SecretString) -> Result<()> {
        self.write("node", &plan.node.to_string())?;
        self.write("database", &plan.about.installation.to_string())?;
        let path = self.home.join("sealing-key");
        let written = sealing::write_text(&path, key);
        written.map_err(|cause| InstallationError::File { path, cause })
    }

    /// Ends the recovery: servers may use the folder.
    pub fn complete(self) -> Result<()> {
        let removed = fs::remove_file(&self.marker);
        removed.map_err(|cause| InstallationError::File {
            path: self.marker,
            cause,
        })
    }

    /// Writes a file with one line. Renamed in place, so that a crash leaves no partial file.
    fn write(&self, name: &str, line: &str) -> Result<()> {
        let path = self.home.join(name);
        let unfinished = path.with_extension("tmp");
        let written = fs::write(&unfinished, format!("{line}\n"))
            .and_then(|()| fs::File::open(&unfinished)?.sync_all())
            .and_then(|()| fs::rename(&unfinished, &path));
        written.map_err(|cause| InstallationError::File { path, cause })
    }
}

/// Checks that a control database outside the data folder is empty, or holds an interrupted
/// recovery of this installation.
pub async fn check_database(db: &Db, folder: &RecoveredFolder, about: &About) -> Result<()> {
    let doing = "looking into the control database";
    let rows = db
        .query("select to_regclass('installation') is not null", &[])
        .await
        .context(doing)?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    let sql = "select (select id from installation), exists (select from users) or exists (select from projects)";
    let rows = db.query(sql, &[]).await.context(doing)?;
    let row = rows.first().ok_or("no row").context(doing)?;
    let (id, is_used): (Option<Uuid>, bool) = (row.get(0), row.get(1));
    if !is_used || (folder.continues && id == Some(about.installation)) {
        return Ok(());
    }
    Err(InstallationError::Refused(
        "the control database of --database-url is not empty: recover into a new database"
            .to_owned(),
    ))
}

/// Checks that the store has an installation under this key.
///
/// Errors: [`InstallationError::Refused`] with the remedy.
pub async fn identify(store: &InstallationStore) -> Result<About> {
    let about = store.about().await?.ok_or_else(|| {
        InstallationError::Refused(
            "the store has no backups of an installation: give the URL or folder of --backups-url or --backups-folder of the lost server".to_owned(),
        )
    })?;
    content::check_format("installation/about", about.format)?;
    if about.key != store.fingerprint() {
        return Err(InstallationError::Refused(format!(
            "the backups are sealed with the key {}, and this is the key {}: use the file that `gantry key export` wrote for the lost server, or its \
             key file",
            about.key,
            store.fingerprint()
        )));
    }
    Ok(about)
}

/// Returns the readable snapshots, newest first, with the errors of damaged ones.
pub async fn snapshots(
    store: &InstallationStore,
) -> Result<Vec<(SnapshotName, Result<ControlSnapshot>)>> {
    let mut found = Vec::new();
    for name in SnapshotName::all(store).await?.into_iter().rev() {
        found.push((name, ControlSnapshot::get(store, name).await));
    }
    Ok(found)
}

/// Chooses the node that the machine replaces: the named one, or the only one.
pub async fn choose_node(
    store: &InstallationStore,
    snapshot: &ControlSnapshot,
    named: Option<Uuid>,
) -> Result<(Uuid, Option<Node>)> {
    let mut nodes = Vec::new();
    for node in store.list(content::NODES).await? {
        let Ok(node) = node.parse::<Uuid>() else {
            continue;
        };
        nodes.extend(Node::get(store, node).await?);
    }
    let list = |nodes: &[Node]| {
        let names = nodes
            .iter()
            .map(|node| format!("{} ({})", node.node, node.host));
        names.collect::<Vec<_>>().join(", ")
    };
    match named {
        Some(node) => {
            let Some(index) = nodes.iter().position(|found| found.node == node) else {
                return Err(InstallationError::Refused(format!(
                    "the store has no node {node}; it has {}",
                    list(&nodes)
                )));
            };
            Ok((node, Some(nodes.swap_remove(index))))
        }
        None if nodes.len() > 1 => Err(InstallationError::Refused(format!(
            "the installation has several nodes: choose the one that this machine replaces with --node, of {}",
            list(&nodes)
        ))),
        None => {
            let node = nodes.pop();
            Ok((node.as_ref().map_or(snapshot.node, |node| node.node), node))
        }
    }
}

/// Returns the projects with backups that the snapshot does not have, because they were created
/// after it.
pub async fn unknown_projects(db: &Db, store: &BackupStore) -> Result<Vec<String>> {
    let stored = store.projects().await?;
    let stored: Vec<String> = stored.iter().map(ToString::to_string).collect();
    let sql = "select s.ref from unnest($1::text[]) s(ref) where not exists (select from projects p where p.ref = s.ref) order by s.ref";
    let rows = db.query(sql, &[&stored]).await;
    let rows = rows.context("comparing the store with the projects")?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Writes the control database of a plan into an empty one, and prepares the projects of its node.
pub async fn load_database(
    db: &Db,
    store: &InstallationStore,
    plan: &RecoveryPlan,
    epoch: u64,
    now: DateTime<Utc>,
) -> Result<RecoveredProjects> {
    load::load(db, store, &plan.snapshot, async |transaction| {
        check_identity(transaction, &plan.about).await?;
        let epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
        let sql = "update installation set store_epoch = $1";
        let updated = transaction.execute(sql, &[&epoch]).await;
        updated.map_err(sql_error(DOING))?;
        adopt_projects(transaction, plan.node, now).await
    })
    .await
}

/// Checks that the rows are those of the installation and of the key that the store names.
async fn check_identity(transaction: &Transaction<'_>, about: &About) -> Result<()> {
    let sql = "select (select id from installation), (select fingerprint from sealing)";
    let row = transaction.query_one(sql, &[]).await;
    let row = row.map_err(sql_error(DOING))?;
    let (id, key): (Option<Uuid>, Option<String>) = (row.get(0), row.get(1));
    if id == Some(about.installation) && key.as_ref() == Some(&about.key) {
        return Ok(());
    }
    Err(damaged(
        "the snapshot",
        "it belongs to another installation than the store",
    ))
}

/// Prepares the projects of a node: their clusters do not exist, and are restored from their
/// backups. Projects come before branches, older ones before younger ones.
async fn adopt_projects(
    transaction: &Transaction<'_>,
    node: Uuid,
    now: DateTime<Utc>,
) -> Result<RecoveredProjects> {
    let sql = "select p.id, p.ref, p.desired, p.engine,
                      exists (select from base_backups b
                              where b.project_id = p.id and b.status = 'COMPLETED')
               from projects p left join branches b on b.project_id = p.id and not b.is_default
               where p.node = $1 and p.desired <> 'removed'
                 and p.status not in ('COMING_UP', 'INIT_FAILED')
               order by b.project_id is not null, p.id";
    let rows = transaction.query(sql, &[&node]).await;
    let mut found = RecoveredProjects::default();
    for (place, row) in (0..).zip(rows.map_err(sql_error(DOING))?) {
        let (id, reference, desired): (i64, String, String) = (row.get(0), row.get(1), row.get(2));
        let is_active = desired == "active";
        let turn = now + TimeDelta::milliseconds(place);
        let requested = request_recovery(transaction, id, is_active, (turn, now)).await;
        requested.map_err(sql_error(DOING))?;
        found.majors.extend(projects::major(row.get(3)));
        match (is_active, row.get(4)) {
            (_, false) => found.without_backup.push(reference),
            (true, true) => found.active.push(reference),
            (false, true) => found.paused.push(reference),
        }
    }
    // A removed project that can be brought back has lost its cluster as well.
    let sql = "insert into restores (project_id, recovers, requested_at) select id, true, $2 from projects
               where node = $1 and held_until > $2 on conflict do nothing";
    let held = transaction.execute(sql, &[&node, &now]).await;
    held.map_err(sql_error(DOING))?;
    // Backups that were made after the snapshot are in the store under the next numbers.
    let sql = "select setval(pg_get_serial_sequence('base_backups', 'id'), coalesce(max(id), 0) + $1::bigint) from base_backups";
    let skipped = transaction.execute(sql, &[&NUMBERS_SKIPPED]).await;
    skipped.map_err(sql_error(DOING))?;
    Ok(found)
}
