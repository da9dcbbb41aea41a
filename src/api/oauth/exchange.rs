//! The token endpoint: exchanges a code or a refresh token for a pair of tokens.
//!
//! Each exchange is one transaction that locks the grant, so concurrent exchanges are serialized.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use gantry_base::{clock::Entropy, ids::ApprovalId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{
    GeneratedSecret,
    applications::Application,
    code,
    code::{AuthorizationCode, CodeExchange, CodeVerdict},
    grants,
    grants::{LockedGrant, RevocationReason},
    parameters::OAuthParameters,
    pkce::PkceChallenge,
    refresh,
    refresh::{RefreshToken, RefreshVerdict},
};
use crate::{
    api::{context::ApiContext, service_identities::IdentityRow},
    platform::{
        access::{Scopes, credential::SecretDigest},
        audit::Recorder,
        error::{Context, Error, oauth_error},
    },
};

/// The origin of a protocol request, for the audit log.
#[derive(Debug, Clone)]
pub struct RequestOrigin {
    /// The client's address.
    pub address: IpAddr,
    /// The id of the request, also in the server log.
    pub request_id: String,
    /// Id of the operation.
    pub operation: &'static str,
    /// Makes the ids of events.
    pub entropy: Entropy,
}

impl RequestOrigin {
    /// Returns a recorder for events of a member's grant.
    pub fn recorder(&self, grant: &LockedGrant) -> Recorder {
        Recorder::of_approval(
            (grant.id, grant.actor),
            grant.organization,
            self.request(),
            &self.entropy,
        )
    }

    /// Returns a recorder for the registration of an application.
    pub fn registration(&self, client_id: Uuid) -> Recorder {
        Recorder::of_application(client_id, self.request(), &self.entropy)
    }

    /// Returns a recorder for exchanges of a service identity.
    pub fn service_identity(&self, identity: &IdentityRow) -> Recorder {
        Recorder::of_application(identity.id, self.request(), &self.entropy)
            .about(identity.organization, &identity.slug)
    }

    fn request(&self) -> (IpAddr, &str, &'static str) {
        (self.address, &self.request_id, self.operation)
    }
}

/// A pair of tokens.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OAuthTokenResponse")]
pub struct TokenPair {
    /// Token for API requests.
    pub access_token: String,
    /// Token for the next exchange.
    pub refresh_token: String,
    /// Lifetime of the access token in seconds.
    pub expires_in: i64,
    /// `Bearer`.
    pub token_type: String,
}

/// A token response with scope and projects.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OAuthTokenResponseInFull")]
pub struct TokenResponse {
    /// The tokens.
    #[serde(flatten)]
    pub pair: TokenPair,
    /// Scopes of the access token, separated by spaces.
    pub scope: String,
    /// Refs of the projects that the token can access; null means all projects of the organization.
    pub project_refs: Option<Vec<String>>,
}

/// Exchanges the code or refresh token in the parameters for a pair of tokens.
pub async fn exchange(
    context: &ApiContext,
    application: &Application,
    fields: &OAuthParameters,
    origin: &RequestOrigin,
) -> Result<TokenResponse, Error> {
    let exchange = TokenExchange {
        context,
        application,
        fields,
        origin,
        now: context.clock.now(),
    };
    match fields.required("grant_type")? {
        "authorization_code" => exchange.code().await,
        "refresh_token" => exchange.refresh().await,
        _ => Err(oauth_error(
            "unsupported_grant_type",
            "The grant_type must be authorization_code, refresh_token or urn:ietf:params:oauth:grant-type:token-exchange.",
        )),
    }
}

/// One request to the token endpoint.
struct TokenExchange<'a> {
    context: &'a ApiContext,
    application: &'a Application,
    fields: &'a OAuthParameters,
    origin: &'a RequestOrigin,
    now: DateTime<Utc>,
}

/// The reason to issue no tokens, found while the grant is locked.
enum ExchangeError {
    /// The request is rejected; the grant stays.
    Rejected(Error),
    /// A code or token was replayed, so the grant is revoked.
    GrantRevoked,
}

