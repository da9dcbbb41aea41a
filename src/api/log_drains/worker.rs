//! Delivery of one drain from one store: reads lines in order, sends them, and saves the position
//! after the target confirmed them.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use gantry_base::{
    ids::{ProjectId, ProjectRef},
    repeat::Backoff,
};
use gantry_logs::{
    event::Event,
    store::{Store, TailBatch, TailLimit, TailState},
};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use super::{
    drains::{LogDrain, open_tail},
    metrics::DrainMetrics,
    positions::Positions,
    progress::{self, Progress},
    target::{
        Target,
        delivery::{DeliveryError, OutgoingBatch},
        drain_client::DrainClient,
    },
};
use crate::{
    api::context::ApiContext,
    platform::{
        error::{Context, Error},
        outbound::UrlOwner,
    },
};

/// Delays between attempts.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(2));
/// Attempts with a single line that the target rejects, before the line is dropped.
const REJECTIONS_MAX: u32 = 3;

/// Limits on concurrent requests.
pub(super) struct Lanes {
    pub(super) working: Semaphore,
    pub(super) failing: Semaphore,
}

impl Lanes {
    /// Waits for the turn of a request. Closing never happens; a missing permit is harmless.
    pub(super) async fn enter(&self, failing: bool) -> Option<SemaphorePermit<'_>> {
        let lane = if failing {
            &self.failing
        } else {
            &self.working
        };
        lane.acquire().await.ok()
    }
}

/// The parts of a worker that do not change.
pub(super) struct Worker {
    pub(super) context: ApiContext,
    pub(super) project: ProjectRef,
    pub(super) drain: LogDrain,
    /// Does not keep the store open.
    pub(super) store: Weak<Store>,
    /// Name of the store.
    pub(super) store_name: String,
    pub(super) lanes: Arc<Lanes>,
    pub(super) positions: Arc<Positions>,
    pub(super) metrics: Arc<DrainMetrics>,
}

/// Skips lines before `end` that are older than the drain: they were there when this store was
/// first read for it.
struct StartFilter {
    end: u64,
    created: i64,
}

/// The changing state of a worker.
struct Delivery {
    target: Target,
    limit: TailLimit,
    wait: Duration,
    progress: Progress,
    filter: Option<StartFilter>,
    /// Maximum number of lines of the next batch: fewer than the limit after a rejection.
    lines: usize,
    /// Failures since the last success.
    failures: u32,
    /// Rejections of the same single line.
    rejections: u32,
}

