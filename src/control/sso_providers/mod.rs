//! SSO providers of a project: SAML identity providers that sign in its users.
//!
//! They are rows of schema `auth` in the project's database, which its Auth service reads.
//! Branches, dumps and backups contain them with the other rows.

mod metadata;
mod rows;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use self::metadata::SamlMetadata;
use crate::{
    control::{
        context::ControlContext,
        service_settings::{self, AUTH},
    },
    platform::{access::Project, audit::Recorder, error::Error, outbound::UrlOwner},
};

/// Maximum number of providers of a project.
const PROVIDERS_MAX: usize = 50;
/// Maximum number of domains of a provider.
const DOMAINS_MAX: usize = 100;
/// Longest domain, in bytes (RFC 1035 §2.3.4).
const DOMAIN_BYTES_MAX: usize = 253;
/// Maximum size of an attribute mapping, in bytes of JSON.
const MAPPING_BYTES_MAX: usize = 64 * 1024;

/// An SSO provider.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SsoProvider {
    id: Uuid,
    saml: SamlProvider,
    /// Domains of email addresses that sign in through the provider.
    domains: Vec<SsoDomain>,
    /// Whether users cannot sign in through it.
    disabled: Option<bool>,
    created_at: String,
    updated_at: String,
}

/// The SAML identity provider of an SSO provider.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct SamlProvider {
    id: Uuid,
    entity_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_url: Option<String>,
    metadata_xml: String,
    attribute_mapping: AttributeMapping,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_id_format: Option<NameIdFormat>,
}

/// A domain of an SSO provider.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct SsoDomain {
    id: Uuid,
    domain: String,
    created_at: String,
    updated_at: String,
}

/// The attributes of a user, by the names in tokens.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct AttributeMapping {
    #[serde(default)]
    keys: BTreeMap<String, SamlAttribute>,
}

/// The SAML attribute that an attribute of a user is taken from.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct SamlAttribute {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Its possible names.
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
    /// The value if it is absent: an object, a number, a text, or `true` or `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<Value>,
    /// Whether all values are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    array: Option<bool>,
}

/// The form of user names (SAML 2.0 Core §8.3).
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names of the specification")]
pub enum NameIdFormat {
    #[serde(rename = "urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified")]
    Unspecified,
    #[serde(rename = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient")]
    Transient,
    #[serde(rename = "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress")]
    EmailAddress,
    #[serde(rename = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent")]
    Persistent,
}

/// Properties of an SSO provider to set. Absent ones stay as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateProviderBody")]
pub struct SsoProviderUpdate {
    /// SAML metadata. Not together with `metadata_url`.
    metadata_xml: Option<String>,
    /// The URL of SAML metadata.
    metadata_url: Option<String>,
    /// Domains of email addresses. They replace the present ones.
    domains: Option<Vec<String>>,
    /// The attributes of a user, by the names in tokens.
    attribute_mapping: Option<AttributeMapping>,
    /// The form of user names.
    name_id_format: Option<NameIdFormat>,
}

impl SsoProviderUpdate {
    /// Returns the metadata, checked.
    async fn metadata(
        &self,
        context: &ControlContext,
        project: &Project,
    ) -> Result<Option<SamlMetadata>, Error> {
        let owner = UrlOwner::Project(project.id);
        let read = match (&self.metadata_xml, &self.metadata_url) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Error::Rejected(
                    "Only one of metadata_xml or metadata_url can be set".into(),
                ));
            }
            (Some(xml), None) => SamlMetadata::of_xml(xml.clone())
                .map_err(|problem| Error::invalid("metadata_xml", problem)),
            (None, Some(url)) => SamlMetadata::of_url(&context.outbound, owner, url)
                .await
                .map_err(|problem| Error::invalid("metadata_url", problem)),
        };
        read.map(Some)
    }

    fn check(&self) -> Result<(), Error> {
        let domains = self.domains.as_deref().unwrap_or_default();
        if domains.len() > DOMAINS_MAX {
            return Err(Error::invalid(
                "domains",
                format!("An SSO provider can have {DOMAINS_MAX} domains"),
            ));
        }
        if domains.iter().any(|domain| !is_domain(domain)) {
            return Err(Error::invalid("domains", "Invalid domain"));
        }
        let Some(mapping) = &self.attribute_mapping else {
            return Ok(());
        };
        if json!(mapping).to_string().len() > MAPPING_BYTES_MAX {
            return Err(Error::invalid("attribute_mapping", "has at most 64 KiB"));
        }
        let is_list = |attribute: &SamlAttribute| {
            matches!(attribute.default, Some(Value::Array(_) | Value::Null))
        };
        if mapping.keys.values().any(is_list) {
            return Err(Error::invalid(
                "attribute_mapping.keys",
                "A default is an object, a number, a string or a boolean",
            ));
        }
        Ok(())
    }

    /// Returns what the audit log shows.
    fn audit_entry(&self, id: Uuid, metadata: Option<&SamlMetadata>) -> Value {
        json!({
            "id": id,
            "entity_id": metadata.map(|it| &it.entity_id),
            "metadata_url": metadata.and_then(|it| it.url.as_ref()),
            "domains": self.domains,
        })
    }
}

