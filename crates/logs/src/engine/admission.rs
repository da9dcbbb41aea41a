//! Admission of queries: fair turns between projects.
//!
//! Queries over little data run in a lane of their own, each on its own thread, so that they never
//! wait for long ones or for each other. In both lanes a project can hold all slots but one, and
//! only a few of its queries wait at a time. A query that waits too long fails with
//! [`QueryError::Busy`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore},
    time,
};

use super::{bounds::Bounds, budget::MemoryBudget};
use crate::answer::QueryError;

/// A lane of queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// Queries over at most [`Bounds::short_bytes`].
    Short,
    Long,
}

/// Reserves a thread of the short lane until it is dropped.
#[derive(Debug)]
struct ShortThread {
    number: usize,
    free: Arc<Mutex<Vec<usize>>>,
}

impl Drop for ShortThread {
    fn drop(&mut self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.number);
    }
}

/// Slots and memory shared by the queries of one project.
#[derive(Debug)]
struct ProjectQuota {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    memory: Arc<MemoryBudget>,
}

/// Admits queries within the limits of [`Bounds`].
#[derive(Debug)]
pub(super) struct AdmissionControl {
    bounds: Bounds,
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// Numbers of the unused threads of the short lane.
    short_threads: Arc<Mutex<Vec<usize>>>,
    memory: Arc<MemoryBudget>,
    /// Quotas of projects with running or waiting queries.
    quotas: Mutex<HashMap<String, Weak<ProjectQuota>>>,
}

/// Permits one query to run. It is dropped when the query's work has ended, not when its client
/// disconnects.
#[derive(Debug)]
// The thread is declared before the permits, so that it is free when its slot is.
pub(super) struct QueryPermit {
    pub(super) memory: Arc<MemoryBudget>,
    /// `None` in the long lane.
    short_thread: Option<ShortThread>,
    _quota: Arc<ProjectQuota>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl QueryPermit {
    /// Returns the number of the query's thread in the short lane, or `None` in the long lane.
    pub(super) fn short_thread(&self) -> Option<usize> {
        self.short_thread.as_ref().map(|thread| thread.number)
    }
}

impl AdmissionControl {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            short: Arc::new(Semaphore::new(bounds.running_short)),
            long: Arc::new(Semaphore::new(bounds.running)),
            waiting: Arc::new(Semaphore::new(bounds.waiting)),
            short_threads: Arc::new(Mutex::new((0..bounds.running_short).collect())),
            memory: MemoryBudget::new(bounds.memory_all, None),
            quotas: Mutex::default(),
            bounds,
        }
    }

    /// Waits for a free slot for a query over about `bytes`. Fails after [`Bounds::wait`], and at
    /// once if too many queries wait.
    pub(super) async fn admit(&self, project: &str, bytes: u64) -> Result<QueryPermit, QueryError> {
        let busy = QueryError::Busy(self.bounds.wait);
        let quota = self.quota(project);
        let Ok(_own_turn) = Arc::clone(&quota.waiting).try_acquire_owned() else {
            return Err(busy);
        };
        let Ok(_turn) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return Err(busy);
        };
        let slot = async {
            if bytes > self.bounds.short_bytes {
                return self.slot(&quota, Lane::Long).await;
            }
            // A short query uses the long lane too, but not the other way round.
            tokio::select! {
                biased;
                slot = self.slot(&quota, Lane::Short) => slot,
                slot = self.slot(&quota, Lane::Long) => slot,
            }
        };
        let (lane, permits) = time::timeout(self.bounds.wait, slot)
            .await
            .map_err(|_| busy)?
            .map_err(|_| QueryError::Backend("the query engine is shutting down".into()))?;
        Ok(QueryPermit {
            memory: MemoryBudget::new(self.bounds.memory_query, Some(Arc::clone(&quota.memory))),
            short_thread: match lane {
                Lane::Short => self.short_thread(),
                Lane::Long => None,
            },
            _quota: quota,
            _permits: permits,
        })
    }

    /// Returns an unused thread. There is one for each slot of the short lane.
    fn short_thread(&self) -> Option<ShortThread> {
        let free = Arc::clone(&self.short_threads);
        let number = free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(ShortThread { number, free })
    }

    /// Waits for a slot of a lane, first among the queries of the project, then among all.
    async fn slot(
        &self,
        quota: &ProjectQuota,
        lane: Lane,
    ) -> Result<(Lane, [OwnedSemaphorePermit; 2]), AcquireError> {
        let (own, all) = match lane {
            Lane::Short => (&quota.short, &self.short),
            Lane::Long => (&quota.long, &self.long),
        };
        let own = Arc::clone(own).acquire_owned().await?;
        let all = Arc::clone(all).acquire_owned().await?;
        Ok((lane, [own, all]))
    }

    fn quota(&self, project: &str) -> Arc<ProjectQuota> {
        let mut quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(quota) = quotas.get(project).and_then(Weak::upgrade) {
            return quota;
        }
        quotas.retain(|_, quota| quota.strong_count() > 0);
        let bounds = self.bounds;
        let memory = MemoryBudget::new(bounds.memory_project, Some(Arc::clone(&self.memory)));
        let short = share(bounds.running_short, bounds.running_short);
        let long = share(bounds.running, bounds.running_project);
        let quota = Arc::new(ProjectQuota {
            short: Arc::new(Semaphore::new(short)),
            long: Arc::new(Semaphore::new(long)),
            waiting: Arc::new(Semaphore::new(bounds.waiting_project)),
            memory,
        });
        quotas.insert(project.to_owned(), Arc::downgrade(&quota));
        quota
    }
}

