//! Enforces resource limits that the kernel does not enforce, and reports them in projects' health.
//!
//! Memory and processes: the kernel limits a control group, and the watchdog only reports. Without
//! control groups it measures the sum and ends the largest process. Disk space and inodes: above
//! 95 % of the limit the project is read-only, so that its owner can still delete data; a server
//! that still writes beyond the limit is stopped. A restriction ends when the project is within its
//! limits again.

mod rules;

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{
    clock::Ticks,
    ids::{OrganizationId, ProjectId, ProjectRef},
    repeat,
};
use gantry_node::clusters::{
    ResourceLimits,
    resources::{Measurement, usage::ProcessUsage},
};
use tokio_postgres::Row;

use self::rules::Remedy;
use super::state::watchdog::DiskLevel;
use crate::{
    control::{
        context::ControlContext,
        metrics::Bound,
        projects::{
            InstanceSize,
            state::watchdog::{MeasuredUsage, Seen, ServerUsage, WatchdogState},
            status_events::{self, StatusUpdate},
        },
    },
    platform::{
        db::Param,
        error::{Context, Error},
        events::{
            EventPayload,
            payloads::{LimitExceeded, PauseReason, ProjectHealthChanged, ProjectPaused},
        },
    },
};

/// The interval of reading control groups, which the kernel enforces.
const LOOK_AT_GROUPS: Duration = Duration::from_secs(5);
/// The interval of measuring processes without control groups.
const LOOK_AT_PROCESSES: Duration = Duration::from_secs(1);
/// The longest interval between measurements of disk space, in milliseconds.
const DISK_ROUND_MS: Ticks = 120_000;
/// Shortest time between two events about the same limit of a project, in milliseconds.
const ANNOUNCED_MS: Ticks = 60_000;
/// Duration for which an event is reported in the health, in milliseconds.
const EVENT_MS: Ticks = 15 * 60_000;
/// Time for the owner to delete data after starting a project that was stopped for its disk space.
const GRACE: TimeDelta = TimeDelta::minutes(10);
/// A larger decrease of free space triggers a measurement, in bytes.
const SLACK_BYTES: u64 = 64 << 20;
/// A larger decrease of free inodes triggers a measurement.
const SLACK_INODES: u64 = 5_000;

/// A running project.
struct Watched {
    id: ProjectId,
    project: ProjectRef,
    name: String,
    size: InstanceSize,
    organization: OrganizationId,
    generation: i64,
    settled_at: Option<DateTime<Utc>>,
    warning: Option<String>,
    read_only: bool,
    /// Time until which the owner switched read-only mode off.
    writable_until: Option<DateTime<Utc>>,
    limits: ResourceLimits,
}

impl Watched {
    fn is_kept_writable(&self, now: DateTime<Utc>) -> bool {
        self.writable_until.is_some_and(|until| until > now)
    }
}

/// When a round measures disk space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// After a large decrease of free space, or a long time.
    IfDue,
    /// In every round.
    Always,
}

/// Enforces limits periodically. Returns at once if projects have no limits.
pub async fn run(context: ControlContext) {
    if context.driver.resource_limits().is_none() {
        return;
    }
    let period = if context.driver.enforces_limits() {
        LOOK_AT_GROUPS
    } else {
        LOOK_AT_PROCESSES
    };
    repeat::every(period, || async {
        if let Err(error) = look(&context, Disk::IfDue).await {
            tracing::warn!(%error, "failed to measure the resources of projects");
        }
    })
    .await;
}

