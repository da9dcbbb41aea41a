//! The instances of this process.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use gantry_base::{clock::Ticks, ids::ProjectId};
use gantry_node::{
    kits::{Service, shelf::KitShelf},
    services::ports::PortTable,
    supervisor::Launcher,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use super::{
    crashes::CrashTable,
    functions::{egress::EgressPorts, function_cache::FunctionCache, log_queue::FunctionLogQueue},
    instance::{Instance, InstanceState, RunningInstance},
    instance_id::{InstanceId, InstanceKey},
    output::OutputQueue,
    versions::VersionHistory,
};
use crate::{
    control::{database_session::ConcurrencyLimits, projects::sizes::ConnectionBudget},
    proxy::{
        service_caller::ServiceCaller,
        unavailable::{Unavailable, UnavailableReason},
    },
};

/// Requests that wait for one instance.
const INSTANCE_WAITING_MAX: usize = 64;

/// Requests that wait for instances of this process.
const WAITING_MAX: usize = 512;

/// Concurrent starts per processor.
const STARTS_PER_PROCESSOR: usize = 2;

/// Comparisons of this process at the same time.
const DIFFS_MAX: usize = 2;

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
    pub(in crate::control::services) table: Mutex<HashMap<InstanceKey, Arc<Instance>>>,
    /// Live versions of functions.
    pub(crate) functions: FunctionCache,
    /// Log events of functions that are not stored yet.
    pub function_log: FunctionLogQueue,
    /// Sessions of functions with their databases.
    pub(in crate::control::services) function_sessions: ConcurrencyLimits,
    pub(in crate::control::services) starts: Semaphore,
    /// Permits of comparisons of schemas.
    pub(in crate::control::services) diffs: Semaphore,
    pub(in crate::control::services) waiting: AtomicUsize,
    /// Whether processes of an earlier Gantry are being adopted. No request starts a process then.
    pub(in crate::control::services) adopting: watch::Sender<bool>,
    /// Notified when settings of a project changed.
    pub(in crate::control::services) notify: Notify,
    /// Versions of kits that do not start.
    pub(in crate::control::services) versions: VersionHistory,
    /// Ended processes, and the callers that they are charged to.
    pub(in crate::control::services) crashes: CrashTable,
    pub(in crate::control::services) ports: PortTable,
    /// Lines that instances wrote.
    pub output: Arc<OutputQueue>,
    /// Whether a kit of each service is found: twice the time of the look, plus one if there is.
    /// Zero: unknown.
    pub(in crate::control::services) kits: [AtomicU64; Service::WITH_PROGRAMS.len()],
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
            diffs: Semaphore::new(DIFFS_MAX),
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
    pub(in crate::control::services) fn instance(&self, id: &InstanceId) -> Arc<Instance> {
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

    pub(in crate::control::services) fn end_adoption(&self) {
        self.adopting.send_replace(false);
    }

    pub(in crate::control::services) fn is_adopting(&self) -> bool {
        *self.adopting.borrow()
    }

    /// Returns when the adoption has ended.
    pub(in crate::control::services) async fn until_adopted(&self) {
        let mut adopting = self.adopting.subscribe();
        // The sender lives as long as this.
        let _ = adopting.wait_for(|adopting| !adopting).await;
    }

    /// Announces that settings of a project changed.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Returns when settings of a project have changed.
    pub(in crate::control::services) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Removes entries that hold nothing.
    pub(in crate::control::services) fn forget_idle_entries(&self) {
        let mut table = self.table.lock();
        // A caller that holds a reference may be about to use the entry.
        table.retain(|_, instance| Arc::strong_count(instance) > 1 || !instance.is_idle_entry());
    }

    pub(in crate::control::services) fn instances(&self) -> Vec<Arc<Instance>> {
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
    pub(in crate::control::services) fn running(
        &self,
        project: ProjectId,
        service: Service,
    ) -> Option<Arc<RunningInstance>> {
        let instance = self.table.lock().get(&(project, service, None)).cloned()?;
        instance.running()
    }

    /// Returns the reason of the last unexpected end of a project's service, for messages.
    pub fn last_end(&self, project: ProjectId, service: Service) -> Option<String> {
        let instance = self.table.lock().get(&(project, service, None)).cloned()?;
        instance.last_end()
    }

    /// Returns an error if a caller is limited, because its requests ended processes.
    pub(in crate::control::services) fn check_caller(
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
    pub(in crate::control::services) fn existing(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.table.lock().get(&id.key()).cloned()
    }

    /// Returns the process id of a running instance, for tests and messages.
    pub fn pid(&self, project: ProjectId, service: Service) -> Option<i32> {
        let running = self.running(project, service)?;
        Some(running.pid.as_raw_nonzero().get())
    }

    /// Counts a waiting request, unless too many wait.
    pub(in crate::control::services) fn wait_room<'a>(
        &'a self,
        instance: &'a Instance,
    ) -> Option<WaitingRequest<'a>> {
        let room = WaitingRequest {
            counts: [&self.waiting, &instance.waiting],
        };
        let all = self.waiting.fetch_add(1, Ordering::AcqRel);
        let own = instance.waiting.fetch_add(1, Ordering::AcqRel);
        (all < WAITING_MAX && own < INSTANCE_WAITING_MAX).then_some(room)
    }
}

/// A request that waits for an instance. Counted until it is dropped.
pub(in crate::control::services) struct WaitingRequest<'a> {
    counts: [&'a AtomicUsize; 2],
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        for count in self.counts {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
