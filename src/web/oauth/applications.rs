//! An organization's applications: registering, changing, secrets, deleting.

use askama::Template;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{words, words::Line};
use crate::{
    api::oauth::applications::{
        Selection,
        operations::{CreatedSecret, Detail, Shown},
        secrets::Secret,
    },
    base::{error::Error, ids::OrgSlug},
    platform::{
        access::{Access, OauthScope, Role},
        http::{Call, Endpoint, Input, Verb, mount, openapi::OperationDoc},
    },
    web::{
        Answer, Form, Frame, Visitor, may::May, named::InOrganization, organizations::Head, page,
        words::Moment,
    },
};

const ALL: &str = "/organizations/{organization}/applications";
const ONE: &str = "/organizations/{organization}/applications/{application}";

pub(in crate::web) static LIST: Endpoint = page(
    "page-oauth-applications",
    "Applications",
    Verb::Get,
    ALL,
    Access::Caller,
    || mount(list),
);
pub(in crate::web) static NEW: Endpoint = page(
    "page-oauth-application-new",
    "Register an application",
    Verb::Get,
    "/organizations/{organization}/applications/new",
    Access::Caller,
    || mount(new),
);
pub(in crate::web) static CREATE: Endpoint = page(
    "page-oauth-application-create",
    "Register an application",
    Verb::Post,
    ALL,
    Access::Caller,
    || mount(create),
);
pub(in crate::web) static SHOW: Endpoint = page(
    "page-oauth-application",
    "An application",
    Verb::Get,
    ONE,
    Access::Caller,
    || mount(show),
);
pub(in crate::web) static CHANGE: Endpoint = page(
    "page-oauth-application-change",
    "Change an application",
    Verb::Post,
    ONE,
    Access::Caller,
    || mount(change),
);
pub(in crate::web) static ADD_SECRET: Endpoint = page(
    "page-oauth-secret-create",
    "Make a secret",
    Verb::Post,
    "/organizations/{organization}/applications/{application}/secrets",
    Access::Caller,
    || mount(add_secret),
);
pub(in crate::web) static REVOKE_SECRET: Endpoint = page(
    "page-oauth-secret-revoke",
    "Revoke a secret",
    Verb::Post,
    "/organizations/{organization}/applications/{application}/secrets/revoke",
    Access::Caller,
    || mount(revoke_secret),
);
pub(in crate::web) static ASK_DELETE: Endpoint = page(
    "page-oauth-application-ask-delete",
    "Delete an application?",
    Verb::Get,
    "/organizations/{organization}/applications/{application}/delete",
    Access::Caller,
    || mount(ask_delete),
);
pub(in crate::web) static DELETE: Endpoint = page(
    "page-oauth-application-delete",
    "Delete an application",
    Verb::Post,
    "/organizations/{organization}/applications/{application}/delete",
    Access::Caller,
    || mount(delete),
);

/// What the address names. Whether it is there, and the visitor's, the operations know.
struct Named {
    slug: OrgSlug,
    application: Option<Uuid>,
}

impl Named {
    /// Where the operations on all of them are.
    fn all(&self) -> String {
        format!("/v1/organizations/{}/oauth/apps", self.slug)
    }

    /// Where those on the one are.
    fn operation(&self, rest: &str) -> Result<String, Error> {
        let id = self.application.ok_or(Error::NotFound)?;
        Ok(format!("{}/{id}{rest}", self.all()))
    }

    /// Where the page is.
    fn page(&self, rest: &str) -> String {
        let id = self
            .application
            .map(|id| format!("/{id}"))
            .unwrap_or_default();
        format!("/organizations/{}/applications{id}{rest}", self.slug)
    }
}

impl Input for Named {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let InOrganization(slug) = InOrganization::take(call).await?;
        Ok(Self {
            slug,
            application: call
                .placeholder("application")
                .and_then(|id| Uuid::try_parse(id).ok()),
        })
    }
}

#[derive(Template)]
#[template(path = "oauth_applications.html")]
struct Applications {
    frame: Frame,
    head: Head,
    /// Whether the visitor may register one.
    may: May,
    rows: Vec<Shown>,
}

async fn list(visitor: Visitor, named: Named) -> Result<Answer, Error> {
    let path = named.all();
    let rows = visitor.get(&path).await?;
    let (may, head) = (
        visitor.may("POST", &path).await?,
        Head::of(&visitor, named.slug).await?,
    );
    Answer::page(&Applications {
        frame: visitor.frame(),
        head,
        may,
        rows,
    })
}

