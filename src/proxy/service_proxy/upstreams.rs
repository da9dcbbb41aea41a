//! Services of a project and the addresses of their upstreams: templates set by the operator for
//! all projects or for one.

use std::{fmt, str::FromStr, sync::Arc};

use gantry_base::{
    ids::{Malformed, ProjectRef},
    net::owned_port::OwnedPort,
};
use gantry_node::{clusters::ServerSocket, kits::Service};
use hyper::{
    header::HeaderValue,
    http::uri::{Authority, PathAndQuery, Uri},
};

/// Placeholder of a template for the project's reference.
const REF: &str = "{ref}";
/// A valid reference, used to validate a template.
const SOME_REF: &str = "abcdefghijklmnopqrst";
/// Longest template, in bytes.
const BYTES_MAX: usize = 500;

/// The address of a service's upstream: an `http://` URL in which `{ref}` is replaced by the
/// project's reference. The path after the service's prefix is appended to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTemplate {
    text: Arc<str>,
    /// The parsed upstream, if it is equal for all projects.
    fixed: Option<Arc<Upstream>>,
}

/// The address that connections to an upstream are opened to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UpstreamAddress {
    /// Host and port.
    Tcp(Authority),
    /// The Unix socket of a process that Gantry runs.
    Unix(ServerSocket),
    /// The port of a process that Gantry runs.
    Port(OwnedPort),
}

/// The upstream of a project's service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    address: UpstreamAddress,
    host: HeaderValue,
    /// Empty, or a path that begins with a slash and does not end with one.
    base: Arc<str>,
    /// Paths below this one are not below `base`.
    beside_base: Option<&'static str>,
}

impl FromStr for UpstreamTemplate {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let tried = Upstream::parse(&text.replace(REF, SOME_REF));
        let tried = tried.filter(|_| text.len() <= BYTES_MAX).ok_or(Malformed(
            "an address such as http://127.0.0.1:3000 or http://{ref}.internal:3000/base, without user, query or fragment",
        ))?;
        Ok(Self {
            text: text.into(),
            fixed: (!text.contains(REF)).then(|| tried.into()),
        })
    }
}

impl fmt::Display for UpstreamTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl UpstreamTemplate {
    /// Returns the upstream for a project.
    pub fn fill(&self, project: &ProjectRef) -> Option<Arc<Upstream>> {
        self.fixed
            .clone()
            .or_else(|| Upstream::parse(&self.text.replace(REF, project.as_str())).map(Arc::new))
    }
}

impl Upstream {
    fn parse(text: &str) -> Option<Self> {
        // The URI parser drops a fragment silently.
        let uri: Uri = (!text.contains(['#', '{', '}', '@'])).then(|| text.parse().ok())??;
        let authority = uri
            .authority()
            .filter(|authority| !authority.host().is_empty())?;
        let plain = uri.scheme_str() == Some("http") && uri.query().is_none();
        let host = HeaderValue::from_str(authority.as_str()).ok()?;
        plain.then(|| Self {
            address: UpstreamAddress::Tcp(authority.clone()),
            host,
            base: uri.path().trim_end_matches('/').into(),
            beside_base: None,
        })
    }

    /// The upstream at the address of a process that Gantry runs.
    ///
    /// Realtime finds the project by the first label of the host, and serves WebSockets beside its
    /// API.
    pub fn of_process(address: UpstreamAddress, service: Service, project: &ProjectRef) -> Self {
        let is_realtime = service == Service::Realtime;
        let local = HeaderValue::from_static("localhost");
        let named = HeaderValue::from_str(&format!("{project}.localhost")).ok();
        Self {
            address,
            host: named.filter(|_| is_realtime).unwrap_or(local),
            base: if is_realtime { "/socket" } else { "" }.into(),
            beside_base: is_realtime.then_some("/api/"),
        }
    }

    /// The address of its connections.
    pub fn address(&self) -> &UpstreamAddress {
        &self.address
    }

    /// The value of `Host`.
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Returns the path and query of a request to this upstream.
    pub fn path(&self, rest: &str, query: Option<&str>) -> Option<Uri> {
        let rest = if rest.is_empty() && self.base.is_empty() {
            "/"
        } else {
            rest
        };
        let mut text = String::with_capacity(
            self.base.len() + rest.len() + query.map_or(0, |query| query.len() + 1),
        );
        if !self.beside_base.is_some_and(|path| rest.starts_with(path)) {
            text.push_str(&self.base);
        }
        text.push_str(rest);
        if let Some(query) = query {
            text.push('?');
            text.push_str(query);
        }
        PathAndQuery::try_from(text).ok().map(Uri::from)
    }
}

/// Templates by service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upstreams([Option<UpstreamTemplate>; 5]);

impl Upstreams {
    /// Returns the template of a service.
    pub fn get(&self, service: Service) -> Option<&UpstreamTemplate> {
        self.0.get(service as usize)?.as_ref()
    }

