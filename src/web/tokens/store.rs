//! What waits between the steps of making a token: what is to be looked over, and what is to be shown once.

use chrono::{DateTime, TimeDelta, Utc};
use secrecy::SecretString;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    base::{
        error::{Context, Error},
        ids::TokenId,
    },
    web::Visitor,
};

/// How long a draft can be gone on with.
const DRAFT_LIFE: TimeDelta = TimeDelta::hours(1);
/// Drafts of one user; the oldest go.
const DRAFTS_MAX: i64 = 20;
/// Longest draft. The check of the table says the same.
const DRAFT_BYTES_MAX: usize = 65_536;
/// How long a new token waits to be shown.
const REVEAL_LIFE: TimeDelta = TimeDelta::minutes(10);

/// Keeps a draft, and answers its name.
pub(super) async fn keep(
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
    let (db, id) = (&visitor.context.db, visitor.context.entropy.uuid());
    let sql = "delete from token_drafts where created_at <= $2 or (user_id = $1 and id not in \
               (select id from token_drafts where user_id = $1 order by created_at desc limit $3))";
    db.query(
        sql,
        &[&visitor.user.id.0, &(now - DRAFT_LIFE), &(DRAFTS_MAX - 1)],
    )
    .await
    .context("clearing drafts of tokens")?;
    let sql = "insert into token_drafts (id, user_id, draft, created_at) values ($1, $2, $3, $4)";
    db.query(sql, &[&id, &visitor.user.id.0, &text, &now])
        .await
        .context("keeping the draft of a token")?;
    Ok(id)
}

/// A draft of the visitor's.
pub(super) async fn look(visitor: &Visitor, id: Uuid) -> Result<Value, Error> {
    draft(
        visitor,
        "select draft from token_drafts where id = $1 and user_id = $2 and created_at > $3",
        id,
    )
    .await
}

/// The same, which is then gone: of two presses one makes a token.
pub(super) async fn take(visitor: &Visitor, id: Uuid) -> Result<Value, Error> {
    draft(visitor, "delete from token_drafts where id = $1 and user_id = $2 and created_at > $3 returning draft", id).await
}

async fn draft(visitor: &Visitor, sql: &'static str, id: Uuid) -> Result<Value, Error> {
    let since = visitor.context.clock.now() - DRAFT_LIFE;
    let rows = visitor
        .context
        .db
        .query(sql, &[&id, &visitor.user.id.0, &since])
        .await
        .context("reading the draft of a token")?;
    serde_json::from_str(rows.first().ok_or(Error::NotFound)?.get(0))
        .context("reading the draft of a token")
}

/// Lets the session that asks see a new token once.
pub(super) async fn hide(
    visitor: &Visitor,
    token: TokenId,
    secret: &SecretString,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let context = &visitor.context;
    let sealed = context
        .settings
        .sealing
        .seal(&context.entropy, &place(token), secret)?;
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
                &(now - REVEAL_LIFE),
            ],
        )
        .await
        .context("keeping a new token")?;
    Ok(())
}

/// The new token, if this session has not seen it yet.
pub(super) async fn reveal(
    visitor: &Visitor,
    token: TokenId,
) -> Result<Option<SecretString>, Error> {
    let context = &visitor.context;
    let sql = "delete from token_reveals where token_id = $1 and session = $2 and created_at > $3 returning sealed";
    let (session, since) = (visitor.secret.digest(), context.clock.now() - REVEAL_LIFE);
    let rows = context
        .db
        .query(sql, &[&token.0, &session.as_bytes(), &since])
        .await
        .context("showing a new token")?;
    rows.first()
        .map(|row| context.settings.sealing.open(&place(token), row.get(0)))
        .transpose()
}

fn place(token: TokenId) -> String {
    format!("reveal of token {token}")
}
