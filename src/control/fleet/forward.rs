//! Passes requests of the API on to the node that holds their project.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use http::{
    Request, Uri, Version,
    header::{self, HeaderName},
    uri::{Authority, PathAndQuery, Scheme},
};

use super::{
    connections::address_of,
    forwarded_client,
    holders::reachable_holder,
    node::Node,
    peer_connections::{PeerAddress, SendError, StreamPermit},
};
use crate::{
    control::context::{ControlContext, ControlState},
    platform::{
        access::Project,
        error::Error,
        http::{
            Body, Peer, Response,
            forwarding::{ForwardError, OtherServer, RequestForwarder},
        },
    },
};

/// Fields that describe one connection and are not passed on (RFC 9110 §7.6.1), and `Host`, which
/// HTTP/2 sends as the authority.
const OF_ONE_CONNECTION: [HeaderName; 5] = [
    header::CONNECTION,
    header::HOST,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// `Retry-After` of a request after the connection was lost.
const RETRY: Duration = Duration::from_secs(1);
/// Authority of a request without `Host`.
const NO_HOST: &str = "localhost";

/// Returns the forwarder of this node.
pub fn forwarder(context: &ControlContext) -> Arc<dyn RequestForwarder> {
    Arc::new(Forwarder(context.downgrade()))
}

/// The forwarder. The context holds it.
struct Forwarder(Weak<ControlState>);

#[async_trait]
impl RequestForwarder for Forwarder {
    async fn server_of(&self, project: &Project) -> Option<Box<dyn OtherServer>> {
        let context = ControlContext::upgrade(&self.0)?;
        let node = match reachable_holder(&context, project.id).await {
            Ok(node) => node?,
            Err(error) => {
                tracing::debug!(%error, "failed to find the node of a project");
                return None;
            }
        };
        let address = address_of(&context, &node)?;
        Some(Box::new(Holder {
            context,
            node,
            address,
        }))
    }
}

/// The node that holds the project of a request.
struct Holder {
    context: ControlContext,
    node: Node,
    address: PeerAddress,
}

#[async_trait]
impl OtherServer for Holder {
    async fn send(
        self: Box<Self>,
        mut request: Request<Body>,
        peer: Peer,
    ) -> Result<Response, ForwardError> {
        prepare(&mut request, peer);
        let connections = &self.context.fleet.connections;
        match connections.send(&self.address, request).await {
            Ok((response, permit)) => Ok(response.map(|body| counted(Body::new(body), permit))),
            Err(SendError::Unsent(request, error)) => {
                tracing::warn!(node = self.node.name, %error, "node cannot be reached");
                Err(ForwardError::Unsent(request.into_body()))
            }
            Err(SendError::Lost(error)) => {
                let name = &self.node.name;
                tracing::warn!(node = name, %error, "connection to a node was lost");
                let what = format!(
                    "The node {name}, which holds the project, stopped answering, and the request may have had an effect"
                );
                Err(ForwardError::Failed(Error::Unavailable {
                    what: what.into(),
                    retry: RETRY,
                }))
            }
        }
    }
}

/// Counts the stream until the body of the response ends.
fn counted(body: Body, permit: StreamPermit) -> Body {
    match body {
        Body::Arriving(arriving) => {
            Body::new(http_body_util::BodyExt::map_frame(arriving, move |frame| {
                let _ = &permit;
                frame
            }))
        }
        Body::Whole(_) => body,
    }
}

/// Makes a request of a client one of HTTP/2 between nodes.
fn prepare(request: &mut Request<Body>, peer: Peer) {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    let authority = parts.authority.take().or(host);
    parts.authority = Some(authority.unwrap_or_else(|| Authority::from_static(NO_HOST)));
    parts.scheme = Some(if peer.https {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    });
    let path = parts.path_and_query.take();
    parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    for name in OF_ONE_CONNECTION {
        headers.remove(name);
    }
    headers.remove(KEEP_ALIVE);
    headers.remove(PROXY_CONNECTION);
    forwarded_client::write_peer(headers, peer);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(uri: &str, headers: &[(&'static str, &str)], https: bool) -> Request<Body> {
        let request = headers
            .iter()
            .fold(Request::builder().uri(uri), |request, (name, value)| {
                request.header(*name, *value)
            });
        let mut request = request.body(Body::empty()).unwrap();
        let peer = Peer {
            address: "203.0.113.9".parse().unwrap(),
            secure: true,
            https,
        };
        prepare(&mut request, peer);
        request
    }

    #[test]
    fn host_becomes_the_authority() {
        for (uri, host, expected) in [
            (
                "/v1/x?y=1",
                Some("api.test:8443"),
                "https://api.test:8443/v1/x?y=1",
            ),
            ("https://api.test/v1", None, "https://api.test/v1"),
            ("/v1", None, "https://localhost/v1"),
            ("/v1", Some("not a host"), "https://localhost/v1"),
        ] {
            let host = host.map(|host| ("host", host));
            let request = prepared(uri, host.as_slice(), true);
            assert_eq!(request.uri(), expected);
            assert_eq!(request.headers().get("host"), None);
        }
        let plain = prepared("/", &[("host", "api.test")], false);
        assert_eq!(plain.uri(), "http://api.test/");
    }

    #[test]
    fn fields_of_the_connection_stay_and_others_are_passed_on() {
        let request = prepared(
            "/v1",
            &[
                ("connection", "close, x-hop"),
                ("keep-alive", "timeout=5"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("authorization", "Bearer x"),
                ("gantry-client-address", "6.6.6.6"),
            ],
            true,
        );
        let mut names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "authorization",
            "gantry-client-address",
            "gantry-client-transport",
        ];
        assert_eq!(names, expected);
        assert_eq!(request.headers()["gantry-client-address"], "203.0.113.9");
    }
}
