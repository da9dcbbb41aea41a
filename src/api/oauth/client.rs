//! Client authentication (RFC 6749, 2.3). Every failure returns the same response.

use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::{applications, applications::Application, parameters::OAuthParameters};
use crate::platform::{
    access::credential::SecretDigest,
    db::Db,
    error::{Context, Error, oauth_error, unknown_client},
    http::client_credentials::ClientCredentials,
};

/// Returns the error for any failed client authentication.
pub(super) fn invalid_client() -> Error {
    oauth_error("invalid_client", "The client id or its secret is wrong.")
}

/// Returns the authenticated application. A public application sends only its id: its requests are
/// protected by PKCE or by the token that they present.
pub async fn authenticate(
    db: &Db,
    basic: ClientCredentials,
    fields: &OAuthParameters,
    now: DateTime<Utc>,
) -> Result<Application, Error> {
    let named = fields.get("client_id");
    let secret = fields.get("client_secret");
    let (id, secret) = match &basic {
        ClientCredentials::Unreadable => return Err(invalid_client()),
        ClientCredentials::Absent => (
            named.ok_or_else(|| unknown_client("Required parameter: client_id"))?,
            secret,
        ),
        // A bearer token beside credentials in the body is ignored; in place of them it is
        // rejected.
        ClientCredentials::Bearer => (named.ok_or_else(invalid_client)?, secret),
        ClientCredentials::Basic { .. } if fields.has("client_secret") => {
            return Err(oauth_error(
                "invalid_request",
                "The client uses more than one authentication method.",
            ));
        }
        ClientCredentials::Basic { name: id, .. } if named.is_some_and(|named| named != id) => {
            return Err(invalid_client());
        }
        ClientCredentials::Basic { name: id, secret } => (
            id.as_str(),
            Some(secret.expose_secret()).filter(|secret| !secret.is_empty()),
        ),
    };
    let id = Uuid::try_parse(id).map_err(|_| invalid_client())?;
    let application = applications::by_client_id(db, id)
        .await?
        .ok_or_else(invalid_client)?;
    match (application.public, secret) {
        (true, None) => Ok(application),
        (false, Some(secret)) if secret_matches(db, &application, secret, now).await? => {
            Ok(application)
        }
        (true, Some(_)) | (false, _) => Err(invalid_client()),
    }
}

/// Returns whether `secret` is a live secret of the application. The lookup is by digest, so its
/// duration reveals nothing about the secret.
async fn secret_matches(
    db: &Db,
    application: &Application,
    secret: &str,
    now: DateTime<Utc>,
) -> Result<bool, Error> {
    let sql = "update oauth_secrets set last_used_at = greatest(last_used_at, $3) \
               where application_id = $1 and digest = $2 and revoked_at is null returning id";
    let digest = SecretDigest::of(secret);
    let rows = db
        .query(sql, &[&application.id.0, &digest.as_bytes(), &now])
        .await
        .context("checking an application's secret")?;
    Ok(!rows.is_empty())
}
