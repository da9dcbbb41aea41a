//! Passkeys (WebAuthn): registration, authentication and management.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{clock::Entropy, ids::UserId};
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
use crate::platform::{
    db::{self, Db},
    error::{Context, Error},
};

/// Time to answer a challenge.
const CHALLENGE_LIFETIME: TimeDelta = TimeDelta::minutes(5);
/// Maximum number of passkeys per user.
const PASSKEYS_MAX: usize = 20;
/// Maximum length of a passkey's name in characters.
const NAME_CHARS_MAX: usize = 64;

/// A `WebAuthn` challenge.
#[derive(Debug, Serialize)]
pub struct PasskeyChallenge {
    /// Id that the response refers to.
    pub id: Uuid,
    /// Options for `navigator.credentials`.
    pub options: Value,
}

/// A passkey as its owner sees it.
#[derive(Debug)]
pub struct PasskeySummary {
    /// Row of `passkeys`.
    pub id: i64,
    /// Name chosen by the owner.
    pub name: String,
    /// Host name that the passkey is bound to.
    pub host: String,
    /// Time of registration.
    pub created_at: DateTime<Utc>,
    /// Time of the last sign-in with it.
    pub last_used_at: Option<DateTime<Utc>>,
}

/// The `WebAuthn` relying party for one origin of this server. Browsers bind a passkey to its host.
pub struct Passkeys {
    webauthn: Webauthn,
    host: String,
}

impl Passkeys {
    /// Returns the relying party for an origin, or `None` if its host is an IP address, which
    /// `WebAuthn` does not permit.
    pub fn at(origin: &str) -> Option<Self> {
        let url = Url::parse(origin).ok()?;
        let host = url.domain()?.to_owned();
        let webauthn = WebauthnBuilder::new(&host, &url)
            .and_then(|builder| builder.rp_name("Gantry").build())
            .ok()?;
        Some(Self { webauthn, host })
    }

    /// Begins the registration of a passkey for `account`.
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
        // A discoverable credential allows sign-in without an email address.
        options["authenticatorSelection"]["residentKey"] = "required".into();
        options["authenticatorSelection"]["requireResidentKey"] = true.into();
        store_challenge(db, entropy, Some(account.id), &state, now)
            .await
            .map(|id| PasskeyChallenge { id, options })
    }

    /// Verifies the response of the browser and stores the passkey.
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
                    Error::Rejected("This passkey is already registered".into())
                }
                _ => Error::internal("adding a passkey", error),
            })
    }

    /// Begins a sign-in with any discoverable passkey.
    pub async fn begin_authentication(
        &self,
        db: &Db,
        entropy: &Entropy,
        now: DateTime<Utc>,
    ) -> Result<PasskeyChallenge, Error> {
        let (options, state) = self
            .webauthn
            .start_discoverable_authentication()
            .context("beginning a passkey sign-in")?;
        let options =
            serde_json::to_value(&options.public_key).context("beginning a passkey sign-in")?;
        store_challenge(db, entropy, None, &state, now)
            .await
            .map(|id| PasskeyChallenge { id, options })
    }

    /// Verifies a response and returns the user of the passkey. Returns `None` if the passkey is
    /// unknown or the response is invalid.
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
        // The signature counter detects cloned authenticators.
        passkey.update_credential(&result);
        let text = serde_json::to_string(&passkey).context("recording the use of a passkey")?;
        let sql = "update passkeys set passkey = $2, last_used_at = $3 where id = $1";
        db.query(sql, &[&row.get::<_, i64>(0), &text, &now])
            .await
            .context("recording the use of a passkey")?;
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
    let state = serde_json::to_string(state).context("storing a challenge")?;
    let sql = "with old as (delete from passkey_challenges where created_at <= $5) \
               insert into passkey_challenges (id, user_id, state, created_at) values ($1, $2, $3, $4)";
    let user = user.map(|user| user.0);
    db.query(
        sql,
        &[&id, &user, &state, &now, &(now - CHALLENGE_LIFETIME)],
    )
    .await
    .context("storing a challenge")?;
    Ok(id)
}

/// Returns and deletes a challenge, so that it can be answered only once.
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

/// Lists the passkeys of a user, newest first.
pub async fn list(db: &Db, owner: UserId) -> Result<Vec<PasskeySummary>, Error> {
    let sql = "select id, name, host, created_at, last_used_at from passkeys where user_id = $1 order by created_at desc, id desc";
    let rows = db
        .query(sql, &[&owner.0])
        .await
        .context("listing passkeys")?;
    Ok(rows
        .iter()
        .map(|row| PasskeySummary {
            id: row.get(0),
            name: row.get(1),
            host: row.get(2),
            created_at: row.get(3),
            last_used_at: row.get(4),
        })
        .collect())
}

/// Deletes a passkey of the user.
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
    fn relying_party_requires_domain_name() {
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
