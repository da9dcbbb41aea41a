//! The open invitations of an organization: list, create, revoke.

use askama::Template;
use chrono::{DateTime, Utc};
use gantry_base::ids::OrgSlug;
use http::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    header::OrganizationHeader,
    roles::{RoleOption, RoleProject, role_label, role_options},
};
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathOrganization,
        permissions::PermissionCheck,
        resources::{self, ProjectEntry},
    },
};

pub(in crate::web) static INVITATIONS: Endpoint = page(
    "page-invitations",
    "Invitations",
    Verb::Get,
    "/organizations/{organization}/invitations",
    || mount(list),
);
pub(in crate::web) static INVITE: Endpoint = page(
    "page-invite",
    "Invite a member",
    Verb::Post,
    "/organizations/{organization}/invitations",
    || mount(invite),
);
pub(in crate::web) static REVOKE_INVITATION: Endpoint = page(
    "page-withdraw-invitation",
    "Revoke an invitation",
    Verb::Post,
    "/organizations/{organization}/invitations/withdraw",
    || mount(revoke),
);

#[derive(Deserialize)]
struct OpenInvitation {
    email: String,
    role: String,
    projects: Vec<RoleProject>,
    invited_by: String,
    expires_at: DateTime<Utc>,
}

/// A row of the list.
struct Row {
    invitation: OpenInvitation,
    expires: Timestamp,
}

impl Row {
    fn role(&self) -> &'static str {
        role_label(&self.invitation.role)
    }
}

#[derive(Template)]
#[template(path = "invitations.html")]
struct Page {
    layout: Layout,
    head: OrganizationHeader,
    rows: Vec<Row>,
    /// The reason that the visitor may not list invitations.
    hidden: Option<String>,
    permission: PermissionCheck,
    roles: Vec<RoleOption>,
    projects: Vec<ProjectEntry>,
    form: InvitationForm,
    problem: Option<String>,
}

/// The form of a new invitation.
struct InvitationForm {
    email: String,
    role: String,
    projects: Vec<String>,
}

impl InvitationForm {
    fn parse(fields: Vec<(String, String)>) -> Self {
        let mut form = Self::default();
        for (name, value) in fields {
            match name.as_str() {
                "email" => value.trim().clone_into(&mut form.email),
                "role" => form.role = value,
                "project" => form.projects.push(value),
                _ => {}
            }
        }
        form
    }

    fn has_project(&self, reference: &str) -> bool {
        self.projects.iter().any(|project| project == reference)
    }

    fn body(&self) -> Value {
        let mut attributes = json!({"email": self.email, "role": self.role});
        if !self.projects.is_empty() {
            attributes["projects"] = self
                .projects
                .iter()
                .map(|project| json!({"ref": project}))
                .collect();
        }
        json!({"data": [{"type": "organization_invitation", "attributes": attributes}]})
    }
}

impl Default for InvitationForm {
    fn default() -> Self {
        Self {
            email: String::new(),
            role: "developer".to_owned(),
            projects: Vec::new(),
        }
    }
}

async fn list(
    visitor: Visitor,
    PathOrganization(slug): PathOrganization,
) -> Result<PageResponse, Error> {
    show(&visitor, slug, InvitationForm::default(), None).await
}

async fn show(
    visitor: &Visitor,
    slug: OrgSlug,
    form: InvitationForm,
    problem: Option<String>,
) -> Result<PageResponse, Error> {
    let head = OrganizationHeader::load(visitor, slug).await?;
    let path = format!("/v1/organizations/{}/invitations", head.slug);
    let now = visitor.context.clock.now();
    let can_list = visitor.check("GET", &path).await?;
    let invitations: Vec<OpenInvitation> = visitor.get_if(&can_list, &path).await?;
    let rows = invitations
        .into_iter()
        .map(|invitation| Row {
            expires: Timestamp::new(invitation.expires_at, now),
            invitation,
        })
        .collect();
    let permission = visitor.check("POST", &operation(&head.slug)).await?;
    let projects = resources::organization_projects(visitor, &head.slug).await?;
    let layout = visitor.layout().at_path(&head.path("/invitations"));
    let hidden = can_list.refusal();
    let page = Page {
        layout,
        head,
        rows,
        hidden,
        roles: role_options(permission.role),
        permission,
        projects,
        form,
        problem,
    };
    PageResponse::form(&page, page.problem.is_some())
}

fn operation(slug: &OrgSlug) -> String {
    format!("/v2/organizations/{slug}/members/invitations")
}

#[derive(Deserialize)]
struct CreatedInvitations {
    data: Vec<CreatedInvitation>,
}

#[derive(Deserialize)]
struct CreatedInvitation {
    attributes: CreatedInvitationAttributes,
}

#[derive(Deserialize)]
struct CreatedInvitationAttributes {
    email: String,
    token: SecretString,
    expires_at: DateTime<Utc>,
}

#[derive(Template)]
#[template(path = "invitation_link.html")]
struct LinkPage {
    layout: Layout,
    head: OrganizationHeader,
    email: String,
    link: String,
    expires: Timestamp,
}

/// Creates an invitation. The link is shown only in the response to the form.
async fn invite(
    visitor: Visitor,
    SessionForm(fields): SessionForm<Vec<(String, String)>>,
    PathOrganization(slug): PathOrganization,
) -> Result<PageResponse, Error> {
    let form = InvitationForm::parse(fields);
    let created: CreatedInvitations = match visitor.post(&operation(&slug), &form.body()).await {
        Ok(created) => created,
        Err(Error::Invalid { problem, .. } | Error::Rejected(problem)) => {
            let problem = Some(format!("The invitation could not be created: {problem}."));
            return show(&visitor, slug, form, problem).await;
        }
        Err(error) => return Err(error),
    };
    let created = created
        .data
        .into_iter()
        .next()
        .ok_or_else(|| Error::internal("creating an invitation", "empty response"))?
        .attributes;
    let head = OrganizationHeader::load(&visitor, slug).await?;
    let layout = visitor.layout().at_path(&head.path("/invitations"));
    let link = format!(
        "{}/invitations/{}",
        visitor.origin,
        created.token.expose_secret()
    );
    PageResponse::page(&LinkPage {
        layout,
        head,
        email: created.email,
        link,
        expires: Timestamp::new(created.expires_at, visitor.context.clock.now()),
    })
}

#[derive(Deserialize)]
struct InvitationEmail {
    email: String,
}

async fn revoke(
    visitor: Visitor,
    SessionForm(form): SessionForm<InvitationEmail>,
    PathOrganization(slug): PathOrganization,
) -> Result<PageResponse, Error> {
    let body =
        json!({"data": [{"type": "organization_invitation", "attributes": {"email": form.email}}]});
    visitor
        .call::<Value>(Method::DELETE, &operation(&slug), Some(&body))
        .await?;
    PageResponse::redirect(&format!("/organizations/{slug}/invitations?done=withdrawn"))
}
