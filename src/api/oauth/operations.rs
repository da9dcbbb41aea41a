//! The protocol's endpoints. Paths that the metadata names stand beside the contract's; both lead to the same code.

use http::{HeaderName, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    CONSENT_PAGE, PROBLEM_PAGE, client, exchange,
    exchange::{Full, Origin, Pair},
    fields::Fields,
    introspect,
    introspect::Introspection,
    metadata, register,
    register::{Registered, Registration},
    requests,
    requests::Begun,
    revoke,
};
use crate::{
    api::context::ApiContext,
    base::{
        error::{Denial, Error, oauth_fault},
        ids::ProjectRef,
    },
    platform::{
        access::{Access, Permission as P, Reference, User, pat_only},
        http::{
            Call, Endpoint, Input, Json, RESOURCE_METADATA, Tag, Verb,
            client_credentials::ClientCredentials,
            input::RequestLine,
            mount,
            openapi::OperationDoc,
            output::{Created, NoContent, NoStore, OkEmpty, SeeOther},
        },
        rate_limits::{REGISTRATIONS, STANDARD},
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &AUTHORIZE,
    &AUTHORIZE_PROJECT_CLAIM,
    &EXCHANGE,
    &EXCHANGE_IN_FULL,
    &REVOKE,
    &REVOKE_FORM,
    &INTROSPECT,
    &SERVER,
    &RESOURCE,
    &REGISTER,
    &super::requests::operations::LOOK,
    &super::requests::operations::APPROVE,
    &super::requests::operations::DENY,
    &super::authorizations::LIST,
    &super::authorizations::TAKE_BACK,
    &super::authorizations::LIST_ALL,
    &super::authorizations::END,
    &super::authorizations::END_ALL,
    &super::applications::operations::LIST,
    &super::applications::operations::CREATE,
    &super::applications::operations::GET,
    &super::applications::operations::CHANGE,
    &super::applications::operations::DELETE,
    &super::applications::operations::ADD_SECRET,
    &super::applications::operations::REVOKE_SECRET,
];

const FORM: &str = "application/x-www-form-urlencoded";
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

const fn public(
    id: &'static str,
    summary: &'static str,
    tag: Tag,
    method: Verb,
    path: &'static str,
) -> Endpoint {
    Endpoint {
        id,
        summary,
        tag,
        method,
        path,
        aliases: &[],
        access: Access::Public,
        limit: &STANDARD,
        handler: || mount(nothing),
    }
}

async fn nothing() -> Result<OkEmpty, Error> {
    Ok(OkEmpty)
}

/// The issuer of tokens, where the operator configured one.
struct Issuer(String);

impl Input for Issuer {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let context = ApiContext::take(call).await?;
        context
            .settings
            .issuer()
            .map(|issuer| Self(issuer.to_owned()))
    }
}

