//! Payloads of events, each with the declaration of its type.

mod gantry;
mod organization;
mod project;

pub use gantry::{
    ApprovalDecided, ApprovalRequested, BackupFailed, BackupVerificationFailed, BranchEndReason,
    BranchExpiring, HostnameFailed, LimitExceeded, LostProject, NodeLost, ProjectHealthChanged,
    TokenCreated, TokenFacts,
};
pub use organization::{
    Billing, Invitation, InvitationCanceled, InvitationCreated, InvitedMember, Member, MemberAdded,
    MemberRemoved, MemberRole, OrganizationSecretsLeaked, Plan, PlanDowngraded, PlanUpgraded,
    ProjectOfRole, RoleAssigned, RoleRemoved, RoleUpdated,
};
pub use project::{
    BackupStarted, BranchCreated, BranchRemoved, BranchUpdated, EventBranch, OrganizationName,
    PauseReason, ProjectCreated, ProjectPaused, ProjectRemoved, ProjectRestarted, ProjectRestored,
    ProjectSecretsLeaked, ProjectSource, ProjectTransferred, StatusChanged,
};
