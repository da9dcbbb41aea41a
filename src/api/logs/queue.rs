//! Batching of queue items.

use std::{collections::BTreeMap, time::Duration};

use gantry_base::ids::ProjectRef;
use tokio::time::timeout;

use super::analytics::ShutdownSignal;
use crate::platform::batch_queue::BatchQueue;

/// Time to gather rows for a batch. A write to disk costs the same for one row or for thousands.
const GATHER: Duration = Duration::from_millis(100);

/// Waits for rows, gathers more for a moment, and puts them into the empty `batch`. After shutdown
/// began it returns the remaining rows, and false once the queue is empty.
pub(super) async fn next<T, const MOST: usize>(
    queue: &BatchQueue<T, MOST>,
    batch: &mut Vec<T>,
    shutdown: &mut ShutdownSignal,
) -> bool {
    let gathered = async {
        queue.wait_for_item().await;
        // Stops when the batch is full or the time is over.
        let _ = timeout(GATHER, queue.wait_until_half_full()).await;
    };
    tokio::select! {
        biased;
        // The sender lives as long as the application.
        _ = shutdown.stop.wait_for(|stop| *stop) => {}
        () = gathered => {}
    }
    queue.take(batch);
    !batch.is_empty() || !shutdown.begun()
}

/// Groups rows by project and keeps their order.
pub(super) fn by_project<T>(
    rows: impl Iterator<Item = (ProjectRef, T)>,
) -> Vec<(ProjectRef, Vec<T>)> {
    let mut found: BTreeMap<ProjectRef, Vec<T>> = BTreeMap::new();
    for (project, row) in rows {
        found.entry(project).or_default().push(row);
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn what_waits_is_taken_before_the_end_and_nothing_after() {
        let (stop, queue, mut batch) = (
            watch::channel(false).0,
            BatchQueue::<_, 8>::default(),
            Vec::new(),
        );
        let mut shutdown = ShutdownSignal {
            stop: stop.subscribe(),
            _at_work: None,
        };
        for rows in [1, 8] {
            (0..rows).for_each(|row| assert!(queue.add(row)));
            assert!(next(&queue, &mut batch, &mut shutdown).await);
            assert_eq!(batch.drain(..).count(), rows);
        }
        queue.add(9);
        stop.send_replace(true);
        assert!(next(&queue, &mut batch, &mut shutdown).await);
        assert_eq!(std::mem::take(&mut batch), [9]);
        assert!(!next(&queue, &mut batch, &mut shutdown).await);
    }
}
