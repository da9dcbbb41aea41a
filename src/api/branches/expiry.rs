//! The end of branches that are not persistent.

use chrono::{DateTime, TimeDelta, Utc};

use crate::platform::error::Error;

/// Longest life of a branch that is not persistent.
pub(super) const LIFE_MAX: TimeDelta = TimeDelta::days(365);

/// Checks a requested end of a branch.
pub(super) fn check_expiry(
    expires_at: Option<DateTime<Utc>>,
    persistent: bool,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let Some(expires_at) = expires_at else {
        return Ok(());
    };
    if persistent {
        let problem = "a persistent branch does not end by itself";
        return Err(Error::invalid("expires_at", problem));
    }
    if expires_at <= now || expires_at > now + LIFE_MAX {
        let problem = "expected a time in the next 365 days";
        return Err(Error::invalid("expires_at", problem));
    }
    Ok(())
}
