//! Declarations of operations, compared with the published contract and the committed document.

use std::collections::{BTreeMap, BTreeSet};

use gantry::{
    api::endpoints,
    platform::{
        access::Access,
        context::PublishedLinks,
        http::{
            Tag,
            openapi::{document, required_placeholders},
            path_template::placeholders,
        },
        rate_limits::{LimitKey, Window},
    },
};
use serde_json::Value;

use super::{FACTS, Findings, LADDER, built, names_subject, published, spellings};
use crate::support::document::{DOCUMENT, responses, validator};

#[test]
fn declarations_match_the_contract() {
    let mut found = Findings::default();
    let mut missing: BTreeSet<_> = FACTS.keys().copied().collect();
    for endpoint in published() {
        let Some(fact) = FACTS.get(endpoint.id) else {
            found.add(endpoint, "is not in the contract");
            continue;
        };
        assert!(
            missing.remove(endpoint.id),
            "{} is declared twice",
            endpoint.id
        );
        let scope = endpoint.access.oauth().map_or("-", |scope| scope.name());
        let permissions = Some(endpoint.access.permissions().to_string())
            .filter(|text| !text.is_empty())
            .unwrap_or("-".into());
        if endpoint.method.name() != fact.method
            || spellings(endpoint).collect::<BTreeSet<_>>() != fact.paths
        {
            found.add(
                endpoint,
                format_args!(
                    "{} {:?} instead of {} {:?}",
                    endpoint.method.name(),
                    endpoint.path,
                    fact.method,
                    fact.paths
                ),
            );
        }
        if permissions != fact.permissions {
            found.add(
                endpoint,
                format_args!("needs {permissions} instead of {}", fact.permissions),
            );
        }
        if scope != fact.scope {
            found.add(
                endpoint,
                format_args!("has scope {scope} instead of {}", fact.scope),
            );
        }
    }
    assert_eq!(missing, BTreeSet::new(), "not declared");
    found.verdict("declared");
}

#[test]
fn documented_status_matches_the_contract() {
    let mut found = Findings::default();
    for endpoint in published().filter(|endpoint| built(endpoint)) {
        let documented: Vec<_> = responses(endpoint)
            .keys()
            .filter(|status| status.starts_with('2'))
            .collect();
        if FACTS[endpoint.id].status != "?" && documented != [FACTS[endpoint.id].status] {
            found.add(
                endpoint,
                format_args!(
                    "documents {documented:?} instead of {}",
                    FACTS[endpoint.id].status
                ),
            );
        }
    }
    found.verdict("status");
}

#[test]
fn minimum_roles_match_the_contract() {
    let ours: BTreeMap<_, _> = gantry::platform::access::Permission::ALL
        .iter()
        .map(|permission| (permission.name(), permission.minimum_role()))
        .collect();
    assert_eq!(ours, *LADDER);
}

/// Specification §8: everything not listed has the standard limit. Three more vanity operations are
/// as strict upstream.
#[test]
fn rate_limits_match_the_specification() {
    const MINUTE: &[(u32, u32)] = &[(120, 60)];
    let stricter: BTreeMap<&str, &[(u32, u32)]> = [
        ("v1-get-project-logs", &[(10, 60)][..]),
        ("v1-get-project-logs-all", &[(30, 60)]),
        ("v1-get-project-usage-api-count", &[(30, 60)]),
        ("v1-get-project-usage-request-count", &[(30, 60)]),
        ("v1-get-database-metadata", &[(10, 60), (1, 1)]),
        ("v1-update-hostname-config", &[(10, 60)]),
        ("v1-verify-dns-config", &[(10, 60)]),
        ("v1-Delete hostname config", &[(10, 60)]),
        ("v1-get-vanity-subdomain-config", &[(10, 60)]),
        ("v1-deactivate-vanity-subdomain-config", &[(10, 60)]),
        ("v1-activate-vanity-subdomain-config", &[(10, 60)]),
        ("v1-check-vanity-subdomain-availability", &[(10, 60)]),
        ("v1-apply-a-migration", &[(120, 180)]),
        // Not the contract's: a stack sends a batch a second for each of its services.
        ("gantry-ingest-logs", &[(1_200, 60)]),
        ("gantry-ingest-otlp-logs", &[(1_200, 60)]),
        // Every request creates a row.
        ("gantry-register-oauth-application", &[(10, 3_600)]),
        // Sends as many DNS queries as reverification.
        ("gantry-check-custom-hostname", &[(10, 60)]),
        // Documented apart from the specification: each request sends a webhook.
        (
            "v2-organizations-slug-webhooks-endpoints-id-test-post",
            &[(10, 60)],
        ),
        (
            "v2-organizations-slug-webhooks-deliveries-id-retry-post",
            &[(10, 60)],
        ),
        (
            "v2-projects-ref-webhooks-endpoints-id-test-post",
            &[(10, 60)],
        ),
        (
            "v2-projects-ref-webhooks-deliveries-id-retry-post",
            &[(10, 60)],
        ),
        // As queries of logs, of which it makes two.
        ("gantry-list-database-calls", &[(30, 60)]),
    ]
    .into();
    for endpoint in endpoints::all() {
        let windows: Vec<_> = endpoint
            .limit
            .windows
            .iter()
            .map(|Window { requests, secs }| (*requests, *secs))
            .collect();
        assert_eq!(
            windows,
            *stricter.get(endpoint.id).unwrap_or(&MINUTE),
            "{}",
            endpoint.id
        );
        let key = match endpoint.id {
            "v1-create-a-project" => "body",
            "gantry-rate-limits" => "uncounted",
            "v1-accept-invite-external-jit-access" => "caller",
            _ => "path",
        };
        let declared = match endpoint.limit.key {
            LimitKey::Path => "path",
            LimitKey::Caller => "caller",
            LimitKey::OrganizationInBody { .. } => "body",
            LimitKey::Uncounted => "uncounted",
        };
        assert_eq!(declared, key, "{}", endpoint.id);
    }
}

