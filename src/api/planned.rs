//! Operations of the contract that are not implemented. Each is routed, authorized, counted and
//! documented like any other, and answers 501 with the reason. To implement one, move its line into
//! its resource as an [`Endpoint`] with a handler.

use crate::platform::{
    access::{OauthScope as S, Permission as P, needs, pat_only},
    http::{Endpoint, Tag, Verb, endpoint::not_built},
    rate_limits::STANDARD,
};

/// Why there are no read replicas.
const READ_REPLICAS: &str = "Read replicas are not built yet: give the project a larger compute \
     size with PATCH /v1/projects/{ref}/billing/addons instead.";
/// Why there are no compute instances.
const COMPUTE: &str = "Gantry does not run long-running containers: deploy an Edge Function, or \
     run a process of your own beside Gantry instead.";
/// Why there are no private links.
const PRIVATE_LINKS: &str = "A private link joins an AWS PrivateLink endpoint to a hosted \
     network, and Gantry runs on your own machines: use network restrictions and a private \
     network of your own instead.";

macro_rules! planned {
    ($(
        $verb:ident $path:literal $id:literal $title:literal $tag:ident, $access:expr,
        because $reason:ident;
    )*) => {
        /// Declared operations without an implementation.
        pub static PLANNED: &[&Endpoint] = &[$(&Endpoint {
            id: $id,
            summary: $title,
            tag: Tag::$tag,
            method: Verb::$verb,
            path: $path,
            aliases: &[],
            access: $access,
            limit: &STANDARD,
            handler: || not_built(message($title, $reason), $reason),
        }),*];
    };
}

/// Returns the message of the 501: the operation, why it is not there with the alternative, and
/// where to look.
fn message(title: &str, reason: &str) -> String {
    let (verb, object) = title.split_once(' ').unwrap_or((title, ""));
    let activity = gerund(verb);
    format!(
        "{activity} {object} is not available. {reason} GET /v1/compatibility lists what is built."
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
    Post "/v1/projects/{ref}/read-replicas/remove" "v1-remove-a-read-replica" "Remove a read replica" Database, pat_only(&[&[P::InfraReadReplicasWrite]]), because READ_REPLICAS;
    Post "/v1/projects/{ref}/read-replicas/setup" "v1-setup-a-read-replica" "Set up a read replica" Database, pat_only(&[&[P::InfraReadReplicasWrite]]), because READ_REPLICAS;
    Get "/v2/projects/{ref}/compute" "v2-list-all-compute-instances" "List compute instances" Compute, needs(&[&[P::WorkersRead]], S::EdgeFunctionsRead), because COMPUTE;
    Delete "/v2/projects/{ref}/compute/{name}" "v2-delete-a-compute-instance" "Delete a compute instance" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), because COMPUTE;
    Get "/v2/projects/{ref}/compute/{name}" "v2-get-a-compute-instance" "Get a compute instance" Compute, needs(&[&[P::WorkersRead]], S::EdgeFunctionsRead), because COMPUTE;
    Post "/v2/projects/{ref}/compute/{name}/deploy" "v2-deploy-a-compute-instance" "Deploy a compute instance" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), because COMPUTE;
    Post "/v2/projects/{ref}/compute/{name}/uploads" "v2-create-compute-instance-upload" "Create an upload for a compute instance" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), because COMPUTE;
    Get "/v2/projects/{ref}/private-link/associations" "v2-list-private-link-associations" "List private link associations" Projects, pat_only(&[&[P::ProjectAdminRead]]), because PRIVATE_LINKS;
    Post "/v2/projects/{ref}/private-link/associations" "v2-create-private-link-association" "Create a private link association" Projects, pat_only(&[&[P::ProjectAdminWrite]]), because PRIVATE_LINKS;
    Delete "/v2/projects/{ref}/private-link/associations/aws-account/{aws_account_id}" "v2-delete-private-link-association" "Delete a private link association" Projects, pat_only(&[&[P::ProjectAdminWrite]]), because PRIVATE_LINKS;
    Delete "/v2/projects/{ref}/private-link/associations/aws-account/{aws_account_id}/database/{database_identifier}" "v2-delete-private-link-association-for-database" "Delete a private link association of one database" Projects, pat_only(&[&[P::ProjectAdminWrite]]), because PRIVATE_LINKS;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn message_names_operation_reason_and_compatibility() {
        assert_eq!(
            message(
                "Create an SSO provider",
                "It is not built yet: use X instead."
            ),
            "Creating an SSO provider is not available. It is not built yet: use X instead. \
             GET /v1/compatibility lists what is built."
        );
        assert!(
            message("Set up a read replica", READ_REPLICAS)
                .starts_with("Setting up a read replica is not available. Read replicas are not")
        );
    }

    #[test]
    fn reasons_are_sentences_with_an_alternative() {
        for endpoint in PLANNED {
            let reason = (endpoint.handler)().reason.unwrap();
            let is_sentence = reason.starts_with(char::is_uppercase) && reason.ends_with('.');
            assert!(is_sentence && reason.contains(" instead"), "{endpoint:?}");
        }
    }

    #[test]
    fn summaries_begin_with_a_verb_with_known_gerund() {
        let gerunds: BTreeSet<_> = PLANNED
            .iter()
            .map(|endpoint| gerund(endpoint.summary.split(' ').next().unwrap()))
            .collect();
        let expected = "Creating Deleting Deploying Getting Listing Removing Setting";
        let expected: BTreeSet<_> = expected.split_whitespace().map(str::to_owned).collect();
        assert_eq!(gerunds, expected);
    }
}
