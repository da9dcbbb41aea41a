//! Time range of a log query.

use chrono::{DateTime, DurationRound, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Utc};

use crate::platform::error::Error;

/// Longest range of a query.
const RANGE_MAX: TimeDelta = TimeDelta::hours(24);
/// Default range of a query.
const RANGE: TimeDelta = TimeDelta::minutes(1);
const MINUTE: TimeDelta = TimeDelta::minutes(1);

/// Time range in whole minutes, exclusive start and inclusive end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Exclusive start.
    pub start: DateTime<Utc>,
    /// Inclusive end.
    pub end: DateTime<Utc>,
}

impl Window {
    /// Parses `iso_timestamp_start` and `iso_timestamp_end`. Empty parameters count as absent.
    pub fn parse(
        start: Option<&str>,
        end: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Self, Error> {
        let start = read("iso_timestamp_start", start)?;
        let end = read("iso_timestamp_end", end)?;
        let (start, end) = match (start, end) {
            (None, end) => {
                let end = end.unwrap_or(now);
                (end - RANGE, end)
            }
            (Some(start), end) => (start, end.unwrap_or(now)),
        };
        if end < start {
            return Err(Error::invalid(
                "iso_timestamp_end",
                "must not be before iso_timestamp_start",
            ));
        }
        let window = Self::around(start, end);
        // Counted in the whole minutes inside the range, so that neither the clock running on
        // between two readings nor the extension below makes a day too long.
        if whole_minutes(start, end) > RANGE_MAX {
            return Err(Error::invalid(
                "iso_timestamp_start",
                "must not be more than 24 hours before iso_timestamp_end",
            ));
        }
        Ok(window)
    }

    /// Extends a range to whole minutes, so that the most recent lines are included.
    pub fn around(start: DateTime<Utc>, end: DateTime<Utc>) -> Self {
        // Rounding fails only for times outside the calendar.
        let start = start.duration_trunc(MINUTE).unwrap_or(start);
        let end = end.duration_trunc(MINUTE).map_or(end, |whole| {
            if whole < end { whole + MINUTE } else { whole }
        });
        Self { start, end }
    }
}

/// Returns the length of the whole minutes inside a range.
fn whole_minutes(start: DateTime<Utc>, end: DateTime<Utc>) -> TimeDelta {
    let first = start.duration_trunc(MINUTE).map_or(start, |whole| {
        if whole < start { whole + MINUTE } else { whole }
    });
    let last = end.duration_trunc(MINUTE).unwrap_or(end);
    last - first
}

/// Parses an ISO 8601 date, with or without a time and an offset. The time follows `T` or a space.
fn read(field: &'static str, text: Option<&str>) -> Result<Option<DateTime<Utc>>, Error> {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let at = parse_time(text).or_else(|| parse_time(&with_plus(text)?));
    // Bounds that keep the arithmetic from overflowing.
    let within = |at: &DateTime<Utc>| (1970..=9000).contains(&chrono::Datelike::year(at));
    at.filter(within)
        .map(Some)
        .ok_or_else(|| Error::invalid(field, "Invalid ISO datetime"))
}

fn parse_time(text: &str) -> Option<DateTime<Utc>> {
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return (text.len() == "2026-01-01".len()).then(|| date.and_time(NaiveTime::MIN).and_utc());
    }
    let (date, time) = text.split_at_checked("2026-01-01".len())?;
    let time = time.strip_prefix([' ', 'T', 't'])?;
    // The parser below would skip it.
    if time.contains(char::is_whitespace) {
        return None;
    }
    let text = format!("{date}T{time}");
    if let Ok(at) = DateTime::parse_from_rfc3339(&text) {
        return Some(at.to_utc());
    }
    for format in ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M"] {
        if let Ok(at) = NaiveDateTime::parse_from_str(&text, format) {
            return Some(at.and_utc());
        }
    }
    None
}

/// Restores the plus sign of an offset that was not percent-encoded and is decoded as a space.
fn with_plus(text: &str) -> Option<String> {
    let (time, offset) = text.rsplit_once(' ')?;
    Some(format!("{time}+{offset}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(start: &str, end: &str) -> Result<(String, String), String> {
        let now = "2026-11-21T09:15:03.5Z".parse().unwrap();
        let window = Window::parse(Some(start), Some(end), now)
            .map_err(|error| error.message().into_owned())?;
        let text = |at: DateTime<Utc>| at.format("%d %H:%M:%S").to_string();
        Ok((text(window.start), text(window.end)))
    }

    #[test]
    fn a_window_is_whole_minutes_and_a_day_at_most() {
        let is = |start: &str, end: &str, from: &str, to: &str| {
            assert_eq!(parse(start, end), Ok((from.to_owned(), to.to_owned())));
        };
        is("", "", "21 09:14:00", "21 09:16:00");
        is(" ", "2026-11-21T08:00:00Z", "21 07:59:00", "21 08:00:00");
        is("2026-11-21T08:00:30Z", "", "21 08:00:00", "21 09:16:00");
        is("2026-11-20T09:15:03.5Z", "", "20 09:15:00", "21 09:16:00");
        is(
            "2026-11-21T08:00:00.001+02:00",
            "2026-11-21T06:00:00.001",
            "21 06:00:00",
            "21 06:01:00",
        );
        is(
            "2026-11-21T08:00:00 02:00",
            "2026-11-21T06:00:00Z",
            "21 06:00:00",
            "21 06:00:00",
        );
        // 24 hours before a present that goes on while the client asks for the time again.
        is(
            "2026-11-20T09:15:03.477Z",
            "2026-11-21T09:15:03.5Z",
            "20 09:15:00",
            "21 09:16:00",
        );
        is(
            "2026-11-20T09:14:59.990Z",
            "2026-11-21T09:15:00.013Z",
            "20 09:14:00",
            "21 09:16:00",
        );
        is(
            "2026-11-21",
            "2026-11-21T01:00",
            "21 00:00:00",
            "21 01:00:00",
        );
        is(
            "2026-11-20 12:00:00",
            "2026-11-21 06:00:00.5Z",
            "20 12:00:00",
            "21 06:01:00",
        );
        is(
            "2026-11-21 08:00:00 02:00",
            "2026-11-21 06:00:00+00:00",
            "21 06:00:00",
            "21 06:00:00",
        );
        let refused = |start: &str, end: &str, problem: &str| {
            assert_eq!(parse(start, end), Err(problem.to_owned()));
        };
        refused(
            "2026-11-20T09:13:59Z",
            "",
            "iso_timestamp_start: must not be more than 24 hours before iso_timestamp_end",
        );
        refused(
            "2026-11-21T09:15:03Z",
            "2026-11-21T09:15:02Z",
            "iso_timestamp_end: must not be before iso_timestamp_start",
        );
        for text in [
            "yesterday",
            "2026-11-21T",
            "2026-11-21 ago",
            "2026-11-2",
            "2026-11-211",
            "2026-11-21_08:00:00",
            "2026-11-21T08",
            "2026-11-21T25:00:00Z",
            "2026-11-21  08:00:00",
            "1795230000",
            "2026-13-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "-200000-01-01T00:00:00Z",
        ] {
            refused(text, "", "iso_timestamp_start: Invalid ISO datetime");
        }
    }
}
