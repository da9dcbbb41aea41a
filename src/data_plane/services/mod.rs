//! Services of projects that Gantry runs itself, such as the Data API.
//!
//! A *kit* is a program with a manifest. An *instance* is a process of a kit for one project: it is
//! started by the first request, stopped when idle, and adopted after a restart of Gantry. No row
//! describes an instance: the configuration and the process table do.
//!
//! - `unavailable` has the reasons for which a service cannot be used.
//! - `instance` has the states, `start` and `stop` change them, `sweep` stops what is idle.
//! - `requests`, `crashes` and `failures`: the requests of a process, the callers that its end is
//!   charged to, and pauses after failed starts.
//! - `folder`, `limits` and `output`: files, limits and output of a process. Its sandbox, ports and
//!   temporary files are in [`gantry_node::services`], the kits in [`gantry_node::kits`].
//! - `environment`: variables of programs that are configured by variables. `data` has the files of
//!   Storage.
//! - `trial`: new settings of several services, before they are stored.
//! - `rest`: configuration, keys and settings of PostgREST.
//! - `functions`: Edge Functions, their versions, sources and secrets.
//! - `pooler`: `PgBouncer`, which shares server connections among clients.
//! - `schema_diff`: comparison of two schemas, a process of seconds that is no instance.
//!
//! [`acquire`] is the one way to an instance. Its result holds the instance until the response has
//! ended.

mod crashes;
mod data;
pub mod environment;
mod failures;
mod folder;
pub mod functions;
mod instance;
mod limits;
pub mod output;
pub mod pooler;
pub mod pressure;
mod probe;
mod replace;
mod requests;
pub mod rest;
pub mod schema_diff;
mod spawn;
mod start;
mod stop;
pub mod sweep;
pub(in crate::data_plane) mod trial;
mod unavailable;
mod versions;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use gantry_base::{
    clock::Ticks,
    ids::{ProjectId, ProjectRef},
};
use gantry_node::{
    kits::{
        Service,
        kit::{InstalledKit, KitError},
        shelf::KitShelf,
    },
    services::ports::PortTable,
    supervisor::Launcher,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::timeout,
};

use self::{
    crashes::CrashTable,
    functions::{EgressPorts, FunctionCache, FunctionLogQueue},
    instance::{Instance, InstanceId, InstanceKey, InstanceState, RunningInstance},
    output::OutputQueue,
    versions::VersionHistory,
};
pub use self::{
    crashes::ServiceCaller,
    instance::ServiceUse,
    stop::stop_all,
    unavailable::{Unavailable, UnavailableReason},
};
use crate::data_plane::{
    api_keys::AcceptedKeys, context::DataPlaneContext, database_session::ConcurrencyLimits,
    projects::sizes::ConnectionBudget,
};
pub use gantry_node::services::launch::{ServiceLaunchPlan, launch};

/// Longest time that a request waits for an instance: for the requests in flight of a process that
/// stops, and for the start of the next one.
const WAIT_MAX: Duration = stop::DRAIN_MAX.saturating_add(START_MAX);
/// Longest time that a request waits for the start of an instance.
const START_MAX: Duration = Duration::from_secs(10);
/// Requests that wait for one instance.
const INSTANCE_WAITING_MAX: usize = 64;
/// Requests that wait for instances of this process.
const WAITING_MAX: usize = 512;
/// Time for which the presence of a kit is remembered, in milliseconds.
const KIT_LOOK_INTERVAL: Ticks = 5000;
/// Concurrent starts per processor.
const STARTS_PER_PROCESSOR: usize = 2;

/// Settings of the operator for services.
#[derive(Debug, Clone, Default)]
pub struct ServiceOptions {
    /// Where kits are found.
    pub shelf: KitShelf,
    /// Starts instances.
    pub launcher: Launcher,
    /// Ports that functions may connect to.
    pub egress: EgressPorts,
}

