//! Shared counters in a table of the control database.
//!
//! Requests of one turn of the event loop are sent as one statement over a pipelined connection.
//! The statement makes the whole decision: it locks the row of each key, then reads the server's
//! clock, and grants as many requests as both windows admit. Keys are sorted, so that nodes lock
//! rows in the same order and do not deadlock.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use gantry_base::clock::Ticks;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, Row, Statement};

use super::{
    store::{HeartbeatAnswer, LIVE, StoreAnswer, StoreError},
    window::{WINDOWS_MAX, Window},
};
use crate::platform::{
    db::{self, Db},
    error::{Context, Error},
};

/// Bound of the queue of requests. When it is full, the store counts as unavailable.
const QUEUE_MAX: usize = 8_192;
/// Requests in one statement.
const BATCH_MAX: usize = 1_024;
/// Statements in flight: one is executed, the next one waits on the server.
const FLYING_MAX: usize = 2;
/// Longest time for a response before the connection is replaced. Longer than any request waits.
const STATEMENT_MAX: Duration = Duration::from_secs(2);
/// Pause between connection attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval of sweeps for ended counters, and the number of rows per statement.
const SWEEP: Duration = Duration::from_mins(1);
const SWEEP_ROWS: i64 = 2_000;

/// Grants to each key as many of the wanted requests as its windows admit. An absent second window
/// has length 0.
///
/// `granted` is proposed for an unused key. Less the previous use it is also right for a used key.
/// A window that has ended is reopened by granted requests only.
pub const DECISION: &str = "\
insert into limit_counters as c (key, limit_1, limit_2, granted, used_1, ends_1, used_2, ends_2, at)
select w.key, w.limit_1, w.limit_2, g.granted, g.granted, t.at + w.millis_1, g.granted, t.at + w.millis_2, t.at
from unnest($1::text[], $2::int[], $3::bigint[], $4::int[], $5::bigint[], $6::int[])
         as w (key, limit_1, millis_1, limit_2, millis_2, wanted),
     lateral (select least(w.wanted, w.limit_1, w.limit_2) as granted) g,
     lateral (select (date_part('epoch', clock_timestamp()) * 1000)::bigint as at) t
on conflict (key) do update set (limit_1, limit_2, granted, used_1, ends_1, used_2, ends_2, at) = (
    select excluded.limit_1, excluded.limit_2, g.granted,
           o.used_1 + g.granted, case when o.open_1 then least(c.ends_1, t.at + n.millis_1) when g.granted > 0 then t.at + n.millis_1 else c.ends_1 end,
           o.used_2 + g.granted, case when o.open_2 then least(c.ends_2, t.at + n.millis_2) when g.granted > 0 then t.at + n.millis_2 else c.ends_2 end,
           t.at
    from (select (date_part('epoch', clock_timestamp()) * 1000)::bigint as at) t,
         lateral (select excluded.ends_1 - excluded.at as millis_1, excluded.ends_2 - excluded.at as millis_2) n,
         lateral (select c.ends_1 > t.at as open_1, case when c.ends_1 > t.at then c.used_1 else 0 end as used_1,
                         c.ends_2 > t.at as open_2, case when c.ends_2 > t.at then c.used_2 else 0 end as used_2) o,
         lateral (select greatest(0, least(excluded.granted, excluded.limit_1 - o.used_1, excluded.limit_2 - o.used_2)) as granted) g)
returning key, granted, used_1, ends_1 - at, used_2, ends_2 - at";

/// Heartbeat of process `$1`: deletes processes without a heartbeat for an hour, and counts the
/// others with one within `$2` milliseconds. The identity of the counters is in an unlogged table
/// that a crash empties together with them.
const BEAT: &str = "\
with t as (select (date_part('epoch', clock_timestamp()) * 1000)::bigint as at),
     me as (insert into limit_processes (process, seen) select $1, at from t on conflict (process) do update set seen = excluded.seen),
     gone as (delete from limit_processes using t where process <> $1 and seen < t.at - 3600000),
     named as (insert into limit_counters_name (one, name) values (true, gen_random_uuid()::text)
               on conflict (one) do update set name = limit_counters_name.name returning name)
select (select count(*) from limit_processes, t where process <> $1 and seen > t.at - $2::bigint), (select name from named)";

