//! Translated expressions and their types.

use super::Dialect;

/// The type of a translated expression, as far as it affects the generated SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Text,
    Integer,
    Float,
    Boolean,
    /// A timestamp in microseconds.
    Timestamp,
    /// A timestamp in seconds, such as the start of a bucket.
    Seconds,
    /// A civil date and time without a time zone.
    DateTime,
    Date,
    Interval,
    List,
    /// The map of all attributes.
    Map,
    Unknown,
}

impl Type {
    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Integer | Self::Float)
    }

    pub(super) fn is_time(self) -> bool {
        matches!(
            self,
            Self::Timestamp | Self::Seconds | Self::DateTime | Self::Date
        )
    }

    /// Returns the common type of several values. Different numbers become floats.
    pub(super) fn common(types: &[Self]) -> Self {
        let mut common = Self::Unknown;
        for &ty in types.iter().filter(|ty| **ty != Self::Unknown) {
            common = match common {
                Self::Unknown => ty,
                _ if common == ty => ty,
                _ if common.is_number() && ty.is_number() => Self::Float,
                _ => return Self::Unknown,
            };
        }
        common
    }
}

/// The integer column of an attribute that is read as text.
#[derive(Debug, Clone)]
pub(super) struct NumberColumn {
    pub(super) sql: String,
    /// Whether numbers with fractions can be in the attribute map instead.
    pub(super) may_be_fractional: bool,
}

/// A translated expression.
#[derive(Debug, Clone)]
pub(crate) struct SqlExpr {
    pub(super) sql: String,
    pub(super) ty: Type,
    pub(super) number_column: Option<NumberColumn>,
    /// The text of a string literal, or the digits of a number literal.
    pub(super) literal: Option<String>,
}

impl SqlExpr {
    pub(super) fn new(sql: impl Into<String>, ty: Type) -> Self {
        Self {
            sql: sql.into(),
            ty,
            number_column: None,
            literal: None,
        }
    }

    pub(super) fn null() -> Self {
        Self::new("NULL", Type::Unknown)
    }

    /// SQL of the expression as a condition. Numbers are true unless zero.
    pub(super) fn condition(&self) -> String {
        if self.ty.is_number() {
            format!("({} <> 0)", self.sql)
        } else {
            self.sql.clone()
        }
    }

    pub(super) fn text(&self) -> String {
        match self.ty {
            Type::Text => self.sql.clone(),
            Type::Timestamp | Type::DateTime => {
                format!("to_char({}, '%Y-%m-%d %H:%M:%S%.6f')", self.sql)
            }
            Type::Seconds => format!("to_char({}, '%Y-%m-%d %H:%M:%S')", self.sql),
            _ => format!("CAST({} AS VARCHAR)", self.sql),
        }
    }

    /// SQL of the expression as a float, null if it is not a number.
    pub(super) fn float(&self) -> String {
        if let Some(column) = &self.number_column {
            let cast = format!("CAST({} AS DOUBLE)", column.sql);
            return if column.may_be_fractional {
                format!("coalesce({cast}, TRY_CAST({} AS DOUBLE))", self.sql)
            } else {
                cast
            };
        }
        match self.ty {
            Type::Text => format!("TRY_CAST({} AS DOUBLE)", self.sql),
            Type::Timestamp => format!("(CAST({} AS BIGINT) / 1e6)", self.sql),
            _ => format!("CAST({} AS DOUBLE)", self.sql),
        }
    }

    /// SQL of the expression as an integer, null if it is not one.
    pub(super) fn integer(&self) -> String {
        if let Some(column) = &self.number_column {
            return column.sql.clone();
        }
        match self.ty {
            Type::Integer => self.sql.clone(),
            Type::Timestamp => format!("(CAST({} AS BIGINT) / 1000000)", self.sql),
            Type::Seconds | Type::Boolean => format!("CAST({} AS BIGINT)", self.sql),
            _ => format!("TRY_CAST({} AS BIGINT)", self.sql),
        }
    }

    /// SQL of the expression as a number. Booleans become 0 and 1, texts are parsed.
    pub(super) fn numeric(&self) -> String {
        match self.ty {
            Type::Text => self.float(),
            Type::Boolean => self.integer(),
            _ => self.sql.clone(),
        }
    }

    /// SQL of the expression as a timestamp. Integers are microseconds in `BigQuery` and seconds in
    /// `ClickHouse`.
    pub(super) fn timestamp(&self, dialect: Dialect) -> String {
        match (self.ty, dialect) {
            (Type::Integer, Dialect::BigQuery) => format!("to_timestamp_micros({})", self.sql),
            (Type::Integer, Dialect::ClickHouse) => format!("to_timestamp_seconds({})", self.sql),
            (Type::Text | Type::Unknown | Type::DateTime | Type::Date, _) => {
                format!("arrow_cast({}, 'Timestamp(Microsecond, None)')", self.sql)
            }
            _ => self.sql.clone(),
        }
    }
}