/// Enforces the limits of all running projects of this node once. An error of one project does not
/// affect the others.
pub async fn look(context: &ControlContext, disk: Disk) -> Result<(), Error> {
    let mut state = context.watchdog.state.lock().await;
    let smallest = context.driver.resource_limits();
    let Some(smallest) = smallest.filter(|_| context.lease.leads()) else {
        *state = WatchdogState::default();
        context.watchdog.set_usage(MeasuredUsage::default());
        return Ok(());
    };
    let projects = running(context, smallest).await?;
    let running: HashSet<ProjectId> = projects.iter().map(|project| project.id).collect();
    state.projects.retain(|id, _| running.contains(id));
    let refs = projects
        .iter()
        .map(|project| project.project.clone())
        .collect();
    let mut measured = context
        .driver
        .measure_processes(refs)
        .await
        .context("measuring projects")?;
    let measured_at = context.clock.now();
    let measure_disk = disk_is_due(context, &mut state, disk);
    let mut usage = BTreeMap::new();
    for project in &projects {
        let seen = state.projects.entry(project.id).or_default();
        let of_processes = measured.get(&project.project).cloned();
        let looked = async {
            if let Some(measured) = measured.remove(&project.project) {
                look_at_processes(context, project, seen, measured).await?;
            }
            let is_kept_writable = project.is_kept_writable(context.clock.now());
            if measure_disk {
                look_at_disk(context, project, seen).await?;
            } else if project.read_only && is_kept_writable {
                set_read_only(context, project, false).await?;
            }
            tell(context, project, seen).await
        };
        if let Err(error) = looked.await {
            tracing::warn!(project = %project.project, %error, "failed to measure the project's resources");
        }
        if let Some(measured) = of_processes {
            usage.insert(
                project.project.clone(),
                server_usage(project, seen, &measured),
            );
        }
    }
    context.watchdog.set_usage(MeasuredUsage {
        at: Some(measured_at),
        projects: usage,
    });
    Ok(())
}

fn server_usage(project: &Watched, seen: &Seen, measured: &Measurement) -> ServerUsage {
    let (memory_bytes, processes, processor_ms) = match measured {
        Measurement::Group(counts) => (counts.memory_bytes, counts.processes, counts.processor_ms),
        Measurement::Processes(usage) => {
            let ProcessUsage {
                memory_bytes,
                processes,
                processor_ms,
                ..
            } = usage;
            (*memory_bytes, *processes, Some(*processor_ms))
        }
    };
    ServerUsage {
        id: project.id,
        name: project.name.clone(),
        size: project.size,
        memory_bytes,
        memory_limit_bytes: project.limits.memory_bytes,
        processes,
        processor_ms,
        disk_bytes: seen.disk_bytes,
        disk_limit_bytes: project.limits.disk_hard_bytes,
    }
}

async fn running(
    context: &ControlContext,
    smallest: &ResourceLimits,
) -> Result<Vec<Watched>, Error> {
    let sql = "select id, ref, generation, settled_at, resource_warning, read_only, writable_until, \
               coalesce(started_size, 'micro'), disk_bytes, organization_id, name from projects \
               where node = $1 and status = 'ACTIVE_HEALTHY' and not asleep order by id";
    let rows = context
        .db
        .query(sql, &[&context.settings.node])
        .await
        .context("reading running projects")?;
    rows.iter()
        .map(|row: &Row| {
            let size = InstanceSize::of_code(row.get(7)).unwrap_or(InstanceSize::Micro);
            Ok(Watched {
                id: ProjectId(row.get(0)),
                project: row
                    .get::<_, &str>(1)
                    .parse()
                    .context("reading a project's ref")?,
                generation: row.get(2),
                settled_at: row.get(3),
                warning: row.get(4),
                read_only: row.get(5),
                writable_until: row.get(6),
                limits: size.limits(smallest).with_disk_choice(row.get(8)),
                organization: OrganizationId(row.get(9)),
                name: row.get(10),
                size,
            })
        })
        .collect()
}

/// Returns whether this round measures disk space.
fn disk_is_due(context: &ControlContext, state: &mut WatchdogState, disk: Disk) -> bool {
    let Some(limits) = context.driver.resource_limits() else {
        return false;
    };
    // Unknown free space counts as unchanged.
    let (bytes, inodes) = context.driver.free_space().unwrap_or_default();
    let now = context.clock.ticks();
    let slack = SLACK_BYTES.min(limits.disk_hard_bytes / 16);
    let due = state.measured.is_none_or(|(at, (before, inodes_before))| {
        now.saturating_sub(at) >= DISK_ROUND_MS
            || bytes.saturating_add(slack) <= before
            || inodes.saturating_add(SLACK_INODES) <= inodes_before
    });
    if due || disk == Disk::Always {
        state.measured = Some((now, (bytes, inodes)));
    } else if let Some((_, free)) = &mut state.measured {
        // Freed space raises the reference, so that its use is noticed.
        *free = (free.0.max(bytes), free.1.max(inodes));
    }
    due || disk == Disk::Always
}

