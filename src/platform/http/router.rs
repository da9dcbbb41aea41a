//! Endpoints become routes: every spelling of an operation leads to the same guarded handler.

use std::{
    any::Any,
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header, request::Parts};
use hyper::body::Body as HttpBody;
use tower::Service;

use super::{
    body::{Body, Broken, Response},
    endpoint::{Endpoint, Verb},
    face::{Asking, Face, OnBehalf},
    guard,
    guard::{Arrival, Guarded, PROGRAMS},
    input::Payload,
    server,
    standard_headers::REQUEST_ID,
};
use crate::{
    base::error::{CredentialProblem, Error},
    platform::context::PlatformContext,
};

const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Names of the `{placeholders}` of a path.
pub fn placeholders(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/')
        .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
}

/// What `path` has in the place of `{name}`. All spellings of an operation that have the placeholder have it behind the
/// same number of segments, which a test of the list of endpoints checks.
pub(super) fn placeholder<'a>(endpoint: &Endpoint, path: &'a str, name: &str) -> Option<&'a str> {
    segment(path, place(endpoint, name)?)
}

/// Which segment of a path that leads to the operation is the `{name}`.
pub(super) fn place(endpoint: &Endpoint, name: &str) -> Option<usize> {
    let is_name = |segment: &str| {
        segment
            .strip_prefix('{')
            .and_then(|inner| inner.strip_suffix('}'))
            == Some(name)
    };
    endpoint.path.split('/').position(is_name)
}

/// The segment at this place. By bytes: splitting by a character looks for it with a searcher made for long texts.
pub(super) fn segment(path: &str, place: usize) -> Option<&str> {
    let mut slashes = path
        .bytes()
        .enumerate()
        .filter(|(_, byte)| *byte == b'/')
        .map(|(at, _)| at);
    let start = if place == 0 {
        0
    } else {
        slashes.nth(place - 1)? + 1
    };
    path.get(start..slashes.next().unwrap_or(path.len()))
}

/// The operation that a request of this line reaches, as the routes of [`Api`] would have it.
pub(super) fn find(
    endpoints: &[&'static Endpoint],
    method: &str,
    path: &str,
) -> Option<&'static Endpoint> {
    let spellings = |endpoint: &&'static Endpoint| {
        std::iter::once(endpoint.path).chain(endpoint.aliases.iter().copied())
    };
    // A literal segment goes before a placeholder, the first that differs decides, and methods are looked at after that.
    let rank = |spelling: &&str| {
        spelling
            .split('/')
            .map(|segment| segment.starts_with('{'))
            .collect::<Vec<_>>()
    };
    let path = endpoints
        .iter()
        .flat_map(spellings)
        .filter(|spelling| matches(spelling, path))
        .min_by_key(rank)?;
    let of = |method: &str| {
        let mut here = endpoints
            .iter()
            .filter(|endpoint| spellings(endpoint).any(|spelling| spelling == path));
        here.find(|endpoint| endpoint.method.name() == method)
            .copied()
    };
    of(method).or_else(|| if method == "HEAD" { of("GET") } else { None })
}

fn matches(spelling: &str, path: &str) -> bool {
    let (mut wanted, mut parts) = (spelling.split('/'), path.split('/'));
    let all = wanted.by_ref().all(|wanted| {
        parts
            .next()
            .is_some_and(|part| wanted == part || wanted.starts_with('{') && !part.is_empty())
    });
    all && parts.next().is_none()
}

/// The API as a service, for one client: who that is, a server says by calling it with the address of a connection.
///
/// Not axum's router: it also pays for parameters, extensions and boxes that nothing here
/// reads: two microseconds of processor time, a quarter of a request.
#[derive(Clone)]
pub struct Api {
    routes: Arc<Routes>,
    client: IpAddr,
}

/// Every path, with its operations by method.
struct Routes {
    paths: matchit::Router<Vec<(Verb, Arc<Guarded>)>>,
    unknown: Arc<Guarded>,
    lost: Arc<Guarded>,
}

/// State of the wing whose operations are served; handlers take it by its type.
pub(super) type State = Arc<dyn Any + Send + Sync>;

/// What one kind of client is served.
pub struct Served<'a> {
    /// How it is met.
    pub face: &'static Face,
    /// What it can ask.
    pub endpoints: &'a [&'static Endpoint],
    /// What answers everything else.
    pub unknown: &'static Endpoint,
}

