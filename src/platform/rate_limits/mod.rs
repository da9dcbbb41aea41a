//! Rate limits (specification §8): what is counted, in which windows, and what the headers say.
//!
//! - [`Limits`]: what the rest of Gantry counts with
//! - [`Memory`]: the counters of one process
//! - [`Shared`]: the counters of several, in the control database or in Valkey; with what is needed when those are away
//! - [`Policies`], [`overrides`]: which limit applies to whom

mod breaker;
mod contact;
mod denied;
mod facade;
mod journal;
mod memory;
pub mod overrides;
mod policy;
mod postgres;
mod redis;
mod shared;
pub mod snapshot;
mod store;

use std::net::IpAddr;

pub use facade::{Deciding, Limits};
pub use journal::Journal;
pub use memory::{Capacity, Cell, Kind, Memory};
pub use policy::{Place, Policies, Policy};
pub use postgres::{DECISION, reclaim};
pub use shared::{Shared, Tally};
pub use store::{Options, Store, Trouble};

use crate::base::ids::{ApplicationId, OrganizationId, ProjectId, UserId};

/// How many requests a window admits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    /// One or [two](WINDOWS_MAX) windows. The first is the longest, and the one that operators can change.
    pub windows: &'static [Window],
}

impl Limit {
    /// The windows a caller's requests are counted in.
    pub fn counted(&self) -> &'static [Window] {
        if self.key == LimitKey::Uncounted {
            &[]
        } else {
            self.windows
        }
    }
}

/// Where the scope of a counter comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKey {
    /// `{ref}` of the path: its project; `{slug}`: its organization; neither: the user.
    Path,
    /// The user, whatever the path names: who calls need not belong to it.
    Caller,
    /// The organization a field of the JSON body names.
    OrganizationInBody {
        /// The field, then its older spelling.
        fields: &'static [&'static str],
    },
    /// Callers are not counted here and always see the whole quota. Who has no live token is counted by address, and a
    /// caller for what the query's `ref` or `slug` names in vain: neither may cause look-ups without end.
    Uncounted,
}

/// `requests` in each `secs` seconds.
pub const fn per(requests: u32, secs: u32) -> Window {
    Window { requests, secs }
}

const fn by_path(windows: &'static [Window]) -> Limit {
    Limit {
        key: LimitKey::Path,
        windows,
    }
}

/// 120 a minute.
pub static STANDARD: Limit = by_path(&[per(120, 60)]);
/// 120 a minute, counted for the user.
pub static STANDARD_BY_CALLER: Limit = Limit {
    key: LimitKey::Caller,
    windows: &[per(120, 60)],
};
/// 120 a minute, counted in the organization that the body names.
pub static STANDARD_BY_BODY: Limit = Limit {
    key: LimitKey::OrganizationInBody {
        fields: &["organization_slug", "organization_id"],
    },
    windows: &[per(120, 60)],
};
/// 30 a minute: analytics.
pub static ANALYTICS: Limit = by_path(&[per(30, 60)]);
/// 10 a minute: hostnames and subdomains.
pub static DOMAINS: Limit = by_path(&[per(10, 60)]);
/// 10 a minute and 1 a second: the database context.
pub static CONTEXT: Limit = by_path(&[per(10, 60), per(1, 1)]);
/// 120 in three minutes: migrations.
pub static MIGRATIONS: Limit = by_path(&[per(120, 180)]);

/// 10 an hour: what registers itself and costs a row.
pub static REGISTRATIONS: Limit = by_path(&[per(10, 3_600)]);

/// Not counted: asking how much is left costs nothing.
pub static UNCOUNTED: Limit = Limit {
    key: LimitKey::Uncounted,
    windows: &[per(120, 60)],
};

/// 600 look-ups a minute for each identifier: queries for names that are not its own. Protects the control database; a
/// program that mistypes a name reaches the limit of its operation long before.
pub static LOOK_UPS: &[Window] = &[per(600, 60)];

/// Whom a counter counts (specification §5, rule 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identifier {
    /// A user, through any of their tokens.
    User(UserId),
    /// A user, through any of their browser sessions: what programs use up leaves the pages alone.
    Session(UserId),
    /// An application, for whomever it acts.
    Application(ApplicationId),
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
    /// The request names something that is not the caller's. One counter for all such names, so that requests cannot create counters without end.
    Unresolved,
    /// Queries for names that turned out not to be the caller's.
    LookUps,
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

/// How much is left of one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Requests the window admits.
    pub limit: u32,
    /// Requests left in it.
    pub remaining: u32,
    /// Whole seconds until it ends, rounded up.
    pub reset_secs: u32,
}

impl Quota {
    /// Of a window that nothing was taken from yet.
    pub fn whole(window: Window) -> Self {
        Self {
            limit: window.requests,
            remaining: window.requests,
            reset_secs: window.secs,
        }
    }

    /// Of a window that `used` was taken from and that ends in `millis`. A limit can be lowered below what was used.
    pub(crate) fn used(window: Window, used: u32, millis: u64) -> Self {
        Self {
            limit: window.requests,
            remaining: window.requests.saturating_sub(used),
            reset_secs: secs_up(millis),
        }
    }
}

/// How much is left of each window of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    list: [Quota; WINDOWS_MAX],
    len: usize,
}

impl Quotas {
    /// In the order of the limit's windows; of more than [`WINDOWS_MAX`], the first.
    pub fn new(quotas: impl Iterator<Item = Quota>) -> Self {
        let mut all = Self::default();
        for (place, quota) in all.list.iter_mut().zip(quotas) {
            *place = quota;
            all.len += 1;
        }
        all
    }

    /// Of windows that nothing was taken from yet.
    pub fn whole(windows: &[Window]) -> Self {
        Self::new(windows.iter().copied().map(Quota::whole))
    }

    /// In the order of the limit's windows.
    pub fn as_slice(&self) -> &[Quota] {
        &self.list[..self.len]
    }

    /// The quota to report where only one can be: the one with least left, and among equals the one that lasts longest.
    /// A client that waits out its reset whenever nothing remains is then never refused.
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

/// Whether the request was admitted, and what its headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Admitted and counted.
    pub admitted: bool,
    /// For the headers.
    pub quotas: Quotas,
    counted: Counted,
}

/// Where a request was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// In this process.
    Here,
    /// In the shared store.
    Shared,
}

impl Verdict {
    /// Of counters in this process.
    fn here(admitted: bool, quotas: Quotas) -> Self {
        Self {
            admitted,
            quotas,
            counted: Counted::Here,
        }
    }

    /// Whether the shared store counted it.
    pub fn is_shared(&self) -> bool {
        self.counted == Counted::Shared
    }

    /// The quota that the three `X-RateLimit` headers report.
    pub fn quota(&self) -> Quota {
        self.quotas.binding()
    }
}

/// Whole seconds, rounded up.
fn secs_up(millis: u64) -> u32 {
    u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX)
}
