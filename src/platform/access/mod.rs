//! Who calls, what they may do, and the decision (specification §5).

mod approval;
pub mod audience;
pub mod call_log;
pub mod caller;
pub mod credential;
mod decide;
mod directory;
mod grant;
pub mod last_used;
pub mod oauth_tokens;
pub mod permission;
mod requirement;
pub mod role;
pub mod sessions;

pub use approval::{Approval, Scopes};
pub use caller::{Caller, Holder, User};
pub use decide::{Standing, decide};
pub use directory::{Directory, Organization, Project, Reference, Subject, organization_by_slug};
pub use grant::{Grant, Permissions, Reach};
pub use permission::{AnyOf, Level, OauthScope, Permission};
pub use requirement::{Access, Asked, Case, needs, pat_only};
pub use role::{Held, Role};