const NO_CODE: &str = "The code is unknown, used, expired, or of another application.";
const NO_REFRESH: &str = "The refresh token is unknown, used, expired, or of another application.";

impl TokenExchange<'_> {
    async fn code(&self) -> Result<TokenResponse, Error> {
        let digest = SecretDigest::of(self.fields.required("code")?);
        let doing = "exchanging a code";
        let mut client = self.context.db.client().await?;
        let transaction = client.transaction().await.context(doing)?;
        let sql = "select grant_id from oauth_codes where digest = $1";
        let found = transaction
            .query_opt(sql, &[&digest.as_bytes()])
            .await
            .context(doing)?;
        let Some(grant) = self.lock_grant(&transaction, found).await? else {
            return Err(oauth_error("invalid_grant", NO_CODE));
        };
        let sql = "select redirect_uri, challenge, created_at, used_at is not null from oauth_codes where digest = $1";
        let row = transaction
            .query_opt(sql, &[&digest.as_bytes()])
            .await
            .context(doing)?;
        let row = row.ok_or_else(|| oauth_error("invalid_grant", NO_CODE))?;
        let challenge = row
            .get::<_, Option<&[u8]>>(1)
            .map(|bytes| {
                PkceChallenge::from_bytes(bytes)
                    .ok_or("not a SHA-256")
                    .context(doing)
            })
            .transpose()?;
        let code = AuthorizationCode {
            application: grant.application,
            redirect_uri: row.get(0),
            challenge,
            created_at: row.get(2),
            used: row.get(3),
            live: grant.live,
        };
        let attempt = CodeExchange {
            application: self.application.id,
            redirect_uri: self.fields.get("redirect_uri"),
            verifier: self.fields.get("code_verifier"),
        };
        let verdict = code::judge(&code, attempt, self.now);
        if verdict != CodeVerdict::OtherClient {
            let sql = "update oauth_codes set used_at = coalesce(used_at, $2) where digest = $1";
            transaction
                .execute(sql, &[&digest.as_bytes(), &self.now])
                .await
                .context(doing)?;
        }
        let outcome = match verdict {
            CodeVerdict::OtherClient => Err(ExchangeError::Rejected(oauth_error(
                "invalid_grant",
                NO_CODE,
            ))),
            CodeVerdict::Replayed => Err(ExchangeError::GrantRevoked),
            CodeVerdict::Invalid(description) => Err(ExchangeError::Rejected(oauth_error(
                "invalid_grant",
                description,
            ))),
            CodeVerdict::Issue => match self.issued_scopes(&grant) {
                Ok(scopes) => Ok(self.issue(&transaction, &grant, scopes).await?.0),
                Err(error) => Err(ExchangeError::Rejected(error)),
            },
        };
        self.record(&transaction, &grant, &outcome).await?;
        transaction.commit().await.context(doing)?;
        self.respond(outcome).await
    }

    async fn refresh(&self) -> Result<TokenResponse, Error> {
        let digest = SecretDigest::of(self.fields.required("refresh_token")?);
        let doing = "exchanging a refresh token";
        let mut client = self.context.db.client().await?;
        let transaction = client.transaction().await.context(doing)?;
        let sql = "select grant_id from oauth_refresh_tokens where digest = $1";
        let found = transaction
            .query_opt(sql, &[&digest.as_bytes()])
            .await
            .context(doing)?;
        let Some(grant) = self.lock_grant(&transaction, found).await? else {
            return Err(oauth_error("invalid_grant", NO_REFRESH));
        };
        let sql = "select r.id, r.expires_at, r.consumed_at, r.revoked_at is not null, r.next_access, r.next_refresh, \
                   coalesce(a.first_used_at is null and a.revoked_at is null and n.consumed_at is null and n.revoked_at is null, false) \
                   from oauth_refresh_tokens r left join oauth_access_tokens a on a.id = r.next_access \
                   left join oauth_refresh_tokens n on n.id = r.next_refresh where r.digest = $1";
        let row = transaction
            .query_opt(sql, &[&digest.as_bytes()])
            .await
            .context(doing)?;
        let row = row.ok_or_else(|| oauth_error("invalid_grant", NO_REFRESH))?;
        let refresh = RefreshToken {
            application: grant.application,
            expires_at: row.get(1),
            consumed_at: row.get(2),
            replaced: row.get(3),
            next_unused: row.get(6),
            live: grant.live,
        };
        let outcome = match refresh::judge(&refresh, self.application.id, self.now) {
            RefreshVerdict::OtherClient => Err(ExchangeError::Rejected(oauth_error(
                "invalid_grant",
                NO_REFRESH,
            ))),
            RefreshVerdict::Invalid(description) => Err(ExchangeError::Rejected(oauth_error(
                "invalid_grant",
                description,
            ))),
            RefreshVerdict::Reused => Err(ExchangeError::GrantRevoked),
            verdict @ (RefreshVerdict::Rotate | RefreshVerdict::Reissue) => match self
                .issued_scopes(&grant)
            {
                // No tokens were issued, so the refresh token stays usable.
                Err(error) => Err(ExchangeError::Rejected(error)),
                Ok(scopes) => {
                    let lost = (row.get(4), row.get(5));
                    if verdict == RefreshVerdict::Rotate
                        || self.revoke_lost_pair(&transaction, lost).await?
                    {
                        let (pair, access, next) = self.issue(&transaction, &grant, scopes).await?;
                        let sql = "update oauth_refresh_tokens set consumed_at = coalesce(consumed_at, $2), next_access = $3, \
                                   next_refresh = $4 where id = $1";
                        transaction
                            .execute(sql, &[&row.get::<_, i64>(0), &self.now, &access, &next])
                            .await
                            .context(doing)?;
                        Ok(pair)
                    } else {
                        Err(ExchangeError::GrantRevoked)
                    }
                }
            },
        };
        self.record(&transaction, &grant, &outcome).await?;
        transaction.commit().await.context(doing)?;
        self.respond(outcome).await
    }

    async fn lock_grant(
        &self,
        transaction: &Transaction<'_>,
        row: Option<tokio_postgres::Row>,
    ) -> Result<Option<LockedGrant>, Error> {
        match row {
            Some(row) => grants::lock(transaction, ApprovalId(row.get(0))).await,
            None => Ok(None),
        }
    }

    /// Revokes the pair of tokens that a client never received. Returns `false` if its access token
    /// was used meanwhile: then the pair was received.
    async fn revoke_lost_pair(
        &self,
        transaction: &Transaction<'_>,
        (access, next): (Option<i64>, Option<i64>),
    ) -> Result<bool, Error> {
        let doing = "replacing a lost pair of tokens";
        let sql = "update oauth_access_tokens set revoked_at = $2 where id = $1 and first_used_at is null and revoked_at is null";
        if transaction
            .execute(sql, &[&access, &self.now])
            .await
            .context(doing)?
            == 0
        {
            return Ok(false);
        }
        let sql = "update oauth_refresh_tokens set revoked_at = $2 where id = $1 and consumed_at is null and revoked_at is null";
        Ok(transaction
            .execute(sql, &[&next, &self.now])
            .await
            .context(doing)?
            == 1)
    }

    /// Returns the scopes of the new access token: those requested, which must be a subset of the
    /// granted ones.
    fn issued_scopes(&self, grant: &LockedGrant) -> Result<Scopes, Error> {
        if let Some(resource) = self.fields.get("resource")
            && grant.resource.as_deref() != Some(resource)
        {
            return Err(oauth_error(
                "invalid_target",
                "The authorization does not include this resource.",
            ));
        }
        if grant.scopes.is_empty() {
            return Err(oauth_error(
                "invalid_scope",
                "The application no longer has any of the approved scopes; request authorization again.",
            ));
        }
        let Some(text) = self.fields.get("scope").filter(|text| *text != "all") else {
            return Ok(grant.scopes);
        };
        let requested = Scopes::named(text.split(' '));
        let all_known = text.split(' ').count() == requested.iter().count();
        if !all_known || !requested.within(grant.scopes) || requested.is_empty() {
            return Err(oauth_error(
                "invalid_scope",
                "The requested scopes exceed the approved scopes.",
            ));
        }
        Ok(requested)
    }

    /// Issues a pair of tokens. Returns it with the row ids of the access and the refresh token.
    async fn issue(
        &self,
        transaction: &Transaction<'_>,
        grant: &LockedGrant,
        scopes: Scopes,
    ) -> Result<(TokenResponse, i64, i64), Error> {
        let doing = "issuing tokens";
        let access = GeneratedSecret::access(&self.context.entropy);
        let next = GeneratedSecret::refresh(&self.context.entropy);
        let access_digest = access.digest();
        let next_digest = next.digest();
        let lifetime = self.context.api_settings.oauth.access_lifetime;
        let sql = "insert into oauth_access_tokens (digest, grant_id, scopes, created_at, expires_at) values ($1, $2, $3, $4, $5) returning id";
        let names = scopes.names();
        let access_expiry = self.now + lifetime;
        let values: [crate::platform::db::Param<'_>; 5] = [
            &access_digest.as_bytes(),
            &grant.id.0,
            &names,
            &self.now,
            &access_expiry,
        ];
        let access_row = transaction
            .query_one(sql, &values)
            .await
            .context(doing)?
            .get(0);
        let sql = "insert into oauth_refresh_tokens (digest, grant_id, created_at, expires_at) values ($1, $2, $3, $4) returning id";
        let expiry = refresh::expiry(grant.created_at, self.now);
        let values: [crate::platform::db::Param<'_>; 4] =
            [&next_digest.as_bytes(), &grant.id.0, &self.now, &expiry];
        let next_row = transaction
            .query_one(sql, &values)
            .await
            .context(doing)?
            .get(0);
        let pair = TokenPair {
            access_token: access.expose().to_owned(),
            refresh_token: next.expose().to_owned(),
            expires_in: lifetime.num_seconds(),
            token_type: "Bearer".to_owned(),
        };
        Ok((
            TokenResponse {
                pair,
                scope: scopes.to_string(),
                project_refs: grant.project_refs.clone(),
            },
            access_row,
            next_row,
        ))
    }

    /// Records the outcome in the audit log, and revokes the grant after a replay.
    async fn record(
        &self,
        transaction: &Transaction<'_>,
        grant: &LockedGrant,
        outcome: &Result<TokenResponse, ExchangeError>,
    ) -> Result<(), Error> {
        let audit = self.origin.recorder(grant);
        let about = json!({"application": self.application.client_id, "approval": grant.id.0});
        match outcome {
            Ok(_) => {
                audit
                    .write_in(transaction, 201, (None, Some(about)), self.now)
                    .await
            }
            Err(ExchangeError::GrantRevoked)
                if grants::mark_revoked(
                    transaction,
                    grant.id,
                    RevocationReason::Replay,
                    self.now,
                )
                .await? =>
            {
                audit
                    .write_in(
                        transaction,
                        400,
                        (Some(about), Some(json!({"ended": "replay"}))),
                        self.now,
                    )
                    .await
            }
            Err(ExchangeError::Rejected(_) | ExchangeError::GrantRevoked) => Ok(()),
        }
    }

    /// Returns the response. After a revocation, waits until every node has dropped its cached
    /// tokens.
    async fn respond(
        &self,
        outcome: Result<TokenResponse, ExchangeError>,
    ) -> Result<TokenResponse, Error> {
        match outcome {
            Ok(issued) => Ok(issued),
            Err(ExchangeError::Rejected(error)) => Err(error),
            Err(ExchangeError::GrantRevoked) => {
                grants::publish_revocation(self.context).await?;
                Err(oauth_error(
                    "invalid_grant",
                    "The credential was used before and may have leaked, so the authorization is revoked.",
                ))
            }
        }
    }
}
