//! Instances of functions: one process for each version and environment.

use std::time::Duration;

use gantry_base::{
    clock::Ticks,
    ids::{ProjectId, ProjectRef},
};
use gantry_node::{
    kits::{Service, kit::InstalledKit},
    supervisor::ProcessOwner,
};
use tokio::{sync::Semaphore, time::timeout};
use uuid::Uuid;

use super::{
    live::live_functions,
    process::{FetchPlan, FunctionModules},
    sources::VersionFolder,
    versions::NewFunctionVersion,
};
use crate::{
    control::{
        api_keys,
        context::ControlContext,
        projects::Status,
        services::{
            acquire::{spare_use, wait_for_use},
            instance::{RunningInstance, ServiceUse},
            instance_id::{FunctionVersion, InstanceId},
            start, stop,
        },
    },
    platform::{access::Project, error::Error},
    proxy::{
        accepted_keys::AcceptedKeys, service_caller::ServiceCaller, service_proxy::LiveFunction,
        unavailable::Unavailable,
    },
};

/// Age at which a process takes no more requests and is replaced, in milliseconds.
const AGE_MAX: Ticks = 400_000;
/// Longest time that a deployment waits for the first start.
const TRIAL_MAX: Duration = Duration::from_secs(10);
/// Concurrent fetches of packages.
const FETCHES_MAX: usize = 2;

static FETCHES: Semaphore = Semaphore::const_new(FETCHES_MAX);

