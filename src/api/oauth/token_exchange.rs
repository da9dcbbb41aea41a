//! Token exchange (RFC 8693): a token of an issuer that a service identity trusts is exchanged for
//! a scoped token of the service identity. The client does not authenticate.
//!
//! The parameter `audience` is the id of the service identity. All refusals have one answer; the
//! reason is in the audit log of its organization.

use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{exchange::RequestOrigin, parameters::OAuthParameters};
use crate::{
    api::{
        context::ApiContext,
        service_identities::{
            self, IdentityRow,
            rules::{self, TokenRefusal},
            subject_token::SubjectToken,
            trusts::{self, StoredTrust},
        },
        tokens::scoped::{self, NewScopedToken},
    },
    platform::{
        error::{Context, Error, oauth_error},
        names,
    },
};

/// The grant type.
pub(super) const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
/// The types of tokens that are exchanged. Both are JSON web tokens.
const SUBJECT_TYPES: [&str; 2] = [
    "urn:ietf:params:oauth:token-type:jwt",
    "urn:ietf:params:oauth:token-type:id_token",
];
/// The type of the tokens that are issued.
const ISSUED_TYPE: &str = "urn:ietf:params:oauth:token-type:access_token";
/// The answer to every refused exchange.
const REFUSED: &str = "No trust of the service identity accepts this token. \
     The audit log of its organization has the reason.";
/// Shortest time between two entries of the audit log about refused exchanges of one identity.
const REFUSAL_PAUSE: TimeDelta = TimeDelta::minutes(1);
/// Longest name of an issued token, in characters.
const NAME_CHARS_MAX: usize = 200;
/// Longest `jti`, in bytes.
const JTI_BYTES_MAX: usize = 1_024;

/// The answer to an exchange (RFC 8693, 2.2.1).
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TokenExchangeResponse")]
pub struct ExchangedToken {
    /// Token for API requests. It is returned only once.
    access_token: String,
    /// `urn:ietf:params:oauth:token-type:access_token`.
    issued_token_type: String,
    /// `Bearer`.
    token_type: String,
    /// Lifetime of the access token in seconds.
    expires_in: i64,
}

/// The parameters of an exchange.
struct ExchangeParameters<'a> {
    subject_token: &'a str,
    identity: Uuid,
}

impl<'a> ExchangeParameters<'a> {
    fn read(fields: &'a OAuthParameters) -> Result<Self, Error> {
        let subject_token = fields.required("subject_token")?;
        if !SUBJECT_TYPES.contains(&fields.required("subject_token_type")?) {
            return Err(oauth_error(
                "invalid_request",
                "The subject_token_type must be urn:ietf:params:oauth:token-type:jwt or urn:ietf:params:oauth:token-type:id_token.",
            ));
        }
        let requested = fields.get("requested_token_type");
        if requested.is_some_and(|requested| requested != ISSUED_TYPE) {
            return Err(oauth_error(
                "invalid_request",
                "The requested_token_type must be urn:ietf:params:oauth:token-type:access_token.",
            ));
        }
        if fields.has("actor_token") || fields.has("actor_token_type") {
            return Err(oauth_error(
                "invalid_request",
                "Delegation is not supported; send no actor_token.",
            ));
        }
        let identity = Uuid::try_parse(fields.required("audience")?).map_err(|_| {
            oauth_error(
                "invalid_request",
                "The audience must be the id of a service identity.",
            )
        })?;
        Ok(Self {
            subject_token,
            identity,
        })
    }
}

/// A verified token with the trust that accepts it.
struct AcceptedToken {
    trust: StoredTrust,
    claims: Value,
    expires_at: DateTime<Utc>,
}

/// A refusal, with the verified claims as far as there are any.
struct RefusedToken {
    reason: TokenRefusal,
    claims: Option<Value>,
}

impl From<TokenRefusal> for RefusedToken {
    fn from(reason: TokenRefusal) -> Self {
        Self {
            reason,
            claims: None,
        }
    }
}

