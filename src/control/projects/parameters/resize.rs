//! Changes of a project's compute size.

use super::{Budget, ServerConfiguration, announce, check, limits, with_size};
use crate::{
    control::{
        context::ControlContext,
        projects::{InstanceSize, Status, removed, status_events},
        service_settings::{recorded_change, setting::SettingValues},
    },
    platform::{
        access::Project,
        audit::{Change, Recorder},
        db::Param,
        error::{Context, Error},
    },
};

/// Changes the compute size of a project. A running server is restarted with it by the reconciler;
/// if it does not start, it gets its previous size back. A paused project gets it when it is
/// restored.
///
/// Errors: [`Error::Invalid`] if the settings that the owner chose do not fit the size, and
/// [`Error::Rejected`] while the project is created, restored or removed.
pub(crate) async fn resize(
    context: &ControlContext,
    project: &Project,
    size: InstanceSize,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "changing a project's size";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select instance_size, settings, status from projects \
               where id = $1 and desired <> 'removed' for update";
    let row = transaction.query_opt(sql, &[&project.id.0]).await;
    let row = row.context(doing)?.ok_or_else(removed)?;
    let before: &str = row.get(0);
    let wanted = ServerConfiguration {
        settings: serde_json::from_value(row.get(1)).context(doing)?,
        size,
    };
    check(
        &with_size(context, &wanted),
        Budget::from(&limits(context, size)),
    )?;
    let now = context.clock.now();
    match Status::read(&row, 2)? {
        Status::ActiveHealthy | Status::ActiveUnhealthy | Status::Restarting => {
            let sql = "update projects set instance_size = $2, status = 'RESTARTING', asleep = false, \
                       settings_before = coalesce(settings_before, settings), \
                       generation = generation + 1, \
                       attempts = 0, not_before = $3, updated_at = $3, last_error = null where id = $1";
            let parameters: [Param<'_>; 3] = [&project.id.0, &size.code(), &now];
            let updated = transaction.execute(sql, &parameters).await;
            updated.context(doing)?;
        }
        Status::Inactive => {
            let sql = "update projects set instance_size = $2 where id = $1";
            let parameters: [Param<'_>; 2] = [&project.id.0, &size.code()];
            let updated = transaction.execute(sql, &parameters).await;
            updated.context(doing)?;
        }
        status => {
            let text = format!(
                "The size cannot be changed while the project is {}",
                status.name()
            );
            return Err(Error::Rejected(text.into()));
        }
    }
    let values = |code: &str| SettingValues::from([("size".to_owned(), code.into())]);
    let change = recorded_change(Some("compute"), &values(before), &values(size.code()));
    let events = status_events::changed(&transaction, &[project.id]).await?;
    let change = Change::new((Some(change.0.into()), Some(change.1.into())), events);
    audit.commit(transaction, doing, 200, change, now).await?;
    announce(context);
    Ok(())
}
