//! Who is reached under which name, in memory: read whole from the control database, and again whenever it changes.
//!
//! What is known is served on while the control database is away. What was taken away, on any node, is not served any more once
//! the change was heard of: requests wait for the new table then.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use hyper::header::HeaderValue;
use parking_lot::RwLock;
use rustls::sign::CertifiedKey;
use smol_str::SmolStr;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{key_checks, overrides, upstreams::Upstreams};
use crate::{
    base::{
        error::Error,
        ids::{ProjectId, ProjectRef},
    },
    data_plane::{
        context::DataPlaneContext,
        domains,
        domains::{
            PublishedProject,
            hostnames::{acme, acme::ChallengeResponse, wildcard},
        },
    },
};

/// Without a word from the database the table is read again so often: a notification may have been lost.
const FULL_PASS: Duration = Duration::from_secs(30);
/// Projects change their status often, which matters little: the table is not read more often for it.
const GATHER: Duration = Duration::from_millis(500);
/// How soon a failed reading is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// How long a request waits for a table that is being read. Then it goes by the old one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether a name leads to a project's services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteStatus {
    Yes,
    /// The project is paused.
    Paused,
    /// A hostname with a certificate that was not activated.
    NotYet,
}

/// What is reached under a name.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) project: ProjectId,
    pub(super) reference: ProjectRef,
    /// The same for services.
    pub(super) told: Option<HeaderValue>,
    pub(super) status: RouteStatus,
    /// Where services of this project answer, instead of where those of all do.
    pub(super) upstreams: Option<Arc<Upstreams>>,
    /// Whether clients must send an API key of this project. None: as for all projects.
    pub(super) check_keys: Option<bool>,
    /// Its own certificate. None: that of the projects' domain.
    pub(super) certificate: Option<Arc<CertifiedKey>>,
    /// Whether there is a certificate for it at all.
    pub(super) own_domain: bool,
    /// What clients are told about HTTPS, if the name's owner wants that.
    pub(super) hsts: Option<HeaderValue>,
}

/// RouteCache and where they lead.
#[derive(Debug, Default)]
pub(super) struct RouteTable {
    sites: HashMap<SmolStr, Arc<Route>>,
    /// What authorities are answered that look whether a hostname leads here.
    challenges: HashMap<SmolStr, Arc<ChallengeResponse>>,
    /// The certificate for names below the projects' domain, if it is an authority's.
    pub(super) wildcard: Option<Arc<CertifiedKey>>,
}

impl RouteTable {
    /// What is reached under `host`, which is in lower case.
    pub(super) fn get(&self, host: &str) -> Option<&Arc<Route>> {
        self.sites.get(host)
    }

    fn new(
        domain: &str,
        published: Vec<PublishedProject>,
        overrides: &HashMap<ProjectId, Arc<Upstreams>>,
        key_checks: &HashMap<ProjectId, bool>,
        challenges: HashMap<SmolStr, Arc<ChallengeResponse>>,
    ) -> Self {
        let domain = domain.to_ascii_lowercase();
        let mut table = HashMap::with_capacity(published.len());
        for one in published {
            let route = |status,
                         certificate: Option<Arc<CertifiedKey>>,
                         own_domain,
                         hsts_secs: Option<i32>| Route {
                project: one.project,
                reference: one.reference.clone(),
                told: HeaderValue::from_str(one.reference.as_str()).ok(),
                status: if one.paused && status == RouteStatus::Yes {
                    RouteStatus::Paused
                } else {
                    status
                },
                upstreams: overrides.get(&one.project).cloned(),
                check_keys: key_checks.get(&one.project).copied(),
                certificate,
                own_domain,
                hsts: hsts_secs
                    .and_then(|secs| HeaderValue::try_from(format!("max-age={secs}")).ok()),
            };
            let below = Arc::new(route(RouteStatus::Yes, None, true, None));
            if let Some(name) = &one.vanity {
                table.insert(format!("{name}.{domain}").into(), below.clone());
            }
            if let Some(hostname) = one.hostname {
                let status = if hostname.active {
                    RouteStatus::Yes
                } else {
                    RouteStatus::NotYet
                };
                table.insert(
                    hostname.host,
                    Arc::new(route(
                        status,
                        hostname.certificate,
                        false,
                        hostname.hsts_secs,
                    )),
                );
            }
            // Last: nothing takes the name of a project's reference.
            table.insert(format!("{}.{domain}", one.reference).into(), below);
        }
        Self {
            sites: table,
            challenges,
            wildcard: None,
        }
    }
}

