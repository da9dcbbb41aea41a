//! Builds the upgraded copy of a stopped cluster in a folder of its own.
//!
//! ```text
//! tmp/upgrade-<random>/old/data   the copy of the original, which pg_upgrade consumes
//!                      new/data   the new cluster, and working directory of pg_upgrade
//!                      passwd     the accounts that pg_upgrade sees
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, sync::watch};
use tokio_postgres::Row;

use super::{
    launch::UpgradeLaunchPlan,
    run::{UpgradeSpec, UpgradeStep},
};
use crate::{
    background::blocking,
    clusters::{
        home,
        launch::EngineFiles,
        local_driver::LocalDriver,
        online_copy::{QUARANTINE, QUARANTINE_17},
        platform_roles, privileges,
        quarantine::{OwnerLogins, SchemaUsage},
        server::process::Server,
        shutdown::ShutdownMode,
        superuser::{self, SqlArgument, SuperuserSession, SuperuserStatement},
        upgrade::{
            definitions::{self, DomainConstraint},
            output,
        },
    },
    engines::Engine,
    error::{At, ClusterError, Result},
    files,
    supervisor::{Confinement, LaunchBounds, ProcessOwner},
};

/// Time limit of `pg_upgrade`, which takes seconds unless there are many thousand tables.
const UPGRADE_PATIENCE: Duration = Duration::from_mins(30);
/// Time limit of `initdb`.
const INITDB_PATIENCE: Duration = Duration::from_mins(2);
/// Time limit of a start in quarantine, including recovery.
const READY_PATIENCE: Duration = Duration::from_mins(5);
pub(super) const STOP_PATIENCE: Duration = Duration::from_mins(1);
/// Maximum number of databases of an upgraded cluster.
const DATABASES_MAX: i64 = 64;
/// Maximum number of owners with tables that are estimated at once.
const OWNERS_MAX: usize = 50;
/// Rules of authentication while `pg_upgrade` runs: its socket is in a folder that only the
/// account of the cluster can enter.
const TRUST: &str = "local all all trust\n";
/// Settings while `pg_upgrade` runs, besides those of the quarantine.
const WORK_SETTINGS: &str = "max_locks_per_transaction = 1024\nlog_destination = 'stderr'\n";
/// Settings of the check after the upgrade: extensions are loaded, their workers are not started.
const CHECK_SETTINGS: &str = "max_worker_processes = 0\nautovacuum = off\narchive_mode = off\n\
    log_connections = off\nlog_statement = 'none'\n";

/// Files that `pg_upgrade` leaves in its working directory.
const SCRIPTS: [&str; 2] = ["delete_old_cluster.sh", "update_extensions.sql"];
/// Roles that may create roles from version 16 on, and must not in earlier ones.
const ROLE_CREATORS: [&str; 5] = [
    "postgres",
    "supabase_auth_admin",
    "supabase_storage_admin",
    "supabase_functions_admin",
    "dashboard_user",
];
/// The first version in which a role that creates roles cannot join reserved ones.
const ROLES_SAFE: u16 = 16;

/// Properties of the original that the new cluster must share.
struct Facts {
    segment_mb: u64,
    has_checksums: bool,
    /// Databases that accept no connections. They accept some until the end of the upgrade.
    closed: Vec<String>,
    /// Constraints of domains, which the upgraded cluster gets at the end.
    constraints: Vec<DomainConstraint>,
}

impl LocalDriver {
    /// Builds the upgraded cluster, stopped and durable, and returns the folder with it. The folder
    /// is removed after an error.
    pub(super) async fn build_upgraded(
        &self,
        spec: &UpgradeSpec,
        source: &Server,
        progress: &watch::Sender<UpgradeStep>,
    ) -> Result<PathBuf> {
        let name = format!("upgrade-{}", self.entropy().letters(8));
        let place = self.home().tmp().join(&name);
        let build = Build {
            driver: self,
            spec,
            source,
            owner: source.run_as(),
            name: &name,
            place: &place,
            old: self.engine_of_major(source.major())?,
            new: self.engine_of_major(spec.cluster.major)?,
        };
        let made = build.run(progress).await;
        if made.is_err() {
            self.end_processes(&place, &name).await;
        }
        let failed = made.is_err().then(|| place.clone());
        self.remove_leftovers(&name, failed).await?;
        made.map(|()| place)
    }
}

