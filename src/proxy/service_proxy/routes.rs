//! Host names and the projects they route to: a complete in-memory copy, reloaded from the control
//! database after each change.
//!
//! While the control database is unreachable, the last copy is used. After a notification that
//! removes or changes a route, requests wait for the reloaded copy.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gantry_base::ids::{ProjectId, ProjectRef};
use hyper::header::HeaderValue;
use parking_lot::RwLock;
use rustls::sign::CertifiedKey;
use smol_str::SmolStr;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::upstreams::Upstreams;

/// Longest time that a request waits for a reload before it uses the outdated copy.
const RELOAD_WAIT_MAX: Duration = Duration::from_secs(2);

/// Whether a host name is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteStatus {
    Active,
    /// The project is paused.
    Paused,
    /// A custom hostname that has a certificate and is not activated.
    NotActivated,
}

/// The destination of a host name.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) project: ProjectId,
    pub(super) reference: ProjectRef,
    /// The reference as a header value.
    pub(super) reference_header: Option<HeaderValue>,
    pub(super) status: RouteStatus,
    /// Upstreams that override the defaults for this project.
    pub(super) upstreams: Option<Arc<Upstreams>>,
    /// Whether clients must send an API key of this project. `None`: the default applies.
    pub(super) check_keys: Option<bool>,
    /// The host name's own certificate. `None`: the wildcard certificate of the projects' domain.
    pub(super) certificate: Option<Arc<CertifiedKey>>,
    /// Whether the host name is below the projects' domain.
    pub(super) own_domain: bool,
    /// Value of `Strict-Transport-Security`, if configured.
    pub(super) hsts: Option<HeaderValue>,
}

/// A project and the names that route to it.
#[derive(Debug)]
pub struct PublishedProject {
    /// The project.
    pub project: ProjectId,
    /// Its reference.
    pub reference: ProjectRef,
    /// Whether the project is paused.
    pub paused: bool,
    /// Vanity subdomain, without the domain.
    pub vanity: Option<String>,
    /// Custom hostname, if certified.
    pub hostname: Option<PublishedHostname>,
}

/// A custom hostname with a certificate.
#[derive(Debug)]
pub struct PublishedHostname {
    /// DNS name.
    pub host: SmolStr,
    /// Whether it was activated.
    pub active: bool,
    /// Certificate and key.
    pub certificate: Option<Arc<CertifiedKey>>,
    /// `max-age` of `Strict-Transport-Security`, in seconds.
    pub hsts_secs: Option<i32>,
}

/// The response to an HTTP-01 or TLS-ALPN-01 challenge.
#[derive(Debug)]
pub struct ChallengeResponse {
    /// Token of the challenge.
    pub token: String,
    /// Key authorization, the expected response.
    pub key_authorization: String,
}

/// The routes of all projects, as the control plane knows them.
#[derive(Debug, Default)]
pub struct PublishedRoutes {
    /// Projects and their names.
    pub projects: Vec<PublishedProject>,
    /// Upstreams that override the defaults, by project.
    pub upstreams: HashMap<ProjectId, Arc<Upstreams>>,
    /// Whether clients must send an API key, by project. Others use the default.
    pub key_checks: HashMap<ProjectId, bool>,
    /// Responses to pending ACME challenges, by host name.
    pub challenges: HashMap<SmolStr, Arc<ChallengeResponse>>,
    /// Wildcard certificate of the projects' domain, if issued by ACME.
    pub wildcard: Option<Arc<CertifiedKey>>,
}

/// Routes by host name.
#[derive(Debug, Default)]
pub(super) struct RouteTable {
    sites: HashMap<SmolStr, Arc<Route>>,
    /// Responses to pending ACME challenges, by host name.
    challenges: HashMap<SmolStr, Arc<ChallengeResponse>>,
    /// Wildcard certificate of the projects' domain, if issued by ACME.
    pub(super) wildcard: Option<Arc<CertifiedKey>>,
}

impl RouteTable {
    /// Returns the route of `host`, which is in lower case.
    pub(super) fn get(&self, host: &str) -> Option<&Arc<Route>> {
        self.sites.get(host)
    }

