//! Expressions.

use std::fmt::Write as _;

use super::{
    Dialect, Piece, Result, Type, Writer, call, quoted, refused,
    scope::{Meaning, Scope},
    short,
};
use crate::engine::sqlparser::ast::{
    AccessExpr, BinaryOperator, CastKind, CeilFloorKind, DateTimeField, Expr, Ident, Interval,
    Query, Subscript, UnaryOperator, Value,
};

/// Longest interval in units.
const INTERVAL_MAX: i64 = 1_000_000;

impl<'a> Writer<'a> {
    pub(crate) fn expression(&mut self, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<Piece> {
        let piece = self.deeper(|writer| writer.any(expr, scope))?;
        if piece.sql.len() > super::WRITTEN_BYTES_MAX {
            refused("The query is too complex")
        } else {
            Ok(piece)
        }
    }

    fn any(&mut self, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<Piece> {
        match expr {
            Expr::Identifier(ident) => match self.alias(ident, scope)? {
                Some(piece) => Ok(piece),
                None => self.field_of(std::slice::from_ref(ident), scope),
            },
            Expr::CompoundIdentifier(idents) => self.field_of(idents, scope),
            Expr::CompoundFieldAccess { root, access_chain } => match access_chain.as_slice() {
                [AccessExpr::Subscript(Subscript::Index { index })] => {
                    self.subscript(root, index, scope)
                }
                _ => refused(format!("{} is not supported", short(&expr.to_string()))),
            },
            Expr::Nested(inner) => {
                let mut inner = self.expression(inner, scope)?;
                inner.sql = format!("({})", inner.sql);
                Ok(inner)
            }
            Expr::Value(value) => self.value(&value.value),
            Expr::TypedString(typed) => {
                let text = self.value(&typed.value.value)?;
                self.cast(text, &typed.data_type.to_string(), false)
            }
            Expr::Interval(interval) => Self::interval(interval),
            Expr::BinaryOp {
                left,
                op: op @ (BinaryOperator::And | BinaryOperator::Or),
                right,
            } => self.chain(left, op, right, scope),
            Expr::BinaryOp { left, op, right } => {
                let (left, right) = (
                    self.expression(left, scope)?,
                    self.expression(right, scope)?,
                );
                self.operation(&left, op, &right)
            }
            Expr::UnaryOp { op, expr } => self.unary(*op, expr, scope),
            Expr::Function(function) => self.call(function, scope),
            Expr::Case {
                operand,
                conditions,
                else_result,
                ..
            } => {
                let operand = operand
                    .as_deref()
                    .map(|it| self.expression(it, scope))
                    .transpose()?;
                let (mut sql, mut types) = (String::from("CASE"), Vec::new());
                for when in conditions {
                    let condition = self.expression(&when.condition, scope)?;
                    let condition = match &operand {
                        Some(operand) => {
                            self.operation(operand, &BinaryOperator::Eq, &condition)?
                                .sql
                        }
                        None => condition.condition(),
                    };
                    let value = self.expression(&when.result, scope)?;
                    let _ = write!(sql, " WHEN {condition} THEN {}", value.sql);
                    types.push(value.is);
                }
                if let Some(value) = else_result {
                    let value = self.expression(value, scope)?;
                    let _ = write!(sql, " ELSE {}", value.sql);
                    types.push(value.is);
                }
                Ok(Piece::new(format!("{sql} END"), call::common(&types)))
            }
            _ => self.condition(expr, scope),
        }
    }

    /// What is true or false.
    fn condition(&mut self, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<Piece> {
        let truth = |sql: String| Ok(Piece::new(sql, Type::Boolean));
        let not = |negated: bool| if negated { "NOT " } else { "" };
        match expr {
            Expr::IsNull(it) => truth(format!("({} IS NULL)", self.expression(it, scope)?.sql)),
            Expr::IsNotNull(it) => {
                truth(format!("({} IS NOT NULL)", self.expression(it, scope)?.sql))
            }
            Expr::IsTrue(it) => truth(format!(
                "({} IS TRUE)",
                self.expression(it, scope)?.condition()
            )),
            Expr::IsNotTrue(it) => truth(format!(
                "({} IS NOT TRUE)",
                self.expression(it, scope)?.condition()
            )),
            Expr::IsFalse(it) => truth(format!(
                "({} IS FALSE)",
                self.expression(it, scope)?.condition()
            )),
            Expr::IsNotFalse(it) => truth(format!(
                "({} IS NOT FALSE)",
                self.expression(it, scope)?.condition()
            )),
            Expr::InList {
                expr,
                list,
                negated,
            } => {
                let it = self.expression(expr, scope)?;
                let list = list
                    .iter()
                    .map(|item| self.expression(item, scope))
                    .collect::<Result<Vec<_>>>()?;
                let Some(first) = list.first() else {
                    return refused("IN takes at least one value");
                };
                let (it_sql, _) = self.alike(&it, first);
                let list = list
                    .iter()
                    .map(|item| self.alike(&it, item).1)
                    .collect::<Vec<_>>()
                    .join(", ");
                truth(format!("({it_sql} {}IN ({list}))", not(*negated)))
            }
            Expr::InSubquery {
                expr,
                subquery,
                negated,
            } => {
                let it = self.expression(expr, scope)?;
                truth(format!(
                    "({} {}IN ({}))",
                    it.sql,
                    not(*negated),
                    self.one_column(subquery)?.sql
                ))
            }
            Expr::Subquery(query) => {
                let Piece { sql, is, .. } = self.one_column(query)?;
                Ok(Piece::new(format!("({sql})"), is))
            }
            Expr::Exists { subquery, negated } => truth(format!(
                "({}EXISTS ({}))",
                not(*negated),
                self.query(subquery, None)?.sql
            )),
            Expr::Between {
                expr,
                negated,
                low,
                high,
            } => {
                let (it, low, high) = (
                    self.expression(expr, scope)?,
                    self.expression(low, scope)?,
                    self.expression(high, scope)?,
                );
                let above = self.operation(&it, &BinaryOperator::GtEq, &low)?.sql;
                let below = self.operation(&it, &BinaryOperator::LtEq, &high)?.sql;
                truth(format!("({}({above} AND {below}))", not(*negated)))
            }
            Expr::Like {
                negated,
                any: false,
                expr,
                pattern,
                escape_char: None,
            } => self.like("LIKE", *negated, expr, pattern, scope),
            Expr::ILike {
                negated,
                any: false,
                expr,
                pattern,
                escape_char: None,
            } if self.clickhouse() => self.like("ILIKE", *negated, expr, pattern, scope),
            Expr::ILike { .. } => refused("Syntax error: ILIKE is not supported"),
            _ => self.shaped(expr, scope),
        }
    }

    /// Functions that have a syntax of their own.
    fn shaped(&mut self, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<Piece> {
        match expr {
            Expr::Cast {
                kind,
                expr,
                data_type,
                array: false,
                format: None,
            } => {
                let it = self.expression(expr, scope)?;
                self.cast(
                    it,
                    &data_type.to_string(),
                    matches!(kind, CastKind::SafeCast | CastKind::TryCast),
                )
            }
            Expr::Extract { field, expr, .. } => {
                let it = self.expression(expr, scope)?.moment(self.dialect);
                let part = match field {
                    DateTimeField::DayOfWeek | DateTimeField::Dow => {
                        return Ok(Piece::new(
                            format!("(date_part('dow', {it}) + 1)"),
                            Type::Integer,
                        ));
                    }
                    DateTimeField::DayOfYear | DateTimeField::Doy => "doy",
                    DateTimeField::Date => {
                        return Ok(Piece::new(format!("CAST({it} AS DATE)"), Type::Date));
                    }
                    other => call::unit_of(&other.to_string())?,
                };
                Ok(Piece::new(
                    format!("CAST(date_part('{part}', {it}) AS BIGINT)"),
                    Type::Integer,
                ))
            }
            Expr::Ceil {
                expr,
                field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime),
            } => self.rounded("ceil", expr, scope),
            Expr::Floor {
                expr,
                field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime),
            } => self.rounded("floor", expr, scope),
            Expr::Position { expr, r#in } => {
                let (needle, text) = (
                    self.expression(expr, scope)?.text(),
                    self.expression(r#in, scope)?.text(),
                );
                Ok(Piece::new(
                    format!("strpos({text}, {needle})"),
                    Type::Integer,
                ))
            }
            Expr::Substring {
                expr,
                substring_from: Some(from),
                substring_for,
                ..
            } => {
                let (text, from) = (
                    self.expression(expr, scope)?.text(),
                    self.expression(from, scope)?.integer(),
                );
                let length = substring_for
                    .as_deref()
                    .map(|it| self.expression(it, scope))
                    .transpose()?;
                let length = length
                    .map(|it| format!(", {}", it.integer()))
                    .unwrap_or_default();
                Ok(Piece::new(
                    format!("substr({text}, {from}{length})"),
                    Type::Text,
                ))
            }
            Expr::Trim {
                trim_where: None,
                trim_what: None,
                expr,
                trim_characters: None,
            } => Ok(Piece::new(
                format!("btrim({})", self.expression(expr, scope)?.text()),
                Type::Text,
            )),
            Expr::Array(array) => {
                let items = array
                    .elem
                    .iter()
                    .map(|it| Ok(self.expression(it, scope)?.sql))
                    .collect::<Result<Vec<_>>>()?;
                Ok(Piece::new(
                    format!("make_array({})", items.join(", ")),
                    Type::List,
                ))
            }
            _ => refused(format!("{} is not supported", short(&expr.to_string()))),
        }
    }

    fn rounded(&mut self, function: &str, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<Piece> {
        Ok(Piece::new(
            format!("{function}({})", self.expression(expr, scope)?.float()),
            Type::Float,
        ))
    }

    fn one_column(&mut self, query: &'a Query) -> Result<Piece> {
        let written = self.query(query, None)?;
        match written.columns.as_slice() {
            [column] => Ok(Piece::new(written.sql, column.is)),
            _ => refused("A subquery here has one column"),
        }
    }

    fn field_of(&mut self, idents: &'a [Ident], scope: &Scope<'a>) -> Result<Piece> {
        match self.meaning(idents, scope)? {
            Meaning::Value(piece) => Ok(piece),
            Meaning::Record { table, path } => Ok(self.whole(table, &path, scope)),
        }
    }

    fn value(&self, value: &Value) -> Result<Piece> {
        let text = |text: &str| {
            let mut piece = Piece::new(quoted(text), Type::Text);
            piece.literal = Some(text.to_owned());
            Ok(piece)
        };
        match value {
            Value::Number(digits, _) => {
                let digits = digits.replace('_', "");
                let (sql, is) = match (digits.parse::<i64>(), digits.parse::<f64>()) {
                    (Ok(it), _) => (it.to_string(), Type::Integer),
                    (_, Ok(it)) if it.is_finite() => {
                        (format!("CAST({it:e} AS DOUBLE)"), Type::Float)
                    }
                    _ => return refused(format!("{} is no number", short(&digits))),
                };
                let mut piece = Piece::new(sql, is);
                piece.literal = Some(digits);
                Ok(piece)
            }
            Value::SingleQuotedString(it) => text(it),
            Value::DoubleQuotedString(it)
            | Value::TripleSingleQuotedString(it)
            | Value::TripleDoubleQuotedString(it)
            | Value::SingleQuotedRawStringLiteral(it)
            | Value::DoubleQuotedRawStringLiteral(it)
            | Value::TripleSingleQuotedRawStringLiteral(it)
            | Value::TripleDoubleQuotedRawStringLiteral(it)
                if self.dialect == Dialect::BigQuery =>
            {
                text(it)
            }
            Value::Boolean(it) => Ok(Piece::new(
                if *it { "TRUE" } else { "FALSE" },
                Type::Boolean,
            )),
            Value::Null => Ok(Piece::null()),
            other => refused(format!("{} is not supported", short(&other.to_string()))),
        }
    }

    fn interval(interval: &Interval) -> Result<Piece> {
        let Interval {
            value,
            leading_field: Some(unit),
            leading_precision: None,
            last_field: None,
            fractional_seconds_precision: None,
        } = interval
        else {
            return refused("An interval is a number and a unit");
        };
        let count = match value.as_ref() {
            Expr::Value(value) => match &value.value {
                Value::Number(digits, _)
                | Value::SingleQuotedString(digits)
                | Value::DoubleQuotedString(digits) => digits.parse().ok(),
                _ => None,
            },
            _ => None,
        };
        let unit = call::unit_of(&unit.to_string())?;
        let (count, unit) = match (count, unit) {
            (Some(count), "quarter") => (count * 3, "month"),
            (Some(count), unit) if (-INTERVAL_MAX..=INTERVAL_MAX).contains(&count) => (count, unit),
            _ => return refused("An interval is a whole number of units, and not too many"),
        };
        Ok(Piece::new(
            format!("INTERVAL '{count} {unit}'"),
            Type::Interval,
        ))
    }

    /// A chain of conditions, however long, is one level deep.
    fn chain(
        &mut self,
        left: &'a Expr,
        op: &BinaryOperator,
        right: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<Piece> {
        let (mut parts, mut rest) = (vec![right], left);
        while let Expr::BinaryOp {
            left,
            op: other,
            right,
        } = rest
        {
            if other != op {
                break;
            }
            parts.push(right);
            rest = left;
        }
        parts.push(rest);
        if parts.len() > CHAIN_MAX {
            return refused("The query is too complex");
        }
        let word = if *op == BinaryOperator::And {
            " AND "
        } else {
            " OR "
        };
        let parts = parts
            .into_iter()
            .rev()
            .map(|part| Ok(self.expression(part, scope)?.condition()))
            .collect::<Result<Vec<_>>>()?;
        Ok(Piece::new(format!("({})", parts.join(word)), Type::Boolean))
    }

    fn unary(&mut self, op: UnaryOperator, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<Piece> {
        let it = self.expression(expr, scope)?;
        match op {
            UnaryOperator::Not => Ok(Piece::new(
                format!("(NOT {})", it.condition()),
                Type::Boolean,
            )),
            UnaryOperator::Minus if it.is == Type::Interval => {
                refused("An interval is a whole number of units")
            }
            UnaryOperator::Minus => Ok(Piece::new(
                format!("(- {})", it.numeric()),
                if it.is == Type::Text {
                    Type::Float
                } else {
                    it.is
                },
            )),
            UnaryOperator::Plus => Ok(it),
            other => refused(format!("Operator {other} is not supported")),
        }
    }

    fn like(
        &mut self,
        word: &str,
        negated: bool,
        expr: &'a Expr,
        pattern: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<Piece> {
        let (text, pattern) = (
            self.expression(expr, scope)?.text(),
            self.expression(pattern, scope)?.text(),
        );
        let not = if negated { "NOT " } else { "" };
        Ok(Piece::new(
            format!("({text} {not}{word} {pattern})"),
            Type::Boolean,
        ))
    }

    /// Two values so that they can be compared.
    fn alike(&self, left: &Piece, right: &Piece) -> (String, String) {
        let pair = |left: String, right: String| (left, right);
        match (left.is, right.is) {
            (Type::Text, right_is) if right_is.is_number() => pair(left.float(), right.sql.clone()),
            (left_is, Type::Text) if left_is.is_number() => pair(left.sql.clone(), right.float()),
            (Type::Boolean, Type::Integer) => pair(left.integer(), right.sql.clone()),
            (Type::Integer, Type::Boolean) => pair(left.sql.clone(), right.integer()),
            (Type::Date, Type::Text) => {
                pair(left.sql.clone(), format!("CAST({} AS DATE)", right.sql))
            }
            (one, Type::Text | Type::Integer) if one.is_time() => {
                pair(left.sql.clone(), right.moment(self.dialect))
            }
            (Type::Text | Type::Integer, other) if other.is_time() => {
                pair(left.moment(self.dialect), right.sql.clone())
            }
            _ => pair(left.sql.clone(), right.sql.clone()),
        }
    }

    fn operation(&self, left: &Piece, op: &BinaryOperator, right: &Piece) -> Result<Piece> {
        use BinaryOperator as Op;
        let comparison = |word: &str| {
            let (left, right) = self.alike(left, right);
            Ok(Piece::new(
                format!("({left} {word} {right})"),
                Type::Boolean,
            ))
        };
        let arithmetic = |word: &str| {
            let is = call::common(&[left.is, right.is].map(|it| match it {
                Type::Boolean => Type::Integer,
                Type::Text => Type::Float,
                it => it,
            }));
            Ok(Piece::new(
                format!("({} {word} {})", left.numeric(), right.numeric()),
                is,
            ))
        };
        match op {
            Op::Eq => comparison("="),
            Op::NotEq => comparison("<>"),
            Op::Lt => comparison("<"),
            Op::LtEq => comparison("<="),
            Op::Gt => comparison(">"),
            Op::GtEq => comparison(">="),
            Op::Plus | Op::Minus if left.is.is_time() => {
                let word = if *op == Op::Plus { "+" } else { "-" };
                match (right.is, &right.literal) {
                    (Type::Interval, _) => Ok(Piece::new(
                        format!("({} {word} {})", left.sql, right.sql),
                        left.is,
                    )),
                    (Type::Integer, Some(seconds)) if seconds.len() < 10 => Ok(Piece::new(
                        format!("({} {word} INTERVAL '{seconds} second')", left.sql),
                        left.is,
                    )),
                    (is, _) if is.is_time() && *op == Op::Minus => Ok(Piece::new(
                        format!("({} - {})", left.integer(), right.integer()),
                        Type::Integer,
                    )),
                    _ => refused("A moment takes an interval"),
                }
            }
            Op::Plus => arithmetic("+"),
            Op::Minus => arithmetic("-"),
            Op::Multiply => arithmetic("*"),
            Op::Modulo => arithmetic("%"),
            Op::Divide => Ok(Piece::new(
                format!("({} / {})", left.float(), right.float()),
                Type::Float,
            )),
            Op::StringConcat => Ok(Piece::new(
                format!("join_texts({}, {})", left.text(), right.text()),
                Type::Text,
            )),
            other => refused(format!("Operator {other} is not supported")),
        }
    }

    fn cast(&self, it: Piece, to: &str, safe: bool) -> Result<Piece> {
        let lower = to.to_ascii_lowercase();
        let inner = lower
            .strip_prefix("nullable(")
            .or_else(|| lower.strip_prefix("lowcardinality("))
            .unwrap_or(&lower);
        let word = inner.split(['(', ')', ' ']).next().unwrap_or_default();
        let cast =
            |it: String, to: &str| format!("{}CAST({it} AS {to})", if safe { "TRY_" } else { "" });
        let piece = match word {
            "int64" | "int" | "integer" | "bigint" | "smallint" | "tinyint" | "int8" | "int16"
            | "int32" | "uint8" | "uint16" | "uint32" | "uint64" => match it.is {
                Type::Text => Piece::new(cast(it.sql, "BIGINT"), Type::Integer),
                Type::Float => {
                    Piece::new(cast(format!("trunc({})", it.sql), "BIGINT"), Type::Integer)
                }
                _ => Piece::new(cast(it.integer(), "BIGINT"), Type::Integer),
            },
            "float64" | "float32" | "float" | "double" | "numeric" | "decimal" | "bignumeric" => {
                match it.is {
                    Type::Text => Piece::new(cast(it.sql, "DOUBLE"), Type::Float),
                    _ => Piece::new(it.float(), Type::Float),
                }
            }
            "string" | "varchar" | "text" | "char" | "fixedstring" => {
                Piece::new(it.text(), Type::Text)
            }
            "bool" | "boolean" => Piece::new(cast(it.sql, "BOOLEAN"), Type::Boolean),
            "date" => Piece::new(cast(it.sql, "DATE"), Type::Date),
            "timestamp" | "datetime64" => Piece::new(it.moment(self.dialect), Type::Moment),
            "datetime" if self.clickhouse() => Piece::new(
                format!(
                    "arrow_cast({}, 'Timestamp(Second, None)')",
                    it.moment(self.dialect)
                ),
                Type::Second,
            ),
            "datetime" => Piece::new(
                format!(
                    "arrow_cast({}, 'Timestamp(Nanosecond, None)')",
                    it.moment(self.dialect)
                ),
                Type::DateTime,
            ),
            _ => return refused(format!("Type {} is not supported", short(to))),
        };
        Ok(piece)
    }
}

/// Parts of one chain of conditions.
const CHAIN_MAX: usize = 512;
