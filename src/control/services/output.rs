//! The output of an instance: lines from its FIFO, for messages and for the project's logs.
//!
//! The launcher opens the FIFO for reading and writing, so the program can write while no Gantry
//! reads: the kernel keeps up to `PIPE_BYTES`, then writing waits. Bytes are copied from the FIFO
//! first, and removed from it after their lines are stored. A killed Gantry therefore loses no
//! line; the next one may store the last lines again.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::ProjectRef,
};
use gantry_node::{
    kits::Service,
    services::lines::{LineSplitter, RateLimit, RecentLines},
};
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Notify, oneshot, watch},
    time::timeout,
};
use uuid::Uuid;

use super::{instance_id::InstanceId, task::AbortOnDrop};
use crate::platform::batch_queue::BatchQueue;

/// Capacity of the FIFO, in bytes.
const PIPE_BYTES: i32 = 1 << 20;
/// Bytes that are copied from a FIFO at a time: the default capacity of a pipe.
const COPY_BYTES: usize = 64 << 10;
/// Bytes that are read before earlier ones are stored.
const AHEAD_MAX: usize = COPY_BYTES / 2;
/// Batches that wait to be stored.
const QUEUE_MAX: usize = 1024;
/// Longest time until lines are stored. Afterwards they are removed from the FIFO all the same:
/// a program must not wait for a full disk of logs.
const STORE_MAX: Duration = Duration::from_secs(30);
/// Longest time in which the last lines of an ended program are read and stored.
const LAST_LINES_MAX: Duration = Duration::from_secs(3);

/// A line that an instance wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLine {
    /// Random identifier.
    pub id: Uuid,
    /// The time at which it was read.
    pub at: DateTime<Utc>,
    /// The project of the instance.
    pub project: ProjectRef,
    /// The service of the instance.
    pub service: Service,
    /// The text, without control characters.
    pub text: String,
}

/// Lines that are stored together.
#[derive(Debug)]
pub struct OutputBatch {
    /// The lines, oldest first.
    pub lines: Vec<OutputLine>,
    /// Receives a message when the lines are durable.
    pub stored: oneshot::Sender<()>,
}

/// Lines of instances that are not stored yet.
#[derive(Default)]
pub struct OutputQueue {
    /// The batches.
    pub batches: BatchQueue<OutputBatch, QUEUE_MAX>,
    is_collected: AtomicBool,
}

impl OutputQueue {
    /// Declares that a task stores the batches. Without one, lines are only kept for messages.
    pub fn collect(&self) {
        self.is_collected.store(true, Ordering::Release);
    }

    /// Queues lines. `None`: they are not stored, because no task does or the queue is full.
    fn add(&self, lines: Vec<OutputLine>) -> Option<oneshot::Receiver<()>> {
        if lines.is_empty() || !self.is_collected.load(Ordering::Acquire) {
            return None;
        }
        let (stored, receiver) = oneshot::channel();
        let is_added = self.batches.add(OutputBatch { lines, stored });
        is_added.then_some(receiver)
    }
}

impl std::fmt::Debug for OutputQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputQueue").finish_non_exhaustive()
    }
}

/// Opens the FIFO as the program's output.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).open(path)?;
    // The default capacity is smaller, and an unprivileged account may be denied more.
    let _ = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    Ok(file)
}

/// The parts of the state that a reader needs.
#[derive(Debug, Clone)]
pub(super) struct OutputTarget {
    pub(super) id: InstanceId,
    pub(super) queue: Arc<OutputQueue>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
}

/// State of a reader after the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadingState {
    Reading,
    /// All lines are known, but perhaps not stored.
    ReadAll,
}

/// Reads the output of an instance, until it is dropped.
#[derive(Debug)]
pub(super) struct OutputReader {
    pub(super) lines: Arc<RecentLines>,
    stop: Arc<Notify>,
    progress: watch::Receiver<ReadingState>,
    _task: AbortOnDrop,
}

impl OutputReader {
    /// Starts reading the FIFO at this path.
    pub(super) fn start(path: &Path, target: OutputTarget) -> Self {
        Self::spawn(path, |lines, stop, progress| {
            let opened = Reading::open(path, target, lines);
            async move { opened?.run(&stop, &progress).await }
        })
    }

