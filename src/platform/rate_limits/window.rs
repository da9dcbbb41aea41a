//! Windows of rate limits, and the limits of operations.

/// A window of a rate limit.
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

/// Largest number of windows of a limit: a quota and a burst.
pub const WINDOWS_MAX: usize = 2;

/// The limit of an operation. A request is counted in every window, or in none if one of them
/// rejects it.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    /// Source of the counter's scope.
    pub key: LimitKey,
    /// One or [two](WINDOWS_MAX) windows, the longest first. Overrides change the first.
    pub windows: &'static [Window],
}

impl Limit {
    /// Returns the windows that requests of callers are counted in.
    pub fn counted(&self) -> &'static [Window] {
        if self.key == LimitKey::Uncounted {
            &[]
        } else {
            self.windows
        }
    }
}

/// Source of the scope of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKey {
    /// The project of `{ref}` in the path, the organization of `{slug}`, or otherwise the user.
    Path,
    /// The user, independent of the path. For operations that are open to non-members.
    Caller,
    /// The organization that a field of the JSON body names.
    OrganizationInBody {
        /// Names of the field, the current one first.
        fields: &'static [&'static str],
    },
    /// Requests of authenticated callers are not counted and always report the whole quota.
    /// Anonymous clients are counted by address, and callers for unknown values of `ref` or `slug`
    /// in the query, which bounds the look-ups.
    Uncounted,
}

/// Returns a window of `requests` in `secs` seconds.
pub const fn per(requests: u32, secs: u32) -> Window {
    Window { requests, secs }
}

const fn by_path(windows: &'static [Window]) -> Limit {
    Limit {
        key: LimitKey::Path,
        windows,
    }
}

/// 120 requests a minute.
pub static STANDARD: Limit = by_path(&[per(120, 60)]);
/// 120 requests a minute, counted for the user.
pub static STANDARD_BY_CALLER: Limit = Limit {
    key: LimitKey::Caller,
    windows: &[per(120, 60)],
};
/// 120 requests a minute, counted for the organization in the body.
pub static STANDARD_BY_BODY: Limit = Limit {
    key: LimitKey::OrganizationInBody {
        fields: &["organization_slug", "organization_id"],
    },
    windows: &[per(120, 60)],
};
/// 30 requests a minute, for analytics.
pub static ANALYTICS: Limit = by_path(&[per(30, 60)]);
/// 10 requests a minute, for hostnames and subdomains.
pub static DOMAINS: Limit = by_path(&[per(10, 60)]);
/// 10 requests a minute and 1 a second, for the database context.
pub static CONTEXT: Limit = by_path(&[per(10, 60), per(1, 1)]);
/// 120 requests in three minutes, for migrations.
pub static MIGRATIONS: Limit = by_path(&[per(120, 180)]);

/// 10 requests a minute, for requests that send webhooks.
pub static WEBHOOK_TESTS: Limit = by_path(&[per(10, 60)]);

/// 10 requests an hour, for the registration of OAuth applications.
pub static REGISTRATIONS: Limit = by_path(&[per(10, 3_600)]);

/// No limit for authenticated callers.
pub static UNCOUNTED: Limit = Limit {
    key: LimitKey::Uncounted,
    windows: &[per(120, 60)],
};

/// 600 look-ups a minute for each identifier: queries for names that do not belong to the caller.
/// Protects the control database. A client that mistypes a name reaches the limit of its operation
/// first.
pub static LOOK_UPS: &[Window] = &[per(600, 60)];
