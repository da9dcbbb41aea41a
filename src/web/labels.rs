//! Labels on pages: relative times, project states, counts and browser names.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::control::projects::Status;

/// A time relative to the current time, for `<time>` elements.
pub(super) struct Timestamp {
    at: DateTime<Utc>,
    now: DateTime<Utc>,
}

impl Timestamp {
    pub(super) fn new(at: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        Self { at, now }
    }

    /// Returns the time in RFC 3339, to the second.
    pub(super) fn iso(&self) -> String {
        self.at.format("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Returns the date and time in UTC, such as `21 Nov 2026, 09:15 UTC`.
    pub(super) fn full(&self) -> String {
        self.at.format("%-d %b %Y, %H:%M UTC").to_string()
    }

    /// Returns the time until then, such as `in 2 minutes`; a date from 30 days on.
    pub(super) fn remaining(&self) -> String {
        // Rounded up: a lifetime of 7 days reads "in 7 days" although the page is rendered later.
        let minutes = (self.at - self.now + TimeDelta::seconds(59)).num_minutes();
        match minutes {
            ..2 => "in less than 2 minutes".to_owned(),
            2..43_200 => format!("in {}", duration(minutes)),
            _ => format!("on {}", self.at.format("%-d %b %Y")),
        }
    }

    /// Returns the age, such as `2 minutes ago`; a date from 30 days on.
    pub(super) fn ago(&self) -> String {
        let minutes = (self.now - self.at).num_minutes();
        match minutes {
            ..2 => "just now".to_owned(),
            2..43_200 => format!("{} ago", duration(minutes)),
            _ => self.at.format("%-d %b %Y").to_string(),
        }
    }
}

/// Returns the largest whole unit of a duration, such as `3 hours`.
fn duration(minutes: i64) -> String {
    match minutes {
        ..60 => pluralize(minutes, "minute"),
        60..1440 => pluralize(minutes / 60, "hour"),
        _ => pluralize(minutes / 1440, "day"),
    }
}

/// Returns the label and style class of a project status.
pub(super) const fn status_label(status: Status) -> (&'static str, &'static str) {
    match status {
        Status::ComingUp => ("Starting", "busy"),
        Status::ActiveHealthy => ("Healthy", "good"),
        Status::ActiveUnhealthy => ("Unhealthy", "bad"),
        Status::InitFailed => ("Creation failed", "bad"),
        Status::Pausing => ("Pausing", "busy"),
        Status::Inactive => ("Paused", "idle"),
        Status::PauseFailed => ("Pause failed", "bad"),
        Status::Restoring => ("Restoring", "busy"),
        Status::RestoreFailed => ("Restore failed", "bad"),
        Status::Restarting => ("Restarting", "busy"),
        Status::Upgrading => ("Upgrading", "busy"),
        Status::GoingDown => ("Deleting", "busy"),
        Status::Removed => ("Deleted", "idle"),
    }
}

/// Returns a count with its noun, such as `1 project` or `2 projects`.
pub(super) fn pluralize(count: impl TryInto<i64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(i64::MAX);
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the duration in seconds, rounded up.
pub(super) fn ceil_secs(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// Returns the message for a sign-in attempt that is rejected until `wait` has passed.
pub(super) fn retry_message(wait: Duration) -> String {
    let wait = match ceil_secs(wait) {
        secs @ ..120 => pluralize(i64::try_from(secs).unwrap_or(i64::MAX), "second"),
        secs => pluralize(
            i64::try_from(secs.div_ceil(60)).unwrap_or(i64::MAX),
            "minute",
        ),
    };
    format!("Too many attempts. Try again in {wait}.")
}

/// Returns the name of the browser and system of a `User-Agent` header. The first match counts:
/// most browsers also name others.
pub(super) fn browser_name(user_agent: &str) -> String {
    let find = |names: &[(&str, &'static str)]| {
        names
            .iter()
            .find(|(token, _)| user_agent.contains(token))
            .map(|(_, name)| *name)
    };
    let browser = find(&[
        ("Edg/", "Edge"),
        ("OPR/", "Opera"),
        ("Firefox/", "Firefox"),
        ("FxiOS/", "Firefox"),
        ("CriOS/", "Chrome"),
        ("Chrome/", "Chrome"),
        ("Safari/", "Safari"),
        ("curl/", "curl"),
    ]);
    let system = find(&[
        ("iPhone", "iPhone"),
        ("iPad", "iPad"),
        ("Android", "Android"),
        ("CrOS", "ChromeOS"),
        ("Windows", "Windows"),
        ("Mac OS X", "macOS"),
        ("Linux", "Linux"),
    ]);
    match (browser, system) {
        (Some(browser), Some(system)) => format!("{browser} on {system}"),
        (Some(name), None) | (None, Some(name)) => name.to_owned(),
        (None, None) => "Unknown browser".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_the_largest_unit() {
        let now: DateTime<Utc> = "2026-11-21T09:15:03Z".parse().unwrap();
        let ago = |secs| Timestamp::new(now - TimeDelta::seconds(secs), now).ago();
        let cases = [
            (-5, "just now"),
            (0, "just now"),
            (119, "just now"),
            (120, "2 minutes ago"),
            (3600, "1 hour ago"),
            (86_399, "23 hours ago"),
            (86_400, "1 day ago"),
            (29 * 86_400, "29 days ago"),
            (30 * 86_400, "22 Oct 2026"),
        ];
        for (secs, expected) in cases {
            assert_eq!(ago(secs), expected);
        }
        let remaining = |secs| Timestamp::new(now + TimeDelta::seconds(secs), now).remaining();
        let cases = [
            (60, "in less than 2 minutes"),
            (120, "in 2 minutes"),
            (3600, "in 1 hour"),
            (7 * 86_400, "in 7 days"),
            (30 * 86_400, "on 21 Dec 2026"),
        ];
        for (secs, expected) in cases {
            assert_eq!(remaining(secs), expected);
        }
        assert_eq!(Timestamp::new(now, now).full(), "21 Nov 2026, 09:15 UTC");
        assert_eq!(Timestamp::new(now, now).iso(), "2026-11-21T09:15:03Z");
    }

    #[test]
    fn retry_message_rounds_the_wait_up() {
        for (millis, expected) in [
            (1, "1 second"),
            (1_000, "1 second"),
            (1_001, "2 seconds"),
            (119_000, "119 seconds"),
            (120_000, "2 minutes"),
            (120_001, "3 minutes"),
        ] {
            assert_eq!(
                retry_message(Duration::from_millis(millis)),
                format!("Too many attempts. Try again in {expected}.")
            );
        }
    }

    #[test]
    fn browser_name_is_the_most_specific_match() {
        let chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36";
        let cases = [
            (chrome, "Chrome on Linux"),
            (&format!("{chrome} Edg/156.0"), "Edge on Linux"),
            (
                "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.0 Safari/605.1.15",
                "Safari on macOS",
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit Version/18.0 Safari/604.1",
                "Safari on iPhone",
            ),
            (
                "Mozilla/5.0 (Windows NT 10.0; rv:140.0) Gecko/20100101 Firefox/140.0",
                "Firefox on Windows",
            ),
            ("curl/8.5", "curl"),
            ("", "Unknown browser"),
        ];
        for (user_agent, name) in cases {
            assert_eq!(browser_name(user_agent), name, "{user_agent}");
        }
    }
}
