//! The page that asks a member whether an application may act for them.

use askama::Template;
use chrono::TimeDelta;
use http::{Method, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{words, words::Line};
use crate::{
    api::{
        oauth,
        oauth::{
            applications::Selection,
            redirect, requests,
            requests::{
                Request,
                operations::{Answer as Told, AuthId, Shown},
            },
        },
    },
    base::{
        error::Error,
        ids::{OrgSlug, ProjectRef},
    },
    platform::{
        access::{Access, Role, sessions, sessions::Ending},
        http::{Call, Endpoint, Input, Query, Verb, mount, openapi::OperationDoc},
    },
    web::{
        Answer, Form, Frame, Visitor, cookie, next, page,
        places::{Place, places},
        words::Moment,
    },
};

pub(in crate::web) static ASK: Endpoint = page(
    "page-oauth-ask",
    "Let an application act for you?",
    Verb::Get,
    oauth::CONSENT_PAGE,
    Access::Caller,
    || mount(ask),
);
pub(in crate::web) static ANSWER: Endpoint = page(
    "page-oauth-answer",
    "Answer an application",
    Verb::Post,
    oauth::CONSENT_PAGE,
    Access::Caller,
    || mount(answer),
);
pub(in crate::web) static SWITCH: Endpoint = page(
    "page-oauth-switch",
    "Answer an application as somebody else",
    Verb::Post,
    "/authorize/switch",
    Access::Caller,
    || mount(switch),
);
pub(in crate::web) static PROBLEM: Endpoint = page(
    "page-oauth-problem",
    "A request that cannot be answered",
    Verb::Get,
    oauth::PROBLEM_PAGE,
    Access::Public,
    || mount(problem),
);

/// Projects that stay chosen when the form is shown again: as many as an approval can name.
const PROJECTS_KEPT_MAX: usize = 100;

#[derive(Template)]
#[template(path = "oauth_consent.html")]
struct Consent {
    frame: Frame,
    id: Uuid,
    email: String,
    asks: Shown,
    lines: Vec<Line>,
    places: Vec<Place>,
    /// The one that is chosen, by its place in the list.
    chosen: Option<usize>,
    /// What the member is there.
    role: Option<Role>,
    projects: Vec<String>,
    whole: bool,
    left: Moment,
    wrong: Option<&'static str>,
}

impl Consent {
    fn place(&self) -> Option<&Place> {
        self.chosen.and_then(|chosen| self.places.get(chosen))
    }

    fn is_chosen(&self, place: &Place) -> bool {
        self.place()
            .is_some_and(|chosen| chosen.organization.slug == place.organization.slug)
    }

    /// Whether there is nothing that could be allowed.
    fn asks_nothing(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether the member's role is too low to give this away.
    fn too_low(&self) -> bool {
        !self.asks.bind_to_authorizing_user
            && self.role.is_none_or(|role| role < Role::Administrator)
    }

    fn above(&self) -> bool {
        self.asks.bind_to_authorizing_user && self.lines.iter().any(|line| line.above)
    }

    fn is_local(&self) -> bool {
        self.asks.domain == redirect::THIS_COMPUTER
    }

    fn chooses_projects(&self) -> bool {
        self.asks.project_selection != Selection::Off
    }

    fn may_be_whole(&self) -> bool {
        self.asks.project_selection == Selection::Optional
    }

    fn role_name(&self) -> &'static str {
        self.role.map_or("none", Role::label)
    }
}

#[derive(Template)]
#[template(path = "oauth_receipt.html")]
struct Receipt {
    frame: Frame,
    name: String,
    domain: String,
    lines: Vec<Line>,
    approved: bool,
}

#[derive(Template)]
#[template(path = "oauth_problem.html")]
struct Problem {
    frame: Frame,
    title: &'static str,
    text: &'static str,
}

async fn ask(
    visitor: Visitor,
    Query(which): Query<AuthId>,
    wanted: Wanted,
) -> Result<Answer, Error> {
    let Some(request) = open(&visitor, which.auth_id).await? else {
        return over(visitor.frame());
    };
    if request.done {
        return receipt(&visitor, &request);
    }
    show(&visitor, &request, wanted).await
}

/// The request, if this browser session is the one that opened it first.
async fn open(visitor: &Visitor, id: Uuid) -> Result<Option<Request>, Error> {
    match requests::open(
        &visitor.context.db,
        id,
        &visitor.secret.digest(),
        visitor.context.clock.now(),
    )
    .await
    {
        Ok(request) => Ok(Some(request)),
        Err(Error::NotFound) => Ok(None),
        Err(other) => Err(other),
    }
}

fn over(frame: Frame) -> Result<Answer, Error> {
    let (title, text) = (
        "This request is over",
        "It was open for ten minutes, or in another browser. Nothing was allowed. Go back to the application, and begin again from there.",
    );
    Ok(Answer::page(&Problem { frame, title, text })?.status(StatusCode::GONE))
}

fn receipt(visitor: &Visitor, request: &Request) -> Result<Answer, Error> {
    Answer::page(&Receipt {
        frame: visitor.frame(),
        name: request.application.name.clone(),
        domain: redirect::shown(&request.redirect_uri),
        lines: words::lines(request.scopes.names(), None),
        approved: request.approved_at.is_some(),
    })
}

/// The choices of the form so far. They stand in the address of the page, so that a form that cannot be accepted leads back to
/// the page instead of being answered with one: a browser that goes back to such an answer would send the form again.
#[derive(Default)]
struct Wanted {
    organization: Option<String>,
    projects: Vec<String>,
    whole: bool,
    /// The reason why the choices were refused.
    wrong: Option<Wrong>,
}

/// A reason that a form is shown again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// No project is chosen.
    NoProject,
    /// The projects that are chosen cannot be.
    Projects,
    /// The application has none of the scopes any more.
    NoScope,
}

