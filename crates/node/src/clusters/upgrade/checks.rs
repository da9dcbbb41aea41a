//! Checks of a running cluster before its upgrade, without stopping it.

use std::collections::BTreeSet;

use gantry_base::ids::ProjectRef;
use tokio_postgres::Row;

use crate::{
    clusters::{
        local_driver::LocalDriver,
        resources::disk,
        superuser::{self, SuperuserSession},
        upgrade::build::sql_error,
    },
    engines::Engine,
    error::Result,
};

/// Maximum number of things that are named per kind and database.
const NAMED_MAX: i64 = 100;
/// Space that an upgrade needs besides a copy of the data, in bytes: the new cluster and its logs.
const SPACE_BYTES: u64 = 256 << 20;
/// Programs of the new version that `pg_upgrade` runs.
const TARGET_PROGRAMS: [&str; 10] = [
    "pg_upgrade",
    "initdb",
    "pg_controldata",
    "pg_ctl",
    "pg_dump",
    "pg_dumpall",
    "pg_resetwal",
    "pg_restore",
    "psql",
    "vacuumdb",
];
/// Programs of the old version that `pg_upgrade` runs.
const SOURCE_PROGRAMS: [&str; 3] = ["pg_controldata", "pg_ctl", "pg_resetwal"];

/// Things of a cluster that prevent its upgrade.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct UpgradeBlockers {
    /// Extensions that the engine of the new version does not have.
    pub extensions: BTreeSet<String>,
    /// Logical replication slots.
    pub slots: Vec<String>,
    /// Other things, as text: prepared transactions, tablespaces, columns with catalog numbers.
    pub objects: Vec<String>,
    /// Conditions of the machine, as sentences for its operator.
    pub machine: Vec<String>,
}

impl UpgradeBlockers {
    /// Returns whether nothing prevents the upgrade.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether the programs for an upgrade are installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpgradeSupport {
    /// All are there.
    Complete,
    /// These are missing, in this engine.
    Missing {
        /// The engine, as `PostgreSQL 16.14 in /…`.
        engine: String,
        /// The first missing program.
        program: &'static str,
    },
}

impl UpgradeSupport {
    /// Returns whether clusters of one engine can be upgraded to another.
    pub fn of(old: &Engine, new: &Engine) -> Self {
        let needed = [(old, &SOURCE_PROGRAMS[..]), (new, &TARGET_PROGRAMS[..])];
        for (engine, programs) in needed {
            let missing = programs.iter().find(|name| !engine.program(name).is_file());
            if let Some(program) = missing {
                return Self::Missing {
                    engine: engine.to_string(),
                    program,
                };
            }
        }
        Self::Complete
    }
}

impl LocalDriver {
    /// Returns what prevents the upgrade of a running cluster to the major version `target`.
    pub async fn check_upgrade(
        &self,
        project: &ProjectRef,
        target: u16,
    ) -> Result<UpgradeBlockers> {
        let mut found = UpgradeBlockers::default();
        let server = self.existing(project)?;
        let engines = self.engines();
        let (Some(old), Some(new)) = (engines.of_major(server.major()), engines.of_major(target))
        else {
            let text = format!("PostgreSQL {target} is not installed");
            found.machine.push(text);
            return Ok(found);
        };
        if let UpgradeSupport::Missing { engine, program } = UpgradeSupport::of(old, new) {
            found.machine.push(format!("{engine} has no {program}"));
        }
        let admin = self.superuser_session(project).await?;
        let bytes = check_cluster(&admin, &mut found).await?;
        if let Ok((free, _)) = disk::free(self.home().dir())
            && free < bytes.saturating_add(SPACE_BYTES)
        {
            let needed = bytes.saturating_add(SPACE_BYTES) >> 20;
            found.machine.push(format!(
                "an upgrade needs {needed} MB of free disk space, and {} MB are free",
                free >> 20
            ));
        }
        let databases = admin.query(&superuser::OPEN_DATABASES, &[&NAMED_MAX]);
        for database in databases.await.map_err(sql_error)? {
            let name: String = database.try_get(0).map_err(sql_error)?;
            let session = self.superuser_session_in(project, &name).await?;
            check_database(&session, old, new, &mut found).await?;
        }
        Ok(found)
    }
}

/// Checks what belongs to the whole cluster. Returns the size of all databases in bytes.
async fn check_cluster(admin: &SuperuserSession, found: &mut UpgradeBlockers) -> Result<u64> {
    for (kind, statement) in [
        ("prepared transaction", &superuser::PREPARED_NAMES),
        ("tablespace", &superuser::TABLESPACES),
    ] {
        let rows = admin.query(statement, &[&NAMED_MAX]).await;
        for name in names(&rows.map_err(sql_error)?)? {
            found.objects.push(format!("{kind} {name}"));
        }
    }
    let slots = admin.query(&superuser::LOGICAL_SLOTS, &[&NAMED_MAX]).await;
    found.slots = names(&slots.map_err(sql_error)?)?;
    let row = admin.query_one(&superuser::SIZE, &[]).await;
    let bytes: i64 = row.map_err(sql_error)?.try_get(0).map_err(sql_error)?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

async fn check_database(
    session: &SuperuserSession,
    old: &Engine,
    target: &Engine,
    found: &mut UpgradeBlockers,
) -> Result<()> {
    let rows = session.query(&superuser::EXTENSION_NAMES, &[&NAMED_MAX]);
    for name in names(&rows.await.map_err(sql_error)?)? {
        // The platform has entries without files, such as that of the vault, in every version.
        if old.has_extension(&name) && !target.has_extension(&name) {
            found.extensions.insert(name);
        }
    }
    let functions = session.query(&superuser::NOT_BLOCKABLE, &[&NAMED_MAX]);
    for name in names(&functions.await.map_err(sql_error)?)? {
        let text = format!("function {name}, which sets default_tablespace");
        found.objects.push(text);
    }
    let columns = session.query(&superuser::CATALOG_NUMBERS, &[&NAMED_MAX]);
    for row in columns.await.map_err(sql_error)? {
        let column: String = row.try_get(0).map_err(sql_error)?;
        let kind: String = row.try_get(1).map_err(sql_error)?;
        found
            .objects
            .push(format!("column {column} of type {kind}"));
    }
    Ok(())
}

fn names(rows: &[Row]) -> Result<Vec<String>> {
    rows.iter()
        .map(|row| row.try_get(0).map_err(sql_error))
        .collect()
}
