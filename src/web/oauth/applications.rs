//! The OAuth applications of an organization: register, change, delete, and their secrets.

use askama::Template;
use gantry_base::ids::OrgSlug;
use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{scope_labels, scope_labels::ScopeLabel};
use crate::{
    api::oauth::applications::{
        ProjectSelection,
        operations::{ApplicationDetail, ApplicationView, CreatedApplicationSecret},
        secrets::ApplicationSecret,
    },
    platform::{
        access::{OauthScope, Role},
        error::Error,
        http::{Call, Endpoint, Input, Verb, mount, operation_doc::OperationDoc},
    },
    web::{
        form::{self, NoFields, RowId},
        labels::Timestamp,
        organizations::header::OrganizationHeader,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathOrganization,
        permissions::PermissionCheck,
    },
};

const ALL: &str = "/organizations/{organization}/applications";
const ONE: &str = "/organizations/{organization}/applications/{application}";

pub(in crate::web) static LIST: Endpoint = page(
    "page-oauth-applications",
    "Applications",
    Verb::Get,
    ALL,
    || mount(list),
);
pub(in crate::web) static NEW: Endpoint = page(
    "page-oauth-application-new",
    "Register an application",
    Verb::Get,
    "/organizations/{organization}/applications/new",
    || mount(new),
);
pub(in crate::web) static CREATE: Endpoint = page(
    "page-oauth-application-create",
    "Register an application",
    Verb::Post,
    ALL,
    || mount(create),
);
pub(in crate::web) static SHOW: Endpoint = page(
    "page-oauth-application",
    "Application",
    Verb::Get,
    ONE,
    || mount(show),
);
pub(in crate::web) static CHANGE: Endpoint = page(
    "page-oauth-application-change",
    "Change an application",
    Verb::Post,
    ONE,
    || mount(change),
);
pub(in crate::web) static ADD_SECRET: Endpoint = page(
    "page-oauth-secret-create",
    "Create a client secret",
    Verb::Post,
    "/organizations/{organization}/applications/{application}/secrets",
    || mount(add_secret),
);
pub(in crate::web) static REVOKE_SECRET: Endpoint = page(
    "page-oauth-secret-revoke",
    "Revoke a client secret",
    Verb::Post,
    "/organizations/{organization}/applications/{application}/secrets/revoke",
    || mount(revoke_secret),
);
pub(in crate::web) static CONFIRM_DELETE: Endpoint = page(
    "page-oauth-application-ask-delete",
    "Delete an application?",
    Verb::Get,
    "/organizations/{organization}/applications/{application}/delete",
    || mount(confirm_delete),
);
pub(in crate::web) static DELETE: Endpoint = page(
    "page-oauth-application-delete",
    "Delete an application",
    Verb::Post,
    "/organizations/{organization}/applications/{application}/delete",
    || mount(delete),
);

/// The organization and application in the path.
struct ApplicationPath {
    slug: OrgSlug,
    application: Option<Uuid>,
}

impl ApplicationPath {
    /// Returns the path of the operations on the list.
    fn list_operation(&self) -> String {
        format!("/v1/organizations/{}/oauth/apps", self.slug)
    }

    /// Returns the path of an operation on the application.
    fn operation(&self, rest: &str) -> Result<String, Error> {
        let id = self.application.ok_or(Error::NotFound)?;
        Ok(format!("{}/{id}{rest}", self.list_operation()))
    }

    /// Returns the path of a page.
    fn page(&self, rest: &str) -> String {
        let id = self
            .application
            .map(|id| format!("/{id}"))
            .unwrap_or_default();
        format!("/organizations/{}/applications{id}{rest}", self.slug)
    }
}

