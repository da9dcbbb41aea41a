//! Forwards one HTTP request to its upstream and returns the response.

use std::{error::Error as StdError, net::IpAddr, pin::pin, sync::Arc, time::Duration};

use gantry_base::{clock::Ticks, net::address_block::address_block};
use gantry_node::kits::Service;
use http_body_util::{Either, Empty};
use hyper::{
    Method, Request, Response, StatusCode, Uri, Version,
    body::{Body, Incoming},
    header::{self, HeaderName},
    http::request::Parts,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    api_key_check,
    body::{
        BodyError, BodyTimedOut, ClientBody, ClientBodyError, HeldByResponse, SentSignal,
        TimedBody, UploadBody, drain, full,
    },
    capacity::CapacityKey,
    client_connection::ClientConnection,
    directory::RunningService,
    forwarded::{Forwarded, ProxyResponse},
    functions,
    key_exchange::{self, ServiceCredential},
    log, public_keys,
    rejection::{RequestRejection, close},
    replacement::{self, NotReplaced, REPLACEMENTS_MAX},
    request,
    request_headers::{self, ForwardingHeaders},
    routes::{Route, RouteStatus},
    tunnel,
    upstream_pool::{SendFailure, UpstreamBody},
    upstreams::Upstream,
};
use crate::{platform::telemetry, proxy::service_caller::ServiceCaller};

const CLIENT_INFO: HeaderName = HeaderName::from_static("x-client-info");

/// The part of a request's destination that is known, for the log.
#[derive(Default)]
struct Destination {
    route: Option<Arc<Route>>,
    service: Option<Service>,
    function: Option<log::CalledFunction>,
}

/// Status of a request if the client left before the answer, as in nginx.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Serves one request.
pub(super) async fn serve(
    connection: &ClientConnection,
    mut request: Request<Incoming>,
) -> ProxyResponse {
    let record = RequestRecord::of(connection, &request);
    let version = request.version();
    // The end of a chunked body or an upgrade is not checked by `framing`, so the connection is not
    // reused afterwards.
    let is_last = version < Version::HTTP_2
        && [header::TRANSFER_ENCODING, header::UPGRADE]
            .iter()
            .any(|name| request.headers().contains_key(name));
    let tunnel = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    let mut pending = PendingRecord {
        connection,
        uri: parts.uri.clone(),
        destination: Destination::default(),
        record: Some(record),
    };
    let PendingRecord {
        uri, destination, ..
    } = &mut pending;
    let outcome = async {
        let forwarded = match admit(connection, &parts, uri, destination).await {
            Err(RequestRejection::NotConfigured(Service::Auth)) => {
                let route = destination.route.as_ref();
                let route = route.ok_or(RequestRejection::NoProject)?;
                return public_keys::respond(connection, route, &parts).await;
            }
            admitted => admitted?,
        };
        if request::is_websocket(&parts) {
            Box::pin(tunnel::open(connection, forwarded, parts, tunnel)).await
        } else {
            forward(connection, forwarded, parts, body).await
        }
    };
    let mut response = outcome
        .await
        .unwrap_or_else(|rejection| rejection.respond(version));
    if is_last && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        close(response.headers_mut());
    }
    if let Some(hsts) = pending
        .destination
        .route
        .as_ref()
        .and_then(|route| route.hsts.clone())
    {
        // A value set by the upstream takes precedence.
        response
            .headers_mut()
            .entry(header::STRICT_TRANSPORT_SECURITY)
            .or_insert(hsts);
    }
    pending.finish(&response);
    response
}

