//! Stops instances that are idle or outdated, or have a project that does not run any more, and
//! adopts instances of an earlier Gantry.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::{kits::Service, supervisor::ProcessOwner};
use tokio::time::interval;

use super::{
    data,
    folder::InstanceFolder,
    functions,
    instance::{Instance, RunningInstance},
    instance_id::InstanceId,
    kit_choice::find_kit,
    limits, pooler, pressure, rest, schema_diff, start, stop,
};
use crate::{
    control::{context::ControlContext, projects::Status},
    platform::error::{Context, Error},
};

/// Interval between searches for idle instances.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Rounds of that interval after which projects are read without a notification.
const PROJECTS_ROUNDS: u32 = 10;
/// Reads of projects after which unused files of functions are removed.
const CLEANING_ROUNDS: u32 = 30;
/// Folders of instances that are adopted at the same time.
const ADOPTIONS_MAX: usize = 8;

/// Adopts instances, then stops them when necessary. Runs until it is dropped.
pub async fn run(context: ControlContext) {
    let mut changes = context.reconciler.changes();
    let mut rounds = interval(IDLE_INTERVAL);
    let (mut since_read, mut cleanings) = (0, 0_u32);
    let mut adopted = false;
    loop {
        let changed = tokio::select! {
            _ = rounds.tick() => false,
            // The sender lives as long as the context.
            _ = changes.changed() => true,
            () = context.services.woken() => true,
        };
        if !adopted && context.lease.leads() {
            adopted = adopt(&context).await;
            if adopted {
                context.services.end_adoption();
            }
        }
        since_read += 1;
        if changed || since_read >= PROJECTS_ROUNDS {
            since_read = 0;
            cleanings += 1;
            if cleanings % CLEANING_ROUNDS == 1 && context.lease.leads() {
                remove_unused(&context).await;
            }
            if let Err(error) = stop_unwanted(&context).await {
                tracing::debug!(%error, "projects of services could not be read; trying again");
            }
        }
        stop_idle(&context);
        pressure::relieve(&context);
    }
}

/// Removes files of functions without a version, and files of removed projects.
pub async fn remove_unused(context: &ControlContext) {
    let functions = functions::clean::remove_unused(context).await;
    let files = data::remove_unused(context).await;
    if let Err(error) = functions.and(files) {
        tracing::debug!(%error, "files of services could not be removed; trying again");
    }
}

/// Stops the instances without requests for the time that their kit states.
pub fn stop_idle(context: &ControlContext) {
    let now = context.clock.ticks();
    for instance in context.services.instances() {
        let Some(running) = instance.running() else {
            continue;
        };
        let idle = running.kit.manifest.idle.as_millis();
        // A spare is kept as long as the process that it may replace.
        let first = instance.id.first_of_spare();
        let first = first.and_then(|id| context.services.existing(&id));
        let idle_since = match first.filter(|first| first.running().is_some()) {
            Some(first) => instance
                .idle_since(now)
                .zip(first.idle_since(now))
                .map(|(own, first)| own.min(first)),
            None => instance.idle_since(now),
        };
        if functions::run::is_too_old(&running, now) {
            // The next request starts another process.
            spawn_stop(context, instance);
        } else if idle_since.is_some_and(|since| u128::from(since) >= idle) {
            let InstanceId {
                reference, service, ..
            } = &instance.id;
            tracing::debug!(project = %reference, %service, "idle service stopped");
            spawn_stop(context, instance);
        }
    }
}

/// In a task of its own: requests in flight of one instance must not delay others.
pub(super) fn spawn_stop(context: &ControlContext, instance: Arc<Instance>) {
    let context = context.clone();
    tokio::spawn(async move { stop::stop(&context, &instance).await });
}

/// Stops the instances of projects that are paused or removed, and those of an outdated kit, which
/// the next request starts again. Brings others to changed settings.
pub async fn stop_unwanted(context: &ControlContext) -> Result<(), Error> {
    let running: Vec<(Arc<Instance>, Arc<RunningInstance>)> = context
        .services
        .instances()
        .into_iter()
        .filter_map(|instance| Some((instance.clone(), instance.running()?)))
        .collect();
    context.services.forget_idle_entries();
    context.services.crashes.forget(context.clock.ticks());
    if running.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = running
        .iter()
        .map(|(instance, _)| instance.id.project.0)
        .collect();
    let sql = "select p.id, p.status, coalesce(s.generation, 0), \
               (select json_object_agg(a.service, a.generation) from service_settings a \
               where a.project_id = p.id), \
               exists (select from superseded_clusters c \
               where c.project_id = p.id and c.node = $2) \
               from projects p left join rest_settings s on s.project_id = p.id \
               where p.id = any($1)";
    let rows = context.db.query(sql, &[&ids, &context.settings.node]).await;
    let rows = rows.context("reading the projects of services")?;
    for (instance, process) in running {
        let row = rows
            .iter()
            .find(|row| row.get::<_, i64>(0) == instance.id.project.0);
        let Some(row) = row else {
            spawn_stop(context, instance);
            continue;
        };
        let status = Status::read(row, 1)?;
        let goes_on = matches!(instance.id.service, Service::Pooler | Service::Functions);
        let is_kept = goes_on && status.restarts_server();
        // It was moved to another node.
        let is_elsewhere: bool = row.get(4);
        let is_ended = is_elsewhere || (ends_services(status) && !is_kept);
        let is_replaced = !is_ended && is_outdated(context, &process);
        if is_replaced && instance.id.service == Service::Pooler {
            let context = context.clone();
            tokio::spawn(async move { pooler::take_over::take_over(&context, &instance).await });
            continue;
        }
        if is_ended || is_replaced || !functions::run::is_live(context, &instance.id).await {
            spawn_stop(context, instance);
            continue;
        }
        let stored: i64 = if instance.id.service == Service::Rest {
            row.get(2)
        } else {
            let generations: Option<serde_json::Value> = row.get(3);
            let service = instance.id.service.name();
            generations.map_or(0, |all| all[service].as_i64().unwrap_or(0))
        };
        let has_other_settings = stored != process.settings.lock().generation;
        // A change that is being tried is not stored yet.
        if process.kit.manifest.needs.settings
            && has_other_settings
            && instance.replacing.try_lock().is_ok()
        {
            spawn_stop(context, instance);
            continue;
        }
        if instance.id.service == Service::Pooler && has_other_settings {
            let context = context.clone();
            tokio::spawn(async move { pooler::process::refresh(&context, &instance).await });
            continue;
        }
        if instance.id.service == Service::Rest && has_other_settings {
            let context = context.clone();
            tokio::spawn(async move { rest::reload::refresh(&context, &instance).await });
        }
    }
    Ok(())
}

