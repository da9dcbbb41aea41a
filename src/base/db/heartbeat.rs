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

use super::Db;

/// `application_name` of the connection in `pg_stat_activity`.
const NAME: &str = "gantry heartbeat";
/// Pause between a response and the next heartbeat.
const BEAT: Duration = Duration::from_millis(300);
/// Longest time for a response. Together with [`BEAT`] a hang is detected within 1.5 s, which
/// leaves half a second of the two seconds after which a request must be answered.
const ANSWER: Duration = Duration::from_millis(1200);
/// Pause between connection attempts while the database is away.
const RETRY: Duration = Duration::from_millis(200);

/// Reason why the database is away.
#[derive(Debug)]
enum Trouble {
    /// The connection cannot be established.
    Unreachable(tokio_postgres::Error),
    /// The connection ended.
    Ended,
    /// There was no response in time.
    Silent,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => f.write_str(&super::text(error)),
            Self::Ended => f.write_str("the connection ended"),
            Self::Silent => write!(f, "no answer within {} ms", ANSWER.as_millis()),
        }
    }
}

/// Sends heartbeats until dropped, and updates the availability of the handle.
pub async fn run(db: Db) {
    loop {
        let trouble = attend(&db).await;
        if db
            .0
            .available
            .send_if_modified(|available| std::mem::replace(available, false))
        {
            tracing::error!(%trouble, "the control database does not answer; requests that need it are answered 503 until it does");
        }
        sleep(RETRY).await;
    }
}

/// Sends heartbeats over successive connections. Returns when the database is away.
async fn attend(db: &Db) -> Trouble {
    loop {
        let heart = match Heart::connect(db).await {
            Ok(heart) => heart,
            Err(trouble) => return trouble,
        };
        let begun = Instant::now();
        match heart.beat(db).await {
            // A single lost connection is no outage if the next one is established at once.
            Trouble::Ended if begun.elapsed() > BEAT => {}
            trouble => return trouble,
        }
    }
}

/// A connection for heartbeats.
struct Heart {
    client: Client,
    driver: JoinHandle<()>,
    _abort: Abort,
}

/// Aborts a task when dropped.
struct Abort(AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Heart {
    async fn connect(db: &Db) -> Result<Self, Trouble> {
        let connected = timeout(ANSWER, db.dedicated(NAME))
            .await
            .map_err(|_| Trouble::Silent)?;
        let (client, connection) = connected.map_err(Trouble::Unreachable)?;
        // The error of the connection is irrelevant; only its end matters.
        let driver = tokio::spawn(async move { drop(connection.await) });
        let abort = Abort(driver.abort_handle());
        Ok(Self {
            client,
            driver,
            _abort: abort,
        })
    }

    async fn beat(mut self, db: &Db) -> Trouble {
        loop {
            match timeout(ANSWER, self.client.simple_query("select 1")).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.is_closed() => return Trouble::Ended,
                Ok(Err(error)) => return Trouble::Unreachable(error),
                Err(_) => return Trouble::Silent,
            }
            if db
                .0
                .available
                .send_if_modified(|available| !std::mem::replace(available, true))
            {
                tracing::info!("the control database answers again");
            }
            tokio::select! {
                _ = &mut self.driver => return Trouble::Ended,
                () = sleep(BEAT) => {}
            }
        }
    }
}
