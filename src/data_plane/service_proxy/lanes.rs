//! Lanes: threads that each serve the connections they were given, alone.
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

use super::links::{IDLE_MAX, Links};

/// A machine with more processors has not more lanes.
const LANES_MAX: usize = 64;
/// Names of services that a lane looks up at once.
const LOOKUPS_MAX: usize = 16;

/// As many as the machine has processors. They end when this is dropped.
pub(super) struct Lanes(Vec<Lane>);

struct Lane {
    runtime: Handle,
    links: Arc<Links>,
    /// One more for each connection.
    seats: Arc<()>,
    /// The thread ends when this goes.
    _ends: oneshot::Sender<()>,
}

impl Lanes {
    pub(super) fn start() -> io::Result<Self> {
        let many = thread::available_parallelism().map_or(1, |many| many.get().min(LANES_MAX));
        (0..many)
            .map(|_| Lane::start(IDLE_MAX / many))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Serves a connection on the lane that has the fewest, with the connections to services that are that lane's.
    pub(super) fn serve<F: Future<Output = ()> + Send + 'static>(
        &self,
        connections: &mut JoinSet<()>,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream, Arc<Links>) -> F + Send + 'static,
    ) {
        let Some(lane) = self
            .0
            .iter()
            .min_by_key(|lane| Arc::strong_count(&lane.seats))
        else {
            return;
        };
        let (links, seat) = (lane.links.clone(), lane.seats.clone());
        // The lane hears itself of what comes in. A stream that cannot be handed over is closed.
        let Ok(stream) = stream.into_std() else {
            return;
        };
        let served = async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve(stream, links).await;
            }
            drop(seat);
        };
        connections.spawn_on(served, &lane.runtime);
    }
}

impl Lane {
    fn start(idle_max: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(LOOKUPS_MAX)
            .enable_all()
            .build()?;
        let (links, (ends, ended)) = (Arc::new(Links::new(idle_max)), oneshot::channel());
        let lane = Self {
            runtime: runtime.handle().clone(),
            links: links.clone(),
            seats: Arc::default(),
            _ends: ends,
        };
        thread::Builder::new()
            .name("edge".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = links.run() => {}
                        // That the other half was dropped is what is waited for.
                        _ = ended => {}
                    }
                });
                // Whoever looks up a name must not hold up the end.
                runtime.shutdown_background();
            })?;
        Ok(lane)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tokio::{net::TcpListener, sync::mpsc};

    use super::*;

    #[tokio::test]
    async fn connections_are_shared_out_and_stay() {
        let lanes = Lanes(
            (0..3)
                .map(|_| Lane::start(8))
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
            lanes.serve(&mut connections, stream, move |stream, _| async move {
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
        let lanes = Lanes::start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let mut connections = JoinSet::new();
        lanes.serve(
            &mut connections,
            listener.accept().await.unwrap().0,
            |stream, _| async move {
                let _ = stream.readable().await;
            },
        );
        drop(lanes);
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