/// Returns whether instances must not run while a project has this status.
fn ends_services(status: Status) -> bool {
    match status {
        Status::ActiveHealthy | Status::ActiveUnhealthy | Status::ComingUp => false,
        Status::Restarting
        | Status::Upgrading
        | Status::Restoring
        | Status::RestoreFailed
        | Status::Pausing
        | Status::PauseFailed
        | Status::Inactive
        | Status::InitFailed
        | Status::GoingDown
        | Status::Removed => true,
    }
}

/// Returns whether another version of the kit would be started now.
fn is_outdated(context: &ControlContext, process: &RunningInstance) -> bool {
    let service = process.id.service;
    match find_kit(context, service) {
        Ok(Some(kit)) => kit.version != process.kit.version,
        // A removed or broken kit: the running process is as good as any.
        Ok(None) | Err(_) => false,
    }
}

/// A folder of an instance.
struct FoundFolder {
    name: String,
    reference: ProjectRef,
    service: Service,
}

/// Adopts the live instances in the data folder, and ends those without a project. Returns whether
/// it is complete. No request starts an instance meanwhile.
async fn adopt(context: &ControlContext) -> bool {
    let home = context.home.clone();
    let listed = tokio::task::spawn_blocking(move || {
        let mut found = Vec::new();
        for entry in fs::read_dir(home.socket_dir(""))?.flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            // The process of an interrupted comparison has ended with its sessions.
            if schema_diff::is_comparison(&name) {
                fs::remove_dir_all(entry.path())?;
                continue;
            }
            if let Some((reference, service)) = InstanceFolder::parse(&name) {
                found.push(FoundFolder {
                    name,
                    reference,
                    service,
                });
            }
        }
        Ok::<_, std::io::Error>(found)
    });
    let Ok(Ok(found)) = listed.await else {
        return false;
    };
    let refs: Vec<&str> = found.iter().map(|found| found.reference.as_str()).collect();
    let sql =
        "select ref, id from projects where ref = any($1) and node = $2 and desired = 'active'";
    let rows = context
        .db
        .query(sql, &[&refs, &context.settings.node])
        .await;
    let Ok(rows) = rows else { return false };
    let projects: HashMap<&str, ProjectId> = rows
        .iter()
        .map(|row| (row.get(0), ProjectId(row.get(1))))
        .collect();
    stream::iter(&found)
        .for_each_concurrent(ADOPTIONS_MAX, |found| {
            let project = projects.get(found.reference.as_str()).copied();
            adopt_folder(context, found, project)
        })
        .await;
    limits::remove_stale(context).await;
    true
}

/// Adopts the instance of a folder, or ends its processes and removes it.
async fn adopt_folder(context: &ControlContext, found: &FoundFolder, project: Option<ProjectId>) {
    let FoundFolder {
        name,
        reference,
        service,
    } = found;
    let folder = InstanceFolder::named(&context.home, name);
    let mut id = project.map(|project| InstanceId {
        project,
        reference: reference.clone(),
        service: *service,
        function: folder.recorded().and_then(|recorded| recorded.function),
    });
    if let Some(known) = &id {
        let is_wanted = match service {
            Service::Functions => {
                known.function.is_some() && functions::run::is_live(context, known).await
            }
            // Clients of a second pooler were those of the earlier Gantry.
            _ => known.name() == *name,
        };
        id = id.filter(|_| is_wanted);
    }
    if let Some(id) = id.filter(|_| folder.launched().is_some()) {
        let instance = context.services.instance(&id);
        if instance.begin_start(context.clock.ticks()) {
            start::run(context.clone(), instance).await;
        }
        return;
    }
    let uid = fs::symlink_metadata(folder.inner()).ok();
    let owner = uid.map_or_else(ProcessOwner::own_account, |found| {
        ProcessOwner::new(found.uid(), found.gid())
    });
    let ended = stop::end_processes(&folder, owner).await;
    if let Err(error) = ended.and_then(|()| folder.remove()) {
        tracing::warn!(project = %reference, %service, %error, "failed to remove a left service");
    }
}
