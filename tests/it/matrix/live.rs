//! The access matrix of the whole application: requests are answered as the decision says.

use std::sync::Arc;

use chrono::TimeDelta;
use gantry::{
    api::{endpoints, tokens::scoped},
    platform::{
        access::{
            Access, Caller, CallerRelation, Permission, Permissions, Reach, Role, Subject,
            TokenGrant, User, decide,
        },
        http::{
            Endpoint,
            path_template::placeholders,
            simulate::{SimulatedRequest, simulate},
        },
    },
};
use gantry_base::ids::{ProjectRef, TokenId};
use http::StatusCode;
use serde_json::json;
use uuid::Uuid;

use super::{Question, all, grant, letter, one, questions, standing};
use crate::support::{Actor, Tenant, TestApp, client::Answer, dawn};

/// A token with its owner's role and its grant.
struct TestToken {
    token: String,
    user: User,
    role: Option<Role>,
}

/// The resources behind the names of the matrix.
pub(super) struct World {
    pub(super) app: TestApp,
    sibling: ProjectRef,
    second: Tenant,
}

impl World {
    pub(super) async fn new() -> Self {
        let app = TestApp::new().await;
        let sibling = app.stub(app.home.id, "sibling").await;
        let second = app.tenant("Second", &app.owner).await;
        // Without them their operations answer 404, as for a hidden project.
        for project in [&app.home.project, &sibling, &second.project] {
            app.request("PATCH", &format!("/v1/projects/{project}/config/auth"))
                .as_(&app.owner)
                .json(&json!({"saml_enabled": true}))
                .send()
                .await
                .expect(200);
            app.mark_restore_point(project).await;
        }
        Self {
            app,
            sibling,
            second,
        }
    }

    /// The stranger and all members of the organization.
    fn callers(&self) -> Vec<(&Actor, Option<Role>)> {
        let members = self.app.members().map(|(actor, role)| (actor, Some(role)));
        [(&self.app.stranger, None)]
            .into_iter()
            .chain(members)
            .collect()
    }

    pub(super) async fn reaches(&self) -> Vec<Reach> {
        let (home, second) = (self.app.home.id, self.second.id);
        let project = async |reference: &ProjectRef| {
            let sql = "select id from projects where ref = $1";
            gantry_base::ids::ProjectId(
                self.app
                    .app
                    .db
                    .query(sql, &[&reference.as_str()])
                    .await
                    .unwrap()[0]
                    .get(0),
            )
        };
        let projects = async |reference| Reach::Projects {
            organization: home,
            projects: vec![project(reference).await],
        };
        vec![
            Reach::Account,
            Reach::Organizations(vec![home]),
            projects(&self.app.home.project).await,
            Reach::Organizations(vec![second]),
            projects(&self.sibling).await,
        ]
    }

    /// Stores the token directly, because the decision is tested and not the creation of tokens.
    async fn holder(&self, (actor, role): (&Actor, Option<Role>), grant: TokenGrant) -> TestToken {
        let minted = scoped::mint(&self.app.app.entropy);
        let (db, now) = (&self.app.app.db, dawn());
        let stored = scoped::create(
            db,
            actor.user,
            "matrix",
            &minted,
            (now, now + TimeDelta::days(300)),
            &grant,
            None,
        )
        .await
        .unwrap();
        let user = User {
            id: actor.user,
            gotrue_id: actor.gotrue_id,
            token: Some(TokenId(stored.id)),
            grant: Some(Arc::new(grant)),
            approval: None,
            activity: None,
            signed_in_at: None,
        };
        TestToken {
            token: minted.expose().to_owned(),
            user,
            role,
        }
    }

    fn classic((actor, role): (&Actor, Option<Role>)) -> TestToken {
        let user = User {
            id: actor.user,
            gotrue_id: Uuid::nil(),
            token: Some(actor.token_id),
            grant: None,
            approval: None,
            activity: None,
            signed_in_at: None,
        };
        TestToken {
            token: actor.token.clone(),
            user,
            role,
        }
    }