/// Validates a request and finds its upstream. Records the route and the service in `destination`
/// for the log.
async fn admit<'a>(
    connection: &ClientConnection,
    parts: &Parts,
    uri: &'a Uri,
    destination: &mut Destination,
) -> Result<Forwarded<'a>, RequestRejection> {
    if connection.ambiguous.is_set() {
        return Err(RequestRejection::Malformed);
    }
    if !request::is_for(parts, &connection.name)? {
        return Err(RequestRejection::Misdirected);
    }
    request::check(parts)?;
    let service_proxy = &connection.context.proxy;
    // Looked up for each request, because a connection outlives changes of the routes.
    let route = service_proxy
        .routes
        .find(&connection.name)
        .await
        .ok_or(RequestRejection::NoProject)?;
    destination.route = Some(route.clone());
    match route.status {
        RouteStatus::Active => {}
        RouteStatus::Paused => return Err(RequestRejection::Paused),
        RouteStatus::NotActivated => return Err(RequestRejection::NoProject),
    }
    let (requested, rest) = Service::of_path(uri.path()).ok_or(RequestRejection::NoService)?;
    destination.service = Some(requested);
    let client = connection
        .context
        .settings
        .transport
        .peer(connection.peer.ip(), &parts.headers)
        .address;
    let own = route
        .upstreams
        .as_ref()
        .and_then(|upstreams| upstreams.get(requested));
    let template = own.or_else(|| connection.context.proxy.options.upstreams.get(requested));
    let (upstream, service_use, credential) = match template {
        Some(template) => {
            let upstream = template
                .fill(&route.reference)
                .ok_or(RequestRejection::NotConfigured(requested))?;
            api_key_check::check(&connection.context, &route, requested, rest, parts).await?;
            (upstream, None, ServiceCredential::Unchanged)
        }
        None if requested == Service::Functions => {
            let called = &mut destination.function;
            let request = (parts, ServiceCaller::of_address(client));
            Box::pin(functions::admit(connection, &route, rest, request, called)).await?
        }
        // Served without the program, which need not run for it.
        None if requested == Service::Auth && rest == public_keys::PATH => {
            return Err(RequestRejection::NotConfigured(requested));
        }
        None if connection.context.services.has_kit(requested) => {
            let request = (parts, ServiceCaller::of_address(client));
            Box::pin(admit_to_instance(
                connection, &route, requested, rest, request,
            ))
            .await?
        }
        None => return Err(RequestRejection::NotConfigured(requested)),
    };
    let capacity_key = CapacityKey {
        project: route.project,
        client: address_block(client),
    };
    Ok(Forwarded {
        route,
        service: requested,
        upstream,
        service_use,
        credential,
        rest,
        capacity_key,
    })
}

/// Checks the key of a request to a service that Gantry runs, and starts the service if necessary.
async fn admit_to_instance(
    connection: &ClientConnection,
    route: &Route,
    service: Service,
    rest: &str,
    (parts, caller): (&Parts, ServiceCaller),
) -> Result<
    (
        Arc<Upstream>,
        Option<Box<dyn RunningService>>,
        ServiceCredential,
    ),
    RequestRejection,
> {
    let context = &connection.context;
    let keys = context.accepted_keys(route).await?;
    // Before the start: requests without a key must not start anything.
    api_key_check::check(context, route, service, rest, parts).await?;
    let credential = key_exchange::exchange(parts, &keys, context.clock.now().timestamp())?;
    let project = (route.project, &route.reference);
    let used = context
        .services
        .acquire(project, service, &keys, caller)
        .await
        .map_err(|unavailable| RequestRejection::Unavailable(service, unavailable))?;
    Ok((used.upstream().clone(), Some(used), credential))
}

/// Forwards a request and returns the upstream's response.
async fn forward(
    connection: &ClientConnection,
    mut forwarded: Forwarded<'_>,
    parts: Parts,
    body: Incoming,
) -> Result<ProxyResponse, RequestRejection> {
    let sent = Arc::new(Notify::new());
    let bytes_max = forwarded.service.body_bytes_max();
    if body.size_hint().lower() > bytes_max as u64 {
        drain(body);
        return Err(RequestRejection::TooLarge);
    }
    let capacity = &connection.context.proxy.capacity;
    let clock = &connection.context.clock;
    let started = if body.is_end_stream() {
        None
    } else {
        let unfinished = capacity.body(forwarded.capacity_key, clock.ticks())?;
        ClientBody::new(body, unfinished, bytes_max, clock.clone())
            .start(capacity, forwarded.capacity_key)
            .await?
    };
    let (upload, permit) = if let Some((body, permit)) = started {
        (
            Either::Right(TimedBody::new(body, Some(SentSignal(sent.clone())))),
            permit,
        )
    } else {
        sent.notify_one();
        (
            Either::Left(Empty::new()),
            capacity.request(forwarded.capacity_key, clock.ticks())?,
        )
    };
    let method = parts.method.clone();
    let request = upstream_request(connection, &forwarded, parts, upload)?;
    let service = forwarded.service;
    let exchange = send(
        connection,
        &forwarded.upstream,
        &mut forwarded.service_use,
        request,
    );
    let patience = service.response_timeout();
    let response = with_response_timeout(service, patience, &sent, pin!(exchange)).await;
    let mut response = functions::with_reason(response, forwarded.service_use.as_deref()).await?;
    if forwarded.service == Service::Functions
        && let Some(used) = &forwarded.service_use
    {
        used.answered();
        functions::adjust(&mut response, &method, forwarded.route.own_domain);
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(RequestRejection::Unreachable(forwarded.service));
    }
    Ok(client_response(
        response,
        (permit, forwarded.service_use.take()),
    ))
}

