//! Protected projects: approvals of destructive requests, by people on the account pages only.

mod pages;
mod sql;

use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};

use crate::{
    support::{
        Actor, TestApp,
        client::{Answer, Call},
    },
    web::browser::{Browser, olga, signed_in},
};

/// A protected project.
pub(crate) struct Protected {
    pub(crate) app: TestApp,
    pub(crate) project: ProjectRef,
}

impl Protected {
    /// Returns one without a server.
    async fn stub() -> Self {
        let app = TestApp::new().await;
        let project = app.home.project.clone();
        Self::of(app, project).await
    }

    /// Returns one with a server.
    async fn running() -> Self {
        let app = TestApp::running().await;
        let project = app.real_project().await;
        Self::of(app, project).await
    }

    async fn of(app: TestApp, project: ProjectRef) -> Self {
        let protected = Self { app, project };
        protected
            .protect(true, &protected.app.owner)
            .await
            .expect(200);
        protected
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/projects/{}{rest}", self.project)
    }

    fn page(&self, id: &str) -> String {
        format!("/projects/{}/approvals/{id}", self.project)
    }

    async fn protect(&self, protected: bool, actor: &Actor) -> Answer {
        let path = self.path("/protection");
        let call = self.app.request("PUT", &path).as_(actor);
        call.json(&json!({"protected": protected})).send().await
    }

    fn delete(&self, actor: &Actor) -> Call {
        self.app.delete(&self.path("")).as_(actor)
    }

    fn pause(&self, actor: &Actor) -> Call {
        self.app.post(&self.path("/pause")).as_(actor)
    }

    /// Sends a request that is refused, and returns the id of its approval.
    async fn refused(&self, call: Call) -> String {
        approval_of(&call.send().await)
    }

    async fn approvals(&self) -> Vec<Value> {
        let call = self.app.get(&self.path("/approvals"));
        let listed = call.as_(&self.app.read_only).send().await.expect(200);
        listed.json().as_array().unwrap().clone()
    }

    async fn status(&self, id: &str) -> Value {
        let approvals = self.approvals().await;
        let approval = approvals.iter().find(|approval| approval["id"] == id);
        approval.unwrap()["status"].clone()
    }

    /// Decides on the page. Returns the status.
    async fn decide(&self, browser: &mut Browser, id: &str, decision: &str) -> u16 {
        let page = self.page(id);
        let path = format!("{page}/{decision}");
        let answer = browser.submit(&page, &path, &[]).await;
        answer.status.as_u16()
    }

    async fn approve(&self, id: &str) {
        let mut browser = olga(&self.app).await;
        assert_eq!(self.decide(&mut browser, id, "approve").await, 303);
    }

    async fn is_listed(&self) -> bool {
        let call = self.app.get("/v1/projects").as_(&self.app.owner);
        let listed = call.send().await.expect(200).json();
        let mut projects = listed.as_array().unwrap().iter();
        projects.any(|project| project["ref"] == json!(self.project))
    }
}

/// Returns the id of the approval that a refused request needs.
fn approval_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 403, "{answer:?}");
    let error = answer.json()["error"].clone();
    error["approval_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn protected_project_is_deleted_after_another_member_approved() {
    let protected = Protected::stub().await;
    let administrator = &protected.app.administrator;
    let refused = protected.delete(administrator).send().await;
    let id = approval_of(&refused);
    let message = refused.message();
    assert!(
        message.contains("this request deletes the project"),
        "{message}"
    );
    assert!(message.contains(&protected.page(&id)), "{message}");
    assert!(protected.is_listed().await);
    // The same request waits for the same approval.
    assert_eq!(protected.refused(protected.delete(administrator)).await, id);
    let approvals = protected.approvals().await;
    assert_eq!(approvals.len(), 1);
    assert_eq!(approvals[0]["status"], "pending");
    assert_eq!(approvals[0]["operation"], "v1-delete-a-project");
    protected.approve(&id).await;
    assert_eq!(protected.status(&id).await, "approved");
    assert!(protected.is_listed().await);
    protected.delete(administrator).send().await.expect(200);
    assert!(!protected.is_listed().await);
}

