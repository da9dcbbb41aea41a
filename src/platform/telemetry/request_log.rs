//! Answered requests, until they are written to the logs of the project they name.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use http::{HeaderValue, Method, StatusCode, Uri};
use uuid::Uuid;

use crate::base::{batch_queue::BatchQueue, ids::ProjectRef};

/// Requests that wait to be kept, about a quarter of a kilobyte each.
const QUEUE_MAX: usize = 16_384;

/// A request that was answered: what the guard has at hand, so that noting it costs next to nothing.
#[derive(Debug)]
#[expect(missing_docs, reason = "each is named as the request has it")]
pub struct AnsweredRequest {
    pub at: DateTime<Utc>,
    pub project: ProjectRef,
    pub operation: &'static str,
    pub method: Method,
    pub uri: Uri,
    pub client: IpAddr,
    pub user: Option<Uuid>,
    pub user_agent: Option<HeaderValue>,
    pub status: StatusCode,
    pub took_millis: u64,
}

/// The requests that wait.
pub type RequestLog = BatchQueue<AnsweredRequest, QUEUE_MAX>;

/// Longest path, query, or header that is written down; the rest is cut off.
const TEXT_BYTES_MAX: usize = 1024;

/// As much of a text as is written down.
pub fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX))
        .unwrap_or_default()
        .to_owned()
}

/// A query without what lets somebody in.
pub fn without_secrets(query: &str) -> String {
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
