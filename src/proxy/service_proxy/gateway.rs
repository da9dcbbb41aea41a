//! The socket by which a function reaches the services of its own project: a function has no way to
//! private addresses, and the public address of this server may be one.
//!
//! Each process of a function has a socket of its own, which only its account may connect to.
//! Requests must name the host of the project; others get 421.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use gantry_base::{
    ids::ProjectRef,
    net::accept::{self, Listener},
};
use gantry_node::supervisor::{ProcessOwner, owned_socket};
use smol_str::SmolStr;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

use super::{connection, context::ServiceProxyContext, state::DRAIN};

/// Concurrent connections of one process. Further ones are closed.
const CONNECTIONS_MAX: usize = 64;
/// Address of a function or a database in logs. It is never that of a trusted proxy, so that
/// neither can name another one.
pub(super) const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A listening socket. Its connections end when it is dropped.
#[derive(Debug)]
pub struct FunctionGateway(JoinHandle<()>);

impl Drop for FunctionGateway {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl FunctionGateway {
    /// Listens at `path` for the processes of `owner`. A socket of an earlier server is replaced.
    pub fn listen(
        context: &ServiceProxyContext,
        project: &ProjectRef,
        path: &Path,
        owner: ProcessOwner,
    ) -> io::Result<Self> {
        let listener = owned_socket::listen(path, owner)?;
        let domain = &context.settings.project_domain;
        let name = format!("{project}.{domain}").to_ascii_lowercase();
        let serving = run(context.clone(), name.into(), listener);
        Ok(Self(tokio::spawn(serving)))
    }
}

/// The socket of one process.
struct GatewaySocket(UnixListener);

impl Listener for GatewaySocket {
    type Stream = UnixStream;
    type Peer = ();

    async fn accept(&self) -> io::Result<(UnixStream, ())> {
        let (stream, _) = self.0.accept().await?;
        Ok((stream, ()))
    }
}

/// Accepts connections until shutdown.
async fn run(context: ServiceProxyContext, name: SmolStr, listener: UnixListener) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let serve = |connections: &mut JoinSet<()>, stream: UnixStream, ()| {
        let permit = permits.clone().try_acquire_owned();
        let (Ok(permit), Some(workers)) = (permit, context.proxy.workers.get()) else {
            return;
        };
        let Ok(stream) = stream.into_std() else {
            return;
        };
        let (context, name) = (context.clone(), name.clone());
        workers.serve(
            connections,
            move || UnixStream::from_std(stream),
            move |stream, pool| async move {
                let from = (ADDRESS, (permit, None));
                connection::serve_plain(&context, stream, from, pool, name).await;
            },
        );
    };
    accept::accept_until_shutdown(
        "functions",
        GatewaySocket(listener),
        &context.proxy.shutdown,
        DRAIN,
        serve,
    )
    .await;
}
