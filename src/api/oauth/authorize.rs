//! The authorization endpoint (RFC 6749, 3.1): validates a request and redirects to the consent
//! page.

use gantry_base::ids::ProjectRef;
use http::HeaderName;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::{
    CONSENT_PAGE, PROBLEM_PAGE,
    operations::{Issuer, public},
    parameters::OAuthParameters,
    requests,
    requests::AuthorizationOutcome,
};
use crate::{
    api::context::ApiContext,
    platform::{
        access::{Permission as P, ResourceName, User, pat_only},
        error::{Denial, Error, oauth_error},
        http::{
            Call, Endpoint, Input, Tag, Verb, mount, operation_doc::OperationDoc, output::SeeOther,
        },
        rate_limits::STANDARD,
    },
};

/// Sent by browsers: `navigate` for a page load (Fetch Metadata).
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The query of an authorization request (RFC 6749, 4.1.1).
struct AuthorizeParameters {
    fields: Result<OAuthParameters, Error>,
    /// Whether a browser navigates here: then errors redirect to a page instead of returning JSON.
    is_navigation: bool,
}

#[derive(Deserialize, JsonSchema)]
#[expect(
    dead_code,
    reason = "only described: what is read is read field by field"
)]
struct AuthorizeQuery {
    client_id: Uuid,
    response_type: String,
    redirect_uri: String,
    scope: Option<String>,
    state: Option<String>,
    response_mode: Option<String>,
    code_challenge: Option<String>,
    code_challenge_method: Option<String>,
    organization_slug: Option<String>,
    resource: Option<String>,
}

impl Input for AuthorizeParameters {
    fn describe(described: &mut OperationDoc) {
        described.query_schema::<AuthorizeQuery>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let fields = OAuthParameters::parse(call.uri().query().unwrap_or_default().as_bytes());
        Ok(Self {
            fields,
            is_navigation: call
                .headers()
                .get(FETCH_MODE)
                .is_some_and(|mode| mode == "navigate"),
        })
    }
}

/// Sample query for the request files. No application has this id.
const SAMPLE: &str = "?client_id=00000000-0000-4000-8000-000000000000&response_type=code&redirect_uri=https%3A%2F%2Fapp.example%2Fcallback";

pub(super) static AUTHORIZE: Endpoint = public(
    "v1-authorize-user",
    "Begin the authorization of an application by a user",
    Tag::OAuth,
    Verb::Get,
    "/v1/oauth/authorize",
    || mount(authorize).sample_query(SAMPLE),
);

async fn authorize(
    context: ApiContext,
    Issuer(issuer): Issuer,
    parameters: AuthorizeParameters,
) -> Result<SeeOther, Error> {
    redirect_for(
        requests::begin(&context, parameters.fields, &issuer, None).await,
        parameters.is_navigation,
    )
}

/// Redirects to the consent page or back to the application. Errors that must not be sent to an
/// unregistered redirect URI are shown here (RFC 6749, 4.1.2.1).
fn redirect_for(
    begun: Result<AuthorizationOutcome, Error>,
    is_navigation: bool,
) -> Result<SeeOther, Error> {
    match begun {
        Ok(AuthorizationOutcome::Pending(id)) => {
            Ok(SeeOther(format!("{CONSENT_PAGE}?auth_id={id}")))
        }
        Ok(AuthorizationOutcome::Rejected(address)) => Ok(SeeOther(address)),
        Err(Error::OAuth(fault)) if is_navigation => {
            let why = if fault.unprocessable {
                "client"
            } else {
                "request"
            };
            Ok(SeeOther(format!("{PROBLEM_PAGE}?why={why}")))
        }
        Err(error) => Err(error),
    }
}

pub(super) static AUTHORIZE_PROJECT_CLAIM: Endpoint = Endpoint {
    id: "v1-oauth-authorize-project-claim",
    summary: "Begin the authorization of an application for one project",
    tag: Tag::OAuth,
    method: Verb::Get,
    path: "/v1/oauth/authorize/project-claim",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite, P::ProjectAdminWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(authorize_project_claim).sample_query(
            "?project_ref={{GANTRY_REF}}&client_id=00000000-0000-4000-8000-000000000000&response_type=code&redirect_uri=https%3A%2F%2Fapp.example%2Fcallback",
        )
    },
};

/// The query of an authorization request for one project.
struct ProjectAuthorizeParameters(AuthorizeParameters, ProjectRef);

#[derive(Deserialize, JsonSchema)]
#[expect(
    dead_code,
    reason = "only described: what is read is read field by field"
)]
struct ProjectQuery {
    project_ref: ProjectRef,
    client_id: Uuid,
    response_type: String,
    redirect_uri: String,
    state: Option<String>,
    response_mode: Option<String>,
    code_challenge: Option<String>,
    code_challenge_method: Option<String>,
}

impl Input for ProjectAuthorizeParameters {
    fn describe(described: &mut OperationDoc) {
        described.query_schema::<ProjectQuery>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let parameters = AuthorizeParameters::take(call).await?;
        let Ok(fields) = &parameters.fields else {
            return Err(oauth_error("invalid_request", "A parameter is repeated."));
        };
        let project = fields.get("project_ref").and_then(|text| text.parse().ok());
        let project = project
            .ok_or_else(|| Error::invalid("project_ref", "expected the ref of a project"))?;
        Ok(Self(parameters, project))
    }
}

/// The project is in the query, which the guard does not read, so the declared permission is
/// checked here.
async fn authorize_project_claim(
    context: ApiContext,
    user: User,
    Issuer(issuer): Issuer,
    parameters: ProjectAuthorizeParameters,
) -> Result<SeeOther, Error> {
    let ProjectAuthorizeParameters(parameters, project) = parameters;
    let (_, roles) = context
        .directory
        .resolve(&user, &ResourceName::Project(project.clone()))
        .await?
        .ok_or(Error::NotFound)?;
    if !AUTHORIZE_PROJECT_CLAIM
        .access
        .permissions()
        .met(|permission| roles.holds(permission))
    {
        return Err(Error::Forbidden(Denial::Role));
    }
    redirect_for(
        requests::begin(&context, parameters.fields, &issuer, Some(&project)).await,
        parameters.is_navigation,
    )
}
