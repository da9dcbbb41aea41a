//! The consent page: a member authorizes an OAuth application or denies its request.

use askama::Template;
use chrono::TimeDelta;
use gantry_base::ids::{OrgSlug, ProjectRef};
use http::{Method, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{scope_labels, scope_labels::ScopeLabel};
use crate::{
    api::oauth::{
        self,
        applications::ProjectSelection,
        redirect,
        requests::{
            self, AuthorizationRequest,
            operations::{AuthId, AuthorizationRequestView, RedirectResponse as Decision},
        },
    },
    platform::{
        access::{
            Role,
            sessions::{self, SessionSelection},
        },
        error::Error,
        http::{Call, Endpoint, Input, Query, Verb, mount, operation_doc::OperationDoc},
    },
    web::{
        cookie,
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page, public_page},
        redirect::sign_in_path,
        resources::{OrganizationProjects, organizations_with_projects},
    },
};

pub(in crate::web) static CONSENT: Endpoint = page(
    "page-oauth-ask",
    "Authorize an application?",
    Verb::Get,
    oauth::CONSENT_PAGE,
    || mount(show_request),
);
pub(in crate::web) static DECIDE: Endpoint = page(
    "page-oauth-answer",
    "Authorize an application",
    Verb::Post,
    oauth::CONSENT_PAGE,
    || mount(decide),
);
pub(in crate::web) static SWITCH_ACCOUNT: Endpoint = page(
    "page-oauth-switch",
    "Use another account for an application",
    Verb::Post,
    "/authorize/switch",
    || mount(switch_account),
);
pub(in crate::web) static PROBLEM: Endpoint = public_page(
    "page-oauth-problem",
    "Invalid authorization request",
    Verb::Get,
    oauth::PROBLEM_PAGE,
    || mount(problem),
);

/// Maximum number of projects of an authorization.
const PROJECTS_MAX: usize = 100;

#[derive(Template)]
#[template(path = "oauth_consent.html")]
struct ConsentPage {
    layout: Layout,
    id: Uuid,
    email: String,
    details: AuthorizationRequestView,
    scopes: Vec<ScopeLabel>,
    organizations: Vec<OrganizationProjects>,
    /// Index of the chosen organization.
    chosen: Option<usize>,
    /// The role of the visitor in the chosen organization.
    role: Option<Role>,
    projects: Vec<String>,
    all_projects: bool,
    expires: Timestamp,
    problem: Option<&'static str>,
}

impl ConsentPage {
    fn organization(&self) -> Option<&OrganizationProjects> {
        self.chosen.and_then(|index| self.organizations.get(index))
    }

    fn is_chosen(&self, entry: &OrganizationProjects) -> bool {
        self.organization()
            .is_some_and(|chosen| chosen.organization.slug == entry.organization.slug)
    }

    /// Returns whether no requested scope is left.
    fn has_no_scopes(&self) -> bool {
        self.scopes.is_empty()
    }

    /// Returns whether the role of the visitor is too low to authorize an unbound application.
    fn is_role_too_low(&self) -> bool {
        !self.details.bind_to_authorizing_user
            && self.role.is_none_or(|role| role < Role::Administrator)
    }

    /// Returns whether the application requests more than the role of the visitor permits.
    fn exceeds_role(&self) -> bool {
        self.details.bind_to_authorizing_user && self.scopes.iter().any(|scope| scope.above_role)
    }

    fn is_local(&self) -> bool {
        self.details.domain == redirect::LOCAL_PROGRAM
    }

    fn has_project_selection(&self) -> bool {
        self.details.project_selection != ProjectSelection::Off
    }

    fn permits_all_projects(&self) -> bool {
        self.details.project_selection == ProjectSelection::Optional
    }

    fn role_name(&self) -> &'static str {
        self.role.map_or("none", Role::label)
    }
}

#[derive(Template)]
#[template(path = "oauth_receipt.html")]
struct ReceiptPage {
    layout: Layout,
    name: String,
    domain: String,
    scopes: Vec<ScopeLabel>,
    approved: bool,
}

#[derive(Template)]
#[template(path = "oauth_problem.html")]
struct ProblemPage {
    layout: Layout,
    title: &'static str,
    text: &'static str,
}

async fn show_request(
    visitor: Visitor,
    Query(query): Query<AuthId>,
    choices: ConsentChoices,
) -> Result<PageResponse, Error> {
    let Some(request) = claim_request(&visitor, query.auth_id).await? else {
        return show_expired(visitor.layout());
    };
    if request.done {
        return show_receipt(&visitor, &request);
    }
    show_consent(&visitor, &request, choices).await
}

