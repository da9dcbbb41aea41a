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
    answer::{Refusal, close},
    body::{ClientBody, ClientBodyError, Download, Error, Moving, Sent, StoodStill, Upload, full},
    capacity::{Held, Holder},
    connection::Visit,
    gate,
    links::Arriving,
    log,
    names::{Serving, Site},
    request,
    request::Told,
    tunnel,
    upstreams::{Service, Upstream},
};
use crate::{base::clock::Ticks, data_plane::database_access::bans, platform::telemetry};

/// What a service gets to begin its answer, once it has the request.
const ANSWER: Duration = Duration::from_mins(1);

const CLIENT_INFO: HeaderName = HeaderName::from_static("x-client-info");

/// What a client gets.
pub(super) type Answer = Response<Download>;

/// A request that is passed on.
pub(super) struct Passed<'a> {
    pub(super) site: Arc<Site>,
    pub(super) service: Service,
    pub(super) upstream: Arc<Upstream>,
    /// The path behind the service's prefix.
    pub(super) rest: &'a str,
    /// The project and the client that the request is counted for.
    pub(super) holder: Holder,
}

/// Serves one request.
pub(super) async fn serve(visit: &Visit, mut request: Request<Incoming>) -> Answer {
    let noted = Noted::of(visit, &request);
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
        let passed = admit(visit, &parts, &uri, &mut about).await?;
        if request::is_websocket(&parts) {
            Box::pin(tunnel::open(visit, passed, parts, tunnel)).await
        } else {
            forward(visit, passed, parts, body).await
        }
    };
    let mut answer = outcome
        .await
        .unwrap_or_else(|refusal| refusal.respond(version));
    if last && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        close(answer.headers_mut());
    }
    if let Some(hsts) = about.0.as_ref().and_then(|site| site.hsts.clone()) {
        // What the service itself says of it holds.
        answer
            .headers_mut()
            .entry(header::STRICT_TRANSPORT_SECURITY)
            .or_insert(hsts);
    }
    noted.write(visit, &uri, about, answer.status());
    answer
}

/// Finds where a request goes, or why it goes nowhere.
async fn admit<'a>(
    visit: &Visit,
    parts: &Parts,
    uri: &'a Uri,
    (project, service): &mut (Option<Arc<Site>>, Option<Service>),
) -> Result<Passed<'a>, Refusal> {
    if visit.ambiguous.is_set() {
        return Err(Refusal::Malformed);
    }
    if !request::is_for(parts, &visit.name)? {
        return Err(Refusal::Misdirected);
    }
    request::check(parts)?;
    let edge = &visit.context.edge;
    // Again for each request: connections outlive what they were made for.
    let site = edge
        .names
        .find(&visit.name)
        .await
        .ok_or(Refusal::NoProject)?;
    *project = Some(site.clone());
    match site.serving {
        Serving::Yes => {}
        Serving::Paused => return Err(Refusal::Paused),
        Serving::NotYet => return Err(Refusal::NoProject),
    }
    let (wanted, rest) = Service::of_path(uri.path()).ok_or(Refusal::NoService)?;
    *service = Some(wanted);
    let own = site
        .upstreams
        .as_ref()
        .and_then(|upstreams| upstreams.get(wanted));
    let template = own
        .or_else(|| visit.context.data_plane_settings.upstreams.get(wanted))
        .ok_or(Refusal::NotConfigured(wanted))?;
    let upstream = template
        .fill(&site.reference)
        .ok_or(Refusal::NotConfigured(wanted))?;
    gate::check(&visit.context, &site, wanted, rest, parts).await?;
    let client = visit
        .context
        .settings
        .transport
        .peer(visit.peer.ip(), &parts.headers)
        .address;
    let holder = Holder {
        project: site.project,
        client: bans::network_of(client),
    };
    Ok(Passed {
        site,
        service: wanted,
        upstream,
        rest,
        holder,
    })
}

