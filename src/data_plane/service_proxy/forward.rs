//! One request: whose it is, where it goes, what came back.

use std::{error::Error as StdError, pin::pin, sync::Arc, time::Duration};

use http_body_util::{Either, Empty, LengthLimitError, Limited};
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
        BodyTimedOut, ClientBody, ClientBodyError, DownloadBody, Error, SentSignal, TimedBody,
        UploadBody, full,
    },
    capacity::{CapacityKey, CapacityPermit},
    connection::ClientConnection,
    log,
    rejection::{RequestRejection, close},
    request,
    request::ForwardingHeaders,
    routes::{Route, RouteStatus},
    tunnel,
    upstream_pool::UpstreamBody,
    upstreams::{Service, Upstream},
};
use crate::{base::clock::Ticks, data_plane::database_access::bans, platform::telemetry};

/// What a service gets to begin its answer, once it has the request.
const ANSWER: Duration = Duration::from_mins(1);

const CLIENT_INFO: HeaderName = HeaderName::from_static("x-client-info");

/// What a client gets.
pub(super) type ProxyResponse = Response<DownloadBody>;

/// A request that is forwarded on.
pub(super) struct Forwarded<'a> {
    pub(super) route: Arc<Route>,
    pub(super) service: Service,
    pub(super) upstream: Arc<Upstream>,
    /// The path behind the service's prefix.
    pub(super) rest: &'a str,
    /// The project and the client that the request is counted for.
    pub(super) capacity_key: CapacityKey,
}

/// Serves one request.
pub(super) async fn serve(
    visit: &ClientConnection,
    mut request: Request<Incoming>,
) -> ProxyResponse {
    let record = RequestRecord::of(visit, &request);
    let version = request.version();
    // A body of unknown length, or an upgrade: what follows is not watched.
    let last = version < Version::HTTP_2
        && [header::TRANSFER_ENCODING, header::UPGRADE]
            .iter()
            .any(|name| request.headers().contains_key(name));
    let tunnel = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    let (uri, mut about) = (parts.uri.clone(), (None, None));
    let outcome = async {
        let forwarded = admit(visit, &parts, &uri, &mut about).await?;
        if request::is_websocket(&parts) {
            Box::pin(tunnel::open(visit, forwarded, parts, tunnel)).await
        } else {
            forward(visit, forwarded, parts, body).await
        }
    };
    let mut answer = outcome
        .await
        .unwrap_or_else(|rejection| rejection.respond(version));
    if last && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        close(answer.headers_mut());
    }
    if let Some(hsts) = about.0.as_ref().and_then(|route| route.hsts.clone()) {
        // What the service itself says of it holds.
        answer
            .headers_mut()
            .entry(header::STRICT_TRANSPORT_SECURITY)
            .or_insert(hsts);
    }
    record.write(visit, &uri, about, answer.status());
    answer
}

/// Finds where a request goes, or why it goes nowhere.
async fn admit<'a>(
    visit: &ClientConnection,
    parts: &Parts,
    uri: &'a Uri,
    (project, service): &mut (Option<Arc<Route>>, Option<Service>),
) -> Result<Forwarded<'a>, RequestRejection> {
    if visit.ambiguous.is_set() {
        return Err(RequestRejection::Malformed);
    }
    if !request::is_for(parts, &visit.name)? {
        return Err(RequestRejection::Misdirected);
    }
    request::check(parts)?;
    let service_proxy = &visit.context.service_proxy;
    // Again for each request: connections outlive what they were made for.
    let route = service_proxy
        .routes
        .find(&visit.name)
        .await
        .ok_or(RequestRejection::NoProject)?;
    *project = Some(route.clone());
    match route.status {
        RouteStatus::Yes => {}
        RouteStatus::Paused => return Err(RequestRejection::Paused),
        RouteStatus::NotYet => return Err(RequestRejection::NoProject),
    }
    let (wanted, rest) = Service::of_path(uri.path()).ok_or(RequestRejection::NoService)?;
    *service = Some(wanted);
    let own = route
        .upstreams
        .as_ref()
        .and_then(|upstreams| upstreams.get(wanted));
    let template = own
        .or_else(|| visit.context.data_plane_settings.upstreams.get(wanted))
        .ok_or(RequestRejection::NotConfigured(wanted))?;
    let upstream = template
        .fill(&route.reference)
        .ok_or(RequestRejection::NotConfigured(wanted))?;
    api_key_check::check(&visit.context, &route, wanted, rest, parts).await?;
    let client = visit
        .context
        .settings
        .transport
        .peer(visit.peer.ip(), &parts.headers)
        .address;
    let capacity_key = CapacityKey {
        project: route.project,
        client: bans::block(client),
    };
    Ok(Forwarded {
        route,
        service: wanted,
        upstream,
        rest,
        capacity_key,
    })
}

