//! The list of all operations, from which routes, documents, limits and contract tests are derived.

use std::sync::LazyLock;

use crate::{
    api::{
        accounts, audit_log, backups, branches, data_api, database, database_access, domains,
        events, function_secrets, functions, keys, log_drains, logs, notebooks, oauth,
        organizations, outbound_hosts, planned, platform_webhooks, project_config,
        project_settings, projects, protection, rate_limits, reference, service_identities,
        service_settings, signing_keys, snippets, sso_providers, storage_buckets, temporary_access,
        third_party_auth, tokens,
    },
    platform::{
        access::Access,
        error::Error,
        http::{Endpoint, Tag, Verb, input::RequestLine, mount, output::OkEmpty},
        rate_limits::STANDARD,
    },
};

static ALL: LazyLock<Vec<&'static Endpoint>> = LazyLock::new(|| {
    [
        accounts::operations::ENDPOINTS,
        organizations::operations::ENDPOINTS,
        organizations::v2::ENDPOINTS,
        organizations::invitation_operations::ENDPOINTS,
        organizations::entitlements::ENDPOINTS,
        projects::operations::ENDPOINTS,
        projects::addons::ENDPOINTS,
        projects::disk::ENDPOINTS,
        projects::upgrade::ENDPOINTS,
        projects::from_backup::ENDPOINTS,
        projects::transfers::operations::ENDPOINTS,
        projects::claims::ENDPOINTS,
        backups::operations::ENDPOINTS,
        backups::restores::ENDPOINTS,
        backups::download::ENDPOINTS,
        branches::operations::ENDPOINTS,
        branches::action_runs::ENDPOINTS,
        branches::diff::ENDPOINTS,
        branches::v2::ENDPOINTS,
        keys::ENDPOINTS,
        service_settings::auth::ENDPOINTS,
        service_settings::storage::ENDPOINTS,
        service_settings::realtime::ENDPOINTS,
        service_settings::pgsodium::ENDPOINTS,
        project_config::ENDPOINTS,
        project_settings::ENDPOINTS,
        signing_keys::ENDPOINTS,
        sso_providers::ENDPOINTS,
        third_party_auth::ENDPOINTS,
        data_api::ENDPOINTS,
        functions::ENDPOINTS,
        function_secrets::ENDPOINTS,
        temporary_access::ENDPOINTS,
        snippets::operations::ENDPOINTS,
        notebooks::operations::ENDPOINTS,
        storage_buckets::ENDPOINTS,
        database_access::ENDPOINTS,
        domains::operations::ENDPOINTS,
        domains::hostnames::ENDPOINTS,
        database::migrations::operations::ENDPOINTS,
        database::operations::ENDPOINTS,
        database::advisors::operations::ENDPOINTS,
        logs::operations::ENDPOINTS,
        logs::ingest::operations::ENDPOINTS,
        log_drains::operations::ENDPOINTS,
        platform_webhooks::operations::ENDPOINTS,
        reference::operations::ENDPOINTS,
        rate_limits::ENDPOINTS,
        outbound_hosts::ENDPOINTS,
        protection::operations::ENDPOINTS,
        tokens::operations::ENDPOINTS,
        service_identities::operations::ENDPOINTS,
        audit_log::ENDPOINTS,
        events::ENDPOINTS,
        oauth::operations::ENDPOINTS,
        planned::PLANNED,
    ]
    .concat()
});

/// Returns every operation, implemented or planned. The index is the number of its counter.
pub fn all() -> &'static [&'static Endpoint] {
    &ALL
}

/// The endpoint for unknown paths, counted and answered like any operation.
pub static UNKNOWN: Endpoint = Endpoint {
    id: "unknown",
    summary: "Anything else",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/",
    aliases: &[],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(unknown),
};

async fn unknown(RequestLine { method, path }: RequestLine) -> Result<OkEmpty, Error> {
    Err(Error::UnknownRoute { method, path })
}
