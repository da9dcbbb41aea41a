//! `FROM`: tables, subqueries, joins and unnested records.

use std::fmt::Write as _;

use super::{
    dialect::Dialect,
    parse::rewrite::{ARRAY_JOIN, LEFT_ARRAY_JOIN},
    query::QuerySql,
    scope::{Scope, ScopeTable, TableColumns},
    text::{Result, excerpt, invalid, quote_identifier},
    translator::{READS_MAX, Translator},
};
use crate::{
    engine::{
        TABLE,
        sqlparser::ast::{
            Expr, Join, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, Select,
            TableAlias, TableFactor, Value,
        },
    },
    event::Source,
};

impl<'a> Translator<'a> {
    /// Translates the `FROM` clause without its keyword and adds its tables to the scope.
    pub(super) fn from(&mut self, select: &'a Select, scope: &mut Scope<'a>) -> Result<String> {
        let mut sql = String::new();
        for from in &select.from {
            match &from.relation {
                TableFactor::UNNEST { .. } => self.unnest(&from.relation, false, scope)?,
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
            _ => return invalid("This kind of join is not supported"),
        };
        if matches!(join.relation, TableFactor::UNNEST { .. }) {
            let unconditional = match constraint {
                JoinConstraint::None => true,
                JoinConstraint::On(Expr::Value(value)) => value.value == Value::Boolean(true),
                _ => false,
            };
            if !unconditional {
                return invalid("UNNEST can only be joined ON TRUE");
            }
            return self.unnest(&join.relation, kind == "LEFT JOIN", scope);
        }
        if let TableFactor::Derived {
            subquery,
            alias: Some(alias),
            ..
        } = &join.relation
            && self.is_clickhouse()
            && [ARRAY_JOIN, LEFT_ARRAY_JOIN].contains(&alias.name.value.as_str())
        {
            let keeps_empty = alias.name.value == LEFT_ARRAY_JOIN;
            return self.array_join_clause(subquery, keeps_empty, scope);
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
            _ => return invalid("A join requires ON"),
        }
        Ok(())
    }

    fn unnest(
        &mut self,
        factor: &'a TableFactor,
        keeps_rows: bool,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        let TableFactor::UNNEST {
            alias,
            array_exprs,
            with_offset: false,
            with_ordinality: false,
            ..
        } = factor
        else {
            return invalid("UNNEST WITH OFFSET is not supported");
        };
        match array_exprs.as_slice() {
            [path] if self.dialect == Dialect::BigQuery => {
                self.add_unnest(path, table_alias(alias.as_ref())?, keeps_rows, scope)
            }
            _ => invalid("UNNEST takes one field"),
        }
    }

    /// Translates a table or a subquery and adds it to the scope.
    fn table(&mut self, factor: &'a TableFactor, scope: &mut Scope<'a>) -> Result<String> {
        let (relation, name, columns) = match factor {
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
                let (relation, columns) = self.named_table(table)?;
                let own = table.0.last().and_then(name_part).map(str::to_owned);
                (relation, table_alias(alias.as_ref())?.or(own), columns)
            }
            TableFactor::Table {
                name: table,
                args: Some(_),
                ..
            }
            | TableFactor::Function { name: table, .. } => {
                return invalid(format!(
                    "Restricted function {}",
                    excerpt(&table.to_string())
                ));
            }
            TableFactor::Derived {
                lateral: false,
                subquery,
                alias,
                sample: None,
            } => {
                let QuerySql { sql, columns } = self.query(subquery, None)?;
                let alias = table_alias(alias.as_ref())?;
                (format!("({sql})"), alias, TableColumns::Query(columns))
            }
            _ => return invalid("FROM takes tables and subqueries"),
        };
        let identifier = self.fresh_identifier();
        let sql = format!("{relation} AS {identifier}");
        scope.tables.push(ScopeTable {
            name,
            identifier,
            columns,
        });
        Ok(sql)
    }

    /// Resolves the name of a common table expression, a source or the log table.
    fn named_table(&mut self, table: &'a ObjectName) -> Result<(String, TableColumns)> {
        let parts: Option<Vec<_>> = table.0.iter().map(name_part).collect();
        let name = parts.unwrap_or_default().join(".");
        let cte = self.common_tables.iter().rev().find(|it| it.name == name);
        let (sql, columns, reads) = if let Some(cte) = cte {
            let columns = TableColumns::Query(cte.columns.clone());
            (cte.identifier.clone(), columns, cte.reads)
        } else {
            let (sql, columns) = self.log_table(&name)?;
            (sql, columns, 1)
        };
        self.reads += reads;
        if self.reads > READS_MAX {
            return invalid("The query reads tables too often");
        }
        Ok((sql, columns))
    }

    fn log_table(&self, name: &str) -> Result<(String, TableColumns)> {
        let lines = quote_identifier(TABLE);
        if self.is_clickhouse() {
            return if name == TABLE {
                Ok((lines, TableColumns::Lines(None)))
            } else {
                unknown_source(name)
            };
        }
        let (source, filter) = match name.parse::<Source>() {
            Ok(source) => (source, ""),
            // pg_cron writes to the log of PostgreSQL.
            Err(_) if name == "pg_cron_logs" => (
                Source::Postgres,
                " AND (\"@parsed.application_name\" = 'pg_cron' \
                 OR \"event_message\" ILIKE '%cron job%')",
            ),
            Err(_) => return unknown_source(name),
        };
        let sql = format!("(SELECT * FROM {lines} WHERE \"source\" = '{source}'{filter})");
        Ok((sql, TableColumns::Lines(Some(source))))
    }
}

fn unknown_source<T>(name: &str) -> Result<T> {
    invalid(format!("can't find source {}", excerpt(name)))
}

fn table_alias(alias: Option<&TableAlias>) -> Result<Option<String>> {
    match alias {
        None => Ok(None),
        Some(alias) if alias.columns.is_empty() && alias.at.is_none() => {
            Ok(Some(alias.name.value.clone()))
        }
        Some(_) => invalid("Column lists of table aliases are not supported"),
    }
}

fn name_part(part: &ObjectNamePart) -> Option<&str> {
    match part {
        ObjectNamePart::Identifier(ident) => Some(&ident.value),
        ObjectNamePart::Function(_) => None,
    }
}