impl Input for ApplicationPath {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let PathOrganization(slug) = PathOrganization::take(call).await?;
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
struct ListPage {
    layout: Layout,
    head: OrganizationHeader,
    /// Whether the visitor may register an application.
    permission: PermissionCheck,
    rows: Vec<ApplicationView>,
}

async fn list(visitor: Visitor, path: ApplicationPath) -> Result<PageResponse, Error> {
    let operation = path.list_operation();
    PageResponse::page(&ListPage {
        layout: visitor.layout(),
        rows: visitor.get(&operation).await?,
        permission: visitor.check("POST", &operation).await?,
        head: OrganizationHeader::load(&visitor, path.slug).await?,
    })
}

/// The fields of the form.
#[derive(Default)]
struct ApplicationForm {
    name: String,
    website: String,
    icon: String,
    redirect_uris: String,
    scopes: Vec<String>,
    public: bool,
    bound: bool,
    selection: String,
}

impl ApplicationForm {
    fn parse(fields: Vec<(String, String)>) -> Self {
        let mut form = Self::default();
        for (name, value) in fields {
            match name.as_str() {
                "name" => form.name = value.trim().to_owned(),
                "website" => form.website = value.trim().to_owned(),
                "icon" => form.icon = value.trim().to_owned(),
                "redirect_uris" => form.redirect_uris = value,
                "scope" => form.scopes.push(value),
                "public" => form.public = true,
                "bound" => form.bound = true,
                "selection" => form.selection = value,
                _ => {}
            }
        }
        form
    }