/// Exchanges the token in the parameters.
///
/// Errors: `invalid_request` for parameters that are absent or not supported, `invalid_grant` for
/// tokens that no trust accepts.
pub(super) async fn exchange(
    context: &ApiContext,
    fields: &OAuthParameters,
    origin: &RequestOrigin,
) -> Result<ExchangedToken, Error> {
    let parameters = ExchangeParameters::read(fields)?;
    let now = context.clock.now();
    let Some(identity) = service_identities::find(&context.db, parameters.identity).await? else {
        return Err(oauth_error("invalid_grant", REFUSED));
    };
    let accepted = accept(context, &identity, parameters.subject_token, now).await?;
    let refused = match accepted {
        Ok(accepted) => match issue(context, &identity, &accepted, origin, now).await? {
            Ok(issued) => return Ok(issued),
            Err(reason) => RefusedToken {
                reason,
                claims: Some(accepted.claims),
            },
        },
        Err(refused) => refused,
    };
    record_refusal(context, &identity, &refused, origin, now).await?;
    Err(oauth_error("invalid_grant", REFUSED))
}

/// Verifies a token and returns it with the first trust that accepts it.
async fn accept(
    context: &ApiContext,
    identity: &IdentityRow,
    text: &str,
    now: DateTime<Utc>,
) -> Result<Result<AcceptedToken, RefusedToken>, Error> {
    let token = match SubjectToken::parse(text) {
        Ok(token) => token,
        Err(reason) => return Ok(Err(reason.into())),
    };
    let Some(issuer) = token.claimed_issuer().map(str::to_owned) else {
        return Ok(Err(TokenRefusal::Malformed.into()));
    };
    // Only issuers of the identity's own trusts are contacted.
    let trusts = trusts::of_issuer(&context.db, identity.user, &issuer).await?;
    if trusts.is_empty() {
        return Ok(Err(TokenRefusal::Issuer.into()));
    }
    let name = (identity.organization, issuer.as_str());
    let keys = context
        .trusted_keys
        .find(context, name, token.kid.as_deref());
    let keys = match keys.await {
        Ok(keys) => keys,
        Err(reason) => return Ok(Err(reason.into())),
    };
    let claims = match token.verify(&keys) {
        Ok(claims) => claims,
        Err(reason) => return Ok(Err(reason.into())),
    };
    Ok(judge(trusts, claims, now))
}

/// Returns the first trust that accepts verified claims, or the reason of the last one.
fn judge(
    trusts: Vec<StoredTrust>,
    claims: Value,
    now: DateTime<Utc>,
) -> Result<AcceptedToken, RefusedToken> {
    let refused = |reason, claims| RefusedToken {
        reason,
        claims: Some(claims),
    };
    let expiry = match rules::check_times(&claims, now.timestamp()) {
        Ok(expiry) => expiry,
        Err(reason) => return Err(refused(reason, claims)),
    };
    let Some(expires_at) = DateTime::from_timestamp(expiry, 0) else {
        return Err(refused(TokenRefusal::Malformed, claims));
    };
    let mut reason = TokenRefusal::Issuer;
    for trust in trusts {
        match trust.rule.check(&claims) {
            Ok(()) => {
                return Ok(AcceptedToken {
                    trust,
                    claims,
                    expires_at,
                });
            }
            Err(found) => reason = found,
        }
    }
    Err(refused(reason, claims))
}

/// Issues a token. The exchange, its record and the audit entry are one transaction.
async fn issue(
    context: &ApiContext,
    identity: &IdentityRow,
    accepted: &AcceptedToken,
    origin: &RequestOrigin,
    now: DateTime<Utc>,
) -> Result<Result<ExchangedToken, TokenRefusal>, Error> {
    let doing = "exchanging a token";
    let AcceptedToken {
        trust,
        claims,
        expires_at: subject_expiry,
    } = accepted;
    let expires_at = (now + trust.life).min(*subject_expiry);
    let jti = match &claims["jti"] {
        Value::Null => None,
        Value::String(jti) if jti.len() <= JTI_BYTES_MAX => Some(jti),
        _ => return Ok(Err(TokenRefusal::Malformed)),
    };
    let minted = scoped::mint(&context.entropy);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    if !trusts::lock(&transaction, identity.user, trust.id).await? {
        return Ok(Err(TokenRefusal::Removed));
    }
    if let Some(jti) = jti {
        let times = (now, *subject_expiry);
        let recorded = trusts::record_exchange(&transaction, trust.id, jti, times).await;
        if let Err(reason) = recorded.map_err(protocol_error)? {
            return Ok(Err(reason));
        }
    }
    let name = token_name(claims);
    let new = NewScopedToken {
        owner: identity.user,
        name: &name,
        minted: &minted,
        created_at: now,
        expires_at,
        grant: &trust.grant,
        parent: None,
        trust: Some(trust.id),
    };
    let audit = origin.service_identity(identity);
    let stored = scoped::store(&transaction, new, Some(&audit)).await;
    stored.map_err(protocol_error)?;
    transaction.commit().await.context(doing)?;
    Ok(Ok(ExchangedToken {
        access_token: minted.expose().to_owned(),
        issued_token_type: ISSUED_TYPE.to_owned(),
        token_type: "Bearer".to_owned(),
        expires_in: (expires_at - now).num_seconds(),
    }))
}

