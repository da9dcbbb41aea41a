//! The states of an instance.
//!
//! ```text
//! stopped ─request→ starting ─ready→ running ─idle, settings→ draining ─ended→ stopped
//!                    │ failed           └─ended→ draining ─→ starting, or stopped
//!                    └────────→ failed      after a pause the next request starts it again
//! ```
//!
//! Only a start that never became ready is followed by a pause. A process that served is replaced
//! at once (decision 0170).

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use gantry_base::clock::Ticks;
use gantry_node::{
    kits::kit::InstalledKit,
    services::{database_port::DatabasePort, ports::ReservedPort},
    supervisor::{ProcessHandle, ProcessOwner},
};
use parking_lot::Mutex;
use rustix::process::Pid;
use tokio::sync::{Notify, watch};

use super::{
    failures::FailureHistory, folder::InstanceFolder, instance_id::InstanceId,
    output::OutputReader, pooler::retired::RetiredPooler, requests::ProcessRequests,
    rest::stored_settings::StoredSettings,
};
use crate::{
    control::services::task::AbortOnDrop,
    proxy::{
        accepted_keys::AcceptedKeys,
        service_caller::ServiceCaller,
        service_proxy::{
            FunctionGateway,
            upstreams::{Upstream, UpstreamAddress},
        },
        unavailable::{Unavailable, UnavailableReason},
    },
};

/// Longest time until the process behind a broken connection has ended. A process that used up its
/// memory writes its reason and frees the memory meanwhile.
const END_MAX: Duration = Duration::from_secs(5);
/// Pause after a start that failed for a reason outside the program, in milliseconds.
const OTHER_PAUSE: Ticks = 1000;

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
    /// The requests that it serves.
    pub(super) requests: ProcessRequests,
    /// Whether the reason of its unexpected end is known.
    pub(super) settled: watch::Sender<bool>,
    /// Serializes loading of keys and settings.
    pub(super) loading: tokio::sync::Mutex<()>,
    /// Serializes pauses of a pooler.
    pub(super) pausing: tokio::sync::Mutex<()>,
}

/// The sockets by which a function reaches the services and the database of its project.
pub(super) struct FunctionSockets {
    pub(super) _services: FunctionGateway,
    pub(super) _database: AbortOnDrop,
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
    /// Requests that wait for it.
    pub(super) waiting: AtomicUsize,
    failures: Mutex<FailureHistory>,
    last_error: Mutex<Option<String>>,
    /// Reason of the last unexpected end of a process that was ready.
    last_end: Mutex<Option<String>>,
    /// Serializes replacements by changes of the settings.
    pub(super) replacing: tokio::sync::Mutex<()>,
    /// The previous process of a pooler, while it has clients.
    pub(super) retired: Mutex<Option<RetiredPooler>>,
}

impl Instance {
    pub(super) fn new(id: InstanceId) -> Self {
        Self {
            id,
            state: watch::Sender::new(InstanceState::Stopped),
            uses: AtomicUsize::new(0),
            unused: Notify::new(),
            last_use: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            failures: Mutex::default(),
            last_error: Mutex::new(None),
            last_end: Mutex::new(None),
            replacing: tokio::sync::Mutex::new(()),
            retired: Mutex::new(None),
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

    pub(super) fn last_end(&self) -> Option<String> {
        self.last_end.lock().clone()
    }

    /// Registers a use if the instance runs.
    pub(super) fn begin_use(
        self: &Arc<Self>,
        now: Ticks,
        caller: Option<ServiceCaller>,
    ) -> Option<ServiceUse> {
        // Counted before the state is read: a stop changes the state before it reads the count.
        self.uses.fetch_add(1, Ordering::SeqCst);
        if let Some(running) = self.running() {
            self.last_use.store(now, Ordering::Release);
            let number = running.requests.begin(now, caller);
            return Some(ServiceUse {
                running,
                number,
                caller,
                instance: Arc::clone(self),
            });
        }
        self.end_use();
        None
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

    /// Ends the uses of a process that has ended. Returns whether it was the current one, which was
    /// not stopped or replaced; the caller sets the next state.
    pub(super) fn begin_end(&self, pid: Pid) -> bool {
        self.state.send_if_modified(|state| {
            let is_current = matches!(state, InstanceState::Running(one) if one.pid == pid);
            if is_current {
                *state = InstanceState::Draining;
            }
            is_current
        })
    }

    /// Sets the state after the unexpected end of a process that was ready. It may be started again
    /// at `start_at`.
    pub(super) fn crashed(&self, why: String, start_at: Ticks, now: Ticks) {
        *self.last_end.lock() = Some(why.clone());
        *self.last_error.lock() = Some(why);
        self.state.send_replace(if start_at > now {
            InstanceState::Failed {
                retry_at: start_at,
                reason: UnavailableReason::Slowed,
            }
        } else {
            InstanceState::Stopped
        });
    }

    /// Lets the next request start the instance at once: its settings or its kit changed.
    pub(super) fn forget_failure(&self) {
        self.failures.lock().clear();
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
            && self.failures.lock().is_empty()
            && self.waiting.load(Ordering::Acquire) == 0
            && self.uses.load(Ordering::SeqCst) == 0
    }
}

/// A use of an instance: while it exists, the instance is not stopped as idle.
#[derive(Debug)]
pub struct ServiceUse {
    pub(super) running: Arc<RunningInstance>,
    number: u64,
    pub(super) caller: Option<ServiceCaller>,
    pub(super) instance: Arc<Instance>,
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
        self.has_ended().await;
        self.has_exceeded()
    }

    /// Waits a moment for the end of the process. Returns whether it ended, with the reason known.
    pub(super) async fn has_ended(&self) -> bool {
        let mut settled = self.running.settled.subscribe();
        let settled = settled.wait_for(|settled| *settled);
        matches!(tokio::time::timeout(END_MAX, settled).await, Ok(Ok(_)))
    }

    /// Marks the request as answered: only its response is under way.
    pub fn answered(&self) {
        self.running.requests.answered(self.number);
    }
}

impl Drop for ServiceUse {
    fn drop(&mut self) {
        self.running.requests.end(self.number);
        self.instance.end_use();
    }
}

#[cfg(test)]
mod tests {
    use gantry_base::ids::ProjectId;
    use gantry_node::kits::Service;

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
    fn one_of_many_callers_starts_the_instance() {
        let instance = instance();
        let starters = (0..10).filter(|_| instance.begin_start(0)).count();
        assert_eq!(starters, 1);
        assert!(instance.begin_use(0, None).is_none() && instance.begin_stop().is_none());
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

    #[test]
    fn end_of_a_ready_process_is_followed_by_a_start_at_once() {
        let instance = instance();
        for now in 0..100 {
            assert!(instance.begin_start(now), "no pause");
            instance.crashed("why".to_owned(), now, now);
            assert!(instance.failure(now).is_none());
        }
        assert_eq!(instance.last_end().as_deref(), Some("why"));
        instance.crashed("why".to_owned(), 5000, 0);
        let failure = instance.failure(0).unwrap();
        assert_eq!(
            (failure.reason, failure.retry_secs),
            (UnavailableReason::Slowed, 5)
        );
        assert!(!instance.begin_start(4999) && instance.begin_start(5000));
    }
}