/// The instances of this process.
pub struct Services {
    table: Mutex<HashMap<InstanceKey, Arc<Instance>>>,
    /// Live versions of functions.
    pub(crate) functions: FunctionCache,
    /// Log events of functions that are not stored yet.
    pub function_log: FunctionLogQueue,
    /// Sessions of functions with their databases.
    function_sessions: ConcurrencyLimits,
    starts: Semaphore,
    /// Permits of comparisons of schemas.
    diffs: Semaphore,
    waiting: AtomicUsize,
    /// Whether processes of an earlier Gantry are being adopted. No request starts a process then.
    adopting: watch::Sender<bool>,
    /// Notified when settings of a project changed.
    notify: Notify,
    /// Versions of kits that do not start.
    versions: VersionHistory,
    /// Ended processes, and the callers that they are charged to.
    crashes: CrashTable,
    ports: PortTable,
    /// Lines that instances wrote.
    pub output: Arc<OutputQueue>,
    /// Whether a kit of each service is found: twice the time of the look, plus one if there is.
    /// Zero: unknown.
    kits: [AtomicU64; Service::WITH_PROGRAMS.len()],
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

impl Default for Services {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            table: Mutex::default(),
            functions: FunctionCache::default(),
            function_log: FunctionLogQueue::default(),
            function_sessions: ConcurrencyLimits::new(ConnectionBudget::FUNCTIONS),
            starts: Semaphore::new(processors * STARTS_PER_PROCESSOR),
            diffs: Semaphore::new(schema_diff::DIFFS_MAX),
            waiting: AtomicUsize::new(0),
            adopting: watch::Sender::new(false),
            notify: Notify::new(),
            versions: VersionHistory::default(),
            crashes: CrashTable::default(),
            ports: PortTable::default(),
            output: Arc::default(),
            kits: Default::default(),
        }
    }
}

/// The state of an instance, for health checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceState {
    /// No process runs; the next request starts one.
    Asleep,
    /// A process is starting or stopping.
    Changing,
    /// A process runs.
    Running,
    /// The last start failed.
    Failed(String),
}

impl Services {
    /// Returns the instance of a project's service. Entries are bounded by the projects of this
    /// process.
    fn instance(&self, id: &InstanceId) -> Arc<Instance> {
        let mut table = self.table.lock();
        let entry = table.entry(id.key());
        entry
            .or_insert_with(|| Arc::new(Instance::new(id.clone())))
            .clone()
    }

    /// Announces that the processes of an earlier Gantry are adopted from now on.
    pub(crate) fn begin_adoption(&self) {
        self.adopting.send_replace(true);
    }

    fn end_adoption(&self) {
        self.adopting.send_replace(false);
    }

    fn is_adopting(&self) -> bool {
        *self.adopting.borrow()
    }

    /// Returns when the adoption has ended.
    async fn until_adopted(&self) {
        let mut adopting = self.adopting.subscribe();
        // The sender lives as long as this.
        let _ = adopting.wait_for(|adopting| !adopting).await;
    }

    /// Announces that settings of a project changed.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Returns when settings of a project have changed.
    async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Removes entries that hold nothing.
    fn forget_idle_entries(&self) {
        let mut table = self.table.lock();
        // A caller that holds a reference may be about to use the entry.
        table.retain(|_, instance| Arc::strong_count(instance) > 1 || !instance.is_idle_entry());
    }

    fn instances(&self) -> Vec<Arc<Instance>> {
        self.table.lock().values().cloned().collect()
    }

    /// Returns the state of a project's service without starting it.
    pub fn state(&self, project: ProjectId, service: Service) -> ServiceState {
        let found = self.table.lock().get(&(project, service, None)).cloned();
        let Some(instance) = found else {
            return ServiceState::Asleep;
        };
        match instance.state() {
            InstanceState::Stopped => ServiceState::Asleep,
            InstanceState::Starting | InstanceState::Draining => ServiceState::Changing,
            InstanceState::Running(_) => ServiceState::Running,
            InstanceState::Failed { reason, .. } => {
                let why = instance.last_error();
                ServiceState::Failed(why.unwrap_or_else(|| reason.message().to_owned()))
            }
        }
    }

    /// Returns the running process of a project's service.
    fn running(&self, project: ProjectId, service: Service) -> Option<Arc<RunningInstance>> {
        let instance = self.table.lock().get(&(project, service, None)).cloned()?;
        instance.running()
    }

    /// Returns the reason of the last unexpected end of a project's service, for messages.
    pub fn last_end(&self, project: ProjectId, service: Service) -> Option<String> {
        let instance = self.table.lock().get(&(project, service, None)).cloned()?;
        instance.last_end()
    }