impl Worker {
    /// Delivers until the store is closed. Failures of the control database are retried.
    pub(super) async fn run(self) {
        let mut delivery = loop {
            match self.begin().await {
                Ok(Some(delivery)) => break delivery,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(project = %self.project, drain = %self.drain.id, %error, "starting a log drain failed; retrying");
                    tokio::time::sleep(RETRY.first).await;
                }
            }
        };
        let Some(store) = self.store.upgrade() else {
            return;
        };
        let mut changes = store.tail_changes(self.project.as_str());
        drop(store);
        while self.step(&mut delivery, &mut changes).await.is_some() {}
    }

    /// Opens the tail and loads the position. Returns `None` if the store is closed, or the
    /// drain deleted.
    async fn begin(&self) -> Result<Option<Delivery>, Error> {
        let Some(store) = self.store.upgrade() else {
            return Ok(None);
        };
        let context = &self.context;
        let tail = open_tail(context, &store, &self.project).await?;
        drop(store);
        let saved = progress::load(&context.db, self.drain.id, &self.store_name).await?;
        let process = context.drains.process;
        let (progress, filter) = start(saved, &tail, process, self.drain.created_at);
        let sql = "select project_id from log_drains where id = $1";
        let rows = context.db.query(sql, &[&self.drain.id]).await;
        let rows = rows.context("reading the project of a log drain")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let client = DrainClient {
            client: context.outbound.clone(),
            owner: UrlOwner::Project(ProjectId(row.get(0))),
        };
        let target = Target::new(
            self.drain.backend,
            &self.drain.settings,
            &context.api_settings.log_drains,
            &client,
            (&context.clock, &context.entropy),
        )?;
        let (limit, wait) = target.batching();
        Ok(Some(Delivery {
            target,
            limit,
            wait,
            progress,
            filter,
            lines: limit.lines,
            failures: 0,
            rejections: 0,
        }))
    }

    /// Delivers one batch, or waits for lines or the next attempt. Returns `None` if the store was
    /// closed.
    async fn step(
        &self,
        delivery: &mut Delivery,
        changes: &mut watch::Receiver<u64>,
    ) -> Option<()> {
        changes.mark_unchanged();
        let Some(batch) = self.read(delivery).await? else {
            // All lines are delivered. The sender is dropped with the store.
            return changes.changed().await.ok();
        };
        let batch = if delivery.failures == 0 && self.is_last(&batch).await {
            tokio::time::sleep(delivery.wait).await;
            self.read(delivery).await??
        } else {
            batch
        };
        let skipped = batch.first - delivery.progress.next_line;
        if skipped > 0 {
            self.count_dropped(&mut delivery.progress, skipped);
            delivery.progress.next_line = batch.first;
        }
        let events = delivery.filter(&batch);
        let outcome = if events.is_empty() {
            Ok(())
        } else {
            self.send(delivery, batch.first, &events).await
        };
        match outcome {
            Ok(()) => self.confirm(delivery, &batch, events.len()).await,
            Err(error) => self.fail(delivery, &batch, error).await,
        }
        Some(())
    }

    /// Reads the next lines. Returns `None` if the store was closed, and waits after a failure.
    async fn read(&self, delivery: &Delivery) -> Option<Option<TailBatch>> {
        loop {
            let store = self.store.upgrade()?;
            let limit = TailLimit {
                lines: delivery.lines,
                ..delivery.limit
            };
            let from = delivery.progress.next_line;
            let read = store.read_tail(self.project.as_str(), from, limit).await;
            drop(store);
            match read {
                Ok(batch) => return Some(batch),
                Err(error) => {
                    tracing::warn!(project = %self.project, %error, "log lines cannot be read for a log drain; retrying");
                    tokio::time::sleep(RETRY.max).await;
                }
            }
        }
    }

    /// Whether no lines follow a batch, so that more may be collected for it.
    async fn is_last(&self, batch: &TailBatch) -> bool {
        let Some(store) = self.store.upgrade() else {
            return false;
        };
        let tail = store.tail(self.project.as_str()).await;
        tail.is_some_and(|tail| tail.end <= batch.next)
    }

    async fn send(
        &self,
        delivery: &Delivery,
        first: u64,
        events: &[Event],
    ) -> Result<(), DeliveryError> {
        // Targets that fail wait for each other only, so that they do not delay others.
        let _permit = self.lanes.enter(delivery.failures > 0).await;
        let id = format!(
            "{}-{}-{}-{first:016}",
            self.drain.id, self.store_name, delivery.progress.epoch
        );
        let batch = OutgoingBatch {
            project: &self.project,
            id,
            events,
        };
        delivery.target.send(&batch).await
    }

    /// Advances the position past a delivered batch.
    async fn confirm(&self, delivery: &mut Delivery, batch: &TailBatch, sent: usize) {
        if delivery.failures > 0 {
            tracing::info!(project = %self.project, drain = %self.drain.id, "log drain delivers again");
        }
        delivery.failures = 0;
        delivery.rejections = 0;
        delivery.lines = (delivery.lines * 2).min(delivery.limit.lines);
        delivery.progress.next_line = batch.next;
        delivery.progress.delivered += sent as u64;
        delivery.progress.failing = None;
        if sent > 0 {
            self.metrics.delivered(self.drain.backend, sent as u64);
        }
        self.save(&mut delivery.progress).await;
    }

    /// Records a failure and waits for the next attempt. A rejected batch is divided until a single
    /// line is left, which is dropped after some attempts.
    async fn fail(&self, delivery: &mut Delivery, batch: &TailBatch, error: DeliveryError) {
        self.metrics.failed(self.drain.backend);
        if error.refused && batch.events.len() > 1 {
            delivery.lines = batch.events.len().div_ceil(2);
            return;
        }
        if delivery.failures == 0 {
            tracing::warn!(project = %self.project, drain = %self.drain.id, %error, "log drain cannot deliver; retrying");
        }
        let now = self.context.clock.now();
        let progress = &mut delivery.progress;
        let since = progress.failing.take().map_or(now, |(_, since)| since);
        progress.failing = Some((error.text, since));
        delivery.failures = delivery.failures.saturating_add(1);
        if error.refused {
            delivery.rejections += 1;
            if delivery.rejections >= REJECTIONS_MAX {
                delivery.rejections = 0;
                progress.next_line = batch.next;
                self.count_dropped(progress, batch.events.len() as u64);
            }
        }
        self.save(&mut delivery.progress).await;
        let random = self.context.entropy.bytes::<1>()[0];
        let pause = RETRY.pause_with_jitter(delivery.failures, random);
        tokio::time::sleep(error.retry_after.unwrap_or_default().max(pause)).await;
    }

    fn count_dropped(&self, progress: &mut Progress, lines: u64) {
        progress.dropped += lines;
        self.metrics.dropped(self.drain.backend, lines);
    }

    /// Saves the progress and releases lines that all drains of the project delivered. If the
    /// control database is unavailable, the next save includes this one.
    async fn save(&self, progress: &mut Progress) {
        let Some(store) = self.store.upgrade() else {
            return;
        };
        let project = self.project.as_str();
        let tail = store.tail(project).await;
        let end = tail.map_or(progress.next_line, |tail| tail.end);
        progress.lag = end.saturating_sub(progress.next_line);
        let failing = progress.failing.is_some();
        let key = (self.drain.id, self.store_name.clone());
        self.metrics.report(key, progress.lag, failing);
        let now = self.context.clock.now();
        let db = &self.context.db;
        let saved = progress::save(db, self.drain.id, &self.store_name, progress, now).await;
        if let Err(error) = saved {
            tracing::debug!(project, %error, "progress of a log drain is not saved yet");
            return;
        }
        let place = (&self.project, self.store_name.as_str());
        let line = self
            .positions
            .advance(place, self.drain.id, progress.next_line);
        if let Some(line) = line
            && let Err(error) = store.release_tail(project, line).await
        {
            tracing::debug!(project, %error, "delivered log lines cannot be deleted yet");
        }
    }
}

