//! Plain HTTP: redirects clients to HTTPS and answers ACME HTTP-01 challenges. Forwards nothing.

use std::{convert::Infallible, time::Duration};

use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::{
    body::{DownloadBody, full},
    context::ServiceProxyContext,
    request,
};
use crate::platform::sealing::SealingKey;

/// Path of HTTP-01 challenges (RFC 8555 §8.3).
pub const CHALLENGES: &str = "/.well-known/acme-challenge/";

/// Timeout for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest request head, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Default port of HTTPS, which is left out of redirects.
const HTTPS_PORT: u16 = 443;

/// Serves one request, then closes the connection.
pub(super) async fn serve<F: Future<Output = Response<DownloadBody>>>(
    stream: TcpStream,
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let service = service_fn(|request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "plain HTTP connection ended with an error");
    }
}

/// Answers a challenge or redirects to HTTPS.
pub(super) async fn respond(
    context: &ServiceProxyContext,
    request: Request<Incoming>,
) -> Response<DownloadBody> {
    let (parts, _) = request.into_parts();
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::NOT_FOUND;
    let Ok(host) = request::host(&parts) else {
        return response;
    };
    if let Some(token) = parts.uri.path().strip_prefix(CHALLENGES) {
        if let Some(text) = challenge_response(context, &host, token).await {
            *response.status_mut() = StatusCode::OK;
            *response.body_mut() = full(text);
        }
        return response;
    }
    if context.proxy.routes.find(&host).await.is_none() {
        return response;
    }
    // A client on the default port 80 finds HTTPS on its default port as well, regardless of the
    // port mapping in between.
    let named_port = parts
        .headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .is_some_and(|host| host.contains(':'));
    let port = context
        .proxy
        .https_port()
        .filter(|port| named_port && *port != HTTPS_PORT);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if let Ok(location) = HeaderValue::try_from(format!("https://{host}{port}{path}")) {
        *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Returns the token and the expected response of a probe. Both require the sealing key to predict.
pub fn probe(key: &SealingKey, host: &str) -> (String, String) {
    (
        key.mark(&format!("probe of {host}")),
        key.mark(&format!("answer to a probe of {host}")),
    )
}

/// Returns the response to an ACME challenge, or to a reachability probe of another node.
async fn challenge_response(
    context: &ServiceProxyContext,
    host: &str,
    token: &str,
) -> Option<String> {
    let (probe, answer) = probe(&context.settings.sealing, host);
    if token == probe {
        return Some(answer);
    }
    let challenge = context
        .proxy
        .routes
        .challenge(host)
        .await
        .filter(|challenge| challenge.token == token)?;
    Some(challenge.key_authorization.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_depends_on_key_and_host() {
        let key = |byte| SealingKey::new(&[byte; 32]).unwrap();
        let (token, answer) = probe(&key(1), "a.test");
        assert_eq!(
            probe(&key(1), "a.test"),
            (token.clone(), answer.clone()),
            "every node says the same"
        );
        assert!(
            token != answer
                && probe(&key(1), "b.test").0 != token
                && probe(&key(2), "a.test").1 != answer
        );
    }
}
