//! The states of an instance.
//!
//! ```text
//! stopped ─request→ starting ─ready→ running ─idle, settings→ draining ─ended→ stopped
//!                    │ failed           │ ended
//!                    └────────→ failed ←┘   after a pause the next request starts it again
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use rustix::process::Pid;
use tokio::sync::{Notify, watch};

use super::{
    database_port::DatabasePort, folder::InstanceFolder, functions::FunctionDatabase,
    kit::InstalledKit, output::OutputReader, ports::ReservedPort, rest::StoredSettings,
};
use crate::{
    base::{
        clock::Ticks,
        ids::{ProjectId, ProjectRef},
        supervisor::{ProcessHandle, ProcessOwner},
    },
    data_plane::{
        api_keys::AcceptedKeys,
        service_proxy::{
            FunctionGateway,
            upstreams::{Service, Upstream, UpstreamAddress},
        },
    },
};

/// Time in which failures are counted, in milliseconds.
const FAILURE_WINDOW: Ticks = 600_000;
/// Failures in the window after which a start is tried once a minute.
const FAILURES_MAX: usize = 5;
/// Longest pause after a failure, in milliseconds.
const PAUSE_MAX: Ticks = 60_000;

/// Longest time until the process behind a broken connection has ended.
const END_MAX: Duration = Duration::from_secs(1);
/// Pause after a start that failed for a reason outside the program, in milliseconds.
const OTHER_PAUSE: Ticks = 1000;

/// The project and the service of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InstanceId {
    pub(super) project: ProjectId,
    pub(super) reference: ProjectRef,
    pub(super) service: Service,
    /// The version, for functions.
    pub(super) function: Option<FunctionVersion>,
}

/// A version of a function with its environment. Each has an instance of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FunctionVersion {
    /// The name of the function in paths.
    pub(crate) slug: String,
    /// Id of the files.
    pub(crate) deployment: Uuid,
    /// Identifies secrets and keys.
    pub(crate) environment: u64,
}

/// The key of an instance in the table.
pub(super) type InstanceKey = (ProjectId, Service, Option<FunctionVersion>);

impl InstanceId {
    pub(super) fn key(&self) -> InstanceKey {
        (self.project, self.service, self.function.clone())
    }
}

/// The reason for which a project's service cannot be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnavailableReason {
    /// No kit is installed.
    NoKit,
    /// The kit cannot be used.
    BrokenKit,
    /// Another process runs the project.
    Elsewhere,
    /// The project's settings switch the service off.
    Off,
    /// The database does not run.
    DatabaseAway,
    /// The database rejects the login role of the service.
    DatabaseRefuses,
    /// The instance is still starting.
    Starting,
    /// Too many requests wait for the instance.
    Full,
    /// The instance ended or did not become ready.
    Failed,
    /// The instance failed repeatedly.
    Crashing,
}

impl UnavailableReason {
    /// Returns the sentence for clients.
    pub const fn message(self) -> &'static str {
        match self {
            Self::NoKit => {
                "No program for this service is installed; the operator installs one with `gantry service install`"
            }
            Self::BrokenKit => {
                "The installed program of this service cannot be used; the server's log has the reason"
            }
            Self::Elsewhere => "Another server runs this project",
            Self::Off => "The service is switched off in the project's settings",
            Self::DatabaseAway => "The project's database is not running; try again shortly",
            Self::DatabaseRefuses => {
                "The project's database rejects the role of this service \
                 (`authenticator`, or `supabase_auth_admin` for Auth)"
            }
            Self::Starting => "The service is starting; try again shortly",
            Self::Full => "Too many requests wait for the start of the service; try again shortly",
            Self::Failed => "The service did not start; it is started again shortly",
            Self::Crashing => "The service failed repeatedly; it is started again once a minute",
        }
    }

    /// Returns whether a failed start counts as a fault of the program.
    pub(super) const fn is_fault(self) -> bool {
        matches!(self, Self::Failed | Self::Crashing | Self::DatabaseRefuses)
    }
}

/// The reason for which a service cannot be used, and when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unavailable {
    /// The reason.
    pub reason: UnavailableReason,
    /// Value of `Retry-After`, in seconds.
    pub retry_secs: u32,
}

impl Unavailable {
    /// A state that may end at any time.
    pub(super) const fn now(reason: UnavailableReason) -> Self {
        Self {
            reason,
            retry_secs: 1,
        }
    }
}

