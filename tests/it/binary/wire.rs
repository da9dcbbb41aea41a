//! A minimal HTTP/1.1 client for one request per connection, so that tests see the bytes on the
//! wire.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// Timeout longer than any operation.
const PATIENCE: Duration = Duration::from_secs(130);

/// A response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HashMap<String, String>,
    pub(super) text: String,
}

impl Answer {
    /// Parses a whole response, from a connection or from `curl --include`.
    pub(super) fn parse(raw: &str) -> Self {
        let (head, text) = raw
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("not a response: {raw:?}"));
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1)?.parse().ok())
            .unwrap_or_else(|| panic!("no status: {head:?}"));
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
        Self {
            status,
            headers: headers.collect(),
            text: text.to_owned(),
        }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the body if the status matches.
    #[track_caller]
    pub(super) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }

    /// Returns a required header.
    #[track_caller]
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

/// Sends a request and reads the whole response.
pub(super) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: Option<&Value>,
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let credential = token
        .map(|token| format!("authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{credential}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut raw = String::new();
    stream.read_to_string(&mut raw)?;
    if raw.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    // A TLS peer may send an alert before it closes the connection.
    if !raw.starts_with("HTTP/") {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    Ok(Answer::parse(&raw))
}