impl Wrong {
    const ALL: [Self; 3] = [Self::NoProject, Self::Projects, Self::NoScope];

    /// Its word in the address.
    fn word(self) -> &'static str {
        match self {
            Self::NoProject => "no-project",
            Self::Projects => "projects",
            Self::NoScope => "no-scope",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NoProject => "Choose at least one project.",
            Self::Projects => "Choose 1 to 100 projects of this organization.",
            Self::NoScope => requests::NOTHING_LEFT,
        }
    }
}

impl Wanted {
    /// The page with these choices.
    fn page(&self, id: Uuid) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("auth_id", &id.to_string());
        query.extend_pairs(self.organization.iter().map(|slug| ("organization", slug)));
        query.extend_pairs(self.projects.iter().map(|reference| ("project", reference)));
        if self.whole {
            query.append_pair("reach", "all");
        }
        query.extend_pairs(self.wrong.map(|wrong| ("wrong", wrong.word())));
        format!("{}?{}", oauth::CONSENT_PAGE, query.finish())
    }
}

impl Input for Wanted {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let mut wanted = Self::default();
        for (name, value) in
            form_urlencoded::parse(call.uri().query().unwrap_or_default().as_bytes())
        {
            match &*name {
                "organization" => wanted.organization = Some(value.into_owned()),
                "project" => wanted.projects.push(value.into_owned()),
                "reach" => wanted.whole = value == "all",
                "wrong" => {
                    wanted.wrong = Wrong::ALL.into_iter().find(|wrong| wrong.word() == value)
                }
                _ => {}
            }
        }
        Ok(wanted)
    }
}

async fn show(visitor: &Visitor, request: &Request, wanted: Wanted) -> Result<Answer, Error> {
    let asks: Shown = visitor
        .get(&format!("/platform/oauth/authorizations/{}", request.id))
        .await?;
    let places = places(visitor).await?;
    let by_project = asks
        .project_ref
        .as_ref()
        .and_then(|wanted| places.iter().position(|place| place.has(wanted)));
    let named = wanted
        .organization
        .as_ref()
        .or(asks.organization_slug.as_ref());
    let named = named.and_then(|slug| {
        places
            .iter()
            .position(|place| place.organization.slug == *slug)
    });
    let chosen = named
        .or(by_project)
        .or(if places.is_empty() { None } else { Some(0) });
    let role = match chosen.and_then(|chosen| places.get(chosen)) {
        Some(place) => Some(
            visitor
                .may(
                    "GET",
                    &format!("/v1/organizations/{}", place.organization.slug),
                )
                .await?
                .role,
        ),
        None => None,
    };
    let projects = if wanted.projects.is_empty() {
        asks.project_ref.iter().cloned().collect()
    } else {
        wanted.projects
    };
    let page = Consent {
        frame: visitor.frame().of(oauth::CONSENT_PAGE),
        id: request.id,
        email: visitor.account.email.clone(),
        lines: words::lines(asks.scopes.iter().map(String::as_str), role),
        left: Moment::new(
            asks.expires_at,
            visitor.context.clock.now() - TimeDelta::seconds(59),
        ),
        asks,
        places,
        chosen,
        role,
        projects,
        whole: wanted.whole,
        wrong: wanted
            .wrong
            .or(request.scopes.is_empty().then_some(Wrong::NoScope))
            .map(Wrong::text),
    };
    Ok(Answer::page(&page)?.leading_to(redirect::origin(&request.redirect_uri).as_deref()))
}

