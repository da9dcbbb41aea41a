//! Claim tokens of projects, and their use.

use gantry::platform::access::Role;
use serde_json::json;

use super::{Site, add, keys, newest_entry, organization_of, status};
use crate::support::{Actor, TestApp, client::Answer};

/// Seconds for which a claim token is valid.
const LIFE_SECS: u32 = 24 * 3600;

impl Site {
    fn claim_token(&self) -> String {
        format!("/v1/projects/{}/claim-token", self.project)
    }

    async fn create(&self, actor: &Actor) -> Answer {
        self.app.post(&self.claim_token()).as_(actor).send().await
    }

    async fn secret(&self) -> String {
        let made = self.create(&self.app.owner).await.expect(200).json();
        made["token"].as_str().unwrap().to_owned()
    }

    fn claim_path(&self, secret: &str) -> String {
        let slug = &self.target.slug;
        format!("/v1/organizations/{slug}/project-claim/{secret}")
    }

    async fn look(&self, secret: &str) -> Answer {
        let path = self.claim_path(secret);
        self.app.get(&path).as_(&self.app.stranger).send().await
    }

    async fn claim(&self, secret: &str) -> Answer {
        let path = self.claim_path(secret);
        self.app.post(&path).as_(&self.app.stranger).send().await
    }
}

/// Returns all rows and audit entries as text.
async fn stored(app: &TestApp) -> String {
    let sql = "select (select coalesce(jsonb_agg(to_jsonb(c)), '[]') from project_claims c)::text
               || (select coalesce(jsonb_agg(to_jsonb(e)), '[]') from audit_entries e)::text";
    app.app.db.query(sql, &[]).await.unwrap()[0].get(0)
}

