//! Giving tokens back. A refresh token stands for all that was approved; an access token only for itself (RFC 7009).
//!
//! What is unknown is as good as given back, so the answer tells nothing about tokens of others.

use serde_json::json;

use super::{applications::Application, exchange::RequestOrigin, grants, grants::RevocationReason};
use crate::{
    api::context::ApiContext,
    base::{
        error::{Context, Error},
        ids::ApprovalId,
    },
    platform::access::credential::SecretDigest,
};

/// Gives back whatever of the application's this is. A refresh token counts whether it was used or not.
pub async fn revoke(
    context: &ApiContext,
    application: &Application,
    token: &str,
    origin: &RequestOrigin,
) -> Result<(), Error> {
    let (doing, now, digest) = (
        "giving a token back",
        context.clock.now(),
        SecretDigest::of(token),
    );
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
    let all_of_it = row.get(1);
    let ended = if all_of_it {
        grants::mark_revoked(&transaction, grant.id, RevocationReason::Application, now).await?
    } else {
        let sql = "update oauth_access_tokens set revoked_at = $2 where digest = $1 and revoked_at is null";
        transaction
            .execute(sql, &[&digest.as_bytes(), &now])
            .await
            .context(doing)?
            > 0
    };
    if ended {
        let before = json!({"application": application.client_id, "approval": grant.id.0, "all_of_it": all_of_it});
        origin
            .recorder(&grant)
            .write_in(&transaction, 204, (Some(before), None), now)
            .await?;
    }
    transaction.commit().await.context(doing)?;
    if ended {
        grants::publish_revocation(context).await
    } else {
        Ok(())
    }
}
