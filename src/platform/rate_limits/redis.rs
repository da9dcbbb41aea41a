//! Shared counters in Valkey or Redis: one script and one round trip for both windows.
//!
//! The server needs spare memory and `maxmemory-policy noeviction`: an evicted counter gives its
//! quota back.

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
    store::{HeartbeatAnswer, LIVE, StoreAnswer, StoreError},
    window::{WINDOWS_MAX, Window},
};
use crate::platform::error::{Context, Error};

/// Longest time to establish a connection.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Pause between connection attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval of pings on an idle connection, and the longest time for a response.
const HEARTBEAT: Duration = Duration::from_secs(1);
const HEARTBEAT_MAX: Duration = Duration::from_secs(2);
/// Script of one request. `ARGV` has limit and length of each key's window. Returns whether the
/// request was admitted, then the use and the remaining milliseconds of each window. A missing or
/// too distant expiry is repaired, because the key would otherwise refuse requests forever.
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

/// Script of a heartbeat. Records the process `ARGV[1]`, counts the others with a heartbeat within
/// `ARGV[2]` milliseconds, and creates the identity of the counters if there is none, from the
/// process and the time: one process may be the first more than once. The braces keep both keys on
/// one node of a cluster.
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
    link: Arc<RedisConnection>,
    /// Aborted when the store is dropped.
    _reconnect_loop: JoinSet<()>,
}

/// The current connection.
struct RedisConnection {
    connection: RwLock<Option<MultiplexedConnection>>,
    /// Number of the connection; 0 while disconnected.
    number: watch::Sender<u64>,
    lost: Notify,
}

impl Redis {
    /// Opens a store that connects in the background and reconnects.
    pub fn open(url: &str) -> Result<Self, Error> {
        let client = client(url)?;
        let link = Arc::new(RedisConnection {
            connection: RwLock::default(),
            number: watch::Sender::new(0),
            lost: Notify::new(),
        });
        let mut keeper = JoinSet::new();
        keeper.spawn(reconnect_loop(client, link.clone()));
        Ok(Self {
            link,
            _reconnect_loop: keeper,
        })
    }

    pub(super) fn check_url(url: &str) -> Result<(), Error> {
        client(url).map(drop)
    }

    pub(super) async fn take(
        &self,
        key: &str,
        windows: &[Window],
    ) -> Result<StoreAnswer, StoreError> {
        let mut call = TAKE.prepare_invoke();
        for (place, window) in windows.iter().take(WINDOWS_MAX).enumerate() {
            call.key(window_key(key, place))
                .arg(window.requests)
                .arg(window.millis());
        }
        let mut connection = self.link.connection()?;
        let numbers: Vec<i64> = self.link.check(call.invoke_async(&mut connection).await)?;
        let (admitted, pairs) = numbers
            .split_first()
            .ok_or(StoreError::Failed("it answered nothing".into()))?;
        Ok(answer(
            *admitted == 1,
            pairs
                .as_chunks()
                .0
                .iter()
                .map(|[used, left]| (*used, *left)),
        ))
    }

    pub(super) async fn heartbeat(&self, process: &str) -> Result<HeartbeatAnswer, StoreError> {
        let mut call = BEAT.prepare_invoke();
        let live = u64::try_from(LIVE.as_millis()).unwrap_or(u64::MAX);
        call.key("gantry:{limits}:processes")
            .key("gantry:{limits}:counters")
            .arg(process)
            .arg(live);
        let mut connection = self.link.connection()?;
        let (others, counters): (u32, String) =
            self.link.check(call.invoke_async(&mut connection).await)?;
        Ok(HeartbeatAnswer { others, counters })
    }

    pub(super) fn connection_number(&self) -> &watch::Sender<u64> {
        &self.link.number
    }

    pub(super) async fn peek(&self, keys: &[String]) -> Result<Vec<StoreAnswer>, StoreError> {
        let mut pipe = redis::pipe();
        for key in keys {
            for place in 0..WINDOWS_MAX {
                pipe.get(window_key(key, place))
                    .pttl(window_key(key, place));
            }
        }
        let mut connection = self.link.connection()?;
        let numbers: Vec<Option<i64>> = self.link.check(pipe.query_async(&mut connection).await)?;
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

/// Returns the key of one window. The braces keep all windows on one node of a cluster.
fn window_key(key: &str, place: usize) -> String {
    format!("gantry:limit:{{{key}}}:{place}")
}

fn answer(admitted: bool, windows: impl Iterator<Item = (i64, i64)>) -> StoreAnswer {
    let mut answer = StoreAnswer {
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

impl RedisConnection {
    fn connection(&self) -> Result<MultiplexedConnection, StoreError> {
        self.connection
            .read()
            .clone()
            .ok_or(StoreError::Unreachable)
    }

    /// Converts the outcome of a command. A lost connection triggers a reconnection.
    fn check<T>(&self, outcome: RedisResult<T>) -> Result<T, StoreError> {
        outcome.map_err(|error: RedisError| {
            if error.is_unrecoverable_error() {
                self.lost.notify_one();
            }
            StoreError::Failed(error.to_string())
        })
    }
}

/// Maintains the connection until the store is dropped.
async fn reconnect_loop(client: Client, link: Arc<RedisConnection>) {
    // Requests have their own deadline. A late response to one must not drop the connection for the
    // others.
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
                // A loss reported meanwhile concerns the previous connection.
                let _ = link.lost.notified().now_or_never();
                *link.connection.write() = Some(connection.clone());
                link.number.send_replace(number);
                until_lost(connection, &link.lost).await;
                link.number.send_replace(0);
                *link.connection.write() = None;
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "shared rate limit store unreachable");
                sleep(PAUSE).await;
            }
            // The attempt took long enough to serve as a pause.
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
    fn invalid_url_is_rejected() {
        for url in [
            "redis://127.0.0.1:6379",
            "redis://:secret@cache.internal:6379/2",
            "redis+unix:///run/valkey.sock",
            "unix:///run/valkey.sock",
        ] {
            assert!(Redis::check_url(url).is_ok(), "{url}");
        }
        for url in ["", "memory", "postgres://x", "http://127.0.0.1"] {
            assert!(Redis::check_url(url).is_err(), "{url}");
        }
    }
}
