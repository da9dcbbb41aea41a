//! The moments to which a project can be recovered, and the choice of a base backup for one.
//!
//! An archive is one period of a project. A moment is recovered from the archive of its period,
//! with a base backup of that archive or of one that it continues.

use std::collections::BTreeMap;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use gantry_base::ids::ProjectId;
use tokio_postgres::Row;

use super::{
    archive_row::{Archive, archive_columns},
    chain::LogChain,
    moment::Moment,
    wal::Lsn,
};
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Maximum number of archives that continue each other in one recovery.
pub(super) const CHAIN_MAX: usize = 64;

/// A complete base backup.
#[derive(Debug, Clone)]
pub struct RecoverableBase {
    /// Number.
    pub id: i64,
    /// Number of its archive.
    pub archive: i64,
    /// Time from which a recovery with it is possible.
    pub consistent_at: DateTime<Utc>,
    /// Position from which its log is read.
    pub start: Lsn,
    /// Position from which it is consistent.
    pub stop: Lsn,
}

impl RecoverableBase {
    /// Reads the columns `id`, `archive_id`, `consistent_at`, `start_lsn` and `stop_lsn`.
    fn read(row: &Row, at: usize) -> Self {
        Self {
            id: row.get(at),
            archive: row.get(at + 1),
            consistent_at: row.get(at + 2),
            start: Lsn::from_column(row.get(at + 3)),
            stop: Lsn::from_column(row.get(at + 4)),
        }
    }
}

/// A way to recover a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// Number of the base backup.
    pub base: i64,
    /// The archives with its log: the last one has the moment.
    pub archives: Vec<i64>,
    /// Their log.
    pub chain: LogChain,
}

/// An unbroken range of moments to which a project can be recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryWindow {
    /// The first.
    pub earliest: DateTime<Utc>,
    /// The last.
    pub latest: DateTime<Utc>,
    /// Why later moments cannot be recovered, if there is a later window.
    pub ended_reason: Option<String>,
}

impl RecoveryWindow {
    /// The first second of the window.
    pub fn earliest_unix(&self) -> i64 {
        let secs = self.earliest.timestamp();
        secs + i64::from(self.earliest.trunc_subsecs(0) != self.earliest)
    }

    /// The last second of the window.
    pub fn latest_unix(&self) -> i64 {
        self.latest.timestamp()
    }
}

/// Moments between two windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryGap {
    /// The last moment before it that can be recovered.
    pub after: DateTime<Utc>,
    /// The first moment after it that can be recovered.
    pub before: DateTime<Utc>,
    /// The reason.
    pub reason: String,
}

/// The archives and the complete base backups of a project, in their order.
#[derive(Debug, Clone, Default)]
pub struct BackupCatalog {
    /// The archives.
    pub archives: Vec<Archive>,
    /// The base backups.
    pub bases: Vec<RecoverableBase>,
}

impl BackupCatalog {
    /// Reads the catalog of a project.
    pub async fn read(context: &ControlContext, project: ProjectId) -> Result<Self, Error> {
        let sql = concat!(
            "select ",
            archive_columns!(""),
            " from archives where project_id = $1 order by id"
        );
        let archives = context.db.query(sql, &[&project.0]).await;
        let archives = archives.context("reading archives")?;
        let archives: Result<_, Error> = archives.iter().map(|row| Archive::read(row, 0)).collect();
        let sql = "select id, archive_id, consistent_at, start_lsn, stop_lsn from base_backups
                   where project_id = $1 and status = 'COMPLETED' order by id";
        let bases = context.db.query(sql, &[&project.0]).await;
        let bases = bases.context("reading backups")?;
        Ok(Self {
            archives: archives?,
            bases: bases
                .iter()
                .map(|row| RecoverableBase::read(row, 0))
                .collect(),
        })
    }