#[tokio::test]
async fn projects_without_protection_need_no_approval() {
    let app = TestApp::new().await;
    let path = format!("/v1/projects/{}/protection", app.home.project);
    let got = app.get(&path).as_(&app.read_only).send().await.expect(200);
    assert_eq!(got.json(), json!({"protected": false}));
    app.delete(&format!("/v1/projects/{}", app.home.project))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn approval_is_used_once_by_requests_at_once() {
    let protected = Protected::stub().await;
    let administrator = &protected.app.administrator;
    let id = protected.refused(protected.pause(administrator)).await;
    protected.approve(&id).await;
    let calls = (0..8).map(|_| protected.pause(administrator).send());
    let answers = futures_util::future::join_all(calls).await;
    let refused = answers.iter().filter(|answer| answer.status == 403);
    assert_eq!(refused.count(), 7, "{answers:?}");
    assert_eq!(protected.status(&id).await, "used");
    // The seven others wait for one further approval.
    assert_eq!(protected.approvals().await.len(), 2);
}

#[tokio::test]
async fn two_decisions_at_once_have_one_effect() {
    let protected = Protected::stub().await;
    let id = protected
        .refused(protected.delete(&protected.app.administrator))
        .await;
    let (mut first, mut second) = (olga(&protected.app).await, olga(&protected.app).await);
    let (approved, denied) = tokio::join!(
        protected.decide(&mut first, &id, "approve"),
        protected.decide(&mut second, &id, "deny")
    );
    let mut statuses = [approved, denied];
    statuses.sort_unstable();
    assert_eq!(statuses, [303, 409]);
    let expected = if approved == 303 {
        "approved"
    } else {
        "denied"
    };
    assert_eq!(protected.status(&id).await, expected);
}

#[tokio::test]
async fn tokens_members_without_permission_and_the_requester_cannot_approve() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let id = protected
        .refused(protected.delete(&app.administrator))
        .await;
    for decision in ["approve", "deny"] {
        let path = protected.path(&format!("/approvals/{id}/{decision}"));
        for actor in [&app.owner, &app.administrator] {
            let answer = app.post(&path).as_(actor).send().await.expect(403);
            assert!(answer.message().contains("account pages"), "{answer:?}");
        }
        app.post(&path).as_(&app.stranger).send().await.expect(404);
    }
    let mut developer = signed_in(app, &app.developer).await;
    assert_eq!(protected.decide(&mut developer, &id, "approve").await, 403);
    app.advance(60);
    let mut requester = signed_in(app, &app.administrator).await;
    assert_eq!(protected.decide(&mut requester, &id, "approve").await, 409);
    let mut stranger = signed_in(app, &app.stranger).await;
    stranger.get(&protected.page(&id)).await.expect(404);
    assert_eq!(protected.status(&id).await, "pending");
    // Everyone with the permission may deny.
    assert_eq!(protected.decide(&mut requester, &id, "deny").await, 303);
    assert_eq!(protected.status(&id).await, "denied");
    protected
        .refused(protected.delete(&app.administrator))
        .await;
    assert!(protected.is_listed().await);
}

#[tokio::test]
async fn owner_approves_own_request_only_after_signing_in_again() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let mut browser = olga(app).await;
    app.advance(60);
    let id = protected.refused(protected.delete(&app.owner)).await;
    let page = browser.get(&protected.page(&id)).await.expect(200);
    page.says("Sign in again to approve");
    assert_eq!(protected.decide(&mut browser, &id, "approve").await, 409);
    app.advance(60);
    let mut again = olga(app).await;
    assert_eq!(protected.decide(&mut again, &id, "approve").await, 303);
    protected.delete(&app.owner).send().await.expect(200);
}

#[tokio::test]
async fn approval_counts_for_its_user_request_and_project_only() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let id = protected
        .refused(protected.delete(&app.administrator))
        .await;
    protected.approve(&id).await;
    protected.delete(&app.owner).send().await.expect(403);
    protected.pause(&app.administrator).send().await.expect(403);
    let path = protected.path("?force=true");
    let other = app.delete(&path).as_(&app.administrator).send().await;
    assert_ne!(approval_of(&other), id);
    assert_eq!(protected.status(&id).await, "approved");
    let foreign = format!("/v1/projects/{}/approvals/{id}", app.foreign.project);
    app.get(&foreign)
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
}

#[tokio::test]
async fn approval_and_request_expire() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let id = protected
        .refused(protected.delete(&app.administrator))
        .await;
    protected.approve(&id).await;
    app.advance(15 * 60);
    let second = protected
        .refused(protected.delete(&app.administrator))
        .await;
    assert_ne!(second, id);
    assert_eq!(protected.status(&id).await, "expired");
    app.advance(24 * 60 * 60);
    let mut browser = olga(app).await;
    browser
        .get(&protected.page(&second))
        .await
        .expect(200)
        .says("Expired");
    let path = format!("{}/approve", protected.page(&second));
    let token = browser.get("/projects").await.expect(200).form_token();
    let late = browser.post(&path, &[("form_token", &token)]).await;
    late.expect(409).says("Send the request again");
}

