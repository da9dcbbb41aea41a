//! The project of a page, from the response of the operation that returns it.

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use serde::Deserialize;

use crate::{
    control::projects::Status,
    platform::error::Error,
    web::{labels, visitor::Visitor},
};

/// The response of the operation that returns a project.
#[derive(Deserialize)]
pub(in crate::web) struct ProjectResponse {
    #[serde(rename = "ref")]
    pub(in crate::web) reference: ProjectRef,
    pub(super) organization_slug: String,
    pub(in crate::web) name: String,
    pub(super) region: String,
    pub(super) created_at: DateTime<Utc>,
    pub(super) status: Status,
    pub(super) database: ProjectDatabase,
}

#[derive(Deserialize)]
pub(super) struct ProjectDatabase {
    pub(super) host: String,
    pub(super) version: String,
}

impl ProjectResponse {
    pub(in crate::web) async fn load(
        visitor: &Visitor,
        reference: &ProjectRef,
    ) -> Result<Self, Error> {
        visitor.get(&format!("/v1/projects/{reference}")).await
    }

    /// Returns the label and style class of the status.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        labels::status_label(self.status)
    }
}

/// Returns nothing if the status of the project does not permit the operation.
pub(super) fn unless_rejected<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(response) => Ok(Some(response)),
        Err(Error::Rejected(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
