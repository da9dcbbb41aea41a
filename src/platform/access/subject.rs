//! Subjects of requests: accounts, organizations and projects, and the names of them.

use gantry_base::ids::{OrgSlug, OrganizationId, ProjectId, ProjectRef};
use uuid::Uuid;

/// An organization that a request names and that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Organization {
    /// Row of `organizations`.
    pub id: OrganizationId,
    /// Its slug.
    pub slug: OrgSlug,
}

/// A project that a request names and that exists, possibly removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Row of `projects`.
    pub id: ProjectId,
    /// Its reference.
    pub reference: ProjectRef,
    /// The organization it belongs to.
    pub organization: OrganizationId,
}

/// The name of an organization or project in the path or body of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ResourceName {
    /// The `{slug}` of the path, or the organization in the body.
    Organization(OrgSlug),
    /// The `{ref}` of the path.
    Project(ProjectRef),
    /// The `{branch_id_or_ref}` of the path, which stands for the parent of the branch.
    Branch(BranchKey),
}

/// The name of a branch in a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BranchKey {
    /// Its id.
    Id(Uuid),
    /// The reference of its project.
    Ref(ProjectRef),
}

impl BranchKey {
    /// Parses an id or a reference.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(reference) = text.parse() {
            return Some(Self::Ref(reference));
        }
        Uuid::try_parse(text).ok().map(Self::Id)
    }

    /// Returns the id or the reference.
    pub fn parts(&self) -> (Option<Uuid>, Option<&ProjectRef>) {
        match self {
            Self::Id(id) => (Some(*id), None),
            Self::Ref(reference) => (None, Some(reference)),
        }
    }
}

/// The resource that a request is about, after it was found and the caller belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The caller's own account.
    Account,
    /// An organization the caller belongs to.
    Organization(Organization),
    /// A project of an organization the caller belongs to.
    Project(Project),
}
