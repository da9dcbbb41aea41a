//! Cache of the lists of projects.

use bytes::Bytes;
use gantry_base::{
    clock::Ticks,
    ids::{ApprovalId, TokenId, UserId},
};

use crate::platform::{access::User, cache::EpochCache, tables::Cache};

/// Number of cached responses of typical length.
const ANSWERS: usize = 16_000;
/// Size of the cache in bytes. A response larger than a hundredth of it is not cached.
const BYTES_MAX: usize = 64 << 20;

/// Cached responses of `GET /v1/projects`, by audience.
pub struct Listings(EpochCache<Audience, Bytes>);

/// A group of credentials with the same list. All classic tokens of a user have the user's list; a
/// scoped token or an application can have a shorter one, and its scope never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Audience {
    User(UserId),
    Token(TokenId),
    Approval(ApprovalId),
}

impl Audience {
    pub(super) fn of(user: &User) -> Self {
        let scoped = user.token.filter(|_| user.grant.is_some()).map(Self::Token);
        scoped
            .or(user
                .approval
                .as_ref()
                .map(|approval| Self::Approval(approval.id)))
            .unwrap_or(Self::User(user.id))
    }
}

impl Default for Listings {
    fn default() -> Self {
        Self(EpochCache::with_weight(
            ANSWERS,
            BYTES_MAX as u64,
            |answer| answer.len() as u64,
        ))
    }
}

impl Listings {
    pub(super) fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    pub(super) fn get(&self, audience: Audience, now: Ticks) -> Option<Bytes> {
        self.0.get(&audience, now)
    }

    pub(super) fn put(&self, audience: Audience, answer: &Bytes, now: Ticks, epoch: u64) {
        if answer.len() < BYTES_MAX / 100 {
            self.0.put(audience, answer.clone(), now, epoch);
        }
    }

    /// Removes all responses if `cache` is this cache.
    pub(crate) fn invalidate(&self, cache: Cache) {
        if cache == Cache::ProjectListings {
            self.0.clear();
        }
    }

    /// Enables or disables the cache, and removes all responses.
    pub(crate) fn set_trusted(&self, trusted: bool) {
        self.0.set_trusted(trusted);
    }
}
