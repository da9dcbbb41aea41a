//! The access matrix for OAuth applications: by scope, approved reach, and role.

use std::sync::Arc;

use gantry::platform::{
    access::{Access, Caller, CallerRelation, Role, audience::Audience, decide},
    error::{Denial, Error},
};

use super::{
    ApplicationId, ApprovalId, HOME, LEGEND, OauthApproval, OauthScope, PROJECT, Question, ROLES,
    Reach, Scopes, User, letter,
    live::{World, names_more, response_letter},
    questions, reaches, standing, subject, user, within,
};
use crate::support::{Actor, TestApp};

/// URL where an application finds the authorization server.
const METADATA: &str = "http://api.example/.well-known/oauth-protected-resource";

fn application(scopes: Scopes, reach: Reach, acts_as: Option<Role>) -> User {
    let approval = OauthApproval {
        id: ApprovalId(1),
        application: ApplicationId(1),
        client_id: uuid::Uuid::nil(),
        scopes,
        reach,
        acts_as,
        audience: Audience::Api,
    };
    User {
        token: None,
        approval: Some(Arc::new(approval)),
        ..user(None)
    }
}

/// Reaches that can be approved: an organization or projects, never an account.
fn approved() -> impl Iterator<Item = Reach> {
    reaches()
        .into_iter()
        .filter(|reach| *reach != Reach::Account)
}

fn cell(question: &Question, user: User, role: Option<Role>) -> char {
    let standing = standing(&user, &subject(question.endpoint), role);
    letter(&decide(
        &Caller::User(user.into()),
        &question.endpoint.access,
        &question.asked(),
        standing,
    ))
}

fn words(question: &Question, scopes: Scopes, acts_as: Option<Role>) -> Vec<String> {
    let word = |reach: Reach| {
        ROLES
            .iter()
            .map(|role| cell(question, application(scopes, reach.clone(), acts_as), *role))
            .collect()
    };
    approved().map(word).collect()
}

fn without(scope: OauthScope) -> Scopes {
    OauthScope::ALL
        .iter()
        .copied()
        .filter(|other| *other != scope)
        .collect()
}

/// Returns the rows of one question: an application with its scope, with and without a role, and
/// one with all other scopes.
pub(super) fn rows(question: &Question) -> Vec<(String, Vec<String>)> {
    let Some(scope) = question.endpoint.access.oauth() else {
        return vec![(
            "any application".to_owned(),
            words(question, Scopes::all(), None),
        )];
    };
    let only = [scope].into_iter().collect();
    vec![
        (
            format!("application, {}", scope.name()),
            words(question, only, None),
        ),
        (
            format!("application of an administrator, {}", scope.name()),
            words(question, only, Some(Role::Administrator)),
        ),
        (
            "application, every other scope".to_owned(),
            words(question, without(scope), None),
        ),
    ]
}

