//! Requests that wait for events.
//!
//! One task of the process reads the heads of all logs that requests wait for, when the control
//! database announces events, and passes the numbers on. An event costs one query, not one for
//! each request.

use std::{collections::HashMap, sync::Arc, time::Duration};

use gantry_base::{
    ids::{OrganizationId, UserId},
    net::connection_limit::{ConnectionLimit, ConnectionPermit},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::platform::{
    context::PlatformContext,
    db::Db,
    error::{Context, Error},
};

/// Waiting requests of this process.
const WAITERS_MAX: usize = 1_000;
/// Waiting requests of one organization.
const ORGANIZATION_WAITERS_MAX: usize = 64;
/// Waiting requests of one user.
const USER_WAITERS_MAX: usize = 16;
/// `Retry-After` if there are too many.
const RETRY: Duration = Duration::from_secs(5);
/// Interval of reading the heads without an announcement, which may be lost.
const INTERVAL: Duration = Duration::from_secs(5);

/// The requests of this process that wait for events.
pub struct EventHub {
    /// Number of the last known event of each organization that is waited for.
    heads: Mutex<HashMap<OrganizationId, watch::Sender<i64>>>,
    announced: Notify,
    /// Number of changes of tokens and members.
    access: watch::Sender<u64>,
    all: Arc<Semaphore>,
    organizations: Arc<ConnectionLimit<OrganizationId>>,
    users: Arc<ConnectionLimit<UserId>>,
    shutdown: CancellationToken,
}

impl Default for EventHub {
    fn default() -> Self {
        Self {
            heads: Mutex::default(),
            announced: Notify::new(),
            access: watch::Sender::new(0),
            all: Arc::new(Semaphore::new(WAITERS_MAX)),
            organizations: ConnectionLimit::new(ORGANIZATION_WAITERS_MAX),
            users: ConnectionLimit::new(USER_WAITERS_MAX),
            shutdown: CancellationToken::new(),
        }
    }
}

/// A place among the waiting requests. It is released on drop.
pub struct EventWaiter {
    context: PlatformContext,
    organization: OrganizationId,
    head: watch::Receiver<i64>,
    access: watch::Receiver<u64>,
    _all: OwnedSemaphorePermit,
    _organization: ConnectionPermit<OrganizationId>,
    _user: ConnectionPermit<UserId>,
}

/// The reason why a request has waited long enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// The organization has a later event.
    Event,
    /// Tokens or members changed: the caller may have lost access.
    Access,
    /// Neither, within the time.
    Timeout,
    /// The server stops.
    Shutdown,
}

impl EventHub {
    /// Returns a place to wait for events of an organization. Numbers are known from now on.
    ///
    /// Errors: [`Error::Busy`] if too many requests wait, of the user, of the organization or in
    /// all.
    pub fn waiter(
        &self,
        context: &PlatformContext,
        organization: OrganizationId,
        user: UserId,
    ) -> Result<EventWaiter, Error> {
        let busy = || Error::Busy { retry: RETRY };
        let of_user = self.users.try_acquire(user).ok_or_else(busy)?;
        let of_organization = self.organizations.try_acquire(organization);
        let of_organization = of_organization.ok_or_else(busy)?;
        let all = Arc::clone(&self.all).try_acquire_owned();
        let all = all.map_err(|_| busy())?;
        let mut heads = self.heads.lock();
        let head = heads
            .entry(organization)
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe();
        Ok(EventWaiter {
            context: context.clone(),
            organization,
            head,
            access: self.access.subscribe(),
            _all: all,
            _organization: of_organization,
            _user: of_user,
        })
    }

    /// Lets the task read the heads.
    pub fn announce(&self) {
        self.announced.notify_one();
    }

    /// Lets waiting requests check the access of their callers.
    pub fn access_changed(&self) {
        self.access.send_modify(|changes| *changes += 1);
    }

    /// Ends all waiting requests, for a shutdown.
    pub fn close(&self) {
        self.shutdown.cancel();
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        WAITERS_MAX - self.all.available_permits()
    }

    async fn refresh(&self, db: &Db) -> Result<(), Error> {
        let ids: Vec<i64> = {
            let mut heads = self.heads.lock();
            heads.retain(|_, head| head.receiver_count() > 0);
            heads.keys().map(|id| id.0).collect()
        };
        if ids.is_empty() {
            return Ok(());
        }
        let sql = "select organization_id, number from event_heads where organization_id = any($1)";
        let rows = db.query(sql, &[&ids]).await.context("reading events")?;
        let heads = self.heads.lock();
        for row in &rows {
            let number: i64 = row.get(1);
            if let Some(head) = heads.get(&OrganizationId(row.get(0))) {
                head.send_if_modified(|known| {
                    let is_later = number > *known;
                    *known = number.max(*known);
                    is_later
                });
            }
        }
        Ok(())
    }
}

impl EventWaiter {
    /// Waits until the organization has an event after `number`, for at most `time`.
    pub async fn past(&mut self, number: i64, time: Duration) -> WaitEnd {
        let hub = &self.context.events;
        let waited = async {
            tokio::select! {
                biased;
                () = hub.shutdown.cancelled() => WaitEnd::Shutdown,
                // The sender lives as long as the context.
                _ = self.access.changed() => WaitEnd::Access,
                _ = self.head.wait_for(|head| *head > number) => WaitEnd::Event,
            }
        };
        timeout(time, waited).await.unwrap_or(WaitEnd::Timeout)
    }
}

impl Drop for EventWaiter {
    fn drop(&mut self) {
        let mut heads = self.context.events.heads.lock();
        // This receiver is dropped after this function.
        let is_last = heads
            .get(&self.organization)
            .is_some_and(|head| head.receiver_count() <= 1);
        if is_last {
            heads.remove(&self.organization);
        }
    }
}

/// Passes numbers of new events on to waiting requests. Never returns.
pub async fn run(context: PlatformContext) {
    let hub = &context.events;
    loop {
        // An announcement during the query is not lost: the next pass follows at once.
        let _ = timeout(INTERVAL, hub.announced.notified()).await;
        if let Err(error) = hub.refresh(&context.db).await {
            tracing::debug!(%error, "heads of events could not be read; retrying");
        }
    }
}
