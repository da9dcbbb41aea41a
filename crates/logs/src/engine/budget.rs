//! Memory budgets of queries.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use datafusion::{
    common::{DataFusionError, Result},
    execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation},
};

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
}
