//! OAuth 2.0: applications of others act for members who let them.
//!
//! - [`applications`]: what is registered, with secrets and redirect URIs; [`register`]: applications that register themselves
//! - [`requests`]: what waits for a member's answer, and the answer
//! - [`grants`]: what was approved, and [`authorizations`], who sees and ends it; [`approvals`]: what stands behind an access token
//! - [`code`], [`refresh`]: the two state machines, as pure functions; [`exchange`]: the transaction that runs them
//! - [`redirect`], [`pkce`], [`fields`]: what a request has to look like; [`audience`]: the resource a token is for
//! - [`client`]: which application asks; [`revoke`], [`introspect`], [`metadata`]: the rest of the protocol
//! - [`upkeep`]: what is over goes away

pub mod applications;
pub mod authorizations;
pub mod client;
pub mod code;
pub mod exchange;
pub mod fields;
pub mod grants;
pub mod introspect;
pub mod metadata;
pub mod operations;
pub mod pkce;
pub mod redirect;
pub mod refresh;
pub mod register;
pub mod requests;
pub mod revoke;
pub mod upkeep;

use std::borrow::Cow;

use chrono::TimeDelta;
use secrecy::{ExposeSecret, SecretString};

use crate::{
    api::tokens::Digest,
    base::{clock::Entropy, error::Error},
};

/// What every access token of the protocol begins with.
pub const ACCESS_PREFIX: &str = "sbp_oauth_";

/// The account page that asks a member, and the one that tells what cannot be asked.
pub const CONSENT_PAGE: &str = "/authorize";
/// See [`CONSENT_PAGE`].
pub const PROBLEM_PAGE: &str = "/authorize/problem";

/// How long a code can be exchanged.
pub const CODE_LIFE: TimeDelta = TimeDelta::seconds(60);
/// How long a request waits for an answer.
pub const REQUEST_LIFE: TimeDelta = TimeDelta::minutes(10);
/// How long a refresh token lives if it is not used.
pub const REFRESH_LIFE: TimeDelta = TimeDelta::days(60);
/// How long what was approved can be renewed at all.
pub const GRANT_LIFE: TimeDelta = TimeDelta::days(365);

/// What the operator decided about applications.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where clients reach this server: scheme, host and port, without a slash at the end. Without it no consent can be asked
    /// for: an issuer taken from the `Host` field would be the sender's choice.
    pub public_url: Option<String>,
    /// How long an access token lives.
    pub access_life: TimeDelta,
}

impl Settings {
    /// The issuer of tokens (RFC 8414, 2).
    pub fn issuer(&self) -> Result<&str, Error> {
        self.public_url
            .as_deref()
            .ok_or(Error::Unconfigured(NO_ISSUER))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            public_url: None,
            access_life: TimeDelta::days(1),
        }
    }
}

/// The answer where an issuer is needed and none is configured.
const NO_ISSUER: &str = "OAuth needs an address that clients know this server by. Its operator has to start it with --public-url, \
                         for example --public-url https://api.example.com";

/// An error that the protocol has a name for: its name, and what a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// As the specifications spell it.
    pub error: &'static str,
    /// One sentence. It never repeats what was sent.
    pub description: Cow<'static, str>,
    /// Whether no application is named, or none that is known: the contract has a status of its own for that.
    pub unprocessable: bool,
}

/// An error of the protocol.
pub fn fault(error: &'static str, description: impl Into<Cow<'static, str>>) -> Error {
    Error::Oauth(Fault {
        error,
        description: description.into(),
        unprocessable: false,
    })
}

/// The error of a request that names no application that is known.
pub fn unprocessable(description: &'static str) -> Error {
    Error::Oauth(Fault {
        error: "invalid_request",
        description: description.into(),
        unprocessable: true,
    })
}

/// A secret of ours that is shown once and kept as its digest.
pub struct Minted(SecretString);

impl Minted {
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
    pub fn digest(&self) -> Digest {
        Digest::of(self.expose())
    }

    /// In clear, to be shown once.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}
