//! Two servers of one installation must not write to its store: the one that was recovered, and the
//! original, which may still run.
//!
//! A running server renews an object every twenty seconds, and a recovery waits until it has ended.
//! A recovery then raises the epoch of the store. A server with a control database of a lower epoch
//! stops writing.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::clock::Clock;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

use super::{
    error::{InstallationError, Result},
    objects::InstallationStore,
};

const EPOCH: &str = "epoch";
const ALIVE: &str = "alive";
/// The interval of renewals.
pub(super) const RENEWAL: Duration = Duration::from_secs(20);
/// Time after the last renewal until a server counts as ended.
const TERM: Duration = Duration::from_mins(1);
/// The interval at which a recovery looks for renewals.
const LOOK: Duration = Duration::from_secs(2);

/// The epoch of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreEpoch {
    /// Number of recoveries.
    pub epoch: u64,
    /// The machine of the last recovery.
    pub host: String,
    /// When it was.
    pub raised_at: DateTime<Utc>,
}

/// A running server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveServer {
    /// Its node.
    pub node: Uuid,
    /// Its machine.
    pub host: String,
    /// The last renewal.
    pub renewed_at: DateTime<Utc>,
}

impl StoreEpoch {
    /// Reads the epoch of a store. `None` before the first recovery.
    pub async fn get(store: &InstallationStore) -> Result<Option<Self>> {
        store.get_json(EPOCH).await
    }

    /// Raises the epoch, and returns the new one. An interrupted recovery raises it again.
    pub async fn raise(store: &InstallationStore, host: &str, clock: &Clock) -> Result<u64> {
        let before = Self::get(store).await?.map_or(0, |epoch| epoch.epoch);
        let raised = Self {
            epoch: before + 1,
            host: host.to_owned(),
            raised_at: clock.now(),
        };
        store.put_json(EPOCH, &raised).await?;
        Ok(raised.epoch)
    }

    /// Checks that a server with a control database of this epoch may write.
    ///
    /// Errors: [`InstallationError::Elsewhere`] if the installation was recovered elsewhere.
    pub async fn check(store: &InstallationStore, ours: u64) -> Result<()> {
        let Some(found) = Self::get(store).await? else {
            return Ok(());
        };
        if found.epoch <= ours {
            return Ok(());
        }
        Err(InstallationError::Elsewhere(format!(
            "this installation was recovered from its backups on {} at {}; backups of this server have ended. Stop it, unless the other one was a \
             mistake: then give this server an empty store of backups",
            found.host,
            found.raised_at.format("%Y-%m-%d %H:%M:%S UTC")
        )))
    }
}

impl LiveServer {
    fn object(node: Uuid) -> String {
        format!("{ALIVE}/{node}")
    }

    /// Records that the server runs.
    pub async fn renew(&self, store: &InstallationStore) -> Result<()> {
        let object = Self::object(self.node);
        store.put_json(&object, self).await.map(drop)
    }

    /// Records that the server of a node has ended.
    pub async fn end(store: &InstallationStore, node: Uuid) -> Result<()> {
        store.delete(&Self::object(node)).await
    }

    /// Returns the servers that have not ended cleanly.
    pub async fn all(store: &InstallationStore) -> Result<Vec<Self>> {
        let mut found = Vec::new();
        for node in store.list(ALIVE).await? {
            found.extend(store.get_json(&format!("{ALIVE}/{node}")).await?);
        }
        Ok(found)
    }

    /// Time until the server counts as ended. Clocks of machines differ, so it is at most the whole
    /// term.
    fn left(&self, now: DateTime<Utc>, term: Duration) -> Duration {
        let end = self.renewed_at + TimeDelta::from_std(term).unwrap_or_default();
        let left = (end - now).to_std();
        left.map_or(Duration::ZERO, |left| left.min(term))
    }
}