    /// Sets the template of a service, replacing any other.
    pub fn set(&mut self, service: Service, template: UpstreamTemplate) {
        if let Some(place) = self.0.get_mut(service as usize) {
            *place = Some(template);
        }
    }
}

/// An option value `SERVICE=URL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUpstream {
    /// The service.
    pub service: Service,
    /// Its address.
    pub template: UpstreamTemplate,
}

impl FromStr for ServiceUpstream {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let (service, template) = text
            .split_once('=')
            .ok_or(Malformed("SERVICE=URL, such as rest=http://127.0.0.1:3000"))?;
        Ok(Self {
            service: service.parse()?,
            template: template.parse()?,
        })
    }
}

impl FromIterator<ServiceUpstream> for Upstreams {
    fn from_iter<I: IntoIterator<Item = ServiceUpstream>>(all: I) -> Self {
        let mut upstreams = Self::default();
        for ServiceUpstream { service, template } in all {
            upstreams.set(service, template);
        }
        upstreams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_prefix_selects_the_service() {
        let cases = [
            ("/rest/v1", Some((Service::Rest, ""))),
            ("/rest/v1/", Some((Service::Rest, "/"))),
            ("/rest/v1/todos", Some((Service::Rest, "/todos"))),
            ("/rest/v10", None),
            ("/rest", None),
            ("/", None),
            ("//rest/v1", None),
            ("/REST/v1", None),
            ("/auth/v1/token", Some((Service::Auth, "/token"))),
            (
                "/storage/v1/object/a",
                Some((Service::Storage, "/object/a")),
            ),
            (
                "/realtime/v1/websocket",
                Some((Service::Realtime, "/websocket")),
            ),
            (
                "/functions/v1/f/auth/v1",
                Some((Service::Functions, "/f/auth/v1")),
            ),
        ];
        for (path, service) in cases {
            assert_eq!(Service::of_path(path), service, "{path}");
        }
    }

    #[test]
    fn template_is_expanded_with_the_reference() {
        let project: ProjectRef = SOME_REF.parse().unwrap();
        let at = |template: &str, rest: &str, query: Option<&str>| {
            let upstream = template
                .parse::<UpstreamTemplate>()
                .unwrap()
                .fill(&project)
                .unwrap();
            format!(
                "http://{}{}",
                upstream.host().to_str().unwrap(),
                upstream.path(rest, query).unwrap()
            )
        };
        assert_eq!(
            at("http://127.0.0.1:3000", "/todos", Some("a=b")),
            "http://127.0.0.1:3000/todos?a=b"
        );
        assert_eq!(
            at("http://127.0.0.1:3000/", "", None),
            "http://127.0.0.1:3000/"
        );
        assert_eq!(
            at("http://[::1]:3000/base/", "", None),
            "http://[::1]:3000/base"
        );
        assert_eq!(
            at("http://{ref}.internal/{ref}", "/x", None),
            format!("http://{SOME_REF}.internal/{SOME_REF}/x")
        );
    }

    #[test]
    fn realtime_has_sockets_beside_its_api() {
        let project: ProjectRef = SOME_REF.parse().unwrap();
        let address = UpstreamAddress::Tcp(Authority::from_static("x"));
        let path = |service: Service, rest: &str| {
            let upstream = Upstream::of_process(address.clone(), service, &project);
            upstream.path(rest, Some("vsn=1")).unwrap().to_string()
        };
        for (service, rest, expected) in [
            (Service::Realtime, "/websocket", "/socket/websocket?vsn=1"),
            (Service::Realtime, "/api/broadcast", "/api/broadcast?vsn=1"),
            (Service::Realtime, "/apis", "/socket/apis?vsn=1"),
            (Service::Storage, "/bucket", "/bucket?vsn=1"),
            (Service::Rest, "", "/?vsn=1"),
        ] {
            assert_eq!(path(service, rest), expected, "{rest}");
        }
    }

    #[test]
    fn invalid_template_is_rejected() {
        for text in [
            "",
            "127.0.0.1:3000",
            "https://a",
            "http://",
            "http://a?b",
            "http://a#b",
            "http://u@a",
            "http://{other}",
            "ftp://a",
            "http://a b",
        ] {
            assert!(text.parse::<UpstreamTemplate>().is_err(), "{text}");
        }
        assert!(
            format!("http://a/{}", "b".repeat(500))
                .parse::<UpstreamTemplate>()
                .is_err()
        );
        for text in ["rest", "graphql=http://a", "rest=", "=http://a"] {
            assert!(text.parse::<ServiceUpstream>().is_err(), "{text}");
        }
        let all: Upstreams = ["rest=http://a", "rest=http://b"]
            .map(|text| text.parse::<ServiceUpstream>().unwrap())
            .into_iter()
            .collect();
        assert_eq!(
            all.get(Service::Rest).unwrap().to_string(),
            "http://b",
            "the last one holds"
        );
        assert_eq!(all.get(Service::Auth), None);
    }
}
