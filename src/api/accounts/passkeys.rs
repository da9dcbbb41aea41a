//! Passkeys: adding one, signing in with one, and what there are.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use uuid::Uuid;
use webauthn_rs::{
    Webauthn, WebauthnBuilder,
    prelude::{
        DiscoverableAuthentication, Passkey, PasskeyRegistration, PublicKeyCredential,
        RegisterPublicKeyCredential, Url,
    },
};

use super::Account;
use crate::base::{
    clock::Entropy,
    db,
    db::Db,
    error::{Context, Error},
    ids::UserId,
};

/// How long a challenge can be answered.
const CHALLENGE_LIFETIME: TimeDelta = TimeDelta::minutes(5);
/// Passkeys of one user.
const PASSKEYS_MAX: usize = 20;
/// Characters of a passkey's name.
const NAME_CHARS_MAX: usize = 64;

/// What a browser is asked.
#[derive(Debug, Serialize)]
pub struct PasskeyChallenge {
    /// Names it when it is answered.
    pub id: Uuid,
    /// For `navigator.credentials`.
    pub options: Value,
}

/// A passkey, as its owner sees it.
#[derive(Debug)]
pub struct PasskeySummary {
    /// Row of `passkeys`.
    pub id: i64,
    /// What the owner called it.
    pub name: String,
    /// Where it can be used.
    pub host: String,
    /// When it was added.
    pub created_at: DateTime<Utc>,
    /// When it last signed somebody in.
    pub last_used_at: Option<DateTime<Utc>>,
}

/// Passkeys as they are for one address of this server. A browser keeps them apart by its host, and signs for no other.
pub struct Passkeys {
    webauthn: Webauthn,
    host: String,
}

impl Passkeys {
    /// For the server at this origin. `None` where there are none: an address of numbers has no passkeys.
    pub fn at(origin: &str) -> Option<Self> {
        let url = Url::parse(origin).ok()?;
        let host = url.domain()?.to_owned();
        let webauthn = WebauthnBuilder::new(&host, &url)
            .and_then(|builder| builder.rp_name("Gantry").build())
            .ok()?;
        Some(Self { webauthn, host })
    }

    /// Begins to add one for `account`.
    pub async fn begin_registration(
        &self,
        db: &Db,
        entropy: &Entropy,
        account: &Account,
        now: DateTime<Utc>,
    ) -> Result<PasskeyChallenge, Error> {
        let sql = "select credential_id from passkeys where user_id = $1 and host = $2";
        let rows = db
            .query(sql, &[&account.id.0, &self.host])
            .await
            .context("adding a passkey")?;
        if rows.len() >= PASSKEYS_MAX {
            return Err(Error::Rejected(
                format!("An account can have {PASSKEYS_MAX} passkeys").into(),
            ));
        }
        let known = rows.iter().map(|row| row.get::<_, Vec<u8>>(0)).collect();
        let (options, state) = self
            .webauthn
            .start_passkey_registration(
                account.gotrue_id,
                &account.email,
                &account.username,
                Some(known),
            )
            .context("adding a passkey")?;
        let mut options = serde_json::to_value(&options.public_key).context("adding a passkey")?;
        // Found by the browser itself, so that nobody has to say who they are first.
        options["authenticatorSelection"]["residentKey"] = "required".into();
        options["authenticatorSelection"]["requireResidentKey"] = true.into();
        store_challenge(db, entropy, Some(account.id), &state, now)
            .await
            .map(|id| PasskeyChallenge { id, options })
    }

    /// Adds it, if the browser answered well.
    pub async fn finish_registration(
        &self,
        db: &Db,
        owner: UserId,
        (challenge, answer): (Uuid, &str),
        name: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let name: String = name
            .trim()
            .chars()
            .filter(|c| !c.is_control())
            .take(NAME_CHARS_MAX)
            .collect();
        let state: PasskeyRegistration = take_challenge(db, Some(owner), challenge, now).await?;
        let answer: RegisterPublicKeyCredential =
            serde_json::from_str(answer).map_err(|_| registration_failed())?;
        let passkey = self
            .webauthn
            .finish_passkey_registration(&answer, &state)
            .map_err(|_| registration_failed())?;
        let text = serde_json::to_string(&passkey).context("adding a passkey")?;
        let sql = "insert into passkeys (user_id, credential_id, host, name, passkey, created_at) values ($1, $2, $3, $4, $5, $6)";
        let id: &[u8] = passkey.cred_id();
        let name = if name.is_empty() { "Passkey" } else { &name };
        let written = db
            .query(sql, &[&owner.0, &id, &self.host, &name, &text, &now])
            .await;
        written
            .map(drop)
            .map_err(|error| match db::violated(&error) {
                Some("passkeys_credential_key") => {
                    Error::Rejected("This passkey is known already".into())
                }
                _ => Error::internal("adding a passkey", error),
            })
    }