/// Waits until no server runs with the installation. Calls `waiting` once if it has to wait.
///
/// Errors: [`InstallationError::Refused`] as soon as a server renews.
pub async fn until_ended(
    store: &InstallationStore,
    clock: &Clock,
    waiting: impl FnOnce(&LiveServer, Duration),
) -> Result<()> {
    until_expired(store, clock, TERM, LOOK, waiting).await
}

async fn until_expired(
    store: &InstallationStore,
    clock: &Clock,
    term: Duration,
    pause: Duration,
    waiting: impl FnOnce(&LiveServer, Duration),
) -> Result<()> {
    let before = LiveServer::all(store).await?;
    let now = clock.now();
    let Some(last) = before.iter().max_by_key(|server| server.left(now, term)) else {
        return Ok(());
    };
    let left = last.left(now, term);
    if left.is_zero() {
        return Ok(());
    }
    waiting(last, left);
    let end = Instant::now() + left;
    let mut look = interval(pause);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Instant::now() < end {
        look.tick().await;
        let servers = LiveServer::all(store).await?;
        if let Some(running) = servers.iter().find(|server| !before.contains(server)) {
            return Err(InstallationError::Refused(format!(
                "a server on {} runs with this installation and would operate the same projects: stop it there first, with its services, and never \
                 start it there again",
                running.host
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::objects::tests, *};

    fn server(renewed_at: DateTime<Utc>) -> LiveServer {
        LiveServer {
            node: Uuid::nil(),
            host: "web-1".to_owned(),
            renewed_at,
        }
    }

    #[tokio::test]
    async fn recovery_ends_the_right_of_earlier_servers_to_write() {
        let store = tests::store(1);
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        StoreEpoch::check(&store, 0).await.unwrap();
        assert_eq!(StoreEpoch::raise(&store, "b", &clock).await.unwrap(), 1);
        let refusal = StoreEpoch::check(&store, 0).await.unwrap_err().to_string();
        assert!(
            refusal.contains("recovered from its backups on b at 1970-01-01"),
            "{refusal}"
        );
        StoreEpoch::check(&store, 1).await.unwrap();
        assert_eq!(StoreEpoch::raise(&store, "c", &clock).await.unwrap(), 2);
        StoreEpoch::check(&store, 1).await.unwrap_err();
    }

    #[tokio::test]
    async fn recovery_waits_for_the_term_and_is_refused_by_a_renewal() {
        const TERM: Duration = Duration::from_millis(200);
        const LOOK: Duration = Duration::from_millis(5);
        let store = tests::store(1);
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        until_expired(&store, &clock, TERM, LOOK, |_, _| panic!("no server"))
            .await
            .unwrap();
        let first = server(clock.now());
        first.renew(&store).await.unwrap();
        let mut waited = None;
        until_expired(&store, &clock, TERM, LOOK, |_, left| waited = Some(left))
            .await
            .unwrap();
        assert_eq!(waited, Some(TERM));

        let (began, begin) = tokio::sync::oneshot::channel();
        let renewed = async {
            begin.await.unwrap();
            let later = server(clock.now() + TimeDelta::seconds(20));
            later.renew(&store).await.unwrap();
        };
        let long = Duration::from_mins(1);
        let waiting = until_expired(&store, &clock, long, LOOK, |_, _| began.send(()).unwrap());
        let (refused, ()) = tokio::join!(waiting, renewed);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("a server on web-1 runs"), "{text}");
        LiveServer::end(&store, Uuid::nil()).await.unwrap();
        until_ended(&store, &clock, |_, _| panic!("it has ended"))
            .await
            .unwrap();
    }

    #[test]
    fn wait_is_bounded_although_clocks_differ() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(1);
        for (renewed, left) in [(0, 60), (-10, 50), (-60, 0), (-1000, 0), (1000, 60)] {
            let server = server(now + TimeDelta::seconds(renewed));
            assert_eq!(server.left(now, TERM).as_secs(), left, "{renewed}");
        }
    }
}
