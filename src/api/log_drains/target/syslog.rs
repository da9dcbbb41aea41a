//! Delivery by syslog: RFC 5424 messages with octet counting (RFC 6587) over TLS (RFC 5425) or TCP.
//!
//! Syslog has no acknowledgements. Each batch therefore has a connection of its own, and is
//! confirmed when the target closes the connection after it received the end of the stream, or does
//! not report an error for some time after it.

use std::{fmt::Write, io, sync::Arc, time::Duration};

use chrono::{DateTime, SecondsFormat, Utc};
use gantry_base::{ids::ProjectRef, net::tls_client};
use gantry_logs::event::{Event, Severity};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    delivery::{DeliveryError, OutgoingBatch, line},
    drain_client::DrainClient,
    http::connection_problem,
};
use crate::{
    api::log_drains::settings::{Settings, flag, invalid, text},
    platform::{error::Error, outbound::uses::LOG_DRAIN},
};

/// Timeout for connecting and sending a batch.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Time after the end of the stream in which the target can report an error.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Facility `local0`.
const FACILITY: u8 = 16;

pub(in crate::api::log_drains) struct SyslogTarget {
    server: SyslogServer,
    client: DrainClient,
}

/// The server of the settings.
struct SyslogServer {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    structured_data: String,
}

/// Checks the certificates, the host and the structured data.
pub(super) fn check(settings: &Settings) -> Result<(), Error> {
    SyslogServer::new(settings).map(drop)
}

impl SyslogServer {
    fn new(settings: &Settings) -> Result<Self, Error> {
        let host = text(settings, "host").unwrap_or_default().to_owned();
        if ServerName::try_from(host.clone()).is_err() {
            return Err(invalid("host", "expected a host name or an IP address"));
        }
        let port = settings.get("port").and_then(serde_json::Value::as_u64);
        let structured_data = text(settings, "structured_data").unwrap_or("-");
        let is_element = structured_data.starts_with('[') && structured_data.ends_with(']');
        if structured_data != "-" && !is_element {
            return Err(invalid(
                "structured_data",
                "expected elements such as [id@32473 key=\"value\"]",
            ));
        }
        Ok(Self {
            host,
            port: port.and_then(|port| port.try_into().ok()).unwrap_or(6514),
            tls: match flag(settings, "tls") {
                Some(false) => None,
                _ => Some(connector(settings)?),
            },
            structured_data: structured_data.to_owned(),
        })
    }
}

impl SyslogTarget {
    pub(super) fn new(settings: &Settings, client: &DrainClient) -> Result<Self, Error> {
        Ok(Self {
            server: SyslogServer::new(settings)?,
            client: client.clone(),
        })
    }

    pub(super) async fn send(&self, batch: &OutgoingBatch<'_>) -> Result<(), DeliveryError> {
        let mut messages = String::new();
        for event in batch.events {
            let message = message(batch.project, event, &self.server.structured_data);
            // Writing to a string cannot fail.
            let _ = write!(messages, "{} {message}", message.len());
        }
        let SyslogServer { host, port, .. } = &self.server;
        let DrainClient { client, owner } = &self.client;
        let connected = client.connect(&LOG_DRAIN, *owner, (host, *port)).await;
        let stream = connected.map_err(|error| connection_problem(&error))?;
        timeout(TIMEOUT, self.exchange(stream, messages.as_bytes()))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| DeliveryError::retry(format!("the target cannot be reached: {error}")))
    }

    async fn exchange(&self, stream: TcpStream, messages: &[u8]) -> io::Result<()> {
        match &self.server.tls {
            Some(connector) => {
                let name = ServerName::try_from(self.server.host.clone());
                let name = name.map_err(io::Error::other)?;
                transmit(connector.connect(name, stream).await?, messages).await
            }
            None => transmit(stream, messages).await,
        }
    }
}

