//! Backups of projects: the write-ahead log and base backups in a store, and recovery from them.
//!
//! - [`wal`] reads the log; `files` reads a tenant's files; `shipper` ships the log to the store.
//! - [`archive`] is an unbroken log, and [`chain`] several that continue each other; `base` makes
//!   base backups, and [`manifest`] describes one.
//! - [`schedule`] and [`window`] have the rules; `upkeep` makes, completes, expires and verifies.
//! - [`restore`] builds a cluster; `settle` carries out the restore of a project, and [`tables`]
//!   that of single tables.
//!
//! Only the process with the lease of the data folder ships, makes and restores. All others read
//! the rows.

pub mod archive;
mod archive_row;
mod backup_events;
mod base;
pub mod chain;
pub mod error;
pub mod export;
mod files;
pub mod health;
pub mod manifest;
pub mod moment;
pub mod points;
pub(in crate::control) mod prepared;
pub(in crate::control) mod recover;
pub mod restore;
pub mod schedule;
pub(crate) mod settle;
mod ship_state;
mod shipper;
pub mod state;
pub mod store;
pub mod tables;
pub mod target;
pub mod upkeep;
pub mod wal;
pub mod window;

use futures_util::{StreamExt, stream};
use gantry_base::{clock::Ticks, ids::ProjectId, repeat};

pub use self::{
    archive_row::{Archive, Fork},
    error::BackupError,
    moment::{Moment, RequestedMoment},
    state::open_objects,
    store::BackupStore,
};
use self::{ship_state::Looked, state::WatchedProject};
use crate::{
    control::{context::ControlContext, projects},
    platform::error::{Context, Error},
};

/// Maximum number of projects of which the log is shipped at the same time.
const SHIPPED_AT_ONCE: usize = 4;
/// Turns of a project in which its whole log is shipped, before an exchange.
const TURNS_MAX: usize = 1000;
/// The interval of recording that idle projects are archived, in milliseconds.
const QUIET_RECORD_MS: Ticks = 60_000;

/// Answer to a request while backups are switched off.
pub(crate) const SWITCHED_OFF: &str =
    "Backups are switched off: the operator has to start the server without --no-backups";
/// Answer to a second restore.
pub(crate) const RESTORE_RUNNING: &str = "A restore of this project is in progress";

/// Ships the log of all projects periodically. Returns at once if backups are switched off.
pub async fn run(context: ControlContext) {
    if !context.backups.options.enabled {
        return;
    }
    repeat::every(context.backups.options.look, || async {
        if let Err(error) = look(&context).await {
            tracing::warn!(%error, "cannot look for write-ahead log to archive");
        }
    })
    .await;
}

/// Ships what is new in all projects of this node. A failure of one does not affect the others.
pub async fn look(context: &ControlContext) -> Result<(), Error> {
    let backups = &context.backups;
    if !context.lease.leads() {
        backups.states.lock().clear();
        return Ok(());
    }
    let projects = watched(context).await?;
    let ids: Vec<ProjectId> = projects.iter().map(|project| project.id).collect();
    backups.states.lock().retain(|id, _| ids.contains(id));
    let looks = projects.into_iter().map(|project| async move {
        let state = backups.state(project.id);
        let mut state = state.lock().await;
        let mut looked = shipper::look(context, backups, &project, &mut state).await;
        for _ in 0..TURNS_MAX {
            if looked != Looked::Unfinished {
                break;
            }
            looked = shipper::look(context, backups, &project, &mut state).await;
        }
        let quiet = state.archive().filter(|_| looked == Looked::Quiet);
        let age = state.archive().filter(|_| looked != Looked::Quiet);
        let age = age.map_or(0, |archive| {
            (context.clock.now() - archive.shipped_at).num_seconds()
        });
        (quiet.map(|archive| archive.id), age, state.waiting_bytes)
    });
    let looked: Vec<(Option<i64>, i64, u64)> = stream::iter(looks)
        .buffer_unordered(SHIPPED_AT_ONCE)
        .collect()
        .await;
    let lag = looked.iter().map(|(_, age, _)| *age).max().unwrap_or(0);
    let waiting: u64 = looked.iter().map(|(_, _, bytes)| *bytes).sum();
    #[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
    {
        backups.metrics.lag.set(lag as f64);
        backups.metrics.waiting.set(waiting as f64);
    }
    let quiet: Vec<i64> = looked.iter().filter_map(|(quiet, _, _)| *quiet).collect();
    record_quiet(context, &quiet).await
}

/// Records, once a minute, that everything of idle projects is in the store.
async fn record_quiet(context: &ControlContext, archives: &[i64]) -> Result<(), Error> {
    let now = context.clock.ticks();
    {
        let mut recorded = context.backups.quiet_recorded.lock();
        if now.saturating_sub(*recorded) < QUIET_RECORD_MS || archives.is_empty() {
            return Ok(());
        }
        *recorded = now;
    }
    let sql = "update archives set shipped_at = $2 where id = any($1) and ended_at is null and shipped_at < $2";
    // A commit during the look may not have been seen.
    let before = context.clock.now() - context.backups.options.look;
    context
        .db
        .query(sql, &[&archives, &before])
        .await
        .context("recording archives")
        .map(drop)
}

/// Reads the projects of this node with a cluster. Those that can be brought back are archived
/// until they have stopped.
pub(crate) async fn watched(context: &ControlContext) -> Result<Vec<WatchedProject>, Error> {
    let sql = "select id, ref, engine from projects
               where node = $1 and status not in ('COMING_UP', 'INIT_FAILED')
                 and (desired <> 'removed' or (status = 'GOING_DOWN' and held_until is not null))
               order by id";
    let rows = context
        .db
        .query(sql, &[&context.settings.node])
        .await
        .context("reading the projects of this node")?;
    rows.iter()
        .map(|row| {
            let reference: &str = row.get(1);
            let major = projects::major(row.get(2)).unwrap_or(0);
            Ok(WatchedProject {
                id: ProjectId(row.get(0)),
                reference: reference.parse().context("reading a project's ref")?,
                way: settle::way_of(context, major),
            })
        })
        .collect()
}

/// Ships the whole log of a project now. Returns whether everything is in the store.
pub(crate) async fn ship_all(context: &ControlContext, project: &WatchedProject) -> bool {
    let backups = &context.backups;
    if !backups.options.enabled {
        return false;
    }
    let state = backups.state(project.id);
    let mut state = state.lock().await;
    for _ in 0..TURNS_MAX {
        match shipper::look(context, backups, project, &mut state).await {
            Looked::Quiet | Looked::Shipped => return true,
            Looked::Unfinished => {}
            Looked::Waiting => return false,
        }
    }
    false
}
