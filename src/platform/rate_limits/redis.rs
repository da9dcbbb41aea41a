//! Shared counters in Valkey or Redis: one script, one round trip, over both windows.
//!
//! Give the server memory to spare and `maxmemory-policy noeviction`: a counter that is evicted is a quota given back.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::RwLock;
use redis::{
    AsyncConnectionConfig, Client, RedisError, RedisResult, Script, aio::MultiplexedConnection,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    WINDOWS_MAX, Window,
    store::{Answer, Beat, LIVE, Trouble},
};
use crate::base::error::{Context, Error};

/// How long making a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Pause before a connection that was refused is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often an idle connection is tried, and how long the server may take to say it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);
const HEARTBEAT_MAX: Duration = Duration::from_secs(2);
/// `ARGV` has limit and length of each key's window. Answers whether the request was admitted, then for each window what
/// is used and how long it lasts. A window without an end, or with one too far away, is mended: whatever made it so, it
/// must not refuse for ever.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local used, left, admitted = {}, {}, 1 \
         for i, key in ipairs(KEYS) do \
           local limit, window = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i]) \
           used[i] = tonumber(redis.call('GET', key) or '0') or 0 \
           left[i] = redis.call('PTTL', key) \
           if left[i] == -1 or left[i] > window then redis.call('PEXPIRE', key, window) left[i] = window end \
           if left[i] >= 0 and used[i] >= limit then admitted = 0 end \
         end \
         local answer = {admitted} \
         for i, key in ipairs(KEYS) do \
           if admitted == 1 then \
             used[i] = redis.call('INCR', key) \
             if left[i] == -2 then left[i] = tonumber(ARGV[2 * i]) redis.call('PEXPIRE', key, left[i]) end \
           end \
           if left[i] == -2 then left[i] = 0 elseif left[i] < 1 then left[i] = 1 end \
           answer[2 * i] = used[i] answer[2 * i + 1] = left[i] \
         end \
         return answer",
    )
});

/// Notes that the process `ARGV[1]` lives, counts the others heard of within `ARGV[2]` milliseconds, and names the counters,
/// if they have no name yet, by the process and the moment: the same process may be the first again after they were lost. The braces keep both keys on one node of a cluster.
static BEAT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME') \
         local now = time[1] * 1000 + math.floor(time[2] / 1000) \
         redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2])) \
         redis.call('ZADD', KEYS[1], now, ARGV[1]) \
         redis.call('SET', KEYS[2], ARGV[1] .. ' ' .. time[1] .. ' ' .. time[2], 'NX') \
         return {redis.call('ZCARD', KEYS[1]) - 1, redis.call('GET', KEYS[2])}",
    )
});

/// Counters in Valkey or Redis.
pub struct Redis {
    link: Arc<Link>,
    /// Ends with the store.
    _keeper: JoinSet<()>,
}

/// The connection while there is one.
struct Link {
    connection: RwLock<Option<MultiplexedConnection>>,
    /// Of the connection; 0 while there is none.
    number: watch::Sender<u64>,
    lost: Notify,
}

impl Redis {
    /// Connects, and stays connected.
    pub fn open(url: &str) -> Result<Self, Error> {
        let client = client(url)?;
        let link = Arc::new(Link {
            connection: RwLock::default(),
            number: watch::Sender::new(0),
            lost: Notify::new(),
        });
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(client, link.clone()));
        Ok(Self {
            link,
            _keeper: keeper,
        })
    }

    pub(super) fn check(url: &str) -> Result<(), Error> {
        client(url).map(drop)
    }

    pub(super) async fn take(&self, key: &str, windows: &[Window]) -> Result<Answer, Trouble> {
        let mut call = TAKE.prepare_invoke();
        for (place, window) in windows.iter().take(WINDOWS_MAX).enumerate() {
            call.key(spelled(key, place))
                .arg(window.requests)
                .arg(window.millis());
        }
        let mut connection = self.link.connection()?;
        let numbers: Vec<i64> = self.link.heed(call.invoke_async(&mut connection).await)?;
        let (admitted, pairs) = numbers
            .split_first()
            .ok_or(Trouble::Failed("it answered nothing".into()))?;
        Ok(answer(
            *admitted == 1,
            pairs
                .as_chunks()
                .0
                .iter()
                .map(|[used, left]| (*used, *left)),
        ))
    }

    pub(super) async fn beat(&self, process: &str) -> Result<Beat, Trouble> {
        let mut call = BEAT.prepare_invoke();
        let live = u64::try_from(LIVE.as_millis()).unwrap_or(u64::MAX);
        call.key("gantry:{limits}:processes")
            .key("gantry:{limits}:counters")
            .arg(process)
            .arg(live);
        let mut connection = self.link.connection()?;
        let (others, counters): (u32, String) =
            self.link.heed(call.invoke_async(&mut connection).await)?;
        Ok(Beat { others, counters })
    }

    pub(super) fn link(&self) -> &watch::Sender<u64> {
        &self.link.number
    }

    pub(super) async fn peek(&self, keys: &[String]) -> Result<Vec<Answer>, Trouble> {
        let mut pipe = redis::pipe();
        for key in keys {
            for place in 0..WINDOWS_MAX {
                pipe.get(spelled(key, place)).pttl(spelled(key, place));
            }
        }
        let mut connection = self.link.connection()?;
        let numbers: Vec<Option<i64>> = self.link.heed(pipe.query_async(&mut connection).await)?;
        let keys = numbers.chunks(2 * WINDOWS_MAX);
        Ok(keys
            .map(|key| {
                answer(
                    false,
                    key.as_chunks()
                        .0
                        .iter()
                        .map(|[used, left]| (used.unwrap_or(0), left.unwrap_or(0))),
                )
            })
            .collect())
    }
}

