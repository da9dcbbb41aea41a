//! Who authenticated.

use std::net::IpAddr;

use uuid::Uuid;

use crate::{
    error::Credential,
    ids::{TokenId, UserId},
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
    /// A user, through a classic personal access token.
    User(User),
}

/// A user who authenticated.
#[derive(Debug, Clone)]
pub struct User {
    /// Row of `users`.
    pub id: UserId,
    /// The identifier other services know the user by.
    pub gotrue_id: Uuid,
    /// The token that was sent.
    pub token: TokenId,
}

impl Caller {
    /// The user, if somebody authenticated.
    pub fn user(&self) -> Option<&User> {
        match self {
            Self::User(user) => Some(user),
            Self::Nobody { .. } => None,
        }
    }
}