impl Delivery {
    /// Returns the lines of a batch that are not older than the drain.
    fn filter(&mut self, batch: &TailBatch) -> Vec<Event> {
        let Some(StartFilter { end, created }) = self.filter else {
            return batch.events.clone();
        };
        let mut events = Vec::with_capacity(batch.events.len());
        for (number, event) in (batch.first..).zip(&batch.events) {
            if number >= end || event.timestamp >= created {
                events.push(event.clone());
            }
        }
        if batch.next >= end {
            self.filter = None;
        }
        events
    }
}

/// Returns the position to start from. Without a saved one for the tail, lines that are there
/// already are delivered if they are not older than the drain.
fn start(
    saved: Option<Progress>,
    tail: &TailState,
    process: uuid::Uuid,
    created: chrono::DateTime<chrono::Utc>,
) -> (Progress, Option<StartFilter>) {
    match saved {
        Some(mut progress) if progress.epoch == tail.epoch => {
            // A position of an earlier process is beyond the end only if the log was damaged. New
            // lines have the same numbers then.
            if progress.process != process {
                progress.next_line = progress.next_line.min(tail.recovered_end);
            }
            progress.process = process;
            (progress, None)
        }
        other => {
            let filter = StartFilter {
                end: tail.end,
                created: created.timestamp_micros(),
            };
            let progress = Progress {
                epoch: tail.epoch.clone(),
                process,
                next_line: tail.first,
                ..other.unwrap_or_default()
            };
            (progress, Some(filter))
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn tail(epoch: &str) -> TailState {
        TailState {
            epoch: epoch.to_owned(),
            first: 5,
            end: 20,
            recovered_end: 10,
        }
    }

    #[test]
    fn saved_position_is_checked_against_the_store() {
        let (now, created) = (Uuid::from_u128(1), chrono::DateTime::UNIX_EPOCH);
        let saved = |process, next_line| {
            Some(Progress {
                epoch: "e".into(),
                process: Uuid::from_u128(process),
                next_line,
                delivered: 7,
                ..Progress::default()
            })
        };
        for (process, next_line, expected) in [(1, 15, 15), (2, 8, 8), (2, 15, 10)] {
            let (progress, filter) = start(saved(process, next_line), &tail("e"), now, created);
            assert_eq!((progress.next_line, progress.process), (expected, now));
            assert!(filter.is_none());
        }
        // Another numbering of lines, and a new drain.
        for saved in [saved(1, 15), None] {
            let delivered = saved.as_ref().map_or(0, |it| it.delivered);
            let (progress, filter) = start(saved, &tail("f"), now, created);
            assert_eq!((progress.next_line, progress.delivered), (5, delivered));
            assert_eq!(filter.unwrap().end, 20);
        }
    }
}