    /// Returns an error if a caller is limited, because its requests ended processes.
    fn check_caller(
        &self,
        id: &InstanceId,
        caller: Option<ServiceCaller>,
        now: Ticks,
    ) -> Result<(), Unavailable> {
        let limited = caller.and_then(|caller| self.crashes.limited(id.crash_scope(), caller, now));
        limited.map_or(Ok(()), |retry_secs| {
            Err(Unavailable {
                reason: UnavailableReason::CallerLimited,
                retry_secs,
            })
        })
    }

    /// Returns an instance that exists.
    fn existing(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.table.lock().get(&id.key()).cloned()
    }

    /// Returns the process id of a running instance, for tests and messages.
    pub fn pid(&self, project: ProjectId, service: Service) -> Option<i32> {
        let running = self.running(project, service)?;
        Some(running.pid.as_raw_nonzero().get())
    }

    /// Counts a waiting request, unless too many wait.
    fn wait_room<'a>(&'a self, instance: &'a Instance) -> Option<WaitingRequest<'a>> {
        let room = WaitingRequest {
            counts: [&self.waiting, &instance.waiting],
        };
        let all = self.waiting.fetch_add(1, Ordering::AcqRel);
        let own = instance.waiting.fetch_add(1, Ordering::AcqRel);
        (all < WAITING_MAX && own < INSTANCE_WAITING_MAX).then_some(room)
    }
}

