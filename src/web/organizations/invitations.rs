//! Who is invited to an organization.

use askama::Template;
use chrono::{DateTime, Utc};
use http::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Choice, Head, OnProject, choices, label};
use crate::{
    base::{error::Error, ids::OrgSlug},
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{
        Answer, Form, Frame, Visitor, may::May, named::InOrganization, page, places,
        places::Project, words::Moment,
    },
};

pub(in crate::web) static OPEN: Endpoint = page(
    "page-invitations",
    "Invitations",
    Verb::Get,
    "/organizations/{organization}/invitations",
    Access::Caller,
    || mount(open),
);
pub(in crate::web) static INVITE: Endpoint = page(
    "page-invite",
    "Invite somebody",
    Verb::Post,
    "/organizations/{organization}/invitations",
    Access::Caller,
    || mount(invite),
);
pub(in crate::web) static WITHDRAW: Endpoint = page(
    "page-withdraw-invitation",
    "Take an invitation back",
    Verb::Post,
    "/organizations/{organization}/invitations/withdraw",
    Access::Caller,
    || mount(withdraw),
);

#[derive(Deserialize)]
struct Invitation {
    email: String,
    role: String,
    projects: Vec<OnProject>,
    invited_by: String,
    expires_at: DateTime<Utc>,
}

/// The same, as a page shows it.
struct Row {
    invitation: Invitation,
    ends: Moment,
}

impl Row {
    fn role(&self) -> &'static str {
        label(&self.invitation.role)
    }
}

#[derive(Template)]
#[template(path = "invitations.html")]
struct Page {
    frame: Frame,
    head: Head,
    rows: Vec<Row>,
    /// Why none is shown.
    hidden: Option<String>,
    may: May,
    roles: Vec<Choice>,
    projects: Vec<Project>,
    wanted: Wanted,
    problem: Option<String>,
}

/// What was filled in.
struct Wanted {
    email: String,
    role: String,
    projects: Vec<String>,
}

impl Wanted {
    fn of(fields: Vec<(String, String)>) -> Self {
        let mut wanted = Self::default();
        for (name, value) in fields {
            match name.as_str() {
                "email" => value.trim().clone_into(&mut wanted.email),
                "role" => wanted.role = value,
                "project" => wanted.projects.push(value),
                _ => {}
            }
        }
        wanted
    }

    fn names(&self, reference: &str) -> bool {
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

impl Default for Wanted {
    fn default() -> Self {
        Self {
            email: String::new(),
            role: "developer".to_owned(),
            projects: Vec::new(),
        }
    }
}

async fn open(visitor: Visitor, InOrganization(slug): InOrganization) -> Result<Answer, Error> {
    show(&visitor, slug, StatusCode::OK, Wanted::default(), None).await
}

async fn show(
    visitor: &Visitor,
    slug: OrgSlug,
    status: StatusCode,
    wanted: Wanted,
    problem: Option<String>,
) -> Result<Answer, Error> {
    let head = Head::of(visitor, slug).await?;
    let (path, now) = (
        format!("/v1/organizations/{}/invitations", head.slug),
        visitor.context.clock.now(),
    );
    let may_see = visitor.may("GET", &path).await?;
    let open: Vec<Invitation> = if may_see.yes() {
        visitor.get(&path).await?
    } else {
        Vec::new()
    };
    let rows = open
        .into_iter()
        .map(|invitation| Row {
            ends: Moment::new(invitation.expires_at, now),
            invitation,
        })
        .collect();
    let may = visitor.may("POST", &operation(&head.slug)).await?;
    let projects = places::projects_of(visitor, &head.slug).await?;
    let frame = visitor.frame().of(&head.way("/invitations"));
    let hidden = (!may_see.yes()).then(|| may_see.why().to_owned());
    let page = Page {
        frame,
        head,
        rows,
        hidden,
        roles: choices(may.role),
        may,
        projects,
        wanted,
        problem,
    };
    Ok(Answer::page(&page)?.status(status))
}

fn operation(slug: &OrgSlug) -> String {
    format!("/v2/organizations/{slug}/members/invitations")
}

#[derive(Deserialize)]
struct Made {
    data: Vec<MadeOne>,
}

#[derive(Deserialize)]
struct MadeOne {
    attributes: MadeAttributes,
}

#[derive(Deserialize)]
struct MadeAttributes {
    email: String,
    token: SecretString,
    expires_at: DateTime<Utc>,
}

#[derive(Template)]
#[template(path = "invitation_made.html")]
struct Shown {
    frame: Frame,
    head: Head,
    email: String,
    link: String,
    ends: Moment,
}

/// Shows the link in this very answer: it has no address of its own, and to load it again is to invite again.
async fn invite(
    visitor: Visitor,
    Form(fields): Form<Vec<(String, String)>>,
    InOrganization(slug): InOrganization,
) -> Result<Answer, Error> {
    let wanted = Wanted::of(fields);
    let made: Made = match visitor
        .ask(Method::POST, &operation(&slug), Some(&wanted.body()))
        .await
    {
        Ok(made) => made,
        Err(Error::Invalid { problem, .. } | Error::Rejected(problem)) => {
            let problem = Some(format!("This did not work: {problem}."));
            return show(
                &visitor,
                slug,
                StatusCode::UNPROCESSABLE_ENTITY,
                wanted,
                problem,
            )
            .await;
        }
        Err(error) => return Err(error),
    };
    let made = made
        .data
        .into_iter()
        .next()
        .ok_or_else(|| Error::internal("inviting", "no invitation was made"))?
        .attributes;
    let head = Head::of(&visitor, slug).await?;
    let frame = visitor.frame().of(&head.way("/invitations"));
    let link = format!(
        "{}/invitations/{}",
        visitor.origin,
        made.token.expose_secret()
    );
    Answer::page(&Shown {
        frame,
        head,
        email: made.email,
        link,
        ends: Moment::new(made.expires_at, visitor.context.clock.now()),
    })
}

#[derive(Deserialize)]
struct Which {
    email: String,
}

async fn withdraw(
    visitor: Visitor,
    Form(which): Form<Which>,
    InOrganization(slug): InOrganization,
) -> Result<Answer, Error> {
    let body = json!({"data": [{"type": "organization_invitation", "attributes": {"email": which.email}}]});
    visitor
        .ask::<Value>(Method::DELETE, &operation(&slug), Some(&body))
        .await?;
    Answer::to(&format!("/organizations/{slug}/invitations?done=withdrawn"))
}
