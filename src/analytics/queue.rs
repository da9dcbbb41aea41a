//! Taking what waits in a queue, many at a time.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, timeout_at},
};

use super::Ending;
use crate::ids::ProjectRef;

/// Rows of one batch.
const BATCH_MAX: usize = 4096;
/// How long rows are gathered: each write to disk costs the same, for one or for thousands.
const GATHER: Duration = Duration::from_millis(100);

/// Waits for rows and gathers more for a moment. After the end has begun it takes what is left. None: nothing is.
pub(super) async fn next<T>(rows: &mut Receiver<T>, ending: &mut Ending) -> Option<Vec<T>> {
    let mut batch = Vec::new();
    if !ending.begun() {
        tokio::select! {
            count = rows.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return None },
            // The sender lives as long as the application.
            _ = ending.stop.wait_for(|stop| *stop) => {}
        }
        let until = Instant::now() + GATHER;
        while !ending.begun() && batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            if !matches!(timeout_at(until, rows.recv_many(&mut batch, room)).await, Ok(1..)) {
                break;
            }
        }
    }
    if ending.begun() {
        while batch.len() < BATCH_MAX
            && let Ok(row) = rows.try_recv()
        {
            batch.push(row);
        }
    }
    (!batch.is_empty() || !ending.begun()).then_some(batch)
}

/// The rows of each project, in their order.
pub(super) fn by_project<T>(rows: impl Iterator<Item = (ProjectRef, T)>) -> Vec<(ProjectRef, Vec<T>)> {
    let mut found: BTreeMap<ProjectRef, Vec<T>> = BTreeMap::new();
    for (project, row) in rows {
        found.entry(project).or_default().push(row);
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc::channel, watch};

    use super::*;

    #[tokio::test]
    async fn what_waits_is_taken_before_the_end_and_nothing_after() {
        let (stop, (sender, mut rows)) = (watch::channel(false).0, channel(3 * BATCH_MAX));
        let mut ending = Ending { stop: stop.subscribe(), _at_work: None };
        for row in 0..2 * BATCH_MAX + 7 {
            sender.try_send(row).unwrap();
        }
        assert_eq!(next(&mut rows, &mut ending).await.map(|batch| batch.len()), Some(BATCH_MAX));
        stop.send_replace(true);
        assert_eq!(next(&mut rows, &mut ending).await.map(|batch| batch.len()), Some(BATCH_MAX));
        assert_eq!(next(&mut rows, &mut ending).await.map(|batch| batch[6]), Some(2 * BATCH_MAX + 6));
        assert_eq!(next(&mut rows, &mut ending).await, None);
    }
}
