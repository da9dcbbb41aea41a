//! `SELECT` with its clauses.

use std::fmt::Write as _;

use super::{
    naming::clickhouse_name,
    query::{LimitBy, QuerySql},
    scope::{OutputColumn, RecordCondition, Scope},
    text::{Result, excerpt, invalid},
    translator::Translator,
};
use crate::engine::sqlparser::ast::{Distinct, Expr, GroupByExpr, OrderByExpr, Select, SelectItem};

/// The engine column that numbers the rows of a `LIMIT BY` group.
const GROUP_ROW: &str = "\"row of group\"";

/// An expression of the select list.
pub(super) struct Projection<'a> {
    pub(super) alias: Option<&'a str>,
    expr: &'a Expr,
}

/// The translated clauses of a `SELECT`.
struct SelectSql {
    distinct: bool,
    projections: Vec<String>,
    from: String,
    conditions: Vec<String>,
    group_by: String,
    having: Option<String>,
    qualify: Option<String>,
    order_by: String,
}

impl<'a> Translator<'a> {
    pub(super) fn select(
        &mut self,
        select: &'a Select,
        order: &'a [OrderByExpr],
        limit_by: Option<LimitBy<'a>>,
    ) -> Result<QuerySql> {
        self.nested(|translator| translator.select_in_scope(select, order, limit_by))
    }

    fn select_in_scope(
        &mut self,
        select: &'a Select,
        order: &'a [OrderByExpr],
        limit_by: Option<LimitBy<'a>>,
    ) -> Result<QuerySql> {
        reject_unsupported(select)?;
        let mut scope = Scope::default();
        let aggregates = self.aggregates;
        let tables = self.from(select, &mut scope)?;
        let projections = projections(select)?;
        for projection in &projections {
            if let Some(alias) = projection.alias {
                scope.aliases.push((alias, projection.expr));
            }
        }
        scope.aliases_visible = self.is_clickhouse();
        let (mut selected, columns) = self.select_list(&projections, &mut scope)?;
        let mut conditions = Vec::new();
        for condition in select.prewhere.iter().chain(&select.selection) {
            conditions.push(self.expression(condition, &mut scope)?.condition());
        }
        let is_grouped = self.aggregates > aggregates
            || !matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
        for condition in std::mem::take(&mut scope.record_conditions) {
            conditions.extend(self.record_condition(condition, is_grouped));
        }
        scope.aliases_visible = true;
        let group_by = self.group_by(&select.group_by, &columns, &projections, &mut scope)?;
        let having = self.optional_condition(select.having.as_ref(), &mut scope)?;
        let qualify = self.optional_condition(select.qualify.as_ref(), &mut scope)?;
        let order_by = self.order_by_columns(order, &columns, &projections, &mut scope)?;
        if let Some(limit_by) = limit_by {
            selected.push(self.group_row(limit_by, order, &mut scope)?);
        }
        let mut sql = SelectSql {
            distinct: matches!(select.distinct, Some(Distinct::Distinct)),
            projections: selected,
            from: from_clause(&tables, &scope),
            conditions,
            group_by,
            having,
            qualify,
            order_by,
        }
        .into_sql();
        if let Some(limit_by) = limit_by {
            let ordered = self.order_by_columns(order, &columns, &[], &mut scope)?;
            sql = self.first_rows_of_groups(&sql, &columns, limit_by.rows, &ordered);
        }
        Ok(QuerySql { sql, columns })
    }

