//! Admission control and memory budgets of queries.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use datafusion::{
    common::{DataFusionError, Result},
    execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Bounds;
use crate::QueryError;

/// A memory pool with an upper limit. Every allocation is also charged to the parent pool.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    used: AtomicUsize,
    max: usize,
    parent: Option<Arc<MemoryBudget>>,
}

impl MemoryBudget {
    pub(super) fn new(max: usize, parent: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
            parent,
        })
    }

    fn reserve(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.reserve(bytes);
        }
    }

    fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.release(bytes);
        }
    }

    fn try_reserve(&self, bytes: usize) -> bool {
        let reserve = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.max);
        if self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve)
            .is_err()
        {
            return false;
        }
        match &self.parent {
            Some(parent) if !parent.try_reserve(bytes) => {
                self.used.fetch_sub(bytes, Ordering::Relaxed);
                false
            }
            _ => true,
        }
    }
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} bytes",
            self.used.load(Ordering::Relaxed),
            self.max
        )
    }
}

impl MemoryPool for MemoryBudget {
    fn name(&self) -> &'static str {
        "query"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        self.reserve(additional);
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        self.release(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if self.try_reserve(additional) {
            return Ok(());
        }
        let consumer = reservation.consumer().name();
        Err(DataFusionError::ResourcesExhausted(format!(
            "{consumer} cannot reserve {additional} bytes: {self} are in use"
        )))
    }

    fn reserved(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.max)
    }
}

/// Slots and memory shared by the queries of one project.
#[derive(Debug)]
struct ProjectQuota {
    slots: Arc<Semaphore>,
    memory: Arc<MemoryBudget>,
}

/// Admits queries within the limits of [`Bounds`].
#[derive(Debug)]
pub(super) struct AdmissionControl {
    bounds: Bounds,
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    memory: Arc<MemoryBudget>,
    /// Quotas of projects with running or waiting queries.
    quotas: Mutex<HashMap<String, Weak<ProjectQuota>>>,
}

/// Permits one query to run. It is dropped when the query's work has ended, not when its client
/// disconnects.
#[derive(Debug)]
pub(super) struct QueryPermit {
    pub(super) memory: Arc<MemoryBudget>,
    _quota: Arc<ProjectQuota>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl AdmissionControl {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            running: Arc::new(Semaphore::new(bounds.running)),
            waiting: Arc::new(Semaphore::new(bounds.waiting)),
            memory: MemoryBudget::new(bounds.memory_all, None),
            quotas: Mutex::default(),
            bounds,
        }
    }

    /// Waits for a free slot. Fails at once if [`Bounds::waiting`] queries already wait.
    pub(super) async fn admit(&self, project: &str) -> Result<QueryPermit, QueryError> {
        let closed = |_| QueryError::Backend("the query engine is shutting down".into());
        let waiting = Arc::clone(&self.waiting)
            .try_acquire_owned()
            .map_err(|_| QueryError::Backend("too many queries are waiting".into()))?;
        let quota = self.quota(project);
        let own = Arc::clone(&quota.slots)
            .acquire_owned()
            .await
            .map_err(closed)?;
        let running = Arc::clone(&self.running)
            .acquire_owned()
            .await
            .map_err(closed)?;
        drop(waiting);
        Ok(QueryPermit {
            memory: MemoryBudget::new(self.bounds.memory_query, Some(Arc::clone(&quota.memory))),
            _quota: quota,
            _permits: [own, running],
        })
    }

    fn quota(&self, project: &str) -> Arc<ProjectQuota> {
        let mut quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(quota) = quotas.get(project).and_then(Weak::upgrade) {
            return quota;
        }
        quotas.retain(|_, quota| quota.strong_count() > 0);
        let memory = MemoryBudget::new(self.bounds.memory_project, Some(Arc::clone(&self.memory)));
        let quota = Arc::new(ProjectQuota {
            slots: Arc::new(Semaphore::new(self.bounds.running_project)),
            memory,
        });
        quotas.insert(project.to_owned(), Arc::downgrade(&quota));
        quota
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_is_charged_to_the_parent_or_rejected_entirely() {
        let project = MemoryBudget::new(10, None);
        let first = MemoryBudget::new(8, Some(Arc::clone(&project)));
        let second = MemoryBudget::new(8, Some(Arc::clone(&project)));
        assert!(first.try_reserve(8));
        assert!(!first.try_reserve(1));
        assert!(!second.try_reserve(3));
        assert!(second.try_reserve(2));
        first.release(8);
        assert_eq!(project.reserved(), 2);
        assert_eq!(first.reserved(), 0);
        assert_eq!(second.reserved(), 2);
    }

    #[tokio::test]
    async fn admission_limits_running_queries_per_project_and_waiting_queries() {
        let admission = AdmissionControl::new(Bounds {
            running: 2,
            running_project: 1,
            waiting: 1,
            ..Bounds::default()
        });
        let first = admission.admit("a").await.unwrap();
        let mut second = std::pin::pin!(admission.admit("a"));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(matches!(
            admission.admit("b").await,
            Err(QueryError::Backend(_))
        ));
        drop(first);
        drop(second.await.unwrap());
        drop(admission.admit("b").await.unwrap());
        assert_eq!(admission.quotas.lock().unwrap().len(), 1);
    }
}
