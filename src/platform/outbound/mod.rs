//! The one way of HTTP requests to other servers: one client with one policy (decision 0185).
//!
//! - [`OutboundUse`] is a use, with its bounds; [`uses`] declares all.
//! - [`UrlOwner`] is the party that chose the URL. Addresses of the operator are not restricted,
//!   those of customers are, by the operator's networks and by the lists of [`hosts`].
//! - Each request is counted by its use and its outcome.

pub mod document;
pub mod hosts;
pub mod uses;

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use gantry_base::{
    clock::Clock,
    net::{
        http_client::{HttpClient, HttpClientOptions, RequestError},
        outbound::{self, OutboundPolicy},
    },
};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{Full, LengthLimitError};
use metrics::Counter;
use tokio::net::TcpStream;

pub use self::{
    hosts::{HostRules, UrlOwner},
    uses::{BodyUse, OutboundUse},
};
use crate::platform::{
    cache::EpochCache,
    db::Db,
    telemetry::{Metric, MetricLabel, Metrics},
};

/// Maximum number of owners with cached rules.
const RULES_MAX: usize = 10_000;
/// The outcomes of a request, as counted.
const OUTCOMES: [&str; 5] = ["success", "error_status", "refused", "timed_out", "failed"];

const REQUESTS: Metric = Metric::counter(
    "gantry_outbound_requests_total",
    "Requests to addresses that users chose",
)
.with_labels(&[
    MetricLabel::any("use", "purpose of the request, such as `platform_webhook`"),
    MetricLabel::one_of("outcome", &OUTCOMES),
]);

/// Metrics of the outgoing client.
pub const METRICS: &[&Metric] = &[&REQUESTS];

/// The outgoing client. Cheap to clone.
#[derive(Clone)]
pub struct OutboundClient(Arc<Inner>);

struct Inner {
    policy: OutboundPolicy,
    customers: HttpClient,
    customers_http2: HttpClient,
    operator: HttpClient,
    db: Db,
    clock: Clock,
    rules: EpochCache<UrlOwner, HostRules>,
    /// Counters of each use, in the order of [`uses::ALL`] and [`OUTCOMES`].
    counters: Vec<(&'static str, [Counter; OUTCOMES.len()])>,
}

/// A complete response.
#[derive(Debug)]
pub struct OutboundResponse {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body, as received. Empty if the use drops it.
    pub body: Bytes,
    /// Whether the body was left out because it is longer than the use permits.
    pub is_body_omitted: bool,
}

impl OutboundResponse {
    /// Returns the pause that the server asks for, if it is a number of seconds (RFC 9110, 10.2.3).
    pub fn retry_after(&self) -> Option<Duration> {
        let value = self.headers.get(header::RETRY_AFTER)?;
        let seconds = value.to_str().ok()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }
}

/// The reason why a request has no complete response. The texts are for customers.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// The address or the host is not permitted.
    #[error("{0}")]
    Refused(String),
    /// The response was not complete in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// There is no connection.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The connection ended before the end of the response.
    #[error("the connection ended before the end of the response")]
    Broken,
    /// The body is longer than this number of bytes.
    #[error("the response has more than {0} bytes")]
    TooLong(usize),
}

impl OutboundError {
    fn outcome(&self) -> usize {
        match self {
            Self::Refused(_) => 2,
            Self::TimedOut => 3,
            _ => 4,
        }
    }
}

