//! Rows for the gaps of a sorted column: `ORDER BY … WITH FILL`.

use chrono::{DateTime, Days, NaiveDate, NaiveDateTime};
use serde_json::{Map, Value as Json};

/// The filling of gaps in the rows of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fill {
    /// Position of the sorted column.
    pub(crate) column: usize,
    pub(crate) unit: FillUnit,
    /// Distance of rows in the unit, negative in descending order.
    pub(crate) step: i64,
    /// SQL of a row with the first value and the exclusive last value in the unit, each null if
    /// the rows decide.
    pub(crate) bounds: String,
    /// Values of the columns in new rows.
    pub(crate) defaults: Vec<Json>,
}

/// The unit of a sorted column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillUnit {
    /// Integers without a unit.
    Number,
    /// Timestamps in seconds.
    Second,
    /// Dates.
    Day,
    /// Timestamps in microseconds.
    Microsecond,
}

const SECONDS: &str = "%Y-%m-%dT%H:%M:%S";
const MICROSECONDS: &str = "%Y-%m-%dT%H:%M:%S%.6f";

impl FillUnit {
    /// Returns the length in microseconds, 0 for numbers.
    pub(crate) fn micros(self) -> i64 {
        match self {
            Self::Number => 0,
            Self::Second => 1_000_000,
            Self::Day => 86_400_000_000,
            Self::Microsecond => 1,
        }
    }

    fn parse(self, value: &Json) -> Option<i64> {
        match self {
            Self::Number => value.as_i64(),
            Self::Second => {
                let at = NaiveDateTime::parse_from_str(value.as_str()?, SECONDS).ok()?;
                Some(at.and_utc().timestamp())
            }
            Self::Day => {
                let date = NaiveDate::parse_from_str(value.as_str()?, "%Y-%m-%d").ok()?;
                Some(date.signed_duration_since(NaiveDate::default()).num_days())
            }
            Self::Microsecond => {
                let at = NaiveDateTime::parse_from_str(value.as_str()?, "%Y-%m-%dT%H:%M:%S%.f");
                Some(at.ok()?.and_utc().timestamp_micros())
            }
        }
    }

    fn render(self, value: i64) -> Json {
        match self {
            Self::Number => value.into(),
            Self::Second => match DateTime::from_timestamp_secs(value) {
                Some(at) => at.format(SECONDS).to_string().into(),
                None => Json::Null,
            },
            Self::Day => {
                let days = u64::try_from(value).ok().map(Days::new);
                let date = days.and_then(|days| NaiveDate::default().checked_add_days(days));
                match date {
                    Some(date) => date.format("%Y-%m-%d").to_string().into(),
                    None => Json::Null,
                }
            }
            Self::Microsecond => match DateTime::from_timestamp_micros(value) {
                Some(at) => at.format(MICROSECONDS).to_string().into(),
                None => Json::Null,
            },
        }
    }
}

type JsonRow = Map<String, Json>;

impl Fill {
    /// Returns the rows with rows for gaps, at most `rows_max`.
    pub(super) fn fill(
        &self,
        columns: &[String],
        rows: Vec<JsonRow>,
        (from, to): (Option<i64>, Option<i64>),
        rows_max: usize,
    ) -> Vec<JsonRow> {
        let Some(name) = columns.get(self.column) else {
            return rows;
        };
        let mut filled: Vec<JsonRow> = Vec::new();
        let mut next = from;
        let mut nulls = Vec::new();
        for row in rows {
            let Some(value) = row.get(name).and_then(|value| self.unit.parse(value)) else {
                nulls.push(row);
                continue;
            };
            next = self.add_until(&mut filled, columns, next, value, rows_max);
            filled.push(row);
            let mut after = next.unwrap_or(value);
            if !self.is_before(value, after) {
                let steps = (value - after) / self.step + 1;
                after = after.saturating_add(steps.saturating_mul(self.step));
            }
            next = Some(after);
        }
        if let Some(to) = to {
            self.add_until(&mut filled, columns, next, to, rows_max);
        }
        filled.extend(nulls);
        filled.truncate(rows_max);
        filled
    }

    /// Whether a value is sorted before another.
    fn is_before(&self, value: i64, other: i64) -> bool {
        if self.step > 0 {
            value < other
        } else {
            value > other
        }
    }

    /// Adds rows up to a value, exclusively. Returns the value of the next row.
    fn add_until(
        &self,
        filled: &mut Vec<JsonRow>,
        columns: &[String],
        mut next: Option<i64>,
        value: i64,
        rows_max: usize,
    ) -> Option<i64> {
        while let Some(at) = next.filter(|at| self.is_before(*at, value)) {
            if filled.len() >= rows_max {
                break;
            }
            let values = columns.iter().cloned().zip(self.defaults.iter().cloned());
            let mut row: JsonRow = values.collect();
            if let Some(name) = columns.get(self.column) {
                row.insert(name.clone(), self.unit.render(at));
            }
            filled.push(row);
            next = at.checked_add(self.step);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(step: i64, values: &[i64], from: Option<i64>, to: Option<i64>) -> Vec<i64> {
        let fill = Fill {
            column: 0,
            unit: FillUnit::Number,
            step,
            bounds: String::new(),
            defaults: vec![json!(0), json!("")],
        };
        let columns = ["n".to_owned(), "x".to_owned()];
        let rows = values
            .iter()
            .map(|n| {
                columns
                    .iter()
                    .cloned()
                    .zip([json!(n), json!("y")])
                    .collect()
            })
            .collect();
        let rows = fill.fill(&columns, rows, (from, to), 20);
        rows.iter().map(|row| row["n"].as_i64().unwrap()).collect()
    }

    #[test]
    fn gaps_between_bounds_are_filled_in_the_direction_of_the_order() {
        assert_eq!(filled(1, &[1, 4], None, None), [1, 2, 3, 4]);
        assert_eq!(filled(2, &[0, 5], None, Some(8)), [0, 2, 4, 5, 6]);
        assert_eq!(filled(2, &[3], Some(0), Some(7)), [0, 2, 3, 4, 6]);
        assert_eq!(filled(-1, &[4, 2], None, Some(0)), [4, 3, 2, 1]);
        assert_eq!(filled(1, &[], Some(0), Some(2)), [0, 1]);
        assert_eq!(filled(1, &[], None, Some(2)), [0_i64; 0]);
        assert_eq!(filled(1, &[5, 5, 6], Some(5), None), [5, 5, 6]);
        assert_eq!(filled(1, &[0], None, Some(i64::MAX)).len(), 20);
    }
}
