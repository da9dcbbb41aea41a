//! One row for each request: what the analytics of a project are made of.

use std::{net::IpAddr, sync::Arc};

use chrono::{DateTime, Utc};
use hyper::{Method, StatusCode, Version};
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use uuid::Uuid;

use super::upstreams::Service;
use crate::{clock::Entropy, ids::ProjectRef};

/// Rows that wait for whoever takes them. About half a kilobyte each.
const QUEUE_MAX: usize = 8192;
/// Longest path, query, or header that is written down; the rest is cut off.
const TEXT_BYTES_MAX: usize = 1024;

/// A request and its answer.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each is named as the request has it")]
pub struct Row {
    pub id: Uuid,
    pub at: DateTime<Utc>,
    pub project: Option<ProjectRef>,
    pub service: Option<Service>,
    pub method: Method,
    pub host: SmolStr,
    pub path: String,
    /// Without its question mark, and without the values of parameters that are secrets.
    pub search: Option<String>,
    pub version: Version,
    pub client: IpAddr,
    pub user_agent: Option<String>,
    pub referer: Option<String>,
    pub client_info: Option<String>,
    pub status: StatusCode,
    /// Until the head of the answer was there, in milliseconds.
    pub took_millis: u64,
}

/// The queue of rows. A full one drops them: no request waits for its log.
pub struct Log {
    sender: Sender<Arc<Row>>,
    receiver: Mutex<Option<Receiver<Arc<Row>>>>,
}

impl Default for Log {
    fn default() -> Self {
        let (sender, receiver) = channel(QUEUE_MAX);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

impl Log {
    /// The rows. Only the first who asks gets them.
    pub fn take(&self) -> Option<Receiver<Arc<Row>>> {
        self.receiver.lock().take()
    }

    /// Adds a row. Tells whether there was room.
    pub(super) fn add(&self, row: Row) -> bool {
        self.sender.try_send(Arc::new(row)).is_ok()
    }
}

/// A random id for a row.
pub(super) fn id(entropy: &Entropy) -> Uuid {
    uuid::Builder::from_random_bytes(entropy.bytes()).into_uuid()
}

/// As much of a text as is written down.
pub(super) fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default().to_owned()
}

/// A query without what lets somebody in.
pub(super) fn without_secrets(query: &str) -> String {
    const SECRETS: [&str; 5] = ["apikey", "token", "access_token", "refresh_token", "code"];
    let part = |part: &str| match part.split_once('=') {
        Some((name, _)) if SECRETS.iter().any(|secret| name.eq_ignore_ascii_case(secret)) => format!("{name}=[redacted]"),
        _ => part.to_owned(),
    };
    cut(&query.split('&').map(part).collect::<Vec<_>>().join("&"))
}

/// Writes the rows to the program's own log, for whoever asks for debug lines, until something else takes them.
pub async fn run(log: Option<Receiver<Arc<Row>>>) {
    let Some(mut rows) = log else { return };
    while let Some(row) = rows.recv().await {
        let project = row.project.as_ref().map(ToString::to_string);
        tracing::debug!(
            target: "gantry::edge::requests", client = %row.client, host = %row.host, project, method = %row.method, path = row.path,
            status = row.status.as_u16(), millis = row.took_millis, "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_somebody_in_is_not_written_down() {
        let query = "apikey=sb_secret_x&select=*&Token=y&vsn=1.0.0&code";
        assert_eq!(without_secrets(query), "apikey=[redacted]&select=*&Token=[redacted]&vsn=1.0.0&code");
        assert_eq!(cut(&"ä".repeat(1000)).len(), 1024);
    }
}
