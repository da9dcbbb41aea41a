//! Counters of rate limits: their keys, the quotas that remain, and decisions.

use std::net::IpAddr;

use gantry_base::ids::{ApplicationId, OrganizationId, ProjectId, UserId};

use super::window::{WINDOWS_MAX, Window};

/// The client that a counter belongs to (specification §5, rule 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identifier {
    /// A user with personal access tokens.
    User(UserId),
    /// A user with browser sessions, counted apart so that programs cannot exhaust the quota of the
    /// pages.
    Session(UserId),
    /// An OAuth application, for all of its users.
    Application(ApplicationId),
    /// An anonymous client. IPv6 addresses are counted by /64, the smallest usual allocation.
    Address(u64),
}

impl Identifier {
    /// Returns the identifier of an anonymous client.
    pub fn address(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            // /64s of global unicast addresses do not collide with the 32-bit range above.
            IpAddr::V6(v6) => u64::try_from(v6.to_bits() >> 64).unwrap_or(u64::MAX),
        })
    }
}

/// The subject of a counter (specification §8, rule 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CounterScope {
    /// Neither a project nor an organization.
    User,
    /// One organization.
    Organization(OrganizationId),
    /// One project.
    Project(ProjectId),
    /// Names that do not belong to the caller. All share one counter, so that requests cannot
    /// create counters without bound.
    Unresolved,
    /// Look-ups of names that do not belong to the caller.
    LookUps,
}

/// The key of a counter: identifier, scope and operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CounterKey {
    /// The client.
    pub identifier: Identifier,
    /// The subject.
    pub scope: CounterScope,
    /// Index of the operation in the list of endpoints.
    pub operation: u16,
}

/// The quota of one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Requests per window.
    pub limit: u32,
    /// Remaining requests of the window.
    pub remaining: u32,
    /// Seconds until the window ends, rounded up.
    pub reset_secs: u32,
}

impl Quota {
    /// Returns the quota of an unused window.
    pub fn whole(window: Window) -> Self {
        Self {
            limit: window.requests,
            remaining: window.requests,
            reset_secs: window.secs,
        }
    }

    /// Returns the quota of a window with `used` requests that ends in `millis`. After a limit was
    /// lowered, `used` can exceed it.
    pub(crate) fn used(window: Window, used: u32, millis: u64) -> Self {
        Self {
            limit: window.requests,
            remaining: window.requests.saturating_sub(used),
            reset_secs: secs_up(millis),
        }
    }
}

/// The quotas of all windows of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    list: [Quota; WINDOWS_MAX],
    len: usize,
}

impl Quotas {
    /// Collects quotas in the order of the limit's windows, at most [`WINDOWS_MAX`].
    pub fn new(quotas: impl Iterator<Item = Quota>) -> Self {
        let mut all = Self::default();
        for (place, quota) in all.list.iter_mut().zip(quotas) {
            *place = quota;
            all.len += 1;
        }
        all
    }

    /// Returns the quotas of unused windows.
    pub fn whole(windows: &[Window]) -> Self {
        Self::new(windows.iter().copied().map(Quota::whole))
    }

    /// Returns the quotas in the order of the limit's windows.
    pub fn as_slice(&self) -> &[Quota] {
        &self.list[..self.len]
    }

    /// Returns the quota with the fewest remaining requests; among equals the one with the latest
    /// reset. A client that waits for the reset whenever nothing remains is never rejected.
    pub fn binding(&self) -> Quota {
        let none = Quota {
            limit: 0,
            remaining: 0,
            reset_secs: 1,
        };
        self.as_slice()
            .iter()
            .copied()
            .min_by_key(|quota| (quota.remaining, u32::MAX - quota.reset_secs))
            .unwrap_or(none)
    }
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitDecision {
    /// Whether the request is admitted and counted.
    pub admitted: bool,
    /// Quotas for the headers.
    pub quotas: Quotas,
    pub(super) counted: CountedBy,
}

/// The place where a request was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountedBy {
    /// The counters of this process.
    Process,
    /// The shared store.
    Store,
}

impl LimitDecision {
    /// Returns a decision by the counters of this process.
    pub(super) fn local(admitted: bool, quotas: Quotas) -> Self {
        Self {
            admitted,
            quotas,
            counted: CountedBy::Process,
        }
    }

    /// Returns whether the shared store counted the request.
    pub fn is_shared(&self) -> bool {
        self.counted == CountedBy::Store
    }

    /// Returns the quota for the three `X-RateLimit` headers.
    pub fn quota(&self) -> Quota {
        self.quotas.binding()
    }
}

/// Converts milliseconds to seconds, rounded up.
pub(super) fn secs_up(millis: u64) -> u32 {
    u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX)
}
