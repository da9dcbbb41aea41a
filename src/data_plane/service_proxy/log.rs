//! One row for each request: what the analytics of a project are made of.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use hyper::{Method, StatusCode, Version};
use smol_str::SmolStr;
use uuid::Uuid;

use super::upstreams::Service;
use crate::base::{batch_queue::Queue, ids::ProjectRef};

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

/// The rows that wait.
pub type Log = Queue<Row, QUEUE_MAX>;

/// As much of a text as is written down.
pub(crate) fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX))
        .unwrap_or_default()
        .to_owned()
}

/// A query without what lets somebody in.
pub(crate) fn without_secrets(query: &str) -> String {
    const SECRETS: [&str; 5] = ["apikey", "token", "access_token", "refresh_token", "code"];
    let mut told = String::with_capacity(query.len());
    for (nth, part) in query.split('&').enumerate() {
        if nth > 0 {
            told.push('&');
        }
        match part.split_once('=') {
            Some((name, _))
                if SECRETS
                    .iter()
                    .any(|secret| name.eq_ignore_ascii_case(secret)) =>
            {
                told.extend([name, "=[redacted]"])
            }
            _ => told.push_str(part),
        }
    }
    told.truncate(told.floor_char_boundary(TEXT_BYTES_MAX));
    told
}

/// Writes a row to the program's own log, for whoever asks for debug lines.
pub(crate) fn tell(row: &Row) {
    let project = row.project.as_ref().map(ProjectRef::as_str);
    tracing::debug!(
        target: "gantry::edge::requests", client = %row.client, host = %row.host, project, method = %row.method, path = row.path,
        status = row.status.as_u16(), millis = row.took_millis, "request"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_somebody_in_is_not_written_down() {
        let query = "apikey=sb_secret_x&select=*&Token=y&vsn=1.0.0&code";
        assert_eq!(
            without_secrets(query),
            "apikey=[redacted]&select=*&Token=[redacted]&vsn=1.0.0&code"
        );
        assert_eq!(cut(&"ä".repeat(1000)).len(), 1024);
    }
}
