//! Path parameters of pages. A malformed value is answered with 404; whether the resource exists
//! and is visible is decided by the operations that the page calls.

use gantry_base::ids::{OrgSlug, ProjectRef};
use uuid::Uuid;

use crate::{api::path::path_parameters, platform::error::Error};

path_parameters! {
    /// The slug of an organization.
    pub(super) struct PathOrganization(OrgSlug) from "organization", else Error::NotFound;
    /// The ref of a project.
    pub(super) struct PathProject(ProjectRef) from "project", else Error::NotFound;
    /// The ref of a branch.
    pub(super) struct PathBranch(ProjectRef) from "branch", else Error::NotFound;
    /// The user id of a member.
    pub(super) struct PathMember(Uuid) from "member", else Error::NotFound;
    /// The id of a personal access token.
    pub(super) struct PathToken(i64) from "token", else Error::NotFound;
    /// The id of a token draft.
    pub(super) struct PathDraft(Uuid) from "draft", else Error::NotFound;
    /// The secret of an invitation.
    pub(super) struct PathInvitation(String) from "invitation", else Error::NotFound;
    /// The id of a webhook endpoint.
    pub(super) struct PathWebhook(Uuid) from "webhook", else Error::NotFound;
    /// The id of an approval.
    pub(super) struct PathApproval(Uuid) from "approval", else Error::NotFound;
    /// The id of a webhook delivery.
    pub(super) struct PathDelivery(Uuid) from "delivery", else Error::NotFound;
    /// The name of an embedded file.
    pub(super) struct PathFile(String) from "file", else Error::NotFound;
}
