//! The call of an operation: its request after the guard, from which handlers take [`Input`]s.

use std::{any::Any, future::Future, net::IpAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use secrecy::SecretString;

use super::{
    client_credentials::{self, ClientCredentials},
    client_kind::{DelegatedCaller, InternalApi, InternalClient},
    operation_doc::OperationDoc,
    path_template::placeholder,
    request_body::RequestBody,
    transport::Peer,
};
use crate::platform::{
    access::{Caller, CallerRelation, Subject, User},
    audit::Recorder,
    context::PlatformContext,
    error::Error,
};

/// A request as received.
pub(super) struct IncomingRequest {
    /// Address of the peer of the connection.
    pub(super) socket: IpAddr,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: RequestBody,
    /// The caller, if another operation sends the request.
    pub(super) on_behalf: Option<DelegatedCaller>,
    /// The client, if another server passed the request on.
    pub(super) forwarded: Option<Peer>,
    /// The API, for handlers that call other operations.
    pub(super) internal_api: Option<Arc<dyn InternalApi>>,
}

/// A request after the guard: authenticated, counted and authorized.
///
/// Borrows from the guard, so that unused parts are neither moved nor copied.
pub struct Call<'a> {
    pub(super) context: &'a PlatformContext,
    /// State of the wing that declares the operation.
    pub(super) state: &'a (dyn Any + Send + Sync),
    pub(super) request: &'a mut IncomingRequest,
    pub(super) peer: Peer,
    pub(super) caller: &'a Caller,
    pub(super) subject: &'a Subject,
    pub(super) standing: CallerRelation,
    pub(super) recorder: Option<&'a Arc<Recorder>>,
    /// Path of the operation, with placeholders.
    pub(super) template: &'static str,
    /// Id of the operation.
    pub(super) operation: &'static str,
    pub(super) request_id: &'a str,
}

impl Call<'_> {
    /// Returns the state that the router was created with. Fails if it has another type.
    pub fn state<T: 'static>(&self) -> Result<&T, Error> {
        self.state.downcast_ref().ok_or_else(|| {
            Error::internal(
                "reading the state of the router",
                "the state has another type",
            )
        })
    }

    /// Returns the path segment of the placeholder `{name}`.
    pub fn placeholder(&self, name: &str) -> Option<&str> {
        placeholder(self.template, self.request.uri.path(), name)
    }

    /// Returns the address and transport security of the client.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the URI as sent.
    pub fn uri(&self) -> &Uri {
        &self.request.uri
    }

    /// Returns the header fields as sent.
    pub fn headers(&self) -> &HeaderMap {
        &self.request.headers
    }

    /// Returns the caller.
    pub fn caller(&self) -> &Caller {
        self.caller
    }

    /// Returns the request id in the response and in log lines.
    pub fn request_id(&self) -> &str {
        self.request_id
    }

    /// Returns the recorder for the audit log, if the request may change something.
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.cloned()
    }

    /// Returns the client credentials of an OAuth client.
    pub fn client_credentials(&self) -> ClientCredentials {
        client_credentials::read(&self.request.headers)
    }

    /// Returns the bearer token of a public operation, which the guard has not examined.
    pub fn bearer(&self) -> Option<SecretString> {
        client_credentials::bearer(&self.request.headers)
    }

    /// Returns the id of the operation.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Reads the whole body, of at most 1 MiB.
    pub async fn body(&mut self) -> Result<Bytes, Error> {
        self.request.body.read().await
    }

    /// Reads the whole body, of at most `bytes_max` bytes.
    pub async fn body_within(&mut self, bytes_max: usize) -> Result<Bytes, Error> {
        self.request.body.read_within(bytes_max).await
    }

    /// Returns a client that calls other operations for the caller of this one.
    pub fn internal_client(&self) -> Result<InternalClient, Error> {
        let api = self.request.internal_api.clone().ok_or_else(|| {
            Error::internal(
                "creating a client of other operations",
                "this kind of client cannot call operations",
            )
        })?;
        let caller = self.request.on_behalf.as_ref();
        let on_behalf = self.caller.shared().map(|user| DelegatedCaller {
            user: User::for_operations(user),
            peer: self.peer,
            client: caller.and_then(|caller| caller.client.clone()),
        });
        Ok(InternalClient {
            api,
            request_id: self.request_id.into(),
            on_behalf,
        })
    }
}

impl Input for InternalClient {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.internal_client()
    }
}

/// An argument of a handler.
pub trait Input: Sized + Send {
    /// Adds the argument to the document.
    fn describe(described: &mut OperationDoc);
    /// Extracts the value from the call.
    fn take(call: &mut Call<'_>) -> impl Future<Output = Result<Self, Error>> + Send;
}
