//! State shared by all operations and background tasks.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock, Weak},
};

use gantry_base::{
    clock::{Clock, Entropy},
    net::outbound::OutboundPolicy,
};
use parking_lot::RwLock;
use uuid::Uuid;

use super::{
    access::Directory,
    events::hub::EventHub,
    http::{forwarding::RequestForwarder, transport::Transport},
    outbound::OutboundClient,
    rate_limits::RateLimiter,
    tables::{Cache, Table, Task},
    telemetry::{Metrics, RequestLog},
};
use crate::platform::{db::Db, error::Error, sealing::SealingKey};

/// Settings of the operator that operations of any resource read.
#[derive(Debug, Clone)]
pub struct PlatformSettings {
    /// TLS of the listener, and the trusted forwarding headers.
    pub transport: Transport,
    /// The domain below which databases are `db.<ref>.<domain>`.
    pub project_domain: String,
    /// Links published beside the API.
    pub links: PublishedLinks,
    /// Id of this node, which owns the clusters in its data folder.
    pub node: Uuid,
    /// The key that encrypts secrets in the control database.
    pub sealing: SealingKey,
    /// Networks for requests to addresses that customers choose.
    pub outbound: OutboundPolicy,
    /// Scheme, host and port by which clients reach this server, without a slash at the end. OAuth
    /// needs it: an issuer taken from the `Host` field would be chosen by the sender.
    pub public_url: Option<String>,
}

/// The answer where an issuer is needed and none is configured.
const NO_ISSUER: &str = "OAuth needs an address that clients know this server by. Its operator has to start it with --public-url, \
                         for example --public-url https://api.example.com";

impl PlatformSettings {
    /// The issuer of OAuth tokens (RFC 8414 §2). [`Error::Unconfigured`] without a public URL.
    pub fn issuer(&self) -> Result<&str, Error> {
        self.public_url
            .as_deref()
            .ok_or(Error::Unconfigured(NO_ISSUER))
    }
}

/// Links that the operator publishes with the API (specification §1).
#[derive(Debug, Clone, Default)]
pub struct PublishedLinks {
    /// The fair-use policy.
    pub terms: Option<String>,
    /// The pricing of resources that are created through the API.
    pub pricing: Option<String>,
}

/// Handle to the state of the platform. Cheap to clone.
#[derive(Clone)]
pub struct PlatformContext(Arc<PlatformState>);

/// The parts of the platform's state.
pub struct PlatformState {
    /// Settings of the operator.
    pub settings: PlatformSettings,
    /// The clock.
    pub clock: Clock,
    /// The source of randomness.
    pub entropy: Entropy,
    /// The control database.
    pub db: Db,
    /// Cached rows that access decisions read.
    pub directory: Directory,
    /// Rate limits.
    pub limits: RateLimiter,
    /// Requests to other servers.
    pub outbound: OutboundClient,
    /// Counters and durations, for Prometheus.
    pub metrics: Metrics,
    /// Answered requests that name a project, until they are written to its logs.
    pub request_log: RequestLog,
    /// Requests that wait for events.
    pub events: EventHub,
    /// Passes requests on to the servers that hold their projects. Unset without other servers.
    forwarder: OnceLock<Arc<dyn RequestForwarder>>,
    /// Parts of the wings above that react to changes of tables.
    listeners: RwLock<Vec<Weak<dyn ChangeListener>>>,
}

/// Reacts to changes in the control database.
pub trait ChangeListener: Send + Sync {
    /// Drops what the cache holds.
    fn invalidate(&self, cache: Cache);
    /// Starts the task's next pass.
    fn wake(&self, task: Task);
    /// Notifications arrive from now on (`true`), or changes may be missed (`false`): drops all
    /// caches, and caches again only while notifications arrive.
    fn set_subscribed(&self, subscribed: bool);
}

impl Deref for PlatformContext {
    type Target = PlatformState;

    fn deref(&self) -> &PlatformState {
        &self.0
    }
}

impl PlatformContext {
    /// A context of these parts.
    pub fn new(
        settings: PlatformSettings,
        clock: Clock,
        entropy: Entropy,
        db: Db,
        directory: Directory,
        limits: RateLimiter,
        metrics: Metrics,
    ) -> Self {
        let policy = settings.outbound.clone();
        let outbound = OutboundClient::new(policy, db.clone(), clock.clone(), &metrics);
        let state = Arc::new(PlatformState {
            settings,
            clock,
            entropy,
            db,
            directory,
            limits,
            outbound,
            metrics,
            request_log: RequestLog::default(),
            events: EventHub::default(),
            forwarder: OnceLock::new(),
            listeners: RwLock::default(),
        });
        let listener = Arc::downgrade(&state);
        state.add_listener(listener);
        Self(state)
    }
}

impl PlatformState {
    /// Adds a listener. It is dropped with its last owner.
    pub fn add_listener(&self, listener: Weak<dyn ChangeListener>) {
        self.listeners.write().push(listener);
    }

    /// Sets the forwarder of requests. Later calls do nothing.
    pub fn set_forwarder(&self, forwarder: Arc<dyn RequestForwarder>) {
        let _ = self.forwarder.set(forwarder);
    }

    /// Returns the forwarder of requests, if there may be other servers.
    pub fn forwarder(&self) -> Option<&dyn RequestForwarder> {
        self.forwarder.get().map(|forwarder| &**forwarder)
    }

    fn each_listener(&self, call: impl Fn(&dyn ChangeListener)) {
        let listeners = self.listeners.read().clone();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            call(&*listener);
        }
    }

    /// Invalidates this node's caches of a table that a transaction changed. Other nodes follow by
    /// notification.
    pub fn table_changed(&self, table: Table) {
        for cache in table.caches() {
            self.each_listener(|listener| listener.invalidate(*cache));
        }
    }

    /// Reacts to a notification: invalidates caches and wakes tasks.
    pub fn table_notified(&self, table: Table) {
        self.table_changed(table);
        for task in table.wakes() {
            self.each_listener(|listener| listener.wake(*task));
        }
    }

    /// Passes on to every listener whether notifications arrive. Wakes all tasks if they do.
    pub fn set_subscribed(&self, subscribed: bool) {
        self.each_listener(|listener| listener.set_subscribed(subscribed));
        if subscribed {
            for task in Task::ALL {
                self.each_listener(|listener| listener.wake(*task));
            }
        }
    }
}

impl ChangeListener for PlatformState {
    fn invalidate(&self, cache: Cache) {
        self.directory.invalidate(cache);
        if cache == Cache::OutboundHosts {
            self.outbound.invalidate();
        }
        if matches!(cache, Cache::AccessTokens | Cache::Organizations) {
            self.events.access_changed();
        }
    }

    fn wake(&self, task: Task) {
        match task {
            Task::RateLimitOverrides => self.limits.override_changes().wake(),
            Task::Events => self.events.announce(),
            _ => {}
        }
    }

    fn set_subscribed(&self, subscribed: bool) {
        self.directory.set_trusted(subscribed);
        self.outbound.set_trusted(subscribed);
    }
}
