//! Passing a request on to the server that holds its project.

use async_trait::async_trait;
use http::Request;

use super::{
    body::{Body, Response},
    transport::Peer,
};
use crate::platform::{access::Project, error::Error};

/// The other servers of the installation. Implemented by the control plane.
#[async_trait]
pub trait RequestForwarder: Send + Sync {
    /// Returns the server that holds a project. `None`: this one does, or the other one cannot be
    /// reached, so that this one answers as far as it can.
    async fn server_of(&self, project: &Project) -> Option<Box<dyn OtherServer>>;
}

/// A server to which a request can be passed on.
#[async_trait]
pub trait OtherServer: Send {
    /// Sends a request of a client and returns the response. The other server checks the
    /// credential, and trusts this one with the address of the client.
    async fn send(
        self: Box<Self>,
        request: Request<Body>,
        peer: Peer,
    ) -> Result<Response, ForwardError>;
}

/// A failure to pass a request on.
#[derive(Debug)]
pub enum ForwardError {
    /// The server cannot be reached and did not get the request. Has the body.
    Unsent(Body),
    /// The server may have got the request.
    Failed(Error),
}