/// Returns the authorization request if it is open and belongs to this session. The first session
/// that opens a request claims it.
async fn claim_request(visitor: &Visitor, id: Uuid) -> Result<Option<AuthorizationRequest>, Error> {
    match requests::claim_for_session(
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

fn show_expired(layout: Layout) -> Result<PageResponse, Error> {
    let page = ProblemPage {
        layout,
        title: "This request has expired",
        text: "A request is valid for ten minutes and in one browser. Access was not granted. Return to \
               the application and start again.",
    };
    Ok(PageResponse::page(&page)?.status(StatusCode::GONE))
}

fn show_receipt(visitor: &Visitor, request: &AuthorizationRequest) -> Result<PageResponse, Error> {
    PageResponse::page(&ReceiptPage {
        layout: visitor.layout(),
        name: request.application.name.clone(),
        domain: redirect::display_name(&request.redirect_uri),
        scopes: scope_labels::scope_labels(request.scopes.names(), None),
        approved: request.approved_at.is_some(),
    })
}

/// The choices of the form. They are query parameters of the page, so that a rejected form
/// redirects to the page: going back in the browser does not submit the form again.
#[derive(Default)]
struct ConsentChoices {
    organization: Option<String>,
    projects: Vec<String>,
    all_projects: bool,
    problem: Option<ConsentProblem>,
}

/// The reason that a form was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConsentProblem {
    /// No project is chosen.
    NoProject,
    /// The chosen projects are invalid or too many.
    Projects,
    /// The application no longer has any of the requested scopes.
    NoScope,
}

impl ConsentProblem {
    const ALL: [Self; 3] = [Self::NoProject, Self::Projects, Self::NoScope];

    /// Returns the value of the query parameter.
    fn code(self) -> &'static str {
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
            Self::NoScope => requests::NO_SCOPES_LEFT,
        }
    }
}

impl ConsentChoices {
    /// Returns the path of the page with these choices.
    fn path(&self, id: Uuid) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("auth_id", &id.to_string());
        query.extend_pairs(self.organization.iter().map(|slug| ("organization", slug)));
        query.extend_pairs(self.projects.iter().map(|reference| ("project", reference)));
        if self.all_projects {
            query.append_pair("reach", "all");
        }
        query.extend_pairs(self.problem.map(|problem| ("wrong", problem.code())));
        format!("{}?{}", oauth::CONSENT_PAGE, query.finish())
    }
}

impl Input for ConsentChoices {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let mut choices = Self::default();
        for (name, value) in
            form_urlencoded::parse(call.uri().query().unwrap_or_default().as_bytes())
        {
            match &*name {
                "organization" => choices.organization = Some(value.into_owned()),
                "project" => choices.projects.push(value.into_owned()),
                "reach" => choices.all_projects = value == "all",
                "wrong" => {
                    choices.problem = ConsentProblem::ALL
                        .into_iter()
                        .find(|problem| problem.code() == value);
                }
                _ => {}
            }
        }
        Ok(choices)
    }
}

async fn show_consent(
    visitor: &Visitor,
    request: &AuthorizationRequest,
    choices: ConsentChoices,
) -> Result<PageResponse, Error> {
    let details: AuthorizationRequestView = visitor
        .get(&format!("/platform/oauth/authorizations/{}", request.id))
        .await?;
    let organizations = organizations_with_projects(visitor).await?;
    let chosen = choose_organization(&organizations, &choices, &details);
    let role = match chosen.and_then(|index| organizations.get(index)) {
        Some(entry) => Some(
            visitor
                .check(
                    "GET",
                    &format!("/v1/organizations/{}", entry.organization.slug),
                )
                .await?
                .role,
        ),
        None => None,
    };
    let projects = if choices.projects.is_empty() {
        details.project_ref.iter().cloned().collect()
    } else {
        choices.projects
    };
    let no_scope = request.scopes.is_empty().then_some(ConsentProblem::NoScope);
    let page = ConsentPage {
        layout: visitor.layout().at_path(oauth::CONSENT_PAGE),
        id: request.id,
        email: visitor.account.email.clone(),
        scopes: scope_labels::scope_labels(details.scopes.iter().map(String::as_str), role),
        expires: Timestamp::new(
            details.expires_at,
            visitor.context.clock.now() - TimeDelta::seconds(59),
        ),
        details,
        organizations,
        chosen,
        role,
        projects,
        all_projects: choices.all_projects,
        problem: choices.problem.or(no_scope).map(ConsentProblem::text),
    };
    Ok(PageResponse::page(&page)?
        .allow_form_action(redirect::form_action_source(&request.redirect_uri).as_deref()))
}