/// Returns the slots of a lane that one project may hold: never the last one of several.
fn share(slots: usize, max: usize) -> usize {
    max.min(slots.saturating_sub(1)).max(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LARGE: u64 = u64::MAX;

    fn bounds() -> Bounds {
        Bounds {
            running: 2,
            running_project: 2,
            running_short: 2,
            waiting: 3,
            waiting_project: 2,
            wait: Duration::from_hours(1),
            ..Bounds::default()
        }
    }

    #[tokio::test]
    async fn project_never_holds_the_last_slot() {
        let admission = AdmissionControl::new(bounds());
        let _held = admission.admit("a", LARGE).await.unwrap();
        let mut second = std::pin::pin!(admission.admit("a", LARGE));
        assert!(futures_util::poll!(&mut second).is_pending());
        let other = admission.admit("b", LARGE).await.unwrap();
        assert_eq!(other.short_thread(), None);
        drop(other);
        assert!(futures_util::poll!(&mut second).is_pending());
    }

    #[tokio::test]
    async fn short_query_does_not_wait_for_long_ones() {
        let admission = AdmissionControl::new(bounds());
        let _a = admission.admit("a", LARGE).await.unwrap();
        let _b = admission.admit("b", LARGE).await.unwrap();
        let short = admission.admit("a", 0).await.unwrap();
        assert!(short.short_thread().is_some());
        // The second short query of the project would hold the last slot of its lane.
        let mut second = std::pin::pin!(admission.admit("a", 0));
        assert!(futures_util::poll!(&mut second).is_pending());
        let other = admission.admit("c", 0).await.unwrap();
        assert!(other.short_thread().is_some());
        assert_ne!(other.short_thread(), short.short_thread());
    }

    #[tokio::test]
    async fn short_query_uses_a_free_slot_of_the_long_lane() {
        let admission = AdmissionControl::new(bounds());
        let _first = admission.admit("a", 0).await.unwrap();
        let second = admission.admit("a", 0).await.unwrap();
        assert_eq!(second.short_thread(), None);
    }

    #[tokio::test]
    async fn waiting_queries_are_limited_per_project_and_in_all() {
        let admission = AdmissionControl::new(bounds());
        let _a = admission.admit("a", LARGE).await.unwrap();
        let mut first = std::pin::pin!(admission.admit("a", LARGE));
        let mut second = std::pin::pin!(admission.admit("a", LARGE));
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(futures_util::poll!(&mut second).is_pending());
        let third = admission.admit("a", LARGE).await;
        assert!(matches!(third, Err(QueryError::Busy(_))), "{third:?}");
        drop(admission.admit("b", LARGE).await.unwrap());
    }

    #[tokio::test]
    async fn query_that_waits_too_long_is_busy() {
        let admission = AdmissionControl::new(Bounds {
            wait: Duration::from_millis(1),
            ..bounds()
        });
        let held = admission.admit("a", LARGE).await.unwrap();
        let waited = admission.admit("a", LARGE).await;
        assert!(matches!(waited, Err(QueryError::Busy(_))), "{waited:?}");
        drop(held);
        drop(admission.admit("a", LARGE).await.unwrap());
        drop(admission.admit("b", LARGE).await.unwrap());
        assert_eq!(admission.quotas.lock().unwrap().len(), 1);
    }
}
