//! Events about backups, in the transactions of their rows.

use gantry_base::ids::{OrganizationId, ProjectId, ProjectRef};
use tokio_postgres::Transaction;

use crate::{
    control::{context::ControlContext, projects::status_events},
    platform::{
        error::{Context, Error},
        events::{EventPayload, payloads::BackupVerificationFailed},
    },
};

/// Appends an event about a project.
pub(super) async fn append(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    payload: &impl EventPayload,
) -> Result<(), Error> {
    let doing = "recording an event of a backup";
    let sql = "select organization_id, ref from projects where id = $1";
    let row = transaction.query_one(sql, &[&project.0]).await;
    let row = row.context(doing)?;
    let reference: ProjectRef = row.get::<_, &str>(1).parse().context(doing)?;
    let event = payload.about_ref(OrganizationId(row.get(0)), &reference);
    status_events::append(context, transaction, &[event]).await
}

/// Records that a backup could not be restored, with the event if it was not known.
pub(super) async fn record_damage(
    context: &ControlContext,
    base: i64,
    error: String,
) -> Result<(), Error> {
    let doing = "recording a damaged backup";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "update base_backups set verify_error = $2
               where id = $1 and verify_error is distinct from $2 returning project_id";
    let row = transaction.query_opt(sql, &[&base, &error]).await;
    if let Some(row) = row.context(doing)? {
        let failed = BackupVerificationFailed {
            backup_id: base,
            error,
        };
        append(context, &transaction, ProjectId(row.get(0)), &failed).await?;
    }
    transaction.commit().await.context(doing)
}
