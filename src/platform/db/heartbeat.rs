//! Heartbeat of the control database: a query several times a second over a separate connection.
//!
//! A killed server closes its connections, which is noticed at once. A hanging one keeps them open
//! without responding, so that every statement waits. The heartbeat detects this with a deadline
//! and marks the database as away. From then on the connections of [`Db`] are closed, statements on
//! them fail, and new ones fail at once. The heartbeat continues, and marks the database as
//! available with the first response.

use std::{fmt, future::Future, pin::pin, time::Duration};

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
/// Number of parts in which a response is waited for; see [`answered`].
const TIMEOUT_PARTS: u32 = 12;
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

/// Waits up to `time` for a response of the database.
///
/// The time passes in parts, and a part that ends late counts no more than one that ends in time.
/// So a process that gets too little processor time, and reads responses late, does not report
/// its own delay as an outage of the database.
async fn answered<T>(
    response: impl Future<Output = T>,
    time: Duration,
) -> Result<T, HeartbeatFailure> {
    let mut response = pin!(response);
    for _ in 0..TIMEOUT_PARTS {
        if let Ok(response) = timeout(time / TIMEOUT_PARTS, response.as_mut()).await {
            return Ok(response);
        }
    }
    Err(HeartbeatFailure::TimedOut)
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
        let connected = answered(db.dedicated(NAME), TIMEOUT).await?;
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
            match answered(self.client.simple_query("select 1"), TIMEOUT).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.is_closed() => return HeartbeatFailure::Closed,
                Ok(Err(error)) => return HeartbeatFailure::Unreachable(error),
                Err(failure) => return failure,
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

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::{sync::oneshot, task::yield_now};

    use super::*;

    const SHORT: Duration = Duration::from_millis(60);

    #[tokio::test]
    async fn missing_response_is_noticed_after_the_timeout() {
        let started = Instant::now();
        let outcome = answered(std::future::pending::<()>(), SHORT).await;
        assert!(matches!(outcome, Err(HeartbeatFailure::TimedOut)));
        assert!(started.elapsed() >= SHORT);
    }

    #[tokio::test]
    async fn response_that_a_starved_process_reads_late_is_no_outage() {
        let (send, response) = oneshot::channel();
        // Blocks the only thread beyond the timeout before the task with the response runs.
        tokio::spawn(async move {
            thread::park_timeout(SHORT * 2);
            yield_now().await;
            send.send(()).unwrap();
        });
        let outcome = answered(response, SHORT).await;
        assert!(matches!(outcome, Ok(Ok(()))), "{outcome:?}");
    }
}
