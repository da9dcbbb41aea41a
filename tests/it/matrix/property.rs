//! Properties of decisions about arbitrary tokens.

use std::sync::LazyLock;

use gantry::platform::{
    access::{Permission, Permissions, Reach, Role},
    error::{Denial, Error},
};
use proptest::prelude::*;

use super::{HOME, OTHER, PROJECT, Question, ROLES, SIBLING, grant, outcome, questions};

static QUESTIONS: LazyLock<Vec<Question>> = LazyLock::new(questions);

fn question() -> impl Strategy<Value = Question> {
    (0..QUESTIONS.len()).prop_map(|n| QUESTIONS[n])
}

/// Sets of few or many permissions, mostly with some relevant ones.
fn permissions(question: Question) -> impl Strategy<Value = Permissions> {
    let required: Vec<_> = question
        .endpoint
        .access
        .required(&question.asked())
        .0
        .concat();
    let relevant = proptest::sample::subsequence(required.clone(), 0..=required.len());
    let any = proptest::sample::subsequence(Permission::ALL, 0..=Permission::ALL.len());
    (relevant, any).prop_map(|(relevant, any)| relevant.into_iter().chain(any).collect())
}

fn reach() -> impl Strategy<Value = Reach> {
    let organizations =
        proptest::sample::subsequence(vec![HOME, OTHER], 1..=2).prop_map(Reach::Organizations);
    let projects = proptest::sample::subsequence(vec![PROJECT, SIBLING], 1..=2);
    let of = prop_oneof![Just(HOME), Just(OTHER)];
    prop_oneof![
        Just(Reach::Account),
        organizations,
        (of, projects).prop_map(|(organization, projects)| Reach::Projects {
            organization,
            projects
        })
    ]
}

fn role() -> impl Strategy<Value = Option<Role>> {
    proptest::sample::select(&ROLES[..])
}

fn case() -> impl Strategy<Value = (Question, Permissions, Reach, Option<Role>)> {
    question().prop_flat_map(|question| (Just(question), permissions(question), reach(), role()))
}

/// Returns wider reaches.
fn wider(reach: &Reach) -> Vec<Reach> {
    match reach {
        Reach::Account => vec![],
        Reach::Organizations(_) => vec![Reach::Organizations(vec![HOME, OTHER]), Reach::Account],
        Reach::Projects { organization, .. } => {
            vec![Reach::Organizations(vec![*organization]), Reach::Account]
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn token_has_no_more_rights_than_its_owner((question, permissions, reach, role) in case()) {
        if outcome(&question, Some(grant(permissions, reach)), role).is_ok() {
            prop_assert!(outcome(&question, None, role).is_ok(), "{}", question.endpoint.id);
        }
    }

    #[test]
    fn more_rights_never_revoke_access(
        (question, permissions, reach, role) in case(), more in proptest::sample::select(Permission::ALL)
    ) {
        if outcome(&question, Some(grant(permissions, reach.clone())), role).is_ok() {
            let with_more = permissions.iter().chain([more]).collect();
            prop_assert!(outcome(&question, Some(grant(with_more, reach.clone())), role).is_ok());
            for wider in wider(&reach) {
                prop_assert!(outcome(&question, Some(grant(permissions, wider)), role).is_ok());
            }
            for higher in ROLES.into_iter().filter(|higher| *higher >= role) {
                prop_assert!(outcome(&question, Some(grant(permissions, reach.clone())), higher).is_ok());
            }
        }
    }

    /// The permissions in the error message are sufficient, and all of them are necessary.
    #[test]
    fn missing_permissions_are_sufficient_and_necessary((question, permissions, reach, role) in case()) {
        if let Err(Error::Forbidden(Denial::Permissions(missing))) = outcome(&question, Some(grant(permissions, reach.clone())), role) {
            let missing: Vec<_> = missing.iter().filter_map(|name| Permission::from_name(name)).collect();
            prop_assert!(!missing.is_empty());
            let with = |added: &[Permission]| permissions.iter().chain(added.iter().copied()).collect::<Permissions>();
            let within = missing.iter().all(|permission| reach.covers(*permission));
            prop_assert_eq!(outcome(&question, Some(grant(with(&missing), reach.clone())), role).is_ok(), within);
            prop_assert!(outcome(&question, Some(grant(with(&missing), Reach::Account)), role).is_ok());
            prop_assert!(outcome(&question, Some(grant(with(&missing[1..]), reach)), role).is_err());
        }
    }

    /// After a refusal because of the role, no token of this owner is admitted.
    #[test]
    fn role_refusal_holds_for_every_token((question, permissions, reach, role) in case()) {
        if matches!(outcome(&question, Some(grant(permissions, reach)), role), Err(Error::Forbidden(Denial::Role))) {
            prop_assert!(matches!(outcome(&question, None, role), Err(Error::Forbidden(Denial::Role))));
            let everything = grant(Permission::ALL.iter().copied().collect(), Reach::Account);
            prop_assert!(outcome(&question, Some(everything), role).is_err());
        }
    }
}
