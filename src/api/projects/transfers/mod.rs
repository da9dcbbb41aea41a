//! Transfers of projects to other organizations (decision 0179).
//!
//! A transfer is one transaction, which moves the rows of the project and its branches. Their
//! clusters, keys and settings stay as they are. `findings` decides whether it is possible, for
//! the preview and for the transfer.

mod findings;
mod moving;
pub mod operations;

use chrono::{DateTime, Utc};
use gantry_base::ids::{OrgSlug, UserId};
use serde_json::json;
use tokio_postgres::Transaction;

pub(super) use self::findings::Findings;
use self::moving::{MovingProjects, lock_rows};
use super::claims;
use crate::{
    api::context::ApiContext,
    control::{domains::hostnames, platform_webhooks::queue, temporary_access::grants},
    platform::{
        access::{Organization, Project, Role},
        audit::{Chain, Change, Recorder},
        db,
        error::{Context, Error},
        events::{
            EventPayload,
            payloads::{OrganizationName, ProjectTransferred},
        },
        notifications,
        tables::Table,
    },
};

const DOING: &str = "transferring a project";

/// A transfer that is requested.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    /// The project, in the organization in which the request was admitted.
    pub(super) project: &'a Project,
    /// Absent if the caller does not see the target.
    pub(super) target: Option<&'a Organization>,
    /// The user that gives the project away: must be an owner of the source.
    pub(super) owner: UserId,
    /// The user that receives it: must have this role in the target, or a higher one.
    pub(super) recipient: UserId,
    pub(super) recipient_role: Role,
}

/// Returns the findings about a transfer, in a transaction that cannot write.
pub(super) async fn preview(
    context: &ApiContext,
    transfer: &Transfer<'_>,
) -> Result<Findings, Error> {
    let mut client = context.db.client().await?;
    let transaction = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .context(DOING)?;
    let moving = MovingProjects::read(&transaction, transfer.project).await?;
    findings::collect(&transaction, transfer, &moving).await
}

/// Locks the rows of a transfer until the end of the transaction.
pub(super) async fn lock(
    transaction: &Transaction<'_>,
    transfer: &Transfer<'_>,
) -> Result<(), Error> {
    let target = transfer.target.map(|it| it.id);
    lock_rows(transaction, transfer.project, target).await?;
    match target {
        Some(target) => hostnames::lock_count(transaction, target).await,
        None => Ok(()),
    }
}

/// Moves the project, in a transaction with locked rows, and commits it. The organization of the
/// recorder and the other one have an entry of the audit log each.
///
/// Errors: [`Error::Rejected`] with the errors of the preview.
pub(super) async fn execute(
    context: &ApiContext,
    transaction: deadpool_postgres::Transaction<'_>,
    transfer: &Transfer<'_>,
    (audit, other, status): (&Recorder, Chain, i16),
) -> Result<(), Error> {
    let now = context.clock.now();
    let moving = MovingProjects::read(&transaction, transfer.project).await?;
    findings::collect(&transaction, transfer, &moving)
        .await?
        .into_result()?;
    let target = transfer.target.ok_or(Error::NotFound)?;
    // Before the events of the transfer are appended.
    let ids = moving.ids();
    queue::follow_projects(&transaction, &ids, target.id, &context.entropy, now).await?;
    move_rows(&transaction, &moving, target, now).await?;
    let before = json!({"organization": moving.source});
    let after = json!({
        "ref": transfer.project.reference,
        "organization": target.slug,
        "branches": moving.branches(),
    });
    let entry = json!({"transferred_from": moving.source, "project": after});
    audit
        .write_elsewhere(&transaction, other, entry, now)
        .await?;
    let named = |slug: &OrgSlug| OrganizationName {
        organization_slug: slug.to_string(),
    };
    let transferred = ProjectTransferred {
        source: named(&moving.source),
        target: named(&target.slug),
    };
    let reference = &transfer.project.reference;
    let events = [transfer.project.organization, target.id]
        .map(|organization| transferred.about_ref(organization, reference));
    let change = Change::new((Some(before), Some(after)), events);
    audit
        .commit(transaction, DOING, status, change, now)
        .await?;
    context.table_changed(Table::Projects);
    context.temporary_access.wake();
    // When this returns, no node admits members of the former organization.
    notifications::settle(&context.db).await
}

async fn move_rows(
    transaction: &Transaction<'_>,
    moving: &MovingProjects,
    target: &Organization,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let ids = moving.ids();
    grants::end_on_projects(transaction, &ids).await?;
    claims::withdraw(transaction, &ids).await?;
    let sql = "update projects set organization_id = $2, updated_at = $3 where id = any($1)";
    let moved = transaction.execute(sql, &[&ids, &target.id.0, &now]).await;
    moved.map(drop).map_err(|error| match db::violated(&error) {
        // A project of that name was created meanwhile.
        Some("projects_name_key") => {
            Error::Rejected(findings::name_taken(&moving.all[0].name).into())
        }
        _ => Error::internal(DOING, error),
    })
}