/// Sends a request. If the process of a service has ended before the request reached it, the
/// request waits for the process that replaces it.
async fn send(
    connection: &ClientConnection,
    upstream: &Upstream,
    service_use: &mut Option<Box<dyn RunningService>>,
    mut request: Request<UploadBody>,
) -> Result<Response<UpstreamBody>, BodyError> {
    let mut address = upstream.address().clone();
    for _ in 0..REPLACEMENTS_MAX {
        match connection.pool.send(&address, request).await {
            Err(SendFailure::Unsent(unsent, error)) => {
                address = replacement::replace(service_use, error).await?;
                request = *unsent;
            }
            Err(SendFailure::Failed(error)) => return Err(error),
            Ok(response) => return Ok(response),
        }
    }
    connection
        .pool
        .send(&address, request)
        .await
        .map_err(SendFailure::into_error)
}

/// Builds the request for the upstream.
pub(super) fn upstream_request(
    connection: &ClientConnection,
    forwarded: &Forwarded<'_>,
    mut parts: Parts,
    body: UploadBody,
) -> Result<Request<UploadBody>, RequestRejection> {
    let underscores = connection.context.proxy.options.underscore_headers;
    let forwarding = ForwardingHeaders {
        client: &connection.client_headers,
        project: &forwarded.route.reference_header,
        prefix: forwarded.service.prefix(),
        underscores,
    };
    request_headers::rewrite(&mut parts.headers, &forwarding);
    forwarded
        .credential
        .apply(&mut parts.headers, forwarded.service);
    parts.uri = forwarded
        .upstream
        .path(
            forwarded.rest,
            forwarded.credential.query(parts.uri.query()).as_deref(),
        )
        .ok_or(RequestRejection::Malformed)?;
    parts.version = Version::HTTP_11;
    parts
        .headers
        .insert(header::HOST, forwarded.upstream.host().clone());
    let mut request = Request::new(body);
    (
        *request.method_mut(),
        *request.uri_mut(),
        *request.headers_mut(),
    ) = (parts.method, parts.uri, parts.headers);
    Ok(request)
}

/// Awaits the head of the upstream's response, with a timeout that starts when the body was sent.
pub(super) async fn with_response_timeout<B>(
    service: Service,
    patience: Duration,
    sent: &Notify,
    exchange: impl Future<Output = Result<Response<B>, BodyError>>,
) -> Result<Response<B>, RequestRejection> {
    let timed_out = async {
        sent.notified().await;
        sleep_until(Instant::now() + patience).await;
    };
    let result = tokio::select! {
        biased;
        result = exchange => result,
        () = timed_out => return Err(RequestRejection::Late(service)),
    };
    result.map_err(|error| {
        let mut cause: Option<&dyn StdError> = Some(&*error);
        while let Some(error) = cause {
            if error.is::<BodyTimedOut>() {
                return RequestRejection::Stalled;
            }
            if let Some(error) = error.downcast_ref::<ClientBodyError>() {
                return error.rejection();
            }
            if let Some(NotReplaced(unavailable)) = error.downcast_ref() {
                return RequestRejection::Unavailable(service, *unavailable);
            }
            cause = error.source();
        }
        tracing::debug!(%service, %error, "upstream request failed");
        RequestRejection::Unreachable(service)
    })
}

/// Builds the response for the client.
pub(super) fn client_response(
    response: Response<UpstreamBody>,
    held: HeldByResponse,
) -> ProxyResponse {
    let (mut parts, body) = response.into_parts();
    request_headers::strip(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let body = if body.is_end_stream() {
        full("")
    } else {
        Either::Right(TimedBody::new(body, Some(held)))
    };
    Response::from_parts(parts, body)
}

/// The record of a request that is not answered yet. If the client leaves before the answer, the
/// record is written on drop.
struct PendingRecord<'a> {
    connection: &'a ClientConnection,
    uri: Uri,
    destination: Destination,
    record: Option<RequestRecord>,
}

