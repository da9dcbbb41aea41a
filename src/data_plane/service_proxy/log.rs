//! Request log: one row per request, the source of the edge logs of a project.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use hyper::{Method, StatusCode, Version};
use smol_str::SmolStr;
use uuid::Uuid;

use super::upstreams::Service;
use crate::base::{batch_queue::BatchQueue, ids::ProjectRef};

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
    pub client: IpAddr,
    pub user_agent: Option<String>,
    pub referer: Option<String>,
    pub client_info: Option<String>,
    pub status: StatusCode,
    /// Time until the response head was available, in milliseconds.
    pub took_millis: u64,
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
