//! Making a scoped token: the form, looking it over, and making it.

use askama::Template;
use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Made,
    catalogue::{GROUPS, Group, Row},
    store,
    wanted::{Wanted, Wrong},
};
use crate::{
    base::error::{Context, Error},
    platform::{
        access::{Access, Role},
        http::{Call, Endpoint, Input, Query, Verb, mount, openapi::OperationDoc},
    },
    web::{
        Answer, Form, Frame, Visitor, page,
        places::{Place, places},
        words::Moment,
    },
};

pub(in crate::web) static NEW: Endpoint = page(
    "page-new-token",
    "New access token",
    Verb::Get,
    "/account/tokens/new",
    Access::Caller,
    || mount(new),
);
pub(in crate::web) static DRAFT: Endpoint = page(
    "page-draft-token",
    "Fill in an access token",
    Verb::Post,
    "/account/tokens/new",
    Access::Caller,
    || mount(fill_in),
);
pub(in crate::web) static REVIEW: Endpoint = page(
    "page-review-token",
    "Look an access token over",
    Verb::Get,
    "/account/tokens/review/{draft}",
    Access::Caller,
    || mount(review),
);
pub(in crate::web) static CREATE: Endpoint = page(
    "page-create-token",
    "Make an access token",
    Verb::Post,
    "/account/tokens/review/{draft}",
    Access::Caller,
    || mount(create),
);

/// Organizations whose roles are asked for; what is beyond is decided when the token is used.
const ROLES_MAX: usize = 10;

#[derive(Template)]
#[template(path = "token_new.html")]
struct NewToken {
    frame: Frame,
    wanted: Wanted,
    wrong: Wrong,
    places: Places,
    role: Role,
    last_day: String,
    groups: &'static [Group],
}

impl NewToken {
    /// Why a level of a row would be of no use.
    fn above(&self, row: &Row, level: &str) -> Option<String> {
        let needed = Row::role(if level == "read" { row.read } else { row.write });
        (needed > self.role).then(|| {
            format!(
                "Needs the role {}; yours is {}.",
                needed.label(),
                self.role.label()
            )
        })
    }

    fn found(&self, row: &Row) -> bool {
        let text = self.wanted.search.trim().to_lowercase();
        text.is_empty()
            || row.label.to_lowercase().contains(&text)
            || row.granted("write").any(|it| it.name().contains(&text))
    }
}

/// What a token can be for.
struct Places {
    organizations: Vec<Place>,
}

impl Places {
    async fn of(visitor: &Visitor) -> Result<Self, Error> {
        Ok(Self {
            organizations: places(visitor).await?,
        })
    }

    /// Names of what a token is to reach.
    fn reached<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = &'a str> {
        self.organizations.iter().flat_map(move |place| {
            let whole = (wanted.reach == "organizations"
                && wanted.organizations.contains(&place.organization.slug))
            .then_some(place.organization.name.as_str());
            let projects = place.projects.iter().filter(move |it| {
                wanted.reach == "projects" && wanted.projects.contains(&it.reference)
            });
            whole
                .into_iter()
                .chain(projects.map(|project| project.name.as_str()))
        })
    }

    /// Whether a token is to reach something of it. Of a form in which nothing is chosen yet, everything counts.
    fn counts(place: &Place, wanted: &Wanted) -> bool {
        match wanted.reach.as_str() {
            "organizations" => {
                wanted.organizations.is_empty()
                    || wanted.organizations.contains(&place.organization.slug)
            }
            "projects" => {
                wanted.projects.is_empty()
                    || place
                        .projects
                        .iter()
                        .any(|it| wanted.projects.contains(&it.reference))
            }
            _ => true,
        }
    }
}

/// A page of members, as far as it is read here.
#[derive(Deserialize)]
struct Members {
    data: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    attributes: Roles,
}