    /// Starts a task that reads a FIFO into the lines until it is told to stop, then the rest.
    pub(super) fn spawn<F>(
        path: &Path,
        read: impl FnOnce(Arc<RecentLines>, Arc<Notify>, watch::Sender<ReadingState>) -> F,
    ) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let (lines, stop) = (Arc::new(RecentLines::default()), Arc::new(Notify::new()));
        let (sender, progress) = watch::channel(ReadingState::Reading);
        let reading = read(Arc::clone(&lines), Arc::clone(&stop), sender);
        let path = path.to_owned();
        let task = tokio::spawn(async move {
            if let Err(error) = reading.await {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot read the output of a service");
            }
        });
        Self {
            lines,
            stop,
            progress,
            _task: AbortOnDrop(task),
        }
    }

    /// Returns the last line of a program that has ended.
    pub(super) async fn last_line(&self) -> Option<String> {
        self.stop.notify_one();
        let mut progress = self.progress.clone();
        let read = progress.wait_for(|progress| *progress == ReadingState::ReadAll);
        let _ = timeout(LAST_LINES_MAX, read).await;
        self.lines.last()
    }

    /// Waits until all lines of a program that has ended are stored.
    pub(super) async fn finish(&self) {
        self.stop.notify_one();
        let mut progress = self.progress.clone();
        let ended = async { while progress.changed().await.is_ok() {} };
        let _ = timeout(LAST_LINES_MAX, ended).await;
    }
}

/// An open FIFO, and the state of its lines.
struct Reading {
    fifo: AsyncFd<File>,
    /// A pipe that receives a copy of the bytes: reading end, writing end.
    copy: (OwnedFd, OwnedFd),
    buffer: Vec<u8>,
    splitter: LineSplitter,
    rate: RateLimit,
    target: OutputTarget,
    lines: Arc<RecentLines>,
}

