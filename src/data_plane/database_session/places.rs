//! Places for the sessions of SQL over HTTP, migrations and generated types: a bounded number for
//! each project, handed out in the order of the requests (decision 0167).

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::base::{error::Error, ids::ProjectId};

/// Longest time that a request waits for a place, and for room in a full server.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);
/// Requests that wait for a place of one project.
const WAITING_MAX: usize = 500;
/// Value of `Retry-After` for a request that got no place.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Entries from which those without sessions are removed.
const PROJECTS_MAX: usize = 1000;

/// The places of all projects for one purpose.
pub struct SessionPlaces {
    /// Places of a project.
    count: usize,
    projects: Mutex<HashMap<ProjectId, Arc<ProjectPlaces>>>,
}

/// The places of one project.
#[derive(Debug)]
pub struct ProjectPlaces {
    /// Fair: a permit goes to the request that has waited for longest.
    sessions: Arc<Semaphore>,
    /// Permits of requests that wait.
    requests: Semaphore,
    count: usize,
}

impl SessionPlaces {
    /// Creates `count` places for each project.
    pub fn new(count: u32) -> Self {
        Self {
            count: usize::try_from(count).unwrap_or(usize::MAX),
            projects: Mutex::default(),
        }
    }

    /// Returns the places of a project.
    pub fn of(&self, project: ProjectId) -> Arc<ProjectPlaces> {
        let mut all = self.projects.lock();
        if all.len() >= PROJECTS_MAX {
            all.retain(|_, places| Arc::strong_count(places) > 1 || places.is_used());
        }
        let places = all.entry(project);
        Arc::clone(places.or_insert_with(|| Arc::new(ProjectPlaces::new(self.count))))
    }
}

impl std::fmt::Debug for SessionPlaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionPlaces").finish_non_exhaustive()
    }
}

impl ProjectPlaces {
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

    /// Returns a place, after those that were requested before.
    ///
    /// Errors: [`Error::Busy`] after [`WAIT_MAX`], or at once if too many requests wait.
    pub(in crate::data_plane) async fn acquire(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.acquire_within(WAIT_MAX).await
    }

    async fn acquire_within(&self, patience: Duration) -> Result<OwnedSemaphorePermit, Error> {
        let busy = || Error::Busy { retry: RETRY };
        let _waiting = self.requests.try_acquire().map_err(|_| busy())?;
        let place = Arc::clone(&self.sessions).acquire_owned();
        // The semaphore is never closed.
        let acquired = timeout(patience, place).await;
        acquired.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn place_is_given_in_order_and_refused_after_the_wait() {
        let all = SessionPlaces::new(4);
        let places = all.of(ProjectId(1));
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(places.acquire().await.unwrap());
        }
        let refused = places.acquire_within(Duration::ZERO).await;
        assert!(matches!(refused, Err(Error::Busy { .. })));
        drop(all.of(ProjectId(2)).acquire().await.unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..3 {
            let (places, order) = (Arc::clone(&places), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let place = places.acquire().await.unwrap();
                order.lock().push(number);
                place
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
        let all = SessionPlaces::new(4);
        for project in 0..=i64::try_from(PROJECTS_MAX).unwrap() {
            all.of(ProjectId(project));
        }
        assert!(all.projects.lock().len() < PROJECTS_MAX);
    }
}
