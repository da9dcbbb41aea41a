//! Organizations: members and roles, invitations, and the audit log.

mod accept_invitation;
mod audit_log;
pub(super) mod header;
mod invitations;
mod member;
mod members;
pub(super) mod roles;

pub(super) use self::{
    accept_invitation::{ACCEPT_INVITATION, INVITATION},
    audit_log::{AUDIT_LOG, EXPORT_AUDIT_LOG},
    invitations::{INVITATIONS, INVITE, REVOKE_INVITATION},
    member::{ASSIGN_ROLE, CONFIRM_REMOVE, MEMBER, REMOVE},
    members::MEMBERS,
};
