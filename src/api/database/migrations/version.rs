//! Versions: what orders migrations.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};

use crate::base::error::Error;

/// `now` as a version, or the next one after `latest` if that is not greater: several in one second, a clock that was
/// set back, a file dated in the future.
pub(super) fn next(now: DateTime<Utc>, latest: Option<&str>) -> Result<String, Error> {
    const FORM: &str = "%Y%m%d%H%M%S";
    let version = now.format(FORM).to_string();
    let Some(latest) = latest.filter(|latest| *latest >= version.as_str()) else {
        return Ok(version);
    };
    let next = match NaiveDateTime::parse_from_str(latest, FORM) {
        Ok(time) => time
            .checked_add_signed(TimeDelta::seconds(1))
            .map(|time| time.format(FORM).to_string()),
        // 14 digits that are no date, such as 20261399000000: only the order matters.
        Err(_) => latest
            .parse::<u64>()
            .ok()
            .map(|number| format!("{:014}", number + 1)),
    };
    next.filter(|next| next.len() == 14 && next.as_str() > latest)
        .ok_or_else(|| {
            Error::Rejected(
                format!("No version is left after {latest}; remove it from the history").into(),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(version: &str) -> DateTime<Utc> {
        NaiveDateTime::parse_from_str(version, "%Y%m%d%H%M%S")
            .unwrap()
            .and_utc()
    }

    #[test]
    fn a_version_is_the_time_in_utc() {
        assert_eq!(next(at("20261101091503"), None).unwrap(), "20261101091503");
        assert_eq!(
            next(at("20261101091503"), Some("20261101091502")).unwrap(),
            "20261101091503"
        );
    }

    #[test]
    fn ten_in_one_second_are_ten_versions() {
        let mut versions: Vec<String> = Vec::new();
        for _ in 0..10 {
            versions.push(next(at("20261231235955"), versions.last().map(String::as_str)).unwrap());
        }
        assert_eq!(versions[9], "20270101000004");
        assert!(versions.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_clock_set_back_does_not_reorder() {
        assert_eq!(
            next(at("20261101091503"), Some("20271231235959")).unwrap(),
            "20280101000000"
        );
    }

    #[test]
    fn versions_that_are_no_dates_are_passed_too() {
        assert_eq!(
            next(at("20261101091503"), Some("20261399999999")).unwrap(),
            "20261400000000"
        );
        assert_eq!(
            next(at("20261101091503"), Some("00000000000042")).unwrap(),
            "20261101091503"
        );
        for last in ["99999999999999", "99991231235959"] {
            assert!(next(at("20261101091503"), Some(last)).is_err(), "{last}");
        }
    }
}
