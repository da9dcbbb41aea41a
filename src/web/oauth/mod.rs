//! OAuth: consent, the authorizations of a user and of an organization, and the registered
//! applications of an organization.

mod applications;
mod consent;
mod member_authorizations;
mod own_authorizations;
mod scope_labels;

pub(super) use applications::{
    ADD_SECRET, CHANGE, CONFIRM_DELETE, CREATE, DELETE, LIST, NEW, REVOKE_SECRET, SHOW,
};
pub(super) use consent::{CONSENT, DECIDE, PROBLEM, SWITCH_ACCOUNT};
pub(super) use member_authorizations::{MEMBER_AUTHORIZATIONS, REVOKE_MEMBER_AUTHORIZATIONS};
pub(super) use own_authorizations::{AUTHORIZATIONS, REVOKE_AUTHORIZATION};
