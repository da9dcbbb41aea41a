//! Events of changes of status, in the transactions that make them.
//!
//! The row of a project has the status of its last event. A transaction that may change the status
//! compares both at its end, so the events of a project form a chain: each begins with the status
//! that the one before ended with.

use gantry_base::ids::{OrganizationId, ProjectId, ProjectRef};
use tokio_postgres::{Row, Transaction};

use super::Status;
use crate::{
    control::context::ControlContext,
    platform::{
        db::Param,
        error::{Context, Error},
        events::{self, EventPayload, NewEvent, payloads::StatusChanged},
    },
};

/// Returns the events of those projects that have another status than their last event says. They
/// have to be appended in this transaction, which has changed the projects.
pub(crate) async fn changed(
    transaction: &Transaction<'_>,
    projects: &[ProjectId],
) -> Result<Vec<NewEvent>, Error> {
    let doing = "recording changes of status";
    let ids: Vec<i64> = projects.iter().map(|project| project.0).collect();
    // Projects begin with this status.
    let sql = "update projects p set announced_status = p.status
               from (select id, coalesce(announced_status, 'COMING_UP') as previous
                     from projects where id = any($1)) b
               where b.id = p.id and b.previous <> p.status
               returning p.organization_id, p.ref, b.previous, p.status";
    let rows = transaction.query(sql, &[&ids]).await.context(doing)?;
    rows.iter().map(event).collect()
}

fn event(row: &Row) -> Result<NewEvent, Error> {
    let reference: ProjectRef = row
        .get::<_, &str>(1)
        .parse()
        .context("reading a project's ref")?;
    let payload = StatusChanged {
        previous_status: row.get(2),
        current_status: Status::read(row, 3)?.name().to_owned(),
    };
    Ok(payload.about_ref(OrganizationId(row.get(0)), &reference))
}

/// An update by Gantry itself of one project, which may change its status.
pub(in crate::control) struct StatusUpdate<'a> {
    /// The project.
    pub(in crate::control) project: ProjectId,
    /// The statement.
    pub(in crate::control) sql: &'static str,
    /// Its parameters.
    pub(in crate::control) params: &'a [Param<'a>],
    /// Completes "failed while …".
    pub(in crate::control) doing: &'static str,
}

impl StatusUpdate<'_> {
    /// Executes the statement, and appends these events and that of the change of status if it
    /// changed the row. Returns whether it did.
    pub(in crate::control) async fn execute(
        self,
        context: &ControlContext,
        events: Vec<NewEvent>,
    ) -> Result<bool, Error> {
        let mut client = context.db.client().await?;
        let transaction = client.transaction().await.context(self.doing)?;
        let updated = transaction.execute(self.sql, self.params).await;
        let is_changed = updated.context(self.doing)? > 0;
        if is_changed {
            self.append(context, &transaction, events).await?;
        }
        transaction.commit().await.context(self.doing)?;
        Ok(is_changed)
    }

    async fn append(
        &self,
        context: &ControlContext,
        transaction: &Transaction<'_>,
        mut events: Vec<NewEvent>,
    ) -> Result<(), Error> {
        events.extend(changed(transaction, &[self.project]).await?);
        append(context, transaction, &events).await
    }
}

/// Appends events of changes that Gantry makes by itself.
pub(crate) async fn append(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    new: &[NewEvent],
) -> Result<(), Error> {
    let now = context.clock.now();
    events::append(transaction, new, None, &context.entropy, now).await
}
