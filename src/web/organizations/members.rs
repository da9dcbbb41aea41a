//! Who belongs to an organization.

use askama::Template;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::{Head, Listed, Member};
use crate::{
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Query, Verb, mount},
    },
    web::{Answer, Frame, Visitor, may::May, named::InOrganization, page},
};

pub(in crate::web) static MEMBERS: Endpoint = page(
    "page-members",
    "Members of an organization",
    Verb::Get,
    "/organizations/{organization}",
    Access::Caller,
    || mount(members),
);

/// Members on one page.
const PAGE: usize = 50;

#[derive(Template)]
#[template(path = "members.html")]
struct List {
    frame: Frame,
    head: Head,
    me: Uuid,
    members: Vec<Member>,
    /// Why nobody is shown.
    hidden: Option<String>,
    may_invite: May,
    /// Before the first of these, and after the last.
    before: Option<Uuid>,
    after: Option<Uuid>,
}

impl List {
    fn is_me(&self, member: &Member) -> bool {
        member.id == self.me
    }
}

#[derive(Deserialize, JsonSchema)]
struct Where {
    before: Option<Uuid>,
    after: Option<Uuid>,
}

async fn members(
    visitor: Visitor,
    InOrganization(slug): InOrganization,
    Query(place): Query<Where>,
) -> Result<Answer, Error> {
    let head = Head::of(&visitor, slug).await?;
    let base = format!("/v2/organizations/{}/members", head.slug);
    let may_see = visitor.may("GET", &base).await?;
    let may_invite = visitor.may("POST", &format!("{base}/invitations")).await?;
    let (mut members, mut before, mut after) = (Vec::new(), None, None);
    if may_see.yes() {
        let way = match (place.before, place.after) {
            (Some(id), _) => format!("&page%5Bbefore%5D={id}"),
            (None, Some(id)) => format!("&page%5Bafter%5D={id}"),
            (None, None) => String::new(),
        };
        let listed: Listed = visitor
            .get(&format!("{base}?page%5Bsize%5D={PAGE}{way}"))
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
    let hidden = (!may_see.yes()).then(|| may_see.why().to_owned());
    let (frame, me) = (visitor.frame(), visitor.account.gotrue_id);
    Answer::page(&List {
        frame,
        head,
        me,
        members,
        hidden,
        may_invite,
        before,
        after,
    })
}
