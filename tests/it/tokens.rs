//! Scoped tokens in the whole application: reach, permissions, networks and validity.

mod children;
mod exchange;
mod issuer;
mod management;
mod permissions;
mod reach;
mod usage;

use chrono::{DateTime, TimeDelta, Utc};
use gantry::{
    api::tokens::scoped::{self, TokenDraft, TokenResources},
    platform::access::TokenGrant,
};
use gantry_base::ids::{ProjectRef, TokenId};

use crate::support::{Actor, TestApp, client::Call, dawn};

/// Returns a draft with this reach and these permissions.
pub(crate) fn draft(resources: TokenResources, permissions: &[&str]) -> TokenDraft {
    TokenDraft {
        resources,
        permissions: permissions.iter().map(ToString::to_string).collect(),
        networks: Vec::new(),
        not_before: None,
    }
}

pub(crate) fn projects(references: &[&ProjectRef]) -> TokenResources {
    TokenResources::Projects(
        references
            .iter()
            .map(|reference| (*reference).clone())
            .collect(),
    )
}

fn week() -> DateTime<Utc> {
    dawn() + TimeDelta::days(7)
}

/// Creates a scoped token of `actor`.
pub(crate) async fn scoped(app: &TestApp, actor: &Actor, draft: TokenDraft) -> (String, TokenId) {
    let grant = draft.resolve(&app.app.db, actor.user).await.unwrap();
    store(app, actor, &grant).await
}

async fn store(app: &TestApp, actor: &Actor, grant: &TokenGrant) -> (String, TokenId) {
    let minted = scoped::mint(&app.app.entropy);
    let token = scoped::create(
        &app.app.db,
        actor.user,
        "scoped",
        &minted,
        (app.app.clock.now(), week()),
        grant,
        None,
    )
    .await
    .unwrap();
    (minted.expose().to_owned(), TokenId(token.id))
}

async fn refs(call: Call) -> Vec<String> {
    let answer = call.send().await.expect(200).json();
    answer
        .as_array()
        .unwrap()
        .iter()
        .map(|project| project["ref"].as_str().unwrap().to_owned())
        .collect()
}
