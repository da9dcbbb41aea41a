//! The target of a request: the project, the organization or the account that it names.

use gantry_base::ids::{OrgSlug, ProjectRef};

use super::{
    endpoint::Endpoint,
    path_template::{place, segment},
};
use crate::platform::{
    access::{BranchKey, ResourceName},
    rate_limits::LimitKey,
};

/// The target as named by a request, before the lookup of whether it exists.
pub(super) enum RequestTarget {
    Account,
    Organization(OrgSlug),
    Project(ProjectRef),
    Branch(BranchKey),
    /// A text that is not a valid slug or project reference.
    Invalid,
}

/// The part of a request that names the target. Computed once, when the operation is mounted.
#[derive(Debug, Clone, Copy)]
pub(super) enum TargetLocation {
    /// Index of the path segment with the slug of an organization.
    Organization(usize),
    /// Index of the path segment with the reference of a project.
    Project(usize),
    /// Index of the path segment with the id or reference of a branch.
    Branch(usize),
    /// The query, as `ref` or `slug`.
    Query,
    /// Neither path nor query.
    None,
}

impl TargetLocation {
    pub(super) fn of(endpoint: &Endpoint) -> Self {
        match endpoint.limit.key {
            LimitKey::Path => {
                if let Some(index) = place(endpoint.path, "ref") {
                    Self::Project(index)
                } else if let Some(index) = place(endpoint.path, "branch_id_or_ref") {
                    Self::Branch(index)
                } else if let Some(index) = place(endpoint.path, "slug") {
                    Self::Organization(index)
                } else {
                    Self::None
                }
            }
            LimitKey::Uncounted => Self::Query,
            LimitKey::OrganizationInBody { .. } | LimitKey::Caller => Self::None,
        }
    }
}

impl RequestTarget {
    /// Reads the target from path or query. Returns the account if neither names another target.
    pub(super) fn in_line(location: TargetLocation, path: &str, query: &str) -> Self {
        match location {
            TargetLocation::Project(index) => {
                Self::project(segment(path, index).unwrap_or_default())
            }
            TargetLocation::Organization(index) => {
                Self::organization(segment(path, index).unwrap_or_default())
            }
            TargetLocation::Branch(index) => {
                let text = segment(path, index).unwrap_or_default();
                BranchKey::parse(text).map_or(Self::Invalid, Self::Branch)
            }
            TargetLocation::Query => Self::in_query(query),
            TargetLocation::None => Self::Account,
        }
    }

    fn in_query(query: &str) -> Self {
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        if let Some((_, reference)) = pairs.iter().find(|(name, _)| name == "ref") {
            Self::project(reference)
        } else if let Some((_, slug)) = pairs.iter().find(|(name, _)| name == "slug") {
            Self::organization(slug)
        } else {
            Self::Account
        }
    }

    fn project(text: &str) -> Self {
        text.parse().map_or(Self::Invalid, Self::Project)
    }

    fn organization(text: &str) -> Self {
        text.parse().map_or(Self::Invalid, Self::Organization)
    }

    /// Reads the slug of an organization from the first of these fields that the JSON body has.
    pub(super) fn in_body(fields: &[&str], body: &[u8]) -> Self {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let slug = fields.iter().find_map(|field| body.get(field)?.as_str());
        slug.and_then(|slug| slug.parse().ok())
            .map_or(Self::Account, Self::Organization)
    }

    /// Returns the name as the request spells it; empty for the account.
    pub(super) fn name(
        location: TargetLocation,
        limit: LimitKey,
        (path, query, body): (&str, &str, &[u8]),
    ) -> String {
        let target = match (limit, location) {
            (LimitKey::OrganizationInBody { fields }, _) => Self::in_body(fields, body),
            (
                _,
                TargetLocation::Organization(index)
                | TargetLocation::Project(index)
                | TargetLocation::Branch(index),
            ) => return segment(path, index).unwrap_or_default().to_owned(),
            _ => Self::in_line(location, path, query),
        };
        match target {
            Self::Organization(slug) => slug.to_string(),
            Self::Project(reference) => reference.to_string(),
            Self::Account | Self::Branch(_) | Self::Invalid => String::new(),
        }
    }

    /// Returns the key of the lookup, if the target needs one.
    pub(super) fn reference(self) -> Option<ResourceName> {
        match self {
            Self::Account | Self::Invalid => None,
            Self::Organization(slug) => Some(ResourceName::Organization(slug)),
            Self::Project(reference) => Some(ResourceName::Project(reference)),
            Self::Branch(branch) => Some(ResourceName::Branch(branch)),
        }
    }
}
