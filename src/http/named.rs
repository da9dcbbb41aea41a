//! What a request names: a project, an organization, or neither.

use super::{endpoint::Endpoint, router::placeholder};
use crate::{
    access::Reference,
    ids::{OrgSlug, ProjectRef},
    limits::LimitKey,
};

/// What the request names, before anybody looked whether it exists.
pub(super) enum Named {
    Account,
    Organization(OrgSlug),
    Project(ProjectRef),
    /// A text that cannot be the name of anything.
    Nothing,
}

impl Named {
    /// What path or query name. What only the body names is nothing yet: the account's.
    pub(super) fn in_line(endpoint: &Endpoint, path: &str, query: &str) -> Self {
        match endpoint.limit.key {
            LimitKey::Path => Self::by(|name| placeholder(endpoint, path, name)),
            LimitKey::Uncounted => {
                let parsed: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
                Self::by(|wanted| parsed.iter().find(|(name, _)| name == wanted).map(|(_, text)| &**text))
            }
            LimitKey::OrganizationInBody { .. } => Self::Account,
        }
    }

    /// What the body names in one of these fields.
    pub(super) fn in_body(fields: &[&str], body: &[u8]) -> Self {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let slug = fields.iter().find_map(|field| body.get(field)?.as_str());
        slug.and_then(|slug| slug.parse().ok()).map_or(Self::Account, Self::Organization)
    }

    fn by<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Self {
        if let Some(reference) = text("ref") {
            reference.parse().map_or(Self::Nothing, Self::Project)
        } else if let Some(slug) = text("slug") {
            slug.parse().map_or(Self::Nothing, Self::Organization)
        } else {
            Self::Account
        }
    }

    /// What is to be looked up, if it can be the name of anything.
    pub(super) fn reference(self) -> Option<Reference> {
        match self {
            Self::Account | Self::Nothing => None,
            Self::Organization(slug) => Some(Reference::Organization(slug)),
            Self::Project(reference) => Some(Reference::Project(reference)),
        }
    }
}
