//! The routes of all endpoints. All paths of an operation share one guarded handler.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, header, request::Parts};
use hyper::body::Body as HttpBody;
use tower::Service;

use super::{
    body::{Body, BodyError, Response},
    call::IncomingRequest,
    client_kind::{ClientKind, DelegatedCaller, InternalApi},
    endpoint::{Endpoint, Verb},
    guard::{self, PROGRAMS},
    guarded_endpoint::{GuardedEndpoint, State},
    request_body::RequestBody,
    server,
    transport::Peer,
};
use crate::platform::context::PlatformContext;

const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Returns the operation of a method and path, by the rules of [`Api`].
pub(super) fn find(
    endpoints: &[&'static Endpoint],
    method: &str,
    path: &str,
) -> Option<&'static Endpoint> {
    let spellings = |endpoint: &&'static Endpoint| {
        std::iter::once(endpoint.path).chain(endpoint.aliases.iter().copied())
    };
    // At the first difference, a literal segment precedes a placeholder. The method is compared
    // last.
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
    let mut parts = path.split('/');
    for expected in spelling.split('/') {
        let Some(part) = parts.next() else {
            return false;
        };
        if expected != part && (!expected.starts_with('{') || part.is_empty()) {
            return false;
        }
    }
    parts.next().is_none()
}

/// The API as a service, for requests from one address.
///
/// Not axum's router: its unused parameters, extensions and boxes take two microseconds of
/// processor time, a quarter of a request.
#[derive(Clone)]
pub struct Api {
    routes: Arc<Routes>,
    client: IpAddr,
}

/// All paths, each with its operations by method.
struct Routes {
    paths: matchit::Router<Vec<(Verb, Arc<GuardedEndpoint>)>>,
    unknown: Arc<GuardedEndpoint>,
    unknown_page: Arc<GuardedEndpoint>,
}

/// The endpoints for one kind of client.
pub struct EndpointSet<'a> {
    /// The kind of client.
    pub client_kind: &'static ClientKind,
    /// The operations.
    pub endpoints: &'a [&'static Endpoint],
    /// The operation for all other paths and methods.
    pub unknown: &'static Endpoint,
}

impl Api {
    /// Returns the API for programs and browsers on this machine.
    ///
    /// The index of an operation in rate limits and metrics is its index in `endpoints`. `unknown`
    /// follows the last, then the pages.
    #[expect(clippy::needless_pass_by_value, reason = "the router owns the state")]
    pub fn new(
        context: &PlatformContext,
        state: State,
        endpoints: &[&'static Endpoint],
        unknown: &'static Endpoint,
        pages: &EndpointSet<'_>,
    ) -> Self {
        let programs = EndpointSet {
            client_kind: &PROGRAMS,
            endpoints,
            unknown,
        };
        Self {
            routes: Arc::new(Routes::new(context, &state, &programs, pages)),
            client: Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Serves a request: of a delegated caller if another operation sends it, or of a client of
    /// another server that passed it on.
    fn serve(
        &self,
        request: Request<Body>,
        on_behalf: Option<DelegatedCaller>,
        forwarded: Option<Peer>,
    ) -> impl Future<Output = Response> + Send + use<> {
        let guarded = self
            .routes
            .find(request.method(), request.uri().path(), request.headers())
            .clone();
        let internal_api = guarded.calls_operations().then(|| {
            let api: Arc<dyn InternalApi> = Arc::new(self.clone());
            api
        });
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
        let mut incoming = IncomingRequest {
            socket: self.client,
            method,
            uri,
            headers,
            body: RequestBody::Pending(body),
            on_behalf,
            forwarded,
            internal_api,
        };
        async move {
            let response = guard::serve(&guarded, &mut incoming).await;
            if head {
                without_body(response)
            } else {
                response
            }
        }
    }

    /// Returns the API for requests from this address: of a client or a proxy.
    #[must_use]
    pub fn for_client(&self, client: IpAddr) -> Self {
        Self {
            routes: self.routes.clone(),
            client,
        }
    }

    /// Returns the service of one connection.
    pub fn connection(&self, client: SocketAddr) -> impl server::Service + use<> {
        let api = self.for_client(client.ip());
        server::service(move |request| api.serve(request.map(Body::new), None, None))
    }

    /// Serves a request that another server passed on for its client.
    pub fn serve_forwarded(
        &self,
        request: Request<Body>,
        client: Peer,
    ) -> impl Future<Output = Response> + Send + use<> {
        self.serve(request, None, Some(client))
    }
}

impl Routes {
    fn new(
        context: &PlatformContext,
        state: &State,
        programs: &EndpointSet<'_>,
        pages: &EndpointSet<'_>,
    ) -> Self {
        let mut number = 0;
        let mut guarded = |endpoint: &'static Endpoint, client_kind: &'static ClientKind| {
            let guarded = Arc::new(GuardedEndpoint::new(
                context.clone(),
                state.clone(),
                endpoint,
                number,
                client_kind,
            ));
            number += 1;
            guarded
        };
        let mut operations: BTreeMap<&str, Vec<(Verb, Arc<GuardedEndpoint>)>> = BTreeMap::new();
        let mut serve = |served: &EndpointSet<'_>| {
            for endpoint in served.endpoints {
                let guarded = guarded(endpoint, served.client_kind);
                for path in std::iter::once(endpoint.path).chain(endpoint.aliases.iter().copied()) {
                    operations
                        .entry(path)
                        .or_default()
                        .push((endpoint.method, guarded.clone()));
                }
            }
            guarded(served.unknown, served.client_kind)
        };
        let unknown = serve(programs);
        let unknown_page = serve(pages);
        let mut paths = matchit::Router::new();
        for (path, operations) in operations {
            if let Err(error) = paths.insert(path, operations) {
                // A test requests every path of every operation.
                tracing::error!(path, %error, "path could not be added to the router");
            }
        }
        Self {
            paths,
            unknown,
            unknown_page,
        }
    }

    /// Returns the handler of a request. GET also serves HEAD, unless the path declares HEAD.
    fn find(&self, method: &Method, path: &str, headers: &HeaderMap) -> &Arc<GuardedEndpoint> {
        let Ok(found) = self.paths.at(path) else {
            // A browser that navigates gets a page instead of JSON.
            let navigates = headers
                .get(FETCH_MODE)
                .is_some_and(|mode| mode == "navigate");
            return if navigates {
                &self.unknown_page
            } else {
                &self.unknown
            };
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
    B: HttpBody<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.serve(request.map(Body::new), None, None);
        Box::pin(async move { Ok(answer.await) })
    }
}

#[async_trait]
impl InternalApi for Api {
    async fn respond(&self, request: Request<Body>, caller: DelegatedCaller) -> Response {
        self.serve(request, Some(caller), None).await
    }
}

/// Returns the response to HEAD: that of GET without its body.
fn without_body(mut response: Response) -> Response {
    if let Some(length) = response.body().size_hint().exact() {
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length.into());
    }
    *response.body_mut() = Body::empty();
    response
}
