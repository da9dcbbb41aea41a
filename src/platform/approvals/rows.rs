//! Rows of `approvals`.

use chrono::{DateTime, SubsecRound, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{ProjectId, UserId},
};
use secrecy::SecretString;
use serde_json::json;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::{
    Approval, ApprovalStatus, ApprovalUser, DestructiveRequest, KEPT, PENDING_MAX, REQUEST_LIFE,
    USE_LIFE, place, seal_body,
};
use crate::platform::{
    access::Project,
    audit::{Change, Recorder},
    db::Db,
    error::{Context, Error},
    events::{
        EventPayload,
        payloads::{ApprovalDecided, ApprovalRequested},
    },
    sealing::SealingKey,
};

/// Largest number of approvals in a list.
const LIST_MAX: i64 = 100;

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select a.id, a.operation, a.method, a.path, a.reason, r.gotrue_id, r.username, ",
            "a.requested_at, a.expires_at, d.gotrue_id, d.username, a.decided_at, ",
            "a.usable_until, a.used_at, a.approved, a.body, a.requested_by ",
            "from approvals a join users r on r.id = a.requested_by ",
            "left join users d on d.id = a.decided_by ",
            $rest
        )
    };
}

fn read(row: &Row, now: DateTime<Utc>) -> Approval {
    let decided_by = row.get::<_, Option<Uuid>>(9).map(|user_id| ApprovalUser {
        user_id,
        username: row.get(10),
    });
    let mut approval = Approval {
        id: row.get(0),
        status: ApprovalStatus::Pending,
        operation: row.get(1),
        method: row.get(2),
        path: row.get(3),
        reason: row.get(4),
        requested_by: ApprovalUser {
            user_id: row.get(5),
            username: row.get(6),
        },
        requested_at: row.get(7),
        expires_at: row.get(8),
        decided_by,
        decided_at: row.get(11),
        usable_until: row.get(12),
        used_at: row.get(13),
    };
    approval.status = approval.status_at(row.get(14), now);
    approval
}

/// Returns whether destructive requests of the project need an approval.
pub async fn is_protected(db: &Db, project: ProjectId) -> Result<bool, Error> {
    let sql = "select 1 from projects where id = $1 and protected";
    let rows = db
        .query(sql, &[&project.0])
        .await
        .context("reading the protection of a project")?;
    Ok(!rows.is_empty())
}

/// Uses the approval of a request. Returns `false` if there is none that may be used. Each approval
/// is used once, also by requests at the same time.
pub async fn take(
    db: &Db,
    request: &DestructiveRequest<'_>,
    now: DateTime<Utc>,
) -> Result<bool, Error> {
    let sql = "update approvals set used_at = $4 where id = (
                 select id from approvals
                 where project_id = $1 and requested_by = $2 and digest = $3
                 and approved and used_at is null and usable_until > $4
                 order by decided_at limit 1 for update skip locked)
               returning id";
    let digest: &[u8] = &request.digest;
    let rows = db
        .query(
            sql,
            &[&request.project.id.0, &request.user.id.0, &digest, &now],
        )
        .await
        .context("using an approval")?;
    Ok(!rows.is_empty())
}

/// Stores a request that needs an approval. Returns the id and the end of the time to decide; those
/// of the first one if the request is stored already.
///
/// Errors: [`Error::Rejected`] if the project has as many undecided requests as permitted.
pub async fn request(
    db: &Db,
    request: &DestructiveRequest<'_>,
    (sealing, entropy): (&SealingKey, &Entropy),
    recorder: Option<&Recorder>,
    now: DateTime<Utc>,
) -> Result<(Uuid, DateTime<Utc>), Error> {
    let doing = "storing a request for approval";
    // As stored.
    let now = now.trunc_subsecs(6);
    let project = request.project;
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_project(&transaction, project).await?;
    if let Some(pending) = pending(&transaction, request, now).await? {
        return Ok(pending);
    }
    make_room(&transaction, project, now).await?;
    let id = entropy.uuid_v7(now);
    let expires_at = now + REQUEST_LIFE;
    let body = seal_body(sealing, entropy, id, request.body)?;
    let sql = "insert into approvals (id, project_id, requested_by, operation, method, path,
                 digest, reason, body, requested_at, expires_at)
               values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let digest: &[u8] = &request.digest;
    let row: [crate::platform::db::Param<'_>; 11] = [
        &id,
        &project.id.0,
        &request.user.id.0,
        &request.operation,
        &request.method,
        &request.path,
        &digest,
        &request.reason.as_ref(),
        &body,
        &now,
        &expires_at,
    ];
    transaction.execute(sql, &row).await.context(doing)?;
    if let Some(recorder) = recorder {
        let event = ApprovalRequested {
            approval_id: id,
            operation: request.operation.to_owned(),
            reason: request.reason.clone().into_owned(),
        };
        let event = event.about(project);
        recorder.append_events(&transaction, &[event], now).await?;
    }
    transaction.commit().await.context(doing)?;
    Ok((id, expires_at))
}

/// Serializes the storing of requests of a project, so that a request is stored once.
async fn lock_project(transaction: &Transaction<'_>, project: &Project) -> Result<(), Error> {
    let sql = "select 1 from projects where id = $1 for no key update";
    transaction
        .execute(sql, &[&project.id.0])
        .await
        .context("locking a project")?;
    Ok(())
}

