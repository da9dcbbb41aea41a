//! Events that the contract does not have. Their names begin with `gantry.`.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::{
    super::{
        EventPayload,
        EventScope::{Organization, Project},
        EventType,
    },
    project::{EventBranch, SAMPLE_REF},
};

/// Payload of `gantry.project.health_changed`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProjectHealthChanged {
    /// The warning about its resources before; null if there was none.
    pub previous_warning: Option<String>,
    /// The warning now; null if there is none.
    pub current_warning: Option<String>,
}

impl EventPayload for ProjectHealthChanged {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.project.health_changed",
        Project,
        "The warning about the resources of a project changed.",
    );

    fn sample() -> Self {
        Self {
            previous_warning: None,
            current_warning: Some("the disk is nearly full".to_owned()),
        }
    }
}

/// Payload of `gantry.limit.exceeded`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LimitExceeded {
    /// The limit: `memory`, `processes`, `disk-soft`, `disk-hard` or `disk-stop`.
    pub limit: String,
}

impl EventPayload for LimitExceeded {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.limit.exceeded",
        Project,
        "A project reached a limit of its resources. Sent at most once a minute for a project and limit.",
    );

    fn sample() -> Self {
        Self {
            limit: "disk-soft".to_owned(),
        }
    }
}

/// Payload of `gantry.branch.expiring`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BranchExpiring {
    /// The branch.
    pub branch: EventBranch,
    /// Time at which it is removed.
    pub expires_at: DateTime<Utc>,
    /// The cause.
    pub reason: BranchEndReason,
}

/// The cause of the end of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BranchEndReason {
    /// Its time of expiry.
    ExpiresAt,
    /// Too long without use.
    Unused,
}

impl EventPayload for BranchExpiring {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.branch.expiring",
        Project,
        "A branch is removed in a day, or in an hour.",
    );

    fn sample() -> Self {
        Self {
            branch: EventBranch::sample(),
            expires_at: DateTime::UNIX_EPOCH,
            reason: BranchEndReason::Unused,
        }
    }
}

/// Payload of `gantry.backup.failed`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackupFailed {
    /// Number of the backup.
    pub backup_id: i64,
    /// The cause.
    pub error: String,
}

impl EventPayload for BackupFailed {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.backup.failed",
        Project,
        "A base backup of a project failed. Gantry makes another one.",
    );

    fn sample() -> Self {
        Self {
            backup_id: 1,
            error: "the object store does not answer".to_owned(),
        }
    }
}

/// Payload of `gantry.backup.verification_failed`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackupVerificationFailed {
    /// Number of the backup.
    pub backup_id: i64,
    /// The cause.
    pub error: String,
}

impl EventPayload for BackupVerificationFailed {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.backup.verification_failed",
        Project,
        "A backup of a project could not be restored for a test.",
    );

    fn sample() -> Self {
        Self {
            backup_id: 1,
            error: "a file of the backup is damaged".to_owned(),
        }
    }
}

/// Payload of `gantry.token.created`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TokenCreated {
    /// The token.
    pub token: TokenFacts,
}

/// A personal access token in a payload.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TokenFacts {
    /// Number of the token, as in the audit log.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Whether its permissions are restricted.
    pub is_scoped: bool,
    /// Time of expiry; null if it does not expire.
    pub expires_at: Option<DateTime<Utc>>,
}

impl EventPayload for TokenCreated {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.token.created",
        Organization,
        "A member created a personal access token that reaches the organization. Each organization that it reaches has the event.",
    );

    fn sample() -> Self {
        Self {
            token: TokenFacts {
                id: 1,
                name: "deploy".to_owned(),
                is_scoped: true,
                expires_at: None,
            },
        }
    }
}

/// Payload of `gantry.approval.requested`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ApprovalRequested {
    /// Id of the approval.
    pub approval_id: Uuid,
    /// Id of the refused operation.
    pub operation: String,
    /// The effect of the request. Completes "this request …".
    pub reason: String,
}

impl EventPayload for ApprovalRequested {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.approval.requested",
        Project,
        "A destructive request of a protected project waits for an approval.",
    );

    fn sample() -> Self {
        Self {
            approval_id: Uuid::nil(),
            operation: "v1-delete-a-project".to_owned(),
            reason: "deletes the project".to_owned(),
        }
    }
}

/// Payload of `gantry.approval.decided`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ApprovalDecided {
    /// Id of the approval.
    pub approval_id: Uuid,
    /// Id of the operation.
    pub operation: String,
    /// Whether the request may run.
    pub approved: bool,
}

impl EventPayload for ApprovalDecided {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.approval.decided",
        Project,
        "A member approved or denied a destructive request of a protected project.",
    );

    fn sample() -> Self {
        Self {
            approval_id: Uuid::nil(),
            operation: "v1-delete-a-project".to_owned(),
            approved: true,
        }
    }
}

/// Payload of `gantry.hostname.failed`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HostnameFailed {
    /// The custom hostname.
    pub hostname: String,
    /// The cause.
    pub reason: String,
}

impl EventPayload for HostnameFailed {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.hostname.failed",
        Project,
        "A certificate authority refused a certificate for a custom hostname.",
    );

    fn sample() -> Self {
        Self {
            hostname: "api.example.com".to_owned(),
            reason: "the name does not point to this server".to_owned(),
        }
    }
}

/// Payload of `gantry.node.lost`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeLost {
    /// Projects of the organization that other nodes rebuild from their backups.
    pub projects: Vec<LostProject>,
}

/// A project of a lost node in a payload.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LostProject {
    /// Ref of the project.
    #[serde(rename = "ref")]
    pub reference: String,
    /// The last moment in the backups: later changes are lost. Null if there were no data yet.
    pub recovered_until: Option<DateTime<Utc>>,
}

impl EventPayload for NodeLost {
    const TYPE: EventType = EventType::of::<Self>(
        "gantry.node.lost",
        Organization,
        "The operator gave up a node that had projects of the organization, and lets other nodes rebuild them. Each organization with projects on the node has the event.",
    );

    fn sample() -> Self {
        Self {
            projects: vec![LostProject {
                reference: SAMPLE_REF.to_owned(),
                recovered_until: None,
            }],
        }
    }
}