/// One attempt.
struct Build<'a> {
    driver: &'a LocalDriver,
    spec: &'a UpgradeSpec,
    source: &'a Server,
    owner: ProcessOwner,
    name: &'a str,
    place: &'a Path,
    old: &'a Engine,
    new: &'a Engine,
}

impl Build<'_> {
    async fn run(&self, progress: &watch::Sender<UpgradeStep>) -> Result<()> {
        let folders = [self.place.to_owned(), self.at("old"), self.at("new")];
        let owner = self.owner;
        blocking(move || {
            folders
                .iter()
                .try_for_each(|folder| files::make_dir(folder, 0o711))
        })
        .await?;
        let (from, to) = (self.source.data().to_owned(), self.data("old"));
        blocking(move || files::copy_data(&from, &to, owner)).await?;
        let facts = self.prepare_copy().await?;
        self.make_new_cluster(&facts).await?;
        progress.send_replace(UpgradeStep::NewClusterMade);
        let libraries = format!("shared_preload_libraries = '{}'\n", self.preload());
        self.configure("old", "", Some(TRUST)).await?;
        self.configure("new", &libraries, Some(TRUST)).await?;
        progress.send_replace(UpgradeStep::Copied);
        progress.send_replace(UpgradeStep::UpgradeBegun);
        self.pg_upgrade().await?;
        self.check_upgraded(&facts).await?;
        progress.send_replace(UpgradeStep::Upgraded);
        Ok(())
    }

    fn at(&self, folder: &str) -> PathBuf {
        self.place.join(folder)
    }

    fn data(&self, which: &str) -> PathBuf {
        self.place.join(which).join("data")
    }

    fn preload(&self) -> String {
        self.new.preload().join(",")
    }

    fn major(&self, which: &str) -> u16 {
        let engine = if which == "old" { self.old } else { self.new };
        engine.major()
    }

    /// Replaces the configuration of a copy by that of its template. Settings of the tenant could
    /// keep the server from starting, or reach outside.
    async fn configure(
        &self,
        which: &str,
        settings: &str,
        hba: Option<&'static str>,
    ) -> Result<()> {
        let template = self.driver.template_of(self.major(which)).await?;
        let newer = if self.major(which) >= 17 {
            QUARANTINE_17
        } else {
            ""
        };
        let overrides = format!("{QUARANTINE}{newer}{WORK_SETTINGS}{settings}");
        let (data, owner) = (self.data(which), self.owner);
        blocking(move || adopt_configuration(&template, &data, owner, &overrides, hba)).await
    }

    /// Starts the copy in quarantine, which recovers it if the original was not stopped cleanly,
    /// and removes what prevents an upgrade of the copy but is of no use after it.
    async fn prepare_copy(&self) -> Result<Facts> {
        self.configure("old", "", None).await?;
        let (major, place) = (self.old.major(), self.at("old"));
        let server = self
            .driver
            .quarantined(major, self.name, &place, self.owner)?;
        let facts = self.in_quarantine(&server, prepare(&server)).await?;
        Ok(facts)
    }

    /// Runs work while a server of this attempt runs, and stops it.
    async fn in_quarantine<T>(
        &self,
        server: &Server,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let started = async {
            server.start_ready(READY_PATIENCE).await?;
            work.await
        };
        let done = started.await;
        let mode = if done.is_ok() {
            ShutdownMode::Fast
        } else {
            ShutdownMode::Immediate
        };
        // Also after an error: it is not among the processes of the project.
        let stopped = server.stop(mode, STOP_PATIENCE).await;
        let done = done?;
        stopped.map(|()| done)
    }

    /// Makes the empty cluster of the new version, as the account of templates.
    async fn make_new_cluster(&self, facts: &Facts) -> Result<()> {
        let account = self.driver.home().account().process_owner();
        let made = self.at("made");
        let folder = made.clone();
        blocking(move || {
            files::make_dir(&folder, 0o700)?;
            account.own(&folder).at("handing over", &folder)
        })
        .await?;
        let program = self.new.program("initdb");
        let mut initdb = Command::new(&program);
        initdb
            .args([
                "--no-sync",
                "--no-instructions",
                "--encoding=UTF8",
                "--auth=reject",
            ])
            .args(["--locale=C", "-U", platform_roles::SUPERUSER])
            .arg(format!("--wal-segsize={}", facts.segment_mb));
        if facts.has_checksums {
            initdb.arg("--data-checksums");
        } else if self.new.major() >= 18 {
            // On by default since 18.
            initdb.arg("--no-data-checksums");
        }
        initdb.arg("-D").arg(&made);
        // `initdb` runs the server through a shell.
        initdb
            .env_clear()
            .env("TZ", "UTC")
            .env("PATH", "/usr/bin:/bin")
            .current_dir("/")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let Some((uid, gid)) = account.ids() {
            initdb.uid(uid).gid(gid);
        }
        let run = tokio::time::timeout(INITDB_PATIENCE, initdb.output()).await;
        let late = || ClusterError::Initdb("not finished in time".to_owned());
        let output = run.map_err(|_| late())?.at("running", &program)?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(ClusterError::Initdb(complaint.trim().to_owned()));
        }
        let (to, owner) = (self.data("new"), self.owner);
        blocking(move || {
            files::copy_data(&made, &to, owner)?;
            files::remove_tree(&made)
        })
        .await
    }

    /// Runs `pg_upgrade` with links: it consumes the copy of the original.
    async fn pg_upgrade(&self) -> Result<()> {
        let sockets = self.driver.home().socket_dir(self.name);
        let accounts = self.at("passwd");
        let (owner, folder, passwd) = (self.owner, sockets.clone(), accounts.clone());
        blocking(move || {
            home::fresh_socket_dir(&folder, owner)?;
            // Without the group of the project, which its services have.
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(&folder, private).at("closing", &folder)?;
            let line = format!("gantry_upgrade:x:{0}:{0}::/:/bin/false\n", owner.uid());
            files::write_new(&passwd, &line, 0o644, ProcessOwner::own_account())
        })
        .await?;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let programs = |engine: &Engine| {
            let postgres = engine.program("postgres");
            postgres.parent().unwrap_or(&postgres).to_owned()
        };
        let (old, new) = (programs(self.old), programs(self.new));
        let bounds = self.bounds().await?;
        let mut plan = UpgradeLaunchPlan {
            program: self.new.program("pg_upgrade"),
            // By their working directory its processes are told from those of other installations
            // that use the same user id.
            directory: self.data("new"),
            write: vec![self.data("old"), self.data("new"), sockets.clone()],
            confinement: Confinement::new(self.owner, bounds, self.driver.launcher().sandbox),
            accounts: self.owner.ids().map(|_| accounts),
            program_arguments: vec![
                format!("--old-bindir={}", text(old.clone())),
                format!("--new-bindir={}", text(new.clone())),
                format!("--old-datadir={}", text(self.data("old"))),
                format!("--new-datadir={}", text(self.data("new"))),
                format!("--socketdir={}", text(sockets)),
                format!("--username={}", platform_roles::SUPERUSER),
                "--link".to_owned(),
                // One sync of the file system follows.
                "--no-sync".to_owned(),
            ],
            ..UpgradeLaunchPlan::default()
        };
        for engine in [self.old, self.new] {
            let engine_files = EngineFiles::of(engine, false);
            plan.read.extend(engine_files.read);
            plan.execute.extend(engine_files.loader);
            plan.execute.push(engine.bin_dir().to_owned());
            plan.execute.extend(engine.tools_dir());
        }
        plan.execute.extend([old, new]);
        let log = self.at("pg_upgrade.log");
        let launcher = self.driver.launcher().clone();
        let ran = plan.run(&launcher, &log, UPGRADE_PATIENCE).await;
        let Err(ClusterError::Upgrade(said)) = ran else {
            return ran;
        };
        // Details are in files of the new cluster.
        let output = self.data("new").join("pg_upgrade_output.d");
        let details = blocking(move || Ok(output::details(&output))).await?;
        let text = [said, details].join(" ");
        Err(ClusterError::Upgrade(text.trim().to_owned()))
    }

    /// Returns the limits of the project. Processes in its control group are ended with it.
    async fn bounds(&self) -> Result<LaunchBounds> {
        let Some(resources) = self.driver.resources().cloned() else {
            return Ok(LaunchBounds::default());
        };
        let owner = self.owner;
        let name = self.source.name().to_owned();
        blocking(move || Ok(resources.prepare(&name, owner))).await
    }

    /// Starts the upgraded cluster in quarantine, logs in as each role of the platform, and updates
    /// extensions.
    async fn check_upgraded(&self, facts: &Facts) -> Result<()> {
        let template = self.driver.template_of(self.new.major()).await?;
        let (data, owner) = (self.data("new"), self.owner);
        let target = data.clone();
        blocking(move || {
            files::remove_tree(&target.join("pg_upgrade_output.d"))?;
            for script in SCRIPTS {
                files::remove_file(&target.join(script))?;
            }
            adopt_configuration(&template, &target, owner, CHECK_SETTINGS, None)
        })
        .await?;
        let (major, place) = (self.new.major(), self.at("new"));
        let server = self
            .driver
            .server_for(major, self.name, &place, self.owner)?;
        let known = self.spec.cluster.project.as_str();
        let creates_roles = self.old.major() < ROLES_SAFE && self.new.major() >= ROLES_SAFE;
        let work = async {
            if creates_roles {
                let session = server.superuser().await?;
                for role in ROLE_CREATORS {
                    let role = [SqlArgument::Identifier(role)];
                    let changed = session.run_with(&superuser::LET_CREATE_ROLES, &role);
                    changed.await.map_err(sql_error)?;
                }
            }
            check(&server, facts, known).await
        };
        self.in_quarantine(&server, work).await?;
        blocking(move || {
            files::remove_file(&data.join(home::OVERRIDES))?;
            files::remove_file(&place.join("start.log"))?;
            files::remove_tree(&data.join("log"))?;
            files::sync_fs(&place)
        })
        .await
    }
}

