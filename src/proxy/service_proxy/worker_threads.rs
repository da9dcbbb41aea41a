//! Worker threads, each with a single-threaded runtime. A connection stays on one thread.
//!
//! With a work-stealing runtime, each event may wake another thread, which finds the connection's
//! data in another processor's cache (decision 0077).

use std::{io, sync::Arc, thread};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinSet,
};

use super::upstream_pool::{IDLE_MAX, UpstreamPool};

/// Maximum number of worker threads.
const LANES_MAX: usize = 64;
/// Concurrent DNS lookups per worker thread.
const LOOKUPS_MAX: usize = 16;

/// The worker threads, one per processor. Dropping this shutdown them.
pub(super) struct WorkerThreads(Vec<WorkerThread>);

struct WorkerThread {
    runtime: Handle,
    pool: Arc<UpstreamPool>,
    /// Reference count minus one is the number of connections of this thread.
    load: Arc<()>,
    /// Dropping this shutdown the thread.
    _shutdown: oneshot::Sender<()>,
}

impl WorkerThreads {
    pub(super) fn start() -> io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, |count| count.get().min(LANES_MAX));
        (0..count)
            .map(|_| WorkerThread::start(IDLE_MAX / count))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Serves a connection on the thread with the fewest connections, with that thread's upstream
    /// pool.
    ///
    /// `register` makes the stream on that thread, and registers it with its runtime. If it fails,
    /// the connection is closed.
    pub(super) fn serve<S: Send + 'static, F: Future<Output = ()> + Send + 'static>(
        &self,
        connections: &mut JoinSet<()>,
        register: impl FnOnce() -> io::Result<S> + Send + 'static,
        serve: impl FnOnce(S, Arc<UpstreamPool>) -> F + Send + 'static,
    ) {
        let Some(worker) = self
            .0
            .iter()
            .min_by_key(|worker| Arc::strong_count(&worker.load))
        else {
            return;
        };
        let pool = worker.pool.clone();
        let load = worker.load.clone();
        let served = async move {
            if let Ok(stream) = register() {
                serve(stream, pool).await;
            }
            drop(load);
        };
        connections.spawn_on(served, &worker.runtime);
    }
}

impl WorkerThread {
    fn start(idle_max: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(LOOKUPS_MAX)
            .enable_all()
            .build()?;
        let (pool, (shutdown, shut_down)) =
            (Arc::new(UpstreamPool::new(idle_max)), oneshot::channel());
        let worker = Self {
            runtime: runtime.handle().clone(),
            pool: pool.clone(),
            load: Arc::default(),
            _shutdown: shutdown,
        };
        thread::Builder::new()
            .name("edge".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = pool.run() => {}
                        // Resolves with an error when the sender is dropped, which is the signal to
                        // end.
                        _ = shut_down => {}
                    }
                });
                // Does not wait for DNS lookups in progress.
                runtime.shutdown_background();
            })?;
        Ok(worker)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tokio::{
        net::{TcpListener, TcpStream},
        sync::mpsc,
    };

    use super::*;

    fn registered(stream: TcpStream) -> impl FnOnce() -> io::Result<TcpStream> + Send + 'static {
        let stream = stream.into_std();
        move || TcpStream::from_std(stream?)
    }

    #[tokio::test]
    async fn connections_are_balanced_and_stay_on_their_thread() {
        let workers = WorkerThreads(
            (0..3)
                .map(|_| WorkerThread::start(8))
                .collect::<io::Result<_>>()
                .unwrap(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut clients = Vec::new();
        let mut connections = JoinSet::new();
        for _ in 0..9 {
            clients.push(
                TcpStream::connect(listener.local_addr().unwrap())
                    .await
                    .unwrap(),
            );
            let (stream, _) = listener.accept().await.unwrap();
            let sender = sender.clone();
            let register = registered(stream);
            workers.serve(&mut connections, register, move |stream, _| async move {
                let before = thread::current().id();
                // Resolves when the client closes the connection.
                stream.readable().await.unwrap();
                sender.send((before, thread::current().id())).unwrap();
            });
        }
        drop((clients, sender));
        let mut served: HashMap<_, u32> = HashMap::new();
        while let Some((before, after)) = receiver.recv().await {
            assert_eq!(before, after);
            *served.entry(before).or_default() += 1;
        }
        assert_eq!(served.into_values().collect::<Vec<_>>(), [3, 3, 3]);
    }

    #[tokio::test]
    async fn dropped_worker_threads_end_their_connections() {
        let workers = WorkerThreads::start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let mut connections = JoinSet::new();
        let register = registered(listener.accept().await.unwrap().0);
        workers.serve(&mut connections, register, |stream, _| async move {
            let _ = stream.readable().await;
        });
        drop(workers);
        assert!(
            connections
                .join_next()
                .await
                .unwrap()
                .unwrap_err()
                .is_cancelled()
        );
    }
}
