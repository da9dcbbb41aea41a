//! Rate limits (specification §8): what is counted, in which windows, and what the headers say.

mod memory;
pub mod snapshot;

use std::net::IpAddr;

pub use memory::{Capacity, Cell, Kind, Limits};

use crate::ids::{OrganizationId, ProjectId, UserId};

/// How many requests a window admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Requests admitted in one window.
    pub requests: u32,
    /// Length of the window, in seconds.
    pub secs: u32,
}

impl Window {
    pub(crate) const fn millis(self) -> u64 {
        self.secs as u64 * 1000
    }
}

/// Windows of one limit: enough for a quota and a burst.
pub const WINDOWS_MAX: usize = 2;

/// The limit of an operation. Every window must admit a request, or none counts it.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    /// What the scope is read from.
    pub key: LimitKey,
    /// One or [two](WINDOWS_MAX) windows.
    pub windows: &'static [Window],
}

/// Where the scope of a counter comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKey {
    /// `{ref}` of the path: its project; `{slug}`: its organization; neither: the user.
    Path,
    /// The organization a field of the JSON body names.
    OrganizationInBody {
        /// The field, then its older spelling.
        fields: &'static [&'static str],
    },
}

/// `requests` in each `secs` seconds.
pub const fn per(requests: u32, secs: u32) -> Window {
    Window { requests, secs }
}

const fn by_path(windows: &'static [Window]) -> Limit {
    Limit { key: LimitKey::Path, windows }
}

/// 120 a minute.
pub static STANDARD: Limit = by_path(&[per(120, 60)]);
/// 120 a minute, counted in the organization that the body names.
pub static STANDARD_BY_BODY: Limit =
    Limit { key: LimitKey::OrganizationInBody { fields: &["organization_slug", "organization_id"] }, windows: &[per(120, 60)] };
/// 30 a minute: analytics.
pub static ANALYTICS: Limit = by_path(&[per(30, 60)]);
/// 10 a minute: hostnames and subdomains.
pub static DOMAINS: Limit = by_path(&[per(10, 60)]);
/// 10 a minute and 1 a second: the database context.
pub static CONTEXT: Limit = by_path(&[per(10, 60), per(1, 1)]);
/// 120 in three minutes: migrations.
pub static MIGRATIONS: Limit = by_path(&[per(120, 180)]);

/// Whom a counter counts (specification §5, rule 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identifier {
    /// A user, through any of their tokens.
    User(UserId),
    /// An unauthenticated client. IPv6 addresses count by /64, as one client is given at least that.
    Address(u64),
}

impl Identifier {
    /// The identifier of an unauthenticated client.
    pub fn address(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            // Global unicast /64s never collide with the 32-bit range above.
            IpAddr::V6(v6) => u64::try_from(v6.to_bits() >> 64).unwrap_or(u64::MAX),
        })
    }
}

/// What a counter is about (specification §8, rule 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The request names neither a project nor an organization.
    User,
    /// One organization.
    Organization(OrganizationId),
    /// One project.
    Project(ProjectId),
    /// The request names something that does not exist. One counter for all such names, so nobody can mint counters.
    Unresolved,
}

/// One counter: identifier × scope × operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Whom.
    pub identifier: Identifier,
    /// About what.
    pub scope: Scope,
    /// Which operation: its index in the list of endpoints.
    pub operation: u16,
}

/// What the headers of the response say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Requests the reported window admits.
    pub limit: u32,
    /// Requests left in it.
    pub remaining: u32,
    /// Whole seconds until it ends, rounded up.
    pub reset_secs: u32,
}

/// Whether the request was admitted, and what its headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Admitted and counted.
    pub admitted: bool,
    /// For the headers.
    pub quota: Quota,
}

/// Whole seconds, rounded up.
fn secs_up(millis: u64) -> u32 {
    u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX)
}
