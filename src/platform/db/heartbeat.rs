//! Heartbeat of the control database: a query several times a second over a separate connection.
//!
//! A killed server closes its connections, which is noticed at once. A hanging one keeps them open
//! without responding, so that every statement waits. The heartbeat detects this with a deadline
//! and marks the database as away. From then on the connections of [`Db`] are closed, statements on
//! them fail, and new ones fail at once. The heartbeat continues, and marks the database as
//! available with the first response.

use std::{fmt, time::Duration};

use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::Client;

use crate::platform::db::Db;

/// `application_name` of the connection in `pg_stat_activity`.
const NAME: &str = "gantry heartbeat";
/// Pause between a response and the next heartbeat.
const INTERVAL: Duration = Duration::from_millis(300);
/// Longest time for a response. Together with [`INTERVAL`] a hang is detected within 1.5 s, which
/// leaves half a second of the two seconds after which a request must be answered.
const TIMEOUT: Duration = Duration::from_millis(1200);
/// Pause between connection attempts while the database is away.
const RETRY: Duration = Duration::from_millis(200);

/// Reason why the database is away.
#[derive(Debug)]
enum HeartbeatFailure {
    /// The connection cannot be established.
    Unreachable(tokio_postgres::Error),
    /// The connection ended.
    Closed,
    /// There was no response in time.
    TimedOut,
}

impl fmt::Display for HeartbeatFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => f.write_str(&super::text(error)),
            Self::Closed => f.write_str("the connection ended"),
            Self::TimedOut => write!(f, "no answer within {} ms", TIMEOUT.as_millis()),
        }
    }
}

/// Sends heartbeats until dropped, and updates the availability of the handle.
pub async fn run(db: Db) {
    loop {
        let failure = run_until_away(&db).await;
        if db
            .0
            .available
            .send_if_modified(|available| std::mem::replace(available, false))
        {
            tracing::error!(error = %failure, "control database unreachable; returning 503");
        }
        sleep(RETRY).await;
    }
}

/// Sends heartbeats over successive connections. Returns when the database is away.
async fn run_until_away(db: &Db) -> HeartbeatFailure {
    loop {
        let connection = match HeartbeatConnection::connect(db).await {
            Ok(connection) => connection,
            Err(failure) => return failure,
        };
        let started = Instant::now();
        match connection.run(db).await {
            // A single lost connection is no outage if the next one is established at once.
            HeartbeatFailure::Closed if started.elapsed() > INTERVAL => {}
            failure => return failure,
        }
    }
}

/// A connection for heartbeats.
struct HeartbeatConnection {
    client: Client,
    driver: JoinHandle<()>,
    _abort: AbortOnDrop,
}

/// Aborts a task when dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl HeartbeatConnection {
    async fn connect(db: &Db) -> Result<Self, HeartbeatFailure> {
        let connected = timeout(TIMEOUT, db.dedicated(NAME))
            .await
            .map_err(|_| HeartbeatFailure::TimedOut)?;
        let (client, connection) = connected.map_err(HeartbeatFailure::Unreachable)?;
        // The error of the connection is irrelevant; only its end matters.
        let driver = tokio::spawn(async move { drop(connection.await) });
        let abort = AbortOnDrop(driver.abort_handle());
        Ok(Self {
            client,
            driver,
            _abort: abort,
        })
    }

    async fn run(mut self, db: &Db) -> HeartbeatFailure {
        loop {
            match timeout(TIMEOUT, self.client.simple_query("select 1")).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.is_closed() => return HeartbeatFailure::Closed,
                Ok(Err(error)) => return HeartbeatFailure::Unreachable(error),
                Err(_) => return HeartbeatFailure::TimedOut,
            }
            if db
                .0
                .available
                .send_if_modified(|available| !std::mem::replace(available, true))
            {
                tracing::info!("control database reachable");
            }
            tokio::select! {
                _ = &mut self.driver => return HeartbeatFailure::Closed,
                () = sleep(INTERVAL) => {}
            }
        }
    }
}
