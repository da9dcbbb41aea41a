//! Findings about a transfer. The preview returns them, and those that are errors reject the
//! transfer.

use gantry_base::ids::OrganizationId;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Transaction;

use super::{Transfer, moving::MovingProjects};
use crate::{
    api::{log_drains, organizations::members},
    control::{domains::hostnames, projects::Status, temporary_access::grants},
    platform::{
        access::Role,
        error::{Context, Error},
    },
};

/// A finding with a stable key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ProjectTransferFinding")]
pub(in crate::api::projects) struct Finding {
    key: &'static str,
    message: String,
}

/// The result of a preview.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ProjectTransferFindings")]
pub(in crate::api::projects) struct Findings {
    /// Whether the transfer is possible: there are no errors.
    pub(in crate::api::projects) valid: bool,
    warnings: Vec<Finding>,
    errors: Vec<Finding>,
    info: Vec<Finding>,
}

impl Findings {
    fn new() -> Self {
        Self {
            valid: true,
            warnings: Vec::new(),
            errors: Vec::new(),
            info: Vec::new(),
        }
    }

    fn error(&mut self, key: &'static str, message: impl Into<String>) {
        self.valid = false;
        let message = message.into();
        self.errors.push(Finding { key, message });
    }

    /// Returns the error of a transfer that is not possible, with all reasons.
    pub(in crate::api::projects) fn into_result(self) -> Result<(), Error> {
        if self.errors.is_empty() {
            return Ok(());
        }
        let reasons: Vec<_> = self.errors.into_iter().map(|it| it.message).collect();
        Err(Error::Rejected(
            format!("The project cannot be transferred. {}", reasons.join(" ")).into(),
        ))
    }
}

const OWNER: &str = "A transfer needs an owner of the project's organization: transfer the project as one of them, or with a claim token that a present owner created.";
const MEMBER: &str = "You are not a member of the target organization with the necessary role, or it does not exist. Check its slug, or ask one of its owners for an invitation.";
const BRANCH: &str = "The project is a branch, which is transferred together with its parent. Transfer the parent instead.";

/// Returns the findings about a transfer. Changes nothing.
pub(super) async fn collect(
    transaction: &Transaction<'_>,
    transfer: &Transfer<'_>,
    moving: &MovingProjects,
) -> Result<Findings, Error> {
    let mut findings = Findings::new();
    let source = transfer.project.organization;
    let owner = members::role_in(transaction, source, transfer.owner).await?;
    if owner != Some(Role::Owner) {
        findings.error("source_owner_required", OWNER);
    }
    if moving.is_branch {
        findings.error("project_is_branch", BRANCH);
    }
    check_states(&mut findings, moving);
    check_rows(transaction, &mut findings, moving).await?;
    match transfer.target {
        None => findings.error("target_membership_required", MEMBER),
        Some(target) if target.id == source => findings.error(
            "target_organization_same",
            "The project is in the target organization already. Choose another organization.",
        ),
        Some(target) => {
            let role = members::role_in(transaction, target.id, transfer.recipient).await?;
            if role.is_none_or(|role| role < transfer.recipient_role) {
                findings.error("target_membership_required", MEMBER);
            } else {
                check_target(transaction, &mut findings, moving, target.id).await?;
            }
        }
    }
    describe_effects(transaction, &mut findings, moving).await?;
    Ok(findings)
}

/// Requires projects that are running or paused.
fn check_states(findings: &mut Findings, moving: &MovingProjects) {
    let unsettled = |status: Status| {
        !matches!(
            status,
            Status::ActiveHealthy | Status::ActiveUnhealthy | Status::Inactive
        )
    };
    for project in moving.all.iter().filter(|it| unsettled(it.status)) {
        let message = format!(
            "{} is {}. Wait until it is running or paused.",
            project.reference,
            project.status.name()
        );
        findings.error("project_not_settled", message);
    }
}

/// Requires that there are no rows that belong to members or systems of the source.
async fn check_rows(
    transaction: &Transaction<'_>,
    findings: &mut Findings,
    moving: &MovingProjects,
) -> Result<(), Error> {
    let ids = &moving.ids();
    let roles = members::count_on_projects(transaction, ids).await?;
    if roles > 0 {
        let message = format!(
            "Roles on single projects include this one, {roles} in all. Remove them from the members first."
        );
        findings.error("project_scoped_roles", message);
    }
    let drains = log_drains::count(transaction, ids).await?;
    if drains > 0 {
        let message = format!("The project has log drains, {drains} in all. Delete them first.");
        findings.error("log_drains", message);
    }
    Ok(())
}

/// Checks names and limits of the target.
async fn check_target(
    transaction: &Transaction<'_>,
    findings: &mut Findings,
    moving: &MovingProjects,
    target: OrganizationId,
) -> Result<(), Error> {
    let names: Vec<&str> = moving.all.iter().map(|it| it.name.as_str()).collect();
    let sql = "select name from projects where organization_id = $1 and desired <> 'removed' \
               and name = any($2) order by name";
    let rows = transaction.query(sql, &[&target.0, &names]).await;
    for row in rows.context("comparing names of projects")? {
        findings.error("project_name_taken", name_taken(row.get(0)));
    }
    if !hostnames::has_room(transaction, target, &moving.ids()).await? {
        let message = format!(
            "The projects of an organization can have {} custom hostnames, and the target would have more. Delete some first.",
            hostnames::HOSTNAMES_MAX
        );
        findings.error("custom_hostname_limit", message);
    }
    Ok(())
}

/// Returns the message about a name that a project of the target has.
pub(super) fn name_taken(name: &str) -> String {
    format!(
        "Project with name {name} already exists in the target organization. Rename one of them."
    )
}

/// Describes the effects of the transfer that its owner may not expect.
async fn describe_effects(
    transaction: &Transaction<'_>,
    findings: &mut Findings,
    moving: &MovingProjects,
) -> Result<(), Error> {
    findings.warnings.push(Finding {
        key: "credentials_stay_valid",
        message: "API keys and the database password stay valid. Replace them after the transfer if members of the former organization have them.".to_owned(),
    });
    let grants = grants::count_on_projects(transaction, &moving.ids()).await?;
    if grants > 0 {
        let message = format!(
            "Temporary access to the database ends, with {grants} grants and invitations in all."
        );
        let key = "temporary_access_ends";
        findings.warnings.push(Finding { key, message });
    }
    let branches = moving.all.len() - 1;
    if branches > 0 {
        let message = format!("{branches} branches are transferred together with the project.");
        let key = "branches_move";
        findings.info.push(Finding { key, message });
    }
    findings.info.push(Finding {
        key: "audit_log_stays",
        message: "Entries of the audit log before the transfer, and the versions of settings in them, stay with the former organization.".to_owned(),
    });
    Ok(())
}
