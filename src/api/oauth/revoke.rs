//! Token revocation (RFC 7009). A refresh token revokes its whole grant; an access token revokes
//! only itself.
//!
//! Unknown tokens are reported as revoked, so that the response reveals nothing about tokens of
//! others.

use gantry_base::ids::ApprovalId;
use serde_json::json;

use super::{applications::Application, exchange::RequestOrigin, grants, grants::RevocationReason};
use crate::{
    api::context::ApiContext,
    platform::{
        access::credential::SecretDigest,
        error::{Context, Error},
    },
};

/// Revokes a token of the application. A refresh token revokes its grant even if it was exchanged
/// before.
pub async fn revoke(
    context: &ApiContext,
    application: &Application,
    token: &str,
    origin: &RequestOrigin,
) -> Result<(), Error> {
    let doing = "revoking a token";
    let now = context.clock.now();
    let digest = SecretDigest::of(token);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select t.grant_id, t.all_of_it from ( \
                   select grant_id, true as all_of_it from oauth_refresh_tokens where digest = $1 \
                   union all select grant_id, false from oauth_access_tokens where digest = $1 \
               ) t join oauth_grants g on g.id = t.grant_id where g.application_id = $2";
    let Some(row) = transaction
        .query_opt(sql, &[&digest.as_bytes(), &application.id.0])
        .await
        .context(doing)?
    else {
        return Ok(());
    };
    let Some(grant) = grants::lock(&transaction, ApprovalId(row.get(0))).await? else {
        return Ok(());
    };
    let whole_grant = row.get(1);
    let revoked = if whole_grant {
        grants::mark_revoked(&transaction, grant.id, RevocationReason::Application, now).await?
    } else {
        let sql = "update oauth_access_tokens set revoked_at = $2 where digest = $1 and revoked_at is null";
        transaction
            .execute(sql, &[&digest.as_bytes(), &now])
            .await
            .context(doing)?
            > 0
    };
    if revoked {
        let before = json!({"application": application.client_id, "approval": grant.id.0, "all_of_it": whole_grant});
        origin
            .recorder(&grant)
            .write_in(&transaction, 204, (Some(before), None), now)
            .await?;
    }
    transaction.commit().await.context(doing)?;
    if revoked {
        grants::publish_revocation(context).await
    } else {
        Ok(())
    }
}
