//! The moment that a request names, as the place in the archives that a restore reads.

use chrono::{DateTime, Utc};

use super::{
    moment::Moment,
    wal::Lsn,
    window::{BackupCatalog, RecoveryGap},
};
use crate::{
    control::{backups::moment::RequestedMoment, context::ControlContext},
    platform::{access::Project, error::Error},
};

/// A moment that the backups of a project reach.
#[derive(Debug, Clone, Copy)]
pub struct RestoreTarget {
    pub(super) moment: Moment,
    /// The archive of a position.
    pub(super) archive: Option<i64>,
}

impl RestoreTarget {
    /// Finds a moment in the backups of a project.
    ///
    /// Errors: [`Error::Rejected`] if the moment is outside of the window, with the window;
    /// [`Error::Missing`] without such a backup.
    pub async fn find(
        context: &ControlContext,
        project: &Project,
        requested: RequestedMoment,
    ) -> Result<Self, Error> {
        let catalog = BackupCatalog::read(context, project.id).await?;
        let second = match requested {
            RequestedMoment::Second(second) => second,
            RequestedMoment::Backup(id) => {
                let base = catalog.bases.iter().find(|base| base.id == id);
                let base = base.ok_or(Error::Missing("Backup not found"))?;
                return Ok(Self {
                    moment: Moment::Position(base.stop),
                    archive: Some(base.archive),
                });
            }
        };
        if catalog.bases.is_empty() {
            let text = "PITR is not enabled for this project.";
            return Err(Error::Rejected(text.into()));
        }
        let moment = DateTime::from_timestamp(second, 0).map(Moment::Time);
        let fits = |moment: &Moment| !catalog.plans(None, *moment).is_empty();
        let Some(moment) = moment.filter(fits) else {
            return Err(Error::Rejected(unreachable(&catalog, second).into()));
        };
        Ok(Self {
            moment,
            archive: None,
        })
    }

    /// Values of the columns `target_time`, `target_lsn` and `archive_id`.
    pub fn columns(&self) -> (Option<DateTime<Utc>>, Option<i64>, Option<i64>) {
        match self.moment {
            Moment::Time(time) => (Some(time), None, self.archive),
            Moment::Position(position) => (None, Some(position.to_column()), self.archive),
            Moment::Latest => (None, None, self.archive),
        }
    }
}

/// Returns the message about a moment that cannot be recovered: the windows, and the gap in which
/// it lies.
fn unreachable(catalog: &BackupCatalog, second: i64) -> String {
    let windows = catalog.windows();
    let ranges = windows.iter().rev().map(|window| {
        let (earliest, latest) = (window.earliest_unix(), window.latest_unix());
        format!("{earliest} <= t <= {latest}")
    });
    let ranges: Vec<String> = ranges.collect();
    let ranges = ranges.join(" or ");
    let text = format!("Recovery time target must be within range: {ranges}");
    let is_inside =
        |gap: &&RecoveryGap| (gap.after.timestamp()..=gap.before.timestamp()).contains(&second);
    let Some(gap) = catalog.gaps().into_iter().find(|gap| is_inside(&gap)) else {
        return text;
    };
    let (after, before) = (
        gap.after.format("%Y-%m-%d %H:%M:%S"),
        gap.before.format("%Y-%m-%d %H:%M:%S UTC"),
    );
    let reason = gap.reason;
    format!("{text}. No moment between {after} and {before} can be recovered: {reason}")
}

/// Returns the moment in the columns `target_time` and `target_lsn`.
pub(super) fn moment_in(time: Option<DateTime<Utc>>, position: Option<i64>) -> Moment {
    match (time, position) {
        (Some(time), _) => Moment::Time(time),
        (None, Some(position)) => Moment::Position(Lsn::from_column(position)),
        (None, None) => Moment::Latest,
    }
}