/// The fields of the form.
#[derive(Default)]
struct Wanted {
    name: String,
    website: String,
    icon: String,
    redirect_uris: String,
    scopes: Vec<String>,
    public: bool,
    bound: bool,
    selection: String,
}

impl Wanted {
    fn read(fields: Vec<(String, String)>) -> Self {
        let mut wanted = Self::default();
        for (name, value) in fields {
            match name.as_str() {
                "name" => wanted.name = value.trim().to_owned(),
                "website" => wanted.website = value.trim().to_owned(),
                "icon" => wanted.icon = value.trim().to_owned(),
                "redirect_uris" => wanted.redirect_uris = value,
                "scope" => wanted.scopes.push(value),
                "public" => wanted.public = true,
                "bound" => wanted.bound = true,
                "selection" => wanted.selection = value,
                _ => {}
            }
        }
        wanted
    }

    fn of(application: &Shown) -> Self {
        Self {
            name: application.name.clone(),
            website: application.website.clone(),
            icon: application.icon.clone().unwrap_or_default(),
            redirect_uris: application.redirect_uris.join("\n"),
            scopes: application.scopes.clone(),
            public: application.public,
            bound: application.bind_to_authorizing_user,
            selection: application.project_selection.name().to_owned(),
        }
    }

    /// As the operations take it.
    fn body(&self) -> Value {
        let addresses: Vec<_> = self.redirect_uris.split_whitespace().collect();
        json!({
            "name": self.name, "website": self.website, "icon": self.icon, "redirect_uris": addresses, "scopes": self.scopes,
            "bind_to_authorizing_user": self.bound, "project_selection": self.selection,
        })
    }
}

#[derive(Template)]
#[template(path = "oauth_application_new.html")]
struct New {
    frame: Frame,
    slug: OrgSlug,
    /// Whether the visitor may register or change it.
    may: May,
    wanted: Wanted,
    scopes: Vec<Line>,
    wrong: Option<String>,
    /// What an application is already that is changed.
    is: Option<Shown>,
    action: String,
    secrets: Vec<SecretRow>,
    authorizations: i64,
}

struct SecretRow {
    secret: Secret,
    made: Moment,
    used: Option<Moment>,
}

impl New {
    fn restricted(&self, selection: &str) -> bool {
        let rank = |name: &str| {
            ["off", "optional", "required"]
                .iter()
                .position(|known| *known == name)
        };
        self.is
            .as_ref()
            .is_some_and(|is| rank(selection) < rank(is.project_selection.name()))
    }

    fn asks(&self, line: &Line) -> bool {
        self.wanted.scopes.iter().any(|scope| scope == line.name)
    }

    fn is_verified(&self) -> bool {
        self.is.as_ref().is_some_and(|is| is.verified)
    }

    fn is_bound(&self) -> bool {
        self.is
            .as_ref()
            .is_some_and(|is| is.bind_to_authorizing_user)
    }
}

fn scopes() -> Vec<Line> {
    words::lines(
        OauthScope::ALL.iter().map(|scope| scope.name()),
        None::<Role>,
    )
}

async fn new(visitor: Visitor, named: Named) -> Result<Answer, Error> {
    let wanted = Wanted {
        bound: true,
        selection: Selection::Off.name().to_owned(),
        ..Wanted::default()
    };
    blank(&visitor, named, wanted, None).await
}

async fn blank(
    visitor: &Visitor,
    named: Named,
    wanted: Wanted,
    wrong: Option<String>,
) -> Result<Answer, Error> {
    let status = if wrong.is_some() {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::OK
    };
    let may = visitor.may("POST", &named.all()).await?;
    let (frame, action) = (visitor.frame(), named.page(""));
    let (secrets, slug) = (Vec::new(), named.slug);
    let page = New {
        frame,
        slug,
        may,
        wanted,
        scopes: scopes(),
        wrong,
        is: None,
        action,
        secrets,
        authorizations: 0,
    };
    Ok(Answer::page(&page)?.status(status))
}

async fn create(
    visitor: Visitor,
    Form(fields): Form<Vec<(String, String)>>,
    named: Named,
) -> Result<Answer, Error> {
    let wanted = Wanted::read(fields);
    let mut body = wanted.body();
    body["public"] = wanted.public.into();
    match visitor
        .ask::<Shown>(Method::POST, &named.all(), Some(&body))
        .await
    {
        Ok(made) => Answer::to(&format!(
            "{}?done=registered",
            Named {
                application: Some(made.id),
                ..named
            }
            .page("")
        )),
        Err(error @ (Error::Invalid { .. } | Error::Rejected(_))) => {
            blank(&visitor, named, wanted, Some(error.message().into_owned())).await
        }
        Err(other) => Err(other),
    }
}