/// Reports kernel events of a control group, or enforces the limits of a project without one.
async fn look_at_processes(
    context: &ControlContext,
    project: &Watched,
    seen: &mut Seen,
    measured: Measurement,
) -> Result<(), Error> {
    let limits = &project.limits;
    match measured {
        Measurement::Group(counts) => {
            let (kills, refused) = seen
                .counts
                .replace((counts.oom_kills, counts.forks_refused))
                .unwrap_or_default();
            if counts.oom_kills > kills {
                note(
                    context,
                    project,
                    seen,
                    Bound::Memory,
                    rules::memory_event(limits.memory_bytes),
                )
                .await?;
            } else if counts.forks_refused > refused {
                note(
                    context,
                    project,
                    seen,
                    Bound::Processes,
                    rules::processes_event(limits.processes),
                )
                .await?;
            }
        }
        Measurement::Processes(_) if context.driver.enforces_limits() => {
            context.driver.bound(&project.project, *limits);
            context
                .driver
                .apply_limits(&project.project)
                .await
                .context("bounding a project's server")?;
        }
        Measurement::Processes(usage) => {
            let (remedy, strikes) = rules::remedy(&usage, limits, seen.strikes);
            seen.strikes = strikes;
            if remedy == Remedy::Nothing {
                return Ok(());
            }
            let over = usage.memory_bytes > limits.memory_bytes;
            let event = if over {
                rules::memory_event(limits.memory_bytes)
            } else {
                rules::processes_event(limits.processes)
            };
            note(
                context,
                project,
                seen,
                if over {
                    Bound::Memory
                } else {
                    Bound::Processes
                },
                event,
            )
            .await?;
            bound_processes(context, project, remedy).await?;
        }
    }
    Ok(())
}

async fn bound_processes(
    context: &ControlContext,
    project: &Watched,
    remedy: Remedy,
) -> Result<(), Error> {
    match remedy {
        Remedy::Nothing => Ok(()),
        Remedy::EndProcess(process, how) => context
            .driver
            .end_process(&project.project, process, how)
            .await
            .context("ending a process"),
        Remedy::StopServer => {
            // The reconciler detects the exit and restarts the server.
            let Some(_hold) = context.reconciler.hold(project.id) else {
                return Ok(());
            };
            let stopped = context
                .driver
                .stop_at_once(&project.project)
                .await
                .context("stopping a cluster");
            context.reconciler.watch.look_at(project.id);
            stopped
        }
    }
}

async fn note(
    context: &ControlContext,
    project: &Watched,
    seen: &mut Seen,
    bound: Bound,
    event: String,
) -> Result<(), Error> {
    tracing::warn!(project = %project.project, "{event}");
    seen.event = Some((context.clock.ticks(), event));
    reached(context, project, seen, bound).await
}

/// Counts a limit that a project reached, and appends the event, at most once a minute.
async fn reached(
    context: &ControlContext,
    project: &Watched,
    seen: &mut Seen,
    bound: Bound,
) -> Result<(), Error> {
    context.cluster_metrics.reached(bound);
    let now = context.clock.ticks();
    let last = &mut seen.announced[bound as usize];
    if last.is_some_and(|last| now.saturating_sub(last) < ANNOUNCED_MS) {
        return Ok(());
    }
    *last = Some(now);
    let limit = bound.name().to_owned();
    let event = LimitExceeded { limit }.about_ref(project.organization, &project.project);
    let mut client = context.db.client().await?;
    let doing = "recording that a project reached a limit";
    let transaction = client.transaction().await.context(doing)?;
    status_events::append(context, &transaction, &[event]).await?;
    transaction.commit().await.context(doing)
}

async fn set_read_only(
    context: &ControlContext,
    project: &Watched,
    read_only: bool,
) -> Result<(), Error> {
    context
        .driver
        .set_read_only(&project.project, read_only)
        .await
        .context("making a project read-only or writable")?;
    let sql = "update projects set read_only = $2 where id = $1";
    context
        .db
        .query(sql, &[&project.id.0, &read_only])
        .await
        .context("writing that a project is read-only")?;
    Ok(())
}

