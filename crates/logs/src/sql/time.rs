//! Time units, intervals and functions of time.

use super::{
    call::{ArgumentType, Call},
    literal::index_literal,
    scope::Scope,
    sql_expr::{SqlExpr, Type},
    text::{Result, excerpt, invalid, quote_literal},
    translator::Translator,
};
use crate::engine::{
    TimeZone,
    sqlparser::ast::{Expr, Interval, Value},
};

/// Maximum length of an interval in units.
const INTERVAL_MAX: i64 = 1_000_000;

/// Specifiers of `formatDateTime` and their form in the engine.
const CLICKHOUSE_FORMAT: &[(char, &str)] = &[
    ('a', "%a"),
    ('b', "%b"),
    ('c', "%-m"),
    ('C', "%C"),
    ('d', "%d"),
    ('D', "%m/%d/%y"),
    ('e', "%-d"),
    ('f', "%6f"),
    ('F', "%Y-%m-%d"),
    ('g', "%g"),
    ('G', "%G"),
    ('h', "%I"),
    ('H', "%H"),
    ('i', "%M"),
    ('I', "%I"),
    ('j', "%j"),
    ('k', "%H"),
    ('l', "%I"),
    ('m', "%m"),
    ('M', "%B"),
    ('n', "\n"),
    ('p', "%p"),
    ('r', "%I:%M %p"),
    ('R', "%H:%M"),
    ('s', "%S"),
    ('S', "%S"),
    ('t', "\t"),
    ('T', "%H:%M:%S"),
    ('u', "%u"),
    ('V', "%V"),
    ('w', "%w"),
    ('W', "%A"),
    ('y', "%y"),
    ('Y', "%Y"),
    ('z', "+0000"),
    ('%', "%%"),
];

/// Specifiers of `FORMAT_TIMESTAMP` and their form in the engine.
const BIGQUERY_FORMAT: &[(char, &str)] = &[
    ('a', "%a"),
    ('A', "%A"),
    ('b', "%b"),
    ('B', "%B"),
    ('C', "%C"),
    ('d', "%d"),
    ('D', "%m/%d/%y"),
    ('e', "%e"),
    ('F', "%Y-%m-%d"),
    ('g', "%g"),
    ('G', "%G"),
    ('h', "%b"),
    ('H', "%H"),
    ('I', "%I"),
    ('j', "%j"),
    ('k', "%k"),
    ('l', "%l"),
    ('m', "%m"),
    ('M', "%M"),
    ('n', "\n"),
    ('p', "%p"),
    ('R', "%H:%M"),
    ('S', "%S"),
    ('t', "\t"),
    ('T', "%H:%M:%S"),
    ('u', "%u"),
    ('V', "%V"),
    ('w', "%w"),
    ('y', "%y"),
    ('Y', "%Y"),
    ('Z', "UTC"),
    ('z', "+0000"),
    ('%', "%%"),
];

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
        let (from, from_type) = self.argument(call, timestamps_at.0, "m", scope)?;
        let (to, to_type) = self.argument(call, timestamps_at.1, "m", scope)?;
        let is_local = |ty: Option<ArgumentType>| ty.is_some_and(|it| it.ty == Type::Local);
        if is_local(from_type) != is_local(to_type) {
            return invalid("A time in a time zone is comparable only in the same time zone");
        }
        let Some(micros) = unit_micros(unit) else {
            return self.calendar_difference(unit, &from, &to);
        };
        let from = self.difference_operand(unit, from);
        let to = self.difference_operand(unit, to);
        Ok(SqlExpr::new(
            format!("(({to} - {from}) / {micros})"),
            Type::Integer,
        ))
    }

    /// The number of months, quarters or years between two timestamps.
    fn calendar_difference(&self, unit: &str, from: &str, to: &str) -> Result<SqlExpr> {
        if !self.is_clickhouse() {
            return invalid("Differences are taken in weeks or shorter units");
        }
        let months = |timestamp: &str| {
            format!("(date_part('year', {timestamp}) * 12 + date_part('month', {timestamp}) - 1)")
        };
        let length = match unit {
            "month" => 1,
            "quarter" => 3,
            _ => 12,
        };
        let sql = format!(
            "CAST({} / {length} - {} / {length} AS BIGINT)",
            months(to),
            months(from)
        );
        Ok(SqlExpr::new(sql, Type::Integer))
    }

    /// `addHours` and similar functions: adds or subtracts a number of units.
    pub(crate) fn add_units(
        &mut self,
        unit: &str,
        sign: i64,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let [time, count] = call.args.as_slice() else {
            return invalid(format!("Function {} takes a time and a number", call.name));
        };
        let time = self.expression(time, scope)?;
        let ty = match time.ty {
            Type::Text | Type::Unknown | Type::Integer => Type::Timestamp,
            Type::Date if unit_micros(unit).is_some_and(|it| it < 86_400_000_000) => Type::Seconds,
            ty => ty,
        };
        let timestamp = time.timestamp(self.dialect);
        let micros = format!("arrow_cast({timestamp}, 'Timestamp(Microsecond, None)')");
        let sum = match (index_literal(count), unit_micros(unit)) {
            (Some(count), _) => {
                let interval = interval_of(count.saturating_mul(sign), unit)?;
                format!("({micros} + {})", interval.sql)
            }
            (None, Some(length)) => {
                let count = self.expression(count, scope)?.integer();
                format!(
                    "to_timestamp_micros(CAST({micros} AS BIGINT) + {count} * {})",
                    length * sign
                )
            }
            (None, None) => return invalid("A number of months must be a literal"),
        };
        let sql = match ty {
            Type::Seconds => format!("arrow_cast({sum}, 'Timestamp(Second, None)')"),
            Type::Date => format!("CAST({sum} AS DATE)"),
            _ => sum,
        };
        Ok(SqlExpr::new(sql, ty).nullable(time.nullable))
    }

    /// `toIntervalHour(n)` and similar functions.
    pub(crate) fn interval_function(unit: &str, call: &Call<'a>) -> Result<SqlExpr> {
        let count = call.args.first().and_then(|count| index_literal(count));
        match count {
            Some(count) => interval_of(count, unit),
            None => invalid("INTERVAL requires a whole number of units"),
        }
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
        let specifiers = if self.is_clickhouse() {
            CLICKHOUSE_FORMAT
        } else {
            BIGQUERY_FORMAT
        };
        let mut translated = String::new();
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                translated.push(character);
                continue;
            }
            let specifier = rest.next();
            let found = specifiers.iter().find(|(from, _)| Some(*from) == specifier);
            match found {
                Some((_, to)) => translated.push_str(to),
                None => return invalid("This timestamp format is not supported"),
            }
        }
        let (timestamp, _) = self.argument(call, timestamp_at, "m", scope)?;
        Ok(SqlExpr::new(
            format!("to_char({timestamp}, {})", quote_literal(&translated)),
            Type::Text,
        ))
    }

    /// The date before the current one.
    pub(crate) fn yesterday(&self) -> SqlExpr {
        let today = self.current_time(Type::Date).sql;
        SqlExpr::new(
            format!("CAST({today} - INTERVAL '1 day' AS DATE)"),
            Type::Date,
        )
    }

    /// Returns `now` in the time zone of the call, if it has one.
    pub(crate) fn now_in_zone(&self, ty: Type, call: &Call<'a>) -> SqlExpr {
        let now = self.current_time(ty);
        match &call.zone {
            Some(zone) => SqlExpr::new(local_time(&now.sql, zone), Type::Local),
            None => now,
        }
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
        match count {
            Some(count) => interval_of(count, unit),
            None => invalid("INTERVAL requires a whole number of units"),
        }
    }
}