const PEEK: &str = "\
select c.key, c.used_1, c.ends_1 - t.at, c.used_2, c.ends_2 - t.at
from (select (date_part('epoch', clock_timestamp()) * 1000)::bigint as at) t, limit_counters c
where c.key = any($1)";

/// Deletes ended counters among the next rows after `$1`, and returns the last key. Locked rows are
/// skipped.
const RECLAIM: &str = "\
with seen as (select key from limit_counters where key > $1 order by key limit $2),
     dead as (select key from limit_counters
              where key in (select key from seen)
                and greatest(ends_1, ends_2) <= (date_part('epoch', clock_timestamp()) * 1000)::bigint
              for update skip locked),
     gone as (delete from limit_counters where key in (select key from dead))
select max(key) from seen";

/// Counters in the control database.
pub struct Postgres {
    db: Db,
    queue: mpsc::Sender<StoreRequest>,
    link: watch::Sender<u64>,
    /// Aborted when the store is dropped.
    _workers: JoinSet<()>,
}

enum StoreRequest {
    Take(TakeRequest),
    Beat {
        process: String,
        reply: oneshot::Sender<HeartbeatAnswer>,
    },
}

struct TakeRequest {
    key: String,
    windows: [Window; WINDOWS_MAX],
    reply: oneshot::Sender<StoreAnswer>,
}

impl Postgres {
    /// Opens a store that connects in the background and reconnects.
    pub fn open(db: Db) -> Self {
        let (queue, tasks) = mpsc::channel(QUEUE_MAX);
        let mut workers = JoinSet::new();
        let link = watch::Sender::new(0);
        workers.spawn(run(db.clone(), tasks, link.clone()));
        workers.spawn(sweep(db.clone()));
        Self {
            db,
            queue,
            link,
            _workers: workers,
        }
    }

    pub(super) async fn take(
        &self,
        key: String,
        windows: &[Window],
    ) -> Result<StoreAnswer, StoreError> {
        let mut list = [Window::default(); WINDOWS_MAX];
        list.iter_mut()
            .zip(windows)
            .for_each(|(place, window)| *place = *window);
        let (reply, answer) = oneshot::channel();
        self.queue
            .try_send(StoreRequest::Take(TakeRequest {
                key,
                windows: list,
                reply,
            }))
            .map_err(|_| StoreError::QueueFull)?;
        answer.await.map_err(|_| StoreError::Unreachable)
    }

    pub(super) async fn heartbeat(&self, process: &str) -> Result<HeartbeatAnswer, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.queue
            .try_send(StoreRequest::Beat {
                process: process.to_owned(),
                reply,
            })
            .map_err(|_| StoreError::QueueFull)?;
        answer.await.map_err(|_| StoreError::Unreachable)
    }

    pub(super) fn connection_number(&self) -> &watch::Sender<u64> {
        &self.link
    }

    pub(super) async fn peek(&self, keys: &[String]) -> Result<Vec<StoreAnswer>, StoreError> {
        let rows = self.db.query(PEEK, &[&keys]).await.map_err(failed)?;
        let of = |key: &String| {
            rows.iter()
                .find(|row| row.get::<_, &str>(0) == key)
                .map(|row| answer(row, 1, false))
        };
        Ok(keys
            .iter()
            .map(|key| {
                of(key).unwrap_or(StoreAnswer {
                    admitted: false,
                    used: [0; WINDOWS_MAX],
                    left: [0; WINDOWS_MAX],
                })
            })
            .collect())
    }
}

/// Serves the queue over successive connections until the store is dropped.
async fn run(db: Db, mut queue: mpsc::Receiver<StoreRequest>, link: watch::Sender<u64>) {
    for number in 1.. {
        let ended = serve(&db, &mut queue, || link.send_modify(|link| *link = number)).await;
        link.send_replace(0);
        match ended {
            Ok(()) => return,
            // The breaker logs the outage once for operators.
            Err(error) => tracing::debug!(%error, "connection of the rate limit store lost"),
        }
        sleep(PAUSE).await;
    }
}