async fn show(visitor: Visitor, named: Named) -> Result<Answer, Error> {
    filled(&visitor, named, None, None).await
}

async fn filled(
    visitor: &Visitor,
    named: Named,
    wanted: Option<Wanted>,
    wrong: Option<String>,
) -> Result<Answer, Error> {
    let path = named.operation("")?;
    let detail: Detail = visitor.get(&path).await?;
    let may = visitor.may("PATCH", &path).await?;
    let now = visitor.context.clock.now();
    let row = |secret: Secret| SecretRow {
        made: Moment::new(secret.created_at, now),
        used: secret.last_used_at.map(|at| Moment::new(at, now)),
        secret,
    };
    let status = if wrong.is_some() {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::OK
    };
    let page = New {
        frame: visitor.frame(),
        action: named.page(""),
        slug: named.slug,
        may,
        wanted: wanted.unwrap_or_else(|| Wanted::of(&detail.application)),
        scopes: scopes(),
        wrong,
        secrets: detail.secrets.into_iter().map(row).collect(),
        authorizations: detail.authorizations,
        is: Some(detail.application),
    };
    Ok(Answer::page(&page)?.status(status))
}

async fn change(
    visitor: Visitor,
    Form(fields): Form<Vec<(String, String)>>,
    named: Named,
) -> Result<Answer, Error> {
    let wanted = Wanted::read(fields);
    match visitor
        .ask::<Value>(Method::PATCH, &named.operation("")?, Some(&wanted.body()))
        .await
    {
        Ok(_) => Answer::to(&named.page("?done=changed")),
        Err(error @ (Error::Invalid { .. } | Error::Rejected(_))) => {
            filled(
                &visitor,
                named,
                Some(wanted),
                Some(error.message().into_owned()),
            )
            .await
        }
        Err(other) => Err(other),
    }
}

#[derive(Template)]
#[template(path = "oauth_secret.html")]
struct NewSecret {
    frame: Frame,
    client_id: String,
    secret: String,
    back: String,
}

#[derive(Deserialize)]
struct Nothing {}

/// The secret is in the answer to the form, which has no address of its own: loading it again asks before it makes another.
async fn add_secret(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    named: Named,
) -> Result<Answer, Error> {
    match visitor
        .ask::<CreatedSecret>(Method::POST, &named.operation("/secrets")?, None)
        .await
    {
        Ok(made) => {
            let client_id = named
                .application
                .map(|id| id.to_string())
                .unwrap_or_default();
            Answer::page(&NewSecret {
                frame: visitor.frame(),
                client_id,
                secret: made.secret,
                back: named.page(""),
            })
        }
        Err(Error::Rejected(text)) => filled(&visitor, named, None, Some(text.into_owned())).await,
        Err(other) => Err(other),
    }
}

#[derive(Deserialize)]
struct Which {
    id: i64,
}

async fn revoke_secret(
    visitor: Visitor,
    Form(which): Form<Which>,
    named: Named,
) -> Result<Answer, Error> {
    visitor
        .ask::<()>(
            Method::DELETE,
            &named.operation(&format!("/secrets/{}", which.id))?,
            None,
        )
        .await?;
    Answer::to(&named.page("?done=secret"))
}

#[derive(Template)]
#[template(path = "oauth_application_delete.html")]
struct AskDelete {
    frame: Frame,
    name: String,
    authorizations: i64,
    page: String,
}

async fn ask_delete(visitor: Visitor, named: Named) -> Result<Answer, Error> {
    let detail: Detail = visitor.get(&named.operation("")?).await?;
    let Detail {
        application,
        authorizations,
        ..
    } = detail;
    Answer::page(&AskDelete {
        frame: visitor.frame(),
        name: application.name,
        authorizations,
        page: named.page(""),
    })
}

async fn delete(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    named: Named,
) -> Result<Answer, Error> {
    visitor
        .ask::<Value>(Method::DELETE, &named.operation("")?, None)
        .await?;
    Answer::to(&format!(
        "{}?done=deleted",
        Named {
            application: None,
            ..named
        }
        .page("")
    ))
}
