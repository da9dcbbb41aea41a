//! Translated expressions and their types.

use super::dialect::Dialect;

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
    /// A date and time in a time zone other than UTC.
    Local,
    List(ItemType),
    Tuple,
    /// A record of attributes in JSON.
    Record,
    /// The map of all attributes.
    Map,
    Unknown,
}

/// The type of the items of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemType {
    Text,
    Integer,
    Float,
    Boolean,
    Timestamp,
    Seconds,
    Tuple,
    Unknown,
}

impl Type {
    /// A list of texts.
    pub(crate) const TEXTS: Self = Self::List(ItemType::Text);
    /// A list of floats.
    pub(crate) const FLOATS: Self = Self::List(ItemType::Float);

    /// Returns the type of a list with items of this type.
    pub(super) fn list(self) -> Self {
        Self::List(match self {
            Self::Text => ItemType::Text,
            Self::Integer => ItemType::Integer,
            Self::Float => ItemType::Float,
            Self::Boolean => ItemType::Boolean,
            Self::Timestamp => ItemType::Timestamp,
            Self::Seconds => ItemType::Seconds,
            Self::Tuple => ItemType::Tuple,
            _ => ItemType::Unknown,
        })
    }

    /// Returns the type of the items, `None` if this is not a list.
    pub(super) fn item(self) -> Option<Self> {
        let Self::List(item) = self else {
            return None;
        };
        Some(match item {
            ItemType::Text => Self::Text,
            ItemType::Integer => Self::Integer,
            ItemType::Float => Self::Float,
            ItemType::Boolean => Self::Boolean,
            ItemType::Timestamp => Self::Timestamp,
            ItemType::Seconds => Self::Seconds,
            ItemType::Tuple => Self::Tuple,
            ItemType::Unknown => Self::Unknown,
        })
    }

    /// Returns SQL of the value that `ClickHouse` has instead of null.
    pub(super) fn default_sql(self) -> Option<&'static str> {
        match self {
            Self::Text => Some("''"),
            Self::Integer => Some("0"),
            Self::Float => Some("CAST(0 AS DOUBLE)"),
            Self::Timestamp => Some("to_timestamp_micros(0)"),
            Self::Seconds => Some("arrow_cast(0, 'Timestamp(Second, None)')"),
            _ => None,
        }
    }

    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Integer | Self::Float)
    }

    pub(super) fn is_time(self) -> bool {
        matches!(
            self,
            Self::Timestamp | Self::Seconds | Self::DateTime | Self::Date | Self::Local
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
    pub(crate) sql: String,
    pub(super) ty: Type,
    pub(super) number_column: Option<NumberColumn>,
    /// The text of a string literal, or the digits of a number literal.
    pub(super) literal: Option<String>,
    /// Whether the value can be null in `ClickHouse`.
    pub(super) nullable: bool,
    /// The types of the elements of a tuple, if they are known.
    pub(super) elements: Vec<Type>,
}

impl SqlExpr {
    pub(crate) fn new(sql: impl Into<String>, ty: Type) -> Self {
        Self {
            sql: sql.into(),
            ty,
            number_column: None,
            literal: None,
            nullable: false,
            elements: Vec::new(),
        }
    }

    pub(super) fn null() -> Self {
        Self::new("NULL", Type::Unknown).nullable(true)
    }

    /// Sets whether the value can be null.
    pub(super) fn nullable(mut self, nullable: bool) -> Self {
        self.nullable = nullable;
        self
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
            Type::Seconds | Type::Local => format!("to_char({}, '%Y-%m-%d %H:%M:%S')", self.sql),
            Type::Float => format!("float_text({})", self.sql),
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
            Type::Timestamp | Type::Local => format!("(CAST({} AS BIGINT) / 1000000)", self.sql),
            Type::Seconds | Type::Boolean => format!("CAST({} AS BIGINT)", self.sql),
            Type::Text => format!("parse_integer({})", self.sql),
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