#[test]
fn handlers_take_the_subject_of_their_path() {
    let mut found = Findings::default();
    for endpoint in published().filter(|endpoint| built(endpoint)) {
        if endpoint.limit.key == LimitKey::Caller {
            continue; // The guard resolves no subject.
        }
        let named: BTreeSet<_> = placeholders(endpoint.path)
            .map(|name| name.trim_start_matches("branch_id_or_"))
            .filter(|name| ["ref", "slug"].contains(name))
            .collect();
        let mut asked: BTreeSet<_> = required_placeholders(endpoint).into_iter().collect();
        if endpoint.limit.key != LimitKey::Path {
            assert!(
                asked.remove("slug"),
                "{}: the body names an organization that the handler does not take",
                endpoint.id
            );
        }
        if named != asked {
            found.add(
                endpoint,
                format_args!("the path names {named:?}, the handler asks for {asked:?}"),
            );
        }
    }
    found.verdict("placeholders");
}

/// The guard reads placeholders by their index, in every path of an operation.
#[test]
fn aliases_have_placeholders_at_the_same_index() {
    let mut found = Findings::default();
    for endpoint in endpoints::all() {
        for name in ["{ref}", "{slug}", "{branch_id_or_ref}"] {
            let place = |path: &str| path.split('/').position(|segment| segment == name);
            if spellings(endpoint).any(|spelling| place(spelling) != place(endpoint.path)) {
                found.add(
                    endpoint,
                    format_args!(
                        "{name} moves: {:?}",
                        spellings(endpoint).collect::<Vec<_>>()
                    ),
                );
            }
        }
    }
    found.verdict("aliases");
}

/// Without a subject the decision has no role to compare, and permits every caller.
#[test]
fn operations_with_a_role_name_a_subject() {
    let mut found = Findings::default();
    for endpoint in published().filter(|endpoint| built(endpoint)) {
        let Access::Needs { permissions, .. } = endpoint.access else {
            continue;
        };
        let about_the_account = permissions
            .0
            .iter()
            .flat_map(|group| group.iter())
            .all(|p| p.level() == gantry::platform::access::PermissionLevel::Account);
        if !about_the_account && !names_subject(endpoint) {
            found.add(
                endpoint,
                format_args!("needs {permissions} and names neither a project nor an organization"),
            );
        }
    }
    found.verdict("subject");
}

