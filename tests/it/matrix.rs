//! The access matrix: every operation and case, for every role, with a classic token and with a
//! scoped token of each permission, with and without reach. This module tests the pure decision,
//! `live` the whole application.

mod applications;
mod live;
mod property;

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    sync::Arc,
};

use gantry::{
    api::endpoints,
    platform::{
        access::{
            Access, Caller, CallerRelation, OauthApproval, OauthScope, Organization, Permission,
            Permissions, Project, Reach, RequestView, Role, Scopes, Subject, TokenGrant, User,
            decide,
        },
        error::{Denial, Error},
        http::Endpoint,
        rate_limits::LimitKey,
    },
};
use gantry_base::ids::{ApplicationId, ApprovalId, OrganizationId, ProjectId, TokenId, UserId};

/// A request to an operation, one for each of its cases.
#[derive(Clone, Copy)]
struct Question {
    endpoint: &'static Endpoint,
    /// Description of the case; `-` if the operation has one only.
    case: &'static str,
    query: &'static str,
    body: &'static str,
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.endpoint.id, self.case)
    }
}

impl Question {
    fn asked(&self) -> RequestView<'static> {
        RequestView {
            query: self.query,
            body: self.body.as_bytes(),
        }
    }
}

/// Query and body for each case, from the contract.
const SAMPLES: [(&str, &[(&str, &str)]); 7] = [
    (
        "v1-run-a-query",
        &[("", r#"{"read_only": true}"#), ("", "{}")],
    ),
    ("v1-get-project-api-keys", &[("reveal=true", ""), ("", "")]),
    ("v1-get-project-api-key", &[("reveal=true", ""), ("", "")]),
    (
        "v1-update-project-api-key",
        &[("reveal=true", "{}"), ("", "{}")],
    ),
    (
        "v1-delete-project-api-key",
        &[("reveal=true", ""), ("", "")],
    ),
    (
        "v1-create-a-branch",
        &[("", r#"{"with_data": true}"#), ("", "{}")],
    ),
    (
        "v2-create-a-branch",
        &[
            ("", r#"{"data": {"attributes": {"with_data": true}}}"#),
            ("", "{}"),
        ],
    ),
];

/// Returns all questions.
fn questions() -> Vec<Question> {
    let samples: BTreeMap<_, _> = SAMPLES.into();
    let question = |endpoint: &'static Endpoint| {
        let samples = samples.get(endpoint.id).copied().unwrap_or(&[("", "{}")]);
        samples.iter().map(move |(query, body)| {
            let asked = RequestView {
                query,
                body: body.as_bytes(),
            };
            let case = endpoint
                .access
                .cases()
                .iter()
                .find(|case| (case.applies)(&asked))
                .map_or("-", |case| case.when);
            Question {
                endpoint,
                case,
                query,
                body,
            }
        })
    };
    endpoints::all()
        .iter()
        .copied()
        .flat_map(question)
        .collect()
}

#[test]
fn every_case_of_every_operation_has_a_sample() {
    for endpoint in endpoints::all() {
        let asked: Vec<_> = questions()
            .iter()
            .filter(|question| question.endpoint.id == endpoint.id)
            .map(|question| question.case)
            .collect();
        let declared: Vec<_> = endpoint
            .access
            .cases()
            .iter()
            .map(|case| case.when)
            .collect();
        assert_eq!(
            asked,
            if declared.is_empty() {
                vec!["-"]
            } else {
                declared
            },
            "{}",
            endpoint.id
        );
    }
}

/// Roles of the caller; `None` for a stranger.
const ROLES: [Option<Role>; 6] = [
    None,
    Some(Role::Member),
    Some(Role::ReadOnly),
    Some(Role::Developer),
    Some(Role::Administrator),
    Some(Role::Owner),
];

/// The organization of the request, another one, a project of each, and a second project of the
/// first.
const HOME: OrganizationId = OrganizationId(1);
const OTHER: OrganizationId = OrganizationId(2);
const PROJECT: ProjectId = ProjectId(10);
const SIBLING: ProjectId = ProjectId(11);

/// Reaches of tokens relative to the subject: the account, the subject, other subjects.
fn reaches() -> [Reach; 5] {
    [
        Reach::Account,
        Reach::Organizations(vec![HOME]),
        Reach::Projects {
            organization: HOME,
            projects: vec![PROJECT],
        },
        Reach::Organizations(vec![OTHER]),
        Reach::Projects {
            organization: HOME,
            projects: vec![SIBLING],
        },
    ]
}

/// Returns the subject of an operation.
fn subject(endpoint: &Endpoint) -> Subject {
    let organization = Organization {
        id: HOME,
        slug: "home".parse().unwrap(),
    };
    let project = Project {
        id: PROJECT,
        reference: "abcdefghijklmnopqrst".parse().unwrap(),
        organization: HOME,
    };
    if endpoint.limit.key == LimitKey::Caller {
        Subject::Account
    } else if endpoint.path.contains("{ref}") || endpoint.path.contains("{branch_id_or_ref}") {
        Subject::Project(project)
    } else if endpoint.path.contains("{slug}")
        || matches!(endpoint.limit.key, LimitKey::OrganizationInBody { .. })
    {
        Subject::Organization(organization)
    } else {
        Subject::Account
    }
}

fn user(grant: Option<TokenGrant>) -> User {
    User {
        id: UserId(1),
        gotrue_id: uuid::Uuid::nil(),
        token: Some(TokenId(1)),
        grant: grant.map(Arc::new),
        approval: None,
        activity: None,
        signed_in_at: None,
    }
}

fn grant(permissions: Permissions, reach: Reach) -> TokenGrant {
    TokenGrant {
        permissions,
        reach,
        networks: Vec::new(),
        not_before: None,
    }
}

/// Returns the relation of a user with this role to the subject, as the directory finds it.
fn standing(user: &User, subject: &Subject, role: Option<Role>) -> CallerRelation {
    match (subject, role) {
        (Subject::Account, _) => CallerRelation::Account,
        (_, Some(role)) if user.sees(subject) => CallerRelation::Member(role.into()),
        _ => CallerRelation::NotMember,
    }
}

fn outcome(
    question: &Question,
    grant: Option<TokenGrant>,
    role: Option<Role>,
) -> Result<(), Error> {
    let user = user(grant);
    let standing = standing(&user, &subject(question.endpoint), role);
    decide(
        &Caller::User(user.into()),
        &question.endpoint.access,
        &question.asked(),
        standing,
    )
}

/// Returns one letter for a decision.
fn letter(outcome: &Result<(), Error>) -> char {
    match outcome {
        Ok(()) => '.',
        Err(Error::Unauthenticated(_)) => '1',
        Err(Error::NotFound) => '4',
        Err(Error::Forbidden(Denial::Role)) => 'r',
        Err(Error::Forbidden(Denial::Permissions(_))) => 'p',
        Err(Error::Forbidden(Denial::UserScopeOnly)) => 'u',
        Err(Error::Forbidden(Denial::UnscopedOnly)) => 'c',
        Err(Error::Forbidden(Denial::Scope(_))) => 's',
        Err(Error::Forbidden(Denial::NotByApplications)) => 'o',
        Err(other) => panic!("the decision never says {other}"),
    }
}

/// Returns one letter for each role.
fn word(question: &Question, grant: Option<&TokenGrant>) -> String {
    ROLES
        .iter()
        .map(|role| letter(&outcome(question, grant.cloned(), *role)))
        .collect()
}

/// Returns one word for each reach.
fn words(question: &Question, permissions: Permissions) -> [String; 5] {
    reaches().map(|reach| word(question, Some(&grant(permissions, reach))))
}

fn one(permission: Permission) -> Permissions {
    [permission].into_iter().collect()
}

fn all() -> Permissions {
    Permission::ALL.iter().copied().collect()
}

/// Returns the rows of one question: classic, all permissions, each relevant permission and group,
/// and any other permission.
fn rows(question: &Question) -> Vec<(String, Vec<String>)> {
    let singles: Vec<_> = Permission::ALL
        .iter()
        .map(|permission| {
            (
                permission.name().to_owned(),
                words(question, one(*permission)),
            )
        })
        .collect();
    let mut counts: BTreeMap<&[String; 5], usize> = BTreeMap::new();
    for (_, words) in &singles {
        *counts.entry(words).or_default() += 1;
    }
    let (common, _) = counts.into_iter().max_by_key(|(_, count)| *count).unwrap();
    let mut rows = vec![
        ("classic".to_owned(), vec![word(question, None)]),
        ("all permissions".to_owned(), words(question, all()).into()),
    ];
    rows.extend(
        singles
            .iter()
            .filter(|(_, words)| words != common)
            .map(|(name, words)| (name.clone(), words.to_vec())),
    );
    for group in question
        .endpoint
        .access
        .required(&question.asked())
        .0
        .iter()
        .filter(|group| group.len() > 1)
    {
        let name = group
            .iter()
            .map(|permission| permission.name())
            .collect::<Vec<_>>()
            .join("+");
        rows.push((
            name,
            words(question, group.iter().copied().collect()).into(),
        ));
    }
    rows.push((
        if common.iter().all(|word| word.contains('.')) {
            "any one"
        } else {
            "any other one"
        }
        .to_owned(),
        common.to_vec(),
    ));
    rows
}

const LEGEND: &str = "\
Whether a request is let in, by what the token reaches, and there by the owner's role: one letter each for
  a stranger, no-access, read-only, developer, administrator, owner.
  `.` let in   `4` 404   `r` 403, the role   `p` 403, the token's permissions   `u` 403, the token does not reach the account
  `c` 403, only classic tokens are accepted   `s` 403, not in a scope that was approved   `o` 403, no application may
A scoped token reaches: the account | the organization | the project | another organization | another project.
An application reaches all of these but the account; bound to its member, or acting as the administrator who approved it.
Nobody is 401 everywhere but where it says public.
";

/// Compares the table with the reviewed snapshot.
#[test]
fn decisions_match_the_reviewed_snapshot() {
    let mut text = LEGEND.to_owned();
    // By id, so that an operation that moves to another file changes no line.
    let mut sorted = questions();
    sorted.sort_by_key(|question| question.endpoint.id);
    for question in sorted {
        let Question { endpoint, case, .. } = question;
        let case = if case == "-" {
            String::new()
        } else {
            format!(", {case}")
        };
        let _ = writeln!(
            text,
            "\n{}{case}{}",
            endpoint.id,
            if endpoint.access == Access::Public {
                ", public"
            } else {
                ""
            }
        );
        if endpoint.access == Access::Public {
            assert!(
                rows(&question)
                    .iter()
                    .all(|(_, words)| words.iter().all(|word| word == "......")),
                "{}",
                endpoint.id
            );
            continue;
        }
        for (token, words) in rows(&question)
            .into_iter()
            .chain(applications::rows(&question))
        {
            let _ = writeln!(text, "  {} {token}", words.join(" "));
        }
    }
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, { insta::assert_snapshot!("decisions", text) });
}

/// A browser session has the rights of a classic token of its user.
#[test]
fn session_has_the_rights_of_a_classic_token() {
    for question in questions() {
        let Question { endpoint, .. } = question;
        for role in ROLES {
            let session = User {
                token: None,
                ..user(None)
            };
            let standing = standing(&session, &subject(endpoint), role);
            let session = decide(
                &Caller::User(session.into()),
                &endpoint.access,
                &question.asked(),
                standing,
            );
            assert_eq!(
                letter(&session),
                letter(&outcome(&question, None, role)),
                "{} {role:?}",
                endpoint.id
            );
        }
    }
}

/// Compares each permission with the contract, independent of the decision: the operation's groups,
/// the order of roles, and the permissions that a token of each reach can have.
#[test]
fn single_permission_is_admitted_as_in_the_contract() {
    let mut cells = 0;
    for question in questions() {
        let Question { endpoint, .. } = question;
        let required = endpoint.access.required(&question.asked());
        for permission in Permission::ALL {
            for reach in reaches() {
                for role in ROLES {
                    cells += 1;
                    let subject = subject(endpoint);
                    let on_account = subject == Subject::Account;
                    let visible = on_account || role.is_some() && within(&reach, &subject);
                    let suffices = required.0.is_empty()
                        || required.0.iter().any(|group| *group == [*permission]);
                    let counts = required.0.is_empty() || reach.covers(*permission);
                    let by_role = on_account
                        || required.0.is_empty()
                        || role.is_some_and(|role| role >= permission.minimum_role());
                    let expected = match endpoint.access {
                        Access::Public => true,
                        Access::User => reach == Reach::Account,
                        Access::Unscoped => false,
                        Access::Caller | Access::Credential | Access::Needs { .. } => {
                            visible && suffices && counts && by_role
                        }
                    };
                    let outcome = outcome(
                        &question,
                        Some(grant(one(*permission), reach.clone())),
                        role,
                    );
                    assert_eq!(
                        outcome.is_ok(),
                        expected,
                        "{} {permission} {reach:?} {role:?}: {outcome:?}",
                        endpoint.id
                    );
                }
            }
        }
    }
    assert!(cells > 600_000, "{cells}");
}

/// Returns whether the token of a test reaches the subject of the test.
fn within(reach: &Reach, subject: &Subject) -> bool {
    match (reach, subject) {
        // A token for a project reaches the project's organization, also the one of a sibling.
        (Reach::Account, _)
        | (_, Subject::Account)
        | (Reach::Projects { .. }, Subject::Organization(_)) => true,
        (Reach::Organizations(reached), _) => *reached == [HOME],
        (Reach::Projects { projects, .. }, Subject::Project(_)) => *projects == [PROJECT],
    }
}

/// No token for projects can call operations on organizations.
#[test]
fn project_tokens_are_rejected_on_organizations() {
    let about_organizations = questions()
        .into_iter()
        .filter(|question| matches!(subject(question.endpoint), Subject::Organization(_)));
    let mut count = 0;
    for question in about_organizations {
        count += 1;
        let token = grant(
            all(),
            Reach::Projects {
                organization: HOME,
                projects: vec![PROJECT],
            },
        );
        let refused = outcome(&question, Some(token), Some(Role::Owner)).unwrap_err();
        let expected = if question.endpoint.access == Access::Unscoped {
            'c'
        } else {
            'p'
        };
        assert_eq!(letter(&Err(refused)), expected, "{}", question.endpoint.id);
    }
    assert!(count > 20, "{count}");
}
