//! Rules for the source beyond the compiler's: length of files, restricted calls, form of
//! migrations and documents.

mod circles;
mod direction;
mod language;
mod tables;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Maximum number of lines of a file. A longer one has two subjects.
const LINES_MAX: usize = 600;

/// Files that use axum. Everything else is written against the `http` crate and hyper.
const AXUM: &[&str] = &["src/api/reference/assets.rs", "src/cli/serve/admin.rs"];

/// Files that sleep, with the reason why they cannot wait for an event.
const SLEEPS: &[(&str, &str)] = &[
    (
        "benches/backups.rs",
        "waits for backups and restores of a server",
    ),
    (
        "benches/branches.rs",
        "measures over a time, and waits for runs of a server",
    ),
    ("src/cli/moves.rs", "waits for steps of other processes"),
    ("src/control/installation/mod.rs", "pause before a retry"),
    (
        "tests/it/branches/faults.rs",
        "waits for rows, which have no event",
    ),
    (
        "tests/it/clusters/copy_faults.rs",
        "waits for the end of a slot, which has no event",
    ),
    (
        "tests/it/clusters/scratch.rs",
        "waits for the removal of a folder, which has no event",
    ),
    (
        "tests/it/project_settings.rs",
        "waits for rows, which have no event",
    ),
    (
        "crates/node/src/clusters/quarantine.rs",
        "no event for a configuration that the server has read",
    ),
    (
        "crates/node/src/clusters/online_copy/copier.rs",
        "limits the speed of a copy, and waits for a write of the server",
    ),
    (
        "src/control/database_session/session.rs",
        "no event when a full server has room",
    ),
    ("tests/it/branches.rs", "no event for the end of a run"),
    ("tests/it/backups.rs", "no event for an archived segment"),
    (
        "tests/it/backups/disk.rs",
        "no event for the error of an attempt",
    ),
    (
        "tests/it/backups/elsewhere.rs",
        "waits for rows, which have no event; the moment of a kill varies",
    ),
    (
        "tests/it/backups/faults.rs",
        "no event for an archived segment; the moment of a kill varies",
    ),
    (
        "tests/it/backups/moments.rs",
        "clients write for some seconds",
    ),
    (
        "tests/it/branches/life.rs",
        "no event for a failed notification",
    ),
    (
        "tests/it/clusters/copies.rs",
        "no event for a file, or for the end of a session",
    ),
    (
        "benches/clusters.rs",
        "no event for a full pool or an idle machine",
    ),
    (
        "benches/edge_project/",
        "no event for a service that is ready, and a pause of Gantry",
    ),
    (
        "benches/fleet.rs",
        "waits for two nodes to find each other, which has no event",
    ),
    (
        "benches/functions.rs",
        "no event for a service that is ready, and a pause of Gantry",
    ),
    (
        "benches/services.rs",
        "no event for a service that is ready, and a pause of Gantry",
    ),
    (
        "benches/shared_limits.rs",
        "no event for a server that is ready",
    ),
    (
        "crates/logs/tests/query/hostile.rs",
        "names a function that is rejected",
    ),
    (
        "src/api/log_drains/worker.rs",
        "collects lines, and pauses before a retry",
    ),
    (
        "src/api/database/migrations/history.rs",
        "a lock that must not be waited for inside a statement",
    ),
    (
        "src/platform/object_store/client.rs",
        "pause before a retry",
    ),
    ("src/control/import/settings.rs", "pause before a retry"),
    (
        "src/control/services/functions/process.rs",
        "the end of a child is polled, as its output has ended",
    ),
    (
        "crates/node/src/clusters/resources/cgroup.rs",
        "no event for an empty control group",
    ),
    (
        "crates/node/src/clusters/control.rs",
        "pause before a crashing server is restarted",
    ),
    (
        "crates/node/src/supervisor/launcher.rs",
        "the deadline of a launch is a time",
    ),
    (
        "src/platform/db/heartbeat.rs",
        "periodic health check of the database",
    ),
    (
        "crates/node/src/clusters/server/process.rs",
        "no event for a lock of another process",
    ),
    (
        "crates/node/src/clusters/server/start.rs",
        "no event for a server that is ready",
    ),
    ("src/control/database_session/stop.rs", "grace period"),
    (
        "src/control/services/rest/process.rs",
        "no event for a program that has read its keys again",
    ),
    (
        "src/control/services/pooler/pause.rs",
        "no event for logins of the pooler",
    ),
    (
        "src/control/services/start.rs",
        "no event for a program that is ready",
    ),
    (
        "src/proxy/postgres_proxy/reach.rs",
        "no event for room in a server's accept queue",
    ),
    ("src/control/database_access/login_roles.rs", "roles expire"),
    ("src/platform/rate_limits/snapshot.rs", "periodic snapshot"),
    ("src/platform/notifications.rs", "pause before a reconnect"),
    (
        "src/platform/rate_limits/overrides.rs",
        "pause before a retry",
    ),
    (
        "src/platform/rate_limits/postgres.rs",
        "pause before a reconnect; periodic removal of expired counters",
    ),
    (
        "src/platform/rate_limits/redis.rs",
        "pause before a reconnect",
    ),
    ("src/platform/rate_limits/shared.rs", "periodic heartbeat"),
    (
        "src/control/projects/lease.rs",
        "periodic renewal of the lease",
    ),
    ("src/platform/access/last_used.rs", "collects a batch"),
    ("src/platform/access/call_log.rs", "collects a batch"),
    (
        "tests/it/access.rs",
        "no event in the test for the arrival of another node's notification",
    ),
    (
        "tests/it/analytics/deliveries.rs",
        "no event for a saved position",
    ),
    ("tests/it/binary/crash.rs", "the moment of the kill varies"),
    (
        "tests/it/binary/machine.rs",
        "no event for the end of a process that is not a child",
    ),
    (
        "tests/it/clusters.rs",
        "no event for the end of a process that is not a child",
    ),
    (
        "tests/it/lifecycle.rs",
        "the moment of the removal varies; no event for removed files",
    ),
    ("tests/it/limits/gate.rs", "simulates a slow store"),
    (
        "tests/it/limits/names.rs",
        "no event in the test for the arrival of a notification",
    ),
    (
        "tests/it/limits/nodes.rs",
        "no event in the test for the arrival of another node's notification",
    ),
    (
        "tests/it/limits/slow.rs",
        "processes detect each other by heartbeats; an outage has a duration",
    ),
    (
        "tests/it/limits/stores.rs",
        "windows of a store with its own clock",
    ),
    (
        "tests/it/limits/support.rs",
        "no event for a server that is ready",
    ),
    ("tests/it/pool.rs", "no event for a warm cluster"),
    (
        "tests/it/sql.rs",
        "no event for the state of another session",
    ),
    (
        "tests/it/support/machine.rs",
        "no event for the end of a process that is not a child",
    ),
    ("tests/it/tidy.rs", "quotes the calls"),
];

