//! The state of an installation at a glance: nodes, projects, open work, backups and certificates.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::{
    control::fleet::node::{self, Node},
    platform::{
        db::Db,
        error::{Context, Error},
    },
};

/// Projects that are listed by name. Further ones are counted.
const LISTED_MAX: i64 = 20;
/// Age of the shipped log from which a running project's backups are behind.
const SHIPPED_AGE_MAX: TimeDelta = TimeDelta::minutes(15);
/// Remaining life from which a certificate is listed.
pub const CERTIFICATE_LIFE_MIN: TimeDelta = TimeDelta::days(14);
/// Statuses that need attention.
const FAULTY: &[&str] = &[
    "ACTIVE_UNHEALTHY",
    "INIT_FAILED",
    "RESTORE_FAILED",
    "PAUSE_FAILED",
];

/// Kinds of open work.
pub(super) const WORK_KINDS: [&str; 5] =
    ["restores", "upgrades", "moves", "branch actions", "backups"];

/// The state of an installation.
#[derive(Debug, Serialize)]
pub struct InstallationStatus {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Number of projects and branches by status.
    pub projects: Vec<StatusCount>,
    /// The first projects in a status that needs attention.
    pub faulty: Vec<FaultyProject>,
    /// Open work by kind.
    pub work: Vec<WorkCount>,
    /// Backups.
    pub backups: BackupStatus,
    /// Certificates that end soon, and those with a failed renewal.
    pub certificates: Vec<CertificateStatus>,
}

/// Number of projects in a status.
#[derive(Debug, Serialize)]
pub struct StatusCount {
    /// Status, as in the API.
    pub status: String,
    /// Number of projects and branches.
    pub count: i64,
}

/// A project in a status that needs attention.
#[derive(Debug, Serialize)]
pub struct FaultyProject {
    /// Ref.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Name.
    pub name: String,
    /// Status, as in the API.
    pub status: String,
}

/// Open work of one kind.
#[derive(Debug, Serialize)]
pub struct WorkCount {
    /// Kind, such as `restores`.
    pub kind: &'static str,
    /// Number.
    pub count: i64,
    /// Begin of the oldest.
    pub oldest: Option<DateTime<Utc>>,
}

/// Backups of all projects.
#[derive(Debug, Serialize)]
pub struct BackupStatus {
    /// The last completed backup.
    pub last_completed: Option<DateTime<Utc>>,
    /// Running projects without a completed backup.
    pub without_backup: i64,
    /// Running projects that shipped no log for 15 minutes.
    pub behind: i64,
    /// Projects with a backup that failed its last test.
    pub failed_tests: i64,
}

/// A certificate that ends soon, or has a failed renewal.
#[derive(Debug, Serialize)]
pub struct CertificateStatus {
    /// Name that it is valid for.
    pub host: String,
    /// End of its validity; `None` if there is none yet.
    pub ends: Option<DateTime<Utc>>,
    /// Why the last order failed.
    pub error: Option<String>,
}

impl InstallationStatus {
    /// Reads the state.
    pub async fn read(db: &Db, now: DateTime<Utc>) -> Result<Self, Error> {
        Ok(Self {
            nodes: node::list(db).await?,
            projects: projects(db).await?,
            faulty: faulty(db).await?,
            work: work(db).await?,
            backups: backups(db, now).await?,
            certificates: certificates(db, now).await?,
        })
    }

    /// Whether a node is down, a project is faulty, backups are behind, or a certificate ends soon.
    pub fn needs_attention(&self) -> bool {
        let is_down = |node: &Node| node.down_since.is_some();
        let BackupStatus {
            behind,
            failed_tests,
            ..
        } = self.backups;
        self.nodes.iter().any(is_down)
            || !self.faulty.is_empty()
            || behind > 0
            || failed_tests > 0
            || !self.certificates.is_empty()
    }
}

const DOING: &str = "reading the state of the installation";

