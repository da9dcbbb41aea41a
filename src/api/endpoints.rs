//! The one list of operations: routes, documents, limits and contract tests all read it.

use std::sync::LazyLock;

use crate::{
    api::{
        accounts, audit_log, database, database_access, domains, keys, logs, oauth, organizations,
        planned, projects, rate_limits, reference, snippets, temporary_access, tokens,
    },
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Tag, Verb, input::RequestLine, mount, output::OkEmpty},
        rate_limits::STANDARD,
    },
};

static ALL: LazyLock<Vec<&'static Endpoint>> = LazyLock::new(|| {
    [
        accounts::operations::ENDPOINTS,
        organizations::operations::ENDPOINTS,
        organizations::v2::ENDPOINTS,
        organizations::invited::ENDPOINTS,
        projects::operations::ENDPOINTS,
        keys::ENDPOINTS,
        temporary_access::ENDPOINTS,
        snippets::operations::ENDPOINTS,
        database_access::ENDPOINTS,
        domains::operations::ENDPOINTS,
        domains::hostnames::ENDPOINTS,
        database::migrations::operations::ENDPOINTS,
        database::operations::ENDPOINTS,
        database::advisors::operations::ENDPOINTS,
        logs::operations::ENDPOINTS,
        logs::ingest::operations::ENDPOINTS,
        reference::operations::ENDPOINTS,
        rate_limits::ENDPOINTS,
        tokens::operations::ENDPOINTS,
        audit_log::ENDPOINTS,
        oauth::operations::ENDPOINTS,
        planned::PLANNED,
    ]
    .concat()
});

/// Every operation, built or planned. Its place is the number of its counter.
pub fn all() -> &'static [&'static Endpoint] {
    &ALL
}

/// What answers everything no operation has: counted and headed like one of them.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        base::ids::TokenId,
        platform::access::call_log::{CASES_MAX, Calls, OPERATIONS_MAX},
    };

    #[test]
    fn every_operation_and_case_has_a_bit() {
        assert!(all().len() < OPERATIONS_MAX);
        assert!(
            all()
                .iter()
                .all(|endpoint| endpoint.access.cases().len() <= CASES_MAX)
        );
        let calls = Calls::default();
        let mut seen = BTreeSet::new();
        for (operation, endpoint) in (0..).zip(all()) {
            for case in 0..endpoint.access.cases().len().max(1) {
                assert!(
                    seen.insert(calls.note(TokenId(1), operation, Some(case)).unwrap()),
                    "{} {case}",
                    endpoint.id
                );
                assert_eq!(
                    calls.note(TokenId(1), operation, Some(case)),
                    None,
                    "noted once"
                );
            }
        }
    }
}
