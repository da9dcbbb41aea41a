//! Token introspection (RFC 7662). Tokens of other applications are reported as inactive, like
//! unknown ones.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::applications::Application;
use crate::platform::{
    access::{Scopes, credential::SecretDigest},
    db::Db,
    error::{Context, Error},
};

/// The state of a token.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OauthIntrospection")]
pub struct Introspection {
    /// Whether the token is usable.
    pub active: bool,
    /// `Bearer` for an access token (RFC 6749, 5.1). Absent for a refresh token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_type: Option<String>,
    /// `access_token` or `refresh_token`: an extension member, as RFC 7662, 2.2 permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_use: Option<String>,
    /// Scopes, separated by spaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The application that the token was issued to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<Uuid>,
    /// The granting member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub: Option<Uuid>,
    /// Expiry time in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    /// Time of issue in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iat: Option<i64>,
    /// Audience: the resource that was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aud: Option<String>,
}

/// Returns the state of a token of `application`.
pub async fn introspect(
    db: &Db,
    application: &Application,
    token: &str,
    now: DateTime<Utc>,
) -> Result<Introspection, Error> {
    let sql = "select t.kind, t.scopes, t.created_at, t.expires_at, g.scopes, g.resource, u.gotrue_id from ( \
                   select 'access_token' as kind, grant_id, scopes, created_at, expires_at from oauth_access_tokens \
                   where digest = $1 and revoked_at is null \
                   union all \
                   select 'refresh_token', grant_id, null, created_at, expires_at from oauth_refresh_tokens \
                   where digest = $1 and revoked_at is null and consumed_at is null \
               ) t join oauth_grants g on g.id = t.grant_id join users u on u.id = g.user_id \
               where g.application_id = $2 and g.revoked_at is null and t.expires_at > $3";
    let digest = SecretDigest::of(token);
    let rows = db
        .query(sql, &[&digest.as_bytes(), &application.id.0, &now])
        .await
        .context("introspecting a token")?;
    let Some(row) = rows.first() else {
        return Ok(Introspection::default());
    };
    let approved = Scopes::named(row.get::<_, Vec<&str>>(4)).and(application.scopes);
    let scopes = row
        .get::<_, Option<Vec<&str>>>(1)
        .map_or(approved, |names| Scopes::named(names).and(approved));
    Ok(Introspection {
        active: true,
        token_type: (row.get::<_, &str>(0) == "access_token").then(|| "Bearer".to_owned()),
        token_use: row.get(0),
        scope: Some(scopes.to_string()),
        client_id: Some(application.client_id),
        sub: row.get(6),
        exp: Some(row.get::<_, DateTime<Utc>>(3).timestamp()),
        iat: Some(row.get::<_, DateTime<Utc>>(2).timestamp()),
        aud: row.get(5),
    })
}
