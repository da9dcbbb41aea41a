//! Kinds of clients: programs send a token and read JSON, browsers send a session cookie and read
//! pages.

use std::sync::Arc;

use http::{HeaderMap, Method, Uri};

use super::{Api, Peer, Response};
use crate::platform::{
    access::{User, credential::PresentedCredential},
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
}

/// A client of this process's own operations, with the rights of the current caller.
#[derive(Clone)]
pub struct InternalClient {
    pub(super) api: Api,
    pub(super) request_id: Box<str>,
    pub(super) on_behalf: Option<DelegatedCaller>,
}
