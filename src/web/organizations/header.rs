//! The header of every page of an organization.

use gantry_base::ids::OrgSlug;
use serde::Deserialize;

use crate::{platform::error::Error, web::visitor::Visitor};

/// The header of every page of an organization.
pub(in crate::web) struct OrganizationHeader {
    pub(in crate::web) slug: OrgSlug,
    pub(in crate::web) name: String,
}

impl OrganizationHeader {
    /// Returns the path of a page of the organization.
    pub(in crate::web) fn path(&self, rest: &str) -> String {
        format!("/organizations/{}{rest}", self.slug)
    }

    /// Loads the header. Returns 404 if the visitor is not a member.
    pub(in crate::web) async fn load(visitor: &Visitor, slug: OrgSlug) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct OrganizationName {
            name: String,
        }
        let OrganizationName { name } = visitor.get(&format!("/v1/organizations/{slug}")).await?;
        Ok(Self { slug, name })
    }
}