/// Replaces the configuration files of a stopped cluster by those of a template, with further
/// settings. Blocks.
fn adopt_configuration(
    template: &Path,
    data: &Path,
    owner: ProcessOwner,
    overrides: &str,
    hba: Option<&str>,
) -> Result<()> {
    /// Far more than the size of a template's file.
    const BYTES_MAX: u64 = 64 << 10;
    let read = |name: &str| {
        let path = template.join(name);
        files::read_bounded(&path, BYTES_MAX).at("reading", &path)
    };
    let rules = hba.map_or_else(|| read("pg_hba.conf"), |rules| Ok(rules.to_owned()))?;
    for (name, text) in [
        ("postgresql.conf", read("postgresql.conf")?),
        ("pg_ident.conf", read("pg_ident.conf")?),
        ("pg_hba.conf", rules),
        ("postgresql.auto.conf", String::new()),
        (home::OVERRIDES, overrides.to_owned()),
    ] {
        let path = data.join(name);
        files::remove_file(&path)?;
        files::write_new(&path, &text, 0o600, owner)?;
    }
    Ok(())
}

/// Reads the properties of the copy, and makes it ready for the upgrade.
async fn prepare(server: &Server) -> Result<Facts> {
    let session = server.repairer().await?;
    run(&session, &superuser::REPAIR_ROLES).await?;
    // The start of a project records such privileges before it revokes them.
    if let Some(finding) = privileges::find(&session).await?.first() {
        let text = format!("{finding}; restart the project, which revokes it, and upgrade again");
        return Err(ClusterError::Upgrade(text));
    }
    let row = session.query_one(&superuser::UPGRADE_FACTS, &[]).await;
    let row = row.map_err(sql_error)?;
    let segment_mb = u64::try_from(value::<i64>(&row, 0)?).unwrap_or(1);
    let has_checksums = value(&row, 1)?;
    // The slots of the copy are not those of the original.
    run(&session, &superuser::DROP_SLOTS).await?;
    let (mut closed, mut constraints) = (Vec::new(), Vec::new());
    for (name, is_open) in databases(&session).await? {
        if !is_open {
            let database = [SqlArgument::Identifier(&name)];
            let opened = session.run_with(&superuser::OPEN_DATABASE, &database);
            opened.await.map_err(sql_error)?;
            closed.push(name.clone());
        }
        let own = server.isolator(&name).await?;
        run(&own, &superuser::REMOVE_NOT_RESTORABLE).await?;
        constraints.extend(definitions::block(&own, &name).await?);
    }
    Ok(Facts {
        segment_mb,
        has_checksums,
        closed,
        constraints,
    })
}

