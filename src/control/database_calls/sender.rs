//! Sends the calls of one project.
//!
//! A request stays in its queue until it is answered. Its row is deleted in the transaction that
//! stores the response. So a request that was answered is not sent again after a crash, and one
//! that was in flight is.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use gantry_base::ids::{ProjectId, ProjectRef};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{
    answer::CallAnswer,
    call::QueuedCall,
    call_log::{CallTarget, EndedCall},
    queue::CallQueue,
    receivers::Receivers,
    send,
    state::{CallPlaces, CallResult},
};
use crate::{control::context::ControlContext, platform::error::Error};

/// Calls of a project that are read and not stored, at most.
const CALLS_MAX: usize = 32;
/// Bodies of those calls, in bytes. The last one may exceed it.
const BYTES_MAX: usize = 8 << 20;
/// Responses of one transaction, in bytes. The last one may exceed it.
const STORED_BYTES_MAX: usize = 4 << 20;
/// Shortest time between two looks at a queue.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Interval of looks without a notification, and of the removal of old responses.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of looks at a queue without the trigger that announces requests. It is not created
/// here: it would be part of the tenant's schema, and keep the extension from being dropped.
const UNANNOUNCED_INTERVAL: Duration = Duration::from_secs(1);
/// Answered requests that are remembered.
const REMEMBERED_MAX: usize = 10_000;
/// Errors of PostgreSQL that end by themselves: a lock, a deadlock, a timeout, a full disk.
const TEMPORARY: [&str; 5] = ["55P03", "40P01", "40001", "57014", "53100"];

/// Sends the calls of one project, over one session.
pub(super) struct Sender {
    context: ControlContext,
    project: ProjectId,
    reference: ProjectRef,
    queue: CallQueue,
    places: CallPlaces,
    calls: JoinSet<(CallAnswer, EndedCall)>,
    receivers: Receivers,
    /// Requests that are in flight or not stored, with the size of their bodies.
    open: HashMap<i64, usize>,
    /// Responses that are not stored yet.
    pub(super) unstored: Vec<CallAnswer>,
    /// Requests that were answered and removed. One that returns was not removed.
    answered: HashSet<i64>,
    /// Whether the queue may have further requests.
    more: bool,
    next_look: Instant,
    /// Number of requests that were removed from the queue.
    pub(super) removed: u64,
}

impl Sender {
    /// Returns a sender. `unstored` are responses that an earlier sender could not store.
    pub(super) fn new(
        context: &ControlContext,
        (project, reference): (ProjectId, &ProjectRef),
        queue: CallQueue,
        unstored: Vec<CallAnswer>,
    ) -> Self {
        Self {
            context: context.clone(),
            project,
            reference: reference.clone(),
            queue,
            places: context.database_calls.places(),
            calls: JoinSet::new(),
            receivers: Receivers::default(),
            open: unstored.iter().map(|answer| (answer.id, 0)).collect(),
            unstored,
            answered: HashSet::new(),
            more: true,
            next_look: Instant::now(),
            removed: 0,
        }
    }