/// Measures a project's disk space and makes the project read-only, writable or stopped according
/// to its limits.
async fn look_at_disk(
    context: &ControlContext,
    project: &Watched,
    seen: &mut Seen,
) -> Result<(), Error> {
    let limits = &project.limits;
    let usage = context
        .driver
        .disk_usage(&project.project, limits.inodes_stop().saturating_add(1))
        .await
        .context("measuring disk space")?;
    seen.disk_bytes = Some(usage.bytes);
    let level = rules::disk_level(usage, limits, project.read_only);
    let before = seen
        .level
        .replace((level, rules::disk_warning(level, usage, limits)))
        .map(|(level, _)| level);
    if level > before.unwrap_or(DiskLevel::Fine) {
        let bound = if level == DiskLevel::Soft {
            Bound::DiskSoft
        } else {
            Bound::DiskHard
        };
        tracing::warn!(project = %project.project, bytes = usage.bytes, inodes = usage.inodes, ?level, "the project's disk is full or nearly full");
        reached(context, project, seen, bound).await?;
    }
    let is_kept_writable = project.is_kept_writable(context.clock.now());
    let read_only = level >= DiskLevel::ReadOnly && !is_kept_writable;
    if read_only != project.read_only {
        set_read_only(context, project, read_only).await?;
    }
    let begun = project
        .settled_at
        .is_none_or(|settled| context.clock.now() - settled >= GRACE);
    if level == DiskLevel::Stop && (begun || rules::beyond_grace(usage, limits)) {
        stop(context, project, rules::disk_warning(level, usage, limits)).await?;
        reached(context, project, seen, Bound::DiskStop).await?;
    }
    Ok(())
}

/// Pauses a project. After restoring it, its owner has [`GRACE`] to delete data.
async fn stop(
    context: &ControlContext,
    project: &Watched,
    warning: Option<String>,
) -> Result<(), Error> {
    let lease = context.lease.check()?;
    let sql = "update projects set desired = 'paused', status = 'PAUSING', generation = generation + 1, attempts = 0, falls = 0, \
               last_error = null, resource_warning = $4, not_before = $5, updated_at = $5 \
               where id = $1 and generation = $2 and status = 'ACTIVE_HEALTHY' and exists \
               (select from node_leases l where l.node = projects.node and l.generation = $3 for share)";
    let params: [Param<'_>; 5] = [
        &project.id.0,
        &project.generation,
        &lease,
        &warning,
        &context.clock.now(),
    ];
    let update = StatusUpdate {
        project: project.id,
        sql,
        params: &params,
        doing: "stopping a project",
    };
    let reason = PauseReason::Other;
    let paused = ProjectPaused { reason }.about_ref(project.organization, &project.project);
    update.execute(context, vec![paused]).await?;
    tracing::warn!(project = %project.project, "the project still writes to its full disk; pausing it");
    context.reconciler.notify();
    Ok(())
}

/// Records the resource warning of a project if it changed.
async fn tell(context: &ControlContext, project: &Watched, seen: &mut Seen) -> Result<(), Error> {
    let now = context.clock.ticks();
    seen.event
        .take_if(|(at, _)| now.saturating_sub(*at) >= EVENT_MS);
    // This process has not measured disk space yet: the recorded warning stays valid.
    let Some((_, disk)) = &seen.level else {
        return Ok(());
    };
    let event = seen.event.as_ref().map(|(_, event)| event.clone());
    let warning = match (disk.clone(), event) {
        (Some(disk), Some(event)) => Some(format!("{disk}; {event}")),
        (disk, event) => disk.or(event),
    };
    if warning == project.warning {
        return Ok(());
    }
    let sql =
        "update projects set resource_warning = $2 where id = $1 and status = 'ACTIVE_HEALTHY'";
    let changed = ProjectHealthChanged {
        previous_warning: project.warning.clone(),
        current_warning: warning.clone(),
    };
    let update = StatusUpdate {
        project: project.id,
        sql,
        params: &[&project.id.0, &warning],
        doing: "writing what a project's health is to say",
    };
    let event = changed.about_ref(project.organization, &project.project);
    update.execute(context, vec![event]).await.map(drop)
}
