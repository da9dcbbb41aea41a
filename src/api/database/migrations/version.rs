//! Versions of migrations, which define their order.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};

use crate::platform::error::Error;

/// Returns `now` as a version, or the successor of `latest` if that is not smaller: several
/// migrations in one second, a clock that was set back, or a version in the future.
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
        // 14 digits that are not a date, such as 20261399000000. Only the order matters.
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
    fn version_is_the_utc_time() {
        assert_eq!(next(at("20261101091503"), None).unwrap(), "20261101091503");
        assert_eq!(
            next(at("20261101091503"), Some("20261101091502")).unwrap(),
            "20261101091503"
        );
    }

    #[test]
    fn ten_versions_in_one_second_are_distinct() {
        let mut versions: Vec<String> = Vec::new();
        for _ in 0..10 {
            versions.push(next(at("20261231235955"), versions.last().map(String::as_str)).unwrap());
        }
        assert_eq!(versions[9], "20270101000004");
        assert!(versions.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn clock_set_back_keeps_the_order() {
        assert_eq!(
            next(at("20261101091503"), Some("20271231235959")).unwrap(),
            "20280101000000"
        );
    }

    #[test]
    fn version_other_than_a_date_has_a_successor() {
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