/// Compares the decision with the contract, independent of its implementation.
#[test]
fn application_is_admitted_by_scope_reach_and_role() {
    let mut cells = 0;
    for question in questions()
        .into_iter()
        .filter(|question| question.endpoint.access != Access::Public)
    {
        let (scope, subject) = (question.endpoint.access.oauth(), subject(question.endpoint));
        let required = question.endpoint.access.required(&question.asked());
        for scopes in [Scopes::all(), Scopes::default()]
            .into_iter()
            .chain(scope.map(|scope| [scope].into_iter().collect()))
            .chain(scope.map(without))
        {
            for reach in approved() {
                for acts_as in [None, Some(Role::Administrator)] {
                    for role in ROLES {
                        cells += 1;
                        let on_account = subject == super::Subject::Account;
                        let visible = on_account || role.is_some() && within(&reach, &subject);
                        let acting = acts_as.or(role);
                        let permitted = required.met(|permission| {
                            reach.covers(permission)
                                && (on_account
                                    || acting.is_some_and(|role| role >= permission.minimum_role()))
                        });
                        let expected = visible
                            && scope.is_some_and(|scope| scopes.contains(scope))
                            && permitted;
                        let let_in =
                            cell(&question, application(scopes, reach.clone(), acts_as), role)
                                == '.';
                        assert_eq!(
                            let_in, expected,
                            "{question:?} {scopes:?} {reach:?} {acts_as:?} {role:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(cells > 20_000, "{cells}");
}

/// An operation without a scope rejects every application.
#[test]
fn operation_without_scope_rejects_applications() {
    let closed = questions()
        .into_iter()
        .filter(|it| it.endpoint.access != Access::Public && it.endpoint.access.oauth().is_none());
    let mut count = 0;
    for question in closed {
        count += 1;
        for acts_as in [None, Some(Role::Owner)] {
            for reach in approved() {
                let letter = cell(
                    &question,
                    application(Scopes::all(), reach, acts_as),
                    Some(Role::Owner),
                );
                assert!(matches!(letter, 'o' | '4'), "{question:?}");
            }
        }
    }
    assert!(
        count > 40 && LEGEND.contains("`o` 403") && PROJECT.0 != HOME.0,
        "{count}"
    );
}

/// Stores the approval directly, because the decision is tested and not the approval.
async fn token(app: &TestApp, actor: &Actor, approval: &OauthApproval) -> String {
    let (db, now) = (&app.app.db, app.clock.now());
    let client_id = app.app.entropy.uuid();
    let (reach, projects) = match &approval.reach {
        Reach::Projects {
            organization,
            projects,
        } => (
            *organization,
            Some(projects.iter().map(|id| id.0).collect::<Vec<_>>()),
        ),
        Reach::Organizations(organizations) => (organizations[0], None),
        Reach::Account => unreachable!("no account is approved"),
    };
    let sql = "insert into oauth_applications (client_id, organization_id, name, website, redirect_uris, scopes, public, \
               bind_to_authorizing_user, project_selection, source, created_at) \
               values ($1, $2, 'matrix', '', array['https://app.example/cb'], $3, false, $4, 'off', 'manual', $5) returning id";
    let rows = db
        .query(
            sql,
            &[
                &client_id,
                &app.home.id.0,
                &approval.scopes.names(),
                &approval.acts_as.is_none(),
                &now,
            ],
        )
        .await
        .unwrap();
    let sql = "insert into oauth_grants (application_id, user_id, organization_id, projects, scopes, acts_as, created_at) \
               values ($1, $2, $3, $4, $5, 'administrator', $6) returning id";
    let application: i64 = rows[0].get(0);
    let rows = db
        .query(
            sql,
            &[
                &application,
                &actor.user.0,
                &reach.0,
                &projects,
                &approval.scopes.names(),
                &now,
            ],
        )
        .await
        .unwrap();
    let minted = gantry::api::oauth::GeneratedSecret::access(&app.app.entropy);
    let sql = "insert into oauth_access_tokens (digest, grant_id, scopes, created_at, expires_at) values ($1, $2, $3, $4, $5)";
    let expires_at = now + chrono::TimeDelta::days(300);
    let grant: i64 = rows[0].get(0);
    db.query(
        sql,
        &[
            &minted.digest().as_bytes(),
            &grant,
            &approval.scopes.names(),
            &now,
            &expires_at,
        ],
    )
    .await
    .unwrap();
    minted.expose().to_owned()
}

#[tokio::test]
async fn application_requests_match_the_decision() {
    let world = World::new().await;
    let reaches = world.reaches().await;
    let members = world.app.members();
    let mut holders = Vec::new();
    let some = Scopes::named(["projects:read", "database:write", "environment:read"]);
    for (scopes, reach, acts_as) in [
        (Scopes::all(), &reaches[1], None),
        (Scopes::all(), &reaches[1], Some(Role::Administrator)),
        (some, &reaches[1], None),
        (Scopes::all(), &reaches[2], None),
        (Scopes::all(), &reaches[4], None),
    ] {
        for (actor, role) in &members {
            let user = application(scopes, reach.clone(), acts_as);
            let token = token(&world.app, actor, user.approval.as_ref().unwrap()).await;
            holders.push((
                User {
                    id: actor.user,
                    gotrue_id: actor.gotrue_id,
                    ..user
                },
                *role,
                token,
            ));
        }
    }
    let (mut cells, mut lacking, mut wrong) = (0, 0, Vec::new());
    let mut questions: Vec<_> = questions()
        .into_iter()
        .filter(|question| question.endpoint.access != Access::Public)
        .collect();
    questions.sort_by_key(|question| question.endpoint.id == "v1-delete-a-project");
    for question in &questions {
        let subject = world.subject(question.endpoint, &reaches);
        for (user, role, token) in &holders {
            if question
                .endpoint
                .limit
                .windows
                .iter()
                .any(|window| window.requests < 120)
            {
                world.app.advance(60);
            }
            cells += 1;
            let standing: CallerRelation = standing(user, &subject, Some(*role));
            let decided = letter(&decide(
                &Caller::User(user.clone().into()),
                &question.endpoint.access,
                &question.asked(),
                standing,
            ));
            let answer = world.ask(question, token).await;
            let head = question.endpoint.method.name() == "HEAD";
            if decided == letter(&Err(Error::Forbidden(Denial::Scope("")))) {
                let scope = question.endpoint.access.oauth().unwrap().name();
                let challenge = format!(
                    "Bearer error=\"insufficient_scope\", resource_metadata=\"{METADATA}\", scope=\"{scope}\""
                );
                assert_eq!(
                    answer.header("www-authenticate"),
                    Some(&*challenge),
                    "{question:?}"
                );
                lacking += 1;
            }
            let live = response_letter(&answer, head);
            let live = if live == '4' && decided == '.' && names_more(question.endpoint) {
                '.'
            } else {
                live
            };
            let simulated = world.simulate(question, user).await;
            if live
                != (if head && "rpucso".contains(decided) {
                    '3'
                } else {
                    decided
                })
                || simulated != decided
            {
                wrong.push(format!("{question:?} {role:?} {:?}: decided {decided}, simulated {simulated}: {answer:?}", user.approval));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {cells}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        cells > 3_000 && lacking > 200,
        "{cells}, {lacking} of which lack a scope"
    );
}
