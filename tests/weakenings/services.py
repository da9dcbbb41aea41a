"""Weakenings of the services that Gantry runs: supervisor, sandbox, keys, files and functions. See
weaken.py."""

# Each entry: name of the removed check, file below src/, its text, the replacement, the test that
# must fail.
WEAKENINGS = [
    (
        "service-single-flight",
        "data_plane/services/instance.rs",
        "InstanceState::Stopped => true,",
        "InstanceState::Stopped | InstanceState::Starting => true,",
        "one_of_many_callers_starts_the_instance",
    ),
    (
        "service-sandbox",
        "data_plane/services/launch.rs",
        "sandbox: plan.sandbox.then(|| plan.sandbox()),",
        "sandbox: plan.sandbox.then(|| plan.sandbox()).filter(|_| false),",
        "instance_reaches_neither_the_network_nor_files_nor_processes",
    ),
    (
        "service-group-of-its-project",
        "data_plane/services/start.rs",
        "Ok(ProcessOwner::new(own, gid))",
        "Ok(ProcessOwner::new(own, gid.min(0)))",
        "instance_connects_to_its_own_database_only",
    ),
    (
        "service-key-set-text",
        "data_plane/services/rest/mod.rs",
        "if accepts_text {",
        "if accepts_text && self.text.expose_secret().is_empty() {",
        "process_that_accepts_the_text_of_the_key_set_is_refused",
    ),
    (
        "service-settings-restored",
        "data_plane/services/rest/reload.rs",
        "apply(context, running, &old, &keys).await?;",
        "let _ = &old;",
        "settings_change_in_the_running_process",
    ),
    (
        "service-control-group",
        "data_plane/services/limits.rs",
        "let folders = match made.transpose() {",
        "let folders = match made.transpose().map(|_| None) {",
        "control_group_has_all_processes_and_ends_with_them",
    ),
    (
        "service-output-kept-until-stored",
        "data_plane/services/output.rs",
        "let _ = timeout(STORE_MAX, stored).await;",
        "let _ = (STORE_MAX, timeout::<&mut oneshot::Receiver<()>>, stored);",
        "lines_that_are_not_stored_remain_for_the_next_reader",
    ),
    (
        "service-waiting-room",
        "data_plane/services/mod.rs",
        "(all < WAITING_MAX && own < INSTANCE_WAITING_MAX).then_some(room)",
        "(all < WAITING_MAX * 100 && own < INSTANCE_WAITING_MAX * 1000).then_some(room)",
        "requests_beyond_the_waiting_room_are_rejected_at_once",
    ),
    (
        "service-caller-limit",
        "data_plane/services/crashes.rs",
        "const CALLER_UNITS_MAX: u32 = 3;",
        "const CALLER_UNITS_MAX: u32 = 3000;",
        "caller_whose_requests_end_processes_is_limited_alone",
    ),
    (
        "service-kit-of-other-accounts",
        "data_plane/services/kit.rs",
        "if found.mode() & 0o022 != 0 {",
        "if found.mode() & 0o022 != 0 && found.is_symlink() {",
        "kit_with_replaceable_or_privileged_files_is_rejected",
    ),
    (
        "service-port-of-its-account",
        "base/net/owned_port.rs",
        "Some((port, uid)) if port == self.port && uid == self.uid => is_found = true,",
        "Some((port, _)) if port == self.port => is_found = true,",
        "only_the_account_of_the_service_may_listen",
    ),
    (
        "service-database-port",
        "base/net/owned_port.rs",
        "if connection(&line?) == Some((ports, uid)) {",
        "if connection(&line?).is_some_and(|found| found.0 == ports && found.1 <= uid) {",
        "client_of_another_account_is_refused",
    ),
    (
        "service-memory-pressure",
        "data_plane/services/pressure.rs",
        ".filter(|since| *since >= IDLE_MIN)",
        ".filter(|since| *since < IDLE_MIN * 1000)",
        "instances_that_are_idle_for_longest_are_stopped_under_memory_pressure",
    ),
    (
        "storage-files-of-living-projects",
        "data_plane/services/data.rs",
        "and status = 'REMOVED'",
        "and status <> 'NONE'",
        "files_of_storage_are_removed_with_their_project_only",
    ),
    # Edge Functions.
    (
        "function-sandbox",
        "data_plane/services/functions/process.rs",
        "(plan.network, plan.offline) = (true, plan.ports.is_empty());",
        "(plan.network, plan.sandbox) = (true, false);",
        "walls_of_the_kernel_do_not_depend_on_the_runtime",
    ),
    (
        "function-temporary-files",
        "data_plane/services/scratch.rs",
        "const MEGABYTES_MAX: u64 = 256;",
        "const MEGABYTES_MAX: u64 = 2560;",
        "temporary_files_are_of_the_process_and_bounded",
    ),
    (
        "function-wrong-key",
        "data_plane/service_proxy/functions.rs",
        "} else if sent.starts_with(KEY_PREFIX) {",
        "} else if sent.starts_with(KEY_PREFIX) && verify_jwt {",
        "credentials_are_judged_by_the_published_table",
    ),
    (
        "function-processor-time",
        "data_plane/services/functions/limits.rs",
        "self.since(oldest) > REQUEST_CPU_MAX",
        "self.since(oldest) > REQUEST_CPU_MAX * 10",
        "processor_time_counts_from_the_oldest_unanswered_request",
    ),
]
