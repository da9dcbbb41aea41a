//! Becoming a member by an invitation's link.

use askama::Template;
use chrono::{DateTime, Utc};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::{OnProject, label};
use crate::{
    base::{error::Error, ids::OrgSlug},
    platform::{
        access::Access,
        http::{Call, Endpoint, Input, Verb, mount, openapi::OperationDoc},
    },
    web::{Answer, Form, Frame, Visitor, page, words::Moment},
};

/// Who is not signed in is led through the sign-in, and back.
pub(in crate::web) static OFFER: Endpoint = page(
    "page-invitation",
    "An invitation",
    Verb::Get,
    "/invitations/{invitation}",
    Access::Caller,
    || mount(offer),
);
pub(in crate::web) static ACCEPT: Endpoint = page(
    "page-accept-invitation",
    "Accept an invitation",
    Verb::Post,
    "/invitations/{invitation}",
    Access::Caller,
    || mount(accept),
);

/// What the path shows.
struct Shown(String);

impl Input for Shown {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("invitation")
            .map(|token| Self(token.to_owned()))
            .ok_or(Error::NotFound)
    }
}

#[derive(Deserialize)]
struct Offered {
    organization_name: String,
    role: String,
    projects: Vec<OnProject>,
    invited_by: String,
    expires_at: DateTime<Utc>,
}

impl Offered {
    fn role(&self) -> &'static str {
        label(&self.role)
    }
}

#[derive(Template)]
#[template(path = "invitation.html")]
struct Offer {
    frame: Frame,
    email: String,
    offered: Option<(Offered, Moment)>,
}

async fn offer(visitor: Visitor, Shown(token): Shown) -> Result<Answer, Error> {
    let now = visitor.context.clock.now();
    let offered = match visitor
        .ask::<Offered>(
            Method::POST,
            "/v1/invitations/look",
            Some(&json!({"token": token})),
        )
        .await
    {
        Ok(offered) => Some(offered),
        Err(Error::NotFound) => None,
        Err(error) => return Err(error),
    };
    let with_end = |offered: Offered| {
        let ends = Moment::new(offered.expires_at, now);
        (offered, ends)
    };
    let offered = offered.map(with_end);
    let status = if offered.is_some() {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    let page = Offer {
        frame: visitor.frame(),
        email: visitor.account.email.clone(),
        offered,
    };
    Ok(Answer::page(&page)?.status(status))
}

#[derive(Deserialize)]
struct Nothing {}

#[derive(Deserialize)]
struct Accepted {
    organization_slug: OrgSlug,
}

async fn accept(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    Shown(token): Shown,
) -> Result<Answer, Error> {
    match visitor
        .ask::<Accepted>(
            Method::POST,
            "/v1/invitations/accept",
            Some(&json!({"token": token})),
        )
        .await
    {
        Ok(accepted) => Answer::to(&format!(
            "/organizations/{}?done=joined",
            accepted.organization_slug
        )),
        Err(Error::NotFound) => offer(visitor, Shown(token)).await,
        Err(error) => Err(error),
    }
}
