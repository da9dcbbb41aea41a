//! Sign-in through an OpenID Connect provider (authorization code flow with PKCE).

mod fetch;
pub mod identities;

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use gantry_base::clock::Ticks;
use openidconnect::{
    AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret, CsrfToken, IssuerUrl,
    Nonce, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, Scope, SignatureVerificationError,
    TokenResponse,
    core::{
        CoreAuthenticationFlow, CoreClient, CoreJwsSigningAlgorithm as Algorithm,
        CoreProviderMetadata,
    },
};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};

use crate::platform::{
    access::{credential::SecretDigest, sessions::SessionSecret},
    error::{Context, Error},
    outbound::OutboundClient,
};

/// How long provider metadata is cached, in milliseconds.
const METADATA_TTL: Ticks = 10 * 60 * 1_000;
/// Retry delay when the provider is unavailable.
const RETRY: Duration = Duration::from_secs(5);
/// Accepted signature algorithms: only asymmetric ones, which neither published keys nor the client
/// secret can forge.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::RsaSsaPkcs1V15Sha256,
    Algorithm::RsaSsaPssSha256,
    Algorithm::RsaSsaPkcs1V15Sha512,
    Algorithm::EcdsaP256Sha256,
    Algorithm::EcdsaP384Sha384,
    Algorithm::EdDsa,
];

/// Configuration of the provider.
#[derive(Debug, Clone)]
pub struct OidcOptions {
    /// Issuer URL, from which the metadata is discovered.
    pub issuer: String,
    /// Client id of this server.
    pub client_id: String,
    /// Client secret of this server.
    pub client_secret: SecretString,
    /// Label of the sign-in button; defaults to the host of the issuer.
    pub name: Option<String>,
    /// Email domains in which the provider's verified addresses are trusted.
    pub domains: Vec<String>,
}

/// The issuer URL is not permitted.
#[derive(Debug, thiserror::Error)]
#[error("{0} cannot be the issuer: expected https://…, or http:// on this machine")]
pub struct InvalidIssuer(String);

/// An OpenID Connect provider.
pub struct OidcProvider {
    issuer: IssuerUrl,
    client_id: ClientId,
    client_secret: ClientSecret,
    name: String,
    domains: Vec<String>,
    known: Mutex<Option<(Ticks, Arc<CoreProviderMetadata>)>>,
}

impl fmt::Debug for OidcProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OidcProvider")
            .field("issuer", &self.issuer)
            .finish_non_exhaustive()
    }
}

/// An authenticated identity of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcIdentity {
    /// Subject: unique and never reassigned by the provider.
    pub subject: String,
    /// Email address.
    pub email: Option<String>,
    /// Whether the provider has verified the email address.
    pub verified: bool,
}

/// State of one sign-in, bound to a browser: state, nonce and PKCE verifier are derived from the
/// secret in its cookie.
pub struct SignInFlow(SessionSecret);

impl SignInFlow {
    /// Returns the flow of the browser with this cookie.
    pub fn of(secret: SessionSecret) -> Self {
        Self(secret)
    }

    /// Returns the `state` parameter.
    pub fn state(&self) -> String {
        self.derived("state")
    }

    fn nonce(&self) -> Nonce {
        Nonce::new(self.derived("nonce"))
    }

    fn verifier(&self) -> PkceCodeVerifier {
        PkceCodeVerifier::new(self.derived("verifier"))
    }

    fn derived(&self, what: &str) -> String {
        hex::encode(SecretDigest::of(&format!("sign-in {what} {}", self.0.expose())).as_bytes())
    }
}

impl OidcProvider {
    /// Creates a provider. Its metadata is fetched on first use.
    pub fn new(options: OidcOptions) -> Result<Self, InvalidIssuer> {
        let url = IssuerUrl::new(options.issuer.clone())
            .ok()
            .filter(|issuer| fetch::is_permitted_url(issuer.url()));
        let issuer = url.ok_or(InvalidIssuer(options.issuer))?;
        let host = issuer.url().host_str().unwrap_or_default().to_owned();
        Ok(Self {
            name: options.name.unwrap_or(host),
            issuer,
            client_id: ClientId::new(options.client_id),
            client_secret: ClientSecret::new(
                options.client_secret.expose_secret().trim().to_owned(),
            ),
            domains: options
                .domains
                .iter()
                .map(|domain| domain.to_lowercase())
                .collect(),
            known: Mutex::new(None),
        })
    }

    /// Returns the label of the sign-in button.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the issuer URL.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns whether the address is in a trusted domain of the provider.
    pub fn vouches_for(&self, email: &str) -> bool {
        email
            .rsplit_once('@')
            .is_some_and(|(_, domain)| self.domains.contains(&domain.to_lowercase()))
    }

