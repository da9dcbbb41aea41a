//! Stores of counters that several processes share.

use std::{fmt, fmt::Write, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;

use super::{
    counter::{CounterKey, CounterScope, Identifier, Quota, Quotas},
    postgres::Postgres,
    redis::Redis,
    window::{WINDOWS_MAX, Window},
};
use crate::platform::{db::Db, error::Error};

/// A store. Each is exact: no window admits more than its limit, independent of the number of
/// processes.
pub enum Store {
    /// A table of the control database.
    Postgres(Postgres),
    /// Valkey or Redis.
    Redis(Redis),
    /// Responses of a test.
    #[cfg(test)]
    Scripted(tests::ScriptedStore),
}

/// Options of the store.
#[derive(Debug, Clone)]
pub struct Options {
    /// `None`: counters in this process. `postgres`: in the control database. Otherwise the URL of
    /// a Valkey or Redis server.
    pub url: Option<SecretString>,
    /// Minimum time that a request waits for the store.
    pub deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            url: None,
            deadline: Duration::from_millis(250),
        }
    }
}

impl Options {
    /// Connects to the store. `None` if counters stay in this process.
    pub fn store(&self, db: &Db) -> Result<Option<Store>, Error> {
        match self.url.as_ref().map(ExposeSecret::expose_secret) {
            None => Ok(None),
            Some("postgres") => Ok(Some(Store::Postgres(Postgres::open(db.clone())))),
            Some(url) => Ok(Some(Store::Redis(Redis::open(url)?))),
        }
    }

    /// Checks the URL.
    pub fn check(&self) -> Result<(), Error> {
        match self.url.as_ref().map(ExposeSecret::expose_secret) {
            None | Some("postgres") => Ok(()),
            Some(url) => Redis::check_url(url),
        }
    }
}

/// Reason why a store did not respond.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There was no response within the deadline.
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    /// The store is unreachable.
    #[error("it cannot be reached")]
    Unreachable,
    /// The queue of requests to the store is full.
    #[error("too many requests wait for it")]
    QueueFull,
    /// The store responded with an error.
    #[error("{0}")]
    Failed(String),
}

/// The decision of a store about one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreAnswer {
    pub(super) admitted: bool,
    /// Requests counted in each window, including this one if it was admitted.
    pub(super) used: [u32; WINDOWS_MAX],
    /// Milliseconds until each window ends; 0 if it is not open.
    pub(super) left: [u64; WINDOWS_MAX],
}

/// The response to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeartbeatAnswer {
    /// Number of other processes with a heartbeat within [`LIVE`].
    pub(super) others: u32,
    /// Identity of the counters: random, created with the first counter and lost with all of them.
    pub(super) counters: String,
}

/// Time without a heartbeat after which a process counts as dead.
pub(super) const LIVE: Duration = Duration::from_secs(10);

impl StoreAnswer {
    pub(super) fn quotas(&self, windows: &[Window]) -> Quotas {
        let of = |((window, used), left): ((&Window, u32), u64)| {
            if left == 0 {
                Quota::whole(*window)
            } else {
                Quota::used(*window, used, left.min(window.millis()))
            }
        };
        Quotas::new(windows.iter().zip(self.used).zip(self.left).map(of))
    }
}

impl Store {
    /// Counts one request if every window admits it; counts nothing otherwise.
    pub(super) async fn take(
        &self,
        key: String,
        windows: &[Window],
    ) -> Result<StoreAnswer, StoreError> {
        match self {
            Self::Postgres(postgres) => postgres.take(key, windows).await,
            Self::Redis(redis) => redis.take(&key, windows).await,
            #[cfg(test)]
            Self::Scripted(scripted) => scripted.take().await,
        }
    }

    /// Sends a heartbeat of this process.
    pub(super) async fn heartbeat(&self, process: &str) -> Result<HeartbeatAnswer, StoreError> {
        match self {
            Self::Postgres(postgres) => postgres.heartbeat(process).await,
            Self::Redis(redis) => redis.heartbeat(process).await,
            #[cfg(test)]
            Self::Scripted(scripted) => Ok(scripted.heartbeat()),
        }
    }

    /// Returns the number of the current connection; 0 while disconnected.
    pub(super) fn connection_number(&self) -> &watch::Sender<u64> {
        match self {
            Self::Postgres(postgres) => postgres.connection_number(),
            Self::Redis(redis) => redis.connection_number(),
            #[cfg(test)]
            Self::Scripted(scripted) => &scripted.link,
        }
    }