/// Returns the undecided approval of a request.
async fn pending(
    transaction: &Transaction<'_>,
    request: &DestructiveRequest<'_>,
    now: DateTime<Utc>,
) -> Result<Option<(Uuid, DateTime<Utc>)>, Error> {
    let sql = "select id, expires_at from approvals
               where project_id = $1 and requested_by = $2 and digest = $3
               and approved is null and expires_at > $4";
    let digest: &[u8] = &request.digest;
    let row = transaction
        .query_opt(
            sql,
            &[&request.project.id.0, &request.user.id.0, &digest, &now],
        )
        .await
        .context("looking for a request for approval")?;
    Ok(row.map(|row| (row.get(0), row.get(1))))
}

/// Deletes old requests, and rejects a new one if too many are undecided.
async fn make_room(
    transaction: &Transaction<'_>,
    project: &Project,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "making room for a request for approval";
    let sql = "delete from approvals where project_id = $1 and requested_at < $2";
    transaction
        .execute(sql, &[&project.id.0, &(now - KEPT)])
        .await
        .context(doing)?;
    let sql = "select count(*) from approvals
               where project_id = $1 and approved is null and expires_at > $2";
    let row = transaction
        .query_one(sql, &[&project.id.0, &now])
        .await
        .context(doing)?;
    if row.get::<_, i64>(0) >= PENDING_MAX {
        return Err(Error::Rejected(
            format!(
                "{PENDING_MAX} requests of this project wait for approval. Approve or deny some of them on its page \
                 \"Approvals\" first"
            )
            .into(),
        ));
    }
    Ok(())
}

/// Returns the newest approvals of a project.
pub async fn list(db: &Db, project: ProjectId, now: DateTime<Utc>) -> Result<Vec<Approval>, Error> {
    let sql = select!("where a.project_id = $1 order by a.requested_at desc, a.id limit $2");
    let rows = db
        .query(sql, &[&project.0, &LIST_MAX])
        .await
        .context("listing approvals")?;
    Ok(rows.iter().map(|row| read(row, now)).collect())
}

/// Returns an approval of a project with the begin of the body of the request.
pub async fn find(
    db: &Db,
    project: ProjectId,
    id: Uuid,
    sealing: &SealingKey,
    now: DateTime<Utc>,
) -> Result<(Approval, Option<SecretString>), Error> {
    let sql = select!("where a.project_id = $1 and a.id = $2");
    let rows = db
        .query(sql, &[&project.0, &id])
        .await
        .context("reading an approval")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    let sealed: Option<&[u8]> = row.get(15);
    let body = sealed.map(|sealed| sealing.open(&place(id), sealed));
    Ok((read(row, now), body.transpose()?))
}

/// A decision on a request.
pub struct ApprovalDecision<'a> {
    /// The protected project.
    pub project: &'a Project,
    /// Id of the approval.
    pub id: Uuid,
    /// Whether the request may run.
    pub approved: bool,
    /// The person that decides.
    pub decided_by: UserId,
    /// Whether the person may approve a request of its own that was made at this time.
    pub may_approve_own: &'a (dyn Fn(DateTime<Utc>) -> Result<(), Error> + Sync),
}

/// Stores a decision and returns the approval. Of several decisions the first one counts.
///
/// Errors: [`Error::NotFound`] if the project has no such approval; [`Error::Conflict`] if it is
/// decided or has expired.
pub async fn decide(
    db: &Db,
    decision: &ApprovalDecision<'_>,
    audit: &Recorder,
    now: DateTime<Utc>,
) -> Result<Approval, Error> {
    let doing = "deciding on a request";
    let ApprovalDecision {
        project,
        id,
        approved,
        decided_by,
        ..
    } = *decision;
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = select!("where a.project_id = $1 and a.id = $2 for update of a");
    let row = transaction
        .query_opt(sql, &[&project.id.0, &id])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let asked = read(&row, now);
    if asked.status != ApprovalStatus::Pending {
        return Err(Error::Conflict(already_decided(asked.status).into()));
    }
    if approved && row.get::<_, i64>(16) == decided_by.0 {
        (decision.may_approve_own)(asked.requested_at)?;
    }
    let usable_until = approved.then(|| now + USE_LIFE);
    let sql = "update approvals set approved = $2, decided_by = $3, decided_at = $4,
               usable_until = $5 where id = $1";
    transaction
        .execute(sql, &[&id, &approved, &decided_by.0, &now, &usable_until])
        .await
        .context(doing)?;
    let sql = select!("where a.project_id = $1 and a.id = $2");
    let row = transaction
        .query_one(sql, &[&project.id.0, &id])
        .await
        .context(doing)?;
    let decided = read(&row, now);
    let event = ApprovalDecided {
        approval_id: id,
        operation: decided.operation.clone(),
        approved,
    };
    let after = json!({"approval": id, "approved": approved, "reason": decided.reason});
    let change = Change::new((None, Some(after)), [event.about(project)]);
    audit.result(&decided);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(decided)
}

/// Returns the message of a decision that comes too late.
fn already_decided(status: ApprovalStatus) -> &'static str {
    match status {
        ApprovalStatus::Approved => "The request is approved already",
        ApprovalStatus::Denied => "The request is denied already",
        ApprovalStatus::Used => "The request has run already",
        ApprovalStatus::Pending | ApprovalStatus::Expired => {
            "The time to decide on the request is over. Send the request again"
        }
    }
}
