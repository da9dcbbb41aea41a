//! `GROUP BY` and `ORDER BY`.

use super::{
    dialect::Dialect,
    scope::{OutputColumn, Scope},
    select::Projection,
    text::{Result, excerpt, invalid},
    translator::Translator,
};
use crate::engine::sqlparser::ast::{Expr, GroupByExpr, OrderByExpr, OrderByOptions, Value};

impl<'a> Translator<'a> {
    pub(super) fn group_by(
        &mut self,
        clause: &'a GroupByExpr,
        columns: &[OutputColumn],
        projections: &[Projection<'a>],
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let groups = match clause {
            GroupByExpr::Expressions(groups, modifiers) if modifiers.is_empty() => groups,
            _ => return invalid("GROUP BY takes expressions"),
        };
        let mut keys = Vec::with_capacity(groups.len());
        for group in groups {
            keys.push(match self.select_position(group, columns, projections)? {
                Some(position) => position.to_string(),
                None => format!("({})", self.expression(group, scope)?.sql),
            });
        }
        Ok(clause_of(" GROUP BY ", &keys))
    }

    /// `ORDER BY` of a query. Keys can be positions and names of the select list.
    pub(super) fn order_by_columns(
        &mut self,
        order: &'a [OrderByExpr],
        columns: &[OutputColumn],
        projections: &[Projection<'a>],
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let mut keys = Vec::with_capacity(order.len());
        for item in order {
            let key = match self.select_position(&item.expr, columns, projections)? {
                Some(position) => position.to_string(),
                None => self.expression(&item.expr, scope)?.sql,
            };
            keys.push(self.sort_key(&key, item.options));
        }
        Ok(clause_of(" ORDER BY ", &keys))
    }

    /// `ORDER BY` of a window or an aggregate, where numbers are not positions.
    pub(super) fn order_by_expressions(
        &mut self,
        order: &'a [OrderByExpr],
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let mut keys = Vec::with_capacity(order.len());
        for item in order {
            let key = self.expression(&item.expr, scope)?.sql;
            keys.push(self.sort_key(&key, item.options));
        }
        Ok(clause_of(" ORDER BY ", &keys))
    }

    /// Nulls are the smallest values in `BigQuery` and always last in `ClickHouse`.
    fn sort_key(&self, key: &str, options: OrderByOptions) -> String {
        let ascending = options.asc.unwrap_or(true);
        let nulls_first = options
            .nulls_first
            .unwrap_or(ascending && self.dialect == Dialect::BigQuery);
        let direction = if ascending { "ASC" } else { "DESC" };
        let nulls = if nulls_first { "FIRST" } else { "LAST" };
        format!("{key} {direction} NULLS {nulls}")
    }

    /// Returns the one-based position of the output column that a number or a name refers to.
    pub(super) fn select_position(
        &self,
        expr: &Expr,
        columns: &[OutputColumn],
        projections: &[Projection<'a>],
    ) -> Result<Option<usize>> {
        match expr {
            Expr::Value(value) => match &value.value {
                Value::Number(digits, _) => match digits.parse() {
                    Ok(position) if (1..=columns.len()).contains(&position) => Ok(Some(position)),
                    _ => invalid(format!(
                        "Position {} is not in the select list",
                        excerpt(digits)
                    )),
                },
                _ => Ok(None),
            },
            Expr::Identifier(ident) => {
                let found = columns.iter().enumerate().find(|(at, column)| {
                    // A column without an alias is found by name resolution instead.
                    let has_alias = projections.get(*at).is_none_or(|it| it.alias.is_some());
                    has_alias && self.same_name(&column.name, &ident.value)
                });
                Ok(found.map(|(at, _)| at + 1))
            }
            _ => Ok(None),
        }
    }
}

fn clause_of(keyword: &str, keys: &[String]) -> String {
    if keys.is_empty() {
        String::new()
    } else {
        format!("{keyword}{}", keys.join(", "))
    }
}
