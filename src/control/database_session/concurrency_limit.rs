//! Limits on concurrent sessions of a project for one purpose, such as SQL over HTTP. Requests over
//! the limit wait in their order (decision 0167).

use std::{collections::HashMap, sync::Arc, time::Duration};

use gantry_base::ids::ProjectId;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::platform::error::Error;

/// Longest time that a request waits for a permit, and for room in a full server.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);
/// Requests that wait for a permit of one project.
const WAITING_MAX: usize = 500;
/// Value of `Retry-After` for a request that got no permit.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Entries from which those without sessions are removed.
const PROJECTS_MAX: usize = 1000;

/// The session limits of all projects for one purpose.
pub struct ConcurrencyLimits {
    /// Maximum number of concurrent sessions of a project.
    count: usize,
    projects: Mutex<HashMap<ProjectId, Arc<ConcurrencyLimit>>>,
}

/// A limit on concurrent sessions of one project. A permit is released on drop.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    /// Fair: a permit goes to the request that has waited for longest.
    sessions: Arc<Semaphore>,
    /// Permits of requests that wait.
    requests: Semaphore,
    count: usize,
}

impl ConcurrencyLimits {
    /// Creates limits of `count` sessions for each project.
    pub fn new(count: u32) -> Self {
        Self {
            count: usize::try_from(count).unwrap_or(usize::MAX),
            projects: Mutex::default(),
        }
    }

    /// Returns the limit of a project.
    pub fn of(&self, project: ProjectId) -> Arc<ConcurrencyLimit> {
        let mut all = self.projects.lock();
        if all.len() >= PROJECTS_MAX {
            all.retain(|_, limit| Arc::strong_count(limit) > 1 || limit.is_used());
        }
        let limit = all.entry(project);
        Arc::clone(limit.or_insert_with(|| Arc::new(ConcurrencyLimit::new(self.count))))
    }
}

impl std::fmt::Debug for ConcurrencyLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConcurrencyLimits").finish_non_exhaustive()
    }
}

impl ConcurrencyLimit {
    fn new(count: usize) -> Self {
        Self {
            sessions: Arc::new(Semaphore::new(count)),
            requests: Semaphore::new(WAITING_MAX),
            count,
        }
    }

    fn is_used(&self) -> bool {
        self.sessions.available_permits() < self.count
    }

    /// Waits for a permit. Requests get one in their order.
    ///
    /// Errors: [`Error::Busy`] after [`WAIT_MAX`], or at once if too many requests wait.
    pub(in crate::control) async fn acquire(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.acquire_within(WAIT_MAX).await
    }

    async fn acquire_within(&self, patience: Duration) -> Result<OwnedSemaphorePermit, Error> {
        let busy = || Error::Busy { retry: RETRY };
        let _waiting = self.requests.try_acquire().map_err(|_| busy())?;
        let permit = Arc::clone(&self.sessions).acquire_owned();
        // The semaphore is never closed.
        let acquired = timeout(patience, permit).await;
        acquired.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn permits_are_given_in_order_and_refused_after_the_wait() {
        let all = ConcurrencyLimits::new(4);
        let limit = all.of(ProjectId(1));
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(limit.acquire().await.unwrap());
        }
        let refused = limit.acquire_within(Duration::ZERO).await;
        assert!(matches!(refused, Err(Error::Busy { .. })));
        drop(all.of(ProjectId(2)).acquire().await.unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..3 {
            let (limit, order) = (Arc::clone(&limit), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let permit = limit.acquire().await.unwrap();
                order.lock().push(number);
                permit
            }));
            tokio::task::yield_now().await;
        }
        held.truncate(3);
        for task in waiting {
            drop(task.await.unwrap());
        }
        assert_eq!(*order.lock(), [0, 1, 2]);
    }

    #[test]
    fn entries_without_sessions_are_removed() {
        let all = ConcurrencyLimits::new(4);
        for project in 0..=i64::try_from(PROJECTS_MAX).unwrap() {
            all.of(ProjectId(project));
        }
        assert!(all.projects.lock().len() < PROJECTS_MAX);
    }
}
