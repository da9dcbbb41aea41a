//! Events of new personal access tokens.

use gantry_base::ids::{OrganizationId, UserId};
use tokio_postgres::Transaction;

use crate::platform::{
    access::Reach,
    error::{Context, Error},
    events::{
        EventPayload, NewEvent,
        payloads::{TokenCreated, TokenFacts},
    },
};

/// Returns the events of a new token: one for each organization of its owner that it reaches.
/// `reach` is absent for a classic token.
pub(super) async fn created(
    transaction: &Transaction<'_>,
    owner: UserId,
    reach: Option<&Reach>,
    token: TokenFacts,
) -> Result<Vec<NewEvent>, Error> {
    let organizations = reach.and_then(Reach::listed_organizations);
    let sql = "select m.organization_id from members m where m.user_id = $1
               and ($2::bigint[] is null or m.organization_id = any($2))
               order by m.organization_id";
    let rows = transaction
        .query(sql, &[&owner.0, &organizations])
        .await
        .context("reading the organizations of a token")?;
    let payload = TokenCreated { token };
    let event = |row: &tokio_postgres::Row| payload.about_organization(OrganizationId(row.get(0)));
    Ok(rows.iter().map(event).collect())
}
