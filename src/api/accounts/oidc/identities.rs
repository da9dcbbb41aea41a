//! Links between identities of the provider and accounts.

use chrono::{DateTime, Utc};
use gantry_base::ids::UserId;
use serde_json::json;
use uuid::Uuid;

use super::{OidcIdentity, OidcProvider};
use crate::platform::{
    access::User,
    audit::Recorder,
    db::Db,
    error::{Context, Error},
};

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityLookup {
    /// The account linked to the identity.
    Found(UserId),
    /// The provider has not verified the email address.
    UnverifiedEmail,
    /// No account matches.
    NotFound,
}

/// Returns the account of an identity: the linked one, or on the first sign-in the account with the
/// verified email address in a trusted domain, which is then linked. `recorder` creates the audit
/// recorder for a new link.
pub async fn find(
    db: &Db,
    provider: &OidcProvider,
    person: &OidcIdentity,
    now: DateTime<Utc>,
    recorder: impl FnOnce(&User) -> Recorder + Send,
) -> Result<IdentityLookup, Error> {
    // PostgreSQL text cannot contain U+0000.
    if person.subject.contains('\0')
        || person
            .email
            .as_ref()
            .is_some_and(|email| email.contains('\0'))
    {
        return Ok(IdentityLookup::NotFound);
    }
    let sql = "select user_id from identities where issuer = $1 and subject = $2";
    let rows = db
        .query(sql, &[&provider.issuer(), &person.subject])
        .await
        .context("looking up an identity")?;
    if let Some(row) = rows.first() {
        return Ok(IdentityLookup::Found(UserId(row.get(0))));
    }
    let Some(email) = person.email.as_deref() else {
        return Ok(IdentityLookup::NotFound);
    };
    if !person.verified {
        return Ok(IdentityLookup::UnverifiedEmail);
    }
    if !provider.vouches_for(email) {
        return Ok(IdentityLookup::NotFound);
    }
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("linking an identity")?;
    // An account is linked only once: if the provider reassigns the address, the account stays with
    // its first identity.
    let sql = "insert into identities (issuer, subject, user_id, created_at) \
               select $1, $2, id, $4 from users \
               where lower(email) = lower($3) and service_of is null \
               on conflict do nothing returning user_id";
    let row = transaction
        .query_opt(sql, &[&provider.issuer(), &person.subject, &email, &now])
        .await
        .context("linking an identity")?;
    let Some(id) = row.map(|row| UserId(row.get(0))) else {
        return Ok(IdentityLookup::NotFound);
    };
    let row = transaction
        .query_one("select gotrue_id from users where id = $1", &[&id.0])
        .await
        .context("linking an identity")?;
    let user = User {
        id,
        gotrue_id: row.get::<_, Uuid>(0),
        token: None,
        grant: None,
        approval: None,
        activity: None,
        signed_in_at: None,
    };
    let after = json!({"issuer": provider.issuer(), "subject": person.subject});
    recorder(&user)
        .write_in(&transaction, 303, (None, Some(after)), now)
        .await?;
    transaction.commit().await.context("linking an identity")?;
    Ok(IdentityLookup::Found(id))
}