/// Serves the queue over one connection. Calls `connected` when it is established.
async fn serve(
    db: &Db,
    queue: &mut mpsc::Receiver<StoreRequest>,
    connected: impl Fn(),
) -> Result<(), StoreError> {
    let (client, connection) = timeout(STATEMENT_MAX, db.dedicated("gantry limits"))
        .await
        .map_err(|_| StoreError::Timeout(STATEMENT_MAX))?
        .map_err(failed)?;
    let mut connection = pin!(connection);
    let link = tokio::select! {
        link = timeout(STATEMENT_MAX, PostgresConnection::new(client)) => link.map_err(|_| StoreError::Timeout(STATEMENT_MAX))??,
        _ = &mut connection => return Err(StoreError::Unreachable),
    };
    connected();
    let mut flying = FuturesUnordered::new();
    let mut tasks = Vec::with_capacity(BATCH_MAX);
    loop {
        tokio::select! {
            biased;
            // First, so that a new statement is passed to the connection before the connection is
            // polled.
            Some(outcome) = flying.next() => outcome?,
            ended = &mut connection => return ended.map_err(failed).and(Err(StoreError::Unreachable)),
            taken = queue.recv_many(&mut tasks, BATCH_MAX), if flying.len() < FLYING_MAX => {
                if taken == 0 {
                    return Ok(());
                }
                // Lets other ready tasks of this turn join the batch.
                tokio::task::yield_now().await;
                while let Some(task) = (tasks.len() < BATCH_MAX).then(|| queue.try_recv().ok()).flatten() {
                    tasks.push(task);
                }
                flying.push(link.execute(std::mem::take(&mut tasks)));
            }
        }
    }
}

/// A connection with its prepared statements.
struct PostgresConnection {
    client: Client,
    take: Statement,
    beat: Statement,
}

impl PostgresConnection {
    async fn new(client: Client) -> Result<Self, StoreError> {
        // Counters need no durability: the unlogged table is emptied by a crash. A generic plan is
        // forced because planning costs more than execution.
        let settings = "set synchronous_commit = off; set statement_timeout = '2s'; set plan_cache_mode = force_generic_plan; set jit = off";
        client.batch_execute(settings).await.map_err(failed)?;
        let take = client.prepare(DECISION).await.map_err(failed)?;
        let beat = client.prepare(BEAT).await.map_err(failed)?;
        Ok(Self { client, take, beat })
    }

    async fn execute(&self, tasks: Vec<StoreRequest>) -> Result<(), StoreError> {
        let mut takes = Vec::with_capacity(tasks.len());
        let mut beats = Vec::new();
        for task in tasks {
            match task {
                // A closed reply means that the request timed out and was refused.
                StoreRequest::Take(take) if take.reply.is_closed() => {}
                StoreRequest::Take(take) => takes.push(take),
                StoreRequest::Beat { process, reply } => beats.push((process, reply)),
            }
        }
        for (process, reply) in beats {
            let live = i64::try_from(LIVE.as_millis()).unwrap_or(i64::MAX);
            let row = bounded(self.client.query_one(&self.beat, &[&process, &live])).await?;
            // The receiver of a late heartbeat is gone, and another heartbeat follows.
            let _ = reply.send(HeartbeatAnswer {
                others: u32::try_from(row.get::<_, i64>(0)).unwrap_or(u32::MAX),
                counters: row.get(1),
            });
        }
        if takes.is_empty() {
            return Ok(());
        }
        let batch = TakeBatch::new(takes);
        let rows = bounded(self.client.query(
            &self.take,
            &[
                &batch.keys,
                &batch.limits[0],
                &batch.millis[0],
                &batch.limits[1],
                &batch.millis[1],
                &batch.wanted,
            ],
        ))
        .await?;
        batch.answer(&rows)
    }
}

