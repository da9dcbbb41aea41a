//! Path parameters of pages. A malformed value is answered with 404; whether the resource exists
//! and is visible is decided by the operations that the page calls.

use gantry_base::ids::{OrgSlug, ProjectRef};
use uuid::Uuid;

use crate::platform::{
    error::Error,
    http::{Call, Input, openapi::OperationDoc},
};

/// Defines handler inputs, each of which parses one path parameter.
macro_rules! path_parameters {
    ($($(#[$doc:meta])* $name:literal => $input:ident($value:ty);)*) => {$(
        $(#[$doc])*
        pub(super) struct $input(pub(super) $value);

        impl Input for $input {
            fn describe(_: &mut OperationDoc) {}

            async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
                let value = call.placeholder($name).ok_or(Error::NotFound)?;
                value.parse().map(Self).map_err(|_| Error::NotFound)
            }
        }
    )*};
}

path_parameters! {
    /// The slug of an organization.
    "organization" => PathOrganization(OrgSlug);
    /// The ref of a project.
    "project" => PathProject(ProjectRef);
    /// The ref of a branch.
    "branch" => PathBranch(ProjectRef);
    /// The user id of a member.
    "member" => PathMember(Uuid);
    /// The id of a personal access token.
    "token" => PathToken(i64);
    /// The id of a token draft.
    "draft" => PathDraft(Uuid);
    /// The secret of an invitation.
    "invitation" => PathInvitation(String);
    /// The name of an embedded file.
    "file" => PathFile(String);
}
