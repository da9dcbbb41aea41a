//! Operations of the contract that are not implemented yet. Each is routed, authorized, counted and
//! documented like any other, and answers 501. To implement one, move its line into its resource as
//! an [`Endpoint`] with a handler.

use crate::platform::{
    access::{OauthScope as S, Permission as P, needs, pat_only},
    http::{Endpoint, Tag, Verb, endpoint::not_built},
    rate_limits::STANDARD,
};

macro_rules! planned {
    ($($verb:ident $path:literal $aliases:tt $id:literal $title:literal $tag:ident, $access:expr, $limit:ident $(, instead $instead:literal)?;)*) => {
        /// Declared operations without an implementation.
        pub static PLANNED: &[&Endpoint] = &[$(&Endpoint {
            id: $id,
            summary: $title,
            tag: Tag::$tag,
            method: Verb::$verb,
            path: $path,
            aliases: &$aliases,
            access: $access,
            limit: &$limit,
            handler: || not_built(message($title, concat!($($instead, " ")?))),
        }),*];
    };
}

/// Returns the message of the 501: the operation, what to use instead if anything does, and where
/// to look.
fn message(title: &str, instead: &str) -> String {
    let (verb, object) = title.split_once(' ').unwrap_or((title, ""));
    let activity = gerund(verb);
    format!(
        "{activity} {object} is not built yet. {instead}GET /v1/compatibility lists what is built."
    )
}

/// Returns the gerund of a verb that a title begins with.
fn gerund(verb: &str) -> String {
    match verb {
        "Get" | "Set" => format!("{verb}ting"),
        _ => format!("{}ing", verb.strip_suffix('e').unwrap_or(verb)),
    }
}

planned! {
    Post "/v1/projects/{ref}/network-restrictions/review" [] "v1-review-network-restrictions" "Review requested network restrictions" Projects, needs(&[&[P::DatabaseNetworkRestrictionsWrite]], S::ProjectsWrite), STANDARD, instead "Restrictions apply without a review: use POST /v1/projects/{ref}/network-restrictions/apply instead.";
    Post "/v1/projects/{ref}/read-replicas/remove" [] "v1-remove-a-read-replica" "Remove a read replica" Database, pat_only(&[&[P::InfraReadReplicasWrite]]), STANDARD;
    Post "/v1/projects/{ref}/read-replicas/setup" [] "v1-setup-a-read-replica" "Set up a read replica" Database, pat_only(&[&[P::InfraReadReplicasWrite]]), STANDARD;
    Get "/v2/organizations/{slug}/integrations/github/connections" [] "v2-list-organization-github-connections" "List an organization's GitHub connections" Organizations, needs(&[&[P::OrganizationProjectsRead]], S::ProjectsRead), STANDARD;
    Get "/v2/organizations/{slug}/maintenance/windows" [] "v2-list-organization-maintenance-windows" "List an organization's maintenance windows" Organizations, needs(&[&[P::OrganizationAdminRead]], S::OrganizationsRead), STANDARD;
    Get "/v2/organizations/{slug}/projects" [] "v2-list-organization-projects" "List an organization's projects" Organizations, needs(&[&[P::OrganizationProjectsRead]], S::ProjectsRead), STANDARD, instead "Use GET /v1/organizations/{slug}/projects instead.";
    Get "/v2/projects/{ref}/compute" [] "v2-list-all-compute-instances" "List compute instances" Compute, needs(&[&[P::WorkersRead]], S::EdgeFunctionsRead), STANDARD;
    Delete "/v2/projects/{ref}/compute/{name}" [] "v2-delete-a-compute-instance" "Delete a compute instance" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), STANDARD;
    Get "/v2/projects/{ref}/compute/{name}" [] "v2-get-a-compute-instance" "Get a compute instance" Compute, needs(&[&[P::WorkersRead]], S::EdgeFunctionsRead), STANDARD;
    Post "/v2/projects/{ref}/compute/{name}/deploy" [] "v2-deploy-a-compute-instance" "Deploy a compute instance" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), STANDARD;
    Post "/v2/projects/{ref}/compute/{name}/uploads" [] "v2-create-compute-instance-upload" "Create an upload for a compute instance" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), STANDARD;
    Get "/v2/projects/{ref}/notebooks" [] "v2-list-notebooks" "List notebooks" Notebooks, needs(&[&[P::ProjectNotebooksRead]], S::DatabaseRead), STANDARD;
    Post "/v2/projects/{ref}/notebooks" [] "v2-create-notebook" "Create a notebook" Notebooks, needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite), STANDARD;
    Delete "/v2/projects/{ref}/notebooks/{id}" [] "v2-delete-notebook" "Delete a notebook" Notebooks, needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite), STANDARD;
    Get "/v2/projects/{ref}/notebooks/{id}" [] "v2-get-notebook" "Get a notebook" Notebooks, needs(&[&[P::ProjectNotebooksRead]], S::DatabaseRead), STANDARD;
    Patch "/v2/projects/{ref}/notebooks/{id}" [] "v2-update-notebook" "Update a notebook" Notebooks, needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite), STANDARD;
    Get "/v2/projects/{ref}/private-link/associations" [] "v2-list-private-link-associations" "List private link associations" Projects, pat_only(&[&[P::ProjectAdminRead]]), STANDARD;
    Post "/v2/projects/{ref}/private-link/associations" [] "v2-create-private-link-association" "Create a private link association" Projects, pat_only(&[&[P::ProjectAdminWrite]]), STANDARD;
    Delete "/v2/projects/{ref}/private-link/associations/aws-account/{aws_account_id}" [] "v2-delete-private-link-association" "Delete a private link association" Projects, pat_only(&[&[P::ProjectAdminWrite]]), STANDARD;
    Delete "/v2/projects/{ref}/private-link/associations/aws-account/{aws_account_id}/database/{database_identifier}" [] "v2-delete-private-link-association-for-database" "Delete a private link association of one database" Projects, pat_only(&[&[P::ProjectAdminWrite]]), STANDARD;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn message_names_operation_alternative_and_compatibility() {
        assert_eq!(
            message("Create an SSO provider", ""),
            "Creating an SSO provider is not built yet. GET /v1/compatibility lists what is built."
        );
        assert_eq!(
            message("Set up a read replica", "Use X instead. "),
            "Setting up a read replica is not built yet. Use X instead. GET /v1/compatibility lists what is built."
        );
    }

    #[test]
    fn summaries_begin_with_a_verb_with_known_gerund() {
        let gerunds: BTreeSet<_> = PLANNED
            .iter()
            .map(|endpoint| gerund(endpoint.summary.split(' ').next().unwrap()))
            .collect();
        let expected = "Creating Deleting Deploying Getting Listing Removing Reviewing Setting \
            Updating";
        let expected: BTreeSet<_> = expected.split_whitespace().map(str::to_owned).collect();
        assert_eq!(gerunds, expected);
    }
}
