//! Refresh token rotation: each token is exchanged once, for a pair that contains its successor.
//!
//! A client that did not receive the response retries with its old token. This looks like token
//! theft, except that the issued pair was never used. So for a few seconds the direct predecessor
//! gets another pair instead.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::ApplicationId;

use super::{GRANT_LIFETIME, REFRESH_LIFETIME};

/// Time in which a client may retry an exchange after its response was lost.
const RETRY_WINDOW: TimeDelta = TimeDelta::seconds(10);

/// A refresh token, read while its grant is locked.
#[derive(Debug, Clone)]
pub struct RefreshToken {
    /// The application that the token was issued to.
    pub application: ApplicationId,
    /// Expiry time.
    pub expires_at: DateTime<Utc>,
    /// Time of its exchange.
    pub consumed_at: Option<DateTime<Utc>>,
    /// Whether both tokens issued in exchange are unused.
    pub next_unused: bool,
    /// Whether the token was revoked because its pair was reissued.
    pub replaced: bool,
    /// Whether the grant is not revoked.
    pub live: bool,
}

/// The decision about a refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshVerdict {
    /// The token belongs to another application: reject and leave the token usable.
    OtherClient,
    /// Reject. Holds the error description.
    Invalid(&'static str),
    /// The token was used twice and has leaked: reject and revoke the grant.
    Reused,
    /// The response of the first exchange was lost: revoke that pair and issue another.
    Reissue,
    /// Issue the next pair.
    Rotate,
}

/// Decides what happens when `application` presents a refresh token.
pub fn judge(
    refresh: &RefreshToken,
    application: ApplicationId,
    now: DateTime<Utc>,
) -> RefreshVerdict {
    if refresh.application != application {
        return RefreshVerdict::OtherClient;
    }
    if !refresh.live {
        return RefreshVerdict::Invalid("The authorization is revoked.");
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

/// Returns the expiry of a refresh token issued now: it never outlives the grant.
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
    fn judge_refresh_returns_expected_verdict() {
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
    fn expiry_is_bounded_by_grant_lifetime() {
        let day = |days| dawn() + TimeDelta::days(days);
        assert_eq!(expiry(dawn(), dawn()), day(60));
        assert_eq!(expiry(dawn(), day(300)), day(360));
        assert_eq!(expiry(dawn(), day(330)), day(365));
    }

    proptest! {
        /// In every state, tokens are issued only to the token's own application, for a live grant,
        /// and never after the successor was used.
        #[test]
        fn tokens_are_issued_only_for_live_unused_successors(
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