async fn projects(db: &Db) -> Result<Vec<StatusCount>, Error> {
    let sql = "select status, count(*) from projects where status <> 'REMOVED' group by 1 order by 2 desc, 1";
    let rows = db.query(sql, &[]).await.context(DOING)?;
    let count = |row: &tokio_postgres::Row| StatusCount {
        status: row.get(0),
        count: row.get(1),
    };
    Ok(rows.iter().map(count).collect())
}

async fn faulty(db: &Db) -> Result<Vec<FaultyProject>, Error> {
    let sql = "select ref, name, status from projects where status = any($1) order by ref limit $2";
    let rows = db
        .query(sql, &[&FAULTY, &LISTED_MAX])
        .await
        .context(DOING)?;
    let project = |row: &tokio_postgres::Row| FaultyProject {
        reference: row.get(0),
        name: row.get(1),
        status: row.get(2),
    };
    Ok(rows.iter().map(project).collect())
}

async fn work(db: &Db) -> Result<Vec<WorkCount>, Error> {
    let sql = "select \
        (select count(*) from restores where finished_at is null), \
        (select min(requested_at) from restores where finished_at is null), \
        (select count(*) from project_upgrades where status = 'running'), \
        (select min(initiated_at) from project_upgrades where status = 'running'), \
        (select count(*) from project_moves where finished_at is null), \
        (select min(requested_at) from project_moves where finished_at is null), \
        (select count(*) from action_runs where finished_at is null), \
        (select min(created_at) from action_runs where finished_at is null), \
        (select count(*) from base_backups where status = 'PENDING'), \
        (select min(inserted_at) from base_backups where status = 'PENDING')";
    let rows = db.query(sql, &[]).await.context(DOING)?;
    let row = rows
        .first()
        .ok_or_else(|| Error::internal(DOING, "no row"))?;
    let count = |(index, kind)| WorkCount {
        kind,
        count: row.get(2 * index),
        oldest: row.get(2 * index + 1),
    };
    Ok(WORK_KINDS.into_iter().enumerate().map(count).collect())
}

async fn backups(db: &Db, now: DateTime<Utc>) -> Result<BackupStatus, Error> {
    let sql = "with running as (select id from projects where status = 'ACTIVE_HEALTHY') select \
        (select max(consistent_at) from base_backups where status = 'COMPLETED'), \
        (select count(*) from running where not exists (select from base_backups b \
            where b.project_id = running.id and b.status = 'COMPLETED')), \
        (select count(*) from archives a join running on running.id = a.project_id \
            where a.ended_at is null and a.shipped_at < $1), \
        (select count(distinct project_id) from base_backups \
            where status = 'COMPLETED' and verify_error is not null)";
    let earliest = now - SHIPPED_AGE_MAX;
    let rows = db.query(sql, &[&earliest]).await.context(DOING)?;
    let row = rows
        .first()
        .ok_or_else(|| Error::internal(DOING, "no row"))?;
    Ok(BackupStatus {
        last_completed: row.get(0),
        without_backup: row.get(1),
        behind: row.get(2),
        failed_tests: row.get(3),
    })
}

async fn certificates(db: &Db, now: DateTime<Utc>) -> Result<Vec<CertificateStatus>, Error> {
    let sql = "select h.host, c.not_after, null::text from custom_hostnames h \
            join hostname_certificates c on c.hostname_id = h.id where c.not_after < $1 \
        union all select w.name, c.not_after, w.refusal from wildcards w \
            left join hostname_certificates c on c.hostname_id = w.id \
            where w.refusal is not null or c.not_after < $1 \
        order by 1 limit $2";
    let latest = now + CERTIFICATE_LIFE_MIN;
    let rows = db
        .query(sql, &[&latest, &LISTED_MAX])
        .await
        .context(DOING)?;
    let certificate = |row: &tokio_postgres::Row| CertificateStatus {
        host: row.get(0),
        ends: row.get(1),
        error: row.get(2),
    };
    Ok(rows.iter().map(certificate).collect())
}
