//! The HTTP client of requests to other servers. It connects to permitted addresses only, and does
//! not follow redirects.

use std::{error::Error as StdError, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{self, HeaderValue},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        self,
        connect::{HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::RootCertStore;
use tokio::{
    net::TcpStream,
    time::{Instant, error::Elapsed, timeout_at},
};
use tower::{Service, service_fn, util::BoxCloneSyncService};

use super::{
    outbound::{self, CONNECT_TIMEOUT, OutboundPolicy, RefusedAddress},
    tls_client,
};

/// Lifetime of an idle connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Value of the header field `User-Agent`.
const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("gantry/", env!("CARGO_PKG_VERSION")));

/// Longest head of a response of HTTP/1.1, in bytes. That of HTTP/2 is shorter by default.
const HEAD_BYTES_MAX: usize = 64 << 10;

type BoxError = Box<dyn StdError + Send + Sync>;
type Connector = BoxCloneSyncService<Uri, TokioIo<TcpStream>, BoxError>;

/// Properties of an [`HttpClient`].
#[derive(Debug, Clone)]
pub struct HttpClientOptions {
    /// Whether HTTP/2 is used if the server offers it over TLS.
    pub http2: bool,
    /// Timeout for each connection.
    pub connect_timeout: Duration,
    /// Maximum number of idle connections per host.
    pub idle_connections_max: usize,
    /// The trusted certificate authorities.
    pub roots: Arc<RootCertStore>,
}

impl Default for HttpClientOptions {
    /// Returns HTTP/1.1 with the certificate authorities of the system.
    fn default() -> Self {
        Self {
            http2: false,
            connect_timeout: CONNECT_TIMEOUT,
            idle_connections_max: 2,
            roots: tls_client::system_roots(),
        }
    }
}

/// An HTTP client with the connections that it reuses.
#[derive(Debug, Clone)]
pub struct HttpClient(legacy::Client<HttpsConnector<Connector>, Full<Bytes>>);

impl HttpClient {
    /// Creates a client with default options, without connecting.
    pub fn new(policy: &OutboundPolicy) -> Self {
        Self::with_options(policy, HttpClientOptions::default())
    }

    /// Creates a client without connecting.
    pub fn with_options(policy: &OutboundPolicy, options: HttpClientOptions) -> Self {
        let connector = connector(policy.clone(), options.connect_timeout);
        let tls = tls_client::config(options.roots).with_no_client_auth();
        let builder = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http();
        let connector = if options.http2 {
            builder.enable_all_versions().wrap_connector(connector)
        } else {
            builder.enable_http1().wrap_connector(connector)
        };
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(options.idle_connections_max)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(connector);
        Self(client)
    }

    /// Sends a request without a timeout. Adds the user agent unless the request has one.
    pub async fn request(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, legacy::Error> {
        let headers = request.headers_mut();
        headers.entry(header::USER_AGENT).or_insert(USER_AGENT);
        self.0.request(request).await
    }

    /// Sends a request. The response is complete within `timeout`, and its body has at most
    /// `bytes_max` bytes.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        timeout: Duration,
        bytes_max: usize,
    ) -> Result<BoundedResponse, RequestError> {
        let deadline = Instant::now() + timeout;
        let response = timeout_at(deadline, self.request(request)).await?;
        let response = response.map_err(|error| match outbound::refusal(&error) {
            Some(refused) => RequestError::Refused(refused.clone()),
            None => RequestError::Connection(error),
        })?;
        let (parts, body) = response.into_parts();
        Ok(BoundedResponse {
            status: parts.status,
            headers: parts.headers,
            body,
            deadline,
            bytes_max,
        })
    }
}

/// The reason why a request has no complete response.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The policy does not permit the address.
    #[error(transparent)]
    Refused(RefusedAddress),
    /// There is no connection, or it ended before the response.
    #[error(transparent)]
    Connection(legacy::Error),
    /// The body ended early, or is longer than its bound.
    #[error(transparent)]
    Body(BoxError),
    /// The response was not complete in time.
    #[error(transparent)]
    TimedOut(#[from] Elapsed),
}

/// A response with a bound for the size and the time of its body.
#[derive(Debug)]
pub struct BoundedResponse {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    body: Incoming,
    deadline: Instant,
    bytes_max: usize,
}

impl BoundedResponse {
    /// Returns the pause that the server asks for, if it is a number of seconds (RFC 9110, 10.2.3).
    pub fn retry_after(&self) -> Option<Duration> {
        let value = self.headers.get(header::RETRY_AFTER)?;
        let seconds = value.to_str().ok()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// Reads the body.
    pub async fn bytes(&mut self) -> Result<Bytes, RequestError> {
        let body = Limited::new(&mut self.body, self.bytes_max).collect();
        let body = timeout_at(self.deadline, body).await?;
        Ok(body.map_err(RequestError::Body)?.to_bytes())
    }

    /// Reads the body and drops it, so that the connection can be reused and the server sees no
    /// broken one. Fails only if the body was not complete in time.
    pub async fn discard(&mut self) -> Result<(), RequestError> {
        match self.bytes().await {
            Err(error @ RequestError::TimedOut(_)) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns a connector to permitted addresses.
fn connector(policy: OutboundPolicy, connect_timeout: Duration) -> Connector {
    let names = policy.clone();
    let resolver = service_fn(move |name: Name| {
        let policy = names.clone();
        async move { io::Result::Ok(policy.resolve(name.as_str(), 0).await?.into_iter()) }
    });
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(connect_timeout));
    tcp.set_nodelay(true);
    Connector::new(service_fn(move |uri: Uri| {
        // An address in the URI is not resolved.
        let checked = policy.check_host(uri.host().unwrap_or_default());
        let connecting = checked.map(|()| tcp.call(uri));
        async move { Ok(connecting?.await?) }
    }))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn client_checks_addresses_and_resolved_names() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = HttpClient::new(&OutboundPolicy::default());
        for host in ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]"] {
            for scheme in ["http", "https"] {
                let request = Request::get(format!("{scheme}://{host}:{port}/"))
                    .body(Full::default())
                    .unwrap();
                let sent = client.send(request, Duration::from_secs(5), 1).await;
                let error = sent.unwrap_err();
                assert!(matches!(error, RequestError::Refused(_)), "{error:?}");
            }
        }
    }

    #[tokio::test]
    async fn body_is_bounded_in_size_and_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = HttpClient::new(&OutboundPolicy::unrestricted());
        let outcome = async |timeout, bytes_max, answer: &str| {
            let request = Request::get(format!("http://127.0.0.1:{port}/"));
            let request = request.body(Full::default()).unwrap();
            let sent = client.send(request, timeout, bytes_max);
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = vec![0; 1000];
                let read = stream.read(&mut head).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
                (stream, String::from_utf8_lossy(&head[..read]).into_owned())
            };
            let (sent, (_stream, head)) = tokio::join!(sent, serve);
            let mut response = sent?;
            assert!(head.contains("user-agent: gantry/"), "{head}");
            assert_eq!(response.retry_after(), Some(Duration::from_secs(7)));
            response.bytes().await
        };
        let head =
            "HTTP/1.1 429 -\r\nretry-after: 7\r\nconnection: close\r\ncontent-length: 5\r\n\r\n";
        let (long, short) = (Duration::from_mins(1), Duration::from_millis(200));
        let complete = format!("{head}hello");
        assert_eq!(outcome(long, 5, &complete).await.unwrap(), "hello");
        let too_long = outcome(long, 4, &complete).await.unwrap_err();
        assert!(matches!(too_long, RequestError::Body(_)), "{too_long:?}");
        let late = outcome(short, 5, head).await.unwrap_err();
        assert!(matches!(late, RequestError::TimedOut(_)), "{late:?}");
    }
}