/// Returns the index of the organization to show: the chosen one, the requested one, the one of the
/// requested project, or the first.
fn choose_organization(
    organizations: &[OrganizationProjects],
    choices: &ConsentChoices,
    details: &AuthorizationRequestView,
) -> Option<usize> {
    let slug = choices
        .organization
        .as_ref()
        .or(details.organization_slug.as_ref());
    let by_slug = slug.and_then(|slug| {
        organizations
            .iter()
            .position(|entry| entry.organization.slug == *slug)
    });
    let by_project = details.project_ref.as_ref().and_then(|reference| {
        organizations
            .iter()
            .position(|entry| entry.contains(reference))
    });
    let first = (!organizations.is_empty()).then_some(0);
    by_slug.or(by_project).or(first)
}

/// Handles the decision through the operations. Redirects to the application, or back to the page
/// if the choices are invalid.
async fn decide(
    visitor: Visitor,
    SessionForm(fields): SessionForm<Vec<(String, String)>>,
) -> Result<PageResponse, Error> {
    let values = |field: &str| {
        fields
            .iter()
            .filter(|(name, _)| name == field)
            .map(|(_, value)| value.clone())
            .collect::<Vec<_>>()
    };
    let value = |field: &str| values(field).into_iter().next().unwrap_or_default();
    let id = Uuid::try_parse(&value("auth_id")).map_err(|_| Error::NotFound)?;
    let page = ConsentChoices::default().path(id);
    let Some(request) = claim_request(&visitor, id)
        .await?
        .filter(|request| !request.done)
    else {
        return PageResponse::redirect(&page);
    };
    if value("decision") != "approve" {
        let result = visitor
            .call(
                Method::DELETE,
                &format!("/platform/oauth/authorizations/{id}"),
                None,
            )
            .await;
        return redirect_to_application(&page, result);
    }
    let slug = value("organization");
    if slug.parse::<OrgSlug>().is_err() {
        return Err(Error::NotFound);
    }
    let all_projects =
        request.application.selection == ProjectSelection::Off || value("reach") == "all";
    let projects = values("project");
    let body = if all_projects {
        json!({})
    } else {
        json!({"project_refs": projects})
    };
    let path = format!("/platform/organizations/{slug}/oauth/authorizations/{id}");
    match visitor.post(&path, &body).await {
        Err(Error::Invalid { .. }) => {
            let problem = Some(if projects.is_empty() {
                ConsentProblem::NoProject
            } else {
                ConsentProblem::Projects
            });
            let projects = projects
                .into_iter()
                .filter(|reference| reference.parse::<ProjectRef>().is_ok())
                .take(PROJECTS_MAX)
                .collect();
            let choices = ConsentChoices {
                organization: Some(slug),
                projects,
                all_projects,
                problem,
            };
            PageResponse::redirect(&choices.path(id))
        }
        result => redirect_to_application(&page, result),
    }
}

/// Redirects to the application. A request that was already decided or has expired redirects to the
/// consent page, which shows that.
fn redirect_to_application(
    page: &str,
    result: Result<Decision, Error>,
) -> Result<PageResponse, Error> {
    match result {
        Ok(decision) => PageResponse::redirect_external(&decision.url),
        Err(Error::Rejected(_)) => PageResponse::redirect(page),
        Err(other) => Err(other),
    }
}

/// Releases the request for the next account, and signs out.
async fn switch_account(
    visitor: Visitor,
    SessionForm(form): SessionForm<AuthId>,
) -> Result<PageResponse, Error> {
    let digest = visitor.secret.digest();
    requests::release(&visitor.context.db, form.auth_id, &digest).await?;
    sessions::end(
        &visitor.context.db,
        visitor.user.id,
        SessionSelection::This(&digest),
        visitor.context.clock.now(),
    )
    .await?;
    let back = sign_in_path(&format!("{}?auth_id={}", oauth::CONSENT_PAGE, form.auth_id));
    Ok(
        PageResponse::redirect(&back)?
            .with_header(header::SET_COOKIE, cookie::clear(visitor.peer)?),
    )
}

#[derive(Deserialize, schemars::JsonSchema)]
struct ProblemQuery {
    #[serde(default)]
    why: String,
}

async fn problem(Query(query): Query<ProblemQuery>) -> Result<PageResponse, Error> {
    let (title, text) = if query.why == "client" {
        (
            "Unknown application",
            "The application in this link is not registered on this server. Access was not granted.",
        )
    } else {
        (
            "Invalid link",
            "The redirect URI is not registered for the application, or the parameters contradict each \
             other. Access was not granted. Contact the developer of the application.",
        )
    };
    Ok(PageResponse::page(&ProblemPage {
        layout: Layout::anonymous(),
        title,
        text,
    })?
    .status(StatusCode::BAD_REQUEST))
}
