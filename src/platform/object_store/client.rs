//! HTTP client for S3: signed requests with limits, timeouts and retries.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use gantry_base::{
    clock::{Clock, Entropy},
    net::{
        http_client::{HttpClient, HttpClientOptions},
        outbound::OutboundPolicy,
        tls_client,
    },
    repeat::Backoff,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{HeaderMap, Method, Request, StatusCode, header};
use hyper_util::client::legacy;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use secrecy::ExposeSecret;
use tokio::{runtime::Handle, sync::Semaphore, task::JoinSet, time::timeout};

use crate::platform::object_store::{
    failure::{self, Failure, Kind},
    options::{Place, Style},
    sign::{self, Unsigned},
};

/// Maximum number of concurrent requests; further requests wait.
const REQUESTS_MAX: usize = 32;
/// Maximum number of attempts of a request.
const ATTEMPTS_MAX: u32 = 5;
/// Time after which no further attempt starts, in milliseconds.
const RETRY_WINDOW_MAX: u64 = 10_000;
/// Assumed minimum transfer rate of bodies, in bytes per second. Extends the timeout of large
/// bodies.
const TRANSFER_RATE_MIN: u64 = 1 << 20;

/// Timeouts and retry delays.
#[derive(Debug, Clone, Copy)]
pub struct RequestTimeouts {
    /// Timeout for connecting.
    pub connect: Duration,
    /// Timeout for the response including its body. Large bodies get more time.
    pub answer: Duration,
    /// Delay before the first retry; doubled for each further retry.
    pub pause: Duration,
}

impl Default for RequestTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(15),
            pause: Duration::from_millis(100),
        }
    }
}

/// A request to the store.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    /// Action for error messages, such as "list" or "read x".
    pub(super) wanted: String,
    /// Object key. An empty key addresses the bucket.
    pub(super) key: &'a str,
    /// Query parameters, sorted by name.
    pub(super) query: &'a [(&'static str, &'a str)],
    pub(super) range: Option<String>,
    pub(super) body: Bytes,
    /// Maximum size of the response body.
    pub(super) answer_max: u64,
}

