//! What members let applications do in an organization, for those who manage it.

use askama::Template;
use http::Method;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::approved::Row;
use crate::{
    api::oauth::grants::{Approver, Authorization, LIST_MAX, MemberAuthorization},
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{
        Answer, Form, Frame, Visitor, may::May, named::InOrganization, organizations::Head, page,
        words::count,
    },
};

const PAGE: &str = "/organizations/{organization}/authorized";

pub(in crate::web) static AUTHORIZED: Endpoint = page(
    "page-oauth-authorized",
    "Applications that members authorized",
    Verb::Get,
    PAGE,
    Access::Caller,
    || mount(authorized),
);
pub(in crate::web) static END: Endpoint = page(
    "page-oauth-authorized-end",
    "Revoke what members let an application do",
    Verb::Post,
    PAGE,
    Access::Caller,
    || mount(end),
);

#[derive(Template)]
#[template(path = "oauth_authorized.html")]
struct Authorized {
    frame: Frame,
    head: Head,
    may: May,
    groups: Vec<Group>,
    /// Whether there are more than are shown.
    cut: bool,
}

/// What was approved for one application.
struct Group {
    application: Uuid,
    name: String,
    website: String,
    verified: bool,
    rows: Vec<(Row, Approver)>,
}

impl Group {
    fn of(it: &Authorization) -> Self {
        let Authorization {
            client_id: application,
            verified,
            ..
        } = *it;
        Self {
            application,
            name: it.name.clone(),
            website: it.website.clone(),
            verified,
            rows: Vec::new(),
        }
    }

    fn size(&self) -> String {
        count(self.rows.len(), "approval")
    }
}

async fn authorized(
    visitor: Visitor,
    InOrganization(slug): InOrganization,
) -> Result<Answer, Error> {
    let head = Head::of(&visitor, slug).await?;
    let path = format!("/v1/organizations/{}/oauth/authorizations", head.slug);
    let may = visitor.may("GET", &path).await?;
    let found: Vec<MemberAuthorization> = if may.yes() {
        visitor.get(&path).await?
    } else {
        Vec::new()
    };
    let (frame, now) = (visitor.frame(), visitor.context.clock.now());
    let cut = i64::try_from(found.len()).is_ok_and(|found| found >= LIST_MAX);
    let mut groups: Vec<Group> = Vec::new();
    for MemberAuthorization {
        authorization: it,
        approved_by,
    } in found
    {
        let index = groups
            .iter()
            .position(|group| group.application == it.client_id)
            .unwrap_or(groups.len());
        if index == groups.len() {
            groups.push(Group::of(&it));
        }
        groups[index].rows.push((Row::new(it, now), approved_by));
    }
    Answer::page(&Authorized {
        frame,
        head,
        may,
        groups,
        cut,
    })
}

/// One approval, or all of an application.
#[derive(Deserialize)]
struct Which {
    id: Option<i64>,
    application: Option<Uuid>,
}

async fn end(
    visitor: Visitor,
    Form(which): Form<Which>,
    InOrganization(slug): InOrganization,
) -> Result<Answer, Error> {
    let base = format!("/v1/organizations/{slug}/oauth");
    match (which.id, which.application) {
        (Some(id), None) => {
            visitor
                .ask::<()>(Method::DELETE, &format!("{base}/authorizations/{id}"), None)
                .await?
        }
        (None, Some(id)) => {
            visitor
                .ask::<Value>(
                    Method::DELETE,
                    &format!("{base}/apps/{id}/authorizations"),
                    None,
                )
                .await?;
        }
        _ => {
            return Err(Error::invalid(
                "form",
                "expected an approval or an application",
            ));
        }
    }
    Answer::to(&format!("/organizations/{slug}/authorized?done=revoked"))
}
