//! Endpoints of the OAuth protocol. The paths of the contract and those of the server metadata
//! share their handlers. The authorization endpoint is in [`super::authorize`].

use http::header;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    client, endpoint, exchange,
    exchange::{RequestOrigin, TokenPair, TokenResponse},
    introspect,
    introspect::Introspection,
    metadata,
    parameters::OAuthParameters,
    registration,
    registration::{ClientRegistration, RegisteredClient},
    revoke, token_exchange,
    token_exchange::ExchangedToken,
};
use crate::{
    api::context::ApiContext,
    platform::{
        access::Access,
        context::PlatformContext,
        error::{Error, oauth_error},
        http::{
            Call, Endpoint, Input, Json, RESOURCE_METADATA, Tag, Verb,
            client_credentials::ClientCredentials,
            endpoint::MountedHandler,
            input::RequestLine,
            mount,
            operation_doc::OperationDoc,
            output::{Created, NoContent, NoStore},
        },
        rate_limits::REGISTRATIONS,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &super::authorize::AUTHORIZE,
    &super::authorize::AUTHORIZE_PROJECT_CLAIM,
    &EXCHANGE,
    &EXCHANGE_STANDARD,
    &REVOKE,
    &REVOKE_FORM,
    &INTROSPECT,
    &SERVER_METADATA,
    &RESOURCE_METADATA_DOCUMENT,
    &REGISTER,
    &super::requests::operations::GET,
    &super::requests::operations::APPROVE,
    &super::requests::operations::DENY,
    &super::authorizations::LIST,
    &super::authorizations::REVOKE,
    &super::authorizations::LIST_FOR_ORGANIZATION,
    &super::authorizations::REVOKE_IN_ORGANIZATION,
    &super::authorizations::REVOKE_ALL,
    &super::applications::operations::LIST,
    &super::applications::operations::CREATE,
    &super::applications::operations::GET,
    &super::applications::operations::UPDATE,
    &super::applications::operations::DELETE,
    &super::applications::operations::ADD_SECRET,
    &super::applications::operations::REVOKE_SECRET,
];

const FORM: &str = "application/x-www-form-urlencoded";

pub(super) const fn public(
    id: &'static str,
    summary: &'static str,
    tag: Tag,
    method: Verb,
    path: &'static str,
    handler: fn() -> MountedHandler,
) -> Endpoint {
    Endpoint {
        tag,
        ..endpoint(id, summary, method, path, Access::Public, handler)
    }
}

/// The issuer of tokens. Rejects the request if the operator configured no public URL.
pub(super) struct Issuer(pub(super) String);

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

/// A form-encoded protocol request with client credentials and origin.
struct OAuthForm {
    fields: OAuthParameters,
    basic: ClientCredentials,
    origin: RequestOrigin,
}

/// The answer of the token endpoint: tokens of an application, or the token of a service identity.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum TokenAnswer<T> {
    Application(T),
    ServiceIdentity(ExchangedToken),
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "OAuthTokenBody")]
#[expect(
    dead_code,
    reason = "only described: what is read is read field by field"
)]
struct TokenBody {
    /// `authorization_code`, `refresh_token` or `urn:ietf:params:oauth:grant-type:token-exchange`.
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
    /// For a token exchange (RFC 8693): the token of the issuer that a service identity trusts.
    subject_token: Option<String>,
    /// `urn:ietf:params:oauth:token-type:jwt` or `urn:ietf:params:oauth:token-type:id_token`.
    subject_token_type: Option<String>,
    /// `urn:ietf:params:oauth:token-type:access_token`, which is the default.
    requested_token_type: Option<String>,
    /// Id of the service identity.
    audience: Option<String>,
}

impl OAuthForm {
    /// Reads the parameters from the body. A query is rejected, because URLs are logged by proxies.
    async fn read(call: &mut Call<'_>, origin: RequestOrigin) -> Result<Self, Error> {
        if call.uri().query().is_some_and(|query| !query.is_empty()) {
            return Err(oauth_error(
                "invalid_request",
                "Send the parameters in the body, not in the query.",
            ));
        }
        if !has_content_type(call, FORM) {
            return Err(oauth_error(
                "invalid_request",
                "The body must be application/x-www-form-urlencoded.",
            ));
        }
        let fields = OAuthParameters::parse(&call.body().await?)?;
        Ok(Self {
            fields,
            basic: call.client_credentials(),
            origin,
        })
    }
}