/// A response of the store.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Reason of a failed attempt.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("the connection was lost while sending the request")]
    Request(#[source] legacy::Error),
    #[error("the connection was lost while reading the response")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the request cannot be built")]
    Unsendable(#[from] hyper::http::Error),
    #[error("shutting down")]
    Closed,
}

pub(super) struct Client {
    pub(super) place: Place,
    http: HttpClient,
    timeouts: RequestTimeouts,
    room: Arc<Semaphore>,
    clock: Clock,
    entropy: Entropy,
    /// Runtime for requests. Query threads do not delay a connection, and connections outlive their
    /// callers.
    home: Handle,
}

impl Client {
    /// Creates a client that sends its requests on the current runtime.
    pub(super) fn new(
        place: Place,
        clock: Clock,
        entropy: Entropy,
        timeouts: RequestTimeouts,
        policy: &OutboundPolicy,
    ) -> io::Result<Self> {
        let options = HttpClientOptions {
            connect_timeout: timeouts.connect,
            idle_connections_max: REQUESTS_MAX,
            roots: roots(&place)?,
            ..HttpClientOptions::default()
        };
        let http = HttpClient::with_options(policy, options);
        let room = Arc::new(Semaphore::new(REQUESTS_MAX));
        Ok(Self {
            place,
            http,
            timeouts,
            room,
            clock,
            entropy,
            home: Handle::current(),
        })
    }

    /// Sends a request and retries temporary failures. All requests are idempotent, so a request
    /// can be repeated after its response was lost.
    pub(super) async fn send(&self, ask: &Ask<'_>) -> Result<Answer, Failure> {
        let begun = self.clock.ticks();
        let backoff = Backoff::new(self.timeouts.pause, Duration::MAX);
        for attempt in 1.. {
            let failure = match self.attempt(ask).await {
                Ok(answer) if answer.status.is_success() => return Ok(answer),
                Ok(Answer {
                    status,
                    headers,
                    body,
                }) => failure::refused(
                    &self.place,
                    &ask.wanted,
                    !ask.key.is_empty(),
                    status,
                    &headers,
                    &body,
                ),
                Err(broken) => failure::unanswered(&self.place, &broken),
            };
            if !failure.passes()
                || attempt >= ATTEMPTS_MAX
                || self.clock.ticks() - begun > RETRY_WINDOW_MAX
            {
                return Err(failure);
            }
            tracing::debug!(%failure, attempt, "retrying a request to the object store");
            let random = self.entropy.bytes::<1>()[0];
            tokio::time::sleep(backoff.pause_with_jitter(attempt, random)).await;
        }
        Err(Failure::new(Kind::Away, "nothing was asked"))
    }

    async fn attempt(&self, ask: &Ask<'_>) -> Result<Answer, AttemptError> {
        let permit = self
            .room
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| AttemptError::Closed)?;
        let request = self.signed(ask)?;
        let http = self.http.clone();
        let timeout = self.timeouts.answer;
        let answer_max = ask.answer_max;
        // Aborted when the caller is dropped.
        let mut task = JoinSet::new();
        task.spawn_on(
            async move {
                let answer = exchange(&http, request, timeout, answer_max).await;
                drop(permit);
                answer
            },
            &self.home,
        );
        task.join_next()
            .await
            .and_then(Result::ok)
            .unwrap_or(Err(AttemptError::Closed))
    }

    /// Builds and signs a request for the current time.
    fn signed(&self, ask: &Ask<'_>) -> Result<Request<Full<Bytes>>, AttemptError> {
        let Place {
            endpoint,
            region,
            style,
            bucket,
            credentials,
            ..
        } = &self.place;
        let base = endpoint.path().trim_end_matches('/');
        let authority = match endpoint.port() {
            Some(port) => format!("{}:{port}", endpoint.host_str().unwrap_or_default()),
            None => endpoint.host_str().unwrap_or_default().to_owned(),
        };
        let (host, path) = match style {
            Style::Path => (authority, format!("{base}/{bucket}")),
            Style::Host => (format!("{bucket}.{authority}"), base.to_owned()),
        };
        let key = sign::encoded(ask.key, true);
        let path = if key.is_empty() && !path.is_empty() {
            path
        } else {
            format!("{path}/{key}")
        };
        let pair = |(name, value): &(&str, &str)| {
            format!(
                "{}={}",
                sign::encoded(name, false),
                sign::encoded(value, false)
            )
        };
        let query = ask.query.iter().map(pair).collect::<Vec<_>>().join("&");
        let now = self.clock.now();
        let body = sign::digest_of(&ask.body);

        let mut headers = vec![("host", host.clone())];
        headers.extend(ask.range.clone().map(|range| ("range", range)));
        headers.extend([
            ("x-amz-content-sha256", body.clone()),
            ("x-amz-date", sign::moment(now)),
        ]);
        headers.extend(
            credentials
                .session_token
                .as_ref()
                .map(|token| ("x-amz-security-token", token.expose_secret().to_owned())),
        );
        let unsigned = Unsigned {
            method: ask.method.as_str(),
            path: &path,
            query: &query,
            headers: &headers,
            body: &body,
        };
        let authorization = sign::authorization(credentials, region, now, &unsigned);

        let question = if query.is_empty() {
            String::new()
        } else {
            format!("?{query}")
        };
        let mut request = Request::builder()
            .method(&ask.method)
            .uri(format!("{}://{host}{path}{question}", endpoint.scheme()))
            .header(header::AUTHORIZATION, authorization);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        Ok(request.body(Full::new(ask.body.clone()))?)
    }
}