impl Api {
    /// Serves programs and browsers on this machine.
    ///
    /// An operation's counter has the number of its place in the list; `unknown` has the number after the last, and pages
    /// have those that follow.
    pub fn new(
        context: &PlatformContext,
        state: State,
        endpoints: &[&'static Endpoint],
        unknown: &'static Endpoint,
        pages: &Served<'_>,
    ) -> Self {
        let programs = Served {
            face: &PROGRAMS,
            endpoints,
            unknown,
        };
        Self {
            routes: Arc::new(Routes::new(context, &state, &programs, pages)),
            client: Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Sends a request from one operation to another, on behalf of who asked the first.
    fn serve(
        &self,
        request: Request<Body>,
        on_behalf: Option<OnBehalf>,
    ) -> impl Future<Output = Response> + Send + use<> {
        let guarded = self
            .routes
            .find(request.method(), request.uri().path(), request.headers())
            .clone();
        let asks = guarded.asks().then(|| self.clone());
        let (
            Parts {
                method,
                uri,
                headers,
                ..
            },
            body,
        ) = request.into_parts();
        let head = method == Method::HEAD;
        let payload = Payload::Pending(body);
        let mut arrival = Arrival {
            socket: self.client,
            method,
            uri,
            headers,
            payload,
            on_behalf,
            asks,
        };
        async move {
            let response = guard::serve(&guarded, &mut arrival).await;
            if head {
                without_body(response)
            } else {
                response
            }
        }
    }

    /// The same for a client, or a proxy, of this address.
    #[must_use]
    pub fn of(&self, client: IpAddr) -> Self {
        Self {
            routes: self.routes.clone(),
            client,
        }
    }

    /// What answers the requests of one connection.
    pub fn connection(&self, client: SocketAddr) -> impl server::Service + use<> {
        let api = self.of(client.ip());
        server::service(move |request| api.serve(request.map(Body::new), None))
    }
}

impl Routes {
    fn new(
        context: &PlatformContext,
        state: &State,
        programs: &Served<'_>,
        pages: &Served<'_>,
    ) -> Self {
        let mut number = 0;
        let mut guarded = |endpoint: &'static Endpoint, face: &'static Face| {
            let guarded = Arc::new(Guarded::new(
                context.clone(),
                state.clone(),
                endpoint,
                number,
                face,
            ));
            number += 1;
            guarded
        };
        let mut operations: BTreeMap<&str, Vec<(Verb, Arc<Guarded>)>> = BTreeMap::new();
        let mut serve = |served: &Served<'_>| {
            for endpoint in served.endpoints {
                let guarded = guarded(endpoint, served.face);
                for path in std::iter::once(endpoint.path).chain(endpoint.aliases.iter().copied()) {
                    operations
                        .entry(path)
                        .or_default()
                        .push((endpoint.method, guarded.clone()));
                }
            }
            guarded(served.unknown, served.face)
        };
        let (unknown, lost) = (serve(programs), serve(pages));
        let mut paths = matchit::Router::new();
        for (path, operations) in operations {
            if let Err(error) = paths.insert(path, operations) {
                // A fault of the list, which a test of it finds: every path of every operation is asked there.
                tracing::error!(path, %error, "a path cannot be served");
            }
        }
        Self {
            paths,
            unknown,
            lost,
        }
    }

    /// GET also answers HEAD, unless the path has a HEAD of its own.
    fn find(&self, method: &Method, path: &str, headers: &HeaderMap) -> &Arc<Guarded> {
        let Ok(found) = self.paths.at(path) else {
            // Somebody follows a link, and should not have to read JSON.
            let navigates = headers
                .get(FETCH_MODE)
                .is_some_and(|mode| mode == "navigate");
            return if navigates { &self.lost } else { &self.unknown };
        };
        let by = |wanted: Verb| {
            found
                .value
                .iter()
                .find(|(verb, _)| *verb == wanted)
                .map(|(_, guarded)| guarded)
        };
        let operation = match Verb::of(method) {
            Some(Verb::Head) => by(Verb::Head).or_else(|| by(Verb::Get)),
            Some(verb) => by(verb),
            None => None,
        };
        operation.unwrap_or(&self.unknown)
    }
}

impl Verb {
    fn of(method: &Method) -> Option<Self> {
        Some(match *method {
            Method::GET => Self::Get,
            Method::HEAD => Self::Head,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ => return None,
        })
    }
}

impl<B> Service<Request<B>> for Api
where
    B: HttpBody<Data = Bytes, Error: Into<Broken>> + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.serve(request.map(Body::new), None);
        Box::pin(async move { Ok(answer.await) })
    }
}

impl Asking {
    /// The other operation's answer, whoever serves it. Its errors are those it gave, not yet written for anybody.
    pub async fn ask(&self, mut request: Request<Body>) -> Result<Response, Error> {
        // Without somebody on whose behalf, it would be asked as a program of this machine's would.
        let Some(by) = &self.on_behalf else {
            return Err(Error::Unauthenticated(CredentialProblem::Missing));
        };
        // The entries of both in the log belong together.
        request
            .headers_mut()
            .extend(HeaderValue::try_from(&*self.request_id).map(|id| (REQUEST_ID, id)));
        let mut response = self.api.serve(request, Some(by.clone())).await;
        match response
            .extensions_mut()
            .remove::<Arc<Error>>()
            .and_then(Arc::into_inner)
        {
            Some(error) => Err(error),
            None => Ok(response),
        }
    }
}

/// What HEAD gets: everything that GET does, but the body.
fn without_body(mut response: Response) -> Response {
    if let Some(length) = response.body().size_hint().exact() {
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length.into());
    }
    *response.body_mut() = Body::empty();
    response
}
