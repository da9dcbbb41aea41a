//! The direction of imports: a wing imports only itself and the wings below it.

use std::{collections::BTreeSet, fs};

use super::{Source, in_src, mentions, no_breach, root};

/// The wings of `src/`, from the bottom up. Below them are the packages `gantry-node` and
/// `gantry-base`. Cargo holds their direction.
const WINGS: [&str; 8] = [
    "platform", "proxy", "control", "api", "mcp", "web", "app", "cli",
];
/// Entries that `src/` may have.
const ENTRIES_MAX: usize = 12;

fn wing(file: &Source) -> Option<usize> {
    let folder = file.name.strip_prefix("src/")?.split('/').next()?;
    WINGS.iter().position(|wing| *wing == folder)
}

/// Returns the wings in paths that begin with `crate::`, including grouped imports.
fn imported(text: &str) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for (index, _) in text.match_indices("crate::") {
        let rest = &text[index + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_heads(group)),
            None => found.insert_name(head(rest)),
        }
    }
    found
}

trait InsertName {
    fn insert_name(&mut self, name: &str);
}

impl InsertName for BTreeSet<usize> {
    fn insert_name(&mut self, name: &str) {
        self.extend(WINGS.iter().position(|wing| *wing == name));
    }
}

fn head(path: &str) -> &str {
    let end = path
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(path.len());
    &path[..end]
}

/// The first segments of a group's paths, up to its closing brace.
fn group_heads(group: &str) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut depth = 0_usize;
    let mut start = 0;
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.insert_name(head(group[start..index].trim_start()));
                start = index + 1;
                if character == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

#[test]
fn imports_of_a_wing_point_downwards() {
    let mut breaches = Vec::new();
    for file in in_src() {
        let Some(own) = wing(&file) else { continue };
        let code: Vec<&str> = file.code().map(|(_, line)| line).collect();
        for other in imported(&code.join("\n")) {
            if other > own {
                breaches.push(format!(
                    "{}: {} may not import {}",
                    file.name, WINGS[own], WINGS[other]
                ));
            }
        }
    }
    no_breach(&breaches);
}

#[test]
fn grouped_and_inline_imports_are_found() {
    let all = |text| {
        imported(text)
            .into_iter()
            .map(|wing| WINGS[wing])
            .collect::<Vec<_>>()
    };
    assert_eq!(all("use crate::web;"), ["web"]);
    assert_eq!(
        all(
            "use crate::{\n    api::{projects, tokens},\n    platform::error::Error,\n    cli,\n};"
        ),
        ["platform", "api", "cli"]
    );
    assert_eq!(all("crate::control::x(crate::app::Y)"), ["control", "app"]);
    assert_eq!(
        all("use crate::{api::{web, cli}, platform}; web::x()"),
        ["platform", "api"]
    );
}

#[test]
fn control_declares_no_operations() {
    let mut breaches = Vec::new();
    for file in in_src() {
        let inside = file.under(&["src/control/", "src/proxy/", "crates/"]);
        if inside
            && file
                .code()
                .any(|(_, line)| line.contains("platform::http::Endpoint"))
        {
            breaches.push(format!("{}: declares an operation", file.name));
        }
    }
    no_breach(&breaches);
}

#[test]
fn source_folder_shows_the_wings() {
    let entries = fs::read_dir(root().join("src")).unwrap().count();
    assert!(entries <= ENTRIES_MAX, "src/ has {entries} entries");
    for wing in WINGS {
        assert!(
            root().join("src").join(wing).join("mod.rs").is_file(),
            "{wing}"
        );
    }
}

/// Files that may log in as the superuser of a project's server. Sessions are only opened in the
/// first; the others name the role to the programs that make a cluster, or in logs.
const SUPERUSERS: &[&str] = &[
    "crates/node/src/clusters/superuser/",
    "crates/node/src/clusters/platform_roles.rs",
    "crates/node/src/clusters/template.rs",
    "crates/node/src/clusters/local_driver.rs",
    "crates/node/src/clusters/upgrade/build.rs",
    "crates/node/src/clusters/platform.rs",
    "src/api/logs/postgres/line.rs",
];

#[test]
fn only_one_folder_opens_superuser_sessions() {
    no_breach(&mentions(
        &in_src(),
        &[
            "platform_roles::SUPERUSER",
            "\"supabase_admin\"",
            ".scripts()",
            "SuperuserSession(",
        ],
        SUPERUSERS,
    ));
}

/// Files that use `LocalDriver`. Other files use clusters through the trait `ClusterDriver`.
const LOCAL_DRIVER: &[&str] = &[
    "crates/node/src/cluster_driver.rs",
    "crates/node/src/clusters/",
    "src/app/",
    "src/cli/",
];

#[test]
fn only_app_and_cli_name_the_local_driver() {
    no_breach(&mentions(&in_src(), &["LocalDriver"], LOCAL_DRIVER));
}