fn client(url: &str) -> Result<Client, Error> {
    Client::open(url)
        .context("reading --limits-url: `postgres`, or redis://host:port, or redis+unix:///path")
}

/// One key a window. The braces keep both on one node of a cluster.
fn spelled(key: &str, place: usize) -> String {
    format!("gantry:limit:{{{key}}}:{place}")
}

fn answer(admitted: bool, windows: impl Iterator<Item = (i64, i64)>) -> Answer {
    let mut answer = Answer {
        admitted,
        used: [0; WINDOWS_MAX],
        left: [0; WINDOWS_MAX],
    };
    for (place, (used, left)) in windows.take(WINDOWS_MAX).enumerate() {
        answer.left[place] = u64::try_from(left).unwrap_or_default();
        answer.used[place] = if left > 0 {
            u32::try_from(used).unwrap_or_default()
        } else {
            0
        };
    }
    answer
}

impl Link {
    fn connection(&self) -> Result<MultiplexedConnection, Trouble> {
        self.connection.read().clone().ok_or(Trouble::Away)
    }

    /// Passes an answer on; without one, sees to another connection.
    fn heed<T>(&self, outcome: RedisResult<T>) -> Result<T, Trouble> {
        outcome.map_err(|error: RedisError| {
            if error.is_unrecoverable_error() {
                self.lost.notify_one();
            }
            Trouble::Failed(error.to_string())
        })
    }
}

/// Keeps a connection until the store is dropped.
async fn keep(client: Client, link: Arc<Link>) {
    // Requests have a deadline of their own, and a late answer to one is not a reason to drop what others wait for.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_MAX))
        .set_response_timeout(None);
    for number in 1.. {
        match timeout(
            CONNECT_MAX,
            client.get_multiplexed_async_connection_with_config(&config),
        )
        .await
        {
            Ok(Ok(connection)) => {
                // A loss that was noticed meanwhile was of the connection before.
                let _ = link.lost.notified().now_or_never();
                *link.connection.write() = Some(connection.clone());
                link.number.send_replace(number);
                until_lost(connection, &link.lost).await;
                link.number.send_replace(0);
                *link.connection.write() = None;
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the store of shared limits cannot be reached");
                sleep(PAUSE).await;
            }
            // It waited long enough.
            Err(_) => {}
        }
    }
}

async fn until_lost(mut connection: MultiplexedConnection, lost: &Notify) {
    while timeout(HEARTBEAT, lost.notified()).await.is_err() {
        let ping = redis::cmd("PING");
        if !matches!(
            timeout(HEARTBEAT_MAX, ping.query_async::<()>(&mut connection)).await,
            Ok(Ok(()))
        ) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_understood_is_refused_at_the_start() {
        for url in [
            "redis://127.0.0.1:6379",
            "redis://:secret@cache.internal:6379/2",
            "redis+unix:///run/valkey.sock",
            "unix:///run/valkey.sock",
        ] {
            assert!(Redis::check(url).is_ok(), "{url}");
        }
        for url in ["", "memory", "postgres://x", "http://127.0.0.1"] {
            assert!(Redis::check(url).is_err(), "{url}");
        }
    }
}
