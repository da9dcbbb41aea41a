//! A port of 127.0.0.1 that leads to a project's database, for programs that cannot use Unix
//! sockets. Only the account of the program may connect, and it needs the password of its role.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use gantry_base::net::owned_port;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

use crate::clusters::ServerSocket;

/// Concurrent connections of one program. Further ones are closed.
const CONNECTIONS_MAX: usize = 32;

/// A listening port. Its connections end when it is dropped.
#[derive(Debug)]
pub struct DatabasePort(JoinHandle<()>);

impl Drop for DatabasePort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl DatabasePort {
    /// Listens on `port` for processes of the account `uid`.
    pub async fn listen(port: u16, uid: u32, database: ServerSocket) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        Ok(Self(tokio::spawn(run(listener, uid, database))))
    }
}

async fn run(listener: TcpListener, uid: u32, database: ServerSocket) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        // An error is that of one connection.
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            continue;
        };
        let database = database.clone();
        connections.spawn(async move {
            if let Err(error) = serve(stream, peer, uid, &database).await {
                tracing::debug!(%error, "connection of a service to its database ended");
            }
            drop(permit);
        });
    }
}

async fn serve(
    mut client: TcpStream,
    peer: SocketAddr,
    uid: u32,
    database: &ServerSocket,
) -> io::Result<()> {
    owned_port::check_client(peer, client.local_addr()?, uid).await?;
    client.set_nodelay(true)?;
    let mut server = database.connect().await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