    /// Reads the catalogs of all projects of this node that have one.
    pub(super) async fn of_node(context: &ControlContext) -> Result<BTreeMap<String, Self>, Error> {
        let mut found: BTreeMap<String, Self> = BTreeMap::new();
        let sql = concat!(
            "select p.ref, ",
            archive_columns!("a."),
            " from projects p join archives a on a.project_id = p.id
             where p.node = $1 and p.desired <> 'removed' order by a.id"
        );
        let rows = context.db.query(sql, &[&context.settings.node]).await;
        for row in rows.context("reading archives")? {
            let catalog = found.entry(row.get(0)).or_default();
            catalog.archives.push(Archive::read(&row, 1)?);
        }
        let sql = "select p.ref, b.id, b.archive_id, b.consistent_at, b.start_lsn, b.stop_lsn
                   from projects p join base_backups b on b.project_id = p.id
                   where p.node = $1 and p.desired <> 'removed' and b.status = 'COMPLETED'
                   order by b.id";
        let rows = context.db.query(sql, &[&context.settings.node]).await;
        for row in rows.context("reading backups")? {
            let catalog = found.entry(row.get(0)).or_default();
            catalog.bases.push(RecoverableBase::read(&row, 1));
        }
        Ok(found)
    }

    fn archive(&self, id: i64) -> Option<&Archive> {
        self.archives.iter().find(|archive| archive.id == id)
    }

    /// Returns the base backups of an archive.
    fn own(&self, archive: &Archive) -> impl DoubleEndedIterator<Item = &RecoverableBase> {
        let archive = archive.id;
        self.bases
            .iter()
            .filter(move |base| base.archive == archive)
    }

    /// Returns the archives of which this one is the continuation, from the first to itself.
    fn ancestry(&self, archive: i64) -> Vec<&Archive> {
        let mut found: Vec<&Archive> = self.archive(archive).into_iter().collect();
        while let Some(fork) = found.last().and_then(|last| last.fork)
            && found.len() < CHAIN_MAX
            && let Some(parent) = self.archive(fork.parent)
            && parent.id < archive
        {
            found.push(parent);
        }
        found.reverse();
        found
    }

    /// Returns the base backups of earlier archives with which this archive can be recovered from
    /// its begin, in their order.
    fn inherited(&self, archive: i64) -> Vec<&RecoverableBase> {
        let ancestry = self.ancestry(archive);
        let mut usable = Vec::new();
        for (position, ancestor) in ancestry.iter().enumerate().rev().skip(1) {
            // Forks of later archives can lie before that of the next one.
            let forks = ancestry[position + 1..].iter().filter_map(|it| it.fork);
            let limit = forks.map(|fork| fork.at).min().unwrap_or(Lsn(0));
            usable.extend(self.own(ancestor).filter(|base| base.stop <= limit));
        }
        usable.sort_by_key(|base| base.id);
        usable
    }

    /// Returns the first moment of an archive that can be recovered. `None` without a base backup.
    fn first(&self, archive: &Archive) -> Option<DateTime<Utc>> {
        if !self.inherited(archive.id).is_empty() {
            return Some(archive.created_at);
        }
        self.own(archive).map(|base| base.consistent_at).min()
    }

    /// Returns the windows, in their order.
    pub fn windows(&self) -> Vec<RecoveryWindow> {
        let mut windows: Vec<RecoveryWindow> = Vec::new();
        // The end of the window before, if its archive is complete up to its end.
        let mut continued = None;
        for archive in &self.archives {
            let Some(first) = self.first(archive) else {
                // Its period is missing.
                continued = None;
                continue;
            };
            let latest = archive.shipped_at.max(first);
            match windows.last_mut() {
                Some(last) if continued == Some(first) => {
                    last.latest = last.latest.max(latest);
                    last.ended_reason.clone_from(&archive.ended_reason);
                }
                _ => windows.push(RecoveryWindow {
                    earliest: first,
                    latest,
                    ended_reason: archive.ended_reason.clone(),
                }),
            }
            continued = archive
                .ended_at
                .filter(|ended| *ended <= archive.shipped_at);
        }
        // Targets are whole seconds, of which a new archive has none at first.
        let has_second = |window: &RecoveryWindow| window.earliest_unix() <= window.latest_unix();
        if windows.iter().any(has_second) {
            windows.retain(has_second);
        }
        windows
    }

    /// Returns the last window. `None` without a base backup.
    pub fn window(&self) -> Option<RecoveryWindow> {
        self.windows().pop()
    }

    /// Returns the moments between the windows.
    pub fn gaps(&self) -> Vec<RecoveryGap> {
        let windows = self.windows();
        let gap = |pair: &[RecoveryWindow]| RecoveryGap {
            after: pair[0].latest,
            before: pair[1].earliest,
            reason: pair[0]
                .ended_reason
                .clone()
                .unwrap_or_else(|| "no backup".to_owned()),
        };
        windows.windows(2).map(gap).collect()
    }