/// Refusing needs nothing but the request; approving goes through the operation, whose rules are the only ones. Whatever comes
/// of it, the answer leads on: to the application, or back to the page.
async fn answer(
    visitor: Visitor,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Answer, Error> {
    let all = |wanted: &str| {
        fields
            .iter()
            .filter(|(name, _)| name == wanted)
            .map(|(_, value)| value.clone())
            .collect::<Vec<_>>()
    };
    let one = |wanted: &str| all(wanted).into_iter().next().unwrap_or_default();
    let id = Uuid::try_parse(&one("auth_id")).map_err(|_| Error::NotFound)?;
    let page = Wanted::default().page(id);
    let Some(request) = open(&visitor, id).await?.filter(|request| !request.done) else {
        return Answer::to(&page);
    };
    if one("decision") != "approve" {
        let told = visitor
            .ask(
                Method::DELETE,
                &format!("/platform/oauth/authorizations/{id}"),
                None,
            )
            .await;
        return away(&page, told);
    }
    let slug = one("organization");
    if slug.parse::<OrgSlug>().is_err() {
        return Err(Error::NotFound);
    }
    let whole = request.application.selection == Selection::Off || one("reach") == "all";
    let projects = all("project");
    let body = if whole {
        json!({})
    } else {
        json!({"project_refs": projects})
    };
    let path = format!("/platform/organizations/{slug}/oauth/authorizations/{id}");
    match visitor.ask(Method::POST, &path, Some(&body)).await {
        Err(Error::Invalid { .. }) => {
            let wrong = Some(if projects.is_empty() {
                Wrong::NoProject
            } else {
                Wrong::Projects
            });
            let projects = projects
                .into_iter()
                .filter(|it| it.parse::<ProjectRef>().is_ok())
                .take(PROJECTS_KEPT_MAX)
                .collect();
            Answer::to(
                &Wanted {
                    organization: Some(slug),
                    projects,
                    whole,
                    wrong,
                }
                .page(id),
            )
        }
        told => away(&page, told),
    }
}

/// To the application, with the answer. A request that was answered already, or is over, leads to its page, which says so.
fn away(page: &str, told: Result<Told, Error>) -> Result<Answer, Error> {
    match told {
        Ok(told) => Answer::away(&told.url),
        Err(Error::Rejected(_)) => Answer::to(page),
        Err(other) => Err(other),
    }
}

/// Gives the request free for whoever signs in next, and signs out.
async fn switch(visitor: Visitor, Form(which): Form<AuthId>) -> Result<Answer, Error> {
    let digest = visitor.secret.digest();
    requests::release(&visitor.context.db, which.auth_id, &digest).await?;
    sessions::end(
        &visitor.context.db,
        visitor.user.id,
        Ending::This(&digest),
        visitor.context.clock.now(),
    )
    .await?;
    let back = next::sign_in(&format!(
        "{}?auth_id={}",
        oauth::CONSENT_PAGE,
        which.auth_id
    ));
    Ok(Answer::to(&back)?.with(header::SET_COOKIE, cookie::clear(visitor.peer)?))
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Why {
    #[serde(default)]
    why: String,
}

async fn problem(Query(why): Query<Why>) -> Result<Answer, Error> {
    let (title, text) = if why.why == "client" {
        (
            "This application is unknown",
            "The link that led here names no application that is registered on this server. Nothing was allowed, and nothing was told to anybody.",
        )
    } else {
        (
            "This link is not right",
            "It names an address that the application did not register, or contradicts itself. Nothing was allowed, and nothing was told to anybody. Who made the link can mend it.",
        )
    };
    Ok(Answer::page(&Problem {
        frame: Frame::anonymous(),
        title,
        text,
    })?
    .status(StatusCode::BAD_REQUEST))
}
