//! Endpoints become routes: every spelling of an operation leads to the same guarded handler.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    extract::Request,
    routing::{MethodFilter, MethodRouter, on},
};

use super::{
    endpoint::{Endpoint, Verb},
    guard::{self, Guarded},
};
use crate::app::App;

impl Verb {
    /// GET also answers HEAD, without the body.
    const fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET.or(MethodFilter::HEAD),
            Self::Head => MethodFilter::HEAD,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// Names of the `{placeholders}` of a path.
pub fn placeholders(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
}

/// What `path` has in the place of `{name}`. All spellings of an operation that have the placeholder have it behind the
/// same number of segments, which a test of the list of endpoints checks.
pub(super) fn placeholder<'a>(endpoint: &Endpoint, path: &'a str, name: &str) -> Option<&'a str> {
    let place = endpoint.path.split('/').position(|segment| segment.strip_prefix('{').and_then(|s| s.strip_suffix('}')) == Some(name))?;
    path.split('/').nth(place)
}

/// The operation that a request of this line reaches, as the routes of [`router`] would have it.
pub(super) fn find(endpoints: &[&'static Endpoint], method: &str, path: &str) -> Option<&'static Endpoint> {
    let spellings = |endpoint: &&'static Endpoint| std::iter::once(endpoint.path).chain(endpoint.aliases.iter().copied());
    // A literal segment goes before a placeholder, the first that differs decides, and methods are looked at after that.
    let rank = |spelling: &&str| spelling.split('/').map(|segment| segment.starts_with('{')).collect::<Vec<_>>();
    let path = endpoints.iter().flat_map(spellings).filter(|spelling| matches(spelling, path)).min_by_key(rank)?;
    let of = |method: &str| {
        let mut here = endpoints.iter().filter(|endpoint| spellings(endpoint).any(|spelling| spelling == path));
        here.find(|endpoint| endpoint.method.name() == method).copied()
    };
    of(method).or_else(|| if method == "HEAD" { of("GET") } else { None })
}

fn matches(spelling: &str, path: &str) -> bool {
    let (mut wanted, mut parts) = (spelling.split('/'), path.split('/'));
    let all = wanted.by_ref().all(|wanted| parts.next().is_some_and(|part| wanted == part || wanted.starts_with('{') && !part.is_empty()));
    all && parts.next().is_none()
}

/// Routes for `endpoints`, and `unknown` for everything else.
///
/// An operation's counter has the number of its place in the list; `unknown` has the number after the last.
pub fn router(app: &App, endpoints: &[&'static Endpoint], unknown: &'static Endpoint) -> Router {
    let guarded = |operation: usize, endpoint: &'static Endpoint| {
        let operation = u16::try_from(operation).unwrap_or(u16::MAX);
        Arc::new(Guarded { app: app.clone(), endpoint, operation, handle: (endpoint.handler)().handle })
    };
    let unknown = guarded(endpoints.len(), unknown);
    let not_found = move |request: Request| guard::serve(unknown.clone(), request);

    // A path that also declares HEAD must not let GET answer it.
    let declares_head = |path: &str| endpoints.iter().any(|endpoint| endpoint.method == Verb::Head && endpoint.path == path);
    let mut paths: BTreeMap<&str, MethodRouter> = BTreeMap::new();
    for (operation, endpoint) in endpoints.iter().enumerate() {
        let guarded = guarded(operation, endpoint);
        for path in std::iter::once(endpoint.path).chain(endpoint.aliases.iter().copied()) {
            let guarded = guarded.clone();
            let serve = move |request: Request| guard::serve(guarded.clone(), request);
            let filter = if endpoint.method == Verb::Get && declares_head(path) { MethodFilter::GET } else { endpoint.method.filter() };
            let methods = paths.remove(path).unwrap_or_default();
            paths.insert(path, methods.merge(on(filter, serve)));
        }
    }
    let routes = paths.into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods));
    routes.fallback(not_found.clone()).method_not_allowed_fallback(not_found)
}
