//! OAuth 2.0 authorization server: members grant access to third-party applications.
//!
//! - [`applications`]: registered applications with secrets and redirect URIs; [`registration`]:
//!   dynamic client registration
//! - [`authorize`]: the authorization endpoint; [`requests`]: pending authorization requests, and
//!   their approval or denial
//! - [`grants`]: granted access; [`authorizations`]: operations that list and revoke it
//! - [`code`], [`refresh`]: pure state machines of codes and refresh tokens; [`exchange`]: the
//!   transaction that applies them
//! - [`token_exchange`]: tokens of service identities for tokens of other issuers
//! - [`redirect`], [`pkce`], [`parameters`]: validation of requests
//! - [`client`]: client authentication; [`revoke`], [`introspect`], [`metadata`]: further endpoints
//! - [`cleanup`]: periodic deletion of expired rows

pub mod applications;
pub mod authorizations;
pub mod authorize;
pub mod cleanup;
pub mod client;
pub mod code;
pub mod exchange;
pub mod grants;
pub mod introspect;
pub mod metadata;
pub mod operations;
pub mod parameters;
pub mod pkce;
pub mod redirect;
pub mod refresh;
pub mod registration;
pub mod requests;
pub mod revoke;
pub mod token_exchange;

use chrono::TimeDelta;
use gantry_base::clock::Entropy;
use secrecy::{ExposeSecret, SecretString};

use crate::platform::{
    access::{
        Access,
        credential::{ACCESS_PREFIX, SecretDigest},
    },
    http::{Endpoint, Tag, Verb, endpoint::MountedHandler},
    rate_limits::STANDARD,
};

/// Path of the consent page.
pub const CONSENT_PAGE: &str = "/authorize";
/// Path of the page for requests that cannot be answered by a redirect.
pub const PROBLEM_PAGE: &str = "/authorize/problem";

/// Lifetime of an authorization code.
pub const CODE_LIFETIME: TimeDelta = TimeDelta::seconds(60);
/// Lifetime of a pending authorization request.
pub const REQUEST_LIFETIME: TimeDelta = TimeDelta::minutes(10);
/// Lifetime of an unused refresh token.
pub const REFRESH_LIFETIME: TimeDelta = TimeDelta::days(60);
/// Maximum lifetime of a grant, however often its tokens are refreshed.
pub const GRANT_LIFETIME: TimeDelta = TimeDelta::days(365);

/// OAuth options of the operator.
#[derive(Debug, Clone)]
pub struct OAuthSettings {
    /// Lifetime of an access token.
    pub access_lifetime: TimeDelta,
}

impl Default for OAuthSettings {
    fn default() -> Self {
        Self {
            access_lifetime: TimeDelta::days(1),
        }
    }
}

/// Declares an operation on OAuth.
const fn endpoint(
    id: &'static str,
    summary: &'static str,
    method: Verb,
    path: &'static str,
    access: Access,
    handler: fn() -> MountedHandler,
) -> Endpoint {
    Endpoint {
        id,
        summary,
        tag: Tag::Gantry,
        method,
        path,
        aliases: &[],
        access,
        limit: &STANDARD,
        handler,
    }
}

/// A generated secret: returned once in plain text, stored as a digest.
pub struct GeneratedSecret(SecretString);

impl GeneratedSecret {
    /// Generates 160 random bits, in hex after `prefix`.
    fn new(prefix: &str, entropy: &Entropy) -> Self {
        Self(format!("{prefix}{}", hex::encode(entropy.bytes::<20>())).into())
    }

    /// Generates an access token. Clients rely on its prefix.
    pub fn access(entropy: &Entropy) -> Self {
        Self::new(ACCESS_PREFIX, entropy)
    }

    /// Generates a refresh token.
    pub fn refresh(entropy: &Entropy) -> Self {
        Self::new("sbr_", entropy)
    }

    /// Generates an authorization code.
    pub fn code(entropy: &Entropy) -> Self {
        Self::new("sbc_", entropy)
    }

    /// Generates an application secret.
    pub fn secret(entropy: &Entropy) -> Self {
        Self::new("sba_", entropy)
    }

    /// Returns the digest that is stored.
    pub fn digest(&self) -> SecretDigest {
        SecretDigest::of(self.expose())
    }

    /// Returns the plain text.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}