/// Returns whether a text is a domain name in lower or upper case, with at least two labels.
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        (1..=63).contains(&label.len())
            && label.chars().all(is_allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= DOMAIN_BYTES_MAX && text.contains('.') && text.split('.').all(is_label)
}

/// The text of an unknown provider.
const UNKNOWN: &str = "SSO Identity Provider not found";
/// The text if the setting `saml_enabled` is off.
const DISABLED: &str = "SAML 2.0 support is not enabled for this project";

/// Fails unless the project's Auth settings enable SAML.
async fn check_enabled(context: &ControlContext, project: &Project) -> Result<(), Error> {
    let settings = service_settings::get(context, project, &AUTH).await?;
    if settings.document(&project.reference)["saml_enabled"] != true {
        return Err(Error::Missing(DISABLED));
    }
    Ok(())
}

/// Lists the SSO providers of a project, oldest first.
///
/// Errors: [`Error::Missing`] if SAML is not enabled. All functions of this module have it.
pub async fn list(context: &ControlContext, project: &Project) -> Result<Vec<SsoProvider>, Error> {
    check_enabled(context, project).await?;
    rows::list(context, project).await
}

/// Returns one SSO provider.
pub async fn get(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
) -> Result<SsoProvider, Error> {
    let found = list(context, project).await?;
    let found = found.into_iter().find(|provider| provider.id == id);
    found.ok_or(Error::Missing(UNKNOWN))
}

/// Adds an SSO provider. Its metadata is read first.
///
/// Errors: [`Error::Invalid`] with the field, [`Error::Conflict`] if another provider has the
/// entity id or a domain.
pub async fn create(
    context: &ControlContext,
    project: &Project,
    new: &SsoProviderUpdate,
    audit: &Recorder,
) -> Result<SsoProvider, Error> {
    check_enabled(context, project).await?;
    new.check()?;
    let metadata = new
        .metadata(context, project)
        .await?
        .ok_or(Error::Rejected(
            "Either metadata_xml or metadata_url must be set".into(),
        ))?;
    let id = context.entropy.uuid();
    let change = (None, Some(new.audit_entry(id, Some(&metadata))));
    rows::write(context, project, audit, (201, change), async |rows| {
        rows.insert(id, &metadata, new).await
    })
    .await?;
    get(context, project, id).await
}

/// Changes an SSO provider.
///
/// Errors: those of [`create`], [`Error::Missing`] if there is no such provider.
pub async fn update(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    change: &SsoProviderUpdate,
    audit: &Recorder,
) -> Result<SsoProvider, Error> {
    let before = get(context, project, id).await?;
    change.check()?;
    let metadata = change.metadata(context, project).await?;
    if let Some(metadata) = &metadata
        && metadata.entity_id != before.saml.entity_id
    {
        return Err(Error::Rejected(
            "The metadata has another entity id; add it as a new provider".into(),
        ));
    }
    let entry = change.audit_entry(id, metadata.as_ref());
    let recorded = (Some(before.audit_entry()), Some(entry));
    rows::write(context, project, audit, (200, recorded), async |rows| {
        rows.update(id, metadata.as_ref(), change).await
    })
    .await?;
    get(context, project, id).await
}

/// Removes an SSO provider, and returns it. Its users remain, and cannot sign in through it.
pub async fn remove(
    context: &ControlContext,
    project: &Project,
    id: Uuid,
    audit: &Recorder,
) -> Result<SsoProvider, Error> {
    let removed = get(context, project, id).await?;
    let change = (Some(removed.audit_entry()), None);
    rows::write(context, project, audit, (200, change), async |rows| {
        rows.delete(id).await
    })
    .await?;
    Ok(removed)
}

impl SsoProvider {
    fn audit_entry(&self) -> Value {
        let domains: Vec<&String> = self.domains.iter().map(|it| &it.domain).collect();
        json!({
            "id": self.id, "entity_id": self.saml.entity_id,
            "metadata_url": self.saml.metadata_url, "domains": domains,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_names_with_two_labels() {
        for domain in [
            "example.com",
            "a.b.example.com",
            "xn--bcher-kva.example",
            "A.B",
        ] {
            assert!(is_domain(domain), "{domain}");
        }
        let long = format!("{}com", "a.".repeat(126));
        for text in [
            "", "example", "-a.com", "a-.com", "a..com", "a@b.com", "a.com.", &long,
        ] {
            assert!(!is_domain(text), "{text}");
        }
    }
}
