//! OAuth 2.0: applications of others act for members who let them.
//!
//! - [`applications`]: what is registered, with secrets and redirect URIs; [`registration`]: applications that register themselves
//! - [`requests`]: what waits for a member's answer, and the answer
//! - [`grants`]: what was approved, and [`authorizations`], who sees and ends it; [`approvals`]: what stands behind an access token
//! - [`code`], [`refresh`]: the two state machines, as pure functions; [`exchange`]: the transaction that runs them
//! - [`redirect`], [`pkce`], [`parameters`]: what a request has to look like; [`audience`]: the resource a token is for
//! - [`client`]: which application asks; [`revoke`], [`introspect`], [`metadata`]: the rest of the protocol
//! - [`cleanup`]: what is over goes away

pub mod applications;
pub mod authorizations;
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

use chrono::TimeDelta;
use secrecy::{ExposeSecret, SecretString};

use crate::{
    base::clock::Entropy,
    platform::access::credential::{ACCESS_PREFIX, SecretDigest},
};

/// The account page that asks a member, and the one that tells what cannot be asked.
pub const CONSENT_PAGE: &str = "/authorize";
/// See [`CONSENT_PAGE`].
pub const PROBLEM_PAGE: &str = "/authorize/problem";

/// How long a code can be exchanged.
pub const CODE_LIFETIME: TimeDelta = TimeDelta::seconds(60);
/// How long a request waits for an answer.
pub const REQUEST_LIFETIME: TimeDelta = TimeDelta::minutes(10);
/// How long a refresh token lives if it is not used.
pub const REFRESH_LIFETIME: TimeDelta = TimeDelta::days(60);
/// How long what was approved can be renewed at all.
pub const GRANT_LIFETIME: TimeDelta = TimeDelta::days(365);

/// What the operator decided about applications.
#[derive(Debug, Clone)]
pub struct OAuthSettings {
    /// How long an access token lives.
    pub access_lifetime: TimeDelta,
}

impl Default for OAuthSettings {
    fn default() -> Self {
        Self {
            access_lifetime: TimeDelta::days(1),
        }
    }
}

/// A secret of ours that is shown once and kept as its digest.
pub struct GeneratedSecret(SecretString);

impl GeneratedSecret {
    /// 160 random bits in hex after `prefix`.
    fn new(prefix: &str, entropy: &Entropy) -> Self {
        Self(format!("{prefix}{}", hex::encode(entropy.bytes::<20>())).into())
    }

    /// An access token. Clients know its form.
    pub fn access(entropy: &Entropy) -> Self {
        Self::new(ACCESS_PREFIX, entropy)
    }

    /// A refresh token.
    pub fn refresh(entropy: &Entropy) -> Self {
        Self::new("sbr_", entropy)
    }

    /// A code.
    pub fn code(entropy: &Entropy) -> Self {
        Self::new("sbc_", entropy)
    }

    /// An application's secret.
    pub fn secret(entropy: &Entropy) -> Self {
        Self::new("sba_", entropy)
    }

    /// By which it is known here.
    pub fn digest(&self) -> SecretDigest {
        SecretDigest::of(self.expose())
    }

    /// In clear, to be shown once.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}