    /// Returns the URL of the provider where the browser signs in. The provider redirects to
    /// `back`.
    pub async fn authorization_url(
        &self,
        outbound: &OutboundClient,
        flow: &SignInFlow,
        back: &str,
        now: Ticks,
    ) -> Result<String, Error> {
        let metadata = self.metadata(outbound, now).await?;
        let client = CoreClient::from_provider_metadata(
            (*metadata).clone(),
            self.client_id.clone(),
            Some(self.client_secret.clone()),
        )
        .set_redirect_uri(
            RedirectUrl::new(back.to_owned())
                .context("parsing the redirect URI of the identity provider")?,
        );
        let state = CsrfToken::new(flow.state());
        let nonce = flow.nonce();
        let (url, _, _) = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                || state,
                || nonce,
            )
            .add_scope(Scope::new("email".to_owned()))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(
                &flow.verifier(),
            ))
            .url();
        Ok(url.into())
    }

    /// Exchanges a code for the authenticated identity. Returns `None` if the provider rejects the
    /// code or the ID token is invalid.
    pub async fn exchange_code(
        &self,
        outbound: &OutboundClient,
        flow: &SignInFlow,
        code: String,
        back: &str,
        (at, now): (Ticks, DateTime<Utc>),
    ) -> Result<Option<OidcIdentity>, Error> {
        let metadata = self.metadata(outbound, at).await?;
        let client = CoreClient::from_provider_metadata(
            (*metadata).clone(),
            self.client_id.clone(),
            Some(self.client_secret.clone()),
        )
        .set_redirect_uri(
            RedirectUrl::new(back.to_owned())
                .context("parsing the redirect URI of the identity provider")?,
        );
        let exchange = client
            .exchange_code(AuthorizationCode::new(code))
            .context("contacting the identity provider")?;
        let exchange = exchange.set_pkce_verifier(flow.verifier());
        let fetch = |request| fetch::fetch(outbound.clone(), request);
        let answer = match exchange.request_async(&fetch).await {
            Ok(answer) => answer,
            Err(openidconnect::RequestTokenError::Request(error)) => {
                return Err(unavailable(&error));
            }
            Err(error) => return Ok(self.reject(&error)),
        };
        let Some(token) = answer.id_token() else {
            return Ok(self.reject(&"there is no ID token"));
        };
        let verifier = client
            .id_token_verifier()
            .set_allowed_algs(ALGORITHMS)
            .set_time_fn(move || now);
        match token.claims(&verifier, &flow.nonce()) {
            Ok(claims) => Ok(Some(OidcIdentity {
                subject: claims.subject().to_string(),
                email: claims.email().map(|email| email.to_string()),
                verified: claims.email_verified() == Some(true),
            })),
            Err(error) => {
                if matches!(
                    error,
                    ClaimsVerificationError::SignatureVerification(
                        SignatureVerificationError::NoMatchingKey
                    )
                ) {
                    // The provider may have rotated its keys.
                    self.known.lock().take();
                }
                Ok(self.reject(&error))
            }
        }
    }

    /// Logs a rejected sign-in for the operator.
    fn reject(&self, why: &dyn fmt::Display) -> Option<OidcIdentity> {
        tracing::warn!(issuer = self.issuer(), %why, "sign-in through the identity provider rejected");
        None
    }

    async fn metadata(
        &self,
        outbound: &OutboundClient,
        now: Ticks,
    ) -> Result<Arc<CoreProviderMetadata>, Error> {
        let known = self
            .known
            .lock()
            .as_ref()
            .filter(|(since, _)| now.saturating_sub(*since) < METADATA_TTL)
            .map(|(_, known)| known.clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let fetch = |request| fetch::fetch(outbound.clone(), request);
        let found = CoreProviderMetadata::discover_async(self.issuer.clone(), &fetch)
            .await
            .map_err(|error| unavailable(&error))?;
        let found = Arc::new(found);
        *self.known.lock() = Some((now, found.clone()));
        Ok(found)
    }
}

fn unavailable(error: &dyn std::error::Error) -> Error {
    tracing::warn!(%error, "identity provider unreachable");
    Error::Unavailable {
        what: "The identity provider does not respond".into(),
        retry: RETRY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_base::clock::Entropy;

    fn options(issuer: &str) -> OidcOptions {
        OidcOptions {
            issuer: issuer.to_owned(),
            client_id: "gantry".to_owned(),
            client_secret: "secret".into(),
            name: None,
            domains: vec!["Example.com".to_owned()],
        }
    }

    #[test]
    fn vouches_for_configured_domains_only() {
        let provider = OidcProvider::new(options("https://id.example")).unwrap();
        assert!(provider.vouches_for("ada@example.com") && provider.vouches_for("ADA@EXAMPLE.COM"));
        for email in [
            "ada@sub.example.com",
            "ada@notexample.com",
            "ada@example.com.evil.example",
            "ada",
            "@",
            "example.com",
        ] {
            assert!(!provider.vouches_for(email), "{email}");
        }
        assert_eq!(provider.name(), "id.example");
        assert!(!format!("{provider:?}").contains("secret"));
        assert!(OidcProvider::new(options("http://id.example")).is_err());
    }

    #[test]
    fn flow_values_are_distinct_and_hide_the_secret() {
        let entropy = Entropy::seeded(5);
        let one = SessionSecret::generate(&entropy);
        let other = SessionSecret::generate(&entropy);
        let flow = SignInFlow::of(one.clone());
        let parts = [
            flow.state(),
            flow.nonce().secret().clone(),
            flow.verifier().secret().clone(),
        ];
        assert!(parts.iter().all(|part| part.len() == 64
            && part != one.expose()
            && *part != hex::encode(one.digest().as_bytes())));
        assert!(parts[0] != parts[1] && parts[1] != parts[2] && parts[0] != parts[2]);
        assert_ne!(SignInFlow::of(other).state(), flow.state());
        assert_eq!(SignInFlow::of(one).state(), flow.state());
    }
}
