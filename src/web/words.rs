//! Small words of pages: times and browsers as people name them.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::data_plane::projects::Status;

/// A time, and how long ago that is: what a `<time>` element says.
pub(super) struct Moment {
    at: DateTime<Utc>,
    now: DateTime<Utc>,
}

impl Moment {
    pub(super) fn new(at: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        Self { at, now }
    }

    /// For machines.
    pub(super) fn iso(&self) -> String {
        self.at.format("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// In full.
    pub(super) fn full(&self) -> String {
        self.at.format("%-d %b %Y, %H:%M UTC").to_string()
    }

    /// How long until then, as far as it matters.
    pub(super) fn left(&self) -> String {
        // A life of seven days is one of seven days when its page is shown, a moment later.
        let minutes = (self.at - self.now + TimeDelta::seconds(59)).num_minutes();
        let of = |count: i64, unit: &str| {
            format!("in {count} {unit}{}", if count == 1 { "" } else { "s" })
        };
        match minutes {
            ..2 => "any moment".to_owned(),
            2..60 => of(minutes, "minute"),
            60..1440 => of(minutes / 60, "hour"),
            1440..43_200 => of(minutes / 1440, "day"),
            _ => format!("on {}", self.at.format("%-d %b %Y")),
        }
    }

    /// As far as it matters.
    pub(super) fn ago(&self) -> String {
        let minutes = (self.now - self.at).num_minutes();
        let of = |count: i64, unit: &str| {
            format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
        };
        match minutes {
            ..2 => "just now".to_owned(),
            2..60 => of(minutes, "minute"),
            60..1440 => of(minutes / 60, "hour"),
            1440..43_200 => of(minutes / 1440, "day"),
            _ => self.at.format("%-d %b %Y").to_string(),
        }
    }
}

/// A project's state in words, and how it is marked.
pub(super) const fn state(status: Status) -> (&'static str, &'static str) {
    match status {
        Status::ComingUp => ("Starting", "busy"),
        Status::ActiveHealthy => ("Healthy", "good"),
        Status::ActiveUnhealthy => ("Unhealthy", "bad"),
        Status::InitFailed => ("Could not be created yet", "bad"),
        Status::Pausing => ("Pausing", "busy"),
        Status::Inactive => ("Paused", "idle"),
        Status::PauseFailed => ("Could not be paused yet", "bad"),
        Status::Restoring => ("Restoring", "busy"),
        Status::RestoreFailed => ("Could not be restored yet", "bad"),
        Status::Restarting => ("Restarting", "busy"),
        Status::GoingDown => ("Going down", "busy"),
        Status::Removed => ("Removed", "idle"),
    }
}

/// So many of something.
pub(super) fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Seconds until a time is over, none too few.
pub(super) fn whole_secs(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// Why a password is not tried now.
pub(super) fn held(wait: Duration) -> String {
    let wait = match whole_secs(wait) {
        1 => "a second".to_owned(),
        secs @ ..120 => format!("{secs} seconds"),
        secs => format!("{} minutes", secs.div_ceil(60)),
    };
    format!("Too many attempts. Try again in {wait}.")
}

/// What people call a browser that names itself so. Order matters: most name others as well.
pub(super) fn browser(user_agent: &str) -> String {
    let named = |names: &[(&str, &'static str)]| {
        names
            .iter()
            .find(|(mark, _)| user_agent.contains(mark))
            .map(|(_, name)| *name)
    };
    let browser = named(&[
        ("Edg/", "Edge"),
        ("OPR/", "Opera"),
        ("Firefox/", "Firefox"),
        ("FxiOS/", "Firefox"),
        ("CriOS/", "Chrome"),
        ("Chrome/", "Chrome"),
        ("Safari/", "Safari"),
        ("curl/", "curl"),
    ]);
    let system = named(&[
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
    fn times_are_told_as_far_as_they_matter() {
        let now: DateTime<Utc> = "2026-11-21T09:15:03Z".parse().unwrap();
        let ago = |secs| Moment::new(now - TimeDelta::seconds(secs), now).ago();
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
        for (secs, said) in cases {
            assert_eq!(ago(secs), said);
        }
        let left = |secs| Moment::new(now + TimeDelta::seconds(secs), now).left();
        let cases = [
            (60, "any moment"),
            (120, "in 2 minutes"),
            (3600, "in 1 hour"),
            (7 * 86_400, "in 7 days"),
            (30 * 86_400, "on 21 Dec 2026"),
        ];
        for (secs, said) in cases {
            assert_eq!(left(secs), said);
        }
        assert_eq!(Moment::new(now, now).full(), "21 Nov 2026, 09:15 UTC");
        assert_eq!(Moment::new(now, now).iso(), "2026-11-21T09:15:03Z");
    }

    #[test]
    fn waits_are_never_told_too_short() {
        for (millis, said) in [
            (1, "a second"),
            (1_000, "a second"),
            (1_001, "2 seconds"),
            (119_000, "119 seconds"),
            (120_000, "2 minutes"),
            (120_001, "3 minutes"),
        ] {
            assert_eq!(
                held(Duration::from_millis(millis)),
                format!("Too many attempts. Try again in {said}.")
            );
        }
    }

    #[test]
    fn browsers_are_told_by_what_only_they_say() {
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
            assert_eq!(browser(user_agent), name, "{user_agent}");
        }
    }
}
