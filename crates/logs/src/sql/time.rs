//! Time units, intervals and functions of time.

use super::{
    Result, SqlExpr, Translator, Type, call::Call, excerpt, invalid, quote_literal, scope::Scope,
};
use crate::engine::sqlparser::ast::{Expr, Interval, Value};

/// Maximum length of an interval in units.
const INTERVAL_MAX: i64 = 1_000_000;

impl<'a> Translator<'a> {
    /// The number of units between two timestamps. `ClickHouse` counts the unit boundaries between
    /// them, `BigQuery` the whole units.
    pub(crate) fn time_difference(
        &mut self,
        unit_at: usize,
        timestamps_at: (usize, usize),
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let Some(unit) = call.args.get(unit_at) else {
            return invalid("A time unit is missing");
        };
        let unit = time_unit(unit)?;
        let (from, _) = self.argument(call, timestamps_at.0, "m", scope)?;
        let (to, _) = self.argument(call, timestamps_at.1, "m", scope)?;
        let micros: i64 = match unit {
            "microsecond" => 1,
            "millisecond" => 1_000,
            "second" => 1_000_000,
            "minute" => 60_000_000,
            "hour" => 3_600_000_000,
            "day" => 86_400_000_000,
            "week" => 604_800_000_000,
            _ => return invalid("Differences are taken in weeks or shorter units"),
        };
        let from = self.difference_operand(unit, from);
        let to = self.difference_operand(unit, to);
        Ok(SqlExpr::new(
            format!("(({to} - {from}) / {micros})"),
            Type::Integer,
        ))
    }

    fn difference_operand(&self, unit: &str, timestamp: String) -> String {
        let timestamp = if self.is_clickhouse() {
            format!("date_trunc('{unit}', {timestamp})")
        } else {
            timestamp
        };
        format!("CAST(arrow_cast({timestamp}, 'Timestamp(Microsecond, None)') AS BIGINT)")
    }

    /// The current time in seconds, in microseconds or as a date.
    pub(crate) fn current_time(&self, ty: Type) -> SqlExpr {
        let micros = format!("arrow_cast({}, 'Timestamp(Microsecond, None)')", self.now);
        match ty {
            Type::Seconds => {
                let seconds = self.now.div_euclid(1_000_000);
                SqlExpr::new(
                    format!("arrow_cast({seconds}, 'Timestamp(Second, None)')"),
                    ty,
                )
            }
            Type::Date => SqlExpr::new(format!("CAST({micros} AS DATE)"), ty),
            _ => SqlExpr::new(micros, Type::Timestamp),
        }
    }

    /// Formats a timestamp with a `strftime` format.
    pub(crate) fn format_time(
        &mut self,
        timestamp_at: usize,
        format_at: usize,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let format = self.literal(call, format_at, scope)?;
        let mut translated = String::new();
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            translated.push(character);
            if character != '%' {
                continue;
            }
            match rest.next() {
                Some('i') if self.is_clickhouse() => translated.push('M'),
                Some(
                    specifier @ ('Y' | 'm' | 'd' | 'H' | 'M' | 'S' | 'j' | 'y' | 'F' | 'T' | 'u'
                    | 'w' | 'a' | 'A' | 'b' | 'B' | 'e' | 'I' | 'p' | '%'),
                ) => translated.push(specifier),
                _ => return invalid("This timestamp format is not supported"),
            }
        }
        let (timestamp, _) = self.argument(call, timestamp_at, "m", scope)?;
        Ok(SqlExpr::new(
            format!("to_char({timestamp}, {})", quote_literal(&translated)),
            Type::Text,
        ))
    }

    pub(super) fn interval(interval: &Interval) -> Result<SqlExpr> {
        let Interval {
            value,
            leading_field: Some(unit),
            leading_precision: None,
            last_field: None,
            fractional_seconds_precision: None,
        } = interval
        else {
            return invalid("INTERVAL requires a number and a unit");
        };
        let count = interval_count(value);
        let unit = time_unit_named(&unit.to_string())?;
        let Some(count) = count.filter(|count| (-INTERVAL_MAX..=INTERVAL_MAX).contains(count))
        else {
            return invalid(format!("INTERVAL takes at most {INTERVAL_MAX} whole units"));
        };
        let (count, unit) = match unit {
            "quarter" => (count * 3, "month"),
            unit => (count, unit),
        };
        Ok(SqlExpr::new(
            format!("INTERVAL '{count} {unit}'"),
            Type::Interval,
        ))
    }
}

fn interval_count(value: &Expr) -> Option<i64> {
    let Expr::Value(value) = value else {
        return None;
    };
    match &value.value {
        Value::Number(digits, _)
        | Value::SingleQuotedString(digits)
        | Value::DoubleQuotedString(digits) => digits.parse().ok(),
        _ => None,
    }
}

/// Returns the time unit that an identifier or a string names.
pub(super) fn time_unit(expr: &Expr) -> Result<&'static str> {
    let text = match expr {
        Expr::Identifier(ident) => ident.value.as_str(),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => text,
            _ => "",
        },
        _ => "",
    };
    time_unit_named(text)
}

/// Returns the engine's name of a time unit, which can be given in the plural.
pub(super) fn time_unit_named(text: &str) -> Result<&'static str> {
    const UNITS: [&str; 10] = [
        "microsecond",
        "millisecond",
        "second",
        "minute",
        "hour",
        "day",
        "week",
        "month",
        "year",
        "quarter",
    ];
    let lower = text.to_ascii_lowercase();
    let singular = match lower.strip_suffix('s').unwrap_or(&lower) {
        "isoweek" => "week",
        singular => singular,
    };
    match UNITS.into_iter().find(|unit| *unit == singular) {
        Some(unit) => Ok(unit),
        None => invalid(format!("{} is not a time unit", excerpt(text))),
    }
}
