//! TCP ports of this machine on which a process of a known account must listen.
//!
//! Any local process can listen on a free port. [`OwnedPort::connect`] is the only way to the
//! process behind such a port: it reads the owner of the listening socket from the kernel's socket
//! table, and no byte is sent to a process of another account.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    net::{Ipv4Addr, SocketAddr},
};

use tokio::net::TcpStream;

/// The kernel's table of TCP sockets of IPv4 (proc(5)).
const TABLE: &str = "/proc/net/tcp";
/// Largest part of the table that is read, in bytes: more than 400,000 sockets.
const TABLE_BYTES_MAX: u64 = 64 << 20;
/// State of a listening socket in the table.
const LISTEN: &str = "0A";

/// A port of 127.0.0.1, and the account that must listen on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnedPort {
    /// The port.
    pub port: u16,
    /// User id of the process that listens.
    pub uid: u32,
}

impl OwnedPort {
    /// Connects to the process. The kernel has confirmed its account before this returns.
    ///
    /// Errors: `PermissionDenied` if another account listens, `ConnectionRefused` if none does.
    pub async fn connect(self) -> io::Result<TcpStream> {
        self.check().await?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        // Another process may have taken the place of one that ended in between.
        self.check().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn check(self) -> io::Result<()> {
        let read = move || {
            let table = BufReader::new(File::open(TABLE)?.take(TABLE_BYTES_MAX));
            self.check_in(table)
        };
        tokio::task::spawn_blocking(read)
            .await
            .map_err(io::Error::other)?
    }

    /// Checks the owners of all sockets in a table that listen on the port.
    fn check_in(self, table: impl BufRead) -> io::Result<()> {
        let mut is_found = false;
        for line in table.lines() {
            match listener(&line?) {
                Some((port, uid)) if port == self.port && uid == self.uid => is_found = true,
                Some((port, uid)) if port == self.port => {
                    tracing::warn!(
                        port,
                        uid,
                        expected = self.uid,
                        "rejected a port of another user"
                    );
                    return Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "a process of another user listens on the port of the service",
                    ));
                }
                _ => {}
            }
        }
        if is_found {
            Ok(())
        } else {
            Err(io::ErrorKind::ConnectionRefused.into())
        }
    }
}

/// Confirms that the connection from `client` to `own` was opened by a process of the account
/// `uid`.
///
/// Errors: `PermissionDenied` if another account opened it or none is known.
pub async fn check_client(client: SocketAddr, own: SocketAddr, uid: u32) -> io::Result<()> {
    let read = move || {
        let table = BufReader::new(File::open(TABLE)?.take(TABLE_BYTES_MAX));
        check_client_in(table, (client.port(), own.port()), uid)
    };
    tokio::task::spawn_blocking(read)
        .await
        .map_err(io::Error::other)?
}

/// Checks the owner of the socket with these local and remote ports on 127.0.0.1.
fn check_client_in(table: impl BufRead, ports: (u16, u16), uid: u32) -> io::Result<()> {
    for line in table.lines() {
        if connection(&line?) == Some((ports, uid)) {
            return Ok(());
        }
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "a process of another user connects to the port of a service",
    ))
}

/// Returns the local and the remote port, and the user id, of a line of the table, if both
/// addresses are 127.0.0.1.
fn connection(line: &str) -> Option<((u16, u16), u32)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (fields.next()?, fields.next()?);
    let uid = fields.nth(4)?.parse().ok()?;
    let port = |text: &str| {
        let (address, port) = text.split_once(':')?;
        let address = u32::from_str_radix(address, 16).ok()?.to_ne_bytes();
        let is_local = Ipv4Addr::from(address) == Ipv4Addr::LOCALHOST;
        let port = u16::from_str_radix(port, 16).ok()?;
        is_local.then_some(port)
    };
    Some(((port(local)?, port(remote)?), uid))
}

