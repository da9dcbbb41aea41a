//! Password hashing with bounded concurrency. Verification takes the same time for unknown
//! accounts.

use std::time::Duration;

use argon2::{Argon2, PasswordHasher, PasswordVerifier};
use chrono::{DateTime, Utc};
use gantry_base::{clock::Entropy, ids::UserId};
use secrecy::{ExposeSecret, SecretString};
use tokio::{sync::Semaphore, time::timeout};
use zxcvbn::{Score, zxcvbn};

use super::Account;
use crate::platform::{
    db::Db,
    error::{Context, Error},
};

/// Limit on concurrent hashes. Each uses a core for tens of milliseconds and 19 MiB.
static HASH_PERMITS: Semaphore = Semaphore::const_new(2);
/// Maximum wait for a permit to hash.
const HASH_WAIT_MAX: Duration = Duration::from_secs(5);
/// Length of a password in characters.
const PASSWORD_CHARS: std::ops::RangeInclusive<usize> = 8..=256;
/// Hash that is verified for unknown accounts, so that the response time is the same. No password
/// matches it.
const DUMMY_HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Runs blocking work outside the event loop after acquiring a permit.
async fn with_hash_permit<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let _permit = timeout(HASH_WAIT_MAX, HASH_PERMITS.acquire())
        .await
        .map_err(|_| Error::Unavailable {
            what: "Too many sign-ins at the same time".into(),
            retry: Duration::from_secs(2),
        })?
        .context("waiting to hash a password")?;
    tokio::task::spawn_blocking(work)
        .await
        .context("hashing a password")
}

/// Returns the user with this email address and password. Takes as long for unknown addresses.
pub async fn check(db: &Db, email: &str, password: SecretString) -> Result<Option<UserId>, Error> {
    let sql = "select u.id, p.hash from users u join passwords p on p.user_id = u.id where lower(u.email) = lower($1)";
    let rows = db
        .query(sql, &[&email])
        .await
        .context("looking up a password")?;
    let found = rows
        .first()
        .map(|row| (UserId(row.get(0)), row.get::<_, String>(1)));
    let hash = found
        .as_ref()
        .map_or_else(|| DUMMY_HASH.to_owned(), |(_, hash)| hash.clone());
    let matches = with_hash_permit(move || {
        Argon2::default()
            .verify_password(password.expose_secret().as_bytes(), hash.as_str())
            .is_ok()
    })
    .await?;
    Ok(found.filter(|_| matches).map(|(user, _)| user))
}

/// Sets or replaces the password of a user.
pub async fn set(
    db: &Db,
    entropy: &Entropy,
    owner: &Account,
    password: SecretString,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let known = [
        owner.email.clone(),
        owner.username.clone(),
        "gantry".to_owned(),
    ];
    let salt = entropy.bytes::<16>();
    let hash = with_hash_permit(move || {
        let password = password.expose_secret();
        check_strength(password, &known)?;
        let hash = Argon2::default()
            .hash_password_with_salt(password.as_bytes(), &salt)
            .context("hashing a password")?;
        Ok::<_, Error>(hash.to_string())
    })
    .await??;
    let sql = "insert into passwords (user_id, hash, changed_at) values ($1, $2, $3) \
               on conflict (user_id) do update set hash = excluded.hash, changed_at = excluded.changed_at";
    db.query(sql, &[&owner.id.0, &hash, &now])
        .await
        .context("storing a password")?;
    Ok(())
}

/// Returns the time of the last password change, if the user has a password.
pub async fn changed_at(db: &Db, owner: UserId) -> Result<Option<DateTime<Utc>>, Error> {
    let rows = db
        .query(
            "select changed_at from passwords where user_id = $1",
            &[&owner.0],
        )
        .await
        .context("looking up a password")?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// Rejects passwords that are too short, too long or easy to guess (zxcvbn).
fn check_strength(password: &str, known: &[String]) -> Result<(), Error> {
    let length = password.chars().count();
    if !PASSWORD_CHARS.contains(&length) {
        return Err(Error::invalid(
            "password",
            format!(
                "Use {} to {} characters.",
                PASSWORD_CHARS.start(),
                PASSWORD_CHARS.end()
            ),
        ));
    }
    let known: Vec<&str> = known
        .iter()
        .flat_map(|text| text.split(['@', '.']).chain([text.as_str()]))
        .collect();
    let estimate = zxcvbn(password, &known);
    if estimate.score() >= Score::Three {
        return Ok(());
    }
    let feedback = estimate.feedback();
    let warning = feedback
        .and_then(zxcvbn::feedback::Feedback::warning)
        .map(|warning| warning.to_string());
    let advice = feedback
        .and_then(|feedback| feedback.suggestions().first())
        .map(ToString::to_string);
    let hints: Vec<_> = warning.into_iter().chain(advice).collect();
    let hint = if hints.is_empty() {
        "Add another word or two. Uncommon words are better.".to_owned()
    } else {
        hints.join(" ")
    };
    Err(Error::invalid(
        "password",
        format!("This password is too easy to guess. {hint}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_password_is_rejected_with_advice() {
        let known = ["ada.lovelace@example.com".to_owned(), "ada".to_owned()];
        for weak in [
            "",
            "short",
            "password1",
            "12345678",
            "lovelace1815",
            "aaaaaaaaaaaa",
            "ada.lovelace@example.com",
            &"x".repeat(257),
        ] {
            let refused = check_strength(weak, &known).unwrap_err();
            assert_eq!(refused.code().status, 400, "{weak}");
            assert!(
                weak.is_empty() || !refused.to_string().contains(weak),
                "{refused}"
            );
        }
        for good in [
            "correct horse battery staple",
            "tr0ub4dor&3-violin-fjord",
            "ünïcödé lämp öven 9",
        ] {
            check_strength(good, &known).unwrap();
        }
    }

    #[test]
    fn dummy_hash_costs_as_much_as_real_hash() {
        let real = Argon2::default()
            .hash_password_with_salt(b"x", &[0; 16])
            .unwrap()
            .to_string();
        let parameters = |hash: &str| hash.rsplitn(3, '$').last().map(str::to_owned);
        assert_eq!(parameters(&real), parameters(DUMMY_HASH));
        assert_eq!(real.len(), DUMMY_HASH.len());
        assert!(
            Argon2::default()
                .verify_password(b"x", real.as_str())
                .is_ok()
        );
        assert_eq!(
            Argon2::default().verify_password(b"x", DUMMY_HASH),
            Err(argon2::password_hash::Error::PasswordInvalid)
        );
    }
}
