//! Who calls, what they may do, and the decision (specification §5).

pub mod permission;
pub mod role;

pub use permission::{AnyOf, Level, OauthScope, Permission};
pub use role::Role;
