//! Storage between the steps of creating a token: drafts for the review, and new tokens until they
//! are shown.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::TokenId;
use secrecy::SecretString;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    platform::error::{Context, Error},
    web::visitor::Visitor,
};

/// Lifetime of a draft.
const DRAFT_TTL: TimeDelta = TimeDelta::hours(1);
/// Maximum number of drafts per user. The oldest are deleted.
const DRAFTS_MAX: i64 = 20;
/// Maximum size of a draft, in bytes. The table has the same check.
const DRAFT_BYTES_MAX: usize = 65_536;
/// Time within which a new token can be shown.
const REVEAL_TTL: TimeDelta = TimeDelta::minutes(10);

/// Saves a draft and returns its id.
pub(super) async fn save(
    visitor: &Visitor,
    draft: &Value,
    now: DateTime<Utc>,
) -> Result<Uuid, Error> {
    let text = draft.to_string();
    if text.len() > DRAFT_BYTES_MAX {
        return Err(Error::TooLarge {
            bytes_max: DRAFT_BYTES_MAX,
        });
    }
    let db = &visitor.context.db;
    let id = visitor.context.entropy.uuid();
    let sql = "delete from token_drafts where created_at <= $2 or (user_id = $1 and id not in \
               (select id from token_drafts where user_id = $1 order by created_at desc limit $3))";
    db.query(
        sql,
        &[&visitor.user.id.0, &(now - DRAFT_TTL), &(DRAFTS_MAX - 1)],
    )
    .await
    .context("deleting old token drafts")?;
    let sql = "insert into token_drafts (id, user_id, draft, created_at) values ($1, $2, $3, $4)";
    db.query(sql, &[&id, &visitor.user.id.0, &text, &now])
        .await
        .context("saving a token draft")?;
    Ok(id)
}

/// Returns a draft of the visitor.
pub(super) async fn find(visitor: &Visitor, id: Uuid) -> Result<Value, Error> {
    query_draft(
        visitor,
        "select draft from token_drafts where id = $1 and user_id = $2 and created_at > $3",
        id,
    )
    .await
}

/// Returns and deletes a draft, so that a form that is submitted twice creates one token.
pub(super) async fn take(visitor: &Visitor, id: Uuid) -> Result<Value, Error> {
    query_draft(visitor, "delete from token_drafts where id = $1 and user_id = $2 and created_at > $3 returning draft", id).await
}

async fn query_draft(visitor: &Visitor, sql: &'static str, id: Uuid) -> Result<Value, Error> {
    let since = visitor.context.clock.now() - DRAFT_TTL;
    let rows = visitor
        .context
        .db
        .query(sql, &[&id, &visitor.user.id.0, &since])
        .await
        .context("reading a token draft")?;
    serde_json::from_str(rows.first().ok_or(Error::NotFound)?.get(0))
        .context("reading a token draft")
}

/// Stores a new token encrypted, for the session of the visitor.
pub(super) async fn save_reveal(
    visitor: &Visitor,
    token: TokenId,
    secret: &SecretString,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let context = &visitor.context;
    let sealed =
        context
            .settings
            .sealing
            .seal(&context.entropy, &associated_data(token), secret)?;
    let sql = "with old as (delete from token_reveals where created_at <= $5) \
               insert into token_reveals (token_id, session, sealed, created_at) values ($1, $2, $3, $4)";
    let session = visitor.secret.digest();
    context
        .db
        .query(
            sql,
            &[
                &token.0,
                &session.as_bytes(),
                &sealed,
                &now,
                &(now - REVEAL_TTL),
            ],
        )
        .await
        .context("storing a new token")?;
    Ok(())
}

/// Returns and deletes a new token, if this session has not seen it yet.
pub(super) async fn take_reveal(
    visitor: &Visitor,
    token: TokenId,
) -> Result<Option<SecretString>, Error> {
    let context = &visitor.context;
    let sql = "delete from token_reveals where token_id = $1 and session = $2 and created_at > $3 returning sealed";
    let session = visitor.secret.digest();
    let since = context.clock.now() - REVEAL_TTL;
    let rows = context
        .db
        .query(sql, &[&token.0, &session.as_bytes(), &since])
        .await
        .context("showing a new token")?;
    rows.first()
        .map(|row| {
            context
                .settings
                .sealing
                .open(&associated_data(token), row.get(0))
        })
        .transpose()
}

/// Returns the associated data of the encryption: the ciphertext of one token opens no other.
fn associated_data(token: TokenId) -> String {
    format!("reveal of token {token}")
}