/// The table, and whether it is what the database says.
pub(super) struct RouteCache {
    table: RwLock<Arc<RouteTable>>,
    /// Counts changes that requests wait for.
    wanted: AtomicU64,
    /// The count that the table was read after. Zero: never.
    read: watch::Sender<u64>,
    /// Whether a change was heard of that requests do not wait for, unless they find nothing.
    outdated: AtomicBool,
    /// Whether the database was away when the table was to be read: requests do not wait for what cannot be read.
    stalled: watch::Sender<bool>,
    bell: Notify,
}

impl Default for RouteCache {
    fn default() -> Self {
        Self {
            table: RwLock::default(),
            wanted: AtomicU64::new(1),
            read: watch::channel(0).0,
            outdated: AtomicBool::new(false),
            stalled: watch::Sender::new(false),
            bell: Notify::new(),
        }
    }
}

impl RouteCache {
    /// What is known, without waiting.
    pub(super) fn known(&self) -> Arc<RouteTable> {
        self.table.read().clone()
    }

    /// What is reached under `host`: not before everything heard of was read.
    pub(super) async fn find(&self, host: &str) -> Option<Arc<Route>> {
        self.caught_up().await;
        let known = self.known().get(host).cloned();
        if known.is_some() || !self.outdated.load(Ordering::Acquire) || *self.stalled.borrow() {
            return known;
        }
        // A project that was made a moment ago.
        self.change();
        self.caught_up().await;
        self.known().get(host).cloned()
    }

    /// What an authority is answered that looks whether `host` leads here, if one was asked to.
    pub(super) async fn challenge(&self, host: &str) -> Option<Arc<ChallengeResponse>> {
        self.caught_up().await;
        self.known().challenges.get(host).cloned()
    }

    /// Something changed that nobody may be served by any more.
    pub(super) fn change(&self) {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        self.stalled.send_replace(false);
        self.bell.notify_one();
    }