/// The query of a request for a user's consent.
struct Asked {
    fields: Result<Fields, Error>,
    /// Whether a person is looking: a page tells them more than JSON does.
    navigates: bool,
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

impl Input for Asked {
    fn describe(described: &mut OperationDoc) {
        described.query_schema::<AuthorizeQuery>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let fields = Fields::parse(call.uri().query().unwrap_or_default().as_bytes());
        Ok(Self {
            fields,
            navigates: call
                .headers()
                .get(FETCH_MODE)
                .is_some_and(|mode| mode == "navigate"),
        })
    }
}

/// Query of the samples. No application has this id.
const SAMPLE: &str = "?client_id=00000000-0000-4000-8000-000000000000&response_type=code&redirect_uri=https%3A%2F%2Fapp.example%2Fcallback";

pub(super) static AUTHORIZE: Endpoint = Endpoint {
    handler: || mount(authorize).sample_query(SAMPLE),
    ..public(
        "v1-authorize-user",
        "Ask a user to let an application act for them",
        Tag::OAuth,
        Verb::Get,
        "/v1/oauth/authorize",
    )
};

async fn authorize(
    context: ApiContext,
    Issuer(issuer): Issuer,
    asked: Asked,
) -> Result<SeeOther, Error> {
    lead(
        requests::begin(&context, asked.fields, &issuer, None).await,
        asked.navigates,
    )
}

/// Where the browser goes on: to the page that asks, or back. What cannot be told to the application is told here.
fn lead(begun: Result<Begun, Error>, navigates: bool) -> Result<SeeOther, Error> {
    match begun {
        Ok(Begun::Waits(id)) => Ok(SeeOther(format!("{CONSENT_PAGE}?auth_id={id}"))),
        Ok(Begun::Refused(address)) => Ok(SeeOther(address)),
        Err(Error::Oauth(fault)) if navigates => {
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

static AUTHORIZE_PROJECT_CLAIM: Endpoint = Endpoint {
    id: "v1-oauth-authorize-project-claim",
    summary: "Ask a user to let an application act on one project",
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

/// The same, with the project it is about.
struct AskedForProject(Asked, ProjectRef);

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

impl Input for AskedForProject {
    fn describe(described: &mut OperationDoc) {
        described.query_schema::<ProjectQuery>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let asked = Asked::take(call).await?;
        let Ok(fields) = &asked.fields else {
            return Err(oauth_fault(
                "invalid_request",
                "A field is there more than once.",
            ));
        };
        let project = fields.get("project_ref").and_then(|text| text.parse().ok());
        let project = project
            .ok_or_else(|| Error::invalid("project_ref", "expected the ref of a project"))?;
        Ok(Self(asked, project))
    }
}

/// The query names the project, where the guard does not look; so who may is looked up here, by what the operation declares.
async fn authorize_project_claim(
    context: ApiContext,
    user: User,
    Issuer(issuer): Issuer,
    asked: AskedForProject,
) -> Result<SeeOther, Error> {
    let AskedForProject(asked, project) = asked;
    let (_, held) = context
        .directory
        .own(&user, &Reference::Project(project.clone()))
        .await?
        .ok_or(Error::NotFound)?;
    if !AUTHORIZE_PROJECT_CLAIM
        .access
        .permissions()
        .met(|permission| held.holds(permission))
    {
        return Err(Error::Forbidden(Denial::Role));
    }
    lead(
        requests::begin(&context, asked.fields, &issuer, Some(&project)).await,
        asked.navigates,
    )
}

/// A form of the protocol, with who sent it.
struct Form {
    fields: Fields,
    basic: ClientCredentials,
    origin: Origin,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "OAuthTokenBody")]
#[expect(
    dead_code,
    reason = "only described: what is read is read field by field"
)]
struct TokenForm {
    /// `authorization_code` or `refresh_token`.
    grant_type: Option<String>,
    client_id: Option<Uuid>,
    client_secret: Option<String>,
    code: Option<String>,
    code_verifier: Option<String>,
    redirect_uri: Option<String>,
    refresh_token: Option<String>,
    /// For `/oauth/revoke` and `/oauth/introspect`.
    token: Option<String>,
    resource: Option<String>,
    scope: Option<String>,
}

impl Form {
    /// The fields of the body alone: what is in an address ends up in logs.
    async fn read(call: &mut Call<'_>, origin: Origin) -> Result<Self, Error> {
        if call.uri().query().is_some_and(|query| !query.is_empty()) {
            return Err(oauth_fault(
                "invalid_request",
                "Fields belong into the body, not into the query.",
            ));
        }
        if !is(call, FORM) {
            return Err(oauth_fault(
                "invalid_request",
                "The body must be application/x-www-form-urlencoded.",
            ));
        }
        let fields = Fields::parse(&call.body().await?)?;
        Ok(Self {
            fields,
            basic: call.client_credentials(),
            origin,
        })
    }
}

/// Whether the body is of this kind.
fn is(call: &Call<'_>, kind: &str) -> bool {
    let given = call
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|given| given.to_str().ok())
        .unwrap_or_default();
    given
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .eq_ignore_ascii_case(kind)
}

impl Input for Origin {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(Self {
            address: call.peer().address,
            request_id: call.request_id().to_owned(),
            operation: call.endpoint().id,
        })
    }
}

impl Input for Form {
    fn describe(described: &mut OperationDoc) {
        described.form_schema::<TokenForm>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let origin = Origin::take(call).await?;
        Self::read(call, origin).await
    }
}

static EXCHANGE: Endpoint = Endpoint {
    handler: || mount(exchange),
    ..public(
        "v1-exchange-oauth-token",
        "Exchange a code or a refresh token for tokens",
        Tag::OAuth,
        Verb::Post,
        "/v1/oauth/token",
    )
};

async fn exchange(context: ApiContext, form: Form) -> Result<NoStore<Created<Pair>>, Error> {
    Ok(NoStore(Created(exchanged(&context, form).await?.pair)))
}

pub(super) static EXCHANGE_IN_FULL: Endpoint = Endpoint {
    handler: || mount(exchange_in_full),
    ..public(
        "gantry-exchange-oauth-token",
        "The same, as RFC 6749 has it",
        Tag::Gantry,
        Verb::Post,
        "/oauth/token",
    )
};

async fn exchange_in_full(context: ApiContext, form: Form) -> Result<NoStore<Json<Full>>, Error> {
    Ok(NoStore(Json(exchanged(&context, form).await?)))
}

async fn exchanged(
    context: &ApiContext,
    Form {
        fields,
        basic,
        origin,
    }: Form,
) -> Result<Full, Error> {
    let application =
        client::authenticate(&context.db, basic, &fields, context.clock.now()).await?;
    exchange::exchange(context, &application, &fields, &origin).await
}

static REVOKE: Endpoint = Endpoint {
    handler: || {
        mount(revoke_json).sample(
            r#"{"client_id": "00000000-0000-4000-8000-000000000000", "client_secret": "sba_of_the_application", "refresh_token": "sbr_to_be_revoked"}"#,
        )
    },
    ..public(
        "v1-revoke-token",
        "Give a refresh token back, with all that was approved",
        Tag::OAuth,
        Verb::Post,
        "/v1/oauth/revoke",
    )
};

/// The contract's body, in JSON; some of its clients send the form of RFC 7009 instead.
struct Given {
    form: Form,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "OAuthRevokeTokenBody")]