/// Returns port and user id of a line of the table, if it is a socket that listens for connections
/// to 127.0.0.1.
fn listener(line: &str) -> Option<(u16, u32)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    let state = fields.nth(1)?;
    let uid = fields.nth(3)?.parse().ok()?;
    // The kernel prints the bytes of an address as a number of this machine.
    let address = u32::from_str_radix(address, 16).ok()?.to_ne_bytes();
    let address = Ipv4Addr::from(address);
    let is_reached = address == Ipv4Addr::LOCALHOST || address.is_unspecified();
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == LISTEN && is_reached).then_some((port, uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn row(address: Ipv4Addr, port: u16, state: &str, uid: u32) -> String {
        let address = u32::from_ne_bytes(address.octets());
        format!(
            "   0: {address:08X}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid:5}        0 7 1 0 100 0\n"
        )
    }

    #[test]
    fn only_the_account_of_the_service_may_listen() {
        let port = OwnedPort {
            port: 23_000,
            uid: 700_001,
        };
        let kind = |rows: &[String]| {
            let table = format!("{HEAD}{}", rows.concat());
            port.check_in(table.as_bytes())
                .map_err(|error| error.kind())
        };
        let (own, any) = (Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED);
        let good = row(own, 23_000, LISTEN, 700_001);
        assert_eq!(kind(std::slice::from_ref(&good)), Ok(()));
        for other in [
            row(own, 23_000, LISTEN, 700_002),
            row(any, 23_000, LISTEN, 0),
        ] {
            let denied = Err(io::ErrorKind::PermissionDenied);
            assert_eq!(kind(std::slice::from_ref(&other)), denied, "{other}");
            assert_eq!(kind(&[good.clone(), other]), denied);
        }
        for unrelated in [
            row(own, 23_001, LISTEN, 700_001),
            row(own, 23_000, "01", 700_001),
            row(Ipv4Addr::new(192, 0, 2, 1), 23_000, LISTEN, 5),
            "garbage\n".to_owned(),
        ] {
            let refused = Err(io::ErrorKind::ConnectionRefused);
            assert_eq!(
                kind(std::slice::from_ref(&unrelated)),
                refused,
                "{unrelated}"
            );
            assert_eq!(kind(&[unrelated, good.clone()]), Ok(()));
        }
    }

    #[test]
    fn only_the_account_of_the_service_may_connect() {
        let local = u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets());
        let row = |from: u16, to: u16, uid: u32| {
            format!(
                "   0: {local:08X}:{from:04X} {local:08X}:{to:04X} 01 00000000:00000000 00:00000000 00000000 {uid:5}        0 7 1 0 100 0\n"
            )
        };
        let table = format!("{HEAD}{}{}", row(23_000, 40_000, 0), row(40_000, 23_000, 7));
        let is_own = |ports, uid| check_client_in(table.as_bytes(), ports, uid).is_ok();
        assert!(is_own((40_000, 23_000), 7));
        assert!(!is_own((40_000, 23_000), 8), "another account");
        assert!(!is_own((40_001, 23_000), 7), "no such connection");
        assert!(!is_own((23_000, 40_000), 7), "the other end");
    }

    #[tokio::test]
    async fn client_of_another_account_is_refused() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap();
        let own = listener.local_addr().unwrap();
        let client = TcpStream::connect(own).await.unwrap();
        let (_accepted, peer) = listener.accept().await.unwrap();
        let uid = rustix::process::geteuid().as_raw();
        check_client(peer, own, uid).await.unwrap();
        let refused = check_client(peer, own, uid + 1).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        drop(client);
    }

    #[tokio::test]
    async fn listener_of_another_account_gets_no_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let uid = rustix::process::geteuid().as_raw();
        OwnedPort { port, uid }.connect().await.unwrap();
        listener.accept().await.unwrap();
        let other = OwnedPort { port, uid: uid + 1 };
        let refused = other.connect().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        // Not even a connection without a byte.
        let none = std::future::poll_fn(|cx| std::task::Poll::Ready(listener.poll_accept(cx)));
        assert!(none.await.is_pending());
        drop(listener);
        let away = OwnedPort { port, uid }.connect().await.unwrap_err();
        assert_eq!(away.kind(), io::ErrorKind::ConnectionRefused);
    }
}
