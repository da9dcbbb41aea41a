//! Queries: what they select, from where, in which order.

use std::fmt::Write as _;

use super::{
    Dialect, Result, Writer, name, refused,
    scope::{Column, Named, Scope, Shape, Table},
    short,
};
use crate::{
    ROWS_MAX,
    engine::{
        TABLE,
        sqlparser::ast::{
            Distinct, Expr, GroupByExpr, Join, JoinConstraint, JoinOperator, LimitClause,
            ObjectName, ObjectNamePart, OrderBy, OrderByExpr, OrderByKind, Query, Select,
            SelectItem, SetExpr, SetOperator, SetQuantifier, TableAlias, TableFactor, Value,
        },
    },
    event::Source,
};

/// A query as it was written, and the names of what it gives.
pub(super) struct Written {
    pub(super) sql: String,
    pub(super) columns: Vec<Column>,
}

impl<'a> Writer<'a> {
    /// The statement itself, and how many rows are asked for.
    pub(super) fn outermost(&mut self, query: &'a Query) -> Result<(Written, usize)> {
        let rows = match &query.limit_clause {
            Some(LimitClause::LimitOffset {
                limit: Some(limit),
                limit_by,
                ..
            }) if limit_by.is_empty() => count(limit)?,
            Some(LimitClause::OffsetCommaLimit { limit, .. }) => count(limit)?,
            _ => ROWS_MAX,
        };
        let rows = rows.min(ROWS_MAX);
        // One more, where more would have been given, tells that there are more.
        Ok((self.query(query, Some(rows + 1))?, rows))
    }

    /// A query. `rows` takes the place of its own limit.
    pub(super) fn query(&mut self, query: &'a Query, rows: Option<usize>) -> Result<Written> {
        let known = self.tables.len();
        let written = self.deeper(|writer| writer.query_with(query, rows));
        self.tables.truncate(known);
        let written = written?;
        Ok(Written {
            sql: Self::bounded(written.sql)?,
            columns: written.columns,
        })
    }

    fn query_with(&mut self, query: &'a Query, rows: Option<usize>) -> Result<Written> {
        let Query {
            with,
            body,
            order_by,
            limit_clause,
            fetch,
            locks,
            for_clause,
            settings: _,
            format_clause,
            pipe_operators,
        } = query;
        if fetch.is_some()
            || !locks.is_empty()
            || for_clause.is_some()
            || format_clause.is_some()
            || !pipe_operators.is_empty()
        {
            return refused("Only SELECT queries allowed");
        }
        let mut sql = String::new();
        if let Some(with) = with {
            if with.recursive {
                return refused("WITH RECURSIVE is not supported");
            }
            for (at, cte) in with.cte_tables.iter().enumerate() {
                if !cte.alias.columns.is_empty() || cte.from.is_some() {
                    return refused("Column lists of common table expressions are not supported");
                }
                let reads = self.reads;
                let Written {
                    sql: inner,
                    columns,
                } = self.query(&cte.query, None)?;
                let written = self.fresh();
                sql.push_str(if at == 0 { "WITH " } else { ", " });
                let _ = write!(sql, "{written} AS ({inner})");
                let reads = self.reads - reads;
                self.tables.push(Named {
                    name: &cte.alias.name.value,
                    written,
                    columns,
                    reads,
                });
            }
            sql.push(' ');
        }
        let (limit, offset, limit_by) = limit(limit_clause.as_ref(), rows)?;
        let order: &[OrderByExpr] = match order_by {
            None => &[],
            Some(OrderBy {
                kind: OrderByKind::Expressions(order),
                interpolate: None,
            }) => order,
            Some(_) => return refused("ORDER BY takes expressions"),
        };
        let columns = match body.as_ref() {
            SetExpr::Select(select) => {
                let Written {
                    sql: inner,
                    columns,
                } = self.select(select, order, limit_by)?;
                sql.push_str(&inner);
                columns
            }
            other => {
                if limit_by.is_some() {
                    return refused("LIMIT BY takes one SELECT");
                }
                let Written {
                    sql: inner,
                    columns,
                } = self.set(other)?;
                let table = self.fresh();
                let _ = write!(sql, "SELECT * FROM ({inner}) AS {table}");
                let called = Table {
                    called: None,
                    written: table,
                    shape: Shape::Columns(columns.clone()),
                };
                let mut scope = Scope {
                    tables: vec![called],
                    ..Scope::default()
                };
                sql.push_str(&self.order(order, &columns, &[], &mut scope)?);
                columns
            }
        };
        Ok(Written {
            sql: format!("{sql}{limit}{offset}"),
            columns,
        })
    }