    /// Translates the select list. Every column gets an engine identifier.
    fn select_list(
        &mut self,
        projections: &[Projection<'a>],
        scope: &mut Scope<'a>,
    ) -> Result<(Vec<String>, Vec<OutputColumn>)> {
        let mut selected = Vec::with_capacity(projections.len());
        let mut columns: Vec<OutputColumn> = Vec::with_capacity(projections.len());
        for (at, projection) in projections.iter().enumerate() {
            // Within its own expression an alias refers to the column.
            let own = scope.aliases.iter().position(|(alias, expr)| {
                Some(*alias) == projection.alias && std::ptr::eq(*expr, projection.expr)
            });
            scope.expanding.extend(own);
            let expr = self.expression(projection.expr, scope)?;
            scope.expanding.clear();
            let name = match projection.alias {
                Some(alias) => alias.to_owned(),
                None => self.default_name(projection.expr, at),
            };
            if columns.iter().any(|it| self.same_name(&it.name, &name)) {
                return invalid(format!(
                    "Duplicate column names in the result are not supported. \
                     Found duplicate(s): {}",
                    excerpt(&name)
                ));
            }
            let identifier = self.fresh_identifier();
            selected.push(format!("{} AS {identifier}", expr.sql));
            columns.push(OutputColumn {
                name,
                identifier,
                ty: expr.ty,
                nullable: expr.nullable,
                elements: expr.elements,
            });
        }
        Ok((selected, columns))
    }

    /// Returns the output name of an expression without an alias.
    fn default_name(&self, expr: &Expr, at: usize) -> String {
        match expr {
            Expr::Identifier(ident) => ident.value.clone(),
            Expr::CompoundIdentifier(idents) => match idents.last() {
                Some(ident) => ident.value.clone(),
                None => String::new(),
            },
            _ if self.is_clickhouse() => {
                excerpt(&clickhouse_name(expr).unwrap_or_else(|| expr.to_string()))
            }
            _ => format!("f{at}_"),
        }
    }

    /// Returns the condition that a record exists. The statement has a second form without it if
    /// all lines of the window count, because the condition reads the attribute map.
    fn record_condition(&mut self, condition: RecordCondition, is_grouped: bool) -> Option<String> {
        let RecordCondition { sql, exception } = condition;
        let Some(exception) = exception.filter(|_| is_grouped) else {
            return Some(sql);
        };
        if self.assumes_records {
            return None;
        }
        if !self.record_exceptions.contains(&exception) {
            self.record_exceptions.push(exception);
        }
        Some(sql)
    }

    fn optional_condition(
        &mut self,
        condition: Option<&'a Expr>,
        scope: &mut Scope<'a>,
    ) -> Result<Option<String>> {
        match condition {
            Some(condition) => Ok(Some(self.expression(condition, scope)?.condition())),
            None => Ok(None),
        }
    }

    /// Returns the column that numbers the rows of each `LIMIT BY` group.
    fn group_row(
        &mut self,
        limit_by: LimitBy<'a>,
        order: &'a [OrderByExpr],
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let mut keys = Vec::with_capacity(limit_by.keys.len());
        for key in limit_by.keys {
            keys.push(self.expression(key, scope)?.sql);
        }
        let order_by = self.order_by_expressions(order, scope)?;
        let keys = keys.join(", ");
        Ok(format!(
            "row_number() OVER (PARTITION BY {keys}{order_by}) AS {GROUP_ROW}"
        ))
    }

    fn first_rows_of_groups(
        &mut self,
        query: &str,
        columns: &[OutputColumn],
        rows: usize,
        order_by: &str,
    ) -> String {
        let identifier = self.fresh_identifier();
        let columns: Vec<_> = columns.iter().map(|it| it.identifier.as_str()).collect();
        let columns = columns.join(", ");
        format!(
            "SELECT {columns} FROM ({query}) AS {identifier} WHERE {GROUP_ROW} <= {rows}{order_by}"
        )
    }
}

impl SelectSql {
    fn into_sql(self) -> String {
        let mut sql = String::from("SELECT ");
        if self.distinct {
            sql.push_str("DISTINCT ");
        }
        sql.push_str(&self.projections.join(", "));
        sql.push_str(&self.from);
        if !self.conditions.is_empty() {
            let _ = write!(sql, " WHERE ({})", self.conditions.join(") AND ("));
        }
        sql.push_str(&self.group_by);
        if let Some(having) = self.having {
            let _ = write!(sql, " HAVING {having}");
        }
        if let Some(qualify) = self.qualify {
            let _ = write!(sql, " QUALIFY {qualify}");
        }
        sql.push_str(&self.order_by);
        sql
    }
}

/// Returns the `FROM` clause. Array joins are expanded in a subquery, beside the columns of their
/// table.
fn from_clause(tables: &str, scope: &Scope<'_>) -> String {
    if tables.is_empty() {
        return String::new();
    }
    let table = match scope.tables.first() {
        Some(table) if !scope.array_joins.is_empty() => &table.identifier,
        _ => return format!(" FROM {tables}"),
    };
    let mut from = tables.to_owned();
    for group in &scope.array_joins {
        let mut lists = String::new();
        for array_join in group {
            let list = &array_join.list;
            let list = if array_join.keeps_empty {
                format!("CASE WHEN array_length({list}) > 0 THEN {list} ELSE make_array(NULL) END")
            } else {
                list.clone()
            };
            let _ = write!(lists, ", unnest({list}) AS {}", array_join.identifier);
        }
        from = format!("(SELECT {table}.*{lists} FROM {from}) AS {table}");
    }
    format!(" FROM {from}")
}

fn projections(select: &Select) -> Result<Vec<Projection<'_>>> {
    let mut projections = Vec::with_capacity(select.projection.len());
    for item in &select.projection {
        projections.push(match item {
            SelectItem::UnnamedExpr(expr) => Projection { alias: None, expr },
            SelectItem::ExprWithAlias { expr, alias } => Projection {
                alias: Some(&alias.value),
                expr,
            },
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => {
                return invalid("restricted wildcard (*) in a result column");
            }
            SelectItem::ExprWithAliases { .. } => {
                return invalid("An expression has at most one alias");
            }
        });
    }
    if projections.is_empty() {
        return invalid("Only SELECT queries allowed");
    }
    Ok(projections)
}

/// Rejects clauses that neither dialect needs.
fn reject_unsupported(select: &Select) -> Result<()> {
    let clauses = [
        (select.top.is_some(), "TOP"),
        (select.exclude.is_some(), "EXCLUDE"),
        (select.into.is_some(), "INTO"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (!select.cluster_by.is_empty(), "CLUSTER BY"),
        (!select.distribute_by.is_empty(), "DISTRIBUTE BY"),
        (!select.sort_by.is_empty(), "SORT BY"),
        (!select.named_window.is_empty(), "WINDOW"),
        (select.value_table_mode.is_some(), "AS STRUCT"),
        (select.select_modifiers.is_some(), "A modifier of SELECT"),
        (
            matches!(select.distinct, Some(Distinct::On(_))),
            "DISTINCT ON",
        ),
    ];
    for (present, clause) in clauses {
        if present {
            return invalid(format!("{clause} is not supported"));
        }
    }
    Ok(())
}