    /// Something changed that can wait.
    pub(super) fn drift(&self) {
        self.outdated.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Changes whenever the table was read.
    pub(super) fn readings(&self) -> watch::Receiver<u64> {
        self.read.subscribe()
    }

    async fn caught_up(&self) {
        let wanted = self.wanted.load(Ordering::Acquire);
        if *self.read.borrow() < wanted {
            let (mut read, mut stalled) = (self.read.subscribe(), self.stalled.subscribe());
            // The senders are ours. Late is better than never: the old table is served then.
            let settled = async {
                tokio::select! {
                    _ = read.wait_for(|read| *read >= wanted) => {}
                    _ = stalled.wait_for(|stalled| *stalled) => {}
                }
            };
            let _ = Box::pin(timeout(PATIENCE, settled)).await;
        }
    }

    async fn read(&self, context: &DataPlaneContext) -> Result<(), Error> {
        let wanted = self.wanted.load(Ordering::Acquire);
        self.outdated.store(false, Ordering::Release);
        let (published, overrides, key_checks, challenges, wildcard) = tokio::try_join!(
            domains::published(context),
            overrides::all(&context.db),
            key_checks::all(&context.db),
            acme::challenges(context),
            wildcard::certificate(context)
        )?;
        let table = RouteTable::new(
            &context.settings.project_domain,
            published,
            &overrides,
            &key_checks,
            challenges,
        );
        *self.table.write() = Arc::new(RouteTable { wildcard, ..table });
        self.stalled.send_replace(false);
        self.read.send_replace(wanted);
        Ok(())
    }
}

/// Keeps the table up to date until the process ends.
pub(super) async fn run(context: DataPlaneContext) {
    let routes = &context.service_proxy.routes;
    loop {
        let began = Instant::now();
        let pause = match Box::pin(routes.read(&context)).await {
            Ok(()) => FULL_PASS,
            Err(error) => {
                let away = matches!(error, Error::Unavailable { .. });
                if !routes.stalled.send_replace(away) {
                    tracing::warn!(%error, "could not read who is reached under which name; what is known is served on");
                }
                routes.outdated.store(true, Ordering::Release);
                RETRY
            }
        };
        // Whatever rang meanwhile is remembered by the bell.
        let rung = timeout(pause, routes.bell.notified()).await.is_ok();
        while rung
            && *routes.read.borrow() >= routes.wanted.load(Ordering::Acquire)
            && began.elapsed() < GATHER
        {
            tokio::select! {
                () = routes.bell.notified() => {}
                () = sleep_until(began + GATHER) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::domains::PublishedHostname;

    fn published(
        id: i64,
        letter: &str,
        vanity: Option<&str>,
        hostname: Option<(&str, bool)>,
        paused: bool,
    ) -> PublishedProject {
        PublishedProject {
            project: ProjectId(id),
            reference: letter.repeat(20).parse().unwrap(),
            paused,
            vanity: vanity.map(str::to_owned),
            hostname: hostname.map(|(host, active)| PublishedHostname {
                host: host.into(),
                active,
                certificate: None,
                hsts_secs: None,
            }),
        }
    }

    #[test]
    fn a_name_leads_to_one_project_and_only_when_it_may() {
        let all = vec![
            published(1, "a", Some("shop"), None, false),
            published(2, "b", None, Some(("api.customer.test", true)), false),
            published(3, "c", None, Some(("new.customer.test", false)), true),
        ];
        let table = RouteTable::new(
            "Example.Test",
            all,
            &HashMap::new(),
            &HashMap::new(),
            HashMap::new(),
        );
        let at = |host: &str| table.get(host).map(|route| (route.project.0, route.status));
        let (a, b, c) = ("a".repeat(20), "b".repeat(20), "c".repeat(20));
        assert_eq!(
            at(&format!("{a}.example.test")),
            Some((1, RouteStatus::Yes))
        );
        assert_eq!(at("shop.example.test"), Some((1, RouteStatus::Yes)));
        assert_eq!(
            at(&format!("{b}.example.test")),
            Some((2, RouteStatus::Yes))
        );
        assert_eq!(at("api.customer.test"), Some((2, RouteStatus::Yes)));
        assert_eq!(
            at(&format!("{c}.example.test")),
            Some((3, RouteStatus::Paused))
        );
        assert_eq!(at("new.customer.test"), Some((3, RouteStatus::NotYet)));
        for nobody in [
            "example.test",
            "shop",
            "x.shop.example.test",
            &a,
            "evil.test",
        ] {
            assert_eq!(at(nobody), None, "{nobody}");
        }
    }

    #[tokio::test]
    async fn a_request_waits_for_what_was_taken_away_and_not_for_the_rest() {
        let routes = RouteCache::default();
        routes.read.send_replace(1);
        let settled =
            |routes: &RouteCache| *routes.read.borrow() >= routes.wanted.load(Ordering::Acquire);
        assert!(settled(&routes));
        routes.drift();
        assert!(settled(&routes), "nobody waits for a status");
        routes.change();
        assert!(!settled(&routes));
        routes.read.send_replace(2);
        timeout(Duration::from_secs(1), routes.caught_up())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_request_does_not_wait_for_a_database_that_is_away() {
        let routes = RouteCache::default();
        routes.read.send_replace(1);
        routes.change();
        let begun = Instant::now();
        let (found, ()) = tokio::join!(routes.find("a.example.test"), async {
            routes.outdated.store(true, Ordering::Release);
            routes.stalled.send_replace(true);
        });
        assert!(
            found.is_none() && begun.elapsed() < PATIENCE,
            "{:?}",
            begun.elapsed()
        );
        routes.change();
        timeout(Duration::from_millis(20), routes.caught_up())
            .await
            .unwrap_err();
    }
}