    /// Anything that gives rows, as a query that another may hold.
    fn set(&mut self, set: &'a SetExpr) -> Result<Written> {
        self.deeper(|writer| match set {
            SetExpr::Select(select) => writer.select(select, &[], None),
            SetExpr::Query(query) => writer.query(query, None),
            SetExpr::SetOperation { .. } => writer.union(set),
            _ => refused("Only SELECT queries allowed"),
        })
    }

    /// The branches of a chain, one after the other: a long one is no deep one.
    fn union(&mut self, set: &'a SetExpr) -> Result<Written> {
        let (mut branches, mut rest) = (Vec::new(), set);
        while let SetExpr::SetOperation {
            left,
            op,
            set_quantifier,
            right,
        } = rest
        {
            let distinct = matches!(set_quantifier, SetQuantifier::Distinct);
            if *op != SetOperator::Union || !(distinct || *set_quantifier == SetQuantifier::All) {
                return refused("Only UNION ALL and UNION DISTINCT are supported");
            }
            branches.push((distinct, right.as_ref()));
            rest = left;
            if branches.len() > READS_OF_UNION_MAX {
                return refused("The query is too complex");
            }
        }
        let Written { mut sql, columns } = self.set(rest)?;
        sql = format!("({sql})");
        for (distinct, branch) in branches.into_iter().rev() {
            let next = self.set(branch)?;
            if next.columns.len() != columns.len() {
                return refused("Queries of a UNION have different numbers of columns");
            }
            sql.push_str(if distinct { " UNION " } else { " UNION ALL " });
            let _ = write!(sql, "({})", next.sql);
        }
        Ok(Written { sql, columns })
    }

    fn select(
        &mut self,
        select: &'a Select,
        order: &'a [OrderByExpr],
        limit_by: Option<ByGroup<'a>>,
    ) -> Result<Written> {
        self.deeper(|writer| writer.select_with(select, order, limit_by))
    }