/// Identifies an environment by its number and the project's keys.
fn environment(number: i64, keys: &AcceptedKeys) -> u64 {
    keys.fingerprint()
        .wrapping_add(number.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn instance_id(
    (project, reference): (ProjectId, &ProjectRef),
    live: &LiveFunction,
    environment: u64,
) -> InstanceId {
    InstanceId {
        project,
        reference: reference.clone(),
        service: Service::Functions,
        function: Some(FunctionVersion {
            slug: live.slug.clone(),
            deployment: live.deployment,
            environment,
            spare: false,
        }),
    }
}

/// Returns a running process of a version, started if necessary. Processes of other versions and
/// environments of the function end after their requests.
pub(crate) async fn acquire(
    context: &ControlContext,
    project: (ProjectId, &ProjectRef),
    live: &LiveFunction,
    (number, keys): (i64, &AcceptedKeys),
    caller: ServiceCaller,
) -> Result<ServiceUse, Unavailable> {
    let id = instance_id(project, live, environment(number, keys));
    let (now, caller) = (context.clock.ticks(), Some(caller));
    context.services.check_caller(&id, caller, now)?;
    let instance = context.services.instance(&id);
    let used = instance.begin_use(now, caller);
    if let Some(used) = used.or_else(|| spare_use(context, &id, caller)) {
        return Ok(used);
    }
    let used = Box::pin(wait_for_use(context, &instance, caller)).await?;
    retire_others(context, &id);
    Ok(used)
}

/// Stops the processes of other versions and environments of the same function.
fn retire_others(context: &ControlContext, id: &InstanceId) {
    let Some(function) = &id.function else {
        return;
    };
    for other in context.services.instances() {
        let is_replaced = other.id.project == id.project
            && other.id.function.as_ref().is_some_and(|other| {
                other.slug == function.slug && !other.is_same_version(function)
            });
        if is_replaced && other.running().is_some() {
            let context = context.clone();
            tokio::spawn(async move { stop::stop(&context, &other).await });
        }
    }
}

/// Returns whether a process has the age at which it is replaced.
pub(in crate::control::services) fn is_too_old(running: &RunningInstance, now: Ticks) -> bool {
    running.id.function.is_some() && now.saturating_sub(running.since) >= AGE_MAX
}

/// Returns whether an instance is of a live version, or of one that is being deployed. Instances of
/// other services count as live.
pub(in crate::control::services) async fn is_live(
    context: &ControlContext,
    id: &InstanceId,
) -> bool {
    let Some(function) = &id.function else {
        return true;
    };
    if context
        .services
        .functions
        .candidate(function.deployment)
        .is_some()
    {
        return true;
    }
    match live_functions(context, id.project).await {
        Ok(functions) => functions.of_deployment(function.deployment).is_some(),
        // Decided again later.
        Err(_) => true,
    }
}

/// Fetches the packages of a new version, and starts it if it becomes live, so that the first
/// request finds it running. A version that does not start is deployed all the same: requests to it
/// get an error. Does nothing without a program.
///
/// Errors: [`Error::Rejected`] with the message of the runtime if the modules cannot be loaded.
pub(super) async fn try_out(
    context: &ControlContext,
    project: &Project,
    new: &NewFunctionVersion,
    version: i32,
) -> Result<(), Error> {
    let shelf = &context.control_settings.services.shelf;
    let Ok(Some(kit)) = shelf.find(Service::Functions) else {
        return Ok(());
    };
    if !context.lease.leads() {
        return Ok(());
    }
    let live = LiveFunction {
        id: new.id,
        slug: new.slug.to_string(),
        version,
        deployment: new.deployment,
        verify_jwt: new.verify_jwt,
        entrypoint: new.entrypoint.clone(),
        import_map: new.import_map.clone(),
    };
    let at = (project.id, &project.reference);
    let id = instance_id(at, &live, 0);
    let Ok(owner) = start::owner(context, &id, &kit) else {
        return Ok(());
    };
    fetch(context, project, (&kit, owner), &live).await?;
    if new.live && is_active(context, project.id).await {
        let deployment = live.deployment;
        context.services.functions.add_candidate(live.clone());
        let started = first_start(context, at, &live);
        // Its log has the reason of a failure.
        let _ = timeout(TRIAL_MAX, Box::pin(started)).await;
        tracing::debug!(project = %project.reference, %deployment, "function tried out");
    }
    Ok(())
}

async fn fetch(
    context: &ControlContext,
    project: &Project,
    (kit, owner): (&InstalledKit, ProcessOwner),
    live: &LiveFunction,
) -> Result<(), Error> {
    let folder = VersionFolder::of(&context.home, &project.reference, live.deployment);
    let modules = FunctionModules {
        entrypoint: live.entrypoint.clone(),
        import_map: live.import_map.clone(),
    };
    let plan = FetchPlan {
        context,
        project: &project.reference,
        folder: &folder,
        kit,
        owner,
    };
    let permit = FETCHES.acquire().await;
    let permit = permit.map_err(|error| Error::internal("waiting for the bundler", error))?;
    let fetched = Box::pin(plan.fetch(&modules)).await;
    drop(permit);
    fetched
        .map(drop)
        .map_err(|why| Error::Rejected(format!("Failed to bundle the function: {why}").into()))
}

async fn is_active(context: &ControlContext, project: ProjectId) -> bool {
    let sql = "select status from projects where id = $1";
    let Ok(rows) = context.db.query(sql, &[&project.0]).await else {
        return false;
    };
    let status = rows.first().map(|row| Status::read(row, 0));
    matches!(
        status,
        Some(Ok(Status::ActiveHealthy | Status::ActiveUnhealthy))
    )
}

async fn first_start(
    context: &ControlContext,
    (project, reference): (ProjectId, &ProjectRef),
    live: &LiveFunction,
) -> Result<(), Error> {
    let functions = live_functions(context, project).await?;
    let keys = api_keys::accepted_keys(context, project, reference).await?;
    let id = instance_id(
        (project, reference),
        live,
        environment(functions.environment, &keys),
    );
    let instance = context.services.instance(&id);
    let _ = wait_for_use(context, &instance, None).await;
    Ok(())
}

/// Ends the time in which a version that is being deployed counts as live.
pub(super) fn settle(context: &ControlContext, deployment: Uuid) {
    context.services.functions.remove_candidate(deployment);
}
