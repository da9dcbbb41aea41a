//! Expressions: names, literals, `CASE`, and functions with a syntax of their own.

use std::fmt::Write as _;

use super::{
    dialect::Dialect,
    scope::{Resolution, Scope},
    sql_expr::{SqlExpr, Type},
    text::{Result, TRANSLATED_BYTES_MAX, excerpt, invalid, quote_literal},
    time::time_unit_named,
    translator::Translator,
};
use crate::engine::sqlparser::ast::{
    Array, BinaryOperator, CaseWhen, CastKind, CeilFloorKind, DateTimeField, Expr, Ident, Value,
};

impl<'a> Translator<'a> {
    pub(super) fn expression(&mut self, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let translated = self.nested(|translator| translator.any_expression(expr, scope))?;
        if translated.sql.len() > TRANSLATED_BYTES_MAX {
            return invalid("The query is too complex");
        }
        Ok(translated)
    }

    fn any_expression(&mut self, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        match expr {
            Expr::Identifier(ident) => match self.expand_alias(ident, scope)? {
                Some(expr) => Ok(expr),
                None => self.name(std::slice::from_ref(ident), scope),
            },
            Expr::CompoundIdentifier(idents) => self.name(idents, scope),
            Expr::CompoundFieldAccess { root, access_chain } => {
                self.field_access(root, access_chain, scope)
            }
            Expr::Tuple(items) => self.tuple(items.iter(), scope),
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
            } => self.logical_chain(left, op, right, scope),
            Expr::BinaryOp { left, op, right } => {
                let left = self.expression(left, scope)?;
                let right = self.expression(right, scope)?;
                self.binary_operation(&left, op, &right)
            }
            Expr::UnaryOp { op, expr } => self.unary_operation(*op, expr, scope),
            Expr::Function(function) => self.call(function, scope),
            Expr::Case {
                operand,
                conditions,
                else_result,
                ..
            } => self.case(
                operand.as_deref(),
                conditions,
                else_result.as_deref(),
                scope,
            ),
            _ => self.predicate(expr, scope),
        }
    }

    fn name(&mut self, idents: &'a [Ident], scope: &Scope<'a>) -> Result<SqlExpr> {
        match self.resolve(idents, scope)? {
            Resolution::Value(expr) => Ok(expr),
            Resolution::Record { table, path } => Ok(self.record_value(table, &path, scope)),
        }
    }

    fn case(
        &mut self,
        operand: Option<&'a Expr>,
        branches: &'a [CaseWhen],
        default: Option<&'a Expr>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let operand = match operand {
            Some(operand) => Some(self.expression(operand, scope)?),
            None => None,
        };
        let mut sql = String::from("CASE");
        let mut types = Vec::new();
        let mut nullable = default.is_none();
        for branch in branches {
            let condition = self.expression(&branch.condition, scope)?;
            let condition = match &operand {
                Some(operand) => {
                    self.binary_operation(operand, &BinaryOperator::Eq, &condition)?
                        .sql
                }
                None => condition.condition(),
            };
            let value = self.expression(&branch.result, scope)?;
            let _ = write!(sql, " WHEN {condition} THEN {}", value.sql);
            types.push(value.ty);
            nullable |= value.nullable;
        }
        if let Some(default) = default {
            let value = self.expression(default, scope)?;
            let _ = write!(sql, " ELSE {}", value.sql);
            types.push(value.ty);
            nullable |= value.nullable;
        }
        let case = SqlExpr::new(format!("{sql} END"), Type::common(&types));
        Ok(case.nullable(nullable))
    }

    /// Functions with a syntax of their own, such as `CAST` and `EXTRACT`.
    pub(super) fn syntax_function(
        &mut self,
        expr: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        match expr {
            Expr::Cast {
                kind,
                expr,
                data_type,
                array: false,
                format: None,
            } => {
                let value = self.expression(expr, scope)?;
                let safe = matches!(kind, CastKind::SafeCast | CastKind::TryCast);
                self.cast(value, &data_type.to_string(), safe)
            }
            Expr::Extract { field, expr, .. } => self.extract(field, expr, scope),
            Expr::Ceil {
                expr,
                field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime),
            } => self.float_function("ceil", expr, scope),
            Expr::Floor {
                expr,
                field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime),
            } => self.float_function("floor", expr, scope),
            Expr::Position { expr, r#in } => self.position(expr, r#in, scope),
            Expr::Substring {
                expr,
                substring_from: Some(from),
                substring_for,
                ..
            } => self.substring(expr, from, substring_for.as_deref(), scope),
            Expr::Trim {
                trim_where: None,
                trim_what: None,
                expr,
                trim_characters: None,
            } => {
                let text = self.expression(expr, scope)?.text();
                Ok(SqlExpr::new(format!("btrim({text})"), Type::Text))
            }
            Expr::Array(array) => self.array(array, scope),
            _ => unsupported(expr),
        }
    }

    fn extract(
        &mut self,
        field: &DateTimeField,
        expr: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let timestamp = self.expression(expr, scope)?.timestamp(self.dialect);
        let part = match field {
            DateTimeField::DayOfWeek | DateTimeField::Dow => {
                let sql = format!("(date_part('dow', {timestamp}) + 1)");
                return Ok(SqlExpr::new(sql, Type::Integer));
            }
            DateTimeField::Date => {
                return Ok(SqlExpr::new(
                    format!("CAST({timestamp} AS DATE)"),
                    Type::Date,
                ));
            }
            DateTimeField::DayOfYear | DateTimeField::Doy => "doy",
            other => time_unit_named(&other.to_string())?,
        };
        let sql = format!("CAST(date_part('{part}', {timestamp}) AS BIGINT)");
        Ok(SqlExpr::new(sql, Type::Integer))
    }

    fn float_function(
        &mut self,
        function: &str,
        expr: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let value = self.expression(expr, scope)?.float();
        Ok(SqlExpr::new(format!("{function}({value})"), Type::Float))
    }

    fn position(
        &mut self,
        needle: &'a Expr,
        text: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let needle = self.expression(needle, scope)?.text();
        let text = self.expression(text, scope)?.text();
        let function = if self.is_clickhouse() {
            "byte_position"
        } else {
            "strpos"
        };
        Ok(SqlExpr::new(
            format!("{function}({text}, {needle})"),
            Type::Integer,
        ))
    }

    fn substring(
        &mut self,
        text: &'a Expr,
        from: &'a Expr,
        length: Option<&'a Expr>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let text = self.expression(text, scope)?.text();
        let from = self.expression(from, scope)?.integer();
        let length = match length {
            Some(length) => format!(", {}", self.expression(length, scope)?.integer()),
            None => String::new(),
        };
        let function = if self.is_clickhouse() {
            "byte_slice"
        } else {
            "substr"
        };
        let sql = format!("{function}({text}, {from}{length})");
        Ok(SqlExpr::new(sql, Type::Text))
    }

    fn array(&mut self, array: &'a Array, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let mut items = Vec::with_capacity(array.elem.len());
        let mut types = Vec::with_capacity(array.elem.len());
        for item in &array.elem {
            let item = self.expression(item, scope)?;
            items.push(item.sql);
            types.push(item.ty);
        }
        let sql = format!("make_array({})", items.join(", "));
        Ok(SqlExpr::new(sql, Type::common(&types).list()))
    }

    fn value(&self, value: &Value) -> Result<SqlExpr> {
        match value {
            Value::Number(digits, _) => number_literal(&digits.replace('_', "")),
            Value::SingleQuotedString(text) => Ok(text_literal(text)),
            Value::DoubleQuotedString(text)
            | Value::TripleSingleQuotedString(text)
            | Value::TripleDoubleQuotedString(text)
            | Value::SingleQuotedRawStringLiteral(text)
            | Value::DoubleQuotedRawStringLiteral(text)
            | Value::TripleSingleQuotedRawStringLiteral(text)
            | Value::TripleDoubleQuotedRawStringLiteral(text)
                if self.dialect == Dialect::BigQuery =>
            {
                Ok(text_literal(text))
            }
            Value::Boolean(true) => Ok(SqlExpr::new("TRUE", Type::Boolean)),
            Value::Boolean(false) => Ok(SqlExpr::new("FALSE", Type::Boolean)),
            Value::Null => Ok(SqlExpr::null()),
            other => unsupported(other),
        }
    }
}

fn text_literal(text: &str) -> SqlExpr {
    let mut expr = SqlExpr::new(quote_literal(text), Type::Text);
    expr.literal = Some(text.to_owned());
    expr
}

fn number_literal(digits: &str) -> Result<SqlExpr> {
    let mut expr = if let Ok(number) = digits.parse::<i64>() {
        SqlExpr::new(number.to_string(), Type::Integer)
    } else if let Ok(number) = digits.parse::<f64>()
        && number.is_finite()
    {
        SqlExpr::new(format!("CAST({number:e} AS DOUBLE)"), Type::Float)
    } else {
        return invalid(format!("{} is not a number", excerpt(digits)));
    };
    expr.literal = Some(digits.to_owned());
    Ok(expr)
}

pub(super) fn unsupported<T>(part: &impl ToString) -> Result<T> {
    invalid(format!("{} is not supported", excerpt(&part.to_string())))
}
