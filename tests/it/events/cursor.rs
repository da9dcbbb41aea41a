//! Pages and long poll.

use std::time::Duration;

use gantry::platform::{events::hub, notifications};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use super::read;
use crate::support::{Node, TestApp, machine::PATIENCE};

/// Starts the tasks of a node that pass events on.
pub(crate) fn listen(node: &Node) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(notifications::run(node.app.platform.clone()));
    tasks.spawn(hub::run(node.app.platform.clone()));
    tasks
}

/// Waits until a number of requests wait for events on a node.
pub(crate) async fn until_waiting(node: &Node, count: usize) {
    let waiting = async {
        while node.app.events.waiting() != count {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("no request waits");
}

fn numbers(page: &Value) -> Vec<i64> {
    let events = page["events"].as_array().unwrap().iter();
    events
        .map(|event| event["number"].as_i64().unwrap())
        .collect()
}

#[tokio::test]
async fn page_has_events_after_the_cursor_with_the_envelope() {
    let app = TestApp::new().await;
    let projects = [app.create_project("a").await, app.create_project("b").await];
    let attributes = json!({"email": "ada@example.com", "role": "developer"});
    let invite = json!({"data": [{"type": "organization_invitation", "attributes": attributes}]});
    let path = format!("/v2/organizations/{}/members/invitations", app.home.slug);
    let invited = app.post(&path).as_(&app.owner).json(&invite).send().await;
    invited.expect(201);
    let page = read(&app, &app.owner, "?limit=2").await.expect(200).json();
    assert_eq!(
        (numbers(&page), &page["next"], &page["last"]),
        (vec![1, 2], &json!(2), &json!(3))
    );
    let first = &page["events"][0];
    assert_eq!(first["type"], "v1.project.created");
    assert_eq!(first["timestamp"], "2026-11-21T09:15:03.000Z");
    assert_eq!(
        first["payload"],
        json!({
            "organization_slug": app.home.slug,
            "project_ref": projects[0],
            "actor": {"user_id": app.owner.gotrue_id},
            "source": null,
        })
    );
    let rest = read(&app, &app.owner, "?after=2").await.expect(200).json();
    assert_eq!((numbers(&rest), &rest["next"]), (vec![3], &json!(3)));
    assert_eq!(rest["events"][0]["payload"]["project_ref"], Value::Null);
    assert_eq!(
        rest["events"][0]["payload"]["member"],
        json!({"invitation": {"email": "ada@example.com", "role": {"name": "Developer", "projects": null}}})
    );
    for (query, expected) in [
        (format!("?project_ref={}", projects[1]), vec![2]),
        (
            "?type=v1.organization.member.invitation.created".to_owned(),
            vec![3],
        ),
        (
            "?type=v1.project.created,v1.project.paused".to_owned(),
            vec![1, 2],
        ),
        (
            "?type=v1.project.created&type=v1.organization.member.invitation.created&after=1"
                .to_owned(),
            vec![2, 3],
        ),
        ("?type=v1.project.paused".to_owned(), vec![]),
    ] {
        let page = read(&app, &app.owner, &query).await.expect(200).json();
        assert_eq!(
            (numbers(&page), &page["next"]),
            (expected, &json!(3)),
            "{query}"
        );
    }
    for query in [
        "?limit=0",
        "?limit=101",
        "?wait=61",
        "?after=4",
        "?type=v1.unknown",
        "?after=-1",
    ] {
        read(&app, &app.owner, query).await.expect(400);
    }
}

#[tokio::test]
async fn events_are_read_by_members_that_read_the_audit_log_only() {
    let app = TestApp::new().await;
    for (actor, status) in [
        (&app.owner, 200),
        (&app.administrator, 200),
        (&app.stranger, 404),
    ] {
        read(&app, actor, "").await.expect(status);
    }
    let audit = format!("/v1/organizations/{}/audit", app.home.slug);
    for actor in [&app.developer, &app.read_only] {
        let expected = app.get(&audit).as_(actor).send().await.status.as_u16();
        read(&app, actor, "").await.expect(expected);
        read(&app, actor, "?wait=1").await.expect(expected);
    }
}

/// The event is made on one node, and the request waits on another one.
#[tokio::test]
async fn long_poll_returns_when_an_event_comes() {
    let app = TestApp::new().await;
    let other = app.another(2, app.machine.clone());
    let _tasks = listen(&other);
    let path = format!("/v1/organizations/{}/events?wait=60", app.home.slug);
    let make = async {
        until_waiting(&other, 1).await;
        app.create_project("a").await
    };
    let asked = other.get(&path).as_(&app.owner).send();
    let (answer, project) = timeout(PATIENCE, async { tokio::join!(asked, make) })
        .await
        .expect("the request did not return");
    let page = answer.expect(200).json();
    assert_eq!(numbers(&page), [1]);
    assert_eq!(page["events"][0]["payload"]["project_ref"], json!(project));
    until_waiting(&other, 0).await;
}

#[tokio::test]
async fn long_poll_of_a_revoked_token_returns_401() {
    let app = TestApp::new().await;
    let _tasks = listen(&app.node);
    let revoke = async {
        until_waiting(&app.node, 1).await;
        let path = format!("/v1/tokens/{}", app.administrator.token_id);
        let revoked = app.delete(&path).as_(&app.administrator).send().await;
        assert!(revoked.status.is_success(), "{revoked:?}");
    };
    let asked = read(&app, &app.administrator, "?wait=60");
    let (answer, ()) = timeout(PATIENCE, async { tokio::join!(asked, revoke) })
        .await
        .expect("the request did not return");
    answer.expect(401);
}

#[tokio::test]
async fn long_poll_returns_without_events_at_its_end_and_at_a_shutdown() {
    let app = TestApp::new().await;
    let page = read(&app, &app.owner, "?wait=1").await.expect(200).json();
    assert_eq!((numbers(&page), &page["next"]), (vec![], &json!(0)));
    let stop = async {
        until_waiting(&app.node, 1).await;
        app.app.events.close();
    };
    let asked = read(&app, &app.owner, "?wait=60");
    let (answer, ()) = timeout(Duration::from_secs(10), async { tokio::join!(asked, stop) })
        .await
        .expect("the request did not return");
    assert_eq!(numbers(&answer.expect(200).json()), [] as [i64; 0]);
}

#[tokio::test]
async fn waiting_requests_of_one_user_are_bounded() {
    let app = TestApp::new().await;
    let bound = 16;
    let waiting =
        futures_util::future::join_all((0..bound).map(|_| read(&app, &app.owner, "?wait=60")));
    let refused = async {
        until_waiting(&app.node, bound).await;
        read(&app, &app.owner, "?wait=1").await.expect(429);
        read(&app, &app.owner, "").await.expect(200);
        app.app.events.close();
    };
    let (answers, ()) = tokio::join!(waiting, refused);
    for answer in answers {
        answer.expect(200);
    }
}