/// A running process of a kit.
pub(super) struct RunningInstance {
    pub(super) id: InstanceId,
    pub(super) upstream: Arc<Upstream>,
    pub(super) address: UpstreamAddress,
    /// Its ports. Held until the process has ended.
    pub(super) _ports: Vec<ReservedPort>,
    /// The port by which it reaches its database. Held until the process has ended.
    pub(super) _database: Option<DatabasePort>,
    pub(super) handle: ProcessHandle,
    pub(super) pid: Pid,
    pub(super) kit: InstalledKit,
    /// The settings that it runs with.
    pub(super) settings: Mutex<StoredSettings>,
    pub(super) folder: InstanceFolder,
    pub(super) owner: ProcessOwner,
    pub(super) output: OutputReader,
    /// Identifier of the loaded keys. Zero: unknown.
    pub(super) keys: AtomicU64,
    /// Time of its start.
    pub(super) since: Ticks,
    /// Set when it is killed for its use of resources.
    pub(super) exceeded: Arc<AtomicBool>,
    /// The sockets of a function. Held until the process has ended.
    pub(super) _sockets: Option<FunctionSockets>,
    /// Serializes loading of keys and settings.
    pub(super) loading: tokio::sync::Mutex<()>,
}

/// The sockets by which a function reaches the services and the database of its project.
pub(super) struct FunctionSockets {
    pub(super) _services: FunctionGateway,
    pub(super) _database: FunctionDatabase,
}

impl fmt::Debug for RunningInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningInstance")
            .field("id", &self.id)
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

impl RunningInstance {
    /// Returns whether the instance accepts the tokens of exactly these keys.
    pub(super) fn keys_loaded(&self, keys: &AcceptedKeys) -> bool {
        let needs = &self.kit.manifest.needs;
        let has_keys = needs.postgrest || needs.settings;
        !has_keys || self.keys.load(Ordering::Acquire) == keys.id()
    }
}

/// A task that is aborted on drop.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The state of an instance.
#[derive(Debug, Clone)]
pub(super) enum InstanceState {
    Stopped,
    Starting,
    Running(Arc<RunningInstance>),
    Draining,
    Failed {
        retry_at: Ticks,
        reason: UnavailableReason,
    },
}

/// An instance: its state and its users.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) id: InstanceId,
    state: watch::Sender<InstanceState>,
    uses: AtomicUsize,
    /// Notified when the last use ends.
    unused: Notify,
    last_use: AtomicU64,
    /// Start of each request that is not answered, by its number. Only for functions.
    unanswered: Mutex<BTreeMap<u64, Ticks>>,
    numbers: AtomicU64,
    /// Requests that wait for it.
    pub(super) waiting: AtomicUsize,
    failures: Mutex<FailureHistory>,
    last_error: Mutex<Option<String>>,
    /// Serializes replacements by changes of the settings.
    pub(super) replacing: tokio::sync::Mutex<()>,
}

