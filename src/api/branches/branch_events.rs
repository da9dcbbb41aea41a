//! Events about branches. They name the parent; the branch is in the payload.

use chrono::{DateTime, Utc};
use tokio_postgres::Transaction;

use super::branch_row::{BranchRow, select_branches};
use crate::platform::{
    access::Project,
    error::{Context, Error},
    events::{
        EventPayload, NewEvent,
        payloads::{
            BranchCreated, BranchEndReason, BranchExpiring, BranchRemoved, BranchUpdated,
            EventBranch, ProjectRemoved,
        },
    },
};

impl BranchRow {
    /// Returns the event of its creation.
    pub(super) fn created(&self) -> NewEvent {
        let branch = self.in_payload();
        BranchCreated { branch }.about(&self.parent)
    }

    /// Returns the event of a change of its settings.
    pub(super) fn updated(&self) -> NewEvent {
        let branch = self.in_payload();
        BranchUpdated { branch }.about(&self.parent)
    }

    /// Returns the event of the notice of its end.
    pub(super) fn expiring(&self, expires_at: DateTime<Utc>, reason: BranchEndReason) -> NewEvent {
        let expiring = BranchExpiring {
            branch: self.in_payload(),
            expires_at,
            reason,
        };
        expiring.about(&self.parent)
    }

    /// Returns the event of its removal.
    pub(super) fn removed(&self) -> NewEvent {
        let branch = self.in_payload();
        BranchRemoved { branch }.about(&self.parent)
    }

    fn in_payload(&self) -> EventBranch {
        EventBranch {
            reference: self.project.reference.to_string(),
            name: self.name.clone(),
            git_branch: self.git_branch.clone(),
            is_default: self.is_default,
        }
    }
}

/// Returns the event of the removal of a project, which may be a branch.
pub(in crate::api) async fn removal(
    transaction: &Transaction<'_>,
    project: &Project,
) -> Result<NewEvent, Error> {
    let sql = select_branches!("where b.project_id = $1 and not b.is_default");
    let row = transaction.query_opt(sql, &[&project.id.0]).await;
    match row.context("reading a branch")? {
        Some(row) => Ok(BranchRow::read(&row)?.removed()),
        None => Ok(ProjectRemoved {}.about(project)),
    }
}