    fn new(domain: &str, published: PublishedRoutes) -> Self {
        let domain = domain.to_ascii_lowercase();
        let mut table = HashMap::with_capacity(published.projects.len());
        for one in published.projects {
            let route = |status,
                         certificate: Option<Arc<CertifiedKey>>,
                         own_domain,
                         hsts_secs: Option<i32>| Route {
                project: one.project,
                reference: one.reference.clone(),
                reference_header: HeaderValue::from_str(one.reference.as_str()).ok(),
                status: if one.paused && status == RouteStatus::Active {
                    RouteStatus::Paused
                } else {
                    status
                },
                upstreams: published.upstreams.get(&one.project).cloned(),
                check_keys: published.key_checks.get(&one.project).copied(),
                certificate,
                own_domain,
                hsts: hsts_secs
                    .and_then(|secs| HeaderValue::try_from(format!("max-age={secs}")).ok()),
            };
            let project_route = Arc::new(route(RouteStatus::Active, None, true, None));
            if let Some(name) = &one.vanity {
                table.insert(format!("{name}.{domain}").into(), project_route.clone());
            }
            if let Some(hostname) = one.hostname {
                let status = if hostname.active {
                    RouteStatus::Active
                } else {
                    RouteStatus::NotActivated
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
            // Inserted last: a project's reference always routes to the project.
            table.insert(format!("{}.{domain}", one.reference).into(), project_route);
        }
        Self {
            sites: table,
            challenges: published.challenges,
            wildcard: published.wildcard,
        }
    }
}

/// Cached routes and their freshness.
pub(super) struct RouteCache {
    table: RwLock<Arc<RouteTable>>,
    /// Number of announced changes.
    announced: AtomicU64,
    /// Number of the last change that requests wait for.
    wanted: AtomicU64,
    /// Number of changes that were announced before the last successful reload began. Zero: not yet
    /// loaded.
    read: watch::Sender<u64>,
    /// Whether the last reload failed because the control database is unreachable. Requests do not
    /// wait then.
    stalled: watch::Sender<bool>,
    notify: Notify,
}

impl Default for RouteCache {
    fn default() -> Self {
        Self {
            table: RwLock::default(),
            announced: AtomicU64::new(1),
            wanted: AtomicU64::new(1),
            read: watch::channel(0).0,
            stalled: watch::Sender::new(false),
            notify: Notify::new(),
        }
    }
}

impl RouteCache {
    /// Returns the current routes without waiting.
    pub(super) fn current(&self) -> Arc<RouteTable> {
        self.table.read().clone()
    }

    /// Returns the route of `host`, after all announced changes were loaded.
    pub(super) async fn find(&self, host: &str) -> Option<Arc<Route>> {
        self.reloaded().await;
        let known = self.current().get(host).cloned();
        let announced = self.announced.load(Ordering::Acquire);
        if known.is_some() || *self.read.borrow() >= announced || *self.stalled.borrow() {
            return known;
        }
        // The project may have been created since the last reload began.
        self.want(announced);
        self.reloaded().await;
        self.current().get(host).cloned()
    }

    /// Returns the response to a pending ACME challenge for `host`.
    pub(super) async fn challenge(&self, host: &str) -> Option<Arc<ChallengeResponse>> {
        self.reloaded().await;
        self.current().challenges.get(host).cloned()
    }

    /// Announces a change that no request may miss.
    pub(super) fn change(&self) {
        let change = self.announced.fetch_add(1, Ordering::AcqRel) + 1;
        self.stalled.send_replace(false);
        self.want(change);
    }

    /// Announces a change that requests need not wait for, unless their host is unknown.
    pub(super) fn change_status(&self) {
        self.announced.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// Makes requests wait for a change.
    fn want(&self, change: u64) {
        self.wanted.fetch_max(change, Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// Returns a receiver that changes after each reload.
    pub(super) fn reloads(&self) -> watch::Receiver<u64> {
        self.read.subscribe()
    }

    async fn reloaded(&self) {
        let wanted = self.wanted.load(Ordering::Acquire);
        if *self.read.borrow() < wanted {
            let mut read = self.read.subscribe();
            let mut stalled = self.stalled.subscribe();
            // The senders outlive this future. After the timeout the outdated routes are used.
            let settled = async {
                tokio::select! {
                    _ = read.wait_for(|read| *read >= wanted) => {}
                    _ = stalled.wait_for(|stalled| *stalled) => {}
                }
            };
            let _ = Box::pin(timeout(RELOAD_WAIT_MAX, settled)).await;
        }
    }

    /// Returns the number of announced changes. A reload that begins afterwards has them all.
    pub(super) fn begin_reload(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// Replaces the routes by those of a reload that began with this number of changes.
    pub(super) fn replace(&self, announced: u64, domain: &str, published: PublishedRoutes) {
        *self.table.write() = Arc::new(RouteTable::new(domain, published));
        self.stalled.send_replace(false);
        self.read.send_replace(announced);
    }

    /// Notes that a reload failed. Returns whether the one before it failed for the same reason.
    pub(super) fn fail(&self, is_unreachable: bool) -> bool {
        self.stalled.send_replace(is_unreachable)
    }

    /// Returns when a change was announced.
    pub(super) async fn announced(&self) {
        self.notify.notified().await;
    }

    /// Returns whether no request waits for a reload.
    pub(super) fn is_settled(&self) -> bool {
        *self.read.borrow() >= self.wanted.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::*;

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
    fn host_name_routes_to_one_project() {
        let all = vec![
            published(1, "a", Some("shop"), None, false),
            published(2, "b", None, Some(("api.customer.test", true)), false),
            published(3, "c", None, Some(("new.customer.test", false)), true),
        ];
        let published = PublishedRoutes {
            projects: all,
            ..PublishedRoutes::default()
        };
        let table = RouteTable::new("Example.Test", published);
        let at = |host: &str| table.get(host).map(|route| (route.project.0, route.status));
        let a = "a".repeat(20);
        let b = "b".repeat(20);
        let c = "c".repeat(20);
        assert_eq!(
            at(&format!("{a}.example.test")),
            Some((1, RouteStatus::Active))
        );
        assert_eq!(at("shop.example.test"), Some((1, RouteStatus::Active)));
        assert_eq!(
            at(&format!("{b}.example.test")),
            Some((2, RouteStatus::Active))
        );
        assert_eq!(at("api.customer.test"), Some((2, RouteStatus::Active)));
        assert_eq!(
            at(&format!("{c}.example.test")),
            Some((3, RouteStatus::Paused))
        );
        assert_eq!(
            at("new.customer.test"),
            Some((3, RouteStatus::NotActivated))
        );
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
    async fn request_waits_for_removals_only() {
        let routes = RouteCache::default();
        routes.read.send_replace(1);
        assert!(routes.is_settled());
        routes.change_status();
        assert!(routes.is_settled(), "no request waits for a status");
        routes.change();
        assert!(!routes.is_settled());
        routes.read.send_replace(3);
        timeout(Duration::from_secs(1), routes.reloaded())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn unknown_host_waits_for_changes_since_the_last_reload_began() {
        let routes = RouteCache::default();
        routes.read.send_replace(1);
        let unknown = routes.find("a.example.test").now_or_never();
        assert!(unknown.is_some_and(|found| found.is_none()), "all is read");
        // A reload that began before the change does not have it.
        routes.change_status();
        routes.read.send_replace(1);
        let mut finding = Box::pin(routes.find("a.example.test"));
        assert!(finding.as_mut().now_or_never().is_none());
        routes.read.send_replace(2);
        let found = timeout(Duration::from_secs(1), finding).await;
        assert!(found.unwrap().is_none());
    }

    #[tokio::test]
    async fn request_does_not_wait_during_an_outage() {
        let routes = RouteCache::default();
        routes.read.send_replace(1);
        routes.change();
        let begun = Instant::now();
        let (found, ()) = tokio::join!(routes.find("a.example.test"), async {
            routes.change_status();
            routes.stalled.send_replace(true);
        });
        assert!(
            found.is_none() && begun.elapsed() < RELOAD_WAIT_MAX,
            "{:?}",
            begun.elapsed()
        );
        routes.change();
        timeout(Duration::from_millis(20), routes.reloaded())
            .await
            .unwrap_err();
    }
}