    /// Begins to sign in whoever it is.
    pub async fn begin_authentication(
        &self,
        db: &Db,
        entropy: &Entropy,
        now: DateTime<Utc>,
    ) -> Result<PasskeyChallenge, Error> {
        let (options, state) = self
            .webauthn
            .start_discoverable_authentication()
            .context("asking for a passkey")?;
        let options = serde_json::to_value(&options.public_key).context("asking for a passkey")?;
        store_challenge(db, entropy, None, &state, now)
            .await
            .map(|id| PasskeyChallenge { id, options })
    }

    /// Whose passkey answered. `None` if none of ours did, or it did not answer what was asked.
    pub async fn authenticate(
        &self,
        db: &Db,
        (challenge, answer): (Uuid, &str),
        now: DateTime<Utc>,
    ) -> Result<Option<UserId>, Error> {
        let state: DiscoverableAuthentication = match take_challenge(db, None, challenge, now).await
        {
            Err(Error::Rejected(_)) => return Ok(None),
            state => state?,
        };
        let Ok(answer) = serde_json::from_str::<PublicKeyCredential>(answer) else {
            return Ok(None);
        };
        let Ok((user, credential)) = self.webauthn.identify_discoverable_authentication(&answer)
        else {
            return Ok(None);
        };
        let sql = "select k.id, k.user_id, k.passkey from passkeys k join users u on u.id = k.user_id \
                   where k.credential_id = $1 and u.gotrue_id = $2 and k.host = $3";
        let rows = db
            .query(sql, &[&credential, &user, &self.host])
            .await
            .context("looking up a passkey")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let mut passkey: Passkey = serde_json::from_str(row.get(2)).context("reading a passkey")?;
        let Ok(result) = self
            .webauthn
            .finish_discoverable_authentication_v2(&answer, state, &passkey)
        else {
            return Ok(None);
        };
        if !result.user_verified() {
            return Ok(None);
        }
        // Its counter tells copies apart.
        passkey.update_credential(&result);
        let text = serde_json::to_string(&passkey).context("noting the use of a passkey")?;
        let sql = "update passkeys set passkey = $2, last_used_at = $3 where id = $1";
        db.query(sql, &[&row.get::<_, i64>(0), &text, &now])
            .await
            .context("noting the use of a passkey")?;
        Ok(Some(UserId(row.get(1))))
    }
}

fn registration_failed() -> Error {
    Error::Rejected("The passkey could not be added. Try again".into())
}

async fn store_challenge(
    db: &Db,
    entropy: &Entropy,
    user: Option<UserId>,
    state: &impl Serialize,
    now: DateTime<Utc>,
) -> Result<Uuid, Error> {
    let id = entropy.uuid();
    let state = serde_json::to_string(state).context("keeping a challenge")?;
    let sql = "with old as (delete from passkey_challenges where created_at <= $5) \
               insert into passkey_challenges (id, user_id, state, created_at) values ($1, $2, $3, $4)";
    let user = user.map(|user| user.0);
    db.query(
        sql,
        &[&id, &user, &state, &now, &(now - CHALLENGE_LIFETIME)],
    )
    .await
    .context("keeping a challenge")?;
    Ok(id)
}

/// What was asked, which is then gone: one answer counts once.
async fn take_challenge<T: DeserializeOwned>(
    db: &Db,
    user: Option<UserId>,
    id: Uuid,
    now: DateTime<Utc>,
) -> Result<T, Error> {
    let sql = "delete from passkey_challenges where id = $1 and user_id is not distinct from $2 and created_at > $3 returning state";
    let user = user.map(|user| user.0);
    let rows = db
        .query(sql, &[&id, &user, &(now - CHALLENGE_LIFETIME)])
        .await
        .context("taking a challenge")?;
    let row = rows.first().ok_or_else(registration_failed)?;
    serde_json::from_str(row.get(0)).context("reading a challenge")
}

/// The passkeys of a user, newest first.
pub async fn list(db: &Db, owner: UserId) -> Result<Vec<PasskeySummary>, Error> {
    let sql = "select id, name, host, created_at, last_used_at from passkeys where user_id = $1 order by created_at desc, id desc";
    let rows = db
        .query(sql, &[&owner.0])
        .await
        .context("listing passkeys")?;
    let known = |row: &tokio_postgres::Row| PasskeySummary {
        id: row.get(0),
        name: row.get(1),
        host: row.get(2),
        created_at: row.get(3),
        last_used_at: row.get(4),
    };
    Ok(rows.iter().map(known).collect())
}

/// Takes one away: it signs nobody in any more. Somebody else's does not exist.
pub async fn remove(db: &Db, owner: UserId, id: i64) -> Result<(), Error> {
    let rows = db
        .query(
            "delete from passkeys where user_id = $1 and id = $2 returning id",
            &[&owner.0, &id],
        )
        .await;
    rows.context("removing a passkey")?
        .first()
        .map(drop)
        .ok_or(Error::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passkeys_are_for_names_only() {
        for origin in [
            "https://gantry.example",
            "http://localhost:8080",
            "https://gantry.example:8443",
        ] {
            assert!(Passkeys::at(origin).is_some(), "{origin}");
        }
        for origin in [
            "http://127.0.0.1:8080",
            "https://[::1]",
            "",
            "http://",
            "gantry.example",
        ] {
            assert!(Passkeys::at(origin).is_none(), "{origin}");
        }
    }
}