/// Calls that sleep; `pg_sleep` runs in PostgreSQL.
const SLEEP: &[&str] = &["::sleep(", " sleep("];

/// Files that read the environment besides the command-line parser; all others take options.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("src/cli/command_line.rs", "texts of configuration files"),
    ("src/cli/config/file.rs", "secrets of files with settings"),
    ("src/cli/engine.rs", "npm's configuration"),
    (
        "src/cli/import.rs",
        "a password and tokens, which are no arguments",
    ),
    ("src/cli/limits.rs", "sudo sets the name of the account"),
    ("crates/node/src/engines/engine.rs", "PATH"),
    (
        "src/control/services/functions/process.rs",
        "the way to the registry of packages",
    ),
];

struct Source {
    /// Path from the root of the package, with forward slashes.
    name: String,
    text: String,
}

impl Source {
    fn under(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.name.starts_with(place))
    }

    /// Lines that are neither comments nor in the test module at the end.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self
            .text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line));
        lines
            .take_while(|(_, line)| *line != "#[cfg(test)]")
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files with this ending below the folders, without hidden and foreign folders, and without those
/// of builds.
fn sources(folders: &[&str], ending: &str) -> Vec<Source> {
    let mut pending: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let (path, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
            let name = name.to_str().unwrap();
            if path.is_dir()
                && !name.starts_with('.')
                && !["node_modules", "vendor"].contains(&name)
                && !path.join("CACHEDIR.TAG").exists()
            {
                pending.push(path);
            } else if name.ends_with(ending) {
                let name = path
                    .strip_prefix(root())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                found.push(Source {
                    name,
                    text: fs::read_to_string(path).unwrap(),
                });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn rust() -> Vec<Source> {
    let found = sources(&["src", "crates", "tests", "benches"], ".rs");
    assert!(
        found.len() > 50,
        "the source was not found: {}",
        found.len()
    );
    found
}

/// Fails with all breaches.
#[track_caller]
fn no_breach(breaches: &[String]) {
    assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
}

/// Lines of code that contain one of the texts, outside the allowed files.
fn mentions(files: &[Source], texts: &[&str], allowed: &[&str]) -> Vec<String> {
    let elsewhere = files.iter().filter(|file| !file.under(allowed));
    let lines =
        elsewhere.flat_map(|file| file.code().map(move |(number, line)| (file, number, line)));
    let breaches = lines.filter(|(_, _, line)| texts.iter().any(|text| line.contains(text)));
    breaches
        .map(|(file, number, line)| format!("{}:{number}: {}", file.name, line.trim()))
        .collect()
}

/// Returns the files of the wings, and of the packages below them.
fn in_src() -> Vec<Source> {
    sources(&["src", "crates/base/src", "crates/node/src"], ".rs")
}

#[test]
fn files_are_shorter_than_600_lines() {
    let long = rust()
        .into_iter()
        .filter(|file| file.text.lines().count() >= LINES_MAX);
    no_breach(
        &long
            .map(|file| format!("{}: {} lines", file.name, file.text.lines().count()))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn files_open_with_a_module_doc() {
    let silent = rust().into_iter().filter(|file| {
        !file.under(&["benches/", "crates/logs/benches/"]) && !file.text.starts_with("//! ")
    });
    no_breach(
        &silent
            .map(|file| format!("{}: does not open with `//! `", file.name))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn axum_is_used_in_two_files() {
    no_breach(&mentions(&in_src(), &["axum"], AXUM));
}

#[test]
fn only_listed_files_read_credentials() {
    no_breach(&mentions(
        &in_src(),
        &[
            "header::AUTHORIZATION",
            "\"authorization\"",
            "\"Authorization\"",
        ],
        // The proxy, clients and configurations of agents write credentials; redirects remove them.
        &[
            "src/platform/http/client_credentials.rs",
            "src/platform/http/guard.rs",
            "src/proxy/service_proxy/api_key_check.rs",
            "src/proxy/service_proxy/key_exchange.rs",
            "src/proxy/service_proxy/function_auth.rs",
            "src/proxy/service_proxy/request.rs",
            "src/control/services/probe.rs",
            "src/web/projects/agents.rs",
            "src/control/database_calls/call.rs",
            "src/control/services/rest/process.rs",
            "src/control/import/settings.rs",
            "src/platform/object_store/client.rs",
            "crates/node/src/engines/registry.rs",
            "src/api/log_drains/target/loki.rs",
            "src/cli/config/api_client.rs",
            // The word of a page, not the header.
            "src/web/oauth/member_authorizations.rs",
        ],
    ));
}

/// A tenant can replace its server's socket with a link or a listener, so every connection goes
/// through the check in `clusters/socket.rs`.
#[test]
fn only_listed_files_connect_to_project_servers() {
    // Tenants cannot write the folders of the control cluster's and the operator's sockets.
    let others = [
        "crates/node/src/clusters/socket.rs",
        "crates/node/src/clusters/control.rs",
        "src/app/operator_api.rs",
        "src/cli/",
    ];
    no_breach(&mentions(
        &in_src(),
        &[
            "UnixStream::connect",
            "host_path",
            "UnixSocket::new",
            ".connect(NoTls)",
        ],
        &others,
    ));
}

#[test]
fn only_listed_files_read_cookies() {
    // The second listed file joins the cookie fields of a request to a service, the third removes
    // them at a redirect to another origin.
    no_breach(&mentions(
        &in_src(),
        &["header::COOKIE"],
        &[
            "src/web/cookie.rs",
            "src/proxy/service_proxy/request_headers.rs",
            "src/control/database_calls/call.rs",
        ],
    ));
}

#[test]
fn only_listed_files_sleep_or_read_the_environment() {
    let places =
        |list: &'static [(&str, &str)]| list.iter().map(|(place, _)| *place).collect::<Vec<_>>();
    no_breach(&mentions(&rust(), SLEEP, &places(SLEEPS)));
    no_breach(&mentions(&in_src(), &["env::var"], &places(ENVIRONMENT)));
    // An entry that is no longer needed would hide the next breach.
    for (list, texts) in [(SLEEPS, SLEEP), (ENVIRONMENT, &["env::var"])] {
        let found = mentions(&rust(), texts, &[]);
        let unused = list
            .iter()
            .filter(|(place, _)| found.iter().all(|line| !line.starts_with(place)));
        no_breach(
            &unused
                .map(|(place, _)| format!("{place} is listed for {texts:?} and has none"))
                .collect::<Vec<_>>(),
        );
    }
}

#[test]
fn unfinished_and_silenced_code_is_rejected() {
    let texts = ["todo!", "unimplemented!", "dbg!", "#[allow(", "#![allow("];
    let breaches = mentions(&rust(), &texts, &["tests/it/tidy.rs"]);
    no_breach(&breaches);
}

#[test]
fn migrations_open_with_their_reason() {
    let files = sources(&["migrations"], ".sql");
    assert!(!files.is_empty());
    no_breach(
        &files
            .iter()
            .filter(|file| !file.text.starts_with("-- Why: "))
            .map(|file| file.name.clone())
            .collect::<Vec<_>>(),
    );
}

/// Headings of a document outside code blocks.
fn headings(text: &str) -> Vec<&str> {
    let mut code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code && line.starts_with('#') && line.trim_start_matches('#').starts_with(' ') {
            found.push(line);
        }
    }
    found
}

#[test]
fn documents_have_one_title() {
    let breaches = sources(&[""], ".md").into_iter().filter_map(|file| {
        let titles = headings(&file.text)
            .into_iter()
            .filter(|line| line.starts_with("# "))
            .count();
        (titles != 1).then(|| format!("{}: {titles} titles", file.name))
    });
    no_breach(&breaches.collect::<Vec<_>>());
}

/// Returns the reason why a decision record does not follow the template of
/// `docs/decisions/README.md`.
fn decision_breach(name: &str, text: &str) -> Option<String> {
    let number = name.get(..4).unwrap_or_default();
    if number.len() != 4 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(format!(
            "{name}: the file name does not start with a number"
        ));
    }
    let headings = headings(text);
    let titled = headings
        .first()
        .is_some_and(|title| title.starts_with(&format!("# {number}. ")));
    let status = text.lines().find_map(|line| line.strip_prefix("Status: "));
    let dated = status.is_some_and(|line| line.contains(" · Date: 20"));
    if !titled || !dated {
        return Some(format!(
            "{name}: lacks `# {number}. Title` or `Status: … · Date: YYYY-MM-DD`"
        ));
    }
    let superseded = status.is_some_and(|line| line.starts_with("superseded by "));
    let complete = ["## Context", "## Decision", "## Consequences"]
        .iter()
        .all(|section| headings.contains(section));
    if !superseded && !complete {
        return Some(format!(
            "{name}: lacks one of the sections Context, Decision, Consequences"
        ));
    }
    None
}

#[test]
fn decision_records_follow_the_template() {
    let mut breaches = Vec::new();
    for file in sources(&["docs/decisions"], ".md") {
        let name = file.name.rsplit('/').next().unwrap_or_default();
        if name == "README.md" {
            continue;
        }
        breaches.extend(decision_breach(name, &file.text));
    }
    no_breach(&breaches);
}

#[test]
fn decision_index_lists_every_record_once() {
    let files = sources(&["docs/decisions"], ".md");
    let index = files
        .iter()
        .find(|file| file.name.ends_with("README.md"))
        .expect("docs/decisions has an index");
    let mut breaches = Vec::new();
    for file in &files {
        let name = file.name.rsplit('/').next().unwrap_or_default();
        if name == "README.md" {
            continue;
        }
        let row = format!("| [{}]({name}) |", name.get(..4).unwrap_or_default());
        let rows = index.text.matches(&row).count();
        if rows != 1 {
            breaches.push(format!("{name}: {rows} rows in docs/decisions/README.md"));
        }
    }
    no_breach(&breaches);
}

#[test]
fn headings_in_code_blocks_are_ignored() {
    assert_eq!(
        headings("# A\n```\n# not\n```\n## B\n#no\n"),
        ["# A", "## B"]
    );
}
