//! The members of an organization.

use askama::Template;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::{
    header::OrganizationHeader,
    roles::{MemberEntry, MemberList},
};
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Query, Verb, mount},
    },
    web::{
        page::{Layout, PageResponse, Visitor, page},
        path::PathOrganization,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static MEMBERS: Endpoint = page(
    "page-members",
    "Members of an organization",
    Verb::Get,
    "/organizations/{organization}",
    || mount(members),
);

/// Members per page.
const PAGE_MEMBERS: usize = 50;

#[derive(Template)]
#[template(path = "members.html")]
struct Page {
    layout: Layout,
    head: OrganizationHeader,
    visitor_id: Uuid,
    members: Vec<MemberEntry>,
    /// The reason that the visitor may not list members.
    hidden: Option<String>,
    can_invite: PermissionCheck,
    /// Cursors of the previous and the next page.
    before: Option<Uuid>,
    after: Option<Uuid>,
}

impl Page {
    fn is_visitor(&self, member: &MemberEntry) -> bool {
        member.id == self.visitor_id
    }
}

#[derive(Deserialize, JsonSchema)]
struct MembersQuery {
    before: Option<Uuid>,
    after: Option<Uuid>,
}

async fn members(
    visitor: Visitor,
    PathOrganization(slug): PathOrganization,
    Query(query): Query<MembersQuery>,
) -> Result<PageResponse, Error> {
    let head = OrganizationHeader::load(&visitor, slug).await?;
    let base = format!("/v2/organizations/{}/members", head.slug);
    let can_list = visitor.check("GET", &base).await?;
    let can_invite = visitor
        .check("POST", &format!("{base}/invitations"))
        .await?;
    let mut members = Vec::new();
    let mut before = None;
    let mut after = None;
    if can_list.is_allowed() {
        let position = match (query.before, query.after) {
            (Some(id), _) => format!("&page%5Bbefore%5D={id}"),
            (None, Some(id)) => format!("&page%5Bafter%5D={id}"),
            (None, None) => String::new(),
        };
        let listed: MemberList = visitor
            .get(&format!("{base}?page%5Bsize%5D={PAGE_MEMBERS}{position}"))
            .await?;
        before = listed
            .links
            .prev
            .and(listed.data.first())
            .map(|member| member.id);
        after = listed
            .links
            .next
            .and(listed.data.last())
            .map(|member| member.id);
        members = listed.data;
    }
    let hidden = can_list.refusal();
    PageResponse::page(&Page {
        layout: visitor.layout(),
        head,
        visitor_id: visitor.account.gotrue_id,
        members,
        hidden,
        can_invite,
        before,
        after,
    })
}