    /// Returns the ways to recover a moment, best first: later base backups need less log.
    pub fn plans(&self, archive: Option<i64>, moment: Moment) -> Vec<RecoveryPlan> {
        match (archive, moment) {
            (Some(archive), _) => {
                let found = self.archive(archive);
                found.map_or_else(Vec::new, |found| self.plans_in(found, moment))
            }
            // Two periods have the moment at which one ends and the next one begins.
            (None, Moment::Time(time)) => {
                let periods = self.archives.iter().rev();
                let mut plans = periods
                    .filter(|archive| archive.created_at <= time)
                    .map(|archive| self.plans_in(archive, moment));
                plans.find(|plans| !plans.is_empty()).unwrap_or_default()
            }
            (None, Moment::Latest) => {
                let last = self.archives.last().filter(|last| last.ended_at.is_none());
                last.map_or_else(Vec::new, |last| self.plans_in(last, moment))
            }
            (None, Moment::Position(_)) => Vec::new(),
        }
    }

    /// Returns the ways to recover a moment of an archive, best first.
    fn plans_in(&self, archive: &Archive, moment: Moment) -> Vec<RecoveryPlan> {
        let is_in_archive = match moment {
            Moment::Time(time) => time <= archive.shipped_at,
            Moment::Position(position) => {
                let begin = archive.fork.map_or(Lsn(0), |fork| fork.at);
                (begin..=archive.shipped).contains(&position)
            }
            Moment::Latest => true,
        };
        if !is_in_archive {
            return Vec::new();
        }
        let is_after = |base: &&RecoverableBase| match moment {
            Moment::Time(time) => base.consistent_at <= time,
            Moment::Position(position) => base.stop <= position,
            Moment::Latest => true,
        };
        let own = self.own(archive).filter(is_after);
        let inherited = self.inherited(archive.id).into_iter();
        let usable: Vec<&RecoverableBase> = inherited.chain(own).collect();
        let plan = |base: &&RecoverableBase| self.plan(base, archive.id);
        usable.iter().rev().map(plan).collect()
    }

    /// Returns the way to recover the whole log after a base backup: that of the current archive if
    /// it continues that of the base backup, or else of the latter.
    pub(super) fn latest_plan(&self, base: &RecoverableBase) -> RecoveryPlan {
        let current = self.plans(None, Moment::Latest);
        let current = current.into_iter().find(|plan| plan.base == base.id);
        current.unwrap_or_else(|| self.plan(base, base.archive))
    }

    /// Returns the plan with a base backup and the log up to an archive that continues its own.
    fn plan(&self, base: &RecoverableBase, archive: i64) -> RecoveryPlan {
        let ancestry = self.ancestry(archive);
        let first = ancestry.iter().position(|it| it.id == base.archive);
        let parts = &ancestry[first.unwrap_or(0)..];
        RecoveryPlan {
            base: base.id,
            archives: parts.iter().map(|archive| archive.id).collect(),
            chain: LogChain::of(parts),
        }
    }

    /// Returns the base backups that expire. Those stay that are needed to recover every moment of
    /// the last `days`, and at least the last `count`.
    pub(super) fn expired(&self, now: DateTime<Utc>, days: u16, count: usize) -> Vec<i64> {
        let since = now - TimeDelta::days(days.into());
        let mut kept: Vec<i64> = self
            .bases
            .iter()
            .rev()
            .take(count)
            .map(|it| it.id)
            .collect();
        let recent = self.bases.iter().filter(|base| base.consistent_at >= since);
        kept.extend(recent.map(|base| base.id));
        for archive in &self.archives {
            if archive.shipped_at < since {
                continue;
            }
            // The first moment of the archive within the days.
            let first = Moment::Time(archive.created_at.max(since));
            let plans = self.plans(Some(archive.id), first);
            kept.extend(plans.first().map(|plan| plan.base));
        }
        let bases = self.bases.iter().map(|base| base.id);
        bases.filter(|id| !kept.contains(id)).collect()
    }

    /// Returns the first position of an archive that a base backup needs. `None` if none needs it.
    pub(super) fn needed_from(&self, archive: &Archive) -> Option<Lsn> {
        if !self.inherited(archive.id).is_empty() {
            return Some(archive.begin);
        }
        self.own(archive).map(|base| base.start).min()
    }
}

#[cfg(test)]
mod tests;
