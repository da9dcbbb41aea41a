//! The moments to which a project can be recovered, and the choice of a base backup for one.

use chrono::{DateTime, SubsecRound, Utc};

use super::{Moment, archive::Archive, wal::Lsn};
use crate::{
    base::{
        error::{Context, Error},
        ids::ProjectId,
    },
    data_plane::context::DataPlaneContext,
};

/// A complete base backup with its archive.
#[derive(Debug, Clone)]
pub struct RecoverableBase {
    /// Number.
    pub id: i64,
    /// Time from which a recovery with it is possible.
    pub consistent_at: DateTime<Utc>,
    /// Position from which it is consistent.
    pub stop: Lsn,
    /// Its archive.
    pub archive: Archive,
}

/// The moments to which a project can be recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryWindow {
    /// The first.
    pub earliest: DateTime<Utc>,
    /// The last.
    pub latest: DateTime<Utc>,
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

/// Returns the complete backups of a project, in order.
pub async fn bases(
    context: &DataPlaneContext,
    project: ProjectId,
) -> Result<Vec<RecoverableBase>, Error> {
    let sql = "select b.id, b.consistent_at, b.stop_lsn, a.id, a.system_id, a.part, a.timeline, a.segment_bytes, a.begin_lsn,
                      a.shipped_lsn, a.shipped_at, a.last_commit_at, a.ended_at, a.ended_reason
               from base_backups b join archives a on a.id = b.archive_id
               where b.project_id = $1 and b.status = 'COMPLETED' order by b.id";
    let rows = context.db.query(sql, &[&project.0]).await;
    let rows = rows.context("reading backups")?;
    let base = |row: &tokio_postgres::Row| {
        Ok(RecoverableBase {
            id: row.get(0),
            consistent_at: row.get(1),
            stop: Lsn::from_column(row.get(2)),
            archive: Archive::read(row, 3)?,
        })
    };
    rows.iter().map(base).collect()
}

/// Returns the window of complete backups. `None` without one.
pub fn window(bases: &[RecoverableBase]) -> Option<RecoveryWindow> {
    let earliest = bases.iter().map(|base| base.consistent_at).min()?;
    let latest = bases.iter().map(|base| base.archive.shipped_at).max()?;
    // A base is complete only with its log, so the window has at least its moment.
    Some(RecoveryWindow {
        earliest,
        latest: latest.max(earliest),
    })
}

/// Returns the backups with which a moment can be recovered, best first: later ones need less log.
pub fn candidates(bases: &[RecoverableBase], archive: Option<i64>, moment: Moment) -> Vec<i64> {
    let fits = |base: &&RecoverableBase| {
        archive.is_none_or(|archive| archive == base.archive.id)
            && match moment {
                Moment::Time(time) => base.consistent_at <= time && time <= base.archive.shipped_at,
                Moment::Position(position) => {
                    base.stop <= position && position <= base.archive.shipped
                }
                Moment::Latest => base.archive.ended_at.is_none(),
            }
    };
    let found = bases.iter().rev().filter(fits);
    found.map(|base| base.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn base(
        id: i64,
        second: i64,
        stop: u64,
        archive: i64,
        until: i64,
        ended: bool,
    ) -> RecoverableBase {
        RecoverableBase {
            id,
            consistent_at: at(second),
            stop: Lsn(stop),
            archive: Archive {
                id: archive,
                system_id: 7,
                part: 1,
                timeline: 1,
                segment_bytes: 1 << 20,
                begin: Lsn(0),
                shipped: Lsn(1000 * u64::try_from(archive).unwrap()),
                shipped_at: at(until),
                last_commit_at: None,
                ended_at: ended.then(|| at(until)),
                ended_reason: None,
            },
        }
    }

    #[test]
    fn window_spans_all_archives_and_bases_are_tried_from_the_last() {
        let bases = [
            base(1, 100, 100, 1, 300, true),
            base(2, 200, 500, 1, 300, true),
            base(3, 400, 100, 2, 900, false),
        ];
        let all = window(&bases).unwrap();
        assert_eq!((all.earliest_unix(), all.latest_unix()), (100, 900));
        let of = |moment| candidates(&bases, None, moment);
        assert_eq!(of(Moment::Time(at(250))), [2, 1]);
        assert_eq!(of(Moment::Time(at(150))), [1]);
        assert_eq!(
            of(Moment::Time(at(350))),
            [0_i64; 0],
            "between two clusters"
        );
        assert_eq!(of(Moment::Time(at(500))), [3]);
        assert_eq!(of(Moment::Time(at(901))), [0_i64; 0]);
        assert_eq!(of(Moment::Latest), [3]);
        let position = Moment::Position(Lsn(600));
        assert_eq!(candidates(&bases, Some(1), position), [2, 1]);
        assert_eq!(window(&[]), None);
    }

    #[test]
    fn window_has_whole_seconds_that_lie_in_it() {
        let window = RecoveryWindow {
            earliest: at(100) + chrono::TimeDelta::milliseconds(1),
            latest: at(200) + chrono::TimeDelta::milliseconds(999),
        };
        assert_eq!((window.earliest_unix(), window.latest_unix()), (101, 200));
    }
}
