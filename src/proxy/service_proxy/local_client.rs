//! Requests of this process to the services of a project, without DNS, address and TLS. They pass
//! the checks of requests from outside.

use std::{error::Error as StdError, io};

use bytes::Bytes;
use gantry_base::ids::ProjectId;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use smol_str::SmolStr;
use tokio::{net::UnixStream, task::JoinSet};
use url::Url;

use super::{connection, context::ServiceProxyContext, gateway::ADDRESS};

/// The reason why a request has no response.
pub type LocalRequestError = Box<dyn StdError + Send + Sync>;

/// The connection of a response. Dropping it ends the connection.
#[derive(Debug)]
pub struct LocalConnection {
    _tasks: JoinSet<()>,
}

/// Returns whether a URL names a host of the project that this server serves. The port does not
/// matter: listeners may be at other ones than the public ones, or behind a forwarded port.
pub async fn is_host_of(context: &ServiceProxyContext, project: ProjectId, url: &Url) -> bool {
    let proxy = &context.proxy;
    // Without worker threads, routes are not loaded.
    if proxy.workers.get().is_none() {
        return false;
    }
    let Some(host) = url.domain() else {
        return false;
    };
    let route = proxy.routes.find(&host.to_ascii_lowercase()).await;
    route.is_some_and(|route| route.project == project)
}

/// Sends a request with a path and a `Host` field to a host of a project.
pub async fn send(
    context: &ServiceProxyContext,
    host: &str,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, LocalConnection), LocalRequestError> {
    let proxy = &context.proxy;
    let permit = proxy.connections.clone().try_acquire_owned()?;
    let workers = proxy
        .workers
        .get()
        .ok_or("the service proxy is not running")?;
    let (client, server) = UnixStream::pair()?;
    let server = server.into_std()?;
    let mut tasks = JoinSet::new();
    let (context, name) = (context.clone(), SmolStr::new(host.to_ascii_lowercase()));
    workers.serve(
        &mut tasks,
        move || -> io::Result<UnixStream> { UnixStream::from_std(server) },
        move |stream, pool| async move {
            let from = (ADDRESS, (permit, None));
            connection::serve_plain(&context, stream, from, pool, name).await;
        },
    );
    let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await?;
    tasks.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the services of a project ended with an error");
        }
    });
    let response = sender.send_request(request).await?;
    Ok((response, LocalConnection { _tasks: tasks }))
}
