//! Password sign-in with throttling of failed attempts.

use std::{net::IpAddr, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::UserId;
use secrecy::SecretString;

use super::passwords;
use crate::platform::{
    access::credential::SecretDigest,
    db::Db,
    error::{Context, Error},
    rate_limits::Identifier,
};

/// Failed attempts per account without a wait.
const ACCOUNT_FAILURES_FREE: usize = 5;
/// Failed attempts per client address without a wait. Higher, because users share addresses.
const ADDRESS_FAILURES_FREE: usize = 30;
/// Maximum wait in seconds.
const WAIT_SECS_MAX: i32 = 15 * 60;
/// Number of precomputed waits; further failures use the last one.
const WAIT_STEPS: usize = 64;
/// Failures are forgotten after this time without another one.
const FAILURE_RETENTION: TimeDelta = TimeDelta::days(1);
/// Maximum length of an email address in bytes.
const EMAIL_BYTES_MAX: usize = 320;

/// The outcome of an attempt.
#[derive(Debug)]
pub enum SignInOutcome {
    /// The password belongs to this user.
    Accepted(UserId),
    /// Unknown account or wrong password; the two are not distinguished.
    Rejected,
    /// Too many failed attempts from the address or for the account, whether or not it exists.
    Throttled(Duration),
}

/// Attempts a password sign-in from `address`.
///
/// An attempt counts as a failure until the password is verified, so that concurrent attempts are
/// throttled like sequential ones.
pub async fn try_password(
    db: &Db,
    email: &str,
    password: SecretString,
    address: IpAddr,
    now: DateTime<Utc>,
) -> Result<SignInOutcome, Error> {
    let email = email.trim();
    if email.len() > EMAIL_BYTES_MAX {
        return Ok(SignInOutcome::Rejected);
    }
    let address = address_subject(address);
    let account = account_subject(email);
    for (subject, free) in [
        (&address, ADDRESS_FAILURES_FREE),
        (&account, ACCOUNT_FAILURES_FREE),
    ] {
        if let Some(wait) = count_failure(db, subject, free, now).await? {
            return Ok(SignInOutcome::Throttled(wait));
        }
    }
    let Some(user) = passwords::check(db, email, password).await? else {
        return Ok(SignInOutcome::Rejected);
    };
    let sql = "with gone as (delete from sign_in_failures where subject = $1) \
               update sign_in_failures set failures = failures - 1, held_until = last_at where subject = $2 and failures > 0";
    db.query(sql, &[&account.as_bytes(), &address.as_bytes()])
        .await
        .context("counting sign-in failures")?;
    Ok(SignInOutcome::Accepted(user))
}

/// Counts a failure. Returns the time to wait if attempts are throttled.
async fn count_failure(
    db: &Db,
    subject: &SecretDigest,
    free: usize,
    now: DateTime<Utc>,
) -> Result<Option<Duration>, Error> {
    let waits: Vec<i32> = (1..=WAIT_STEPS)
        .map(|failures| wait_secs(failures, free))
        .collect();
    let sql = "with old as (delete from sign_in_failures where subject in \
                   (select subject from sign_in_failures where last_at < $4 and subject <> $1 order by last_at limit 100)) \
               insert into sign_in_failures as f (subject, failures, last_at, held_until) values ($1, 1, $2::timestamptz, $2::timestamptz + make_interval(secs => ($3::int[])[1])) \
               on conflict (subject) do update set last_at = $2, \
                   failures = case when f.last_at < $4 then 1 else least(f.failures + 1, cardinality($3::int[])) end, \
                   held_until = $2::timestamptz + make_interval(secs => ($3::int[])[case when f.last_at < $4 then 1 else least(f.failures + 1, cardinality($3::int[])) end]) \
               where f.held_until <= $2 returning failures";
    let counted = db
        .query(
            sql,
            &[
                &subject.as_bytes(),
                &now,
                &waits,
                &(now - FAILURE_RETENTION),
            ],
        )
        .await
        .context("counting sign-in failures")?;
    if !counted.is_empty() {
        return Ok(None);
    }
    let rows = db
        .query(
            "select held_until from sign_in_failures where subject = $1",
            &[&subject.as_bytes()],
        )
        .await;
    let until = rows
        .context("counting sign-in failures")?
        .first()
        .map_or(now, |row| row.get(0));
    // At least a second, because the attempt was throttled a moment ago.
    Ok(Some(
        (until - now)
            .to_std()
            .unwrap_or_default()
            .max(Duration::from_secs(1)),
    ))
}

/// Returns the wait after a number of failures: zero for the free ones, then doubling up to the
/// maximum.
fn wait_secs(failures: usize, free: usize) -> i32 {
    match failures.checked_sub(free) {
        None | Some(0) => 0,
        Some(over) => u32::try_from(over - 1)
            .ok()
            .and_then(|exponent| 2i32.checked_pow(exponent))
            .map_or(WAIT_SECS_MAX, |secs| secs.min(WAIT_SECS_MAX)),
    }
}

/// Returns the key of the typed address, so that unknown accounts are throttled too.
fn account_subject(email: &str) -> SecretDigest {
    SecretDigest::of(&format!("account {}", email.to_lowercase()))
}

/// Returns the key of a client address; IPv6 addresses are grouped by /64.
fn address_subject(address: IpAddr) -> SecretDigest {
    SecretDigest::of(&format!("address {:?}", Identifier::address(address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_doubles_up_to_maximum() {
        let waits: Vec<_> = (1..=WAIT_STEPS)
            .map(|failures| wait_secs(failures, ACCOUNT_FAILURES_FREE))
            .collect();
        assert_eq!(waits[..8], [0, 0, 0, 0, 0, 1, 2, 4]);
        assert!(waits.is_sorted() && waits[WAIT_STEPS - 1] == WAIT_SECS_MAX);
        assert_eq!(
            (
                wait_secs(ADDRESS_FAILURES_FREE, ADDRESS_FAILURES_FREE),
                wait_secs(ADDRESS_FAILURES_FREE + 1, ADDRESS_FAILURES_FREE)
            ),
            (0, 1)
        );
        assert_eq!(
            wait_secs(WAIT_STEPS, ADDRESS_FAILURES_FREE),
            WAIT_SECS_MAX,
            "the longest is reached for both"
        );
    }

    #[test]
    fn subject_ignores_case_and_ipv6_suffix() {
        assert_eq!(
            account_subject("Ada@Example.com"),
            account_subject("ada@example.com")
        );
        assert_ne!(
            account_subject("ada@example.com"),
            address_subject([127, 0, 0, 1].into())
        );
        let v6 = |text: &str| address_subject(text.parse().unwrap());
        assert_eq!(v6("2001:db8::1"), v6("2001:db8::2"));
        assert_ne!(v6("2001:db8::1"), v6("2001:db8:0:1::1"));
    }
}