/// Checks the upgraded cluster: each role of the platform can log in, and extensions can be
/// updated. Restores the tenant's functions and constraints. Databases that were closed are closed
/// again.
async fn check(server: &Server, facts: &Facts, project: &str) -> Result<()> {
    for role in platform_roles::PLATFORM_LOGINS {
        server.connect(role, "postgres").await?;
    }
    let shared = server.repairer().await?;
    let databases = databases(&shared).await?;
    for (name, _) in &databases {
        let own = server.superuser_in(name).await?;
        run(&own, &superuser::LONG_STATEMENTS).await?;
        update_extensions(&own).await?;
    }
    let logins = OwnerLogins::open(server, &shared).await?;
    for (name, _) in &databases {
        let own = server.isolator(name).await?;
        let usage = SchemaUsage::grant(&own).await?;
        definitions::unblock(&own, &logins, name, &facts.constraints).await?;
        estimate(&logins, name, project).await?;
        usage.revoke(&own).await?;
    }
    logins.close(&shared).await?;
    for name in &facts.closed {
        let database = [SqlArgument::Identifier(name)];
        let closed = shared.run_with(&superuser::CLOSE_DATABASE, &database);
        closed.await.map_err(sql_error)?;
    }
    Ok(())
}

/// Makes a rough estimate of all tables, in sessions of their owners. The full one follows while
/// the project runs.
async fn estimate(logins: &OwnerLogins, database: &str, project: &str) -> Result<()> {
    const SQL: &str = "set default_statistics_target = 1; set statement_timeout = '30s'; analyze";
    for owner in logins.owners().iter().take(OWNERS_MAX) {
        let session = logins.session(owner, database).await?;
        if let Err(error) = session.batch_execute(SQL).await {
            tracing::info!(project, database, %error, "no estimate of the tables yet");
        }
    }
    Ok(())
}