/// A request that waits for an instance. Counted until it is dropped.
struct WaitingRequest<'a> {
    counts: [&'a AtomicUsize; 2],
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        for count in self.counts {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Returns the kit that a new instance of a service uses: the newest one that starts.
fn find_kit(
    context: &DataPlaneContext,
    service: Service,
) -> Result<Option<InstalledKit>, KitError> {
    let now = context.clock.ticks();
    let shelf = &context.data_plane_settings.services.shelf;
    let versions = &context.services.versions;
    shelf.find_unless(service, |version| versions.is_left(service, version, now))
}

/// Returns the version of the Data API of a project: the one that runs, or that the next request
/// starts. Without a program, the one that Gantry installs.
pub fn data_api_version(context: &DataPlaneContext, project: ProjectId) -> String {
    let running = context.services.running(project, Service::Rest);
    let kit = match running {
        Some(running) => Some(running.kit.version.clone()),
        None => find_kit(context, Service::Rest)
            .ok()
            .flatten()
            .map(|kit| kit.version),
    };
    let version = kit.unwrap_or_else(|| gantry_node::kits::install::REST_VERSION.to_owned());
    // Without the number of its package.
    let program = version.split('-').next().unwrap_or_default();
    program.to_owned()
}

/// Returns whether Gantry runs this service for projects: a kit of it is found. A new kit is
/// noticed within five seconds.
pub fn has_kit(context: &DataPlaneContext, service: Service) -> bool {
    let cached = &context.services.kits[service as usize];
    let (known, now) = (cached.load(Ordering::Relaxed), context.clock.ticks());
    if known > 1 && now.saturating_sub(known / 2) < KIT_LOOK_INTERVAL {
        return known % 2 == 1;
    }
    let found = context.data_plane_settings.services.shelf.find(service);
    let is_found = !matches!(found, Ok(None));
    cached.store(now.max(1) * 2 + u64::from(is_found), Ordering::Relaxed);
    is_found
}

/// Returns a running instance of a project's service, started if necessary. It accepts the tokens
/// of exactly `keys`.
///
/// A request that is cancelled does not cancel the start. The end of the process is charged to
/// `caller`, if there is one.
///
/// Errors: the reason for which there is no instance, at most ten seconds later.
pub async fn acquire(
    context: &DataPlaneContext,
    (project, reference): (ProjectId, &ProjectRef),
    service: Service,
    keys: &Arc<AcceptedKeys>,
    caller: Option<ServiceCaller>,
) -> Result<ServiceUse, Unavailable> {
    let id = InstanceId {
        project,
        reference: reference.clone(),
        service,
        function: None,
    };
    let now = context.clock.ticks();
    context.services.check_caller(&id, caller, now)?;
    let instance = context.services.instance(&id);
    let used = match instance.begin_use(now, caller) {
        Some(used) => used,
        None => Box::pin(wait_for_use(context, &instance, caller)).await?,
    };
    if used.running.keys_loaded(keys) {
        return Ok(used);
    }
    if used.running.kit.manifest.needs.settings {
        drop(used);
        return Box::pin(restart_with_keys(context, &instance, keys, caller)).await;
    }
    Box::pin(rest::load_keys(context, &used.running, keys)).await?;
    Ok(used)
}

/// Replaces a process that has other keys in its environment, and returns the new one.
async fn restart_with_keys(
    context: &DataPlaneContext,
    instance: &Arc<Instance>,
    keys: &AcceptedKeys,
    caller: Option<ServiceCaller>,
) -> Result<ServiceUse, Unavailable> {
    let _one = instance.replacing.lock().await;
    let running = instance.running();
    // Another request may have replaced it.
    if running.is_some_and(|running| !running.keys_loaded(keys)) {
        stop::stop(context, instance).await;
    }
    let used = wait_for_use(context, instance, caller).await?;
    if used.running.keys_loaded(keys) {
        Ok(used)
    } else {
        // The keys changed again: the next request finds them.
        Err(Unavailable::now(UnavailableReason::Starting))
    }
}

/// Returns the state of a project's service. A running one is asked.
pub async fn observe(
    context: &DataPlaneContext,
    project: ProjectId,
    service: Service,
) -> ServiceState {
    let Some(running) = context.services.running(project, service) else {
        let state = context.services.state(project, service);
        return match find_kit(context, service) {
            // The next request would not start it.
            Err(error) if state == ServiceState::Asleep => ServiceState::Failed(error.to_string()),
            _ => state,
        };
    };
    if service == Service::Pooler {
        return if pooler::is_ready(&running).await {
            ServiceState::Running
        } else {
            ServiceState::Failed("the program does not answer its console".to_owned())
        };
    }
    match probe::is_ready(&running.address, &running.kit.manifest.ready).await {
        Ok(true) => ServiceState::Running,
        Ok(false) if service == Service::Rest => {
            ServiceState::Failed("PostgREST is not connected with the database".to_owned())
        }
        Ok(false) => ServiceState::Failed("the program answers that it is not ready".to_owned()),
        Err(error) => ServiceState::Failed(error.to_string()),
    }
}

/// Returns a use of the process that replaces an ended one, for a request that did not reach it.
/// `None`: the process has not ended.
pub(crate) async fn replacement(
    context: &DataPlaneContext,
    used: &ServiceUse,
) -> Result<Option<ServiceUse>, Unavailable> {
    if !used.has_ended().await {
        return Ok(None);
    }
    let spare = functions::spare_use(context, &used.instance.id, used.caller);
    if spare.is_some() {
        return Ok(spare);
    }
    let used = wait_for_use(context, &used.instance, used.caller).await;
    used.map(Some)
}

/// Waits until the instance runs. Starts it if it is stopped.
async fn wait_for_use(
    context: &DataPlaneContext,
    instance: &Arc<Instance>,
    caller: Option<ServiceCaller>,
) -> Result<ServiceUse, Unavailable> {
    let Some(_room) = context.services.wait_room(instance) else {
        return Err(Unavailable::now(UnavailableReason::Full));
    };
    let mut states = instance.subscribe();
    let running = async {
        loop {
            states.borrow_and_update();
            let now = context.clock.ticks();
            if let Some(used) = instance.begin_use(now, caller) {
                return Ok(used);
            }
            if let Some(failed) = instance.failure(now) {
                if failed.reason != UnavailableReason::Slowed {
                    return Err(failed);
                }
                // Its start is near enough to wait for.
                let pause = Duration::from_secs(failed.retry_secs.into());
                let _ = timeout(pause, states.changed()).await;
                continue;
            }
            if context.services.is_adopting() && context.lease.leads() {
                // Its folder may have a process of an earlier Gantry.
                tokio::select! {
                    () = context.services.until_adopted() => {}
                    _ = states.changed() => {}
                }
                continue;
            }
            if instance.begin_start(now) {
                tokio::spawn(start::run(context.clone(), Arc::clone(instance)));
            }
            // The instance has the sender, so this ends with a change only.
            let _ = states.changed().await;
        }
    };
    timeout(WAIT_MAX, running).await.unwrap_or_else(|_| {
        let failure = instance.failure(context.clock.ticks());
        Err(failure.unwrap_or(Unavailable::now(UnavailableReason::Starting)))
    })
}
