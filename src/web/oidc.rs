//! Sign-in through the identity provider (OpenID Connect, authorization code flow): the redirect to
//! the provider and the callback.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::{StatusCode, header};

use crate::{
    api::accounts::oidc::{
        OidcIdentity, OidcProvider, SignInFlow,
        identities::{self, IdentityLookup},
    },
    platform::{
        access::{Subject, User, sessions::SessionSecret},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        cookie,
        page::{PageResponse, public_page},
        redirect,
        sign_in::{self, SignInRequest},
    },
};

/// A link instead of a form: `form-action` permits no redirect to another origin, and the request
/// changes nothing.
pub(super) static BEGIN: Endpoint = public_page(
    "page-sign-in-oidc",
    "Sign in through the identity provider",
    Verb::Get,
    "/sign-in/provider",
    || mount(begin),
);
pub(super) static CALLBACK: Endpoint = public_page(
    "page-sign-in-oidc-return",
    "Callback of the identity provider",
    Verb::Get,
    "/sign-in/provider/return",
    || mount(callback),
);

/// Maximum length of an authorization code, in bytes.
const CODE_BYTES_MAX: usize = 4_096;
/// The callback does not match the pending sign-in of the browser.
const WRONG_STATE: &str =
    "This sign-in has expired or was started in another browser. Sign in again.";

fn provider(request: &SignInRequest) -> Result<&OidcProvider, Error> {
    request
        .context
        .api_settings
        .provider
        .as_deref()
        .ok_or(Error::NotFound)
}

fn redirect_uri(request: &SignInRequest) -> String {
    format!("{}{}", request.origin, CALLBACK.path)
}

async fn begin(request: SignInRequest) -> Result<PageResponse, Error> {
    let provider = provider(&request)?;
    let context = &request.context;
    let secret = SessionSecret::generate(&context.entropy);
    let address = provider
        .authorization_url(
            &context.outbound,
            &SignInFlow::of(secret.clone()),
            &redirect_uri(&request),
            context.clock.ticks(),
        )
        .await?;
    let next = redirect::safe_path(request.query_value("next"));
    let cookie = cookie::set_pending_sign_in(&secret, next, request.peer)?;
    Ok(PageResponse::redirect(&address)?.with_header(header::SET_COOKIE, cookie))
}

/// Handles the callback. The pending sign-in ends in every case, so that a callback is used once.
async fn callback(request: SignInRequest) -> Result<PageResponse, Error> {
    let cookie = cookie::clear_pending_sign_in(request.peer)?;
    let response = authenticate(&request).await?;
    Ok(response.with_header(header::SET_COOKIE, cookie))
}

async fn authenticate(request: &SignInRequest) -> Result<PageResponse, Error> {
    let provider = provider(request)?;
    let context = &request.context;
    let Some((secret, next)) = &request.pending else {
        return reject(request, WRONG_STATE);
    };
    let journey = SignInFlow::of(secret.clone());
    let state = request.query_value("state");
    if verify_slices_are_equal(state.as_bytes(), journey.state().as_bytes()).is_err() {
        return reject(request, WRONG_STATE);
    }
    let code = request.query_value("code");
    if code.is_empty() || code.len() > CODE_BYTES_MAX {
        return reject(
            request,
            "The sign-in was cancelled at the identity provider.",
        );
    }
    let now = context.clock.now();
    let Some(person) = provider
        .exchange_code(
            &context.outbound,
            &journey,
            code.to_owned(),
            &redirect_uri(request),
            (context.clock.ticks(), now),
        )
        .await?
    else {
        return reject(
            request,
            "The response of the identity provider is invalid. Try again. If the problem persists, contact \
             your operator.",
        );
    };
    let user = match find(request, provider, &person).await? {
        IdentityLookup::Found(user) => user,
        IdentityLookup::UnverifiedEmail => {
            return reject(
                request,
                "Your email address is not verified by the identity provider. Verify it and try again.",
            );
        }
        IdentityLookup::NotFound => {
            return reject(
                request,
                "No account uses this email address. Ask your operator to create one.",
            );
        }
    };
    request.begin_session(user, CALLBACK.id, next).await
}

async fn find(
    request: &SignInRequest,
    provider: &OidcProvider,
    person: &OidcIdentity,
) -> Result<IdentityLookup, Error> {
    let context = &request.context;
    let recorder = |user: &User| {
        Recorder::new(
            user,
            &Subject::Account,
            (request.address(), &request.request_id, CALLBACK.id),
            &context.entropy,
        )
    };
    identities::find(&context.db, provider, person, context.clock.now(), recorder).await
}

fn reject(request: &SignInRequest, message: &str) -> Result<PageResponse, Error> {
    Ok(sign_in::error_page(request, message)?.status(StatusCode::UNPROCESSABLE_ENTITY))
}