/// Updates the extensions of a database to the versions of the new engine.
async fn update_extensions(session: &SuperuserSession) -> Result<()> {
    let outdated = session.query(&superuser::OUTDATED_EXTENSIONS, &[]).await;
    for row in outdated.map_err(sql_error)? {
        let name: String = value(&row, 0)?;
        let name = [SqlArgument::Identifier(&name)];
        let updated = session.run_with(&superuser::UPDATE_EXTENSION, &name).await;
        updated.map_err(sql_error)?;
    }
    Ok(())
}

/// Returns the databases besides `template0`, and whether they accept connections.
async fn databases(session: &SuperuserSession) -> Result<Vec<(String, bool)>> {
    let limit = DATABASES_MAX + 1;
    let rows = session
        .query(&superuser::UPGRADED_DATABASES, &[&limit])
        .await;
    let rows = rows.map_err(sql_error)?;
    if i64::try_from(rows.len()).is_ok_and(|count| count > DATABASES_MAX) {
        let text = format!("it has more than {DATABASES_MAX} databases");
        return Err(ClusterError::Upgrade(text));
    }
    rows.iter()
        .map(|row| Ok((value(row, 0)?, value(row, 1)?)))
        .collect()
}

async fn run(session: &SuperuserSession, statement: &'static SuperuserStatement) -> Result<()> {
    session.run(statement).await.map_err(sql_error)
}

/// Returns a column of a row. The catalogs are those of a tenant.
pub(super) fn value<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T> {
    row.try_get(column).map_err(sql_error)
}

pub(super) fn sql_error(cause: tokio_postgres::Error) -> ClusterError {
    ClusterError::Sql {
        doing: "upgrading a cluster",
        cause,
    }
}
