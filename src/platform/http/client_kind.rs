//! Kinds of clients: programs send a token and read JSON, browsers send a session cookie and read
//! pages.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use super::{
    body::{Body, Response},
    standard_headers::REQUEST_ID,
    transport::Peer,
};
use crate::platform::{
    access::{User, credential::PresentedCredential},
    audit::client_name::ClientName,
    error::{CredentialProblem, Error},
};

/// The differences between the kinds of clients. All other steps of a request are shared.
pub struct ClientKind {
    /// Reads the credential from the header fields of a request.
    pub read_credential: fn(&HeaderMap, Peer) -> Result<PresentedCredential, CredentialProblem>,
    /// Returns the response to an error.
    pub error_response: fn(&Error, &RejectedRequest<'_>) -> Response,
    /// Whether its operations call other operations for their caller.
    pub calls_operations: bool,
}

/// A request that is answered with an error.
#[derive(Debug, Clone, Copy)]
pub struct RejectedRequest<'a> {
    /// `GET`, `POST`, …
    pub method: &'a Method,
    /// The URI as sent.
    pub uri: &'a Uri,
    /// The request id in the response and in log lines.
    pub request_id: &'a str,
    /// Id of the operation.
    pub operation: &'static str,
    /// Value of `WWW-Authenticate`, for errors that have one.
    pub challenge: Option<&'a str>,
}

/// The authenticated user of an operation that calls another operation of this process.
#[derive(Debug, Clone)]
pub struct DelegatedCaller {
    /// The user. The credential was checked by the calling operation.
    pub user: Arc<User>,
    /// The client of the calling operation's request.
    pub peer: Peer,
    /// The program that sends the requests, if it is known.
    pub client: Option<ClientName>,
}

/// The operations of this process, for operations that call others.
#[async_trait]
pub(super) trait InternalApi: Send + Sync {
    /// Returns the response to a request of this caller.
    async fn respond(&self, request: Request<Body>, caller: DelegatedCaller) -> Response;
}

/// A client of this process's own operations, with the rights of the current caller.
#[derive(Clone)]
pub struct InternalClient {
    pub(super) api: Arc<dyn InternalApi>,
    pub(super) request_id: Box<str>,
    pub(super) on_behalf: Option<DelegatedCaller>,
}

impl InternalClient {
    /// Returns the client with the program that sends its requests, for the audit log.
    #[must_use]
    pub fn named(mut self, client: Option<ClientName>) -> Self {
        if let Some(caller) = &mut self.on_behalf {
            caller.client = client;
        }
        self
    }

    /// Calls another operation and returns its response, or its error before it was rendered.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response, Error> {
        // Without a delegated caller, the request would be authenticated as one from this machine.
        let Some(caller) = &self.on_behalf else {
            return Err(Error::Unauthenticated(CredentialProblem::Missing));
        };
        // Log entries of both operations have one request id.
        request
            .headers_mut()
            .extend(HeaderValue::try_from(&*self.request_id).map(|id| (REQUEST_ID, id)));
        let mut response = self.api.respond(request, caller.clone()).await;
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
