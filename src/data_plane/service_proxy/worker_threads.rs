//! WorkerThreads: threads that each serve the connections they were given, alone.
//!
//! Connections have nothing to do with one another. Were any thread to go on with any of them, each event would wake one more
//! thread, which finds the connection in another processor's cache.

use std::{io, sync::Arc, thread};

use tokio::{
    net::TcpStream,
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinSet,
};

use super::upstream_pool::{IDLE_MAX, UpstreamPool};

/// A machine with more processors has not more workers.
const LANES_MAX: usize = 64;
/// RouteCache of services that a worker looks up at once.
const LOOKUPS_MAX: usize = 16;

/// As many as the machine has processors. They end when this is dropped.
pub(super) struct WorkerThreads(Vec<WorkerThread>);

struct WorkerThread {
    runtime: Handle,
    pool: Arc<UpstreamPool>,
    /// One more for each connection.
    seats: Arc<()>,
    /// The thread ends when this goes.
    _ends: oneshot::Sender<()>,
}

impl WorkerThreads {
    pub(super) fn start() -> io::Result<Self> {
        let many = thread::available_parallelism().map_or(1, |many| many.get().min(LANES_MAX));
        (0..many)
            .map(|_| WorkerThread::start(IDLE_MAX / many))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Serves a connection on the worker that has the fewest, with the connections to services that are that worker's.
    pub(super) fn serve<F: Future<Output = ()> + Send + 'static>(
        &self,
        connections: &mut JoinSet<()>,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream, Arc<UpstreamPool>) -> F + Send + 'static,
    ) {
        let Some(worker) = self
            .0
            .iter()
            .min_by_key(|worker| Arc::strong_count(&worker.seats))
        else {
            return;
        };
        let (pool, seat) = (worker.pool.clone(), worker.seats.clone());
        // The worker hears itself of what comes in. A stream that cannot be handed over is closed.
        let Ok(stream) = stream.into_std() else {
            return;
        };
        let served = async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve(stream, pool).await;
            }
            drop(seat);
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
        let (pool, (ends, ended)) = (Arc::new(UpstreamPool::new(idle_max)), oneshot::channel());
        let worker = Self {
            runtime: runtime.handle().clone(),
            pool: pool.clone(),
            seats: Arc::default(),
            _ends: ends,
        };
        thread::Builder::new()
            .name("edge".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = pool.run() => {}
                        // That the other half was dropped is what is waited for.
                        _ = ended => {}
                    }
                });
                // Whoever looks up a name must not hold up the end.
                runtime.shutdown_background();
            })?;
        Ok(worker)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tokio::{net::TcpListener, sync::mpsc};

    use super::*;

    #[tokio::test]
    async fn connections_are_shared_out_and_stay() {
        let workers = WorkerThreads(
            (0..3)
                .map(|_| WorkerThread::start(8))
                .collect::<io::Result<_>>()
                .unwrap(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (tells, mut told) = mpsc::unbounded_channel();
        let (mut clients, mut connections) = (Vec::new(), JoinSet::new());
        for _ in 0..9 {
            clients.push(
                TcpStream::connect(listener.local_addr().unwrap())
                    .await
                    .unwrap(),
            );
            let (stream, _) = listener.accept().await.unwrap();
            let tells = tells.clone();
            workers.serve(&mut connections, stream, move |stream, _| async move {
                let before = thread::current().id();
                // Until the client goes.
                stream.readable().await.unwrap();
                tells.send((before, thread::current().id())).unwrap();
            });
        }
        drop((clients, tells));
        let mut served: HashMap<_, u32> = HashMap::new();
        while let Some((before, after)) = told.recv().await {
            assert_eq!(before, after);
            *served.entry(before).or_default() += 1;
        }
        assert_eq!(served.into_values().collect::<Vec<_>>(), [3, 3, 3]);
    }

    #[tokio::test]
    async fn what_is_served_ends_with_the_lanes() {
        let workers = WorkerThreads::start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let mut connections = JoinSet::new();
        workers.serve(
            &mut connections,
            listener.accept().await.unwrap().0,
            |stream, _| async move {
                let _ = stream.readable().await;
            },
        );
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