impl PendingRecord<'_> {
    fn finish(mut self, response: &ProxyResponse) {
        let fields = log::ResponseFields::of(response.headers());
        self.write(response.status(), fields);
    }

    fn write(&mut self, status: StatusCode, fields: log::ResponseFields) {
        if let Some(record) = self.record.take() {
            let destination = std::mem::take(&mut self.destination);
            record.write(self.connection, &self.uri, destination, (status, fields));
        }
    }
}

impl Drop for PendingRecord<'_> {
    fn drop(&mut self) {
        let closed = StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or(StatusCode::BAD_REQUEST);
        self.write(closed, log::ResponseFields::default());
    }
}

/// Log fields of a request, read before its head is rewritten.
struct RequestRecord {
    started_at: Ticks,
    method: Method,
    version: Version,
    texts: [Option<String>; 2],
    referer: Option<String>,
    /// Address of the client, behind trusted proxies.
    client: IpAddr,
    /// Country of the client, if a trusted proxy names it.
    country: Option<String>,
}

impl RequestRecord {
    fn of(connection: &ClientConnection, request: &Request<Incoming>) -> Self {
        let text = |name: HeaderName| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(telemetry::cut)
        };
        let transport = &connection.context.settings.transport;
        let sender = connection.peer.ip();
        Self {
            started_at: connection.context.clock.ticks(),
            client: transport.peer(sender, request.headers()).address,
            method: request.method().clone(),
            version: request.version(),
            texts: [header::USER_AGENT, CLIENT_INFO].map(text),
            referer: text(header::REFERER).map(|referer| telemetry::without_url_secrets(&referer)),
            country: transport
                .trusts(sender)
                .then(|| log::country(request.headers()))
                .flatten(),
        }
    }

    fn write(
        self,
        connection: &ClientConnection,
        uri: &Uri,
        destination: Destination,
        (status, response): (StatusCode, log::ResponseFields),
    ) {
        let context = &connection.context;
        let [user_agent, client_info] = self.texts;
        let row = log::Row {
            id: context.entropy.uuid(),
            at: context.clock.now(),
            project: destination.route.map(|route| route.reference.clone()),
            service: destination.service,
            method: self.method,
            host: connection.name.clone(),
            path: telemetry::cut(uri.path()),
            search: uri.query().map(telemetry::without_secrets),
            version: self.version,
            client: self.client,
            user_agent,
            referer: self.referer,
            client_info,
            country: self.country,
            function: destination.function,
            status,
            response,
            took_millis: context.clock.ticks().saturating_sub(self.started_at),
        };
        let metrics = &context.proxy.metrics;
        metrics.request(destination.service, status);
        if !context.proxy.log.add(row) {
            metrics.dropped_row();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;

    async fn awaited(
        sent: &Notify,
        exchange: impl Future<Output = Result<Response<()>, BodyError>>,
    ) -> Result<StatusCode, RequestRejection> {
        let patience = Duration::from_millis(10);
        let response = with_response_timeout(Service::Functions, patience, sent, exchange).await;
        response.map(|response| response.status())
    }

    #[tokio::test]
    async fn upstream_without_a_response_is_late_after_the_end_of_the_body() {
        let sent = Notify::new();
        sent.notify_one();
        let late = awaited(&sent, pending()).await.unwrap_err();
        assert_eq!(late, RequestRejection::Late(Service::Functions));
        let response = late.respond(Version::HTTP_11);
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    }

    #[tokio::test]
    async fn time_of_the_request_body_does_not_count() {
        let sent = Notify::new();
        let slow_upload = async {
            // Longer than the timeout, which has not begun.
            tokio::time::sleep(Duration::from_millis(30)).await;
            Ok(Response::new(()))
        };
        assert_eq!(awaited(&sent, slow_upload).await, Ok(StatusCode::OK));
        sent.notify_one();
        let response = awaited(&sent, ready(Ok(Response::new(()))));
        assert_eq!(response.now_or_never(), Some(Ok(StatusCode::OK)));
    }
}
