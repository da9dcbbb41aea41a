//! Authentication and authorization: credentials, callers, permissions and the access decision
//! (specification §5).

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
mod subject;

pub use approval::{OauthApproval, Scopes};
pub use caller::{CachedCredential, Caller, User};
pub use decide::{CallerRelation, decide, may_use};
pub use directory::{Directory, organization_by_slug};
pub(crate) use grant::read as read_grant;
pub use grant::{Permissions, Reach, TokenGrant};
pub use permission::{AnyOf, OauthScope, Permission, PermissionLevel};
pub use requirement::{Access, Case, RequestView, needs, pat_only};
pub use role::{EffectiveRoles, Role};
pub use subject::{BranchKey, Organization, Project, ResourceName, Subject};
