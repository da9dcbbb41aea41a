//! Queries: common table expressions, unions and limits.

use std::fmt::Write as _;

use super::{
    fill::reject_fill,
    parse::rewrite::VALUE,
    scope::{CommonTable, OutputColumn, Scope, ScopeTable, TableColumns},
    text::{Result, check_length, invalid},
    translator::Translator,
};
use crate::{
    answer::ROWS_MAX,
    engine::sqlparser::ast::{
        Cte, Expr, LimitClause, OrderBy, OrderByExpr, OrderByKind, Query, SelectItem, SetExpr,
        SetOperator, SetQuantifier, Value, With,
    },
};

/// Maximum number of branches in one chain of unions.
const UNION_BRANCHES_MAX: usize = 64;

/// A translated query.
pub(super) struct QuerySql {
    pub(super) sql: String,
    pub(super) columns: Vec<OutputColumn>,
}

/// `LIMIT n BY expressions`: the first `n` rows of each group.
#[derive(Clone, Copy)]
pub(super) struct LimitBy<'a> {
    pub(super) rows: usize,
    pub(super) keys: &'a [Expr],
}

impl<'a> Translator<'a> {
    /// Translates the whole statement. Returns the requested number of rows; the query selects one
    /// more to detect truncation.
    pub(super) fn statement(&mut self, query: &'a Query) -> Result<(QuerySql, usize)> {
        let limit = match &query.limit_clause {
            Some(LimitClause::LimitOffset {
                limit: Some(limit),
                limit_by,
                ..
            }) if limit_by.is_empty() => row_count(limit)?,
            Some(LimitClause::OffsetCommaLimit { limit, .. }) => row_count(limit)?,
            _ => ROWS_MAX,
        };
        let rows = limit.min(ROWS_MAX);
        // A limit of the statement itself must not hide the additional row.
        let translated = self.query(query, Some(rows + 1))?;
        Ok((translated, rows))
    }

    /// Translates a query. `rows` caps its limit.
    pub(super) fn query(&mut self, query: &'a Query, rows: Option<usize>) -> Result<QuerySql> {
        let common_tables = self.common_tables.len();
        let values = self.values.len();
        let translated = self.nested(|translator| translator.query_in_scope(query, rows));
        self.common_tables.truncate(common_tables);
        self.values.truncate(values);
        let QuerySql { sql, columns } = translated?;
        Ok(QuerySql {
            sql: check_length(sql)?,
            columns,
        })
    }

    fn query_in_scope(&mut self, query: &'a Query, rows: Option<usize>) -> Result<QuerySql> {
        // Exhaustive, so that a clause added to the parser does not pass unnoticed.
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
            return invalid("Only SELECT queries allowed");
        }
        let with = match with {
            Some(with) => self.common_table_expressions(with)?,
            None => String::new(),
        };
        let limits = Limits::new(limit_clause.as_ref(), rows)?;
        let order: &[OrderByExpr] = match order_by {
            None => &[],
            Some(OrderBy {
                kind: OrderByKind::Expressions(order),
                interpolate: None,
            }) => order,
            Some(_) => return invalid("ORDER BY takes expressions"),
        };
        // Only the statement itself has a number of rows.
        if rows.is_some() {
            self.take_fill(order, &limits.offset, limits.by.is_some())?;
        } else {
            reject_fill(order)?;
        }
        let translated = match body.as_ref() {
            SetExpr::Select(select) => self.select(select, order, limits.by)?,
            _ if limits.by.is_some() => return invalid("LIMIT BY requires a single SELECT"),
            set => self.ordered_set(set, order)?,
        };
        if rows.is_some() {
            self.finish_fill(&translated.columns)?;
        }
        Ok(QuerySql {
            sql: format!("{with}{}{}{}", translated.sql, limits.limit, limits.offset),
            columns: translated.columns,
        })
    }

    fn common_table_expressions(&mut self, with: &'a With) -> Result<String> {
        if with.recursive {
            return invalid("WITH RECURSIVE is not supported");
        }
        let mut sql = String::new();
        for cte in &with.cte_tables {
            if let Some(value) = named_value(cte) {
                self.values.push((&cte.alias.name.value, value));
                continue;
            }
            if !cte.alias.columns.is_empty() || cte.from.is_some() {
                return invalid("Column lists of common table expressions are not supported");
            }
            let reads_before = self.reads;
            let query = self.query(&cte.query, None)?;
            let identifier = self.fresh_identifier();
            let separator = if sql.is_empty() { "WITH " } else { ", " };
            let _ = write!(sql, "{separator}{identifier} AS ({})", query.sql);
            self.common_tables.push(CommonTable {
                name: &cte.alias.name.value,
                identifier,
                columns: query.columns,
                reads: self.reads - reads_before,
            });
        }
        sql.push(' ');
        Ok(sql)
    }

    /// Wraps a union, so that `ORDER BY` can refer to its columns.
    fn ordered_set(&mut self, set: &'a SetExpr, order: &'a [OrderByExpr]) -> Result<QuerySql> {
        let QuerySql {
            sql: inner,
            columns,
        } = self.set(set)?;
        let identifier = self.fresh_identifier();
        let mut sql = format!("SELECT * FROM ({inner}) AS {identifier}");
        let mut scope = Scope::default();
        scope.tables.push(ScopeTable {
            name: None,
            identifier,
            columns: TableColumns::Query(columns.clone()),
        });
        sql.push_str(&self.order_by_columns(order, &columns, &[], &mut scope)?);
        Ok(QuerySql { sql, columns })
    }

    fn set(&mut self, set: &'a SetExpr) -> Result<QuerySql> {
        self.nested(|translator| match set {
            SetExpr::Select(select) => translator.select(select, &[], None),
            SetExpr::Query(query) => translator.query(query, None),
            SetExpr::SetOperation { .. } => translator.union(set),
            _ => invalid("Only SELECT queries allowed"),
        })
    }

    /// Translates a chain of unions. A chain of any length counts as one nesting level.
    fn union(&mut self, set: &'a SetExpr) -> Result<QuerySql> {
        let mut branches = Vec::new();
        let mut rest = set;
        // The parser nests chains to the left.
        while let SetExpr::SetOperation {
            left,
            op,
            set_quantifier,
            right,
        } = rest
        {
            let keyword = match (op, set_quantifier) {
                (SetOperator::Union, SetQuantifier::Distinct) => " UNION ",
                (SetOperator::Union, SetQuantifier::All) => " UNION ALL ",
                _ => return invalid("Only UNION ALL and UNION DISTINCT are supported"),
            };
            branches.push((keyword, right.as_ref()));
            rest = left;
            if branches.len() > UNION_BRANCHES_MAX {
                return invalid("The query is too complex");
            }
        }
        let QuerySql { sql, columns } = self.set(rest)?;
        let mut sql = format!("({sql})");
        for (keyword, branch) in branches.into_iter().rev() {
            let branch = self.set(branch)?;
            if branch.columns.len() != columns.len() {
                return invalid("The queries of a UNION have different numbers of columns");
            }
            let _ = write!(sql, "{keyword}({})", branch.sql);
        }
        Ok(QuerySql { sql, columns })
    }
}