/// Passes a request on, and its answer back.
async fn forward(
    visit: &Visit,
    passed: Passed<'_>,
    parts: Parts,
    body: Incoming,
) -> Result<Answer, Refusal> {
    let sent = Arc::new(Notify::new());
    let bytes_max = passed.service.body_bytes_max();
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(Refusal::TooLarge);
    }
    let (capacity, clock) = (&visit.context.edge.capacity, &visit.context.clock);
    let begun = if body.is_end_stream() {
        None
    } else {
        let unfinished = capacity.body(passed.holder, clock.ticks())?;
        ClientBody::new(body, unfinished, clock.clone())
            .begin(capacity, passed.holder)
            .await?
    };
    let (upload, held) = if let Some((body, held)) = begun {
        (
            Either::Right(Limited::new(
                Moving::new(body, Some(Sent(sent.clone()))),
                bytes_max,
            )),
            held,
        )
    } else {
        sent.notify_one();
        (
            Either::Left(Empty::new()),
            capacity.request(passed.holder, clock.ticks())?,
        )
    };
    let request = outgoing(visit, &passed, parts, upload)?;
    let asked = pin!(visit.links.ask(passed.upstream.authority(), request));
    let response = in_time(passed.service, &sent, asked).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Refusal::Unreachable(passed.service));
    }
    Ok(incoming(response, held))
}

/// The request as the service gets it.
pub(super) fn outgoing(
    visit: &Visit,
    passed: &Passed<'_>,
    mut parts: Parts,
    body: Upload,
) -> Result<Request<Upload>, Refusal> {
    let underscores = visit.context.data_plane_settings.edge.underscore_headers;
    let told = Told {
        client: &visit.told,
        project: &passed.site.told,
        prefix: passed.service.prefix(),
        underscores,
    };
    request::rewrite(&mut parts.headers, &told);
    parts.uri = passed
        .upstream
        .path(passed.rest, parts.uri.query())
        .ok_or(Refusal::Malformed)?;
    parts.version = Version::HTTP_11;
    parts
        .headers
        .insert(header::HOST, passed.upstream.host().clone());
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
) -> Result<Response<B>, Refusal> {
    let late = async {
        sent.notified().await;
        sleep_until(Instant::now() + ANSWER).await;
    };
    let answered = tokio::select! {
        biased;
        answered = asked => answered,
        () = late => return Err(Refusal::Late(service)),
    };
    answered.map_err(|error| {
        let mut cause: Option<&dyn StdError> = Some(&*error);
        while let Some(error) = cause {
            if error.is::<LengthLimitError>() {
                return Refusal::TooLarge;
            }
            if error.is::<StoodStill>() {
                return Refusal::Stalled;
            }
            if let Some(error) = error.downcast_ref::<ClientBodyError>() {
                return error.refusal();
            }
            cause = error.source();
        }
        tracing::debug!(%service, %error, "a service did not answer");
        Refusal::Unreachable(service)
    })
}

/// The answer as the client gets it.
pub(super) fn incoming(response: Response<Arriving>, held: Held) -> Answer {
    let (mut parts, body) = response.into_parts();
    request::strip(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let body = if body.is_end_stream() {
        full("")
    } else {
        Either::Right(Moving::new(body, Some(held)))
    };
    Response::from_parts(parts, body)
}

/// What is written down about a request, taken before it is changed.
struct Noted {
    began: Ticks,
    method: Method,
    version: Version,
    texts: [Option<String>; 3],
}

impl Noted {
    fn of(visit: &Visit, request: &Request<Incoming>) -> Self {
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
        visit: &Visit,
        uri: &Uri,
        (site, service): (Option<Arc<Site>>, Option<Service>),
        status: StatusCode,
    ) {
        let context = &visit.context;
        let [user_agent, referer, client_info] = self.texts;
        let row = log::Row {
            id: context.entropy.uuid(),
            at: context.clock.now(),
            project: site.map(|site| site.reference.clone()),
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
        if !context.edge.log.add(row) {
            context.data_plane_metrics.service_proxy.dropped_row();
        }
    }
}
