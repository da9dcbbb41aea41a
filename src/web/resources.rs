//! The organizations and projects that are visible to the visitor.

use std::collections::BTreeMap;

use gantry_base::ids::OrgSlug;
use serde::Deserialize;

use crate::{
    control::projects::Status,
    platform::error::Error,
    web::{labels, visitor::Visitor},
};

/// An organization with its projects, sorted by name.
pub(super) struct OrganizationProjects {
    pub(super) organization: OrganizationEntry,
    pub(super) projects: Vec<ProjectEntry>,
}

/// An organization in the response of `GET /v1/organizations`.
#[derive(Deserialize)]
pub(super) struct OrganizationEntry {
    pub(super) slug: String,
    pub(super) name: String,
}

/// A project in the response of `GET /v1/projects`.
#[derive(Deserialize)]
pub(super) struct ProjectEntry {
    #[serde(rename = "ref")]
    pub(super) reference: String,
    organization_slug: String,
    pub(super) name: String,
    pub(super) region: String,
    status: Status,
}

impl OrganizationProjects {
    /// Returns whether the project belongs to this organization.
    pub(super) fn contains(&self, reference: &str) -> bool {
        self.projects
            .iter()
            .any(|project| project.reference == reference)
    }
}

impl ProjectEntry {
    /// Returns the label and style class of the status.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        labels::status_label(self.status)
    }
}

/// Returns every visible organization.
pub(super) async fn organizations(visitor: &Visitor) -> Result<Vec<OrganizationEntry>, Error> {
    visitor.get("/v1/organizations").await
}

/// Returns every visible organization with its projects.
pub(super) async fn organizations_with_projects(
    visitor: &Visitor,
) -> Result<Vec<OrganizationProjects>, Error> {
    let organizations = organizations(visitor).await?;
    let mut by_slug: BTreeMap<String, Vec<ProjectEntry>> = BTreeMap::new();
    for project in projects_by_name(visitor).await? {
        by_slug
            .entry(project.organization_slug.clone())
            .or_default()
            .push(project);
    }
    let mut entries = Vec::with_capacity(organizations.len());
    for organization in organizations {
        let projects = by_slug.remove(&organization.slug).unwrap_or_default();
        entries.push(OrganizationProjects {
            organization,
            projects,
        });
    }
    Ok(entries)
}

/// Returns the projects of one organization, sorted by name.
pub(super) async fn organization_projects(
    visitor: &Visitor,
    slug: &OrgSlug,
) -> Result<Vec<ProjectEntry>, Error> {
    let mut projects = projects_by_name(visitor).await?;
    projects.retain(|project| project.organization_slug == slug.as_str());
    Ok(projects)
}

async fn projects_by_name(visitor: &Visitor) -> Result<Vec<ProjectEntry>, Error> {
    let mut projects: Vec<ProjectEntry> = visitor.get("/v1/projects").await?;
    projects.sort_by_key(|project| project.name.to_lowercase());
    Ok(projects)
}