impl OutboundClient {
    /// Creates the client without connecting, and registers its metrics.
    pub fn new(policy: OutboundPolicy, db: Db, clock: Clock, metrics: &Metrics) -> Self {
        let http2 = HttpClientOptions {
            http2: true,
            ..HttpClientOptions::default()
        };
        let counter = |name: &'static str| {
            let count = |outcome| metrics.counter(&REQUESTS, &[name, outcome]);
            (name, OUTCOMES.map(count))
        };
        Self(Arc::new(Inner {
            customers: HttpClient::new(&policy),
            customers_http2: HttpClient::with_options(&policy, http2),
            operator: HttpClient::new(&OutboundPolicy::unrestricted()),
            policy,
            db,
            clock,
            rules: EpochCache::new(RULES_MAX),
            counters: uses::ALL.iter().map(|usage| counter(usage.name)).collect(),
        }))
    }

    /// Returns the operator's policy for addresses that customers choose.
    pub fn policy(&self) -> &OutboundPolicy {
        &self.0.policy
    }

    /// Sends a request and returns its complete response. Redirects are not followed.
    pub async fn send(
        &self,
        usage: &OutboundUse,
        owner: UrlOwner,
        request: Request<Full<Bytes>>,
    ) -> Result<OutboundResponse, OutboundError> {
        self.send_within(usage, owner, request, usage.timeout).await
    }

    /// As [`Self::send`], with a shorter timeout than that of the use.
    pub async fn send_within(
        &self,
        usage: &OutboundUse,
        owner: UrlOwner,
        request: Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<OutboundResponse, OutboundError> {
        let sent = self.exchange(usage, owner, request, timeout).await;
        let outcome = match &sent {
            Ok(response) => usize::from(response.status.as_u16() >= 400),
            Err(error) => error.outcome(),
        };
        self.count(usage, outcome);
        sent
    }

    /// Opens a connection for another protocol than HTTP. Its outcome is counted.
    pub async fn connect(
        &self,
        usage: &OutboundUse,
        owner: UrlOwner,
        (host, port): (&str, u16),
    ) -> Result<TcpStream, OutboundError> {
        let connecting = async {
            self.check_host(owner, host).await?;
            let connected = self.0.policy.connect(host, port).await;
            connected.map_err(|error| connection_problem(&error))
        };
        let connected = connecting.await;
        let outcome = connected
            .as_ref()
            .map_or_else(OutboundError::outcome, |_| 0);
        self.count(usage, outcome);
        connected
    }

    /// Counts a request of a client that has its own protocol over HTTP.
    pub fn count_exchange(&self, usage: &OutboundUse, failure: Option<&OutboundError>) {
        self.count(usage, failure.map_or(0, OutboundError::outcome));
    }

    /// Rejects a host that the lists of the owner do not have.
    pub async fn check_host(&self, owner: UrlOwner, host: &str) -> Result<(), OutboundError> {
        if owner == UrlOwner::Operator || self.rules(owner).await?.permit(host) {
            return Ok(());
        }
        let text = format!(
            "{host} is not among the hosts that the project or its organization permits; \
             add it to outbound-hosts"
        );
        Err(OutboundError::Refused(text))
    }

    /// Drops the cached rules.
    pub(super) fn invalidate(&self) {
        self.0.rules.clear();
    }

    /// Drops the cached rules, and caches again only while notifications arrive.
    pub(super) fn set_trusted(&self, trusted: bool) {
        self.0.rules.set_trusted(trusted);
    }

    async fn rules(&self, owner: UrlOwner) -> Result<HostRules, OutboundError> {
        let Inner {
            db, clock, rules, ..
        } = &*self.0;
        if let Some(found) = rules.get(&owner, clock.ticks()) {
            return Ok(found);
        }
        let epoch = rules.epoch();
        let read = HostRules::read(db, owner).await;
        // Without the rules no request is sent.
        let read = read.map_err(|error| {
            tracing::debug!(%error, "permitted hosts cannot be read");
            OutboundError::Unreachable("the settings of this server cannot be read".to_owned())
        })?;
        rules.put(owner, read.clone(), clock.ticks(), epoch);
        Ok(read)
    }

    async fn exchange(
        &self,
        usage: &OutboundUse,
        owner: UrlOwner,
        request: Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<OutboundResponse, OutboundError> {
        self.check_host(owner, request.uri().host().unwrap_or_default())
            .await?;
        let client = match owner {
            UrlOwner::Operator => &self.0.operator,
            _ if usage.http2 => &self.0.customers_http2,
            _ => &self.0.customers,
        };
        let (BodyUse::Returned(bytes_max)
        | BodyUse::Optional(bytes_max)
        | BodyUse::Dropped(bytes_max)) = usage.body;
        let sent = client.send(request, timeout.min(usage.timeout), bytes_max);
        let problem = |error| request_problem(error, bytes_max);
        let mut response = sent.await.map_err(problem)?;
        let body = match usage.body {
            BodyUse::Returned(_) => Some(response.bytes().await.map_err(problem)?),
            BodyUse::Optional(_) => match response.bytes().await.map_err(problem) {
                Ok(body) => Some(body),
                Err(OutboundError::TooLong(_)) => None,
                Err(error) => return Err(error),
            },
            BodyUse::Dropped(_) => {
                response.discard().await.map_err(problem)?;
                Some(Bytes::new())
            }
        };
        Ok(OutboundResponse {
            status: response.status,
            headers: response.headers,
            is_body_omitted: body.is_none(),
            body: body.unwrap_or_default(),
        })
    }

    fn count(&self, usage: &OutboundUse, outcome: usize) {
        let found = self.0.counters.iter().find(|(name, _)| *name == usage.name);
        if let Some((_, counters)) = found {
            counters[outcome].increment(1);
        }
    }
}

fn request_problem(error: RequestError, bytes_max: usize) -> OutboundError {
    match error {
        RequestError::Refused(refused) => OutboundError::Refused(refused.to_string()),
        RequestError::TimedOut(_) => OutboundError::TimedOut,
        RequestError::Connection(error) if error.is_connect() => {
            OutboundError::Unreachable(root_cause(&error))
        }
        RequestError::Body(error) if error.is::<LengthLimitError>() => {
            OutboundError::TooLong(bytes_max)
        }
        RequestError::Connection(_) | RequestError::Body(_) => OutboundError::Broken,
    }
}

fn connection_problem(error: &io::Error) -> OutboundError {
    match outbound::refusal(error) {
        Some(refused) => OutboundError::Refused(refused.to_string()),
        None if error.kind() == io::ErrorKind::TimedOut => OutboundError::TimedOut,
        None => OutboundError::Unreachable(root_cause(error)),
    }
}

/// Returns the text of the innermost error.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