    fn select_with(
        &mut self,
        select: &'a Select,
        order: &'a [OrderByExpr],
        limit_by: Option<ByGroup<'a>>,
    ) -> Result<Written> {
        plain(select)?;
        let mut scope = Scope::default();
        let tables = self.from(select, &mut scope)?;
        let items = items(select)?;
        scope.aliases = items
            .iter()
            .filter_map(|item| Some((item.alias?, item.expr)))
            .collect();
        scope.aliases_count = self.clickhouse();

        let (mut selected, mut columns) = (Vec::new(), Vec::<Column>::new());
        for (at, item) in items.iter().enumerate() {
            let own = scope.aliases.iter().position(|(alias, expr)| {
                Some(*alias) == item.alias && std::ptr::eq(*expr, item.expr)
            });
            scope.busy.extend(own);
            let piece = self.expression(item.expr, &mut scope)?;
            scope.busy.clear();
            let called = item
                .alias
                .map_or_else(|| self.unnamed(item.expr, at), str::to_owned);
            if columns.iter().any(|it| self.same(&it.called, &called)) {
                return refused(format!(
                    "Duplicate column names in the result are not supported. Found duplicate(s): {}",
                    short(&called)
                ));
            }
            let written = self.fresh();
            selected.push(format!("{} AS {written}", piece.sql));
            columns.push(Column {
                called,
                written,
                is: piece.is,
            });
        }
        let mut conditions = Vec::new();
        for condition in select.prewhere.iter().chain(&select.selection) {
            conditions.push(self.expression(condition, &mut scope)?.condition());
        }
        scope.aliases_count = true;
        let groups = self.groups(&select.group_by, &columns, &items, &mut scope)?;
        let having = select
            .having
            .as_ref()
            .map(|it| self.expression(it, &mut scope))
            .transpose()?;
        let qualify = select
            .qualify
            .as_ref()
            .map(|it| self.expression(it, &mut scope))
            .transpose()?;
        let ordered = self.order(order, &columns, &items, &mut scope)?;

        let mut sql = String::from("SELECT ");
        if matches!(select.distinct, Some(Distinct::Distinct)) {
            sql.push_str("DISTINCT ");
        }
        sql.push_str(&selected.join(", "));
        if let Some((_, by)) = limit_by {
            let by = by
                .iter()
                .map(|it| Ok(self.expression(it, &mut scope)?.sql))
                .collect::<Result<Vec<_>>>()?
                .join(", ");
            let spelled = self.order(order, &[], &[], &mut scope)?;
            let _ = write!(
                sql,
                ", row_number() OVER (PARTITION BY {by}{spelled}) AS \"row of group\""
            );
        }
        sql.push_str(&unfolded(&tables, &scope));
        if !conditions.is_empty() {
            let _ = write!(sql, " WHERE ({})", conditions.join(") AND ("));
        }
        sql.push_str(&groups);
        if let Some(having) = having {
            let _ = write!(sql, " HAVING {}", having.condition());
        }
        if let Some(qualify) = qualify {
            let _ = write!(sql, " QUALIFY {}", qualify.condition());
        }
        sql.push_str(&ordered);
        if let Some((rows, _)) = limit_by {
            let table = self.fresh();
            let names = columns
                .iter()
                .map(|it| it.written.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            let ordered = self.order(order, &columns, &[], &mut scope)?;
            sql = format!(
                "SELECT {names} FROM ({sql}) AS {table} WHERE \"row of group\" <= {rows}{ordered}"
            );
        }
        Ok(Written { sql, columns })
    }

    fn from(&mut self, select: &'a Select, scope: &mut Scope<'a>) -> Result<String> {
        let mut sql = String::new();
        for from in &select.from {
            match &from.relation {
                TableFactor::UNNEST { .. } => self.unnest_factor(&from.relation, scope)?,
                relation => {
                    let table = self.table(relation, scope)?;
                    sql.push_str(if sql.is_empty() { "" } else { " CROSS JOIN " });
                    sql.push_str(&table);
                }
            }
            for join in &from.joins {
                self.join(join, scope, &mut sql)?;
            }
        }
        Ok(sql)
    }

    fn join(&mut self, join: &'a Join, scope: &mut Scope<'a>, sql: &mut String) -> Result<()> {
        let (kind, constraint) = match &join.join_operator {
            JoinOperator::Join(constraint) | JoinOperator::Inner(constraint) => {
                ("JOIN", constraint)
            }
            JoinOperator::Left(constraint) | JoinOperator::LeftOuter(constraint) => {
                ("LEFT JOIN", constraint)
            }
            JoinOperator::CrossJoin(constraint) => ("CROSS JOIN", constraint),
            _ => return refused("This kind of join is not supported"),
        };
        if matches!(join.relation, TableFactor::UNNEST { .. }) {
            let always = match constraint {
                JoinConstraint::None => true,
                JoinConstraint::On(Expr::Value(value)) => value.value == Value::Boolean(true),
                _ => false,
            };
            return if always {
                self.unnest_factor(&join.relation, scope)
            } else {
                refused("UNNEST is joined ON TRUE")
            };
        }
        let table = self.table(&join.relation, scope)?;
        match constraint {
            JoinConstraint::On(condition) => {
                let condition = self.expression(condition, scope)?.condition();
                let _ = write!(sql, " {kind} {table} ON {condition}");
            }
            JoinConstraint::None if kind == "CROSS JOIN" => {
                let _ = write!(sql, " {kind} {table}");
            }
            _ => return refused("A join takes ON"),
        }
        Ok(())
    }

    fn unnest_factor(&mut self, factor: &'a TableFactor, scope: &mut Scope<'a>) -> Result<()> {
        let TableFactor::UNNEST {
            alias,
            array_exprs,
            with_offset: false,
            with_ordinality: false,
            ..
        } = factor
        else {
            return refused("UNNEST WITH OFFSET is not supported");
        };
        match array_exprs.as_slice() {
            [path] if self.dialect == Dialect::BigQuery => {
                self.unnest(path, called(alias.as_ref())?, scope)
            }
            _ => refused("UNNEST takes one field"),
        }
    }

    fn table(&mut self, factor: &'a TableFactor, scope: &mut Scope<'a>) -> Result<String> {
        let (inner, alias, shape) = match factor {
            TableFactor::Table {
                name: table,
                alias,
                args: None,
                with_hints,
                version: None,
                with_ordinality: false,
                partitions,
                json_path: None,
                sample: None,
                index_hints,
            } if with_hints.is_empty() && partitions.is_empty() && index_hints.is_empty() => {
                let (inner, shape) = self.named(table)?;
                let own = last(table).map(str::to_owned);
                (inner, called(alias.as_ref())?.or(own), shape)
            }
            TableFactor::Table {
                name: table,
                args: Some(_),
                ..
            }
            | TableFactor::Function { name: table, .. } => {
                return refused(format!("Restricted function {}", short(&table.to_string())));
            }
            TableFactor::Derived {
                lateral: false,
                subquery,
                alias,
                sample: None,
            } => {
                let Written { sql, columns } = self.query(subquery, None)?;
                (
                    format!("({sql})"),
                    called(alias.as_ref())?,
                    Shape::Columns(columns),
                )
            }
            _ => return refused("FROM takes tables and subqueries"),
        };
        let written = self.fresh();
        let sql = format!("{inner} AS {written}");
        scope.tables.push(Table {
            called: alias,
            written,
            shape,
        });
        Ok(sql)
    }

    /// What a name of a table stands for.
    fn named(&mut self, table: &'a ObjectName) -> Result<(String, Shape)> {
        let full = table
            .0
            .iter()
            .map(part)
            .collect::<Option<Vec<_>>>()
            .map(|parts| parts.join("."))
            .unwrap_or_default();
        let cte = self
            .tables
            .iter()
            .rev()
            .find(|it| it.name == full)
            .map(|it| (it.written.clone(), it.columns.clone(), it.reads));
        let (sql, shape, reads) = match (self.dialect, cte) {
            (_, Some((written, columns, reads))) => (written, Shape::Columns(columns), reads),
            (Dialect::ClickHouse, None) if full == TABLE => (name(TABLE), Shape::Lines(None), 1),
            (Dialect::BigQuery, None) => {
                let (source, more) = match full.parse::<Source>() {
                    Ok(source) => (source, ""),
                    // A part of another source that has a name of its own.
                    Err(_) if full == "pg_cron_logs" => (
                        Source::Postgres,
                        " AND (\"@parsed.application_name\" = 'pg_cron' OR \"event_message\" ILIKE '%cron job%')",
                    ),
                    Err(_) => return refused(format!("can't find source {}", short(&full))),
                };
                let lines = format!(
                    "(SELECT * FROM {} WHERE \"source\" = '{source}'{more})",
                    name(TABLE)
                );
                (lines, Shape::Lines(Some(source)), 1)
            }
            _ => return refused(format!("can't find source {}", short(&full))),
        };
        self.reads += reads;
        if self.reads > super::READS_MAX {
            refused("The query reads tables too often")
        } else {
            Ok((sql, shape))
        }
    }

    /// What a selected expression without a name is called.
    fn unnamed(&self, expr: &Expr, at: usize) -> String {
        match expr {
            Expr::Identifier(ident) => ident.value.clone(),
            Expr::CompoundIdentifier(idents) => {
                idents.last().map(|it| it.value.clone()).unwrap_or_default()
            }
            _ if self.clickhouse() => short(&expr.to_string()),
            _ => format!("f{at}_"),
        }
    }

    fn groups(
        &mut self,
        by: &'a GroupByExpr,
        columns: &[Column],
        items: &[Item<'a>],
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let groups = match by {
            GroupByExpr::Expressions(groups, modifiers) if modifiers.is_empty() => groups,
            _ => return refused("GROUP BY takes expressions"),
        };
        let groups = groups
            .iter()
            .map(|group| match self.ordinal(group, columns, items)? {
                Some(at) => Ok(at.to_string()),
                None => Ok(format!("({})", self.expression(group, scope)?.sql)),
            });
        let groups = groups.collect::<Result<Vec<_>>>()?;
        Ok(if groups.is_empty() {
            String::new()
        } else {
            format!(" GROUP BY {}", groups.join(", "))
        })
    }

    /// The selected expression that a number or a name stands for, from 1.
    fn ordinal(
        &self,
        expr: &Expr,
        columns: &[Column],
        items: &[Item<'a>],
    ) -> Result<Option<usize>> {
        match expr {
            Expr::Value(value) => match &value.value {
                Value::Number(digits, _) => match digits.parse() {
                    Ok(at) if (1..=columns.len()).contains(&at) => Ok(Some(at)),
                    _ => refused(format!(
                        "Position {} is not in the select list",
                        short(digits)
                    )),
                },
                _ => Ok(None),
            },
            Expr::Identifier(ident) => {
                let aliased = |at: &usize| items.get(*at).is_none_or(|item| item.alias.is_some());
                let mut named = (0..columns.len()).filter(aliased);
                Ok(named
                    .find(|at| self.same(&columns[*at].called, &ident.value))
                    .map(|at| at + 1))
            }
            _ => Ok(None),
        }
    }

    fn order(
        &mut self,
        order: &'a [OrderByExpr],
        columns: &[Column],
        items: &[Item<'a>],
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let mut keys = Vec::new();
        for OrderByExpr {
            expr,
            options,
            with_fill,
        } in order
        {
            if with_fill.is_some() {
                return refused("WITH FILL is not supported");
            }
            let key = match self.ordinal(expr, columns, items) {
                Ok(Some(at)) => at.to_string(),
                Err(error) if !columns.is_empty() => return Err(error),
                _ => self.expression(expr, scope)?.sql,
            };
            let up = options.asc.unwrap_or(true);
            let nulls_first = options
                .nulls_first
                .unwrap_or(up && self.dialect == Dialect::BigQuery);
            let (up, nulls) = (
                if up { "ASC" } else { "DESC" },
                if nulls_first { "FIRST" } else { "LAST" },
            );
            keys.push(format!("{key} {up} NULLS {nulls}"));
        }
        Ok(if keys.is_empty() {
            String::new()
        } else {
            format!(" ORDER BY {}", keys.join(", "))
        })
    }

    /// `ORDER BY` of a window or an aggregate, where numbers are no positions.
    pub(super) fn order_within(
        &mut self,
        order: &'a [OrderByExpr],
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        self.order(order, &[], &[], scope)
    }
}

/// `LIMIT n BY` expressions.
type ByGroup<'a> = (usize, &'a [Expr]);

/// `LIMIT`, `OFFSET`, and how many rows are given of each group.
fn limit(
    clause: Option<&LimitClause>,
    rows: Option<usize>,
) -> Result<(String, String, Option<ByGroup<'_>>)> {
    let (limit, offset, by) = match clause {
        None => (None, None, None),
        Some(LimitClause::LimitOffset {
            limit,
            offset,
            limit_by,
        }) if limit_by.is_empty() => (limit.as_ref(), offset.as_ref().map(|it| &it.value), None),
        Some(LimitClause::LimitOffset {
            limit: Some(limit),
            offset: None,
            limit_by,
        }) => (None, None, Some((count(limit)?, &limit_by[..]))),
        Some(LimitClause::LimitOffset { .. }) => return refused("LIMIT BY takes no OFFSET"),
        Some(LimitClause::OffsetCommaLimit { offset, limit }) => (Some(limit), Some(offset), None),
    };
    let own = limit.map(count).transpose()?;
    let limit = match (own, rows) {
        (Some(own), Some(rows)) => Some(own.min(rows)),
        (own, rows) => own.or(rows),
    };
    let limit = limit
        .map(|rows| format!(" LIMIT {rows}"))
        .unwrap_or_default();
    let offset = offset
        .map(count)
        .transpose()?
        .map(|rows| format!(" OFFSET {rows}"))
        .unwrap_or_default();
    Ok((limit, offset, by))
}

/// The tables, with lists unfolded beside the lines they belong to.
fn unfolded(tables: &str, scope: &Scope<'_>) -> String {
    if tables.is_empty() {
        return String::new();
    }
    let Some(table) = scope.tables.first().filter(|_| !scope.unfolded.is_empty()) else {
        return format!(" FROM {tables}");
    };
    let lists = scope
        .unfolded
        .iter()
        .map(|(list, called)| format!("unnest({list}) AS {called}"))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        " FROM (SELECT {}.*, {lists} FROM {tables}) AS {}",
        table.written, table.written
    )
}

/// Branches of one chain of unions.
const READS_OF_UNION_MAX: usize = 64;

/// A selected expression.
struct Item<'a> {
    alias: Option<&'a str>,
    expr: &'a Expr,
}

fn items(select: &Select) -> Result<Vec<Item<'_>>> {
    let mut items = Vec::new();
    for item in &select.projection {
        items.push(match item {
            SelectItem::UnnamedExpr(expr) => Item { alias: None, expr },
            SelectItem::ExprWithAlias { expr, alias } => Item {
                alias: Some(&alias.value),
                expr,
            },
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => {
                return refused("restricted wildcard (*) in a result column");
            }
            SelectItem::ExprWithAliases { .. } => return refused("An expression has one alias"),
        });
    }
    if items.is_empty() {
        refused("Only SELECT queries allowed")
    } else {
        Ok(items)
    }
}

/// Refuses the parts of a `SELECT` that neither dialect needs.
fn plain(select: &Select) -> Result<()> {
    let odd = [
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
    match odd.iter().find(|(there, _)| *there) {
        Some((_, what)) => refused(format!("{what} is not supported")),
        None => Ok(()),
    }
}

fn called(alias: Option<&TableAlias>) -> Result<Option<String>> {
    match alias {
        Some(alias) if !alias.columns.is_empty() || alias.at.is_some() => {
            refused("An alias of a table has no columns")
        }
        alias => Ok(alias.map(|alias| alias.name.value.clone())),
    }
}

fn part(part: &ObjectNamePart) -> Option<&str> {
    match part {
        ObjectNamePart::Identifier(ident) => Some(&ident.value),
        ObjectNamePart::Function(_) => None,
    }
}

fn last(table: &ObjectName) -> Option<&str> {
    table.0.last().and_then(part)
}

/// A number of rows.
fn count(expr: &Expr) -> Result<usize> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) => digits
                .parse()
                .map_or_else(|_| refused("LIMIT and OFFSET take whole numbers"), Ok),
            _ => refused("LIMIT and OFFSET take whole numbers"),
        },
        _ => refused("LIMIT and OFFSET take whole numbers"),
    }
}
