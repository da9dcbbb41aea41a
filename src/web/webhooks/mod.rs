//! Webhooks of organizations and projects: endpoints, their deliveries, tests and retries.
//!
//! Each page exists for both scopes, with one handler. `place` is the scope of a page, `list` shows
//! all endpoints, `endpoint` one with its deliveries, and `delivery` one delivery. `fields` are the
//! forms of an endpoint.

mod delivery;
mod endpoint;
mod fields;
mod list;
mod place;

/// Declares the pages of one scope, in a module of its own.
macro_rules! pages {
    ($module:ident, $owner:ident, $scope:literal, $path:literal) => {
        pub(super) mod $module {
            use super::{delivery, endpoint, list};
            use crate::{
                platform::http::{Endpoint, Verb, mount},
                web::{page::page, path::$owner},
            };

            pages! { $owner, $scope, $path;
                LIST = Get "" "s" "Webhooks of", list::show;
                CREATE = Post "" "-create" "Create a webhook of", list::create;
                SHOW = Get "/{webhook}" "" "Webhook of", endpoint::show;
                UPDATE = Post "/{webhook}" "-update" "Update a webhook of", endpoint::update;
                ROTATE = Post "/{webhook}/secret" "-rotate" "Replace the secret of a webhook of", endpoint::rotate;
                TEST = Post "/{webhook}/test" "-test" "Test a webhook of", endpoint::test;
                DELETE = Post "/{webhook}/delete" "-delete" "Delete a webhook of", endpoint::delete;
                DELIVERY = Get "/{webhook}/deliveries/{delivery}" "-delivery" "Webhook delivery of", delivery::show;
                RETRY = Post "/{webhook}/deliveries/{delivery}" "-retry" "Retry a webhook delivery of", delivery::retry;
            }
        }
    };
    ($owner:ident, $scope:literal, $path:literal; $(
        $name:ident = $verb:ident $rest:literal $id:literal $title:literal,
        $file:ident::$handler:ident;
    )*) => {
        $(pub(in crate::web) static $name: Endpoint = page(
            concat!("page-", $scope, "-webhook", $id),
            concat!($title, " the ", $scope),
            Verb::$verb,
            concat!($path, "/webhooks", $rest),
            || mount($file::$handler::<$owner>),
        );)*
    };
}

pages!(
    organization,
    PathOrganization,
    "organization",
    "/organizations/{organization}"
);
pages!(project, PathProject, "project", "/projects/{project}");
