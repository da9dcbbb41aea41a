//! The authenticated caller of a request.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::{Clock, Ticks},
    ids::{TokenId, UserId},
};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{
    approval::OauthApproval,
    audience::Audience,
    grant::{Reach, TokenGrant},
    subject::Subject,
};
use crate::platform::{error::CredentialProblem, rate_limits::counter::Identifier};

/// Shortest time between two writes of a token's last use, in milliseconds.
const LAST_USE_RESOLUTION: Ticks = 60_000;

/// The caller of a request, after its credential was checked.
#[derive(Debug, Clone)]
pub enum Caller {
    /// A caller without a credential, or with one that was not accepted.
    Anonymous {
        /// Client address, behind trusted proxies.
        address: IpAddr,
        /// Reason why there is no user.
        credential: CredentialProblem,
    },
    /// A user: through a personal access token, through an approved OAuth application, or signed in
    /// on the pages.
    User(Arc<User>),
}

/// An authenticated user.
#[derive(Debug, Clone)]
pub struct User {
    /// Row of `users`.
    pub id: UserId,
    /// The user's UUID on the wire (`gotrue_id`).
    pub gotrue_id: Uuid,
    /// The personal access token of the request. `None` for sessions and OAuth access tokens.
    pub token: Option<TokenId>,
    /// Limits of a scoped token. `None` for classic tokens, sessions and OAuth access tokens.
    pub grant: Option<Arc<TokenGrant>>,
    /// Approval behind an OAuth access token. `None` for other credentials.
    pub approval: Option<Arc<OauthApproval>>,
    /// Activity of the personal access token. `None` for other credentials.
    pub activity: Option<Arc<TokenActivity>>,
    /// Begin of the session. `None` for other credentials.
    pub signed_in_at: Option<DateTime<Utc>>,
}

/// Activity of a cached token that is already queued for writing, so that each call is queued once
/// and the last use at most once a minute. Bounded by the number of operations and their cases.
#[derive(Debug, Default)]
pub struct TokenActivity {
    /// Time when the last use was queued. `None` before the first use.
    last_use: Mutex<Option<Ticks>>,
    /// Operations and cases of the calls that were queued.
    calls: Mutex<HashSet<(u16, u8)>>,
}

impl TokenActivity {
    /// Records a call. Returns whether it is the first of its operation and case.
    pub fn record_call(&self, operation: u16, case: u8) -> bool {
        self.calls.lock().insert((operation, case))
    }

    /// Records a use at `now`. Returns whether the last use has to be written.
    pub fn record_use(&self, now: Ticks) -> bool {
        let mut last_use = self.last_use.lock();
        let is_due = last_use.is_none_or(|last| now.saturating_sub(last) >= LAST_USE_RESOLUTION);
        if is_due {
            *last_use = Some(now);
        }
        is_due
    }
}

/// A live credential in the cache: its user and its expiry.
#[derive(Debug, Clone)]
pub struct CachedCredential {
    /// The user, shared by all requests with this credential.
    pub user: Arc<User>,
    /// Expiry of the credential. `None` if it does not expire.
    pub expires_at: Option<DateTime<Utc>>,
}

impl CachedCredential {
    /// Returns whether the credential is valid now, and from `address` if one is given.
    pub fn holds(&self, clock: &Clock, address: Option<IpAddr>) -> bool {
        let grant = self.user.grant.as_ref();
        // The closures read the clock only for credentials with an expiry or a start.
        self.expires_at.is_none_or(|expiry| expiry > clock.now())
            && grant.is_none_or(|grant| {
                grant.has_begun(clock.now()) && address.is_none_or(|address| grant.admits(address))
            })
    }
}

impl User {
    /// Returns the user for operations that another one calls: a token for the MCP server reaches
    /// the API by its tools.
    pub fn for_operations(user: &Arc<Self>) -> Arc<Self> {
        let Some(approval) = &user.approval else {
            return user.clone();
        };
        let approval = OauthApproval {
            audience: Audience::Api,
            ..(**approval).clone()
        };
        Arc::new(Self {
            approval: Some(Arc::new(approval)),
            ..(**user).clone()
        })
    }

    /// Returns whether the credential reaches the subject. The user's roles are not considered.
    pub fn sees(&self, subject: &Subject) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.sees(subject))
            && self.approval.as_ref().is_none_or(|it| it.sees(subject))
    }

    /// Returns the identifier that rate limits count the requests under.
    pub fn identifier(&self) -> Identifier {
        match (&self.approval, self.token) {
            (Some(approval), _) => Identifier::Application(approval.application),
            (None, Some(_)) => Identifier::User(self.id),
            (None, None) => Identifier::Session(self.id),
        }
    }

    /// Returns the reach of the credential. `None` if it reaches everything that the user reaches.
    pub fn reach(&self) -> Option<&Reach> {
        let granted = self.grant.as_ref().map(|grant| &grant.reach);
        granted.or_else(|| self.approval.as_ref().map(|approval| &approval.reach))
    }

    /// Returns the credential's number in the audit log: the id of a token, the negative id of an
    /// OAuth approval, or 0 for a session.
    pub fn credential(&self) -> TokenId {
        let approved = self
            .approval
            .as_ref()
            .map(|approval| TokenId(-approval.id.0));
        approved.or(self.token).unwrap_or(TokenId(0))
    }
}

impl Caller {
    /// Returns the user. `None` if the caller is anonymous.
    pub fn user(&self) -> Option<&User> {
        self.shared().map(Arc::as_ref)
    }

    /// Returns the shared handle to the user. `None` if the caller is anonymous.
    pub fn shared(&self) -> Option<&Arc<User>> {
        match self {
            Self::User(user) => Some(user),
            Self::Anonymous { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_call_returns_true_once_per_operation_and_case() {
        let activity = TokenActivity::default();
        for call in [(0, 0), (0, 1), (1, 0), (u16::MAX, 3)] {
            assert!(activity.record_call(call.0, call.1), "{call:?}");
            assert!(!activity.record_call(call.0, call.1), "{call:?}");
        }
    }

    #[test]
    fn record_use_returns_true_once_a_minute() {
        let activity = TokenActivity::default();
        assert!(activity.record_use(0));
        assert!(!activity.record_use(59_999));
        assert!(activity.record_use(60_000));
        assert!(!activity.record_use(60_001));
    }
}