impl Instance {
    pub(super) fn new(id: InstanceId) -> Self {
        Self {
            id,
            state: watch::Sender::new(InstanceState::Stopped),
            uses: AtomicUsize::new(0),
            unused: Notify::new(),
            last_use: AtomicU64::new(0),
            unanswered: Mutex::default(),
            numbers: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            failures: Mutex::default(),
            last_error: Mutex::new(None),
            replacing: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn state(&self) -> InstanceState {
        self.state.borrow().clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<InstanceState> {
        self.state.subscribe()
    }

    pub(super) fn running(&self) -> Option<Arc<RunningInstance>> {
        match &*self.state.borrow() {
            InstanceState::Running(running) => Some(Arc::clone(running)),
            _ => None,
        }
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    /// Registers a use if the instance runs.
    pub(super) fn begin_use(self: &Arc<Self>, now: Ticks) -> Option<ServiceUse> {
        // Counted before the state is read: a stop changes the state before it reads the count.
        self.uses.fetch_add(1, Ordering::SeqCst);
        if let Some(running) = self.running() {
            self.last_use.store(now, Ordering::Release);
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            if self.id.function.is_some() {
                self.unanswered.lock().insert(number, now);
            }
            return Some(ServiceUse {
                running,
                number,
                instance: Arc::clone(self),
            });
        }
        self.end_use();
        None
    }

    fn answered(&self, number: u64) {
        if self.id.function.is_some() {
            self.unanswered.lock().remove(&number);
        }
    }

    /// Returns the start of the oldest request that is not answered.
    pub(super) fn oldest_unanswered(&self) -> Option<Ticks> {
        self.unanswered.lock().values().next().copied()
    }

    fn end_use(&self) {
        if self.uses.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.unused.notify_waiters();
        }
    }

    /// Returns when no request uses the instance.
    pub(super) async fn unused(&self) {
        loop {
            let notified = self.unused.notified();
            if self.uses.load(Ordering::SeqCst) == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Returns how long a running instance has been without use, in milliseconds. `None` while it
    /// is in use.
    pub(super) fn idle_since(&self, now: Ticks) -> Option<Ticks> {
        (self.uses.load(Ordering::SeqCst) == 0)
            .then(|| now.saturating_sub(self.last_use.load(Ordering::Acquire)))
    }

    /// Returns the failure of the last start, while it must not be tried again.
    pub(super) fn failure(&self, now: Ticks) -> Option<Unavailable> {
        match *self.state.borrow() {
            InstanceState::Failed { retry_at, reason } if now < retry_at => Some(Unavailable {
                reason,
                retry_secs: u32::try_from((retry_at - now).div_ceil(1000)).unwrap_or(u32::MAX),
            }),
            _ => None,
        }
    }

    /// Returns whether the caller must start the instance: it was stopped and is starting now.
    pub(super) fn begin_start(&self, now: Ticks) -> bool {
        self.state.send_if_modified(|state| {
            let may_start = match state {
                InstanceState::Stopped => true,
                InstanceState::Failed { retry_at, .. } => now >= *retry_at,
                _ => false,
            };
            if may_start {
                *state = InstanceState::Starting;
            }
            may_start
        })
    }

    /// Returns the process if the caller must stop it: no other caller does.
    pub(super) fn begin_stop(&self) -> Option<Arc<RunningInstance>> {
        let mut found = None;
        self.state.send_if_modified(|state| match state {
            InstanceState::Running(running) => {
                found = Some(Arc::clone(running));
                *state = InstanceState::Draining;
                true
            }
            _ => false,
        });
        found
    }

    /// Sets the state after a start.
    pub(super) fn started(&self, running: Arc<RunningInstance>, now: Ticks) {
        self.last_use.store(now, Ordering::Release);
        *self.last_error.lock() = None;
        self.state.send_replace(InstanceState::Running(running));
    }

    /// Sets the state after the process was stopped.
    pub(super) fn stopped(&self) {
        self.state.send_replace(InstanceState::Stopped);
    }

    /// Marks a stopped instance as starting again, for the caller that stopped it.
    pub(super) fn restarting(&self) {
        self.state.send_replace(InstanceState::Starting);
    }

    /// Sets the state after a failed start.
    pub(super) fn failed(&self, reason: UnavailableReason, why: Option<String>, now: Ticks) {
        let (retry_at, reason) = if reason.is_fault() {
            let mut failures = self.failures.lock();
            let pause = failures.record(now);
            let reason = if failures.is_crashing() {
                UnavailableReason::Crashing
            } else {
                reason
            };
            (now + pause, reason)
        } else {
            // The reason is elsewhere, and may end at any time.
            (now + OTHER_PAUSE, reason)
        };
        *self.last_error.lock() = why;
        self.state
            .send_replace(InstanceState::Failed { retry_at, reason });
    }

    /// Records the end of a process. Does nothing if it was stopped or replaced.
    pub(super) fn ended(&self, pid: Pid, why: Option<String>, now: Ticks) -> bool {
        let is_current = self.running().is_some_and(|running| running.pid == pid);
        if is_current && self.id.service == Service::Pooler {
            // It was ready, and holds no state: the next connection starts another at once.
            *self.last_error.lock() = why;
            self.stopped();
        } else if is_current {
            self.failed(UnavailableReason::Failed, why, now);
        }
        is_current
    }

    /// Lets the next request start the instance at once: its settings or its kit changed.
    pub(super) fn forget_failure(&self) {
        self.failures.lock().0.clear();
        self.state.send_if_modified(|state| {
            let failed = matches!(state, InstanceState::Failed { .. });
            if failed {
                *state = InstanceState::Stopped;
            }
            failed
        });
    }

    /// Returns whether the entry holds nothing that a new one would not.
    pub(super) fn is_idle_entry(&self) -> bool {
        matches!(*self.state.borrow(), InstanceState::Stopped)
            && self.failures.lock().0.is_empty()
            && self.waiting.load(Ordering::Acquire) == 0
            && self.uses.load(Ordering::SeqCst) == 0
    }
}

/// A use of an instance: while it exists, the instance is not stopped as idle.
#[derive(Debug)]
pub struct ServiceUse {
    pub(super) running: Arc<RunningInstance>,
    number: u64,
    instance: Arc<Instance>,
}

impl ServiceUse {
    /// The address of the instance.
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.running.upstream
    }

    /// Whether the process was killed for its use of resources.
    pub fn has_exceeded(&self) -> bool {
        self.running.exceeded.load(Ordering::Acquire)
    }

    /// Waits a moment for the end of the process. Returns whether it used too many resources.
    pub async fn end_exceeded(&self) -> bool {
        let ended = tokio::time::timeout(END_MAX, self.running.handle.ended()).await;
        if ended.is_ok() {
            // Its last lines tell the reason.
            self.running.output.last_line().await;
        }
        self.has_exceeded()
    }

    /// Marks the request as answered: only its response is under way.
    pub fn answered(&self) {
        self.instance.answered(self.number);
    }
}

impl Drop for ServiceUse {
    fn drop(&mut self) {
        self.answered();
        self.instance.end_use();
    }
}

/// Times of the last failures, from which the pause before the next start follows.
#[derive(Debug, Default)]
struct FailureHistory(VecDeque<Ticks>);

impl FailureHistory {
    /// Records a failure. Returns the pause before the next start, in milliseconds: one second,
    /// doubled by each further failure within ten minutes; after five failures one minute.
    fn record(&mut self, now: Ticks) -> Ticks {
        while self
            .0
            .front()
            .is_some_and(|then| now.saturating_sub(*then) >= FAILURE_WINDOW)
        {
            self.0.pop_front();
        }
        if self.0.len() >= FAILURES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(now);
        if self.is_crashing() {
            PAUSE_MAX
        } else {
            1000 << (self.0.len() - 1)
        }
    }

    fn is_crashing(&self) -> bool {
        self.0.len() >= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> Arc<Instance> {
        Arc::new(Instance::new(InstanceId {
            project: ProjectId(1),
            reference: "abcdefghijklmnopqrst".parse().unwrap(),
            service: Service::Rest,
            function: None,
        }))
    }

    #[test]
    fn pause_doubles_and_ends_at_one_start_a_minute() {
        let mut history = FailureHistory::default();
        let pauses: Vec<_> = (0..7).map(|n| history.record(n * 1000)).collect();
        assert_eq!(pauses, [1000, 2000, 4000, 8000, 60_000, 60_000, 60_000]);
        assert_eq!(history.record(FAILURE_WINDOW * 3), 1000, "forgotten");
    }

    #[test]
    fn one_of_many_callers_starts_the_instance() {
        let instance = instance();
        let starters = (0..10).filter(|_| instance.begin_start(0)).count();
        assert_eq!(starters, 1);
        assert!(instance.begin_use(0).is_none() && instance.begin_stop().is_none());
    }

    #[test]
    fn failed_start_is_not_repeated_before_its_pause() {
        let instance = instance();
        assert!(instance.begin_start(0));
        instance.failed(UnavailableReason::Failed, Some("why".to_owned()), 0);
        assert!(!instance.begin_start(999));
        let failure = instance.failure(1).unwrap();
        assert_eq!(
            (failure.reason, failure.retry_secs),
            (UnavailableReason::Failed, 1)
        );
        assert_eq!(instance.last_error().as_deref(), Some("why"));
        assert!(instance.failure(1000).is_none() && instance.begin_start(1000));
        for _ in 0..4 {
            instance.failed(UnavailableReason::Failed, None, 2000);
        }
        let failure = instance.failure(2000).unwrap();
        assert_eq!(
            (failure.reason, failure.retry_secs),
            (UnavailableReason::Crashing, 60)
        );
        // A missing database is not a fault of the program.
        instance.failed(UnavailableReason::DatabaseAway, None, 2000);
        let failure = instance.failure(2000).unwrap();
        assert_eq!((failure.retry_secs, instance.begin_start(3000)), (1, true));
        instance.failed(UnavailableReason::Off, None, 3000);
        instance.forget_failure();
        assert!(instance.begin_start(3000), "the settings changed");
    }
}
