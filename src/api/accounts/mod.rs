//! User accounts and their sign-in methods.

use chrono::{DateTime, Utc};
use gantry_base::{clock::Entropy, ids::UserId};
use serde_json::json;
use uuid::Uuid;

pub mod oidc;
pub mod operations;
pub mod passkeys;
pub mod passwords;
pub mod sign_in;
pub mod sign_in_links;

use crate::platform::{
    audit::Recorder,
    db::{self, Db},
    error::{Context, Error},
};

/// A user account.
#[derive(Debug, Clone)]
pub struct Account {
    /// Row of `users`.
    pub id: UserId,
    /// The id of the user in other services.
    pub gotrue_id: Uuid,
    /// Email address, unique regardless of case.
    pub email: String,
    /// Display name.
    pub username: String,
}

/// Creates a user. The username defaults to the local part of the email address.
pub async fn create(
    db: &Db,
    entropy: &Entropy,
    email: &str,
    username: Option<&str>,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<Account, Error> {
    let local = local_part(email)?;
    let gotrue_id = entropy.uuid();
    let username = username.unwrap_or(local);
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("creating a user")?;
    let sql = "insert into users (gotrue_id, email, username, created_at) values ($1, $2, $3, $4) returning id";
    let row = transaction
        .query_one(sql, &[&gotrue_id, &email, &username, &now])
        .await
        .map_err(|error| match db::violated(&error) {
            Some("users_email_key") => {
                Error::Conflict(format!("A user with the address {email} exists").into())
            }
            _ => Error::internal("creating a user", error),
        })?;
    let id = UserId(row.get(0));
    if let Some(audit) = audit {
        let after = json!({"id": gotrue_id, "email": email, "username": username});
        audit
            .write_in(&transaction, 201, (None, Some(after)), now)
            .await?;
    }
    transaction.commit().await.context("creating a user")?;
    Ok(Account {
        id,
        gotrue_id,
        email: email.to_owned(),
        username: username.to_owned(),
    })
}

/// Returns the local part of an email address, or an error if the text is not one.
pub fn local_part(email: &str) -> Result<&str, Error> {
    const BYTES_MAX: usize = 320;
    let parts = email
        .split_once('@')
        .filter(|(local, domain)| !local.is_empty() && domain.contains('.'));
    let parts = parts.filter(|_| !email.contains(char::is_whitespace) && email.len() <= BYTES_MAX);
    parts
        .map(|(local, _)| local)
        .ok_or_else(|| Error::invalid("email", "expected an address such as ada@example.com"))
}

/// Returns the user with this email address, regardless of case. Service identities are not found.
pub async fn by_email(db: &Db, email: &str) -> Result<Account, Error> {
    let sql = "select id, gotrue_id, email, username from users \
               where lower(email) = lower($1) and service_of is null";
    let rows = db.query(sql, &[&email]).await;
    one(&rows.context("looking up a user")?)
}

/// Returns the user with this id.
pub async fn by_id(db: &Db, id: UserId) -> Result<Account, Error> {
    let rows = db
        .query(
            "select id, gotrue_id, email, username from users where id = $1",
            &[&id.0],
        )
        .await;
    one(&rows.context("looking up a user")?)
}

fn one(rows: &[tokio_postgres::Row]) -> Result<Account, Error> {
    let row = rows.first().ok_or(Error::NotFound)?;
    Ok(Account {
        id: UserId(row.get(0)),
        gotrue_id: row.get(1),
        email: row.get(2),
        username: row.get(3),
    })
}
