//! Predicates: comparisons with lists and ranges, null tests, subqueries and chains of conditions.

use super::{
    call::Call,
    query::QuerySql,
    scope::Scope,
    sql_expr::{SqlExpr, Type},
    text::{Result, invalid, quote_literal},
    translator::Translator,
};
use crate::engine::{
    escape_like,
    sqlparser::ast::{BinaryOperator, Expr, Query},
};

/// Maximum number of conditions in one chain of `AND` or `OR`.
const CHAIN_MAX: usize = 512;

impl<'a> Translator<'a> {
    pub(super) fn predicate(&mut self, expr: &'a Expr, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        match expr {
            Expr::IsNull(inner) => self.null_test(inner, "NULL", scope),
            Expr::IsNotNull(inner) => self.null_test(inner, "NOT NULL", scope),
            Expr::IsTrue(inner) => self.truth_test(inner, "TRUE", scope),
            Expr::IsNotTrue(inner) => self.truth_test(inner, "NOT TRUE", scope),
            Expr::IsFalse(inner) => self.truth_test(inner, "FALSE", scope),
            Expr::IsNotFalse(inner) => self.truth_test(inner, "NOT FALSE", scope),
            Expr::InList {
                expr,
                list,
                negated,
            } => self.in_list(expr, list, *negated, scope),
            Expr::InSubquery {
                expr,
                subquery,
                negated,
            } => self.in_subquery(expr, subquery, *negated, scope),
            Expr::Subquery(query) => {
                let subquery = self.scalar_subquery(query)?;
                Ok(SqlExpr::new(format!("({})", subquery.sql), subquery.ty))
            }
            Expr::Exists { subquery, negated } => {
                let QuerySql { sql, .. } = self.query(subquery, None)?;
                let not = not_keyword(*negated);
                Ok(boolean(format!("({not}EXISTS ({sql}))")))
            }
            Expr::Between {
                expr,
                negated,
                low,
                high,
            } => self.between(expr, *negated, low, high, scope),
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
            } if self.is_clickhouse() => self.like("ILIKE", *negated, expr, pattern, scope),
            Expr::ILike { .. } => invalid("Syntax error: ILIKE is not supported"),
            _ => self.syntax_function(expr, scope),
        }
    }

    fn null_test(&mut self, expr: &'a Expr, test: &str, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let value = self.expression(expr, scope)?.sql;
        Ok(boolean(format!("({value} IS {test})")))
    }

    fn truth_test(&mut self, expr: &'a Expr, test: &str, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let condition = self.expression(expr, scope)?.condition();
        Ok(boolean(format!("({condition} IS {test})")))
    }

    fn in_list(
        &mut self,
        expr: &'a Expr,
        list: &'a [Expr],
        negated: bool,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let value = self.expression(expr, scope)?;
        let mut items = Vec::with_capacity(list.len());
        for item in list {
            items.push(self.expression(item, scope)?);
        }
        let Some(first) = items.first() else {
            return invalid("IN requires at least one value");
        };
        // The first item decides the type of the comparison.
        let (value_sql, _) = self.comparable(&value, first);
        let items: Vec<_> = items
            .iter()
            .map(|item| self.comparable(&value, item).1)
            .collect();
        let not = not_keyword(negated);
        let sql = format!("({value_sql} {not}IN ({}))", items.join(", "));
        Ok(boolean(sql))
    }

    fn in_subquery(
        &mut self,
        expr: &'a Expr,
        subquery: &'a Query,
        negated: bool,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let value = self.expression(expr, scope)?.sql;
        let subquery = self.scalar_subquery(subquery)?.sql;
        let not = not_keyword(negated);
        Ok(boolean(format!("({value} {not}IN ({subquery}))")))
    }

    fn between(
        &mut self,
        expr: &'a Expr,
        negated: bool,
        low: &'a Expr,
        high: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let value = self.expression(expr, scope)?;
        let low = self.expression(low, scope)?;
        let high = self.expression(high, scope)?;
        let above = self.binary_operation(&value, &BinaryOperator::GtEq, &low)?;
        let below = self.binary_operation(&value, &BinaryOperator::LtEq, &high)?;
        let not = not_keyword(negated);
        Ok(boolean(format!("({not}({} AND {}))", above.sql, below.sql)))
    }

    fn like(
        &mut self,
        operator: &str,
        negated: bool,
        expr: &'a Expr,
        pattern: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let not = not_keyword(negated);
        self.matches_like(&format!("{not}{operator}"), expr, pattern, scope)
    }

    /// `like(text, pattern)` and similar functions.
    pub(crate) fn like_call(
        &mut self,
        operator: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        match call.args.as_slice() {
            [text, pattern] => self.matches_like(operator, text, pattern, scope),
            _ => invalid(format!("Function {} takes a text and a pattern", call.name)),
        }
    }

    fn matches_like(
        &mut self,
        operator: &str,
        text: &'a Expr,
        pattern: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let text = self.expression(text, scope)?;
        let pattern = self.expression(pattern, scope)?;
        let pattern_sql = match &pattern.literal {
            _ if !self.is_clickhouse() => pattern.text(),
            Some(literal) => quote_literal(&escape_like(literal)),
            None => format!("escape_like({})", pattern.text()),
        };
        let condition = boolean(format!("({} {operator} {pattern_sql})", text.text()));
        Ok(condition.nullable(text.nullable || pattern.nullable))
    }

    fn scalar_subquery(&mut self, query: &'a Query) -> Result<SqlExpr> {
        let QuerySql { sql, columns } = self.query(query, None)?;
        match columns.as_slice() {
            [column] => Ok(SqlExpr::new(sql, column.ty)),
            _ => invalid("A subquery here must have exactly one column"),
        }
    }

    /// Translates a chain of `AND` or `OR`. A chain of any length counts as one nesting level.
    pub(super) fn logical_chain(
        &mut self,
        left: &'a Expr,
        op: &BinaryOperator,
        right: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        // The parser nests chains to the left.
        let mut operands = vec![right];
        let mut rest = left;
        while let Expr::BinaryOp {
            left,
            op: other,
            right,
        } = rest
            && other == op
        {
            operands.push(right);
            rest = left;
        }
        operands.push(rest);
        if operands.len() > CHAIN_MAX {
            return invalid("The query is too complex");
        }
        let keyword = match op {
            BinaryOperator::And => " AND ",
            _ => " OR ",
        };
        let mut conditions = Vec::with_capacity(operands.len());
        for operand in operands.into_iter().rev() {
            conditions.push(self.expression(operand, scope)?.condition());
        }
        Ok(boolean(format!("({})", conditions.join(keyword))))
    }
}

fn boolean(sql: String) -> SqlExpr {
    SqlExpr::new(sql, Type::Boolean)
}

fn not_keyword(negated: bool) -> &'static str {
    if negated { "NOT " } else { "" }
}
