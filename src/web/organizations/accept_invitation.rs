//! The page of an invitation link: shows the invitation and accepts it.

use askama::Template;
use chrono::{DateTime, Utc};
use gantry_base::ids::OrgSlug;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::roles::{RoleProject, role_label};
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::NoFields,
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathInvitation,
    },
};

/// Redirects to the sign-in page and back if the visitor is not signed in.
pub(in crate::web) static INVITATION: Endpoint = page(
    "page-invitation",
    "Invitation",
    Verb::Get,
    "/invitations/{invitation}",
    || mount(show),
);
pub(in crate::web) static ACCEPT_INVITATION: Endpoint = page(
    "page-accept-invitation",
    "Accept an invitation",
    Verb::Post,
    "/invitations/{invitation}",
    || mount(accept),
);

#[derive(Deserialize)]
struct InvitationOffer {
    organization_name: String,
    role: String,
    projects: Vec<RoleProject>,
    invited_by: String,
    expires_at: DateTime<Utc>,
}

impl InvitationOffer {
    fn role(&self) -> &'static str {
        role_label(&self.role)
    }
}

#[derive(Template)]
#[template(path = "invitation.html")]
struct InvitationPage {
    layout: Layout,
    email: String,
    /// The invitation and its expiry; empty if it is invalid or for another address.
    offer: Option<(InvitationOffer, Timestamp)>,
}

async fn show(
    visitor: Visitor,
    PathInvitation(token): PathInvitation,
) -> Result<PageResponse, Error> {
    let now = visitor.context.clock.now();
    let offer = match visitor
        .post::<InvitationOffer>("/v1/invitations/look", &json!({"token": token}))
        .await
    {
        Ok(offer) => {
            let expiry = Timestamp::new(offer.expires_at, now);
            Some((offer, expiry))
        }
        Err(Error::NotFound) => None,
        Err(error) => return Err(error),
    };
    let status = if offer.is_some() {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    let page = InvitationPage {
        layout: visitor.layout(),
        email: visitor.account.email.clone(),
        offer,
    };
    Ok(PageResponse::page(&page)?.status(status))
}

#[derive(Deserialize)]
struct AcceptedInvitation {
    organization_slug: OrgSlug,
}

async fn accept(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathInvitation(token): PathInvitation,
) -> Result<PageResponse, Error> {
    match visitor
        .post::<AcceptedInvitation>("/v1/invitations/accept", &json!({"token": token}))
        .await
    {
        Ok(accepted) => PageResponse::redirect(&format!(
            "/organizations/{}?done=joined",
            accepted.organization_slug
        )),
        Err(Error::NotFound) => show(visitor, PathInvitation(token)).await,
        Err(error) => Err(error),
    }
}
