//! Checks that a hostname reaches the service proxy over HTTP and HTTPS.
//!
//! Connects only to the addresses of the operator's domain, never to those of a customer's name, to
//! prevent server-side request forgery: a correctly configured hostname is an alias of the
//! project's name, so it has the same addresses.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use gantry_base::net::tls_client;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{Host, certificates};
use crate::{
    control::context::ControlContext,
    proxy::service_proxy::{CHALLENGES, probe},
};

/// Timeout for resolving the addresses, and for each connection.
const PATIENCE: Duration = Duration::from_secs(4);
/// Maximum number of addresses that are checked.
const ADDRESSES_MAX: usize = 4;
/// Bytes that are read of a response.
const ANSWER_BYTES_MAX: u64 = 8 * 1024;

/// Results for all addresses of a name, by port.
#[derive(Debug)]
pub(crate) struct ReachabilityReport {
    pub(crate) http: PortReport,
    pub(crate) https: PortReport,
}

#[derive(Debug)]
pub(crate) struct PortReport {
    pub(crate) text: String,
    pub(crate) fits: bool,
}

impl PortReport {
    fn new(addresses: &[IpAddr], said: Vec<Result<String, String>>) -> Self {
        let fits = said.iter().all(Result::is_ok);
        let line = |(address, said): (&IpAddr, Result<String, String>)| {
            format!("{address} {}", said.unwrap_or_else(|why| why))
        };
        Self {
            text: addresses
                .iter()
                .zip(said)
                .map(line)
                .collect::<Vec<_>>()
                .join("; "),
            fits,
        }
    }
}

/// Checks all addresses of `alias`, a name below the operator's domain, for `host`. `chain` is the
/// expected certificate, if any.
pub(crate) async fn reach(
    context: &ControlContext,
    host: &Host,
    alias: &str,
    chain: Option<&[CertificateDer<'static>]>,
) -> Result<ReachabilityReport, String> {
    let found = timeout(PATIENCE, context.control_settings.dns.addresses(alias)).await;
    let mut addresses = found.unwrap_or_else(|_| {
        Err(format!(
            "asking for the addresses of {alias} takes too long"
        ))
    })?;
    addresses.truncate(ADDRESSES_MAX);
    if addresses.is_empty() {
        return Err(format!("{alias} has no address"));
    }
    let ports = context.control_settings.service_proxy.ports;
    let http = join_all(
        addresses
            .iter()
            .map(|ip| within(*ip, http(context, host, SocketAddr::new(*ip, ports.http)))),
    );
    let https = join_all(
        addresses
            .iter()
            .map(|ip| within(*ip, https(host, chain, SocketAddr::new(*ip, ports.https)))),
    );
    let (http, https) = tokio::join!(http, https);
    Ok(ReachabilityReport {
        http: PortReport::new(&addresses, http),
        https: PortReport::new(&addresses, https),
    })
}

async fn within(
    ip: IpAddr,
    asking: impl Future<Output = Result<String, String>>,
) -> Result<String, String> {
    if !is_somewhere(ip) {
        return Err("is no address of a server".to_owned());
    }
    timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| Err("does not answer in time".to_owned()))
}

/// Returns whether an address can be a server's. Excludes link-local addresses, which include cloud
/// metadata services.
fn is_somewhere(ip: IpAddr) -> bool {
    let link_local = match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(link_local || ip.is_unspecified() || ip.is_multicast())
}

async fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    TcpStream::connect(address)
        .await
        .map_err(|error| format!("cannot be connected to at port {}: {error}", address.port()))
}

async fn http(
    context: &ControlContext,
    host: &Host,
    address: SocketAddr,
) -> Result<String, String> {
    let (token, answer) = probe(&context.settings.sealing, host.as_str());
    let mut stream = connect(address).await?;
    let request =
        format!("GET {CHALLENGES}{token} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut said = Vec::new();
    let asked = async {
        stream.write_all(request.as_bytes()).await?;
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut said).await
    };
    // Any response that was received is evaluated.
    let _ = asked.await;
    if String::from_utf8_lossy(&said).contains(&answer) {
        Ok(format!("answers as this server at port {}", address.port()))
    } else {
        Err(format!(
            "answers at port {}, and not as this server",
            address.port()
        ))
    }
}

async fn https(
    host: &Host,
    chain: Option<&[CertificateDer<'static>]>,
    address: SocketAddr,
) -> Result<String, String> {
    let stream = connect(address).await?;
    let port = address.port();
    let Some(chain) = chain else {
        return Ok(format!("can be connected to at port {port}"));
    };
    let roots = certificates::anchor(chain)?;
    let config = tls_client::config(roots).with_no_client_auth();
    let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
    let connected = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await;
    let stream = connected
        .map_err(|error| format!("does not show the certificate at port {port}: {error}"))?;
    let shown = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first);
    if shown == chain.first() {
        Ok(format!("shows the certificate at port {port}"))
    } else {
        Err(format!(
            "shows another certificate for the hostname at port {port}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_and_multicast_addresses_are_excluded() {
        for (ip, expected) in [
            ("192.0.2.1", true),
            ("127.0.0.1", true),
            ("2001:db8::1", true),
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(is_somewhere(ip.parse().unwrap()), expected, "{ip}");
        }
    }
}
