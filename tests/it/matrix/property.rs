//! What holds for any token whatsoever.

use std::sync::LazyLock;

use gantry::{
    base::error::{Denial, Error},
    platform::access::{Permission, Permissions, Reach, Role},
};
use proptest::prelude::*;

use super::{HOME, OTHER, PROJECT, Question, ROLES, SIBLING, grant, outcome, questions};

static QUESTIONS: LazyLock<Vec<Question>> = LazyLock::new(questions);

fn question() -> impl Strategy<Value = Question> {
    (0..QUESTIONS.len()).prop_map(|n| QUESTIONS[n])
}

/// Few permissions or many, and most often some that matter.
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

/// What reaches at least as much.
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
    fn nothing_a_token_can_do_is_outside_what_its_owner_can((question, permissions, reach, role) in case()) {
        if outcome(&question, Some(grant(permissions, reach)), role).is_ok() {
            prop_assert!(outcome(&question, None, role).is_ok(), "{}", question.endpoint.id);
        }
    }

    #[test]
    fn more_permissions_a_wider_reach_and_a_higher_role_take_nothing_away(
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

    /// Who follows the message gets in; who follows half of it does not.
    #[test]
    fn what_is_named_as_missing_is_what_is_missing((question, permissions, reach, role) in case()) {
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

    /// If the answer is about the role, no token of this owner would do.
    #[test]
    fn what_is_said_of_the_role_is_true((question, permissions, reach, role) in case()) {
        if matches!(outcome(&question, Some(grant(permissions, reach)), role), Err(Error::Forbidden(Denial::Role))) {
            prop_assert!(matches!(outcome(&question, None, role), Err(Error::Forbidden(Denial::Role))));
            let everything = grant(Permission::ALL.iter().copied().collect(), Reach::Account);
            prop_assert!(outcome(&question, Some(everything), role).is_err());
        }
    }
}
