//! Events of the contract about organizations and their members.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::{
    super::{EventPayload, EventScope::Organization, EventType},
    project::SAMPLE_REF,
};
use crate::platform::access::Role;

/// Email address in samples.
const SAMPLE_EMAIL: &str = "ada@example.com";

/// A role in a payload.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MemberRole {
    /// Name of the role.
    pub name: String,
    /// The projects on which it applies; null for the whole organization.
    pub projects: Option<Vec<ProjectOfRole>>,
}

/// A project on which a role applies.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ProjectOfRole {
    /// Ref of the project.
    #[serde(rename = "ref")]
    pub reference: String,
}

impl MemberRole {
    /// Returns a role on these projects; in the whole organization, if there are none.
    pub fn new<T: ToString>(role: Role, projects: impl IntoIterator<Item = T>) -> Self {
        let named = |reference: T| ProjectOfRole {
            reference: reference.to_string(),
        };
        let projects: Vec<ProjectOfRole> = projects.into_iter().map(named).collect();
        Self {
            name: role.label().to_owned(),
            projects: (!projects.is_empty()).then_some(projects),
        }
    }

    fn sample() -> Self {
        Self::new(Role::Developer, [SAMPLE_REF])
    }
}

/// A member in a payload.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Member {
    /// Id of the user.
    pub user_id: Uuid,
    /// Email address of the account.
    pub primary_email: String,
    /// The role that was given, changed or taken. Absent if the member was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
}

impl Member {
    fn sample(role: Option<MemberRole>) -> Self {
        Self {
            user_id: Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0001),
            primary_email: SAMPLE_EMAIL.to_owned(),
            role,
        }
    }
}

/// Declares payloads that have a member.
macro_rules! member_events {
    ($($payload:ident = $name:literal, $summary:literal, $role:expr;)*) => {$(
        #[doc = concat!("Payload of `", $name, "`.")]
        #[derive(Debug, Serialize, JsonSchema)]
        pub struct $payload {
            /// The member.
            pub member: Member,
        }

        impl EventPayload for $payload {
            const TYPE: EventType = EventType::of::<Self>($name, Organization, $summary);

            fn sample() -> Self {
                Self { member: Member::sample($role) }
            }
        }
    )*};
}

member_events! {
    MemberAdded = "v1.organization.member.added", "A user became a member of the organization.", Some(MemberRole::sample());
    MemberRemoved = "v1.organization.member.removed", "A member was removed from the organization.", None;
    RoleAssigned = "v1.organization.member.role.assigned", "A member was given a role, in the organization or on projects.", Some(MemberRole::sample());
    RoleUpdated = "v1.organization.member.role.updated", "A role of a member was replaced by another one.", Some(MemberRole::sample());
    RoleRemoved = "v1.organization.member.role.removed", "A role was taken from a member.", Some(MemberRole::sample());
}

/// An invited person in a payload.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InvitedMember {
    /// The invitation.
    pub invitation: Invitation,
}

/// An invitation in a payload.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Invitation {
    /// Email address that was invited.
    pub email: String,
    /// The role that the invitation offers. Absent if it was canceled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
}

impl InvitedMember {
    /// Returns the invitation of an address.
    pub const fn new(email: String, role: Option<MemberRole>) -> Self {
        Self {
            invitation: Invitation { email, role },
        }
    }
}

/// Declares payloads that have an invitation.
macro_rules! invitation_events {
    ($($payload:ident = $name:literal, $summary:literal, $role:expr;)*) => {$(
        #[doc = concat!("Payload of `", $name, "`.")]
        #[derive(Debug, Serialize, JsonSchema)]
        pub struct $payload {
            /// The invited person.
            pub member: InvitedMember,
        }

        impl EventPayload for $payload {
            const TYPE: EventType = EventType::of::<Self>($name, Organization, $summary);

            fn sample() -> Self {
                Self { member: InvitedMember::new(SAMPLE_EMAIL.to_owned(), $role) }
            }
        }
    )*};
}

invitation_events! {
    InvitationCreated = "v1.organization.member.invitation.created", "An email address was invited to the organization.", Some(MemberRole::sample());
    InvitationCanceled = "v1.organization.member.invitation.canceled", "An invitation was revoked.", None;
}

/// The billing of an organization in a payload.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Billing {
    /// The plan since the change.
    pub plan: Plan,
}

/// A plan of an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names of the contract")]
pub enum Plan {
    Free,
    Pro,
    Team,
    Enterprise,
}

/// Declares payloads that have a plan. Organizations have no plans here.
macro_rules! plan_events {
    ($($payload:ident = $name:literal, $summary:literal, $plan:expr;)*) => {$(
        #[doc = concat!("Payload of `", $name, "`.")]
        #[derive(Debug, Serialize, JsonSchema)]
        pub struct $payload {
            /// The billing.
            pub billing: Billing,
        }

        impl EventPayload for $payload {
            const TYPE: EventType =
                EventType::of::<Self>($name, Organization, $summary).never_emitted();

            fn sample() -> Self {
                Self { billing: Billing { plan: $plan } }
            }
        }
    )*};
}

plan_events! {
    PlanUpgraded = "v1.organization.billing.plan.upgraded", "The organization has a higher plan.", Plan::Pro;
    PlanDowngraded = "v1.organization.billing.plan.downgraded", "The organization has a lower plan.", Plan::Free;
}

/// Payload of `v1.organization.secrets.leaked`, which the contract does not describe.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OrganizationSecretsLeaked {}

impl EventPayload for OrganizationSecretsLeaked {
    const TYPE: EventType = EventType::of::<Self>(
        "v1.organization.secrets.leaked",
        Organization,
        "A secret of the organization was found in public.",
    )
    .never_emitted();

    fn sample() -> Self {
        Self {}
    }
}
