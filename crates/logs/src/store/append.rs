//! Appends of lines, and the deletion of a project's lines.

use std::sync::Arc;

use datafusion::object_store;
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::oneshot;

use super::{
    batch::{Batch, ReaderOffset},
    batch_keys::{self, BatchKey},
    codec::{self, Record},
    error::{StoreError, check_limit},
    names,
    state::{Store, WriteJob},
};

/// Maximum size of one append in the log, in bytes.
pub const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum number of stored reader offsets.
pub const READER_OFFSETS_MAX: usize = 64 * 1024;
/// Maximum size of the name and the value of a reader offset, in bytes.
pub const READER_OFFSET_BYTES_MAX: usize = 4096;

impl Store {
    /// Appends lines and waits until they are durable. On failure they are not stored, with one
    /// exception: the disk fails and the process ends before the next append. Waits while the queue
    /// is full. Truncates texts and drops attributes beyond the limits of [`crate::event`].
    pub async fn append(&self, batch: Batch) -> Result<(), StoreError> {
        let Batch {
            project,
            events,
            reader_offset,
        } = batch;
        if events.is_empty() && reader_offset.is_none() {
            return Ok(());
        }
        names::check_name(&project)?;
        if let Some(reader_offset) = &reader_offset {
            self.check_reader_offset(reader_offset)?;
        }
        let (record, payload) = codec::lines(&project, &events, reader_offset.as_ref());
        drop(events);
        check_limit("size of a batch in bytes", payload.len(), BATCH_BYTES_MAX)?;
        self.write(record, payload).await?;
        self.tails.notify(&project);
        Ok(())
    }

    /// Appends a batch without a reader offset and remembers its key, also after a restart, until
    /// there are [`super::BATCH_KEYS_PROJECT_MAX`] newer ones of the project or an hour has passed.
    /// `now` is in microseconds since 1970.
    pub async fn append_with_key(
        &self,
        batch: Batch,
        key: &BatchKey,
        now: i64,
    ) -> Result<(), StoreError> {
        let reader_offset = Some(batch_keys::to_reader_offset(&batch.project, key, now));
        self.append(Batch {
            reader_offset,
            ..batch
        })
        .await
    }

    /// Whether a batch with this key was appended recently.
    pub fn has_batch(&self, project: &str, key: &BatchKey) -> bool {
        self.shared.index().batch_keys.contains(project, key)
    }

    /// Returns the last stored offset of a reader.
    pub fn reader_offset(&self, name: &str) -> Option<ReaderOffset> {
        let index = self.shared.index();
        let value = index.reader_offsets.get(name)?;
        Some(ReaderOffset {
            name: name.to_owned(),
            value: value.clone(),
        })
    }

    /// Deletes a project's lines from the log of this node and from all files. Lines in the logs of
    /// other nodes stay until this is called there. Does not wait for readers.
    pub async fn forget(&self, project: &str) -> Result<(), StoreError> {
        names::check_name(project)?;
        // Excludes concurrent flushes and merges.
        let _upkeep = self.upkeep.lock().await;
        let (record, payload) = codec::forget(project);
        self.write(record, payload).await?;
        self.close_tail(project).await?;
        let directory = names::project_folder(project);
        self.shared.known.remove_under(&directory);
        self.shared.known.sync()?;
        let paths = self
            .shared
            .objects
            .list(Some(&directory))
            .map_ok(|meta| meta.location)
            .boxed();
        let mut deletions = self.shared.objects.delete_stream(paths);
        while let Some(deletion) = deletions.next().await {
            match deletion {
                Ok(_) => self.shared.counters.removed.add(1),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn check_reader_offset(&self, reader_offset: &ReaderOffset) -> Result<(), StoreError> {
        let ReaderOffset { name, value } = reader_offset;
        check_limit(
            "size of a reader offset in bytes",
            name.len() + value.len(),
            READER_OFFSET_BYTES_MAX,
        )?;
        if batch_keys::is_batch_key(reader_offset) {
            return Ok(());
        }
        let known = &self.shared.index().reader_offsets;
        let adds_one = !known.contains_key(name) && !value.is_empty();
        check_limit(
            "number of reader offsets",
            known.len() + usize::from(adds_one),
            READER_OFFSETS_MAX,
        )
    }

    async fn write(&self, record: Record, payload: Vec<u8>) -> Result<(), StoreError> {
        let queue_bytes = self.shared.options.queue_bytes;
        let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let queued = Arc::clone(&self.queue_memory)
            .acquire_many_owned(bytes.min(queue_bytes))
            .await
            .map_err(|_| StoreError::Closed)?;
        self.submit(|reply| WriteJob::Append {
            record,
            payload,
            queued,
            reply,
        })
        .await
    }

    /// Sends a job to the writer thread and waits for its result.
    pub(super) async fn submit(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<(), StoreError>>) -> WriteJob,
    ) -> Result<(), StoreError> {
        let (reply, result) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or(StoreError::Closed)?;
        jobs.send(job(reply))
            .await
            .map_err(|_| StoreError::Closed)?;
        result.await.map_err(|_| StoreError::Closed)?
    }
}