/// Writes to the end and waits until the target closes the connection.
async fn transmit(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    messages: &[u8],
) -> io::Result<()> {
    stream.write_all(messages).await?;
    stream.flush().await?;
    stream.shutdown().await?;
    let mut unused = [0; 512];
    let closed = async {
        loop {
            match stream.read(&mut unused).await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // Closed without the alert that ends a TLS stream.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    timeout(CLOSE_WAIT, closed).await.unwrap_or(Ok(()))
}

/// Returns the TLS client of the settings.
fn connector(settings: &Settings) -> Result<TlsConnector, Error> {
    let roots = match text(settings, "ca_cert") {
        None => tls_client::system_roots(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, "ca_cert")? {
                let unusable = |_| invalid("ca_cert", "is not a certificate of an authority");
                roots.add(certificate).map_err(unusable)?;
            }
            Arc::new(roots)
        }
    };
    let builder = tls_client::config(roots);
    let config = match (text(settings, "client_cert"), text(settings, "client_key")) {
        (None, None) => builder.with_no_client_auth(),
        (Some(chain), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                .map_err(|_| invalid("client_key", "is not a private key in PEM format"))?;
            builder
                .with_client_auth_cert(certificates(chain, "client_cert")?, key)
                .map_err(|_| invalid("client_key", "does not match client_cert"))?
        }
        _ => {
            return Err(invalid(
                "client_cert",
                "is used together with client_key; send both",
            ));
        }
    };
    Ok(Arc::new(config).into())
}

fn certificates(pem: &str, field: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    found
        .ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(|| invalid(field, "is not a certificate in PEM format"))
}

/// Returns an RFC 5424 message. Its text is the line as JSON.
fn message(project: &ProjectRef, event: &Event, structured_data: &str) -> String {
    let at = DateTime::<Utc>::from_timestamp_micros(event.timestamp).unwrap_or_default();
    format!(
        "<{}>1 {} {project} {} - - {structured_data} {}",
        FACILITY * 8 + severity(event.severity),
        at.to_rfc3339_opts(SecondsFormat::Micros, true),
        event.source,
        line(project, event)
    )
}

/// Returns the numerical code of RFC 5424, table 2.
fn severity(severity: Severity) -> u8 {
    match severity {
        Severity::Emergency | Severity::Panic => 0,
        Severity::Alert => 1,
        Severity::Critical | Severity::Fatal => 2,
        Severity::Error => 3,
        Severity::Warn | Severity::Warning => 4,
        Severity::Notice => 5,
        Severity::Info | Severity::Log => 6,
        Severity::Debug | Severity::Trace => 7,
    }
}

#[cfg(test)]
mod tests {
    use gantry_logs::event::{Attributes, Source};
    use serde_json::json;

    use super::*;

    #[test]
    fn message_has_the_format_of_rfc_5424() {
        let project = "abcdefghijklmnopqrst".parse().unwrap();
        let attributes = Attributes::default();
        let event = Event::new(
            "i".into(),
            1_500_000,
            Source::Auth,
            "a\nb".into(),
            attributes,
        );
        let text = message(&project, &event, "-");
        let head = "<134>1 1970-01-01T00:00:01.500000Z abcdefghijklmnopqrst auth_logs - - - {";
        assert!(text.starts_with(head), "{text}");
        assert!(!text.contains('\n'));
    }

    #[test]
    fn invalid_syslog_settings_are_rejected() {
        let cases = [
            (json!({"host": "a b", "port": 1}), "host"),
            (
                json!({"host": "a.example", "port": 1, "structured_data": "x"}),
                "structured_data",
            ),
            (
                json!({"host": "a.example", "port": 1, "ca_cert": "x"}),
                "ca_cert",
            ),
            (
                json!({"host": "a.example", "port": 1, "client_cert": "x"}),
                "client_cert",
            ),
        ];
        for (settings, field) in cases {
            let error = check(settings.as_object().unwrap()).unwrap_err();
            assert!(error.message().contains(field), "{}", error.message());
        }
    }
}