    pub(super) async fn simulate(&self, question: &Question, user: &User) -> char {
        let (path, body) = self.path_and_body(question);
        let imagined = SimulatedRequest {
            method: question.endpoint.method.name(),
            path: &path,
            query: question.query,
            body: body.as_bytes(),
        };
        let rehearsal = simulate(
            &self.app.app,
            endpoints::all(),
            user.clone().into(),
            imagined,
        )
        .await
        .unwrap()
        .unwrap();
        assert_eq!(
            (rehearsal.endpoint.id, rehearsal.case.unwrap_or("-")),
            (question.endpoint.id, question.case)
        );
        letter(&rehearsal.outcome)
    }

    pub(super) async fn ask(&self, question: &Question, token: &str) -> Answer {
        let (path, body) = self.path_and_body(question);
        let call = self
            .app
            .request(
                question.endpoint.method.name(),
                &format!("{path}?{}", question.query),
            )
            .token(token);
        if question.endpoint.method.has_body() {
            call.body(body).send().await
        } else {
            call.send().await
        }
    }

    /// Returns path and body of a question about the home organization.
    fn path_and_body(&self, question: &Question) -> (String, String) {
        let Question { endpoint, body, .. } = question;
        let path = endpoint
            .path
            .replace("{ref}", self.app.home.project.as_str())
            .replace("{branch_id_or_ref}", self.app.home.project.as_str())
            .replace("{slug}", self.app.home.slug.as_str());
        let path: Vec<_> = path
            .split('/')
            .map(|segment| {
                if segment.starts_with('{') {
                    "x1"
                } else {
                    segment
                }
            })
            .collect();
        let body = if endpoint.id == "v1-create-a-project" {
            format!(r#"{{"organization_slug": "{}"}}"#, self.app.home.slug)
        } else {
            (*body).to_owned()
        };
        (path.join("/"), body)
    }

    pub(super) fn subject(&self, endpoint: &'static Endpoint, reaches: &[Reach]) -> Subject {
        match (super::subject(endpoint), &reaches[2]) {
            (
                Subject::Project(mut project),
                Reach::Projects {
                    organization,
                    projects,
                },
            ) => {
                (project.id, project.organization) = (projects[0], *organization);
                Subject::Project(project)
            }
            (Subject::Organization(mut organization), _) => {
                organization.id = self.app.home.id;
                Subject::Organization(organization)
            }
            (other, _) => other,
        }
    }
}

/// Returns the letter of the matrix for a response. A request that the handler rejects counts as
/// admitted.
pub(super) fn response_letter(answer: &Answer, head: bool) -> char {
    let message = if head || answer.status.is_success() {
        String::new()
    } else {
        answer.message()
    };
    match answer.status {
        StatusCode::UNAUTHORIZED => '1',
        StatusCode::NOT_FOUND => '4',
        StatusCode::TOO_MANY_REQUESTS => panic!("counted too often for this test: {answer:?}"),
        StatusCode::FORBIDDEN if head => '3',
        StatusCode::FORBIDDEN if message.starts_with("Missing required permission(s): ") => 'p',
        StatusCode::FORBIDDEN if message == "This endpoint requires a user-scoped access token" => {
            'u'
        }
        StatusCode::FORBIDDEN
            if message == "This endpoint does not accept scoped access tokens" =>
        {
            'c'
        }
        StatusCode::FORBIDDEN if message.starts_with("Missing required OAuth scope: ") => 's',
        StatusCode::FORBIDDEN if message == "This endpoint does not accept OAuth access tokens" => {
            'o'
        }
        StatusCode::FORBIDDEN if message.starts_with("Your account does not have") => 'r',
        _ => '.',
    }
}

/// Returns whether the live test covers a token with this set and reach. A token with all
/// permissions is tested for all roles where it reaches, and every token where only the reach can
/// refuse. The pure matrix covers the rest.
fn is_relevant(set: Permissions, place: usize, role: Option<Role>) -> bool {
    match place {
        0..=2 if set == all() => true,
        0..=2 => matches!(role, None | Some(Role::ReadOnly | Role::Owner)),
        _ => role == Some(Role::Owner),
    }
}

/// Returns whether the path names something besides organization and project.
pub(super) fn names_more(endpoint: &Endpoint) -> bool {
    // SAML is off, which the contract answers with 404.
    endpoint.id == "v1-list-all-sso-provider"
        || placeholders(endpoint.path).any(|name| !["ref", "slug"].contains(&name))
}

/// Returns the sets of permissions that can make a difference: all, each named permission, each
/// named group, and one other permission. The pure matrix shows that the others are equivalent.
fn sets(question: &Question) -> Vec<Permissions> {
    let required = question.endpoint.access.required(&question.asked()).0;
    let named: Permissions = required.concat().into_iter().collect();
    let others = [
        Permission::SnippetsRead,
        Permission::PlatformWebhooksOrganizationRead,
        Permission::WorkersRead,
        Permission::WorkersWrite,
    ];
    let singles = named
        .iter()
        .chain(
            others
                .into_iter()
                .filter(|other| !named.contains(*other))
                .take(1),
        )
        .map(one);
    let groups = required
        .iter()
        .filter(|group| group.len() > 1)
        .map(|group| group.iter().copied().collect());
    [all()].into_iter().chain(singles).chain(groups).collect()
}

#[tokio::test]
async fn requests_match_the_decision() {
    let world = World::new().await;
    let reaches = world.reaches().await;
    let mut holders: Vec<(Permissions, Vec<TestToken>)> = Vec::new();
    // Public operations admit every caller, so their responses are not compared.
    let mut questions: Vec<_> = questions()
        .into_iter()
        .filter(|question| question.endpoint.access != Access::Public)
        .collect();
    questions.sort_by_key(|question| question.endpoint.id == "v1-delete-a-project");
    let (mut cells, mut wrong) = (0, Vec::new());
    for question in &questions {
        let subject = world.subject(question.endpoint, &reaches);
        let strict = question
            .endpoint
            .limit
            .windows
            .iter()
            .any(|window| window.requests < 120);
        let classic: Vec<_> = world.callers().into_iter().map(World::classic).collect();
        let mut asked: Vec<&TestToken> = classic.iter().collect();
        let sets = sets(question);
        for set in &sets {
            if !holders.iter().any(|(known, _)| known == set) {
                let mut made = Vec::new();
                for (place, reach) in reaches.iter().enumerate() {
                    for person in world
                        .callers()
                        .into_iter()
                        .filter(|(_, role)| is_relevant(*set, place, *role))
                    {
                        made.push(world.holder(person, grant(*set, reach.clone())).await);
                    }
                }
                holders.push((*set, made));
            }
        }
        asked.extend(
            holders
                .iter()
                .filter(|(known, _)| sets.contains(known))
                .flat_map(|(_, made)| made),
        );
        for holder in asked {
            if strict {
                world.app.advance(60);
            }
            cells += 1;
            let standing: CallerRelation = standing(&holder.user, &subject, holder.role);
            let letter = letter(&decide(
                &Caller::User(holder.user.clone().into()),
                &question.endpoint.access,
                &question.asked(),
                standing,
            ));
            let answer = world.ask(question, &holder.token).await;
            let head = question.endpoint.method.name() == "HEAD";
            let (live, decided) = (
                response_letter(&answer, head),
                if head && "rpucso".contains(letter) {
                    '3'
                } else {
                    letter
                },
            );
            let simulated = world.simulate(question, &holder.user).await;
            // The handler may answer an admitted request with 404.
            let live = if live == '4' && letter == '.' && names_more(question.endpoint) {
                '.'
            } else {
                live
            };
            if live != decided || simulated != letter {
                wrong.push(format!(
                    "{} {:?} {:?}: decided {letter}, simulated {simulated}, got {live}: {answer:?}",
                    question.endpoint.id, holder.role, holder.user.grant
                ));
            }
        }
        // A new window for the next question of this operation.
        world.app.advance(60);
    }
    assert!(
        wrong.is_empty(),
        "{} of {cells}:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(cells > 9_000, "{cells}");
}
