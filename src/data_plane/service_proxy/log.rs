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
/// A request and its answer.
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
pub type RequestLogQueue = Queue<Row, QUEUE_MAX>;

/// Writes a row to the program's own log, for whoever asks for debug lines.
pub(crate) fn tell(row: &Row) {
    let project = row.project.as_ref().map(ProjectRef::as_str);
    tracing::debug!(
        target: "gantry::edge::requests", client = %row.client, host = %row.host, project, method = %row.method, path = row.path,
        status = row.status.as_u16(), millis = row.took_millis, "request"
    );
}
