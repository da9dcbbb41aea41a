"""Weakenings of the isolation between projects, of the service proxy, of rate limits and of the
control database. Those of services are in services.py. See weaken.py."""

# Each entry: name of the removed check, file, its text, the replacement, the test that
# must fail.
WEAKENINGS = [
    # Servers of projects.
    (
        "socket-listener-uid",
        "crates/node/src/clusters/socket.rs",
        "if peer.uid.as_raw() != uid {",
        "if peer.uid.as_raw() != uid && uid == 1 {",
        "listener_of_another_user_receives_nothing",
    ),
    (
        "socket-listener-pid",
        "crates/node/src/clusters/socket.rs",
        "if is_server { Ok(()) }",
        "if is_server || peer.uid.as_raw() == uid { Ok(()) }",
        "listener_of_the_tenant_receives_nothing",
    ),
    (
        "resource-limits-of-server",
        "crates/node/src/clusters/launch.rs",
        "confinement: plan.confinement.clone(),",
        "confinement: Confinement { bounds: Default::default(), ..plan.confinement.clone() },",
        "file_size_limit_is_enforced",
    ),
    (
        "shared-memory-released",
        "crates/node/src/clusters/resources/limits.rs",
        "let Some(uid) = run_as.own_uid() else { return };",
        "let Some(uid) = run_as.own_uid().filter(|uid| *uid == 0) else { return };",
        "shared_memory_is_released_after_removal_and_crash",
    ),
    (
        "shared-memory-size",
        "crates/node/src/system_calls/postgres.rs",
        "const SHARED_MEMORY_BYTES_MAX: u64 = 4096;",
        "const SHARED_MEMORY_BYTES_MAX: u64 = 4096 << 40;",
        "shared_memory_of_a_server_is_bounded_and_ends_with_it",
    ),
    (
        "shared-memory-of-all-servers",
        "crates/node/src/clusters/launch.rs",
        "own_ipc: true,",
        "own_ipc: self.name.is_empty(),",
        "shared_memory_of_a_server_is_bounded_and_ends_with_it",
    ),
    (
        "accounts-of-the-machine",
        "crates/node/src/clusters/launch.rs",
        "own_account: Some(self.data.with_file_name(ACCOUNT)),",
        "own_account: Some(self.data.with_file_name(ACCOUNT)).filter(|_| false),",
        "server_sees_neither_accounts_nor_the_name_of_the_machine",
    ),
    (
        "host-name-of-servers",
        "crates/node/src/clusters/launch.rs",
        "host_name: Some(self.name.clone()),",
        "host_name: Some(self.name.clone()).filter(String::is_empty),",
        "server_sees_neither_accounts_nor_the_name_of_the_machine",
    ),
    (
        "libraries-of-roles-in-the-proxy",
        "src/proxy/postgres_proxy/startup.rs",
        'format!("-c {}= {}", NO_LIBRARIES.0, options.unwrap_or_default())',
        "options.unwrap_or_default().to_owned()",
        "libraries_of_role_and_database_lock_no_session_out",
    ),
    (
        "libraries-of-clients",
        "src/proxy/postgres_proxy/session_target.rs",
        "if startup.names_libraries() {",
        "if startup.names_libraries() && startup.user.is_empty() {",
        "libraries_are_rejected_in_every_spelling",
    ),
    (
        "libraries-of-roles-removed",
        "crates/node/src/clusters/recipes/repair.sql",
        "execute format('alter database %I reset local_preload_libraries', setting.datname);",
        "continue;",
        "libraries_of_role_and_database_lock_no_session_out",
    ),
    (
        "read-only-at-disk-limit",
        "src/control/projects/watchdog.rs",
        ".set_read_only(&project.project, read_only)",
        ".set_read_only(&project.project, read_only && false)",
        "disk_limit_makes_project_read_only_then_stops_it",
    ),
    # The test does nothing on a machine without PostgreSQL 15.
    (
        "reserved-role-memberships",
        "crates/node/src/clusters/recipes/grants.sql",
        "loop execute format('revoke %I from %I', held.reserved, held.member);",
        "loop\n        continue;",
        "grants_revoke_reserved_memberships_on_postgres_15",
    ),
    # Code of a tenant in sessions of the platform.
    (
        "upgrade-functions-blocked",
        "crates/node/src/clusters/superuser/upgrades.rs",
        "where prokind <> 'a'\n         and proowner",
        "where prokind = 'a'\n         and proowner",
        "upgrade_runs_no_code_of_the_tenant_as_superuser",
    ),
    (
        "upgrade-domain-constraints-removed",
        "crates/node/src/clusters/upgrade/definitions.rs",
        "for constraint in &constraints {",
        "for constraint in constraints.iter().take(0) {",
        "upgrade_runs_no_code_of_the_tenant_as_superuser",
    ),
    (
        "superusers-found",
        "crates/node/src/clusters/superuser/privileges.rs",
        "where rolsuper and oid <> 10",
        "where rolsuper and oid < 10",
        "privileges_of_the_platform_are_found_and_revoked",
    ),
    (
        "rules-of-authentication-at-start",
        "crates/node/src/clusters/local_driver.rs",
        "template::write_rules(&data, owner, &rules)",
        "template::write_rules(&data, owner, &rules[2..])",
        "rules_of_authentication_are_restored_at_each_start",
    ),
    (
        "tables-emptied-by-their-owner",
        "crates/node/src/clusters/online_copy/emptying.rs",
        "let client = logins.session(owner, database).await?;\n        for some",
        "let _ = owner;\n        let client = logins.session(\"supabase_admin\", database).await?;\n        for some",
        "traps_run_with_no_right_of_the_platform_on_any_engine",
    ),
    # The control database.
    (
        "copied-data-folder",
        "src/cli/serve/machine.rs",
        "Location::confirm(home.dir())?;",
        "let _ = Location::confirm(home.dir());",
        "copy_with_embedded_control_database_requires_adoption",
    ),
    (
        "control-cluster-restart",
        "src/cli/serve/running.rs",
        "supervised.supervise(async { drop(stop_requested.await) }).await;",
        "let _ = (supervised, stop_requested.await);",
        "killed_control_cluster_is_restarted",
    ),
    # Rate limits.
    (
        "processes-before-counter-loss",
        "src/platform/rate_limits/store_health.rs",
        "counters_lost && (self.processes > 1 || others_counted)",
        "counters_lost && self.processes > 1",
        "first_process_after_counter_loss_is_not_the_only_one",
    ),
    (
        "rate-limit-journal",
        "src/platform/rate_limits/limits.rs",
        "Either::Left(ready(journal.take(key, windows, now)))",
        "{\n                let _ = journal;\n"
        "                Either::Left(ready(self.memory.take(key, windows, now)))\n            }",
        "kill_during_burst_keeps_rate_limit_counters",
    ),
    # Requests to the API.
    (
        "api-single-authorization-field",
        "src/platform/http/guard.rs",
        "if !repeated(header::AUTHORIZATION) {",
        "if true {",
        "two_authorization_fields_return_400_from_every_operation",
    ),
    (
        "api-single-host-field",
        "src/platform/http/guard.rs",
        "if repeated(header::HOST) {",
        "if false {",
        "listed_attacks_get_expected_response",
    ),
    # Requests to services of projects.
    (
        "proxy-share-of-client",
        "src/proxy/service_proxy/capacity.rs",
        "if own >= bounds.client[kind as usize] {",
        "if own >= bounds.client[kind as usize] && usize::MAX == own {",
        "a_client_that_leaves_many_requests_unfinished_keeps_no_other_client_out",
    ),
    (
        "proxy-aborts-stalled-body",
        "src/proxy/service_proxy/capacity.rs",
        "frees(body) && body.has_stalled(now)",
        "frees(body) && body.has_stalled(now) && now == 1",
        "when_a_project_is_full_the_oldest_stalled_request_gives_way",
    ),
    (
        "proxy-joins-cookies",
        "src/proxy/service_proxy/request_headers.rs",
        "join_cookies(headers);",
        "if headers.len() == usize::MAX { join_cookies(headers); }",
        "cookies_of_http_2_reach_a_service_as_one_field",
    ),
    (
        "proxy-closes-websockets",
        "src/proxy/service_proxy/tunnel_revocation.rs",
        "if !grant.is_valid(context).await {",
        "if !grant.is_valid(context).await && grant.key.is_some() && grant.key.is_none() {",
        "deleted_project_closes_its_websockets",
    ),
    (
        "proxy-header-names-with-underscores",
        "src/proxy/service_proxy/request_headers.rs",
        "if !name.contains('_') {",
        "if !name.contains('_') || name.len() < 1000 {",
        "headers_with_underscores_are_dropped_by_default",
    ),
    (
        "proxy-transfer-coding",
        "src/proxy/service_proxy/request.rs",
        "_ => Err(RequestRejection::TransferCoding),",
        "_ => Ok(()),",
        "ambiguous_request_is_rejected",
    ),
    (
        "proxy-malformed-chunk",
        "src/proxy/service_proxy/body.rs",
        "Self::Unreadable(_) => RequestRejection::Malformed,",
        "Self::Unreadable(_) => RequestRejection::Busy,",
        "malformed_chunk_returns_400",
    ),
    (
        "proxy-single-authorization-field",
        "src/proxy/service_proxy/request.rs",
        ".nth(1).is_some() || escapes_prefix(parts.uri.path())",
        ".nth(9).is_some() || escapes_prefix(parts.uri.path())",
        "duplicate_credentials_and_path_traversal_are_rejected",
    ),
    (
        "proxy-key-check-of-project",
        "src/proxy/service_proxy/api_key_check.rs",
        ".check_keys.unwrap_or(context.proxy.options.check_keys)",
        ".check_keys.filter(|_| false)"
        ".unwrap_or(context.proxy.options.check_keys)",
        "operator_sets_key_check_of_one_project",
    ),
    (
        "proxy-drops-trailers",
        "src/proxy/service_proxy/body.rs",
        "Poll::Ready(Some(Ok(frame))) if frame.is_data() => {",
        "Poll::Ready(Some(Ok(frame))) => {",
        "request_trailers_are_dropped",
    ),
    (
        "privileges-recorded-first",
        "src/control/projects/reconciler/roles.rs",
        "record_privileges(context, project, &evidence).await?;",
        "context.driver.revoke_privileges(&cluster.project, admin, &found).await.context(doing)?;"
        " record_privileges(context, project, &evidence).await?;",
        "privilege_is_revoked_only_after_it_is_recorded",
    ),
    # Domains.
    (
        "caa-problem-with-certificate",
        "src/api/domains/hostnames.rs",
        "partition(|problem| problem.starts_with(CAA_ERROR))",
        "partition(|problem| problem.starts_with(CAA_ERROR) && problem.is_empty())",
        "caa_problem_is_listed_as_certificate_error",
    ),
    (
        "hostname-of-another-project",
        "src/control/domains/hostnames/mod.rs",
        "if row.get(2) {",
        "if row.get(2) && false {",
        "hostname_verified_by_another_project_is_rejected",
    ),
    (
        "reserved-vanity-subdomain",
        "src/control/domains/vanity.rs",
        "reserved::reason(&self.0).is_some() ||",
        "reserved::reason(&self.0).is_some_and(str::is_empty) ||",
        "reserved_vanity_subdomain_is_rejected_but_kept_by_its_holder",
    ),
    # Keys of projects.
    (
        "revoked-signing-key",
        "src/proxy/accepted_keys/signing_key.rs",
        "!matches!(self, Self::Revoked)",
        "true || !matches!(self, Self::Revoked)",
        "revoked_and_weak_keys_are_not_accepted",
    ),
]
