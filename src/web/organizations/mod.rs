//! Organizations: who belongs to them and as what, who is invited, and what was done.

mod accept;
mod audit;
mod invitations;
mod member;
mod members;

use serde::Deserialize;

pub(super) use self::{
    accept::{ACCEPT, OFFER},
    audit::{EXPORT, LOG},
    invitations::{INVITE, OPEN, WITHDRAW},
    member::{ASK_REMOVE, GIVE_ROLE, MEMBER, REMOVE},
    members::MEMBERS,
};
use crate::{
    base::{error::Error, ids::OrgSlug},
    platform::access::Role,
    web::{Visitor, words},
};

/// What every page of an organization has at its top.
pub(super) struct Head {
    pub(super) slug: OrgSlug,
    pub(super) name: String,
}

impl Head {
    /// The path of a page of the organization.
    pub(super) fn way(&self, rest: &str) -> String {
        format!("/organizations/{}{rest}", self.slug)
    }

    /// To who does not belong to it, it is not there.
    pub(super) async fn of(visitor: &Visitor, slug: OrgSlug) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Detail {
            name: String,
        }
        let Detail { name } = visitor.get(&format!("/v1/organizations/{slug}")).await?;
        Ok(Self { slug, name })
    }
}

/// Members, as the operation lists them.
#[derive(Deserialize)]
struct Listed {
    data: Vec<Member>,
    links: Links,
}

#[derive(Deserialize)]
struct Links {
    prev: Option<String>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Member {
    id: uuid::Uuid,
    attributes: Attributes,
}

#[derive(Deserialize)]
struct Attributes {
    username: String,
    primary_email: String,
    roles: Vec<Held>,
}

/// A role, in the organization or on projects.
#[derive(Deserialize)]
struct Held {
    name: String,
    scope: String,
    projects: Vec<OnProject>,
}

#[derive(Deserialize)]
struct OnProject {
    #[serde(rename = "ref")]
    reference: String,
    name: String,
}

impl Held {
    fn on_projects(&self) -> bool {
        self.scope == "project"
    }

    fn label(&self) -> &'static str {
        label(&self.name)
    }

    /// In a few words.
    fn words(&self) -> String {
        match (self.on_projects(), self.name.as_str()) {
            (true, _) => format!(
                "{} on {}",
                self.label(),
                words::count(self.projects.len(), "project")
            ),
            (false, "no-access") => "No role".to_owned(),
            (false, _) => self.label().to_owned(),
        }
    }
}

/// A role as people call it.
fn label(name: &str) -> &'static str {
    name.parse().map_or("Unknown", Role::label)
}

/// A role in a list to choose from.
struct Choice {
    name: &'static str,
    label: &'static str,
    /// Above the visitor's own.
    above: bool,
}

/// Roles that can be given, up to one's own.
fn choices(own: Role) -> Vec<Choice> {
    Role::ASSIGNABLE
        .iter()
        .map(|role| Choice {
            name: role.name(),
            label: role.label(),
            above: *role > own,
        })
        .collect()
}
