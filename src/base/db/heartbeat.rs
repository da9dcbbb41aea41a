//! Whether the control database answers: asked several times a second over a connection of its own.
//!
//! A server that was killed ends its connections, which is noticed at once. One that hangs keeps them open and answers nothing: then
//! every statement on every connection waits. The heartbeat notices that by a deadline and marks the database as away. From then on
//! connections of [`Db`] are closed, so that statements on them fail, and new ones fail at once. The heartbeat goes on asking, and
//! marks the database as available as soon as it answers.

use std::{fmt, time::Duration};

use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::Client;

use super::Db;

/// Name of the connection in `pg_stat_activity`.
const NAME: &str = "gantry heartbeat";
/// Between an answer and the next question.
const BEAT: Duration = Duration::from_millis(300);
/// How long an answer may take. With [`BEAT`] before it a hang is noticed within 1.5 s, which leaves half a second of the two
/// seconds after which a request must be answered.
const ANSWER: Duration = Duration::from_millis(1200);
/// Between attempts to reach a database that is away.
const RETRY: Duration = Duration::from_millis(200);

/// Why the database counts as away.
#[derive(Debug)]
enum Trouble {
    /// It could not be connected to.
    Unreachable(tokio_postgres::Error),
    /// The connection ended.
    Ended,
    /// It did not answer in time.
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

/// Asks until it is dropped, and tells the handle whether the database is available.
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

/// Asks over one connection after another, and returns when the database is away.
async fn attend(db: &Db) -> Trouble {
    loop {
        let heart = match Heart::connect(db).await {
            Ok(heart) => heart,
            Err(trouble) => return trouble,
        };
        let begun = Instant::now();
        match heart.beat(db).await {
            // One connection that ends is no outage if the next one can be made at once.
            Trouble::Ended if begun.elapsed() > BEAT => {}
            trouble => return trouble,
        }
    }
}

/// A connection that only asks whether there is an answer.
struct Heart {
    client: Client,
    driver: JoinHandle<()>,
    _abort: Abort,
}

/// Ends a task when dropped.
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
        // How it ended is of no interest: that it did is.
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