async fn bounded<T>(
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StoreError> {
    timeout(STATEMENT_MAX, answer)
        .await
        .map_err(|_| StoreError::Timeout(STATEMENT_MAX))?
        .map_err(failed)
}

/// Requests of one statement, grouped by key: the statement's arrays and the reply channels.
struct TakeBatch {
    keys: Vec<String>,
    limits: [Vec<i32>; WINDOWS_MAX],
    millis: [Vec<i64>; WINDOWS_MAX],
    wanted: Vec<i32>,
    /// Reply channels of each key, in order of arrival.
    waiting: Vec<Vec<oneshot::Sender<StoreAnswer>>>,
}

impl TakeBatch {
    fn new(mut takes: Vec<TakeRequest>) -> Self {
        // A stable sort keeps the order of requests with the same key.
        takes.sort_by(|a, b| a.key.cmp(&b.key));
        let mut batch = Self {
            keys: Vec::with_capacity(takes.len()),
            limits: Default::default(),
            millis: Default::default(),
            wanted: Vec::new(),
            waiting: Vec::new(),
        };
        for take in takes {
            if batch.keys.last() == Some(&take.key) {
                // If the operator changed the limit just now, the last request of the key decides
                // for the others.
                let before = batch.keys.len() - 1;
                batch
                    .limits
                    .iter_mut()
                    .for_each(|limits| limits.truncate(before));
                batch
                    .millis
                    .iter_mut()
                    .for_each(|millis| millis.truncate(before));
            } else {
                batch.keys.push(take.key);
                batch.waiting.push(Vec::new());
            }
            for ((window, limits), millis) in take
                .windows
                .iter()
                .zip(&mut batch.limits)
                .zip(&mut batch.millis)
            {
                // An absent window admits everything and ends at once.
                limits.push(if window.secs == 0 {
                    i32::MAX
                } else {
                    i32::try_from(window.requests).unwrap_or(i32::MAX)
                });
                millis.push(i64::try_from(window.millis()).unwrap_or(i64::MAX));
            }
            if let Some(waiting) = batch.waiting.last_mut() {
                waiting.push(take.reply);
            }
        }
        batch.wanted = batch
            .waiting
            .iter()
            .map(|waiting| i32::try_from(waiting.len()).unwrap_or(i32::MAX))
            .collect();
        batch
    }

    /// Distributes the grant of each key to its requests in order of arrival.
    fn answer(self, rows: &[Row]) -> Result<(), StoreError> {
        let mut waiting: Vec<_> = self.waiting.into_iter().map(Some).collect();
        for row in rows {
            let place = self
                .keys
                .binary_search_by(|key| key.as_str().cmp(row.get(0)));
            let Some(replies) = place.ok().and_then(|place| waiting[place].take()) else {
                return Err(StoreError::Failed(
                    "it returned a key that was not requested".into(),
                ));
            };
            let granted = u32::try_from(row.get::<_, i32>(1)).unwrap_or_default();
            let after = answer(row, 2, false);
            for (earlier, reply) in (0..).zip(replies) {
                let admitted = earlier < granted;
                // The use after this request, not after the last one of the batch.
                let used = if admitted {
                    after
                        .used
                        .map(|used| used.saturating_sub(granted - earlier - 1))
                } else {
                    after.used
                };
                // A closed reply means that the request timed out.
                let _ = reply.send(StoreAnswer {
                    admitted,
                    used,
                    left: after.left,
                });
            }
        }
        Ok(())
    }
}

/// Reads `used_1, left_1, used_2, left_2` starting at `column`.
fn answer(row: &Row, column: usize, admitted: bool) -> StoreAnswer {
    let used = |at| u32::try_from(row.get::<_, i32>(at)).unwrap_or_default();
    let left = |at| Ticks::try_from(row.get::<_, i64>(at)).unwrap_or_default();
    let left = [left(column + 1), left(column + 3)];
    StoreAnswer {
        admitted,
        used: [
            if left[0] > 0 { used(column) } else { 0 },
            if left[1] > 0 { used(column + 2) } else { 0 },
        ],
        left,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape `map_err` wants")]
fn failed(error: impl db::HasServerError + ToString) -> StoreError {
    StoreError::Failed(
        error
            .server_error()
            .map_or_else(|| error.to_string(), ToString::to_string),
    )
}

async fn sweep(db: Db) {
    loop {
        sleep(SWEEP).await;
        if let Err(error) = reclaim(&db).await {
            tracing::debug!(%error, "cannot delete ended counters");
        }
    }
}

/// Deletes ended counters in bounded steps along the primary key. An index on the end of windows
/// would have to change with every request.
pub async fn reclaim(db: &Db) -> Result<(), Error> {
    let client = db.client().await?;
    let mut last = String::new();
    while let Some(next) = client
        .query_one(RECLAIM, &[&last, &SWEEP_ROWS])
        .await
        .context("deleting ended counters")?
        .get::<_, Option<String>>(0)
    {
        last = next;
    }
    Ok(())
}
