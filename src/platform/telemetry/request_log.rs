//! The queue of answered requests that wait to be written to the logs of their projects.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use http::{HeaderValue, Method, StatusCode, Uri};
use uuid::Uuid;

use crate::platform::batch_queue::BatchQueue;

/// Capacity of the queue. A request takes about 256 bytes.
const QUEUE_MAX: usize = 16_384;

/// An answered request, with the values that the guard has already computed.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the fields have the names of the request's parts"
)]
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

/// The queue of answered requests.
pub type RequestLog = BatchQueue<AnsweredRequest, QUEUE_MAX>;

/// Longest logged path, query or header value, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// Truncates a text to the logged length.
pub fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX))
        .unwrap_or_default()
        .to_owned()
}

/// Redacts the values of credentials in a query, and truncates it.
pub fn without_secrets(query: &str) -> String {
    let mut redacted = String::with_capacity(query.len());
    for (nth, part) in query.split('&').enumerate() {
        if nth > 0 {
            redacted.push('&');
        }
        match part.split_once('=') {
            Some((name, _)) if is_credential(name) => redacted.extend([name, "=[redacted]"]),
            _ => redacted.push_str(part),
        }
    }
    redacted.truncate(redacted.floor_char_boundary(TEXT_BYTES_MAX));
    redacted
}

/// Redacts the values of credentials in the query and the fragment of a URL.
pub fn without_url_secrets(url: &str) -> String {
    let Some(at) = url.find(['?', '#']) else {
        return url.to_owned();
    };
    let (path, rest) = url.split_at(at + 1);
    let parts: Vec<_> = rest.split('#').map(without_secrets).collect();
    format!("{path}{}", parts.join("#"))
}

/// Whether a parameter holds a credential. The name may be percent-encoded.
fn is_credential(name: &str) -> bool {
    const CREDENTIALS: [&str; 8] = [
        "apikey",
        "token",
        "access_token",
        "refresh_token",
        "token_hash",
        "code",
        "code_verifier",
        "password",
    ];
    let decoded = form_urlencoded::parse(name.as_bytes()).next();
    let name = decoded.map(|(name, _)| name.to_ascii_lowercase());
    name.is_some_and(|name| CREDENTIALS.contains(&name.as_str()) || name.contains("secret"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_queries_are_redacted() {
        let query = "apikey=sb_secret_x&select=*&Token=y&vsn=1.0.0&code";
        assert_eq!(
            without_secrets(query),
            "apikey=[redacted]&select=*&Token=[redacted]&vsn=1.0.0&code"
        );
        let query = "token_hash=a&PASSWORD=b&refresh_token=c&code_verifier=d&client_secret=e&mySecretKey=f\
             &%70assword=g&passwords=h";
        assert_eq!(
            without_secrets(query),
            "token_hash=[redacted]&PASSWORD=[redacted]&refresh_token=[redacted]&code_verifier=[redacted]\
             &client_secret=[redacted]&mySecretKey=[redacted]&%70assword=[redacted]&passwords=h"
        );
        assert_eq!(
            without_url_secrets("https://a.test/x?code=1&a=2#access_token=3"),
            "https://a.test/x?code=[redacted]&a=2#access_token=[redacted]"
        );
        assert_eq!(without_url_secrets("https://a.test/x"), "https://a.test/x");
        assert_eq!(cut(&"ä".repeat(1000)).len(), 1024);
    }
}
