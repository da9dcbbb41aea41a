//! What a page's path names, as far as it can be a name at all. Whether it is there, and for whom, operations say.

use crate::{
    base::{
        error::Error,
        ids::{OrgSlug, ProjectRef},
    },
    platform::http::{Call, Input, openapi::OperationDoc},
};

/// An organization.
pub(super) struct InOrganization(pub(super) OrgSlug);

impl Input for InOrganization {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("organization")
            .and_then(|slug| slug.parse().ok())
            .map(Self)
            .ok_or(Error::NotFound)
    }
}

/// A project.
pub(super) struct InProject(pub(super) ProjectRef);

impl Input for InProject {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("project")
            .and_then(|reference| reference.parse().ok())
            .map(Self)
            .ok_or(Error::NotFound)
    }
}