impl Reading {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for descriptors that may close early; a File cannot"
    )]
    fn open(path: &Path, target: OutputTarget, lines: Arc<RecentLines>) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let fifo = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        let copy = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // More capacity means more lines at once.
        let _ = nix::fcntl::fcntl(&copy.1, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
        Ok(Self {
            fifo: AsyncFd::with_interest(fifo, Interest::READABLE)?,
            copy,
            buffer: vec![0; COPY_BYTES],
            splitter: LineSplitter::default(),
            rate: RateLimit::default(),
            target,
            lines,
        })
    }

    async fn run(
        &mut self,
        stop: &Notify,
        progress: &watch::Sender<ReadingState>,
    ) -> io::Result<()> {
        let mut unstored = VecDeque::new();
        // Bytes of the FIFO that were passed on, and are removed when they are stored.
        let mut ahead = 0;
        loop {
            tokio::select! {
                biased;
                () = stop.notified() => break,
                bytes = next_stored(&mut unstored) => {
                    self.remove(bytes)?;
                    ahead -= bytes;
                }
                ready = self.fifo.readable(), if ahead <= AHEAD_MAX => {
                    let mut ready = ready?;
                    let copied = copy(self.fifo.get_ref(), &self.copy, &mut self.buffer)?;
                    let whole = whole_lines(&self.buffer[ahead.min(copied)..copied]);
                    if whole == 0 {
                        // The rest of the line wakes this task.
                        ready.clear_ready();
                        continue;
                    }
                    drop(ready);
                    match self.pass_on(ahead, whole) {
                        None if unstored.is_empty() => self.remove(whole)?,
                        stored => {
                            ahead += whole;
                            unstored.push_back((whole, stored));
                        }
                    }
                }
            }
        }
        self.remove(ahead)?;
        loop {
            let copied = copy(self.fifo.get_ref(), &self.copy, &mut self.buffer)?;
            if copied == 0 {
                break;
            }
            let stored = self.pass_on(0, copied);
            unstored.push_back((0, stored));
            self.remove(copied)?;
        }
        self.buffer[0] = b'\n';
        let stored = self.pass_on(0, 1);
        unstored.push_back((0, stored));
        progress.send_replace(ReadingState::ReadAll);
        while !unstored.is_empty() {
            next_stored(&mut unstored).await;
        }
        Ok(())
    }

    /// Keeps the lines in a part of the buffer, and queues them to be stored.
    fn pass_on(&mut self, from: usize, bytes: usize) -> Option<oneshot::Receiver<()>> {
        let now = self.target.clock.now();
        let mut found = Vec::new();
        self.splitter
            .feed(&self.buffer[from..from + bytes], |line| {
                found.push(line.to_owned());
            });
        let mut kept = Vec::new();
        for text in found {
            self.lines.add(text.clone());
            kept.extend(self.rate.admit(text, now.timestamp_millis()));
        }
        let InstanceId {
            reference, service, ..
        } = &self.target.id;
        let line = |text| OutputLine {
            id: self.target.entropy.uuid(),
            at: now,
            project: reference.clone(),
            service: *service,
            text,
        };
        self.target.queue.add(kept.into_iter().map(line).collect())
    }

    /// Removes the first bytes of the FIFO.
    fn remove(&mut self, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let count = left.min(self.buffer.len());
            match rustix::io::read(self.fifo.get_ref(), &mut self.buffer[..count]) {
                Ok(0) | Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Ok(read) => left -= read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Lines that are not stored yet: their bytes in the FIFO, and the message about them.
type UnstoredLines = VecDeque<(usize, Option<oneshot::Receiver<()>>)>;

/// Waits until the oldest lines are stored, and returns the number of their bytes. Never returns if
/// there are none.
async fn next_stored(unstored: &mut UnstoredLines) -> usize {
    let Some((bytes, stored)) = unstored.front_mut() else {
        return std::future::pending().await;
    };
    let bytes = *bytes;
    if let Some(stored) = stored {
        // A queue that was dropped stores no more.
        let _ = timeout(STORE_MAX, stored).await;
    }
    unstored.pop_front();
    bytes
}

/// Copies the first bytes of a FIFO without removing them. Returns 0 if it is empty.
fn copy(fifo: &File, through: &(OwnedFd, OwnedFd), buffer: &mut [u8]) -> io::Result<usize> {
    let flags = SpliceFlags::NONBLOCK;
    let copied = match rustix::pipe::tee(fifo, &through.1, buffer.len(), flags) {
        Ok(copied) => copied,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut read = 0;
    while read < copied {
        match rustix::io::read(&through.0, &mut buffer[read..copied]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(read)
}

/// Returns the length of the whole lines in a copy. A copy that is full or longer than a line may
/// be is whole.
fn whole_lines(copied: &[u8]) -> usize {
    match copied.iter().rposition(|byte| *byte == b'\n') {
        Some(last) => last + 1,
        None if copied.len() > LineSplitter::BYTES_MAX => copied.len(),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, path::PathBuf};

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;
    use gantry_base::ids::ProjectId;

    fn target(queue: &Arc<OutputQueue>) -> OutputTarget {
        OutputTarget {
            id: InstanceId {
                project: ProjectId(1),
                reference: "abcdefghijklmnopqrst".parse().unwrap(),
                service: Service::Rest,
                function: None,
            },
            queue: Arc::clone(queue),
            clock: Clock::system(),
            entropy: Entropy::system(),
        }
    }

    fn fifo() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("output");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
        (place, path)
    }

    async fn batch(queue: &OutputQueue) -> OutputBatch {
        let mut taken = Vec::new();
        queue.batches.wait_for_item().await;
        queue.batches.take(&mut taken);
        assert_eq!(taken.len(), 1);
        taken.remove(0)
    }

    fn texts(batch: &OutputBatch) -> Vec<&str> {
        batch.lines.iter().map(|line| &*line.text).collect()
    }

    #[tokio::test]
    async fn lines_that_are_not_stored_remain_for_the_next_reader() {
        let (_place, path) = fifo();
        let mut program = open(&path).unwrap();
        let queue = Arc::new(OutputQueue::default());
        queue.collect();
        program.write_all(b"one\ntwo\nhal").unwrap();
        let reader = OutputReader::start(&path, target(&queue));
        let first = batch(&queue).await;
        assert_eq!(texts(&first), ["one", "two"]);
        program.write_all(b"seen\n").unwrap();
        // Later lines are known before earlier ones are stored.
        reader.lines.wait_for(&["halseen"], 0).await;
        assert_eq!(texts(&batch(&queue).await), ["halseen"]);
        // Gantry is killed before it stored them.
        drop(reader);
        drop(first);
        program.write_all(b"half\n").unwrap();
        let reader = OutputReader::start(&path, target(&queue));
        let second = batch(&queue).await;
        assert_eq!(texts(&second), ["one", "two", "halseen", "half"]);
        second.stored.send(()).unwrap();
        program.write_all(b"three\nend").unwrap();
        let third = batch(&queue).await;
        assert_eq!(texts(&third), ["three"], "stored lines are not repeated");
        third.stored.send(()).unwrap();
        assert_eq!(reader.last_line().await.as_deref(), Some("end"));
        batch(&queue).await.stored.send(()).unwrap();
        reader.finish().await;
    }

    #[tokio::test]
    async fn program_does_not_wait_where_lines_are_not_collected() {
        let (_place, path) = fifo();
        let mut program = open(&path).unwrap();
        let queue = Arc::new(OutputQueue::default());
        let reader = OutputReader::start(&path, target(&queue));
        let written = tokio::task::spawn_blocking(move || {
            (0..400_000).try_for_each(|n| writeln!(program, "line {n}"))
        });
        written.await.unwrap().unwrap();
        assert_eq!(reader.last_line().await.as_deref(), Some("line 399999"));
    }
}
