//! Rules about the source that no compiler checks: what may be where, and that files open with their reason.

mod direction;
mod language;
mod tables;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// No file is longer: one that is has two subjects.
const LINES_MAX: usize = 600;

/// Files that use axum. Everything else is written against the `http` crate and hyper.
const AXUM: &[&str] = &["src/api/reference/assets.rs", "src/cli/serve.rs"];

/// Where time may pass by itself, and why no event could be waited for instead.
const SLEEPS: &[(&str, &str)] = &[
    (
        "src/base/net/accept.rs",
        "what hyper asks of a timer is called so",
    ),
    (
        "benches/clusters.rs",
        "nothing announces that a pool is full, or that a machine is quiet",
    ),
    (
        "benches/shared_limits.rs",
        "nothing announces that a server is there",
    ),
    (
        "crates/logs/tests/query/hostile.rs",
        "is a function that is refused",
    ),
    (
        "src/base/object_store/client.rs",
        "a pause before a request is made again",
    ),
    (
        "src/data_plane/clusters/resources/cgroup.rs",
        "nothing announces that a control group is empty",
    ),
    (
        "src/data_plane/clusters/control.rs",
        "a pause before a server that keeps ending is started again",
    ),
    (
        "src/base/supervisor/launcher.rs",
        "the deadline of a launch is a time",
    ),
    (
        "src/base/db/heartbeat.rs",
        "the database is asked every so often whether it is there",
    ),
    (
        "src/data_plane/clusters/server.rs",
        "nothing announces that a server became ready",
    ),
    (
        "src/data_plane/database_session/stop.rs",
        "the grace itself is a time",
    ),
    (
        "src/data_plane/postgres_proxy/connection.rs",
        "nothing announces room in a server's queue",
    ),
    (
        "src/data_plane/database_access/login_roles.rs",
        "roles go when their time is over",
    ),
    (
        "src/platform/rate_limits/snapshot.rs",
        "counters are saved every so often",
    ),
    (
        "src/platform/notifications.rs",
        "the pause before a lost connection is made again",
    ),
    (
        "src/platform/rate_limits/overrides.rs",
        "a pause before a failed reading is tried again",
    ),
    (
        "src/platform/rate_limits/postgres.rs",
        "a pause before a connection is made again; dead counters are looked for now and then",
    ),
    (
        "src/platform/rate_limits/redis.rs",
        "a pause before a connection is made again",
    ),
    (
        "src/platform/rate_limits/shared.rs",
        "heartbeats are sent every so often",
    ),
    (
        "src/data_plane/projects/lease.rs",
        "a lease is renewed, and looked for, every so often",
    ),
    (
        "src/platform/access/last_used.rs",
        "uses are gathered for a time",
    ),
    ("src/api/tokens/usage.rs", "calls are gathered for a time"),
    (
        "tests/it/access.rs",
        "nothing here hears another node's notification arrive",
    ),
    (
        "tests/it/binary/crash.rs",
        "the moment of the kill is what varies",
    ),
    (
        "tests/it/binary/machine.rs",
        "nothing announces that somebody else's process ended",
    ),
    (
        "tests/it/clusters.rs",
        "nothing announces that somebody else's process ended",
    ),
    (
        "tests/it/lifecycle.rs",
        "the moment of the removal is what varies; nothing announces that files are gone",
    ),
    ("tests/it/limits/gate.rs", "a slow store is slow"),
    (
        "tests/it/limits/names.rs",
        "nothing here hears a notification arrive",
    ),
    (
        "tests/it/limits/nodes.rs",
        "nothing here hears another node's notification arrive",
    ),
    (
        "tests/it/limits/slow.rs",
        "processes hear of each other by heartbeats; an outage lasts a time",
    ),
    (
        "tests/it/limits/stores.rs",
        "the windows are of a store, which has its own clock",
    ),
    (
        "tests/it/limits/support.rs",
        "nothing announces that a server is there",
    ),
    (
        "tests/it/pool.rs",
        "nothing announces that a cluster was prepared",
    ),
    (
        "tests/it/sql.rs",
        "nothing announces what another session does",
    ),
    (
        "tests/it/support/machine.rs",
        "nothing announces that somebody else's process ended",
    ),
    ("tests/it/tidy.rs", "names what it looks for"),
];

/// `pg_sleep` is the server's.
const SLEEP: &[&str] = &["::sleep(", " sleep("];

/// Where the environment is read, besides by the command line's parser: everything else takes options.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("src/cli/engine.rs", "npm's configuration stands there"),
    ("src/cli/limits.rs", "sudo says who the person is"),
    (
        "src/data_plane/clusters/engine.rs",
        "PATH says where programs are",
    ),
];

struct Source {
    /// From the package's root, with forward slashes.
    name: String,
    text: String,
}

impl Source {
    fn under(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.name.starts_with(place))
    }

    /// Lines that are neither comments nor in a test module, which stands at the end.
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