    fn from_application(application: &ApplicationView) -> Self {
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

    /// Returns the body of the operations.
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
struct Page {
    layout: Layout,
    slug: OrgSlug,
    /// Whether the visitor may register or change the application.
    permission: PermissionCheck,
    form: ApplicationForm,
    scopes: Vec<ScopeLabel>,
    problem: Option<String>,
    /// The existing application; empty for a new one.
    existing: Option<ApplicationView>,
    action: String,
    secrets: Vec<SecretRow>,
    authorizations: i64,
}

struct SecretRow {
    secret: ApplicationSecret,
    created: Timestamp,
    used: Option<Timestamp>,
}

impl Page {
    /// Returns whether the selection is less strict than the current one, which is not permitted.
    fn is_looser(&self, selection: &str) -> bool {
        let rank = |name: &str| {
            ["off", "optional", "required"]
                .iter()
                .position(|known| *known == name)
        };
        self.existing
            .as_ref()
            .is_some_and(|existing| rank(selection) < rank(existing.project_selection.name()))
    }

    fn has_scope(&self, label: &ScopeLabel) -> bool {
        self.form.scopes.iter().any(|scope| scope == label.name)
    }

    fn is_verified(&self) -> bool {
        self.existing
            .as_ref()
            .is_some_and(|existing| existing.verified)
    }

    fn is_bound(&self) -> bool {
        self.existing
            .as_ref()
            .is_some_and(|existing| existing.bind_to_authorizing_user)
    }
}

fn scopes() -> Vec<ScopeLabel> {
    scope_labels::scope_labels(
        OauthScope::ALL.iter().map(|scope| scope.name()),
        None::<Role>,
    )
}

async fn new(visitor: Visitor, path: ApplicationPath) -> Result<PageResponse, Error> {
    let form = ApplicationForm {
        bound: true,
        selection: ProjectSelection::Off.name().to_owned(),
        ..ApplicationForm::default()
    };
    show_new(&visitor, path, form, None).await
}

async fn show_new(
    visitor: &Visitor,
    path: ApplicationPath,
    form: ApplicationForm,
    problem: Option<String>,
) -> Result<PageResponse, Error> {
    let permission = visitor.check("POST", &path.list_operation()).await?;
    let page = Page {
        layout: visitor.layout(),
        action: path.page(""),
        slug: path.slug,
        permission,
        form,
        scopes: scopes(),
        problem,
        existing: None,
        secrets: Vec::new(),
        authorizations: 0,
    };
    PageResponse::form(&page, page.problem.is_some())
}

async fn create(
    visitor: Visitor,
    SessionForm(fields): SessionForm<Vec<(String, String)>>,
    path: ApplicationPath,
) -> Result<PageResponse, Error> {
    let form = ApplicationForm::parse(fields);
    let mut body = form.body();
    body["public"] = form.public.into();
    match visitor
        .post::<ApplicationView>(&path.list_operation(), &body)
        .await
    {
        Ok(created) => {
            let path = ApplicationPath {
                application: Some(created.id),
                ..path
            };
            PageResponse::redirect(&path.page("?done=registered"))
        }
        Err(error) => show_new(&visitor, path, form, Some(form::problem(error)?)).await,
    }
}

async fn show(visitor: Visitor, path: ApplicationPath) -> Result<PageResponse, Error> {
    show_existing(&visitor, path, None, None).await
}

async fn show_existing(
    visitor: &Visitor,
    path: ApplicationPath,
    form: Option<ApplicationForm>,
    problem: Option<String>,
) -> Result<PageResponse, Error> {
    let operation = path.operation("")?;
    let detail: ApplicationDetail = visitor.get(&operation).await?;
    let permission = visitor.check("PATCH", &operation).await?;
    let now = visitor.context.clock.now();
    let row = |secret: ApplicationSecret| SecretRow {
        created: Timestamp::new(secret.created_at, now),
        used: secret.last_used_at.map(|at| Timestamp::new(at, now)),
        secret,
    };
    let page = Page {
        layout: visitor.layout(),
        action: path.page(""),
        slug: path.slug,
        permission,
        form: form.unwrap_or_else(|| ApplicationForm::from_application(&detail.application)),
        scopes: scopes(),
        problem,
        secrets: detail.secrets.into_iter().map(row).collect(),
        authorizations: detail.authorizations,
        existing: Some(detail.application),
    };
    PageResponse::form(&page, page.problem.is_some())
}

async fn change(
    visitor: Visitor,
    SessionForm(fields): SessionForm<Vec<(String, String)>>,
    path: ApplicationPath,
) -> Result<PageResponse, Error> {
    let form = ApplicationForm::parse(fields);
    match visitor
        .call::<Value>(Method::PATCH, &path.operation("")?, Some(&form.body()))
        .await
    {
        Ok(_) => PageResponse::redirect(&path.page("?done=changed")),
        Err(error) => {
            let problem = Some(form::problem(error)?);
            show_existing(&visitor, path, Some(form), problem).await
        }
    }
}

#[derive(Template)]
#[template(path = "oauth_secret.html")]
struct SecretPage {
    layout: Layout,
    client_id: String,
    secret: String,
    back: String,
}

/// Creates a secret. It is shown only in the response to the form.
async fn add_secret(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    path: ApplicationPath,
) -> Result<PageResponse, Error> {
    match visitor
        .call::<CreatedApplicationSecret>(Method::POST, &path.operation("/secrets")?, None)
        .await
    {
        Ok(created) => {
            let client_id = path
                .application
                .map(|id| id.to_string())
                .unwrap_or_default();
            PageResponse::page(&SecretPage {
                layout: visitor.layout(),
                client_id,
                secret: created.secret,
                back: path.page(""),
            })
        }
        Err(error) => show_existing(&visitor, path, None, Some(form::problem(error)?)).await,
    }
}

async fn revoke_secret(
    visitor: Visitor,
    SessionForm(row): SessionForm<RowId>,
    path: ApplicationPath,
) -> Result<PageResponse, Error> {
    visitor
        .delete(&path.operation(&format!("/secrets/{}", row.id))?)
        .await?;
    PageResponse::redirect(&path.page("?done=secret"))
}

#[derive(Template)]
#[template(path = "oauth_application_delete.html")]
struct DeletePage {
    layout: Layout,
    name: String,
    authorizations: i64,
    page: String,
}

async fn confirm_delete(visitor: Visitor, path: ApplicationPath) -> Result<PageResponse, Error> {
    let detail: ApplicationDetail = visitor.get(&path.operation("")?).await?;
    let ApplicationDetail {
        application,
        authorizations,
        ..
    } = detail;
    PageResponse::page(&DeletePage {
        layout: visitor.layout(),
        name: application.name,
        authorizations,
        page: path.page(""),
    })
}

async fn delete(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    path: ApplicationPath,
) -> Result<PageResponse, Error> {
    visitor.delete(&path.operation("")?).await?;
    let list = ApplicationPath {
        application: None,
        ..path
    };
    PageResponse::redirect(&list.page("?done=deleted"))
}