    /// Sends calls until the session ends, or the tables cannot be used.
    pub(super) async fn run(&mut self) -> Result<(), Error> {
        let mut look = interval(if self.queue.is_announced {
            LOOK_INTERVAL
        } else {
            UNANNOUNCED_INTERVAL
        });
        let mut next_expiry = Instant::now();
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.store().await?;
            while self.more && self.has_room() {
                self.take().await?;
            }
            let busy = self.more || !self.open.is_empty();
            self.context.database_calls.set_busy(self.project, busy);
            tokio::select! {
                Some(ended) = self.calls.join_next(), if !self.calls.is_empty() => {
                    self.collect(ended.ok());
                }
                notified = self.queue.notified() => {
                    notified?;
                    self.more = true;
                }
                _ = look.tick() => {
                    self.more = true;
                    if Instant::now() < next_expiry {
                        continue;
                    }
                    next_expiry = Instant::now() + LOOK_INTERVAL;
                    // The tables of a tenant may forbid it; calls are sent nevertheless.
                    if let Err(Error::DatabaseUnreachable) = self.queue.expire().await {
                        return Err(Error::DatabaseUnreachable);
                    }
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        self.open.len() < CALLS_MAX && self.open_bytes() < BYTES_MAX
    }

    fn open_bytes(&self) -> usize {
        self.open.values().sum()
    }

    /// Reads further requests and begins to send them.
    async fn take(&mut self) -> Result<(), Error> {
        // A tenant can notify at any rate.
        sleep_until(self.next_look).await;
        self.next_look = Instant::now() + LOOK_PAUSE;
        let count = CALLS_MAX.saturating_sub(self.open.len());
        let bytes = BYTES_MAX.saturating_sub(self.open_bytes());
        let excluded = self.open.keys().copied().chain(self.receivers.parked());
        let calls = self.queue.take(excluded, count, bytes).await?;
        self.more = calls.len() >= count;
        for call in calls {
            self.begin(call)?;
        }
        self.more |= !self.has_room();
        Ok(())
    }

    fn begin(&mut self, call: QueuedCall) -> Result<(), Error> {
        if self.answered.contains(&call.id) {
            // Sent again and again otherwise. A trigger or a rule of the tenant keeps the row.
            let problem = "net.http_request_queue keeps requests that were answered";
            return Err(Error::Rejected(problem.into()));
        }
        let target = CallTarget::of(&call);
        if self.open.contains_key(&call.id) || !self.receivers.admit(call.id, &target.host) {
            // Two rows with one id are both removed with the first response.
            return Ok(());
        }
        self.open.insert(call.id, call.bytes());
        let reference = self.reference.clone();
        let (context, project) = (self.context.clone(), self.project);
        let places = self.places.clone();
        self.calls.spawn(async move {
            let _place = places.enter().await;
            let (at, begun) = (context.clock.now(), context.clock.ticks());
            let answer = send::send(&context, project, call).await;
            let took_millis = context.clock.ticks().saturating_sub(begun);
            let ended = EndedCall::new((at, took_millis), reference, target, &answer);
            (answer, ended)
        });
        Ok(())
    }

    /// Collects a response, and those that are there as well, up to the size of a transaction.
    fn collect(&mut self, first: Option<(CallAnswer, EndedCall)>) {
        let mut bytes = 0;
        let mut next = first;
        while let Some((answer, ended)) = next {
            let is_answered = answer.status().is_some();
            self.more |= self.receivers.end(&ended.target.host, is_answered);
            self.context.database_calls.note(ended);
            bytes += answer.bytes();
            self.context.database_calls.count(answer.result, 1);
            self.unstored.push(answer);
            if bytes >= STORED_BYTES_MAX {
                break;
            }
            next = self.calls.try_join_next().and_then(Result::ok);
        }
    }

    /// Stores the collected responses. If the table of responses does not accept them, they are
    /// dropped and their requests removed, unless a later attempt can succeed.
    async fn store(&mut self) -> Result<(), Error> {
        if self.unstored.is_empty() {
            return Ok(());
        }
        match self.queue.record(&self.unstored).await {
            Ok(removed) => self.removed += removed,
            Err(Error::Sql(text)) if !is_temporary(&text) => {
                let ids = self.unstored.iter().map(|answer| answer.id);
                self.queue.remove(ids).await?;
                let count = self.unstored.len();
                self.context
                    .database_calls
                    .count(CallResult::Unstored, count);
            }
            Err(error) => return Err(error),
        }
        if self.answered.len() >= REMEMBERED_MAX {
            self.answered.clear();
        }
        for answer in self.unstored.drain(..) {
            self.open.remove(&answer.id);
            self.answered.insert(answer.id);
        }
        Ok(())
    }
}

/// Returns whether a statement that failed with this text may succeed later.
fn is_temporary(text: &str) -> bool {
    TEMPORARY.iter().any(|code| text.contains(code))
}
