//! Verification of applications by the operator.

use chrono::{DateTime, Utc};
use gantry_base::ids::OrganizationId;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::platform::{
    audit::Recorder,
    db::Db,
    error::{Context, Error},
};

/// Maximum number of applications in a list.
const LIST_MAX: i64 = 1_000;

/// An application that the operator can verify.
#[derive(Debug, Serialize)]
pub struct VerificationCandidate {
    /// Public client id.
    pub client_id: Uuid,
    /// Display name.
    pub name: String,
    /// Slug of the organization that registered it.
    pub organization: String,
    /// Website.
    pub website: String,
    /// URL of an icon.
    pub icon: Option<String>,
    /// Redirect URIs.
    pub redirect_uris: Vec<String>,
    /// Whether the operator verified it.
    pub verified: bool,
}

macro_rules! candidates {
    ($rest:literal) => {
        concat!(
            "select a.client_id, a.name, o.slug, a.website, a.redirect_uris, a.verified, a.id, o.id, a.icon from oauth_applications a \
             left join organizations o on o.id = a.organization_id where a.deleted_at is null and ",
            $rest
        )
    };
}

fn read(row: &Row) -> VerificationCandidate {
    VerificationCandidate {
        client_id: row.get(0),
        name: row.get(1),
        organization: row.get(2),
        website: row.get(3),
        icon: row.get(8),
        redirect_uris: row.get(4),
        verified: row.get(5),
    }
}

/// Lists applications that can be verified, newest first: those of one organization, or of all.
pub async fn list(
    db: &Db,
    organization: Option<OrganizationId>,
) -> Result<Vec<VerificationCandidate>, Error> {
    let doing = "listing applications";
    let rows = match organization {
        Some(id) => {
            db.query(
                candidates!("a.organization_id = $1 order by a.id desc limit $2"),
                &[&id.0, &LIST_MAX],
            )
            .await
        }
        None => {
            db.query(
                candidates!("a.organization_id is not null order by a.id desc limit $1"),
                &[&LIST_MAX],
            )
            .await
        }
    };
    Ok(rows.context(doing)?.iter().map(read).collect())
}

/// Sets whether an application is verified, and records it in the audit log of its organization.
pub async fn set(
    db: &Db,
    client_id: Uuid,
    verified: bool,
    audit: Recorder,
    now: DateTime<Utc>,
) -> Result<VerificationCandidate, Error> {
    let doing = "verifying an application";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = candidates!("a.client_id = $1 for update of a");
    let row = transaction
        .query_opt(sql, &[&client_id])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let Some(organization) = row.get::<_, Option<i64>>(7).map(OrganizationId) else {
        return Err(Error::Rejected(
            "The application registered itself, so its publisher cannot be verified; register it in an organization"
                .into(),
        ));
    };
    let previous = read(&row);
    if previous.verified != verified {
        let sql = "update oauth_applications set verified = $2 where id = $1";
        transaction
            .execute(sql, &[&row.get::<_, i64>(6), &verified])
            .await
            .context(doing)?;
        let state = |verified: bool| {
            Some(
                json!({"id": client_id, "name": previous.name, "redirect_uris": previous.redirect_uris, "verified": verified}),
            )
        };
        let states = (state(previous.verified), state(verified));
        audit
            .about(organization, &previous.organization)
            .write_in(&transaction, 200, states, now)
            .await?;
    }
    transaction.commit().await.context(doing)?;
    Ok(VerificationCandidate {
        verified,
        ..previous
    })
}
