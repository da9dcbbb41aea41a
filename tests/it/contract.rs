//! Checks of every operation in the list of endpoints, against committed facts of the published
//! contract.

mod bodies;
mod counted;
mod declared;
mod guarded;
mod repeated;
mod text;
mod tried;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::LazyLock,
};

use gantry::{
    api::endpoints,
    platform::{
        access::{Access, Role},
        http::{Endpoint, Tag, Verb},
        rate_limits::LimitKey,
    },
};
use serde_json::{Value, json};

use crate::support::{Node, Tenant, client::Call};

/// A row of `operations.tsv`.
struct Fact {
    method: &'static str,
    paths: BTreeSet<&'static str>,
    status: &'static str,
    permissions: &'static str,
    scope: &'static str,
}

/// `operations.tsv`, by operation.
static FACTS: LazyLock<BTreeMap<&'static str, Fact>> = LazyLock::new(|| {
    let fact = |line: &'static str| {
        let [method, path, aliases, id, status, permissions, scope] =
            line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let paths = std::iter::once(path)
            .chain(aliases.split(' ').filter(|alias| *alias != "-"))
            .collect();
        (
            id,
            Fact {
                method,
                paths,
                status,
                permissions,
                scope,
            },
        )
    };
    rows(include_str!("contract/operations.tsv"))
        .map(fact)
        .collect()
});

/// `roles.tsv`: the lowest role that holds each permission.
static LADDER: LazyLock<BTreeMap<&'static str, Role>> = LazyLock::new(|| {
    let rung = |line: &'static str| {
        line.split_once('\t')
            .map(|(permission, role)| (permission, role.parse().unwrap()))
            .unwrap()
    };
    rows(include_str!("contract/roles.tsv")).map(rung).collect()
});

/// Lines of a table, without comments and its head.
fn rows(table: &'static str) -> impl Iterator<Item = &'static str> {
    table.lines().filter(|line| !line.starts_with('#')).skip(1)
}

/// Whether the published contract permits the operation to `role`.
fn may(endpoint: &Endpoint, role: Role) -> bool {
    let permissions = FACTS[endpoint.id].permissions;
    permissions == "-"
        || permissions.split(" | ").any(|group| {
            group
                .split('+')
                .all(|permission| role >= LADDER[permission])
        })
}

/// The checks that `contract.allow` may name.
const CHECKS: [&str; 15] = [
    "tried",
    "credentials",
    "media",
    "declared",
    "status",
    "placeholders",
    "subject",
    "nobody",
    "stranger",
    "roles",
    "quota",
    "aliases",
    "sample",
    "nul",
    "repeated",
];

/// Problems found by a check, by operation.
#[derive(Default)]
struct Findings(BTreeMap<&'static str, String>);

impl Findings {
    fn add(&mut self, endpoint: &Endpoint, problem: impl fmt::Display) {
        let problems = self.0.entry(endpoint.id).or_default();
        problems.push_str("\n    ");
        problems.push_str(&problem.to_string());
    }

    /// Fails on problems that `contract.allow` does not list for `check`, and on unneeded entries.
    fn verdict(self, check: &str) {
        assert!(CHECKS.contains(&check), "{check} is not a check");
        let allowed: BTreeSet<&str> = allowances()
            .filter(|(name, _)| *name == check)
            .map(|(_, id)| id)
            .collect();
        let found: Vec<_> = self
            .0
            .iter()
            .filter(|(id, _)| !allowed.contains(**id))
            .map(|(id, problems)| [*id, problems].concat())
            .collect();
        assert!(found.is_empty(), "{check}:\n{}", found.join("\n"));
        let unneeded: Vec<_> = allowed
            .iter()
            .filter(|id| !self.0.contains_key(**id))
            .collect();
        assert!(
            unneeded.is_empty(),
            "contract.allow lists {unneeded:?} under {check} without need"
        );
    }
}

fn allowances() -> impl Iterator<Item = (&'static str, &'static str)> {
    let entries = include_str!("contract.allow")
        .lines()
        .map(|line| line.split('#').next().unwrap().trim())
        .filter(|line| !line.is_empty());
    entries.map(|entry| {
        entry
            .split_once(' ')
            .unwrap_or_else(|| panic!("{entry}: expected a check and an operation"))
    })
}

#[test]
fn allowances_name_a_check_and_an_operation() {
    for (check, id) in allowances() {
        assert!(
            CHECKS.contains(&check) && FACTS.contains_key(id),
            "{check} {id}"
        );
    }
}

/// Operations of the published contract, without Gantry's own.
fn published() -> impl Iterator<Item = &'static Endpoint> {
    endpoints::all()
        .iter()
        .copied()
        .filter(|endpoint| endpoint.tag != Tag::Gantry)
}

/// Published operations, with the one that deletes the subject last.
fn callable() -> Vec<&'static Endpoint> {
    let mut all: Vec<_> = published().collect();
    all.sort_by_key(|endpoint| endpoint.id == "v1-delete-a-project");
    all
}

fn spellings(endpoint: &'static Endpoint) -> impl Iterator<Item = &'static str> {
    std::iter::once(endpoint.path).chain(endpoint.aliases.iter().copied())
}

/// Whether requests name an organization or a project.
fn names_subject(endpoint: &Endpoint) -> bool {
    match endpoint.limit.key {
        LimitKey::Path => ["{ref}", "{slug}", "{branch_id_or_ref}"]
            .iter()
            .any(|name| endpoint.path.contains(name)),
        LimitKey::Caller => false,
        LimitKey::OrganizationInBody { .. } | LimitKey::Uncounted => true,
    }
}

/// Whether the path names a project, or a branch, which stands for its parent.
fn names_project(endpoint: &Endpoint) -> bool {
    ["{ref}", "{branch_id_or_ref}"]
        .iter()
        .any(|name| endpoint.path.contains(name))
}

fn built(endpoint: &Endpoint) -> bool {
    (endpoint.handler)().built
}

/// A request to one spelling of an operation, about `tenant`.
fn call(node: &Node, endpoint: &Endpoint, spelling: &str, tenant: &Tenant) -> Call {
    let filled = spelling.split('/').map(|segment| match segment {
        "{ref}" | "{branch_id_or_ref}" => tenant.project.as_str(),
        "{slug}" => tenant.slug.as_str(),
        // Not a slug: the answer for one that names no function is that of a hidden project.
        "{function_slug}" => "x.1",
        name if name.starts_with('{') => "x1",
        literal => literal,
    });
    let call = node.request(
        endpoint.method.name(),
        &filled.collect::<Vec<_>>().join("/"),
    );
    match endpoint.method {
        Verb::Get | Verb::Head | Verb::Delete => call,
        Verb::Post | Verb::Put | Verb::Patch => call.json(&body(endpoint, tenant)),
    }
}

/// A body that is sufficient for the guard. Handlers may reject it.
fn body(endpoint: &Endpoint, tenant: &Tenant) -> Value {
    match endpoint.limit.key {
        // The case with the fewest permissions.
        LimitKey::Path | LimitKey::Caller | LimitKey::Uncounted
            if endpoint.id == "v1-run-a-query" =>
        {
            json!({"read_only": true})
        }
        LimitKey::Path | LimitKey::Caller | LimitKey::Uncounted => json!({}),
        LimitKey::OrganizationInBody { .. } => json!({"organization_slug": tenant.slug}),
    }
}

fn is_public(endpoint: &Endpoint) -> bool {
    endpoint.access == Access::Public
}