    /// Reads the windows of each key without counting.
    pub(super) async fn peek(&self, keys: &[String]) -> Result<Vec<StoreAnswer>, StoreError> {
        match self {
            Self::Postgres(postgres) => postgres.peek(keys).await,
            Self::Redis(redis) => redis.peek(keys).await,
            #[cfg(test)]
            Self::Scripted(_) => Err(StoreError::Unreachable),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postgres(_) => "the control database",
            Self::Redis(_) => "Valkey",
            #[cfg(test)]
            Self::Scripted(_) => "a script",
        })
    }
}

/// Returns the text of a key in a store: `<operation>/<identifier>/<scope>`. It contains the
/// operation's id instead of its index, because versions with different indexes share a store
/// during an upgrade.
pub(super) fn store_key(operation: &str, key: CounterKey) -> String {
    let mut text = String::with_capacity(operation.len() + 32);
    text.push_str(operation);
    // Writing to a string cannot fail.
    let _ = match key.identifier {
        Identifier::User(user) => write!(text, "/u{user}"),
        Identifier::Session(user) => write!(text, "/s{user}"),
        Identifier::Application(application) => write!(text, "/c{application}"),
        Identifier::Address(address) => write!(text, "/a{address:x}"),
    };
    let _ = match key.scope {
        CounterScope::User => write!(text, "/-"),
        CounterScope::Organization(organization) => write!(text, "/o{organization}"),
        CounterScope::Project(project) => write!(text, "/p{project}"),
        CounterScope::Unresolved => write!(text, "/?"),
        CounterScope::LookUps => write!(text, "/look-ups"),
    };
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashSet;

    use parking_lot::Mutex;

    use super::*;
    use gantry_base::ids::{ApplicationId, OrganizationId, ProjectId, UserId};

    /// A store that returns scripted answers in order, and then hangs.
    pub struct ScriptedStore {
        pub(in crate::platform::rate_limits) answers:
            Mutex<std::collections::VecDeque<StoreAnswer>>,
        pub(in crate::platform::rate_limits) others: std::sync::atomic::AtomicU32,
        pub(in crate::platform::rate_limits) link: watch::Sender<u64>,
    }

    impl Default for ScriptedStore {
        fn default() -> Self {
            Self {
                answers: Mutex::default(),
                others: 0.into(),
                link: watch::Sender::new(1),
            }
        }
    }

    impl ScriptedStore {
        pub(super) fn heartbeat(&self) -> HeartbeatAnswer {
            HeartbeatAnswer {
                others: self.others.load(std::sync::atomic::Ordering::Relaxed),
                counters: "scripted".into(),
            }
        }

        pub(super) async fn take(&self) -> Result<StoreAnswer, StoreError> {
            let next = self.answers.lock().pop_front();
            match next {
                Some(answer) => Ok(answer),
                None => std::future::pending().await,
            }
        }
    }

    #[test]
    fn store_keys_are_distinct() {
        let identifiers = [
            Identifier::User(UserId(1)),
            Identifier::User(UserId(11)),
            Identifier::Session(UserId(1)),
            Identifier::Application(ApplicationId(1)),
            Identifier::Address(1),
            Identifier::Address(u64::MAX),
        ];
        let scopes = [
            CounterScope::User,
            CounterScope::Unresolved,
            CounterScope::Organization(OrganizationId(1)),
            CounterScope::Project(ProjectId(1)),
            CounterScope::LookUps,
        ];
        let mut seen = HashSet::new();
        for operation in ["a", "b"] {
            for identifier in identifiers {
                for scope in scopes {
                    assert!(seen.insert(store_key(
                        operation,
                        CounterKey {
                            identifier,
                            scope,
                            operation: 0
                        }
                    )));
                }
            }
        }
        assert_eq!(
            store_key(
                "a",
                CounterKey {
                    identifier: identifiers[1],
                    scope: scopes[3],
                    operation: 7
                }
            ),
            "a/u11/p1"
        );
    }

    #[test]
    fn store_answer_converts_to_quotas() {
        let windows = crate::platform::rate_limits::CONTEXT.windows;
        let quotas = |used, left| {
            StoreAnswer {
                admitted: true,
                used,
                left,
            }
            .quotas(windows)
            .as_slice()
            .to_vec()
        };
        let quota = |limit, remaining, reset_secs| Quota {
            limit,
            remaining,
            reset_secs,
        };
        assert_eq!(
            quotas([3, 1], [59_001, 1]),
            [quota(10, 7, 60), quota(1, 0, 1)]
        );
        assert_eq!(
            quotas([3, 9], [61_000, 0]),
            [quota(10, 7, 60), quota(1, 1, 1)],
            "never longer than the window"
        );
        assert_eq!(
            quotas([30, 1], [1, 1])[0],
            quota(10, 0, 1),
            "more was used than a limit that was lowered since"
        );
    }
}
