//! The organizations and projects that somebody sees.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    base::{error::Error, ids::OrgSlug},
    data_plane::projects::Status,
    web::{Visitor, words},
};

/// An organization with its projects, by name.
pub(super) struct Place {
    pub(super) organization: Organization,
    pub(super) projects: Vec<Project>,
}

#[derive(Deserialize)]
pub(super) struct Organization {
    pub(super) slug: String,
    pub(super) name: String,
}

#[derive(Deserialize)]
pub(super) struct Project {
    #[serde(rename = "ref")]
    pub(super) reference: String,
    organization_slug: String,
    pub(super) name: String,
    pub(super) region: String,
    status: Status,
}

impl Place {
    /// Whether the project is one of this organization's.
    pub(super) fn has(&self, reference: &str) -> bool {
        self.projects
            .iter()
            .any(|project| project.reference == reference)
    }
}

/// All of them.
pub(super) async fn places(visitor: &Visitor) -> Result<Vec<Place>, Error> {
    let organizations = organizations(visitor).await?;
    let mut projects: Vec<Project> = visitor.get("/v1/projects").await?;
    projects.sort_by_key(|project| project.name.to_lowercase());
    let mut by_slug: BTreeMap<String, Vec<Project>> = BTreeMap::new();
    for project in projects {
        by_slug
            .entry(project.organization_slug.clone())
            .or_default()
            .push(project);
    }
    let place = |organization: Organization| Place {
        projects: by_slug.remove(&organization.slug).unwrap_or_default(),
        organization,
    };
    Ok(organizations.into_iter().map(place).collect())
}

impl Project {
    /// The state in words, and how it is marked.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        words::state(self.status)
    }
}

/// The projects of one organization, by name.
pub(super) async fn projects_of(visitor: &Visitor, slug: &OrgSlug) -> Result<Vec<Project>, Error> {
    let mut projects: Vec<Project> = visitor.get("/v1/projects").await?;
    projects.retain(|project| project.organization_slug == slug.as_str());
    projects.sort_by_key(|project| project.name.to_lowercase());
    Ok(projects)
}

/// The organizations alone.
pub(super) async fn organizations(visitor: &Visitor) -> Result<Vec<Organization>, Error> {
    visitor.get("/v1/organizations").await
}
