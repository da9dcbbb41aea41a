//! Which application asks: it says who it is and proves it, in one way. Every failure is the same answer.

use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::{applications, applications::Application, fields::Fields};
use crate::{
    base::{
        db::Db,
        error::{Context, Error, oauth_fault, unknown_client},
    },
    platform::{access::credential::SecretDigest, http::client_credentials::ClientCredentials},
};

/// Who does not prove who it is, however it tried, gets this.
pub(super) fn unknown() -> Error {
    oauth_fault("invalid_client", "The client id or its secret is wrong.")
}

/// The application that asks. A public one says only its name; for it, what it asks has to be proof enough.
pub async fn authenticate(
    db: &Db,
    basic: ClientCredentials,
    fields: &Fields,
    now: DateTime<Utc>,
) -> Result<Application, Error> {
    let (named, secret) = (fields.get("client_id"), fields.get("client_secret"));
    let (id, secret) = match &basic {
        ClientCredentials::Unreadable => return Err(unknown()),
        ClientCredentials::Absent => (
            named.ok_or_else(|| unknown_client("Required parameter: client_id"))?,
            secret,
        ),
        // Beside credentials in the body it is ignored; in their place it is refused.
        ClientCredentials::Bearer => (named.ok_or_else(unknown)?, secret),
        ClientCredentials::Basic { .. } if fields.has("client_secret") => {
            return Err(oauth_fault(
                "invalid_request",
                "The client authenticates in two ways at once.",
            ));
        }
        ClientCredentials::Basic { name: id, .. } if named.is_some_and(|named| named != id) => {
            return Err(unknown());
        }
        ClientCredentials::Basic { name: id, secret } => (
            id.as_str(),
            Some(secret.expose_secret()).filter(|secret| !secret.is_empty()),
        ),
    };
    let id = Uuid::try_parse(id).map_err(|_| unknown())?;
    let application = applications::by_client_id(db, id)
        .await?
        .ok_or_else(unknown)?;
    match (application.public, secret) {
        (true, None) => Ok(application),
        (false, Some(secret)) if proves(db, &application, secret, now).await? => Ok(application),
        (true, Some(_)) | (false, _) => Err(unknown()),
    }
}

/// Whether it is a live secret of the application. Looked for by its digest, so the time it takes tells nothing.
async fn proves(
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
