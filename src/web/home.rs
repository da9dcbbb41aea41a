//! The first page: one's organizations and projects.

use askama::Template;
use serde::Deserialize;

use super::{Answer, Frame, Visitor, next, page};
use crate::{
    error::Error,
    http::{Access, Endpoint, Verb, mount},
};

pub(super) static HOME: Endpoint = page("page-home", "Organizations and projects", Verb::Get, next::HOME, Access::Caller, || mount(home));

#[derive(Template)]
#[template(path = "home.html")]
struct Home {
    frame: Frame,
    organizations: Vec<Group>,
}

/// An organization with what is in it.
struct Group {
    organization: Organization,
    projects: Vec<Project>,
}

#[derive(Deserialize)]
struct Organization {
    slug: String,
    name: String,
}

#[derive(Deserialize)]
struct Project {
    #[serde(rename = "ref")]
    reference: String,
    organization_slug: String,
    name: String,
    region: String,
    status: String,
}

impl Project {
    /// The state in words, and how it is marked.
    fn state(&self) -> (&'static str, &'static str) {
        match self.status.as_str() {
            "ACTIVE_HEALTHY" => ("Healthy", "good"),
            "ACTIVE_UNHEALTHY" => ("Unhealthy", "bad"),
            "COMING_UP" | "INIT_READ_REPLICA" => ("Starting", "busy"),
            "RESTORING" | "RESTARTING" | "UPGRADING" | "RESIZING" => ("Working", "busy"),
            "PAUSING" => ("Pausing", "busy"),
            "INACTIVE" | "PAUSED" => ("Paused", "idle"),
            "GOING_DOWN" => ("Going down", "busy"),
            "REMOVED" => ("Removed", "idle"),
            status if status.ends_with("FAILED") => ("Failed", "bad"),
            _ => ("Unknown", "idle"),
        }
    }
}

async fn home(visitor: Visitor) -> Result<Answer, Error> {
    let organizations: Vec<Organization> = visitor.get("/v1/organizations").await?;
    let mut projects: Vec<Project> = visitor.get("/v1/projects").await?;
    projects.sort_by_key(|project| project.name.to_lowercase());
    let mut groups: Vec<_> = organizations.into_iter().map(|organization| Group { organization, projects: Vec::new() }).collect();
    for project in projects {
        if let Some(group) = groups.iter_mut().find(|group| group.organization.slug == project.organization_slug) {
            group.projects.push(project);
        }
    }
    Answer::page(&Home { frame: visitor.frame(), organizations: groups })
}
