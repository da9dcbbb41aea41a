//! The queue of calls that ended and wait to be written to the logs of their projects. It has
//! neither queries nor header fields nor bodies.

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use url::Url;

use super::{answer::CallAnswer, call::QueuedCall};
use crate::platform::{batch_queue::BatchQueue, telemetry::cut};

/// Capacity of the queue. A call takes about 512 bytes, with a long path 2 KiB.
const QUEUE_MAX: usize = 8_192;

/// The queue of calls that ended.
pub type CallLog = BatchQueue<EndedCall, QUEUE_MAX>;

/// The destination of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTarget {
    /// The method, in capital letters.
    pub method: String,
    /// The host, with a port that is not that of the scheme. Empty if the URL is invalid.
    pub host: String,
    /// The path.
    pub path: String,
}

impl CallTarget {
    /// Returns the destination of a request that is not checked yet.
    pub(super) fn of(call: &QueuedCall) -> Self {
        let (method, url) = call.line();
        let url = Url::parse(url).ok();
        let host = url.as_ref().and_then(|url| {
            let host = url.host_str()?;
            Some(match url.port() {
                Some(port) => format!("{host}:{port}"),
                None => host.to_owned(),
            })
        });
        Self {
            method: cut(method).to_ascii_uppercase(),
            host: cut(&host.unwrap_or_default()),
            path: cut(url.as_ref().map(Url::path).unwrap_or_default()),
        }
    }
}

/// A call that has a response, or never gets one.
#[derive(Debug)]
pub struct EndedCall {
    /// The time when it was begun.
    pub at: DateTime<Utc>,
    /// The project.
    pub project: ProjectRef,
    /// Its destination.
    pub target: CallTarget,
    /// The status of the response.
    pub status: Option<u16>,
    /// The reason why there is no response.
    pub error: Option<String>,
    /// The time that it took, in milliseconds.
    pub took_millis: u64,
}

impl EndedCall {
    pub(super) fn new(
        (at, took_millis): (DateTime<Utc>, u64),
        project: ProjectRef,
        target: CallTarget,
        answer: &CallAnswer,
    ) -> Self {
        Self {
            at,
            project,
            target,
            status: answer.status(),
            error: answer.error().map(cut),
            took_millis,
        }
    }

    /// Returns whether the receiver accepted the call.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status < 400)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_has_neither_query_nor_credentials() {
        let target = |method: &str, url: &str| {
            let row = [Some("1"), Some(method), Some(url), None, None, None];
            let call = QueuedCall::of_row(row.map(|text| text.map(str::to_owned)));
            let CallTarget { method, host, path } = CallTarget::of(&call.unwrap());
            format!("{method} {host} {path}")
        };
        for (url, expected) in [
            (
                "https://user:secret@A.test/x?token=secret#secret",
                "POST a.test /x",
            ),
            ("http://a.test:8080", "POST a.test:8080 /"),
            ("http://a b/secret", "POST  "),
        ] {
            assert_eq!(target("post", url), expected, "{url}");
        }
        assert!(target("get", &format!("http://a/{}", "x".repeat(5000))).len() < 1100);
    }
}
