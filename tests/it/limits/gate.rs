//! A proxy between a node and a store on a Unix socket that slows down or stops the traffic of this
//! node.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use gantry_base::clock::Entropy;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};

pub(super) struct Gate {
    dir: TempDir,
    state: watch::Sender<Flow>,
    _tasks: JoinSet<()>,
}

/// Treatment of the traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Flow {
    /// Forward at once.
    Open,
    /// Delay each piece by 20 to 150 ms, in each direction.
    Slow,
    /// Stop forwarding without losing data.
    Frozen,
    /// Close connections and accept no new ones.
    Cut,
}

/// Name of the socket file of PostgreSQL.
const SOCKET: &str = ".s.PGSQL.5432";

impl Gate {
    pub(super) fn before(server: PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
        let (state, flow) = watch::channel(Flow::Open);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut links = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                if *flow.borrow() == Flow::Cut {
                    continue;
                }
                let (from, to) = client.into_split();
                // The server may be restarting.
                let Ok(server) = UnixStream::connect(&server).await else {
                    continue;
                };
                let (back, on) = server.into_split();
                links.spawn(Self::pass(from, on, flow.clone()));
                links.spawn(Self::pass(back, to, flow.clone()));
            }
        });
        Self {
            dir,
            state,
            _tasks: tasks,
        }
    }

    pub(super) fn before_postgres(config: &tokio_postgres::Config) -> Self {
        let [tokio_postgres::config::Host::Unix(socket)] = config.get_hosts() else {
            panic!("one socket")
        };
        Self::before(socket.join(SOCKET))
    }

    pub(super) fn turn(&self, flow: Flow) {
        self.state.send_replace(flow);
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }

    fn folder(&self) -> &Path {
        self.dir.path()
    }

    async fn pass(
        mut from: impl AsyncReadExt + Unpin,
        mut to: impl AsyncWriteExt + Unpin,
        mut flow: watch::Receiver<Flow>,
    ) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read.unwrap_or(0),
                Ok(_) = flow.wait_for(|flow| *flow == Flow::Cut) => 0,
            };
            if *flow.borrow() == Flow::Slow {
                sleep(Duration::from_millis(
                    20 + u64::from(Entropy::system().bytes::<1>()[0]) / 2,
                ))
                .await;
            }
            let gone = flow.wait_for(|flow| *flow != Flow::Frozen).await.is_err();
            if gone || read == 0 || to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }

    pub(super) fn config(&self, behind: &tokio_postgres::Config) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(self.folder())
            .port(5432)
            .user(behind.get_user().unwrap())
            .dbname(behind.get_dbname().unwrap());
        config
    }
}