/// Returns the error of a bound as one of the protocol.
fn protocol_error(error: Error) -> Error {
    match error {
        Error::Rejected(text) => oauth_error("invalid_request", text),
        other => other,
    }
}

/// Returns the subject of a token in the form of a name: visible characters, and not too many.
fn token_name(claims: &Value) -> String {
    let subject = claims["sub"].as_str().unwrap_or_default();
    let visible = subject.chars().filter(|c| !names::is_hidden(*c));
    let name: String = visible.take(NAME_CHARS_MAX).collect();
    if name.trim().is_empty() {
        "exchanged token".to_owned()
    } else {
        name
    }
}

/// Writes the reason of a refusal to the log, and once a minute to the audit log.
async fn record_refusal(
    context: &ApiContext,
    identity: &IdentityRow,
    refused: &RefusedToken,
    origin: &RequestOrigin,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "recording a refused exchange";
    let reason = refused.reason.name();
    tracing::debug!(identity = %identity.id, reason, "exchange of a token refused");
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let due = now - REFUSAL_PAUSE;
    if !service_identities::claim_refusal_entry(&transaction, identity.user, (now, due)).await? {
        return Ok(());
    }
    let mut after = json!({"refused": reason});
    if let Some(claims) = &refused.claims {
        after["issuer"] = claims["iss"].clone();
        after["subject"] = json!(token_name(claims));
    }
    let audit = origin.service_identity(identity);
    let change = (None, Some(after));
    audit.commit(transaction, doing, 400, change, now).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gantry_base::ids::OrganizationId;

    use super::*;
    use crate::{
        api::service_identities::rules::{ClaimPattern, TrustRule},
        platform::access::{Permissions, Reach, TokenGrant},
    };

    fn trust(id: u128, subject: &str) -> StoredTrust {
        StoredTrust {
            id: Uuid::from_u128(id),
            rule: TrustRule {
                issuer: "https://ci.example".to_owned(),
                audience: "gantry".to_owned(),
                subject: ClaimPattern::parse(subject).unwrap(),
                claims: BTreeMap::new(),
            },
            life: TimeDelta::minutes(15),
            grant: TokenGrant {
                permissions: Permissions::default(),
                reach: Reach::Organizations(vec![OrganizationId(1)]),
                networks: Vec::new(),
                not_before: None,
            },
        }
    }

    fn judged(claims: &Value) -> Result<Uuid, TokenRefusal> {
        let now = DateTime::from_timestamp(1_000, 0).unwrap();
        let trusts = vec![trust(1, "repo:a:*"), trust(2, "repo:a:main"), trust(3, "b")];
        match judge(trusts, claims.clone(), now) {
            Ok(accepted) => Ok(accepted.trust.id),
            Err(refused) => Err(refused.reason),
        }
    }

    #[test]
    fn first_trust_that_accepts_a_token_decides() {
        let mut claims = json!({
            "iss": "https://ci.example", "aud": "gantry", "sub": "repo:a:main", "exp": 2_000,
        });
        assert_eq!(judged(&claims), Ok(Uuid::from_u128(1)));
        claims["sub"] = json!("b");
        assert_eq!(judged(&claims), Ok(Uuid::from_u128(3)));
        claims["sub"] = json!("c");
        assert_eq!(judged(&claims), Err(TokenRefusal::Subject));
        claims["exp"] = json!(1_000);
        assert_eq!(judged(&claims), Err(TokenRefusal::Expired));
        claims["exp"] = json!(i64::MAX);
        assert_eq!(judged(&claims), Err(TokenRefusal::Malformed));
    }

    #[test]
    fn name_of_a_token_is_its_subject_in_visible_characters() {
        let long = "é".repeat(NAME_CHARS_MAX + 1);
        for (subject, expected) in [
            (json!("repo:a:main"), "repo:a:main"),
            (json!("a\n\u{202e}b"), "ab"),
            (json!("\n "), "exchanged token"),
            (Value::Null, "exchanged token"),
            (json!(long), &long[..NAME_CHARS_MAX * 2]),
        ] {
            assert_eq!(token_name(&json!({"sub": subject})), expected);
        }
    }
}
