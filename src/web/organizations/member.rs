//! One member: the roles, giving others, and removing.

use askama::Template;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Choice, Head, Listed, Member, choices};
use crate::{
    base::{error::Error, ids::OrgSlug},
    platform::{
        access::{Access, Role},
        http::{Call, Endpoint, Input, Verb, mount, openapi::OperationDoc},
    },
    web::{
        Answer, Form, Frame, Visitor, may::May, named::InOrganization, page, places,
        places::Project,
    },
};

pub(in crate::web) static MEMBER: Endpoint = page(
    "page-member",
    "A member",
    Verb::Get,
    "/organizations/{organization}/members/{member}",
    Access::Caller,
    || mount(show),
);
pub(in crate::web) static GIVE_ROLE: Endpoint = page(
    "page-give-role",
    "Give a member a role",
    Verb::Post,
    "/organizations/{organization}/members/{member}/role",
    Access::Caller,
    || mount(give),
);
pub(in crate::web) static ASK_REMOVE: Endpoint = page(
    "page-ask-remove-member",
    "Remove a member?",
    Verb::Get,
    "/organizations/{organization}/members/{member}/remove",
    Access::Caller,
    || mount(ask),
);
pub(in crate::web) static REMOVE: Endpoint = page(
    "page-remove-member",
    "Remove a member",
    Verb::Post,
    "/organizations/{organization}/members/{member}/remove",
    Access::Caller,
    || mount(remove),
);

/// The member the path names.
struct Named(Uuid);

impl Input for Named {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("member")
            .and_then(|id| id.parse().ok())
            .map(Self)
            .ok_or(Error::NotFound)
    }
}

#[derive(Template)]
#[template(path = "member.html")]
struct Page {
    frame: Frame,
    head: Head,
    member: Member,
    own: bool,
    roles: Vec<Choice>,
    projects: Vec<Project>,
    may: May,
    problem: Option<String>,
}

impl Page {
    fn in_organization(&self) -> &str {
        self.member
            .attributes
            .roles
            .iter()
            .find(|role| !role.on_projects())
            .map_or(Role::Member.name(), |role| &role.name)
    }
}

#[derive(Template)]
#[template(path = "member_remove.html")]
struct Question {
    frame: Frame,
    head: Head,
    member: Member,
    own: bool,
    may: May,
    problem: Option<String>,
}

/// Members are listed by their ids: this one is the first after the id before it.
async fn find(visitor: &Visitor, slug: &OrgSlug, id: Uuid) -> Result<Member, Error> {
    let before = Uuid::from_u128(id.as_u128().wrapping_sub(1));
    let path =
        format!("/v2/organizations/{slug}/members?page%5Bsize%5D=1&page%5Bafter%5D={before}");
    let listed: Listed = visitor.get(&path).await?;
    listed
        .data
        .into_iter()
        .find(|member| member.id == id)
        .ok_or(Error::NotFound)
}

fn operation(slug: &OrgSlug, id: Uuid) -> String {
    format!("/v2/organizations/{slug}/members/{id}")
}

async fn show(
    visitor: Visitor,
    InOrganization(slug): InOrganization,
    Named(id): Named,
) -> Result<Answer, Error> {
    Answer::page(&load(&visitor, slug, id, None).await?)
}

async fn load(
    visitor: &Visitor,
    slug: OrgSlug,
    id: Uuid,
    problem: Option<String>,
) -> Result<Page, Error> {
    let head = Head::of(visitor, slug).await?;
    let member = find(visitor, &head.slug, id).await?;
    let may = visitor
        .may("PATCH", &format!("{}/roles", operation(&head.slug, id)))
        .await?;
    let projects = places::projects_of(visitor, &head.slug).await?;
    let frame = visitor.frame().of(&head.way("/members"));
    Ok(Page {
        frame,
        head,
        own: id == visitor.account.gotrue_id,
        member,
        roles: choices(may.role),
        projects,
        may,
        problem,
    })
}

#[derive(Deserialize)]
struct Given {
    role: String,
    /// A project; without one it is in the whole organization.
    #[serde(default)]
    project: String,
}

async fn give(
    visitor: Visitor,
    Form(given): Form<Given>,
    InOrganization(slug): InOrganization,
    Named(id): Named,
) -> Result<Answer, Error> {
    let mut attributes = json!({"role": given.role});
    if !given.project.is_empty() {
        attributes["projects"] = json!([{"ref": given.project}]);
    }
    let body = json!({"data": {"type": "organization_member_role", "attributes": attributes}});
    let path = format!("{}/roles", operation(&slug, id));
    match visitor
        .ask::<Value>(Method::PATCH, &path, Some(&body))
        .await
    {
        // Who gave up their own role may not see members any more.
        Ok(_) if id == visitor.account.gotrue_id => {
            Answer::to(&format!("/organizations/{slug}?done=role"))
        }
        Ok(_) => Answer::to(&format!("/organizations/{slug}/members/{id}?done=role")),
        Err(error) => {
            let page = load(&visitor, slug, id, Some(refusal(error)?)).await?;
            Ok(Answer::page(&page)?.status(StatusCode::UNPROCESSABLE_ENTITY))
        }
    }
}

/// What the operation says against it, as a sentence. What the last owner is told is the operation's as well.
fn refusal(error: Error) -> Result<String, Error> {
    match error {
        Error::Rejected(text) => Ok(format!("{text}. Make somebody else an owner first.")),
        Error::Invalid { problem, .. } => Ok(format!("That did not work: {problem}.")),
        error => Err(error),
    }
}

async fn ask(
    visitor: Visitor,
    InOrganization(slug): InOrganization,
    Named(id): Named,
) -> Result<Answer, Error> {
    Answer::page(&question(&visitor, slug, id, None).await?)
}

async fn question(
    visitor: &Visitor,
    slug: OrgSlug,
    id: Uuid,
    problem: Option<String>,
) -> Result<Question, Error> {
    let head = Head::of(visitor, slug).await?;
    let member = find(visitor, &head.slug, id).await?;
    let may = visitor.may("DELETE", &operation(&head.slug, id)).await?;
    let frame = visitor.frame().of(&head.way("/members"));
    Ok(Question {
        frame,
        head,
        own: id == visitor.account.gotrue_id,
        member,
        may,
        problem,
    })
}

#[derive(Deserialize)]
struct Nothing {}

async fn remove(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    InOrganization(slug): InOrganization,
    Named(id): Named,
) -> Result<Answer, Error> {
    match visitor
        .ask::<Value>(Method::DELETE, &operation(&slug, id), None)
        .await
    {
        Ok(_) if id == visitor.account.gotrue_id => Answer::to("/projects?done=left"),
        Ok(_) => Answer::to(&format!("/organizations/{slug}?done=removed")),
        Err(error) => {
            let page = question(&visitor, slug, id, Some(refusal(error)?)).await?;
            Ok(Answer::page(&page)?.status(StatusCode::UNPROCESSABLE_ENTITY))
        }
    }
}
