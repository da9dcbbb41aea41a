//! Protected projects: the flag of a project, and the approvals of its destructive requests.

pub mod operations;

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectId;
use serde_json::json;

use crate::{
    api::context::ApiContext,
    platform::{
        access::{CallerRelation, Project, Role, User},
        audit::Recorder,
        error::{Context, Denial, Error},
        tables::Table,
    },
};

/// Sets whether destructive requests of a project need an approval.
///
/// Errors: [`Error::Rejected`] for a branch.
async fn set(
    context: &ApiContext,
    project: &Project,
    protected: bool,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "changing the protection of a project";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    if is_branch(&transaction, project.id).await? {
        return Err(Error::Rejected(
            "A branch cannot be protected. Protect the project that it belongs to".into(),
        ));
    }
    let sql = "update projects set protected = $2, updated_at = $3 where id = $1
               and protected is distinct from $2";
    transaction
        .execute(sql, &[&project.id.0, &protected, &now])
        .await
        .context(doing)?;
    let change = (
        Some(json!({"protected": !protected})),
        Some(json!({"protected": protected})),
    );
    audit.commit(transaction, doing, 200, change, now).await?;
    context.table_changed(Table::Projects);
    Ok(())
}

async fn is_branch(
    transaction: &tokio_postgres::Transaction<'_>,
    project: ProjectId,
) -> Result<bool, Error> {
    // The default branch is the project itself.
    let sql = "select 1 from branches where project_id = $1 and not is_default";
    let row = transaction
        .query_opt(sql, &[&project.0])
        .await
        .context("looking for a branch")?;
    Ok(row.is_some())
}

/// Rejects callers that are not signed in on the account pages: a token must not approve.
fn require_session(user: &User) -> Result<(), Error> {
    match user.signed_in_at {
        Some(_) => Ok(()),
        None => Err(Error::Forbidden(Denial::SessionOnly)),
    }
}

/// Decides whether a user may approve a request of its own. An owner may, after signing in again:
/// the session has begun after the request.
fn may_approve_own(
    user: &User,
    relation: CallerRelation,
    requested_at: DateTime<Utc>,
) -> Result<(), Error> {
    let is_owner =
        matches!(relation, CallerRelation::Member(roles) if roles.organization == Role::Owner);
    let is_new_session = user.signed_in_at.is_some_and(|at| at > requested_at);
    if is_owner && is_new_session {
        Ok(())
    } else {
        Err(Error::Forbidden(Denial::OwnRequest))
    }
}
