//! Request log: one row per request, the source of the edge logs of a project.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use gantry_node::kits::Service;
use hyper::{HeaderMap, Method, StatusCode, Version, header, header::HeaderName};
use smol_str::SmolStr;
use uuid::Uuid;

use crate::platform::{batch_queue::BatchQueue, telemetry};

/// Maximum number of queued rows. A row takes about half a kilobyte.
const QUEUE_MAX: usize = 8192;
/// A request and its outcome.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each is upstream as the request has it")]
pub struct Row {
    pub id: Uuid,
    pub at: DateTime<Utc>,
    pub project: Option<ProjectRef>,
    pub service: Option<Service>,
    pub method: Method,
    pub host: SmolStr,
    pub path: String,
    /// Query string without `?` and with secret parameters redacted.
    pub search: Option<String>,
    pub version: Version,
    /// Address of the client, behind trusted proxies.
    pub client: IpAddr,
    pub user_agent: Option<String>,
    pub referer: Option<String>,
    pub client_info: Option<String>,
    /// Country of the client, if a trusted proxy names it.
    pub country: Option<String>,
    /// The function that answered, if Gantry runs it.
    pub function: Option<CalledFunction>,
    /// 499 if the client left before the answer.
    pub status: StatusCode,
    pub response: ResponseFields,
    /// Time until the response head was available, in milliseconds.
    pub took_millis: u64,
}

/// A version of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalledFunction {
    /// Id of the function.
    pub id: Uuid,
    /// Its name in paths.
    pub slug: String,
    /// Number of the version.
    pub version: i32,
}

/// Header values of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the headers")]
pub struct ResponseFields {
    pub content_type: Option<String>,
    pub content_length: Option<i64>,
    /// `HIT`, `MISS` or another word of a cache.
    pub cache_status: Option<String>,
}

impl ResponseFields {
    /// Reads the headers of a response.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let content_length = text(headers, &header::CONTENT_LENGTH);
        let cache_status = CACHE_STATUS
            .iter()
            .find_map(|name| text(headers, name))
            .map(cache_word);
        Self {
            content_type: text(headers, &header::CONTENT_TYPE).map(telemetry::cut),
            content_length: content_length.and_then(|length| length.parse().ok()),
            cache_status,
        }
    }
}

/// Headers in which caches report their result, the most specific one first.
static CACHE_STATUS: [HeaderName; 3] = [
    HeaderName::from_static("cf-cache-status"),
    HeaderName::from_static("x-cache"),
    HeaderName::from_static("cache-status"),
];

/// Headers in which proxies name the country of a client.
static COUNTRY: [HeaderName; 3] = [
    HeaderName::from_static("cf-ipcountry"),
    HeaderName::from_static("cloudfront-viewer-country"),
    HeaderName::from_static("x-vercel-ip-country"),
];

/// Returns the country that a header of a request names: two letters or digits.
pub(super) fn country(headers: &HeaderMap) -> Option<String> {
    let country = COUNTRY.iter().find_map(|name| text(headers, name))?;
    let is_code = country.len() == 2 && country.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_code.then(|| country.to_ascii_uppercase())
}

/// Reduces the result of a cache to one word: `HIT` of `Hit from proxy` and of `edge; hit`.
fn cache_word(value: &str) -> String {
    let lower = value.to_ascii_lowercase();
    // RFC 9211: `fwd` names the reason of a miss.
    if lower.starts_with("hit") || lower.contains("; hit") {
        "HIT".to_owned()
    } else if lower.starts_with("miss") || lower.contains("; fwd") {
        "MISS".to_owned()
    } else {
        telemetry::cut(value)
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Queue of rows that are not yet stored.
pub type RequestLogQueue = BatchQueue<Row, QUEUE_MAX>;

/// Writes a row to the process log at debug level.
pub(crate) fn log_row(row: &Row) {
    let project = row.project.as_ref().map(ProjectRef::as_str);
    tracing::debug!(
        target: "gantry::edge::requests", client = %row.client, host = %row.host, project, method = %row.method, path = row.path,
        status = row.status.as_u16(), millis = row.took_millis, "request"
    );
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn cache_results_are_one_word() {
        for (name, value, word) in [
            ("cf-cache-status", "DYNAMIC", "DYNAMIC"),
            ("cf-cache-status", "HIT", "HIT"),
            ("x-cache", "Miss from cloudfront", "MISS"),
            ("x-cache", "HIT, MISS", "HIT"),
            ("cache-status", "edge; hit; ttl=30", "HIT"),
            ("cache-status", "edge; fwd=uri-miss", "MISS"),
        ] {
            let fields = ResponseFields::of(&headers(&[(name, value)]));
            assert_eq!(fields.cache_status.as_deref(), Some(word), "{value}");
        }
        assert_eq!(
            ResponseFields::of(&HeaderMap::new()),
            ResponseFields::default()
        );
    }

    #[test]
    fn country_is_a_code_of_two_characters() {
        assert_eq!(
            country(&headers(&[("cf-ipcountry", "de")])).as_deref(),
            Some("DE")
        );
        for value in ["", "D", "Germany", "d;"] {
            assert_eq!(
                country(&headers(&[("cf-ipcountry", value)])),
                None,
                "{value}"
            );
        }
    }
}