#[tokio::test]
async fn claim_by_owner_of_another_organization_moves_the_project_once() {
    let site = Site::new().await;
    let app = &site.app;
    let made = site.create(&app.owner).await.expect(200).json();
    let secret = made["token"].as_str().unwrap();
    let alias = made["token_alias"].as_str().unwrap();
    assert!(secret.starts_with(&alias[..17]) && secret.ends_with(&alias[20..]));
    assert_eq!(made["expires_at"], "2026-11-22T09:15:03.000Z");
    let shown = app
        .get(&site.claim_token())
        .as_(&app.read_only)
        .send()
        .await;
    let mut expected = made.clone();
    expected.as_object_mut().unwrap().remove("token");
    assert_eq!(shown.expect(200).json(), expected);
    assert!(!stored(app).await.contains(secret));

    let looked = site.look(secret).await.expect(200).json();
    assert_eq!(
        looked["project"],
        json!({"ref": site.project, "name": "moving"})
    );
    assert_eq!(looked["created_by"], json!(app.owner.gotrue_id));
    let preview = &looked["preview"];
    assert_eq!(
        (&preview["valid"], &preview["errors"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(preview["members_exceeding_free_project_limit"], json!([]));
    assert_eq!(keys(preview, "warnings"), ["credentials_stay_valid"]);
    assert_eq!(organization_of(app, &site.project).await, app.home.id);

    let answer = site.claim(secret).await.expect(204);
    assert_eq!(answer.text(), "");
    let path = format!("/v1/projects/{}", site.project);
    assert_eq!(status(app, &path, &app.developer).await, 404);
    assert_eq!(status(app, &path, &app.stranger).await, 200);
    let (operation, given) = newest_entry(app, app.home.id).await;
    assert_eq!(operation, "v1-claim-project-for-organization");
    assert_eq!(given["project"]["organization"], json!(site.target.slug));
    let (operation, received) = newest_entry(app, site.target.id).await;
    assert_eq!(operation, "v1-claim-project-for-organization");
    assert_eq!(received["ref"], json!(site.project));
    assert!(!stored(app).await.contains(secret));

    // It is used up.
    site.look(secret).await.expect(404);
    site.claim(secret).await.expect(404);
    app.get(&site.claim_token())
        .as_(&app.stranger)
        .send()
        .await
        .expect(404);
}

#[tokio::test]
async fn claim_with_expired_replaced_deleted_or_foreign_token_is_rejected() {
    let site = Site::new().await;
    let app = &site.app;
    let replaced = site.secret().await;
    let deleted = site.secret().await;
    site.look(&replaced).await.expect(404);
    site.look(&deleted).await.expect(200);
    let path = site.claim_token();
    for _ in 0..2 {
        app.delete(&path).as_(&app.owner).send().await.expect(204);
    }
    let none = app.get(&path).as_(&app.owner).send().await.expect(404);
    assert!(none.message().contains("Create one"), "{none:?}");
    let expired = site.secret().await;
    app.advance(LIFE_SECS - 1);
    site.look(&expired).await.expect(200);
    app.advance(1);
    app.get(&path).as_(&app.owner).send().await.expect(404);
    let unknown = format!("gantry_claim_{}", "0".repeat(40));
    for secret in [&replaced, &deleted, &expired, &unknown] {
        site.look(secret).await.expect(404);
        let refused = site.claim(secret).await.expect(404);
        assert!(refused.message().starts_with("Project claim not found"));
    }
    let malformed = site.claim(&app.stranger.token).await.expect(400);
    assert!(malformed.message().starts_with("token: expected"));
    // The removal of the project ends its token.
    let last = site.secret().await;
    app.delete(&format!("/v1/projects/{}", site.project))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    site.claim(&last).await.expect(404);
}

#[tokio::test]
async fn claim_tokens_are_for_owners_of_both_organizations() {
    let site = Site::new().await;
    let app = &site.app;
    let path = site.claim_token();
    for (actor, role) in app.members() {
        let [created, shown, deleted] = if role == Role::Owner {
            [200, 200, 204]
        } else {
            [403, 404, 403]
        };
        site.create(actor).await.expect(created);
        app.get(&path).as_(actor).send().await.expect(shown);
        app.delete(&path).as_(actor).send().await.expect(deleted);
    }
    site.create(&app.stranger).await.expect(404);
    let secret = site.secret().await;
    // The owner of the project is a developer of the target only.
    let target = site.claim_path(&secret);
    for call in [app.get(&target), app.post(&target)] {
        call.as_(&app.owner).send().await.expect(403);
    }
    for call in [app.get(&target), app.post(&target)] {
        call.as_(&app.administrator).send().await.expect(404);
    }
    let home = format!("/v1/organizations/{}/project-claim/{secret}", app.home.slug);
    let same = app.get(&home).as_(&app.owner).send().await.expect(200);
    let errors = keys(&same.json()["preview"], "errors");
    assert_eq!(errors, ["target_organization_same"]);
    app.post(&home).as_(&app.owner).send().await.expect(400);
    site.claim(&secret).await.expect(204);
}

#[tokio::test]
async fn claim_ends_with_the_role_of_its_creator() {
    let site = Site::new().await;
    let app = &site.app;
    add(app, app.home.id, &app.administrator, Role::Owner).await;
    let secret = site.secret().await;
    add(app, app.home.id, &app.owner, Role::Administrator).await;
    let looked = site.look(&secret).await.expect(200).json();
    assert_eq!(looked["preview"]["valid"], json!(false));
    assert_eq!(
        keys(&looked["preview"], "errors"),
        ["source_owner_required"]
    );
    site.claim(&secret).await.expect(400);
    assert_eq!(organization_of(app, &site.project).await, app.home.id);
    // A rejected claim does not use up the token.
    add(app, app.home.id, &app.owner, Role::Owner).await;
    site.claim(&secret).await.expect(204);
}

#[tokio::test]
async fn transfer_withdraws_the_claim_token() {
    let site = Site::new().await;
    let secret = site.secret().await;
    site.transfer(&site.app.owner).await.expect(200);
    site.claim(&secret).await.expect(404);
}

#[tokio::test]
async fn concurrent_claims_with_one_token_succeed_once() {
    let site = Site::new().await;
    let app = &site.app;
    let other = app.tenant("Other", &app.stranger).await;
    let secret = site.secret().await;
    let path = format!("/v1/organizations/{}/project-claim/{secret}", other.slug);
    let (first, second) = tokio::join!(
        site.claim(&secret),
        app.post(&path).as_(&app.stranger).send()
    );
    let mut statuses = [first.status.as_u16(), second.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [204, 404]);
    let target = if first.status == 204 {
        site.target.id
    } else {
        other.id
    };
    assert_eq!(organization_of(app, &site.project).await, target);
}
