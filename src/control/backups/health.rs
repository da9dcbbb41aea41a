//! Notes on the backups of a project for its health.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::ProjectId;

use crate::{
    control::context::ControlContext,
    platform::{
        db::Param,
        error::{Context, Error},
    },
};

/// Age of the last archived log from which it is reported. A minute is usual for an idle project.
const BEHIND: TimeDelta = TimeDelta::minutes(10);
/// Age of the last backup from which it is reported, if commits followed.
const STALE: TimeDelta = TimeDelta::hours(50);
/// Delay of a verification from which it is reported.
const UNVERIFIED_SLACK: TimeDelta = TimeDelta::days(2);
/// Time for which a failed restore is reported.
const REPORTED: TimeDelta = TimeDelta::hours(24);

/// The facts of which the notes are made.
#[derive(Debug, Default)]
struct BackupFacts {
    created_at: DateTime<Utc>,
    shipped_at: Option<DateTime<Utc>>,
    last_commit_at: Option<DateTime<Utc>>,
    last_base_at: Option<DateTime<Utc>>,
    base_error: Option<String>,
    verify_error: Option<String>,
    restore_error: Option<String>,
    verified_at: Option<DateTime<Utc>>,
    first_base_at: Option<DateTime<Utc>>,
    /// Interval of verifications, in days.
    verify_days: u16,
}

/// Whether a verification is late. `since` is the time of the last one, or else of the first
/// backup.
pub(super) fn is_unverified(since: Option<DateTime<Utc>>, days: u16, now: DateTime<Utc>) -> bool {
    since.is_some_and(|since| now - since > TimeDelta::days(days.into()) + UNVERIFIED_SLACK)
}

impl BackupFacts {
    fn notes(&self, now: DateTime<Utc>) -> Vec<String> {
        let mut notes = Vec::new();
        match self.shipped_at {
            Some(at) if now - at > BEHIND => {
                notes.push(format!(
                    "the write-ahead log is archived up to {} only",
                    at.format("%Y-%m-%d %H:%M:%S UTC")
                ));
            }
            None if now - self.created_at > BEHIND => {
                let text = "the write-ahead log is not archived; restart the project once";
                notes.push(text.to_owned());
            }
            _ => {}
        }
        if let Some(error) = &self.base_error {
            notes.push(format!("the last backup failed: {error}"));
        } else if let Some(at) = self.last_base_at
            && now - at > STALE
            && self.last_commit_at > Some(at)
        {
            let at = at.format("%Y-%m-%d %H:%M UTC");
            notes.push(format!("the last backup is of {at}"));
        }
        if let Some(error) = &self.verify_error {
            notes.push(format!("the last backup cannot be restored: {error}"));
        }
        let verified = self.verified_at.or(self.first_base_at);
        if is_unverified(verified, self.verify_days, now) {
            notes.push(match self.verified_at {
                Some(at) => {
                    let at = at.format("%Y-%m-%d %H:%M UTC");
                    format!("no backup was verified by a restore since {at}")
                }
                None => "no backup was verified by a restore yet".to_owned(),
            });
        }
        if let Some(error) = &self.restore_error {
            notes.push(format!("the last restore failed: {error}"));
        }
        notes
    }
}

/// Returns what the owner of a project should know about its backups. Empty if all is well.
pub async fn notes(context: &ControlContext, project: ProjectId) -> Result<Vec<String>, Error> {
    if !context.backups.options.enabled {
        return Ok(Vec::new());
    }
    let now = context.clock.now();
    let sql = "select p.created_at, a.shipped_at, a.last_commit_at,
                      (select max(b.consistent_at) from base_backups b
                       where b.project_id = p.id and b.status = 'COMPLETED'),
                      (select case when b.status = 'FAILED' then b.error end from base_backups b
                       where b.project_id = p.id order by b.id desc limit 1),
                      (select b.verify_error from base_backups b
                       where b.project_id = p.id and b.status = 'COMPLETED'
                        order by b.id desc limit 1),
                      (select case when r.requested_at > $2 and r.error <> 'cancelled'
                                    then r.error end
                       from restores r where r.project_id = p.id order by r.id desc limit 1),
                      (select max(b.verified_at) from base_backups b where b.project_id = p.id),
                      (select min(b.consistent_at) from base_backups b
                       where b.project_id = p.id and b.status = 'COMPLETED')
               from projects p left join archives a on a.project_id = p.id and a.ended_at is null where p.id = $1";
    let params: [Param<'_>; 2] = [&project.0, &(now - REPORTED)];
    let rows = context.db.query(sql, &params).await;
    let rows = rows.context("reading backups")?;
    let Some(row) = rows.first() else {
        return Ok(Vec::new());
    };
    let facts = BackupFacts {
        created_at: row.get(0),
        shipped_at: row.get(1),
        last_commit_at: row.get(2),
        last_base_at: row.get(3),
        base_error: row.get(4),
        verify_error: row.get(5),
        restore_error: row.get(6),
        verified_at: row.get(7),
        first_base_at: row.get(8),
        verify_days: context.backups.options.verify_days,
    };
    Ok(facts.notes(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_name_what_is_late_or_damaged() {
        let now: DateTime<Utc> = "2026-11-24T12:00:00Z".parse().unwrap();
        let well = || BackupFacts {
            created_at: now - TimeDelta::days(9),
            shipped_at: Some(now - TimeDelta::minutes(1)),
            last_commit_at: Some(now - TimeDelta::minutes(2)),
            last_base_at: Some(now - TimeDelta::hours(20)),
            verified_at: Some(now - TimeDelta::days(8)),
            verify_days: 7,
            ..BackupFacts::default()
        };
        assert_eq!(well().notes(now), Vec::<String>::new());
        let late = BackupFacts {
            shipped_at: Some(now - TimeDelta::minutes(11)),
            last_base_at: Some(now - TimeDelta::hours(51)),
            verify_error: Some("x is damaged".to_owned()),
            restore_error: Some("a gap".to_owned()),
            ..well()
        };
        let notes = late.notes(now);
        assert_eq!(notes.len(), 4, "{notes:?}");
        assert_eq!(
            notes[0],
            "the write-ahead log is archived up to 2026-11-24 11:49:00 UTC only"
        );
        let unverified = BackupFacts {
            verified_at: Some(now - TimeDelta::days(10)),
            ..well()
        };
        assert_eq!(
            unverified.notes(now),
            ["no backup was verified by a restore since 2026-11-14 12:00 UTC"]
        );
        let unverified = BackupFacts {
            verified_at: None,
            first_base_at: Some(now - TimeDelta::days(10)),
            ..well()
        };
        assert_eq!(
            unverified.notes(now),
            ["no backup was verified by a restore yet"]
        );
        let never = BackupFacts {
            shipped_at: None,
            ..well()
        };
        assert!(never.notes(now)[0].contains("restart the project"));
        let new = BackupFacts {
            created_at: now,
            ..BackupFacts::default()
        };
        assert_eq!(new.notes(now), Vec::<String>::new());
    }
}