/// Sends one request and reads the whole response.
async fn exchange(
    http: &HttpClient,
    request: Request<Full<Bytes>>,
    minimum: Duration,
    answer_max: u64,
) -> Result<Answer, AttemptError> {
    let bytes = hyper::body::Body::size_hint(request.body())
        .exact()
        .unwrap_or(0);
    let patient = |bytes: u64| minimum + Duration::from_secs(bytes / TRANSFER_RATE_MIN);
    let late = |waited| move |_| AttemptError::Late(waited);
    let waited = patient(bytes);
    let response = timeout(waited, http.request(request))
        .await
        .map_err(late(waited))?
        .map_err(AttemptError::Request)?;
    let (parts, body) = response.into_parts();
    let waited = patient(hyper::body::Body::size_hint(&body).lower().min(answer_max));
    let body = Limited::new(body, usize::try_from(answer_max).unwrap_or(usize::MAX)).collect();
    let body = timeout(waited, body)
        .await
        .map_err(late(waited))?
        .map_err(AttemptError::Answer)?;
    Ok(Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.to_bytes(),
    })
}

/// Returns the trusted certificate authorities: those of the system, and the configured one.
fn roots(place: &Place) -> io::Result<Arc<RootCertStore>> {
    let system = tls_client::system_roots();
    let Some(file) = &place.root else {
        return Ok(system);
    };
    let unreadable = |error: &dyn std::fmt::Display| {
        io::Error::other(format!("cannot read {}: {error}", file.display()))
    };
    let mut roots = RootCertStore::clone(&system);
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unreadable(&error))? {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    Ok(Arc::new(roots))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::object_store::sign::Credentials;

    fn client(endpoint: &str, style: Style) -> Client {
        let place = Place {
            endpoint: endpoint.parse().unwrap(),
            region: "eu-west-1".into(),
            style,
            bucket: "logs".into(),
            prefix: String::new(),
            credentials: Credentials {
                access_key_id: "KEY".into(),
                secret_access_key: "hush".into(),
                session_token: None,
            },
            root: None,
        };
        Client::new(
            place,
            Clock::manual(chrono::DateTime::UNIX_EPOCH),
            Entropy::seeded(1),
            RequestTimeouts::default(),
            &OutboundPolicy::unrestricted(),
        )
        .unwrap()
    }

    #[tokio::test]
    async fn uri_has_bucket_in_path_or_host() {
        for (endpoint, style, host, object, list) in [
            (
                "http://127.0.0.1:9000",
                Style::Path,
                "127.0.0.1:9000",
                "/logs/a/b%20c",
                "/logs",
            ),
            (
                "https://s3.example:443/",
                Style::Path,
                "s3.example",
                "/logs/a/b%20c",
                "/logs",
            ),
            (
                "https://x.example/storage/v1/s3/",
                Style::Path,
                "x.example",
                "/storage/v1/s3/logs/a/b%20c",
                "/storage/v1/s3/logs",
            ),
            (
                "https://s3.eu-west-1.amazonaws.com",
                Style::Host,
                "logs.s3.eu-west-1.amazonaws.com",
                "/a/b%20c",
                "/",
            ),
            (
                "http://[::1]:9000",
                Style::Path,
                "[::1]:9000",
                "/logs/a/b%20c",
                "/logs",
            ),
        ] {
            let client = client(endpoint, style);
            let signed = |key, query| {
                let ask = Ask {
                    method: Method::GET,
                    wanted: String::new(),
                    key,
                    query,
                    range: None,
                    body: Bytes::new(),
                    answer_max: 0,
                };
                client.signed(&ask).unwrap()
            };
            let request = signed("a/b c", &[]);
            assert_eq!(
                (request.uri().path(), request.uri().query()),
                (object, None),
                "{endpoint}"
            );
            assert_eq!(
                (
                    request.headers()["host"].to_str().unwrap(),
                    request.uri().scheme_str()
                ),
                (host, endpoint.split(':').next())
            );
            let request = signed("", &[("list-type", "2"), ("prefix", "a/+")]);
            assert_eq!(
                (request.uri().path(), request.uri().query()),
                (list, Some("list-type=2&prefix=a%2F%2B")),
                "{endpoint}"
            );
            let said = request.headers()["authorization"].to_str().unwrap();
            assert!(
                said.contains("Credential=KEY/19700101/eu-west-1/s3/aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date,"),
                "{said}"
            );
            assert!(!format!("{request:?}").contains("hush"));
        }
    }
}
