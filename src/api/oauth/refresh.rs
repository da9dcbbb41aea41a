//! A refresh token, and what becomes of it: each is good for one pair of tokens, and the next of them is in the pair.
//!
//! A client whose answer got lost asks again with the token it has. That looks like a thief who is late, except that nobody
//! used the pair that was issued; so for a few seconds, and only for the direct predecessor, it gets another pair instead.

use chrono::{DateTime, TimeDelta, Utc};

use super::{GRANT_LIFETIME, REFRESH_LIFETIME};
use crate::base::ids::ApplicationId;

/// How long an answer may have been lost.
const RETRY_WINDOW: TimeDelta = TimeDelta::seconds(10);

/// A refresh token, as its row has it under the lock of its grant.
#[derive(Debug, Clone)]
pub struct RefreshToken {
    /// Whose it is.
    pub application: ApplicationId,
    /// When it is over by itself.
    pub expires_at: DateTime<Utc>,
    /// When it was given for the next pair.
    pub consumed_at: Option<DateTime<Utc>>,
    /// Whether both tokens of that pair are as they were issued.
    pub next_unused: bool,
    /// Whether it was replaced as lost on its way.
    pub replaced: bool,
    /// Whether what was approved still holds.
    pub live: bool,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshVerdict {
    /// Another application's: refused, and as good as before.
    OtherClient,
    /// Refused. Says why.
    Invalid(&'static str),
    /// Two have it: refused, and what was approved ends.
    Reused,
    /// The pair that was issued for it got lost: it ends, and another is issued.
    Reissue,
    /// The next pair is issued.
    Rotate,
}

/// What becomes of a refresh token when `application` sends it.
pub fn judge(
    refresh: &RefreshToken,
    application: ApplicationId,
    now: DateTime<Utc>,
) -> RefreshVerdict {
    if refresh.application != application {
        return RefreshVerdict::OtherClient;
    }
    if !refresh.live {
        return RefreshVerdict::Invalid("What was approved is revoked.");
    }
    if refresh.replaced {
        return RefreshVerdict::Reused;
    }
    match refresh.consumed_at {
        Some(consumed)
            if refresh.next_unused && now >= consumed && now - consumed < RETRY_WINDOW =>
        {
            RefreshVerdict::Reissue
        }
        Some(_) => RefreshVerdict::Reused,
        None if now >= refresh.expires_at => {
            RefreshVerdict::Invalid("The refresh token is expired.")
        }
        None => RefreshVerdict::Rotate,
    }
}

/// Until when a refresh token lives that is issued now for what was approved then.
pub fn expiry(approved_at: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc> {
    (now + REFRESH_LIFETIME).min(approved_at + GRANT_LIFETIME)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dawn() -> DateTime<Utc> {
        "2026-11-21T09:15:03Z".parse().unwrap()
    }

    fn fresh() -> RefreshToken {
        RefreshToken {
            application: ApplicationId(1),
            expires_at: dawn() + REFRESH_LIFETIME,
            consumed_at: None,
            next_unused: false,
            replaced: false,
            live: true,
        }
    }

    #[test]
    fn every_use_has_one_outcome() {
        let consumed = RefreshToken {
            consumed_at: Some(dawn()),
            next_unused: true,
            ..fresh()
        };
        let dead = RefreshVerdict::Invalid("");
        for (case, refresh, secs, expected) in [
            ("first", fresh(), 0, RefreshVerdict::Rotate),
            (
                "at the last moment",
                fresh(),
                60 * 86_400 - 1,
                RefreshVerdict::Rotate,
            ),
            ("too late", fresh(), 60 * 86_400, dead),
            (
                "revoked",
                RefreshToken {
                    live: false,
                    ..fresh()
                },
                0,
                dead,
            ),
            (
                "revoked and consumed",
                RefreshToken {
                    live: false,
                    ..consumed.clone()
                },
                0,
                dead,
            ),
            (
                "the answer was lost",
                consumed.clone(),
                0,
                RefreshVerdict::Reissue,
            ),
            ("just in time", consumed.clone(), 9, RefreshVerdict::Reissue),
            ("too long ago", consumed.clone(), 10, RefreshVerdict::Reused),
            (
                "the clock was set back",
                consumed.clone(),
                -1,
                RefreshVerdict::Reused,
            ),
            (
                "the answer arrived",
                RefreshToken {
                    next_unused: false,
                    ..consumed.clone()
                },
                0,
                RefreshVerdict::Reused,
            ),
            (
                "the lost one turns up",
                RefreshToken {
                    replaced: true,
                    ..fresh()
                },
                0,
                RefreshVerdict::Reused,
            ),
            (
                "expired and consumed",
                consumed,
                61 * 86_400,
                RefreshVerdict::Reused,
            ),
        ] {
            let verdict = judge(
                &refresh,
                ApplicationId(1),
                dawn() + TimeDelta::seconds(secs),
            );
            let same = matches!(
                (verdict, expected),
                (RefreshVerdict::Invalid(_), RefreshVerdict::Invalid(_))
            ) || verdict == expected;
            assert!(same, "{case}: {verdict:?}");
            assert_eq!(
                judge(&refresh, ApplicationId(2), dawn()),
                RefreshVerdict::OtherClient,
                "{case}"
            );
        }
    }

    #[test]
    fn a_life_slides_and_ends() {
        let day = |days| dawn() + TimeDelta::days(days);
        assert_eq!(expiry(dawn(), dawn()), day(60));
        assert_eq!(expiry(dawn(), day(300)), day(360));
        assert_eq!(expiry(dawn(), day(330)), day(365));
    }

    proptest! {
        /// Whatever the state, tokens are issued only to the application, for what still holds, and never for a token whose
        /// successor was seen in use.
        #[test]
        fn tokens_are_issued_only_where_nobody_else_can_have_them(
            consumed in proptest::option::of(-100_i64..100), next_unused: bool, replaced: bool, live: bool, own: bool, at in -100_i64..100
        ) {
            let moment = |secs| dawn() + TimeDelta::seconds(secs);
            let refresh = RefreshToken { consumed_at: consumed.map(moment), next_unused, replaced, live, ..fresh() };
            let verdict = judge(&refresh, ApplicationId(if own { 1 } else { 2 }), moment(at));
            if matches!(verdict, RefreshVerdict::Rotate | RefreshVerdict::Reissue) {
                prop_assert!(own && live && !replaced);
                prop_assert!(consumed.is_none_or(|consumed| next_unused && (0..10).contains(&(at - consumed))));
            }
        }
    }
}