/// Passes a request on, and its answer back.
async fn forward(
    visit: &ClientConnection,
    forwarded: Forwarded<'_>,
    parts: Parts,
    body: Incoming,
) -> Result<ProxyResponse, RequestRejection> {
    let sent = Arc::new(Notify::new());
    let bytes_max = forwarded.service.body_bytes_max();
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(RequestRejection::TooLarge);
    }
    let (capacity, clock) = (&visit.context.service_proxy.capacity, &visit.context.clock);
    let begun = if body.is_end_stream() {
        None
    } else {
        let unfinished = capacity.body(forwarded.capacity_key, clock.ticks())?;
        ClientBody::new(body, unfinished, clock.clone())
            .begin(capacity, forwarded.capacity_key)
            .await?
    };
    let (upload, held) = if let Some((body, held)) = begun {
        (
            Either::Right(Limited::new(
                TimedBody::new(body, Some(SentSignal(sent.clone()))),
                bytes_max,
            )),
            held,
        )
    } else {
        sent.notify_one();
        (
            Either::Left(Empty::new()),
            capacity.request(forwarded.capacity_key, clock.ticks())?,
        )
    };
    let request = outgoing(visit, &forwarded, parts, upload)?;
    let asked = pin!(visit.pool.ask(forwarded.upstream.authority(), request));
    let response = in_time(forwarded.service, &sent, asked).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(RequestRejection::Unreachable(forwarded.service));
    }
    Ok(incoming(response, held))
}

/// The request as the service gets it.
pub(super) fn outgoing(
    visit: &ClientConnection,
    forwarded: &Forwarded<'_>,
    mut parts: Parts,
    body: UploadBody,
) -> Result<Request<UploadBody>, RequestRejection> {
    let underscores = visit
        .context
        .data_plane_settings
        .service_proxy
        .underscore_headers;
    let told = ForwardingHeaders {
        client: &visit.told,
        project: &forwarded.route.told,
        prefix: forwarded.service.prefix(),
        underscores,
    };
    request::rewrite(&mut parts.headers, &told);
    parts.uri = forwarded
        .upstream
        .path(forwarded.rest, parts.uri.query())
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

/// The head of the service's answer, if it comes in time.
pub(super) async fn in_time<B>(
    service: Service,
    sent: &Notify,
    asked: impl Future<Output = Result<Response<B>, Error>>,
) -> Result<Response<B>, RequestRejection> {
    let late = async {
        sent.notified().await;
        sleep_until(Instant::now() + ANSWER).await;
    };
    let answered = tokio::select! {
        biased;
        answered = asked => answered,
        () = late => return Err(RequestRejection::Late(service)),
    };
    answered.map_err(|error| {
        let mut cause: Option<&dyn StdError> = Some(&*error);
        while let Some(error) = cause {
            if error.is::<LengthLimitError>() {
                return RequestRejection::TooLarge;
            }
            if error.is::<BodyTimedOut>() {
                return RequestRejection::Stalled;
            }
            if let Some(error) = error.downcast_ref::<ClientBodyError>() {
                return error.rejection();
            }
            cause = error.source();
        }
        tracing::debug!(%service, %error, "a service did not answer");
        RequestRejection::Unreachable(service)
    })
}

/// The answer as the client gets it.
pub(super) fn incoming(response: Response<UpstreamBody>, held: CapacityPermit) -> ProxyResponse {
    let (mut parts, body) = response.into_parts();
    request::strip(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let body = if body.is_end_stream() {
        full("")
    } else {
        Either::Right(TimedBody::new(body, Some(held)))
    };
    Response::from_parts(parts, body)
}

/// What is written down about a request, taken before it is changed.
struct RequestRecord {
    began: Ticks,
    method: Method,
    version: Version,
    texts: [Option<String>; 3],
}

impl RequestRecord {
    fn of(visit: &ClientConnection, request: &Request<Incoming>) -> Self {
        let text = |name: HeaderName| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(telemetry::cut)
        };
        Self {
            began: visit.context.clock.ticks(),
            method: request.method().clone(),
            version: request.version(),
            texts: [header::USER_AGENT, header::REFERER, CLIENT_INFO].map(text),
        }
    }

    fn write(
        self,
        visit: &ClientConnection,
        uri: &Uri,
        (route, service): (Option<Arc<Route>>, Option<Service>),
        status: StatusCode,
    ) {
        let context = &visit.context;
        let [user_agent, referer, client_info] = self.texts;
        let row = log::Row {
            id: context.entropy.uuid(),
            at: context.clock.now(),
            project: route.map(|route| route.reference.clone()),
            service,
            method: self.method,
            host: visit.name.clone(),
            path: telemetry::cut(uri.path()),
            search: uri.query().map(telemetry::without_secrets),
            version: self.version,
            client: visit.peer.ip().to_canonical(),
            user_agent,
            referer,
            client_info,
            status,
            took_millis: context.clock.ticks().saturating_sub(self.began),
        };
        context
            .data_plane_metrics
            .service_proxy
            .request(service, status);
        if !context.service_proxy.log.add(row) {
            context.data_plane_metrics.service_proxy.dropped_row();
        }
    }
}