/// The samples in `generated/requests/` are valid requests.
#[test]
fn samples_match_their_schema() {
    let mut found = Findings::default();
    for endpoint in endpoints::all().iter().filter(|endpoint| built(endpoint)) {
        let described = &DOCUMENT["paths"][endpoint.path][endpoint.method.name().to_lowercase()];
        let schema = &described["requestBody"]["content"]["application/json"]["schema"];
        let sample = (endpoint.handler)().sample;
        // With the variables filled in.
        let filled_in = sample
            .body
            .map(|body| body.replace("{{GANTRY_ORG}}", "acme"));
        match filled_in.as_deref().map(serde_json::from_str::<Value>) {
            None if schema.is_null() => {}
            None => found.add(endpoint, "takes a body and has no sample"),
            Some(_) if schema.is_null() => found.add(endpoint, "has a sample and takes no body"),
            Some(body) => {
                let errors: Vec<_> = validator(schema)
                    .iter_errors(&body.unwrap())
                    .map(|error| error.to_string())
                    .collect();
                if !errors.is_empty() {
                    found.add(endpoint, format_args!("{errors:?}"));
                }
            }
        }
        let needed = described["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|p| p["in"] == "query" && p["required"] == true);
        for parameter in needed.map(|parameter| parameter["name"].as_str().unwrap()) {
            if !sample.query.contains(&format!("{parameter}=")) {
                found.add(endpoint, format_args!("its sample lacks {parameter}"));
            }
        }
    }
    found.verdict("sample");
}

#[test]
fn committed_openapi_document_is_current() {
    assert!(
        *DOCUMENT == document(endpoints::all(), &PublishedLinks::default()),
        "generated/openapi.json is stale: run `gantry generate`"
    );
}

#[test]
fn openapi_document_is_consistent() {
    let (mut ids, mut schemas) = (BTreeSet::new(), BTreeSet::new());
    for (path, methods) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(
                ids.insert(operation["operationId"].as_str().unwrap()),
                "{method} {path}: its id is another's too"
            );
            let parameters = operation["parameters"].as_array().unwrap();
            let in_path: BTreeSet<_> = parameters
                .iter()
                .filter(|p| p["in"] == "path")
                .map(|p| p["name"].as_str().unwrap())
                .collect();
            let named: BTreeSet<_> = path
                .split('/')
                .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
                .collect();
            assert_eq!(in_path, named, "{method} {path}");
            for response in operation["responses"].as_object().unwrap().values() {
                assert!(response["description"].is_string(), "{method} {path}");
                let schema = &response["content"]["application/json"]["schema"];
                if !schema.is_null() && schemas.insert(schema.to_string()) {
                    validator(schema);
                }
            }
        }
    }
    let mut refs = Vec::new();
    references(&DOCUMENT, &mut refs);
    assert!(refs.len() > 20, "{refs:?}");
    for reference in refs {
        let pointer = reference
            .strip_prefix('#')
            .unwrap_or_else(|| panic!("{reference} leads out of the document"));
        assert!(
            DOCUMENT.pointer(pointer).is_some(),
            "{reference} leads nowhere"
        );
    }
}

fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// Gantry's own operations are on no path of the contract. All are public but what is about the
/// caller or an organization.
#[test]
fn own_operations_use_no_path_of_the_contract() {
    let published: BTreeSet<_> = published().flat_map(spellings).collect();
    let own: Vec<_> = endpoints::all()
        .iter()
        .filter(|endpoint| endpoint.tag == Tag::Gantry)
        .collect();
    assert!(!own.is_empty());
    for endpoint in own {
        let not_public = endpoint.id == "gantry-rate-limits"
            || endpoint.path.starts_with("/v1/tokens")
            || endpoint.path.starts_with("/v1/invitations")
            || endpoint.path.ends_with("/invitations")
            || endpoint.path.contains("/audit")
            || endpoint.path.ends_with("/events")
            || endpoint.path.starts_with("/v1/projects/{ref}/config/")
            || endpoint
                .path
                .starts_with("/v1/projects/{ref}/database/backups/")
            || endpoint.path.contains("/oauth/apps")
                && endpoint.id != "gantry-register-oauth-application"
            || endpoint.path.contains("/oauth/authorizations")
            || endpoint.path.contains("/ingest-keys")
            || endpoint.path.ends_with("/outbound-hosts")
            || endpoint.path.contains("/service-identities")
            || endpoint.path.ends_with("/database/calls")
            || endpoint.path.ends_with("/protection")
            || endpoint.path.contains("/approvals")
            || endpoint.path.contains("/log-drains/");
        assert_eq!(
            endpoint.access == Access::Public,
            !not_public,
            "{}",
            endpoint.id
        );
        assert!(endpoint.id.starts_with("gantry-"), "{}", endpoint.id);
        assert!(
            spellings(endpoint).all(|path| !published.contains(path)),
            "{}",
            endpoint.id
        );
    }
}
