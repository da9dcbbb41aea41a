//! TCP ports of this machine on which a process of a known account must listen.
//!
//! Any local process can listen on a free port. [`OwnedPort::connect`] is the only way to the
//! process behind such a port: it reads the owner of the listening socket from the kernel's socket
//! table, and no byte is sent to a process of another account.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    net::Ipv4Addr,
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
