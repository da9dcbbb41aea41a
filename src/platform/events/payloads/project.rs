//! Events of the contract about projects and branches.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::{EventPayload, EventScope::Project, EventType};

/// Ref in samples.
pub(super) const SAMPLE_REF: &str = "abcdefghijklmnopqrst";

/// Payload of `v1.project.created`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProjectCreated {
    /// The project that it is a copy of; null if it is none.
    pub source: Option<ProjectSource>,
}

/// The origin of a new project.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ProjectSource {
    /// Made from a backup of another project.
    Clone {
        /// Ref of the other project.
        project_ref: String,
    },
}

impl EventPayload for ProjectCreated {
    const TYPE: EventType = EventType::of::<Self>(
        "v1.project.created",
        Project,
        "A project was created. Its database may not run yet.",
    );

    fn sample() -> Self {
        Self { source: None }
    }
}

/// Payload of `v1.project.paused`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProjectPaused {
    /// The cause.
    pub reason: PauseReason,
}

/// The cause of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PauseReason {
    /// A request of a member.
    ApiRequest,
    /// Too long without use. Gantry stops servers of idle projects without pausing the project, so
    /// it never sends this reason.
    Inactivity,
    /// Another cause, such as a disk that stays full.
    Other,
}

impl EventPayload for ProjectPaused {
    const TYPE: EventType = EventType::of::<Self>(
        "v1.project.paused",
        Project,
        "A project is paused. Its data is kept.",
    );

    fn sample() -> Self {
        Self {
            reason: PauseReason::ApiRequest,
        }
    }
}

/// Payload of `v1.project.status.changed`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusChanged {
    /// Status before the change.
    pub previous_status: String,
    /// Status since the change.
    pub current_status: String,
}

impl EventPayload for StatusChanged {
    const TYPE: EventType = EventType::of::<Self>(
        "v1.project.status.changed",
        Project,
        "The status of a project or branch changed.",
    );

    fn sample() -> Self {
        Self {
            previous_status: "COMING_UP".to_owned(),
            current_status: "ACTIVE_HEALTHY".to_owned(),
        }
    }
}

/// Payload of `v1.project.transferred`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProjectTransferred {
    /// The organization that had the project.
    pub source: OrganizationName,
    /// The organization that has it now.
    pub target: OrganizationName,
}

/// An organization in a payload.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OrganizationName {
    /// Its slug.
    pub organization_slug: String,
}

impl EventPayload for ProjectTransferred {
    const TYPE: EventType = EventType::of::<Self>(
        "v1.project.transferred",
        Project,
        "A project was transferred to another organization. Both organizations have the event.",
    );

    fn sample() -> Self {
        let named = |slug: &str| OrganizationName {
            organization_slug: slug.to_owned(),
        };
        Self {
            source: named("source-organization"),
            target: named("target-organization"),
        }
    }
}

/// A branch in a payload. The `project_ref` of its events is that of the parent.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct EventBranch {
    /// Ref of the project that the branch is.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Its name.
    pub name: String,
    /// The Git branch that it belongs to.
    pub git_branch: Option<String>,
    /// Whether it is the default branch: the parent itself.
    pub is_default: bool,
}

impl EventBranch {
    /// Returns a branch for samples.
    pub(super) fn sample() -> Self {
        Self {
            reference: SAMPLE_REF.to_owned(),
            name: "feature".to_owned(),
            git_branch: Some("feature".to_owned()),
            is_default: false,
        }
    }
}

/// Declares payloads that have a branch.
macro_rules! branch_events {
    ($($payload:ident = $name:literal, $summary:literal;)*) => {$(
        #[doc = concat!("Payload of `", $name, "`.")]
        #[derive(Debug, Serialize, JsonSchema)]
        pub struct $payload {
            /// The branch.
            pub branch: EventBranch,
        }

        impl EventPayload for $payload {
            const TYPE: EventType = EventType::of::<Self>($name, Project, $summary);

            fn sample() -> Self {
                Self { branch: EventBranch::sample() }
            }
        }
    )*};
}

branch_events! {
    BranchCreated = "v1.project.branch.created", "A branch of a project was created. Its database may not run yet.";
    BranchUpdated = "v1.project.branch.updated", "The settings of a branch changed.";
    BranchRemoved = "v1.project.branch.removed", "A branch of a project was removed.";
}

/// Declares payloads without fields of their own.
macro_rules! plain_events {
    ($($payload:ident = $name:literal, $summary:literal;)*) => {$(
        #[doc = concat!("Payload of `", $name, "`.")]
        #[derive(Debug, Serialize, JsonSchema)]
        pub struct $payload {}

        impl EventPayload for $payload {
            const TYPE: EventType = EventType::of::<Self>($name, Project, $summary);

            fn sample() -> Self {
                Self {}
            }
        }
    )*};
}

plain_events! {
    ProjectRestored = "v1.project.restored", "A paused or removed project is started again.";
    ProjectRestarted = "v1.project.restarted", "A project is stopped and started.";
    ProjectRemoved = "v1.project.removed", "A project was removed.";
    BackupStarted = "v1.project.backup.started", "A base backup of a project was started.";
}

/// Payload of `v1.project.secrets.leaked`, which the contract does not describe.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProjectSecretsLeaked {}

impl EventPayload for ProjectSecretsLeaked {
    const TYPE: EventType = EventType::of::<Self>(
        "v1.project.secrets.leaked",
        Project,
        "A secret of a project was found in public.",
    )
    .never_emitted();

    fn sample() -> Self {
        Self {}
    }
}