/// Returns whether the body has this media type, ignoring parameters.
fn has_content_type(call: &Call<'_>, kind: &str) -> bool {
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

impl Input for RequestOrigin {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(Self {
            address: call.peer().address,
            request_id: call.request_id().to_owned(),
            operation: call.operation(),
            entropy: PlatformContext::take(call).await?.entropy.clone(),
        })
    }
}

impl Input for OAuthForm {
    fn describe(described: &mut OperationDoc) {
        described.form_schema::<TokenBody>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let origin = RequestOrigin::take(call).await?;
        Self::read(call, origin).await
    }
}

static EXCHANGE: Endpoint = public(
    "v1-exchange-oauth-token",
    "Exchange a code, a refresh token or a token of a trusted issuer for tokens",
    Tag::OAuth,
    Verb::Post,
    "/v1/oauth/token",
    || mount(exchange),
);

async fn exchange(
    context: ApiContext,
    form: OAuthForm,
) -> Result<NoStore<Created<TokenAnswer<TokenPair>>>, Error> {
    let answer = match exchange_tokens(&context, form).await? {
        TokenAnswer::Application(response) => TokenAnswer::Application(response.pair),
        TokenAnswer::ServiceIdentity(token) => TokenAnswer::ServiceIdentity(token),
    };
    Ok(NoStore(Created(answer)))
}

pub(super) static EXCHANGE_STANDARD: Endpoint = public(
    "gantry-exchange-oauth-token",
    "Exchange a code, a refresh token (RFC 6749) or a token of a trusted issuer (RFC 8693)",
    Tag::Gantry,
    Verb::Post,
    "/oauth/token",
    || mount(exchange_standard),
);

async fn exchange_standard(
    context: ApiContext,
    form: OAuthForm,
) -> Result<NoStore<Json<TokenAnswer<TokenResponse>>>, Error> {
    Ok(NoStore(Json(exchange_tokens(&context, form).await?)))
}

async fn exchange_tokens(
    context: &ApiContext,
    OAuthForm {
        fields,
        basic,
        origin,
    }: OAuthForm,
) -> Result<TokenAnswer<TokenResponse>, Error> {
    if fields.get("grant_type") == Some(token_exchange::GRANT_TYPE) {
        let token = token_exchange::exchange(context, &fields, &origin).await?;
        return Ok(TokenAnswer::ServiceIdentity(token));
    }
    let application =
        client::authenticate(&context.db, basic, &fields, context.clock.now()).await?;
    let response = exchange::exchange(context, &application, &fields, &origin).await?;
    Ok(TokenAnswer::Application(response))
}

static REVOKE: Endpoint = public(
    "v1-revoke-token",
    "Revoke a refresh token and its authorization",
    Tag::OAuth,
    Verb::Post,
    "/v1/oauth/revoke",
    || {
        mount(revoke_json).sample(
            r#"{"client_id": "00000000-0000-4000-8000-000000000000", "client_secret": "sba_of_the_application", "refresh_token": "sbr_to_be_revoked"}"#,
        )
    },
);

/// A JSON body as in the contract. Some clients send the form of RFC 7009 instead, which is also
/// accepted.
struct RevocationForm {
    form: OAuthForm,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "OAuthRevokeTokenBody")]
struct RevokeBody {
    client_id: String,
    client_secret: String,
    refresh_token: String,
}

