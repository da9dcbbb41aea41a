//! The organization or project of a page.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use uuid::Uuid;

use crate::{
    platform::{error::Error, events::EventScope, http::Input},
    web::{
        organizations::header::OrganizationHeader,
        page::Visitor,
        path::{PathOrganization, PathProject},
        permissions::PermissionCheck,
        projects::project::ProjectResponse,
    },
};

/// The parameter of a path that names an organization or project.
pub(super) trait WebhookPlace: Input + Sync + 'static {
    /// Loads the header of the page. Returns 404 if the visitor may not see the resource.
    fn load(&self, visitor: &Visitor) -> impl Future<Output = Result<WebhookHome, Error>> + Send;
}

/// The organization or project of a page.
pub(super) struct WebhookHome {
    /// Its name.
    pub(super) name: String,
    /// Path of its page.
    pub(super) home: String,
    /// Path of the operations on its webhooks.
    pub(super) operations: String,
    /// The only scope of events that it receives; absent if it receives all.
    pub(super) scope: Option<EventScope>,
}

impl WebhookHome {
    /// Returns the path of a page of webhooks.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("{}/webhooks{rest}", self.home)
    }

    /// Returns the path of an operation.
    pub(super) fn operation(&self, rest: &str) -> String {
        format!("{}/{rest}", self.operations)
    }

    /// Checks whether the visitor may change webhooks.
    pub(super) async fn can_change(&self, visitor: &Visitor) -> Result<PermissionCheck, Error> {
        let path = self.operation("endpoints");
        visitor.check_body("POST", &path, "{}").await
    }
}

impl WebhookPlace for PathOrganization {
    async fn load(&self, visitor: &Visitor) -> Result<WebhookHome, Error> {
        let head = OrganizationHeader::load(visitor, self.0.clone()).await?;
        Ok(WebhookHome {
            home: head.path(""),
            operations: format!("/v2/organizations/{}/webhooks", head.slug),
            name: head.name,
            scope: None,
        })
    }
}

impl WebhookPlace for PathProject {
    async fn load(&self, visitor: &Visitor) -> Result<WebhookHome, Error> {
        let project = ProjectResponse::load(visitor, &self.0).await?;
        Ok(WebhookHome {
            home: format!("/projects/{}", project.reference),
            operations: format!("/v2/projects/{}/webhooks", project.reference),
            name: project.name,
            scope: Some(EventScope::Project),
        })
    }
}

/// A response with data.
#[derive(Deserialize)]
pub(super) struct Enveloped<T> {
    pub(super) data: T,
}

/// A page of a list.
#[derive(Deserialize)]
pub(super) struct Listed<T> {
    pub(super) data: Vec<T>,
    pub(super) links: ListLinks,
}

#[derive(Deserialize)]
pub(super) struct ListLinks {
    pub(super) prev: Option<String>,
    pub(super) next: Option<String>,
}

/// An endpoint in a response.
#[derive(Deserialize)]
pub(super) struct EndpointEntry {
    pub(super) id: Uuid,
    pub(super) attributes: EndpointEntryAttributes,
}

#[derive(Deserialize)]
pub(super) struct EndpointEntryAttributes {
    pub(super) url: String,
    pub(super) enabled: bool,
    pub(super) description: Option<String>,
    pub(super) event_types: Vec<EventTypeEntry>,
    pub(super) custom_headers: BTreeMap<String, String>,
    pub(super) created_at: DateTime<Utc>,
    pub(super) previous_secret_expires_at: Option<DateTime<Utc>>,
}

#[derive(Deserialize)]
pub(super) struct EventTypeEntry {
    pub(super) r#type: String,
}

impl EndpointEntry {
    /// Returns the label and style class of the state.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        if self.attributes.enabled {
            ("Enabled", "good")
        } else {
            ("Disabled", "idle")
        }
    }

    /// Returns the text of its event types.
    pub(super) fn types(&self) -> String {
        let types = &self.attributes.event_types;
        match &types[..] {
            types if types.iter().any(|it| it.r#type == "*") => "all events".to_owned(),
            [only] => only.r#type.clone(),
            types => format!("{} event types", types.len()),
        }
    }
}

/// A delivery in a response.
#[derive(Deserialize)]
pub(super) struct DeliveryEntry {
    pub(super) id: Uuid,
    pub(super) attributes: DeliveryEntryAttributes,
}

#[derive(Deserialize)]
pub(super) struct DeliveryEntryAttributes {
    pub(super) event_id: Uuid,
    pub(super) status: String,
    pub(super) response_code: i32,
    pub(super) response_headers: BTreeMap<String, String>,
    pub(super) response_body: Option<String>,
    pub(super) error_message: Option<String>,
    pub(super) attempt_timestamp: DateTime<Utc>,
    pub(super) event: EventEntry,
}

/// The event of a delivery.
#[derive(Deserialize)]
pub(super) struct EventEntry {
    pub(super) r#type: String,
    pub(super) payload: serde_json::Value,
    pub(super) timestamp: String,
}

impl DeliveryEntry {
    /// Returns the label and style class of the status.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        match self.attributes.status.as_str() {
            "success" => ("Delivered", "good"),
            "failure" => ("Failed", "bad"),
            "skipped" => ("Skipped", "idle"),
            _ => ("Pending", "busy"),
        }
    }
}