struct RevokeBody {
    client_id: String,
    client_secret: String,
    refresh_token: String,
}

impl Input for Given {
    fn describe(described: &mut OperationDoc) {
        described.body_schema::<RevokeBody>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let origin = Origin::take(call).await?;
        if is(call, FORM) {
            return Ok(Self {
                form: Form::read(call, origin).await?,
            });
        }
        let Json(body) = Json::<RevokeBody>::take(call).await?;
        let pairs = [
            ("client_id", &body.client_id),
            ("client_secret", &body.client_secret),
            ("refresh_token", &body.refresh_token),
        ];
        let text = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(pairs)
            .finish();
        Ok(Self {
            form: Form {
                fields: Fields::parse(text.as_bytes())?,
                basic: call.client_credentials(),
                origin,
            },
        })
    }
}

async fn revoke_json(context: ApiContext, given: Given) -> Result<NoContent, Error> {
    give_back(&context, given.form).await.map(|()| NoContent)
}

pub(super) static REVOKE_FORM: Endpoint = Endpoint {
    handler: || mount(revoke_form),
    ..public(
        "gantry-revoke-oauth-token",
        "Give a token back (RFC 7009)",
        Tag::Gantry,
        Verb::Post,
        "/oauth/revoke",
    )
};

/// Nothing to tell. Some clients read JSON from every answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OauthTokenRevoked")]
struct Returned {}

async fn revoke_form(context: ApiContext, form: Form) -> Result<Json<Returned>, Error> {
    give_back(&context, form).await.map(|()| Json(Returned {}))
}

async fn give_back(
    context: &ApiContext,
    Form {
        fields,
        basic,
        origin,
    }: Form,
) -> Result<(), Error> {
    let application =
        client::authenticate(&context.db, basic, &fields, context.clock.now()).await?;
    let token = fields
        .get("token")
        .map_or_else(|| fields.required("refresh_token"), Ok)?;
    revoke::revoke(context, &application, token, &origin).await
}

pub(super) static INTROSPECT: Endpoint = Endpoint {
    handler: || mount(introspect),
    ..public(
        "gantry-introspect-oauth-token",
        "Tell an application what its token is (RFC 7662)",
        Tag::Gantry,
        Verb::Post,
        "/oauth/introspect",
    )
};

async fn introspect(
    context: ApiContext,
    Form { fields, basic, .. }: Form,
) -> Result<NoStore<Json<Introspection>>, Error> {
    // RFC 7662, 2.1: without credentials the answer is 401, also where no application is named.
    let authenticated =
        client::authenticate(&context.db, basic, &fields, context.clock.now()).await;
    let application = authenticated.map_err(|error| {
        if error.code().status == 422 {
            client::unknown()
        } else {
            error
        }
    })?;
    // Who proves nothing learns nothing.
    if application.public {
        return Err(client::unknown());
    }
    let token = fields.required("token")?;
    Ok(NoStore(Json(
        introspect::introspect(&context.db, &application, token, context.clock.now()).await?,
    )))
}

static SERVER: Endpoint = Endpoint {
    handler: || mount(server),
    ..public(
        "gantry-oauth-server-metadata",
        "Tell clients where the OAuth endpoints are (RFC 8414)",
        Tag::Gantry,
        Verb::Get,
        "/.well-known/oauth-authorization-server",
    )
};

async fn server(Issuer(issuer): Issuer) -> Result<Json<metadata::Server>, Error> {
    Ok(Json(metadata::server(&issuer)))
}

static RESOURCE: Endpoint = Endpoint {
    aliases: &["/.well-known/oauth-protected-resource/mcp"],
    handler: || mount(resource),
    ..public(
        "gantry-oauth-resource-metadata",
        "Tell clients who issues tokens for this API (RFC 9728)",
        Tag::Gantry,
        Verb::Get,
        RESOURCE_METADATA,
    )
};

async fn resource(
    Issuer(issuer): Issuer,
    line: RequestLine,
) -> Result<Json<metadata::Resource>, Error> {
    Ok(Json(metadata::resource(
        &issuer,
        line.path
            .strip_prefix(RESOURCE_METADATA)
            .unwrap_or_default(),
    )))
}

pub(super) static REGISTER: Endpoint = Endpoint {
    limit: &REGISTRATIONS,
    handler: || {
        mount(register).sample(
            r#"{"client_name": "Example", "redirect_uris": ["http://127.0.0.1/callback"], "token_endpoint_auth_method": "none", "scope": "projects:read"}"#,
        )
    },
    ..public(
        "gantry-register-oauth-application",
        "Register an application by itself (RFC 7591)",
        Tag::Gantry,
        Verb::Post,
        "/platform/oauth/apps/register",
    )
};

/// Without an issuer an application could register and never ask for anything, so it is told at once.
async fn register(
    context: ApiContext,
    origin: Origin,
    Issuer(_): Issuer,
    Json(registration): Json<Registration>,
) -> Result<NoStore<Created<Registered>>, Error> {
    Ok(NoStore(Created(
        register::register(&context, registration, &origin).await?,
    )))
}
