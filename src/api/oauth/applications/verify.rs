//! What the operator vouches for: that an application is who it says it is.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::{
    base::{
        db::Db,
        error::{Context, Error},
        ids::OrganizationId,
    },
    platform::audit::Recorder,
};

/// Applications that the list shows at most.
const LIST_MAX: i64 = 1_000;

/// An application, as the operator looks at it.
#[derive(Debug, Serialize)]
pub struct VerificationCandidate {
    /// By which it is known outside.
    pub client_id: Uuid,
    /// What it is called.
    pub name: String,
    /// Slug of the organization that registered it.
    pub organization: String,
    /// Its own page.
    pub website: String,
    /// A picture.
    pub icon: Option<String>,
    /// Where it can be answered.
    pub redirect_uris: Vec<String>,
    /// Whether the operator vouches for it.
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

/// What can be vouched for, newest first: applications that organizations registered, or only this one.
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

/// Vouches for an application, or does so no longer: the next page that shows it says so. The entry is in the log of its organization.
pub async fn set(
    db: &Db,
    client_id: Uuid,
    verified: bool,
    audit: Recorder,
    now: DateTime<Utc>,
) -> Result<VerificationCandidate, Error> {
    let doing = "vouching for an application";
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
            "It registered itself, so nobody stands for its name; have an organization register it"
                .into(),
        ));
    };
    let was = read(&row);
    if was.verified != verified {
        let sql = "update oauth_applications set verified = $2 where id = $1";
        transaction
            .execute(sql, &[&row.get::<_, i64>(6), &verified])
            .await
            .context(doing)?;
        let told = |verified: bool| {
            Some(
                json!({"id": client_id, "name": was.name, "redirect_uris": was.redirect_uris, "verified": verified}),
            )
        };
        let told = (told(was.verified), told(verified));
        audit
            .about(organization, &was.organization)
            .write_in(&transaction, 200, told, now)
            .await?;
    }
    transaction.commit().await.context(doing)?;
    Ok(VerificationCandidate { verified, ..was })
}
