//! Endpoints as stored.

use std::{collections::BTreeMap, fmt};

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{OrganizationId, ProjectId},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::platform::{
    error::{Context, Error},
    sealing::SealingKey,
    webhook_signature::WebhookKey,
};

/// An entry of `event_types` that stands for all types, also future ones.
pub const EVERY_TYPE: &str = "*";

/// The organization or project that endpoints belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebhookScope {
    /// The organization, or that of the project.
    pub organization: OrganizationId,
    /// The project; absent for endpoints of the organization.
    pub project: Option<ProjectId>,
}

impl WebhookScope {
    /// Returns the values of the columns `organization_id` and `project_id`.
    pub fn columns(self) -> (i64, Option<i64>) {
        (self.organization.0, self.project.map(|project| project.0))
    }
}

/// An endpoint with its secrets.
#[derive(Debug, Clone)]
pub struct WebhookEndpoint {
    /// Id, a UUID of version 7.
    pub id: Uuid,
    /// The organization or project that it belongs to.
    pub scope: WebhookScope,
    /// URL of the receiver.
    pub url: String,
    /// Whether events are queued for it.
    pub enabled: bool,
    /// Text of its owner.
    pub description: Option<String>,
    /// Names of event types, or [`EVERY_TYPE`].
    pub event_types: Vec<String>,
    /// Signing secrets and header fields.
    pub secrets: EndpointSecrets,
    /// The user that created it.
    pub created_by: Uuid,
    /// Creation time.
    pub created_at: DateTime<Utc>,
}

/// The secrets of an endpoint. Stored sealed.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct EndpointSecrets {
    /// The secret that requests are signed with.
    pub signing_secret: String,
    /// The secret before the last rotation, if it signs as well for a time.
    pub previous: Option<PreviousSecret>,
    /// Header fields of requests.
    pub headers: BTreeMap<String, String>,
}

/// A secret that was replaced.
#[derive(Clone, Serialize, Deserialize)]
pub struct PreviousSecret {
    /// The secret.
    pub signing_secret: String,
    /// Time until which it signs.
    pub until: DateTime<Utc>,
}

impl fmt::Debug for EndpointSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndpointSecrets")
    }
}

impl fmt::Debug for PreviousSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreviousSecret")
    }
}

impl EndpointSecrets {
    /// Returns the keys that sign a request at this time, the current one first.
    pub fn keys(&self, now: DateTime<Utc>) -> Vec<WebhookKey> {
        let previous = self.previous.iter().filter(|it| now < it.until);
        std::iter::once(&self.signing_secret)
            .chain(previous.map(|it| &it.signing_secret))
            .map(|secret| WebhookKey::new(secret.as_bytes()))
            .collect()
    }

    /// Returns the header fields. Their values are marked as sensitive.
    pub fn header_map(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(mut value)) = (name, HeaderValue::from_str(value)) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        headers
    }

    /// Encrypts the secrets of an endpoint.
    pub fn seal(&self, key: &SealingKey, entropy: &Entropy, id: Uuid) -> Result<Vec<u8>, Error> {
        let text = serde_json::to_string(self).context("sealing the secrets of a webhook")?;
        key.seal(entropy, &place(id), &SecretString::from(text))
    }
}

/// Returns the context in which the secrets of an endpoint are sealed.
fn place(id: Uuid) -> String {
    format!("secrets of webhook endpoint {id}")
}

/// A statement that reads endpoints `e` for [`WebhookEndpoint::read`].
macro_rules! select_endpoints {
    ($rest:literal) => {
        concat!(
            "select e.id, e.url, e.enabled, e.description, e.event_types, e.secrets, \
             e.created_by, e.created_at, e.organization_id, e.project_id \
             from webhook_endpoints e ",
            $rest
        )
    };
}
pub(crate) use select_endpoints;

impl WebhookEndpoint {
    /// Reads a row of `select_endpoints`.
    pub fn read(row: &Row, key: &SealingKey) -> Result<Self, Error> {
        let id = row.get(0);
        let secrets = key.open(&place(id), row.get(5))?;
        let secrets = serde_json::from_str(secrets.expose_secret());
        Ok(Self {
            id,
            scope: WebhookScope {
                organization: OrganizationId(row.get(8)),
                project: row.get::<_, Option<i64>>(9).map(ProjectId),
            },
            url: row.get(1),
            enabled: row.get(2),
            description: row.get(3),
            event_types: row.get(4),
            secrets: secrets
                .map_err(|_| "malformed")
                .context("reading the secrets of a webhook")?,
            created_by: row.get(6),
            created_at: row.get(7),
        })
    }

    /// Returns whether the endpoint receives events of a type.
    pub fn is_subscribed_to(&self, event_type: &str) -> bool {
        self.event_types
            .iter()
            .any(|it| it == event_type || it == EVERY_TYPE)
    }

    /// Returns the part that the audit log records: without secrets, which the query of the URL may
    /// have as well.
    pub fn audited(&self) -> Value {
        let url = self.url.split('?').next().unwrap_or_default();
        let headers: Vec<_> = self.secrets.headers.keys().collect();
        json!({
            "id": self.id,
            "url": url,
            "enabled": self.enabled,
            "description": self.description,
            "event_types": self.event_types,
            "custom_headers": headers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> EndpointSecrets {
        EndpointSecrets {
            signing_secret: "whsec_bmV3LXNlY3JldA==".to_owned(),
            previous: Some(PreviousSecret {
                signing_secret: "old-secret".to_owned(),
                until: DateTime::UNIX_EPOCH,
            }),
            headers: BTreeMap::from([("authorization".to_owned(), "Bearer hush".to_owned())]),
        }
    }

    #[test]
    fn debug_output_has_no_secret() {
        let shown = format!("{:?} {:?}", secrets(), secrets().previous);
        assert_eq!(shown, "EndpointSecrets Some(PreviousSecret)");
        let headers = format!("{:?}", secrets().header_map());
        assert!(!headers.contains("hush"), "{headers}");
    }

    #[test]
    fn previous_secret_signs_until_its_end() {
        let before = DateTime::UNIX_EPOCH - chrono::TimeDelta::seconds(1);
        assert_eq!(secrets().keys(before).len(), 2);
        assert_eq!(secrets().keys(DateTime::UNIX_EPOCH).len(), 1);
    }

    #[test]
    fn secrets_are_sealed_for_one_endpoint() {
        let key = SealingKey::new(&[1; 32]).unwrap();
        let entropy = Entropy::seeded(1);
        let id = Uuid::from_u128(1);
        let sealed = secrets().seal(&key, &entropy, id).unwrap();
        assert!(!sealed.windows(4).any(|part| part == b"hush"));
        assert!(key.open(&place(id), &sealed).is_ok());
        assert!(key.open(&place(Uuid::from_u128(2)), &sealed).is_err());
    }
}
