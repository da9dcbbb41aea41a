//! What a request names: a project, an organization, or neither.

use super::{
    endpoint::Endpoint,
    router::{place, segment},
};
use crate::{
    base::ids::{OrgSlug, ProjectRef},
    platform::{access::ResourceName, rate_limits::LimitKey},
};

/// What the request names, before anybody looked whether it exists.
pub(super) enum Named {
    Account,
    Organization(OrgSlug),
    Project(ProjectRef),
    /// A text that cannot be the name of anything.
    Nothing,
}

/// Where an operation's requests name it: found once, when the operation is mounted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// Segment of the path with the slug of an organization.
    Organization(usize),
    /// Segment of the path with the reference of a project.
    Project(usize),
    /// The query may have one of either.
    Query,
    /// Nowhere, in the body, or only for the handler.
    None,
}

impl Place {
    pub(super) fn of(endpoint: &Endpoint) -> Self {
        match endpoint.limit.key {
            LimitKey::Path => place(endpoint, "ref")
                .map(Self::Project)
                .or_else(|| place(endpoint, "slug").map(Self::Organization))
                .unwrap_or(Self::None),
            LimitKey::Uncounted => Self::Query,
            LimitKey::OrganizationInBody { .. } | LimitKey::Caller => Self::None,
        }
    }
}

impl Named {
    /// What path or query name. What only the body names is nothing yet: the account's.
    pub(super) fn in_line(place: Place, path: &str, query: &str) -> Self {
        match place {
            Place::Project(place) => Self::project(segment(path, place).unwrap_or_default()),
            Place::Organization(place) => {
                Self::organization(segment(path, place).unwrap_or_default())
            }
            Place::Query => {
                let parsed: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
                let of = |wanted: &str| {
                    parsed
                        .iter()
                        .find(|(name, _)| name == wanted)
                        .map(|(_, text)| &**text)
                };
                let organization = || of("slug").map(Self::organization);
                of("ref")
                    .map(Self::project)
                    .or_else(organization)
                    .unwrap_or(Self::Account)
            }
            Place::None => Self::Account,
        }
    }

    fn project(text: &str) -> Self {
        text.parse().map_or(Self::Nothing, Self::Project)
    }

    fn organization(text: &str) -> Self {
        text.parse().map_or(Self::Nothing, Self::Organization)
    }

    /// What the body names in one of these fields.
    pub(super) fn in_body(fields: &[&str], body: &[u8]) -> Self {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let slug = fields.iter().find_map(|field| body.get(field)?.as_str());
        slug.and_then(|slug| slug.parse().ok())
            .map_or(Self::Account, Self::Organization)
    }

    /// What is to be looked up, if it can be the name of anything.
    pub(super) fn reference(self) -> Option<ResourceName> {
        match self {
            Self::Account | Self::Nothing => None,
            Self::Organization(slug) => Some(ResourceName::Organization(slug)),
            Self::Project(reference) => Some(ResourceName::Project(reference)),
        }
    }
}
