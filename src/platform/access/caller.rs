//! Who authenticated.

use std::{fmt, net::IpAddr, sync::Arc};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    approval::Approval,
    directory::{Organization, Project, Subject},
    grant::{Grant, Reach},
    role::Held,
};
use crate::{
    base::{
        cache::Memo,
        clock::Clock,
        error::Credential,
        ids::{TokenId, UserId},
    },
    platform::{access::call_log::Calls, rate_limits::Identifier},
};

/// The other side of a request, after its credential was looked at.
#[derive(Debug, Clone)]
pub enum Caller {
    /// No credential, or one that did not hold.
    Nobody {
        /// Client address, behind trusted proxies.
        address: IpAddr,
        /// What was wrong.
        credential: Credential,
    },
    /// A user, through a personal access token, an application they let act for them, or signed in on the pages.
    User(Arc<User>),
}

/// A user who authenticated.
#[derive(Debug, Clone)]
pub struct User {
    /// Row of `users`.
    pub id: UserId,
    /// The identifier other services know the user by.
    pub gotrue_id: Uuid,
    /// The token that was sent. None where the user is signed in on the pages.
    pub token: Option<TokenId>,
    /// What the token is limited to. Without it: a classic token or a session, which are as good as the user.
    pub grant: Option<Arc<Grant>>,
    /// What the application may do that sent an OAuth access token for the user.
    pub approval: Option<Arc<Approval>>,
    /// What was done with the token, or by the application, lately.
    pub lately: Option<Arc<Lately>>,
}

/// What was done with a cached credential since it was cached. In this order, so that what nearly every request looks at is in
/// as few cache lines as it can be.
#[derive(Default)]
#[repr(C)]
pub struct Lately {
    /// The organization it named.
    pub(super) organization: Memo<(Organization, Held)>,
    /// What it was used for, where that is noted.
    pub calls: Calls,
    /// The project it named.
    pub(super) project: Memo<(Project, Held)>,
}

impl fmt::Debug for Lately {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lately")
    }
}

/// Whose a live credential is, and until when.
#[derive(Debug, Clone)]
pub struct Holder {
    /// What a request with it may do. Requests share it.
    pub user: Arc<User>,
    /// When it is over by itself, if ever.
    pub expires_at: Option<DateTime<Utc>>,
}

impl Holder {
    /// Whether it holds now, and where it is sent from if that is told.
    pub fn holds(&self, clock: &Clock, address: Option<IpAddr>) -> bool {
        let grant = self.user.grant.as_ref();
        // Most have no end and no beginning, and need not know what time it is.
        self.expires_at.is_none_or(|expiry| expiry > clock.now())
            && grant.is_none_or(|grant| {
                grant.has_begun(clock.now()) && address.is_none_or(|address| grant.admits(address))
            })
    }
}

impl User {
    /// Whether the token may be used on the subject at all, were it its owner's.
    pub fn sees(&self, subject: &Subject) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.sees(subject))
            && self.approval.as_ref().is_none_or(|it| it.sees(subject))
    }

    /// Under which name requests are counted.
    pub fn identifier(&self) -> Identifier {
        match (&self.approval, self.token) {
            (Some(approval), _) => Identifier::Application(approval.application),
            (None, Some(_)) => Identifier::User(self.id),
            (None, None) => Identifier::Session(self.id),
        }
    }

    /// What the token reaches, if not everything its owner does.
    pub fn reach(&self) -> Option<&Reach> {
        let granted = self.grant.as_ref().map(|grant| &grant.reach);
        granted.or_else(|| self.approval.as_ref().map(|approval| &approval.reach))
    }

    /// The number that the audit log has for what the request was sent with: a token's; of an application's approval the
    /// negative; of a session 0.
    pub fn credential(&self) -> TokenId {
        let approved = self
            .approval
            .as_ref()
            .map(|approval| TokenId(-approval.id.0));
        approved.or(self.token).unwrap_or(TokenId(0))
    }
}

impl Caller {
    /// The user, if somebody authenticated.
    pub fn user(&self) -> Option<&User> {
        self.shared().map(Arc::as_ref)
    }

    /// The same, to keep.
    pub fn shared(&self) -> Option<&Arc<User>> {
        match self {
            Self::User(user) => Some(user),
            Self::Nobody { .. } => None,
        }
    }
}
