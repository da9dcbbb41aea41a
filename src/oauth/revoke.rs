//! Giving tokens back. A refresh token stands for all that was approved; an access token only for itself (RFC 7009).
//!
//! What is unknown is as good as given back, so the answer tells nothing about tokens of others.

use serde_json::json;

use super::{
    applications::Application,
    exchange::Origin,
    grants::{self, Reason},
};
use crate::{
    app::App,
    error::{Context, Error},
    ids::ApprovalId,
    tokens::Digest,
};

/// Gives back whatever of the application's this is.
pub async fn revoke(app: &App, application: &Application, token: &str, origin: &Origin) -> Result<(), Error> {
    let digest = Digest::of(token);
    if end_all_by(app, application, &digest, origin).await? {
        return grants::settle(app).await;
    }
    let sql = "update oauth_access_tokens a set revoked_at = $3 from oauth_grants g \
               where a.digest = $1 and a.revoked_at is null and g.id = a.grant_id and g.application_id = $2 returning a.id";
    let rows = app.db.query(sql, &[&digest.as_bytes(), &application.id.0, &app.clock.now()]).await.context("revoking an access token")?;
    if rows.is_empty() { Ok(()) } else { grants::settle(app).await }
}

/// Ends what was approved if this is a refresh token of it, used or not. Whether it was one.
async fn end_all_by(app: &App, application: &Application, digest: &Digest, origin: &Origin) -> Result<bool, Error> {
    let (doing, now) = ("revoking a refresh token", app.clock.now());
    let mut client = app.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select r.grant_id from oauth_refresh_tokens r join oauth_grants g on g.id = r.grant_id \
               where r.digest = $1 and g.application_id = $2";
    let Some(row) = transaction.query_opt(sql, &[&digest.as_bytes(), &application.id.0]).await.context(doing)? else { return Ok(false) };
    let Some(grant) = grants::lock(&transaction, ApprovalId(row.get(0))).await? else { return Ok(false) };
    if grants::end(&transaction, grant.id, Reason::Application, now).await? {
        let before = json!({"application": application.client_id, "approval": grant.id.0});
        origin.recorder(&grant).write_in(&transaction, 204, (Some(before), None), now).await?;
    }
    transaction.commit().await.context(doing)?;
    Ok(true)
}