impl Input for RevocationForm {
    fn describe(described: &mut OperationDoc) {
        described.body_schema::<RevokeBody>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let origin = RequestOrigin::take(call).await?;
        if has_content_type(call, FORM) {
            return Ok(Self {
                form: OAuthForm::read(call, origin).await?,
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
            form: OAuthForm {
                fields: OAuthParameters::parse(text.as_bytes())?,
                basic: call.client_credentials(),
                origin,
            },
        })
    }
}

async fn revoke_json(context: ApiContext, given: RevocationForm) -> Result<NoContent, Error> {
    revoke_token(&context, given.form).await.map(|()| NoContent)
}

pub(super) static REVOKE_FORM: Endpoint = public(
    "gantry-revoke-oauth-token",
    "Revoke a token (RFC 7009)",
    Tag::Gantry,
    Verb::Post,
    "/oauth/revoke",
    || mount(revoke_form),
);

/// An empty JSON object, because some clients parse every response body.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OauthTokenRevoked")]
struct EmptyResponse {}

async fn revoke_form(context: ApiContext, form: OAuthForm) -> Result<Json<EmptyResponse>, Error> {
    revoke_token(&context, form)
        .await
        .map(|()| Json(EmptyResponse {}))
}

async fn revoke_token(
    context: &ApiContext,
    OAuthForm {
        fields,
        basic,
        origin,
    }: OAuthForm,
) -> Result<(), Error> {
    let application =
        client::authenticate(&context.db, basic, &fields, context.clock.now()).await?;
    let token = fields
        .get("token")
        .map_or_else(|| fields.required("refresh_token"), Ok)?;
    revoke::revoke(context, &application, token, &origin).await
}

pub(super) static INTROSPECT: Endpoint = public(
    "gantry-introspect-oauth-token",
    "Introspect a token (RFC 7662)",
    Tag::Gantry,
    Verb::Post,
    "/oauth/introspect",
    || mount(introspect),
);

async fn introspect(
    context: ApiContext,
    OAuthForm { fields, basic, .. }: OAuthForm,
) -> Result<NoStore<Json<Introspection>>, Error> {
    // RFC 7662, 2.1: a request without credentials is answered with 401, also if it names no
    // application.
    let authenticated =
        client::authenticate(&context.db, basic, &fields, context.clock.now()).await;
    let application = authenticated.map_err(|error| {
        if error.code().status == 422 {
            client::invalid_client()
        } else {
            error
        }
    })?;
    // A public client cannot authenticate, so it must not query tokens.
    if application.public {
        return Err(client::invalid_client());
    }
    let token = fields.required("token")?;
    Ok(NoStore(Json(
        introspect::introspect(&context.db, &application, token, context.clock.now()).await?,
    )))
}

static SERVER_METADATA: Endpoint = public(
    "gantry-oauth-server-metadata",
    "Get the metadata of the authorization server (RFC 8414)",
    Tag::Gantry,
    Verb::Get,
    "/.well-known/oauth-authorization-server",
    || mount(server),
);

async fn server(Issuer(issuer): Issuer) -> Result<Json<metadata::ServerMetadata>, Error> {
    Ok(Json(metadata::server_metadata(&issuer)))
}

static RESOURCE_METADATA_DOCUMENT: Endpoint = Endpoint {
    aliases: &["/.well-known/oauth-protected-resource/mcp"],
    ..public(
        "gantry-oauth-resource-metadata",
        "Get the metadata of the protected resource (RFC 9728)",
        Tag::Gantry,
        Verb::Get,
        RESOURCE_METADATA,
        || mount(resource),
    )
};

async fn resource(
    Issuer(issuer): Issuer,
    line: RequestLine,
) -> Result<Json<metadata::ResourceMetadata>, Error> {
    Ok(Json(metadata::resource_metadata(
        &issuer,
        line.path
            .strip_prefix(RESOURCE_METADATA)
            .unwrap_or_default(),
    )))
}

pub(super) static REGISTER: Endpoint = Endpoint {
    limit: &REGISTRATIONS,
    ..public(
        "gantry-register-oauth-application",
        "Register an OAuth application dynamically (RFC 7591)",
        Tag::Gantry,
        Verb::Post,
        "/platform/oauth/apps/register",
        || {
            mount(register).sample(
            r#"{"client_name": "Example", "redirect_uris": ["http://127.0.0.1/callback"], "token_endpoint_auth_method": "none", "scope": "projects:read"}"#,
        )
        },
    )
};

/// Requires an issuer: without one, a registered application could never request access.
async fn register(
    context: ApiContext,
    origin: RequestOrigin,
    Issuer(_): Issuer,
    Json(registration): Json<ClientRegistration>,
) -> Result<NoStore<Created<RegisteredClient>>, Error> {
    Ok(NoStore(Created(
        registration::register(&context, registration, &origin).await?,
    )))
}
