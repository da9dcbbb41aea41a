//! The authorizations of OAuth applications by members of an organization, for administrators:
//! list and revoke.

use askama::Template;
use serde::Deserialize;
use uuid::Uuid;

use super::own_authorizations::Row;
use crate::{
    api::oauth::grants::{Approver, Authorization, LIST_MAX, MemberAuthorization},
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        labels::pluralize,
        organizations::header::OrganizationHeader,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathOrganization,
        permissions::PermissionCheck,
    },
};

const PATH: &str = "/organizations/{organization}/authorized";

pub(in crate::web) static MEMBER_AUTHORIZATIONS: Endpoint = page(
    "page-oauth-authorized",
    "Applications authorized by members",
    Verb::Get,
    PATH,
    || mount(list),
);
pub(in crate::web) static REVOKE_MEMBER_AUTHORIZATIONS: Endpoint = page(
    "page-oauth-authorized-end",
    "Revoke authorizations of members",
    Verb::Post,
    PATH,
    || mount(revoke),
);

#[derive(Template)]
#[template(path = "oauth_member_authorizations.html")]
struct Page {
    layout: Layout,
    head: OrganizationHeader,
    permission: PermissionCheck,
    groups: Vec<ApplicationGroup>,
    /// Whether the list was cut at [`LIST_MAX`].
    is_truncated: bool,
}

/// The authorizations of one application.
struct ApplicationGroup {
    application: Uuid,
    name: String,
    website: String,
    verified: bool,
    rows: Vec<(Row, Approver)>,
}

impl ApplicationGroup {
    fn new(authorization: &Authorization) -> Self {
        Self {
            application: authorization.client_id,
            name: authorization.name.clone(),
            website: authorization.website.clone(),
            verified: authorization.verified,
            rows: Vec::new(),
        }
    }

    fn count(&self) -> String {
        pluralize(self.rows.len(), "authorization")
    }
}

async fn list(
    visitor: Visitor,
    PathOrganization(slug): PathOrganization,
) -> Result<PageResponse, Error> {
    let head = OrganizationHeader::load(&visitor, slug).await?;
    let path = format!("/v1/organizations/{}/oauth/authorizations", head.slug);
    let permission = visitor.check("GET", &path).await?;
    let found: Vec<MemberAuthorization> = visitor.get_if(&permission, &path).await?;
    let now = visitor.context.clock.now();
    let is_truncated = i64::try_from(found.len()).is_ok_and(|found| found >= LIST_MAX);
    let mut groups: Vec<ApplicationGroup> = Vec::new();
    for MemberAuthorization {
        authorization,
        approved_by,
    } in found
    {
        let index = groups
            .iter()
            .position(|group| group.application == authorization.client_id)
            .unwrap_or(groups.len());
        if index == groups.len() {
            groups.push(ApplicationGroup::new(&authorization));
        }
        groups[index]
            .rows
            .push((Row::new(authorization, now), approved_by));
    }
    PageResponse::page(&Page {
        layout: visitor.layout(),
        head,
        permission,
        groups,
        is_truncated,
    })
}

/// Names one authorization or all of an application.
#[derive(Deserialize)]
struct RevokeForm {
    id: Option<i64>,
    application: Option<Uuid>,
}

async fn revoke(
    visitor: Visitor,
    SessionForm(form): SessionForm<RevokeForm>,
    PathOrganization(slug): PathOrganization,
) -> Result<PageResponse, Error> {
    let base = format!("/v1/organizations/{slug}/oauth");
    match (form.id, form.application) {
        (Some(id), None) => {
            visitor
                .delete(&format!("{base}/authorizations/{id}"))
                .await?;
        }
        (None, Some(id)) => {
            visitor
                .delete(&format!("{base}/apps/{id}/authorizations"))
                .await?;
        }
        _ => {
            return Err(Error::invalid(
                "form",
                "expected an authorization or an application",
            ));
        }
    }
    PageResponse::redirect(&format!("/organizations/{slug}/authorized?done=revoked"))
}