/// Returns an interval. Its literal is the number and the unit.
fn interval_of(count: i64, unit: &str) -> Result<SqlExpr> {
    if !(-INTERVAL_MAX..=INTERVAL_MAX).contains(&count) {
        return invalid(format!("INTERVAL takes at most {INTERVAL_MAX} whole units"));
    }
    let (count, unit) = match unit {
        "quarter" => (count * 3, "month"),
        unit => (count, unit),
    };
    let literal = format!("{count} {unit}");
    let mut interval = SqlExpr::new(format!("INTERVAL '{literal}'"), Type::Interval);
    interval.literal = Some(literal);
    Ok(interval)
}

/// Returns the length of a time unit in microseconds, `None` for units of the calendar.
pub(super) fn unit_micros(unit: &str) -> Option<i64> {
    Some(match unit {
        "microsecond" => 1,
        "millisecond" => 1_000,
        "second" => 1_000_000,
        "minute" => 60_000_000,
        "hour" => 3_600_000_000,
        "day" => 86_400_000_000,
        "week" => 604_800_000_000,
        _ => return None,
    })
}

/// Returns SQL of the date and time in a time zone.
pub(super) fn local_time(timestamp: &str, zone: &str) -> String {
    let zone = quote_literal(&format!("Timestamp(Microsecond, Some(\"{zone}\"))"));
    let utc = format!("arrow_cast({timestamp}, 'Timestamp(Microsecond, Some(\"UTC\"))')");
    let local = format!("to_local_time(arrow_cast({utc}, {zone}))");
    format!("arrow_cast({local}, 'Timestamp(Microsecond, None)')")
}

/// Returns the name of a time zone, `None` for UTC.
pub(super) fn time_zone(name: &str) -> Result<Option<String>> {
    if ["UTC", "Etc/UTC", "GMT", "Z"].contains(&name) {
        return Ok(None);
    }
    let valid = !name.is_empty()
        && name.len() <= 64
        && name
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || b"/_+-".contains(&it));
    if valid && is_known_zone(name) {
        Ok(Some(name.to_owned()))
    } else {
        invalid(format!("Unknown time zone {}", excerpt(name)))
    }
}

/// Whether the engine knows a time zone.
fn is_known_zone(name: &str) -> bool {
    name.parse::<TimeZone>().is_ok()
}

fn interval_count(value: &Expr) -> Option<i64> {
    if let Some(count) = index_literal(value) {
        return Some(count);
    }
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