#[derive(Deserialize)]
struct Roles {
    roles: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// The visitor's highest role on what the token is to reach. It only says what is of no use: each request is decided by the
/// role at that time. Where it cannot be found out, nothing is said.
async fn role(visitor: &Visitor, places: &Places, wanted: &Wanted) -> Result<Role, Error> {
    let mut highest = Role::Member;
    let email =
        form_urlencoded::byte_serialize(visitor.account.email.as_bytes()).collect::<String>();
    for place in places
        .organizations
        .iter()
        .filter(|place| Places::counts(place, wanted))
        .take(ROLES_MAX)
    {
        let path = format!(
            "/v2/organizations/{}/members?filter%5Bprimary_email%5D={email}",
            place.organization.slug
        );
        let members: Members = match visitor.get(&path).await {
            Ok(members) => members,
            Err(Error::Forbidden(_)) => return Ok(Role::Owner),
            Err(error) => return Err(error),
        };
        let roles = members
            .data
            .iter()
            .flat_map(|member| &member.attributes.roles);
        highest = roles
            .filter_map(|role| role.name.parse().ok())
            .max()
            .unwrap_or(highest)
            .max(highest);
    }
    Ok(highest)
}

async fn show(
    visitor: &Visitor,
    status: StatusCode,
    wanted: Wanted,
    wrong: Wrong,
) -> Result<Answer, Error> {
    let places = Places::of(visitor).await?;
    let role = role(visitor, &places, &wanted).await?;
    let (frame, last_day) = (
        visitor.frame().of("/account/tokens/new"),
        Wanted::last_day(visitor.context.clock.now()),
    );
    Ok(Answer::page(&NewToken {
        frame,
        wanted,
        wrong,
        places,
        role,
        last_day,
        groups: GROUPS,
    })?
    .status(status))
}

#[derive(Deserialize, JsonSchema)]
struct Again {
    /// A draft to change.
    draft: Option<Uuid>,
}

async fn new(visitor: Visitor, Query(again): Query<Again>) -> Result<Answer, Error> {
    let wanted = match again.draft {
        Some(draft) => read(store::look(&visitor, draft).await?)?,
        None => Wanted::new(),
    };
    show(&visitor, StatusCode::OK, wanted, Wrong::default()).await
}

fn read<T: DeserializeOwned>(draft: Value) -> Result<T, Error> {
    serde_json::from_value(draft).context("reading the draft of a token")
}

/// One form, and what was pressed in it: a preset, the search, or going on.
async fn fill_in(
    visitor: Visitor,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Answer, Error> {
    visitor.only_looks();
    let pressed = fields
        .iter()
        .find(|(name, _)| matches!(name.as_str(), "preset" | "find"))
        .cloned();
    let mut wanted = Wanted::of(fields);
    if let Some((button, value)) = pressed {
        if button == "preset" {
            let places = Places::of(&visitor).await?;
            let role = role(&visitor, &places, &wanted).await?;
            wanted.preset(&value, role);
        }
        return show(&visitor, StatusCode::OK, wanted, Wrong::default()).await;
    }
    let now = visitor.context.clock.now();
    if let Err(wrong) = wanted.check(now) {
        return show(&visitor, StatusCode::UNPROCESSABLE_ENTITY, wanted, *wrong).await;
    }
    // The operation's own rules, before there is anything to look over.
    let mut tried = wanted.draft();
    (tried["method"], tried["path"]) = ("GET".into(), "/v1/projects".into());
    match visitor
        .ask::<Value>(Method::POST, "/v1/tokens/simulate", Some(&tried))
        .await
    {
        Ok(_) => {}
        Err(error) => return refused(&visitor, wanted, error).await,
    }
    let draft = serde_json::to_value(&wanted).context("keeping the draft of a token")?;
    Answer::to(&format!(
        "/account/tokens/review/{}",
        store::keep(&visitor, &draft, now).await?
    ))
}

/// The form again, with what the operation says is wrong.
async fn refused(visitor: &Visitor, wanted: Wanted, error: Error) -> Result<Answer, Error> {
    let wrong = match error {
        Error::Invalid { field, problem } => Wrong::said(&field, problem.into_owned()),
        Error::Rejected(text) => Wrong::said("", text.into_owned()),
        error => return Err(error),
    };
    show(visitor, StatusCode::UNPROCESSABLE_ENTITY, wanted, wrong).await
}

/// The draft the path names.
struct Draft(Uuid);

impl Input for Draft {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("draft")
            .and_then(|id| id.parse().ok())
            .map(Self)
            .ok_or(Error::NotFound)
    }
}

#[derive(Template)]
#[template(path = "token_review.html")]
struct Review {
    frame: Frame,
    draft: Uuid,
    wanted: Wanted,
    reached: Vec<String>,
    ends: Moment,
    groups: Vec<(&'static str, Vec<Granted>)>,
    /// The role, if some of it is above.
    below: Option<&'static str>,
    count: usize,
}

/// A row that is granted.
struct Granted {
    row: &'static Row,
    writes: bool,
    above: bool,
}

impl Granted {
    /// What can go wrong with what is granted.
    fn risk(&self) -> Option<&'static str> {
        self.row
            .risk
            .filter(|risk| self.writes || !risk.starts_with("Writing"))
    }
}

/// What would be made.
async fn review(visitor: Visitor, Draft(draft): Draft) -> Result<Answer, Error> {
    let wanted: Wanted = read(store::look(&visitor, draft).await?)?;
    let now = visitor.context.clock.now();
    let ends = Moment::new(wanted.ends(now).ok_or(Error::NotFound)?, now);
    let places = Places::of(&visitor).await?;
    let role = role(&visitor, &places, &wanted).await?;
    let granted = |row: &'static Row| {
        let permissions: Vec<_> = row
            .granted(wanted.level(row))
            .filter(|it| wanted.covers(*it))
            .collect();
        let writes = permissions.iter().any(|it| row.write.contains(it));
        (!permissions.is_empty()).then(|| Granted {
            row,
            writes,
            above: Row::role(&permissions) > role,
        })
    };
    let groups = GROUPS.iter().map(|group| {
        (
            group.title,
            group.rows.iter().filter_map(granted).collect::<Vec<_>>(),
        )
    });
    let groups: Vec<_> = groups.filter(|(_, rows)| !rows.is_empty()).collect();
    let below = groups
        .iter()
        .any(|(_, rows)| rows.iter().any(|it| it.above))
        .then(|| role.label());
    let reached = places.reached(&wanted).map(str::to_owned).collect();
    let (frame, count) = (
        visitor.frame().of("/account/tokens/new"),
        wanted.permissions().len(),
    );
    Answer::page(&Review {
        frame,
        draft,
        wanted,
        reached,
        ends,
        groups,
        below,
        count,
    })
}

#[derive(Deserialize)]
struct Nothing {}

/// Makes it, and leads to the page that shows it once.
async fn create(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    Draft(draft): Draft,
) -> Result<Answer, Error> {
    let wanted: Wanted = read(store::take(&visitor, draft).await?)?;
    let now = visitor.context.clock.now();
    let mut body = wanted.draft();
    (body["name"], body["expires_at"]) = (wanted.name.trim().into(), json!(wanted.ends(now)));
    let made: Made = match visitor.ask(Method::POST, "/v1/tokens", Some(&body)).await {
        Ok(made) => made,
        Err(error) => return refused(&visitor, wanted, error).await,
    };
    store::hide(&visitor, made.id(), &made.token, now).await?;
    Answer::to(&format!("/account/tokens/{}", made.id()))
}