#[tokio::test]
async fn protection_ends_only_with_an_approval() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    protected
        .protect(true, &app.administrator)
        .await
        .expect(200);
    let id = approval_of(&protected.protect(false, &app.administrator).await);
    protected.approve(&id).await;
    let ended = protected
        .protect(false, &app.administrator)
        .await
        .expect(200);
    assert_eq!(ended.json(), json!({"protected": false}));
    protected
        .delete(&app.administrator)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn undecided_requests_of_a_project_are_bounded() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    for number in 0..100 {
        if number % 50 == 0 {
            app.advance(60);
        }
        let path = protected.path(&format!("?number={number}"));
        let refused = app.delete(&path).as_(&app.administrator).send().await;
        refused.expect(403);
    }
    app.advance(60);
    let answer = protected
        .delete(&app.administrator)
        .send()
        .await
        .expect(400);
    assert!(answer.message().contains("wait for approval"), "{answer:?}");
    assert_eq!(protected.approvals().await.len(), 100);
}

#[tokio::test]
async fn request_with_an_idempotency_key_runs_with_it_after_the_approval() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let keyed = || {
        protected
            .delete(&app.administrator)
            .header("idempotency-key", "one")
    };
    let id = protected.refused(keyed()).await;
    protected.approve(&id).await;
    let first = keyed().send().await.expect(200);
    assert_eq!(first.header("idempotency-replayed"), None);
    let again = keyed().send().await.expect(200);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.text(), first.text());
}

#[tokio::test]
async fn approvals_are_events_and_entries_of_the_audit_log() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let id = protected
        .refused(protected.delete(&app.administrator))
        .await;
    protected.approve(&id).await;
    let path = format!(
        "/v1/organizations/{}/events?type=gantry.approval.requested,gantry.approval.decided",
        app.home.slug
    );
    let page = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let events = page["events"].as_array().unwrap();
    let payloads: Vec<_> = events.iter().map(|event| &event["payload"]).collect();
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str()).collect();
    let expected = ["gantry.approval.requested", "gantry.approval.decided"];
    assert_eq!(types, expected.map(Some));
    assert_eq!(payloads[0]["approval_id"], json!(id));
    assert_eq!(
        payloads[0]["actor"]["user_id"],
        json!(app.administrator.gotrue_id)
    );
    assert_eq!(payloads[1]["approved"], json!(true));
    assert_eq!(payloads[1]["actor"]["user_id"], json!(app.owner.gotrue_id));
    let path = format!("/v1/organizations/{}/audit", app.home.slug);
    let page = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    let entries = page["entries"].as_array().unwrap();
    let has = |operation: &str, status: u16| {
        let is = |entry: &&Value| entry["operation"] == operation && entry["status"] == status;
        entries.iter().find(is).is_some()
    };
    assert!(has("v1-delete-a-project", 403), "{entries:?}");
    assert!(has("gantry-approve-a-request", 200), "{entries:?}");
}

#[tokio::test]
async fn project_with_branches_can_be_protected_and_its_branch_cannot() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}/branches");
    let made = app.post(&path).as_(&app.owner);
    let made = made.json(&json!({"branch_name": "develop"})).send().await;
    let made = made.expect(201).json();
    let protected = Protected::of(app, project).await;
    let app = &protected.app;
    let branch = made["project_ref"].as_str().unwrap();
    let path = format!("/v1/projects/{branch}/protection");
    let protect = app.request("PUT", &path).as_(&app.owner);
    let protect = protect.json(&json!({"protected": true})).send().await;
    let message = protect.expect(400).message();
    assert!(
        message.contains("A branch cannot be protected"),
        "{message}"
    );
    // The deletion of all branches is one of the project, and that of a branch is not.
    let all = app.delete(&protected.path("/branches")).as_(&app.owner);
    protected.refused(all).await;
    let path = format!("/v1/branches/{branch}");
    let one = app.delete(&path).as_(&app.owner).send().await;
    assert_ne!(one.status, 403, "{one:?}");
}

#[tokio::test]
async fn logins_that_write_and_passwords_need_an_approval() {
    let protected = Protected::stub().await;
    let app = &protected.app;
    let login = app.post(&protected.path("/cli/login-role"));
    let login = login.as_(&app.developer).json(&json!({"read_only": false}));
    let message = login.send().await.expect(403).message();
    assert!(message.contains("can write to the database"), "{message}");
    let path = protected.path("/database/password");
    let password = app.patch(&path).as_(&app.administrator);
    let password = password.json(&json!({"password": "another horse battery staple"}));
    let message = password.send().await.expect(403).message();
    assert!(message.contains("sets the password"), "{message}");
}
