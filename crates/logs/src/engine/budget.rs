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
pub(super) struct Memory {
    used: AtomicUsize,
    max: usize,
    wider: Option<Arc<Memory>>,
}

impl Memory {
    pub(super) fn new(max: usize, wider: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
            wider,
        })
    }

    fn take(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        if let Some(wider) = &self.wider {
            wider.take(bytes);
        }
    }

    fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(wider) = &self.wider {
            wider.give(bytes);
        }
    }

    fn try_take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.max);
        if self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_err()
        {
            return false;
        }
        let taken = self
            .wider
            .as_ref()
            .is_none_or(|wider| wider.try_take(bytes));
        if !taken {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} bytes",
            self.used.load(Ordering::Relaxed),
            self.max
        )
    }
}

impl MemoryPool for Memory {
    fn name(&self) -> &'static str {
        "query"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        self.take(additional);
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        self.give(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if self.try_take(additional) {
            return Ok(());
        }
        let consumer = reservation.consumer().name();
        Err(DataFusionError::ResourcesExhausted(format!(
            "{consumer} wants {additional} bytes more, {self} are taken"
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
struct Share {
    turns: Arc<Semaphore>,
    memory: Arc<Memory>,
}

/// Admits queries within the limits of [`Bounds`].
#[derive(Debug)]
pub(super) struct Turns {
    bounds: Bounds,
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    memory: Arc<Memory>,
    /// Quotas of projects with running or waiting queries.
    shares: Mutex<HashMap<String, Weak<Share>>>,
}

/// Permits one query to run. It is dropped when the query's work has ended, not when its client
/// disconnects.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) memory: Arc<Memory>,
    _share: Arc<Share>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl Turns {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            running: Arc::new(Semaphore::new(bounds.running)),
            waiting: Arc::new(Semaphore::new(bounds.waiting)),
            memory: Memory::new(bounds.memory_all, None),
            shares: Mutex::default(),
            bounds,
        }
    }

    /// Waits for a free slot. Fails at once if [`Bounds::waiting`] queries already wait.
    pub(super) async fn take(&self, project: &str) -> Result<Turn, QueryError> {
        let closed = |_| QueryError::Backend("no more queries are taken".into());
        let waiting = Arc::clone(&self.waiting)
            .try_acquire_owned()
            .map_err(|_| QueryError::Backend("too many queries wait".into()))?;
        let share = self.share(project);
        let own = Arc::clone(&share.turns)
            .acquire_owned()
            .await
            .map_err(closed)?;
        let running = Arc::clone(&self.running)
            .acquire_owned()
            .await
            .map_err(closed)?;
        drop(waiting);
        Ok(Turn {
            memory: Memory::new(self.bounds.memory_query, Some(Arc::clone(&share.memory))),
            _share: share,
            _permits: [own, running],
        })
    }

    fn share(&self, project: &str) -> Arc<Share> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(project).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let memory = Memory::new(self.bounds.memory_project, Some(Arc::clone(&self.memory)));
        let share = Arc::new(Share {
            turns: Arc::new(Semaphore::new(self.bounds.running_project)),
            memory,
        });
        shares.insert(project.to_owned(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_from_both_or_neither() {
        let project = Memory::new(10, None);
        let (one, other) = (
            Memory::new(8, Some(Arc::clone(&project))),
            Memory::new(8, Some(Arc::clone(&project))),
        );
        assert!(one.try_take(8) && !one.try_take(1));
        assert!(!other.try_take(3) && other.try_take(2));
        one.give(8);
        assert_eq!(
            (project.reserved(), one.reserved(), other.reserved()),
            (2, 0, 2)
        );
    }

    #[tokio::test]
    async fn a_project_has_its_share_of_the_turns_and_too_many_are_turned_away() {
        let turns = Turns::new(Bounds {
            running: 2,
            running_project: 1,
            waiting: 1,
            ..Bounds::default()
        });
        let first = turns.take("a").await.unwrap();
        let mut second = std::pin::pin!(turns.take("a"));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(matches!(turns.take("b").await, Err(QueryError::Backend(_))));
        drop(first);
        drop(second.await.unwrap());
        drop(turns.take("b").await.unwrap());
        assert_eq!(turns.shares.lock().unwrap().len(), 1);
    }
}
