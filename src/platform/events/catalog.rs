//! The list of all event types, from which documents, filters and tests are derived.

use super::{
    EventPayload, EventType,
    payloads::{
        ApprovalDecided, ApprovalRequested, BackupFailed, BackupStarted, BackupVerificationFailed,
        BranchCreated, BranchExpiring, BranchRemoved, BranchUpdated, HostnameFailed,
        InvitationCanceled, InvitationCreated, LimitExceeded, MemberAdded, MemberRemoved, NodeLost,
        OrganizationSecretsLeaked, PlanDowngraded, PlanUpgraded, ProjectCreated,
        ProjectHealthChanged, ProjectPaused, ProjectRemoved, ProjectRestarted, ProjectRestored,
        ProjectSecretsLeaked, ProjectTransferred, RoleAssigned, RoleRemoved, RoleUpdated,
        StatusChanged, TokenCreated,
    },
};

static CATALOG: &[EventType] = &[
    ProjectCreated::TYPE,
    ProjectPaused::TYPE,
    ProjectRestored::TYPE,
    ProjectRestarted::TYPE,
    ProjectRemoved::TYPE,
    ProjectTransferred::TYPE,
    StatusChanged::TYPE,
    BackupStarted::TYPE,
    BranchCreated::TYPE,
    BranchUpdated::TYPE,
    BranchRemoved::TYPE,
    ProjectSecretsLeaked::TYPE,
    InvitationCreated::TYPE,
    InvitationCanceled::TYPE,
    MemberAdded::TYPE,
    RoleAssigned::TYPE,
    RoleUpdated::TYPE,
    RoleRemoved::TYPE,
    MemberRemoved::TYPE,
    PlanUpgraded::TYPE,
    PlanDowngraded::TYPE,
    OrganizationSecretsLeaked::TYPE,
    ProjectHealthChanged::TYPE,
    LimitExceeded::TYPE,
    BranchExpiring::TYPE,
    BackupFailed::TYPE,
    BackupVerificationFailed::TYPE,
    TokenCreated::TYPE,
    HostnameFailed::TYPE,
    ApprovalRequested::TYPE,
    ApprovalDecided::TYPE,
    NodeLost::TYPE,
];

/// Returns every event type: those of the contract, then those of Gantry.
pub fn catalog() -> &'static [EventType] {
    CATALOG
}

/// Returns the type of this name.
pub fn find(name: &str) -> Option<&'static EventType> {
    CATALOG.iter().find(|declared| declared.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Fields that all events have.
    const COMMON: [&str; 4] = ["organization_slug", "project_ref", "actor", "is_test"];

    #[test]
    fn names_are_unique_and_have_a_known_prefix() {
        let names: HashSet<_> = catalog().iter().map(|declared| declared.name).collect();
        assert_eq!(names.len(), catalog().len());
        for name in names {
            assert!(
                name.starts_with("v1.") || name.starts_with("gantry."),
                "{name}"
            );
            assert_eq!(find(name).map(|found| found.name), Some(name));
        }
        assert!(find("v1.project.unknown").is_none());
    }

    #[test]
    fn sample_has_exactly_the_fields_of_the_schema() {
        for declared in catalog() {
            let schema = declared.payload_schema().to_value();
            let fields = schema["properties"].as_object();
            let expected: HashSet<&str> = fields
                .into_iter()
                .flatten()
                .map(|(name, _)| name.as_str())
                .collect();
            let sample = declared.sample_payload();
            let found: HashSet<&str> = sample.keys().map(String::as_str).collect();
            assert_eq!(found, expected, "{}", declared.name);
            assert!(found.is_disjoint(&COMMON.into()), "{}", declared.name);
        }
    }
}
