//! Signing in through a provider of OpenID Connect: who stands behind a code that a browser brings back from it.

mod fetch;
pub mod identities;

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
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

use crate::{
    base::{
        clock::Ticks,
        error::{Context, Error},
    },
    platform::access::{credential::SecretDigest, sessions::Secret},
};

/// How long what the provider says about itself is believed, in milliseconds.
const METADATA_TTL: Ticks = 10 * 60 * 1_000;
/// When to ask a provider again that does not answer.
const RETRY: Duration = Duration::from_secs(5);
/// Signatures that are accepted. None of them can be made with what a provider publishes, nor with the client's secret.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::RsaSsaPkcs1V15Sha256,
    Algorithm::RsaSsaPssSha256,
    Algorithm::RsaSsaPkcs1V15Sha512,
    Algorithm::EcdsaP256Sha256,
    Algorithm::EcdsaP384Sha384,
    Algorithm::EdDsa,
];

/// How the provider is known.
#[derive(Debug, Clone)]
pub struct OidcOptions {
    /// Where its discovery begins.
    pub issuer: String,
    /// Who this server is to it.
    pub client_id: String,
    /// What shows it.
    pub client_secret: SecretString,
    /// What the button calls it.
    pub name: Option<String>,
    /// Domains of addresses that it vouches for.
    pub domains: Vec<String>,
}

/// Why a provider cannot be used as it was named.
#[derive(Debug, thiserror::Error)]
#[error("{0} cannot be the issuer: expected https://…, or http:// on this machine")]
pub struct InvalidIssuer(String);

/// A provider.
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

/// Who the provider says somebody is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcIdentity {
    /// Never given to another one there.
    pub subject: String,
    /// The address, if there is one.
    pub email: Option<String>,
    /// Whether the provider made sure that it is theirs.
    pub verified: bool,
}

/// What ties the way there and the way back to one browser: everything is derived from a secret that only its cookie has.
pub struct SignInFlow(Secret);

impl SignInFlow {
    /// Of the browser with this cookie.
    pub fn of(secret: Secret) -> Self {
        Self(secret)
    }

    /// What the provider hands back unseen.
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
    /// A provider that is asked when it is first needed.
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

    /// What people call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// By which its people are known here.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Whether its word about an address counts: its domain is one it vouches for.
    pub fn vouches_for(&self, email: &str) -> bool {
        email
            .rsplit_once('@')
            .is_some_and(|(_, domain)| self.domains.contains(&domain.to_lowercase()))
    }

    /// Where a browser goes to sign in there, and come back to `back`.
    pub async fn authorization_url(
        &self,
        journey: &SignInFlow,
        back: &str,
        now: Ticks,
    ) -> Result<String, Error> {
        let metadata = self.metadata(now).await?;
        let client = CoreClient::from_provider_metadata(
            (*metadata).clone(),
            self.client_id.clone(),
            Some(self.client_secret.clone()),
        )
        .set_redirect_uri(
            RedirectUrl::new(back.to_owned()).context("naming the way back from the provider")?,
        );
        let (state, nonce) = (CsrfToken::new(journey.state()), journey.nonce());
        let (url, _, _) = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                || state,
                || nonce,
            )
            .add_scope(Scope::new("email".to_owned()))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(
                &journey.verifier(),
            ))
            .url();
        Ok(url.into())
    }

    /// Who stands behind a code. `None` if the provider, or what it signed, does not say so beyond reject.
    pub async fn exchange_code(
        &self,
        journey: &SignInFlow,
        code: String,
        back: &str,
        (at, now): (Ticks, DateTime<Utc>),
    ) -> Result<Option<OidcIdentity>, Error> {
        let metadata = self.metadata(at).await?;
        let client = CoreClient::from_provider_metadata(
            (*metadata).clone(),
            self.client_id.clone(),
            Some(self.client_secret.clone()),
        )
        .set_redirect_uri(
            RedirectUrl::new(back.to_owned()).context("naming the way back from the provider")?,
        );
        let exchange = client
            .exchange_code(AuthorizationCode::new(code))
            .context("asking the provider")?;
        let exchange = exchange.set_pkce_verifier(journey.verifier());
        let answer = match exchange.request_async(&fetch::fetch).await {
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
        match token.claims(&verifier, &journey.nonce()) {
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
                    // Its keys may be new.
                    self.known.lock().take();
                }
                Ok(self.reject(&error))
            }
        }
    }

    /// What is not believed is for the operator to know.
    fn reject(&self, why: &dyn fmt::Display) -> Option<OidcIdentity> {
        tracing::warn!(issuer = self.issuer(), %why, "a sign-in through the provider was refused");
        None
    }

    async fn metadata(&self, now: Ticks) -> Result<Arc<CoreProviderMetadata>, Error> {
        let known = self
            .known
            .lock()
            .as_ref()
            .filter(|(since, _)| now.saturating_sub(*since) < METADATA_TTL)
            .map(|(_, known)| known.clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let found = CoreProviderMetadata::discover_async(self.issuer.clone(), &fetch::fetch)
            .await
            .map_err(|error| unavailable(&error))?;
        let found = Arc::new(found);
        *self.known.lock() = Some((now, found.clone()));
        Ok(found)
    }
}

fn unavailable(error: &dyn std::error::Error) -> Error {
    tracing::warn!(%error, "the provider of sign-ins cannot be asked");
    Error::Unavailable {
        what: "The provider does not answer".into(),
        retry: RETRY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Entropy;

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
    fn only_addresses_of_its_domains_are_vouched_for() {
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
    fn a_journey_tells_nothing_of_its_secret_and_is_like_no_other() {
        let entropy = Entropy::seeded(5);
        let (one, other) = (Secret::generate(&entropy), Secret::generate(&entropy));
        let journey = SignInFlow::of(one.clone());
        let parts = [
            journey.state(),
            journey.nonce().secret().clone(),
            journey.verifier().secret().clone(),
        ];
        assert!(parts.iter().all(|part| part.len() == 64
            && part != one.expose()
            && *part != hex::encode(one.digest().as_bytes())));
        assert!(parts[0] != parts[1] && parts[1] != parts[2] && parts[0] != parts[2]);
        assert_ne!(SignInFlow::of(other).state(), journey.state());
        assert_eq!(SignInFlow::of(one).state(), journey.state());
    }
}