/// Every file of a kind under these folders. Folders that are hidden or not ours are passed by.
fn sources(folders: &[&str], ending: &str) -> Vec<Source> {
    let mut pending: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let (path, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
            let name = name.to_str().unwrap();
            if path.is_dir()
                && !name.starts_with('.')
                && !["target", "node_modules", "vendor"].contains(&name)
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

/// Fails with every breach at once.
#[track_caller]
fn no_breach(breaches: &[String]) {
    assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
}

/// Lines of code with one of these texts, in files where they may not be.
fn mentions(files: &[Source], texts: &[&str], allowed: &[&str]) -> Vec<String> {
    let elsewhere = files.iter().filter(|file| !file.under(allowed));
    let lines =
        elsewhere.flat_map(|file| file.code().map(move |(number, line)| (file, number, line)));
    let breaches = lines.filter(|(_, _, line)| texts.iter().any(|text| line.contains(text)));
    breaches
        .map(|(file, number, line)| format!("{}:{number}: {}", file.name, line.trim()))
        .collect()
}

fn in_src() -> Vec<Source> {
    rust()
        .into_iter()
        .filter(|file| file.name.starts_with("src/"))
        .collect()
}

#[test]
fn no_file_is_too_long() {
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
fn every_file_says_what_it_is() {
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
fn only_the_guard_reads_credentials() {
    no_breach(&mentions(
        &in_src(),
        &["AUTHORIZATION", "\"authorization\"", "\"Authorization\""],
        // The last two write them, into requests of their own.
        &[
            "src/platform/http/guard.rs",
            "src/data_plane/service_proxy/gate.rs",
            "src/data_plane/service_proxy/request.rs",
            "src/base/object_store/client.rs",
            "src/data_plane/clusters/registry.rs",
        ],
    ));
}

/// A tenant can put a link or a listener of its own in the place of its server's socket, so every connection to it goes
/// through the check in `clusters/socket.rs`.
#[test]
fn only_one_file_connects_to_servers_of_projects() {
    // The control cluster's socket is in a folder that no tenant can write; the operator's socket is Gantry's own.
    let others = [
        "src/data_plane/clusters/socket.rs",
        "src/data_plane/clusters/control.rs",
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

/// Everything else reaches clusters through the trait `ClusterDriver`.
const LOCAL_DRIVER: &[&str] = &[
    "src/data_plane/cluster_driver.rs",
    "src/data_plane/clusters/",
    "src/app/",
    "src/cli/",
];

#[test]
fn only_app_and_cli_name_the_local_driver() {
    no_breach(&mentions(&in_src(), &["LocalDriver"], LOCAL_DRIVER));
}

#[test]
fn only_one_file_reads_cookies() {
    // The second one joins those of a client for a service.
    no_breach(&mentions(
        &in_src(),
        &["header::COOKIE"],
        &[
            "src/web/cookie.rs",
            "src/data_plane/service_proxy/request.rs",
        ],
    ));
}

#[test]
fn only_listed_files_sleep_or_read_the_environment() {
    let places =
        |list: &'static [(&str, &str)]| list.iter().map(|(place, _)| *place).collect::<Vec<_>>();
    no_breach(&mentions(&rust(), SLEEP, &places(SLEEPS)));
    no_breach(&mentions(&in_src(), &["env::var"], &places(ENVIRONMENT)));
    // A list with more than what is needed hides the next one.
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
fn nothing_is_left_unfinished_or_silenced() {
    let texts = ["todo!", "unimplemented!", "dbg!", "#[allow(", "#![allow("];
    let breaches = mentions(&rust(), &texts, &["tests/it/tidy.rs"]);
    no_breach(&breaches);
}

#[test]
fn every_migration_opens_with_its_reason() {
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

/// Headings of a document, without what stands in code blocks.
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
fn every_document_has_one_title() {
    let breaches = sources(&[""], ".md").into_iter().filter_map(|file| {
        let titles = headings(&file.text)
            .into_iter()
            .filter(|line| line.starts_with("# "))
            .count();
        (titles != 1).then(|| format!("{}: {titles} titles", file.name))
    });
    no_breach(&breaches.collect::<Vec<_>>());
}

/// Returns the reason why a decision record does not follow the template of `docs/decisions/README.md`.
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
fn decision_index_lists_every_record() {
    let files = sources(&["docs/decisions"], ".md");
    let index = files
        .iter()
        .find(|file| file.name.ends_with("README.md"))
        .expect("docs/decisions has an index");
    let mut breaches = Vec::new();
    for file in &files {
        let name = file.name.rsplit('/').next().unwrap_or_default();
        if name != "README.md" && !index.text.contains(&format!("]({name})")) {
            breaches.push(format!("{name}: missing in docs/decisions/README.md"));
        }
    }
    no_breach(&breaches);
}

#[test]
fn headings_in_code_are_none() {
    assert_eq!(
        headings("# A\n```\n# not\n```\n## B\n#no\n"),
        ["# A", "## B"]
    );
}
