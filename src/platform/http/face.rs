//! How operations meet those who ask: programs bring a token and read JSON, browsers bring a session and read pages.

use std::sync::Arc;

use http::{HeaderMap, Method, Uri};

use super::{Api, Peer, Response};
use crate::{
    base::error::{CredentialProblem, Error},
    platform::access::{User, credential::PresentedCredential},
};

/// What tells one kind of client from another. Everything else about a request is the same for all.
pub struct Face {
    /// What the request brings to say who sent it.
    pub presented: fn(&HeaderMap, Peer) -> Result<PresentedCredential, CredentialProblem>,
    /// The answer to an error.
    pub refuse: fn(&Error, &Refused<'_>) -> Response,
    /// Whether its operations ask others, on behalf of who asked them.
    pub asks: bool,
}

/// A request that is answered with an error.
#[derive(Debug, Clone, Copy)]
pub struct Refused<'a> {
    /// `GET`, `POST`, …
    pub method: &'a Method,
    /// As it was sent.
    pub uri: &'a Uri,
    /// Ties the answer to its line in the log.
    pub request_id: &'a str,
    /// Id of the operation.
    pub operation: &'static str,
    /// Value of `WWW-Authenticate`, where the error has one.
    pub challenge: Option<&'a str>,
}

/// Who an operation is asked for by another one, in this process.
#[derive(Debug, Clone)]
pub struct OnBehalf {
    /// The user, whose credential was looked at when the other operation was asked.
    pub user: Arc<User>,
    /// Where that came from.
    pub peer: Peer,
}

/// A way to ask other operations, as the one who asked this.
#[derive(Clone)]
pub struct Asking {
    pub(super) api: Api,
    pub(super) request_id: Box<str>,
    pub(super) on_behalf: Option<OnBehalf>,
}
