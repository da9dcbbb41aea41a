//! Projects: making one, watching it come up, and looking after it.

mod actions;
mod hostname;
mod ingest_keys;
mod logs;
mod new;
mod show;
mod usage;

use chrono::{DateTime, Utc};
use serde::Deserialize;

pub(super) use self::{
    actions::{ASK_DELETE, ASK_PAUSE, ASK_RESTART, CANCEL, DELETE, PAUSE, RESTART, RESTORE},
    hostname::HOSTNAME,
    ingest_keys::{ADD_INGEST_KEY, DELETE_INGEST_KEY, INGEST_KEYS},
    logs::LOGS,
    new::{CREATE, NEW},
    show::{KEYS, SHOW},
    usage::USAGE,
};
use crate::{
    base::{error::Error, ids::ProjectRef},
    data_plane::projects::Status,
    web::{Visitor, words},
};

/// A project, as its operation shows it.
#[derive(Deserialize)]
struct Detail {
    #[serde(rename = "ref")]
    reference: ProjectRef,
    organization_slug: String,
    name: String,
    region: String,
    created_at: DateTime<Utc>,
    status: Status,
    database: Database,
}

#[derive(Deserialize)]
struct Database {
    host: String,
    version: String,
}

impl Detail {
    async fn of(visitor: &Visitor, reference: &ProjectRef) -> Result<Self, Error> {
        visitor.get(&format!("/v1/projects/{reference}")).await
    }

    /// The state in words, and how it is marked.
    fn state(&self) -> (&'static str, &'static str) {
        words::state(self.status)
    }
}
