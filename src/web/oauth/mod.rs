//! Applications of others: the page that asks whether they may, what was approved, and what an organization registered.

mod applications;
mod approved;
mod authorized;
mod consent;
mod words;

pub(super) use applications::{
    ADD_SECRET, ASK_DELETE, CHANGE, CREATE, DELETE, LIST, NEW, REVOKE_SECRET, SHOW,
};
pub(super) use approved::{APPROVED, TAKE_BACK};
pub(super) use authorized::{AUTHORIZED, END};
pub(super) use consent::{ANSWER, ASK, PROBLEM, SWITCH};