/// Returns the expression of a `WITH` item that names a value.
fn named_value(cte: &Cte) -> Option<&Expr> {
    let marked = cte.alias.columns.first()?.name.value == VALUE;
    let SetExpr::Select(select) = cte.query.body.as_ref() else {
        return None;
    };
    match select.projection.as_slice() {
        [SelectItem::ExprWithAlias { expr, .. }] if marked => Some(expr),
        _ => None,
    }
}

/// The translated limits of a query.
struct Limits<'a> {
    limit: String,
    offset: String,
    by: Option<LimitBy<'a>>,
}

impl<'a> Limits<'a> {
    fn new(clause: Option<&'a LimitClause>, rows: Option<usize>) -> Result<Self> {
        let (limit, offset) = match clause {
            None => (None, None),
            Some(LimitClause::LimitOffset {
                limit,
                offset,
                limit_by,
            }) if limit_by.is_empty() => (limit.as_ref(), offset.as_ref().map(|it| &it.value)),
            Some(LimitClause::LimitOffset {
                limit: Some(limit),
                offset: None,
                limit_by,
            }) => {
                let by = LimitBy {
                    rows: row_count(limit)?,
                    keys: limit_by,
                };
                return Ok(Self {
                    limit: count_clause(" LIMIT ", rows),
                    offset: String::new(),
                    by: Some(by),
                });
            }
            Some(LimitClause::LimitOffset { .. }) => {
                return invalid("LIMIT BY does not support OFFSET");
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => (Some(limit), Some(offset)),
        };
        let limit = match (limit.map(row_count).transpose()?, rows) {
            (Some(limit), Some(rows)) => Some(limit.min(rows)),
            (limit, rows) => limit.or(rows),
        };
        let offset = offset.map(row_count).transpose()?;
        Ok(Self {
            limit: count_clause(" LIMIT ", limit),
            offset: count_clause(" OFFSET ", offset),
            by: None,
        })
    }
}

fn count_clause(keyword: &str, count: Option<usize>) -> String {
    match count {
        Some(count) => format!("{keyword}{count}"),
        None => String::new(),
    }
}

/// Parses the literal of `LIMIT` or `OFFSET`.
fn row_count(expr: &Expr) -> Result<usize> {
    if let Expr::Value(value) = expr
        && let Value::Number(digits, _) = &value.value
        && let Ok(count) = digits.parse()
    {
        return Ok(count);
    }
    invalid("LIMIT and OFFSET take whole numbers")
}
