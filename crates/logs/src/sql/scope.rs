//! Name resolution: tables, columns, attributes and select aliases.

use std::fmt::Write as _;

use super::{
    dialect::Dialect,
    sql_expr::{NumberColumn, SqlExpr, Type},
    text::{Result, invalid, quote_identifier, quote_literal},
    translator::Translator,
};
use crate::{
    engine::sqlparser::ast::{Expr, Ident},
    event::Source,
    fields,
    layout::{self, Kind},
};

/// Maximum length of an unknown name that an error message quotes, in characters.
const NAME_CHARS_MAX: usize = 100;

/// An output column of a query.
#[derive(Debug, Clone)]
pub(super) struct OutputColumn {
    /// The column name that the client sees.
    pub(super) name: String,
    /// The engine identifier. It is generated, so that an alias never shadows a column.
    pub(super) identifier: String,
    pub(super) ty: Type,
    pub(super) nullable: bool,
    pub(super) elements: Vec<Type>,
}

/// A common table expression.
pub(super) struct CommonTable<'a> {
    pub(super) name: &'a str,
    pub(super) identifier: String,
    pub(super) columns: Vec<OutputColumn>,
    /// Number of table reads that the expression performs.
    pub(super) reads: usize,
}

/// The columns of a table.
#[derive(Debug, Clone)]
pub(super) enum TableColumns {
    /// Log lines, restricted to one source if the table names a source.
    Lines(Option<Source>),
    /// Output columns of a subquery.
    Query(Vec<OutputColumn>),
}

#[derive(Debug, Clone)]
pub(super) struct ScopeTable {
    /// The table name or alias of the client.
    pub(super) name: Option<String>,
    /// The engine identifier.
    pub(super) identifier: String,
    pub(super) columns: TableColumns,
}

/// `UNNEST(path) AS alias`: an alias for a record of a table.
#[derive(Debug, Clone)]
struct RecordAlias {
    alias: Option<String>,
    table: usize,
    path: String,
}

/// A list that `arrayJoin` expands to rows.
#[derive(Debug)]
pub(super) struct ArrayJoin {
    pub(super) list: String,
    /// The engine identifier of the items.
    pub(super) identifier: String,
    /// Whether a row with an empty list is kept.
    pub(super) keeps_empty: bool,
}

/// The condition that a line has an unnested record.
#[derive(Debug)]
pub(super) struct RecordCondition {
    pub(super) sql: String,
    /// A condition for lines of the log table that is cheap and holds for every line without the
    /// record, `None` if there is no such condition.
    pub(super) exception: Option<String>,
}

/// The names that are visible in one `SELECT`.
#[derive(Debug, Default)]
pub(crate) struct Scope<'a> {
    pub(super) tables: Vec<ScopeTable>,
    record_aliases: Vec<RecordAlias>,
    /// Aliases of the select list.
    pub(super) aliases: Vec<(&'a str, &'a Expr)>,
    /// Whether the current clause can refer to aliases.
    pub(super) aliases_visible: bool,
    /// Indices of aliases that are being expanded. Within its own expression an alias refers to
    /// the column.
    pub(super) expanding: Vec<usize>,
    /// Lists that are expanded together, in the order of the expansion.
    pub(super) array_joins: Vec<Vec<ArrayJoin>>,
    /// Names of `ARRAY JOIN` and parameters of lambdas, innermost last.
    pub(super) variables: Vec<(&'a str, SqlExpr)>,
    /// Conditions for the presence of unnested records.
    pub(super) record_conditions: Vec<RecordCondition>,
}

/// The target of a name.
pub(super) enum Resolution {
    Value(SqlExpr),
    /// A record of attributes. The empty path is the record of all attributes.
    Record {
        table: usize,
        path: String,
    },
}

impl<'a> Translator<'a> {
    /// Adds `UNNEST(path) AS alias` to the scope. A row without the record is dropped unless the
    /// join keeps it.
    pub(super) fn add_unnest(
        &mut self,
        path: &'a Expr,
        alias: Option<String>,
        keeps_rows: bool,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        let idents = match path {
            Expr::Identifier(ident) => std::slice::from_ref(ident),
            Expr::CompoundIdentifier(idents) => idents,
            _ => return invalid("UNNEST takes a field of metadata"),
        };
        match self.resolve(idents, scope)? {
            Resolution::Record { table, path } => {
                // `metadata` itself always has one record.
                if !keeps_rows && !path.is_empty() {
                    let condition = record_condition(&scope.tables[table], &path);
                    scope.record_conditions.push(condition);
                }
                scope
                    .record_aliases
                    .push(RecordAlias { alias, table, path });
                Ok(())
            }
            Resolution::Value(_) => unknown_field(&dotted(&words_of(idents))),
        }
    }

    /// Translates the expression of a select alias, if the identifier is one in this clause.
    pub(super) fn expand_alias(
        &mut self,
        ident: &Ident,
        scope: &mut Scope<'a>,
    ) -> Result<Option<SqlExpr>> {
        if !scope.aliases_visible {
            return Ok(None);
        }
        if scope.variables.iter().any(|(name, _)| *name == ident.value) {
            return Ok(None);
        }
        let found = (0..scope.aliases.len()).find(|at| {
            self.same_name(scope.aliases[*at].0, &ident.value) && !scope.expanding.contains(at)
        });
        let Some(at) = found else {
            return self.expand_value(ident, scope);
        };
        scope.expanding.push(at);
        let aliases_visible = std::mem::replace(&mut scope.aliases_visible, self.is_clickhouse());
        let translated = self.expression(scope.aliases[at].1, scope);
        scope.aliases_visible = aliases_visible;
        scope.expanding.pop();
        translated.map(Some)
    }

    /// Translates a value that `WITH` names.
    fn expand_value(&mut self, ident: &Ident, scope: &mut Scope<'a>) -> Result<Option<SqlExpr>> {
        let at = self
            .values
            .iter()
            .rposition(|(name, _)| *name == ident.value);
        let Some(at) = at else {
            return Ok(None);
        };
        // A value can refer to earlier values only.
        let later = self.values.split_off(at);
        let translated = self.expression(later[0].1, scope);
        self.values.extend(later);
        translated.map(Some)
    }

    /// Resolves a dotted name: first record aliases, then qualified columns, then columns of any
    /// table, and last the fields of unnested records.
    pub(super) fn resolve(&self, idents: &[Ident], scope: &Scope<'a>) -> Result<Resolution> {
        self.resolve_words(&words_of(idents), scope)
    }

    pub(super) fn resolve_words(&self, words: &[&str], scope: &Scope<'a>) -> Result<Resolution> {
        let Some((&first, rest)) = words.split_first() else {
            return unknown_field("");
        };
        if rest.is_empty() {
            let variable = scope
                .variables
                .iter()
                .rev()
                .find(|(name, _)| *name == first);
            if let Some((_, variable)) = variable {
                return Ok(Resolution::Value(variable.clone()));
            }
        }
        for record in scope.record_aliases.iter().rev() {
            if self.is_named(record.alias.as_deref(), first) {
                return Ok(Self::attribute_at(record.table, &record.path, rest, scope));
            }
        }
        let table = scope
            .tables
            .iter()
            .position(|table| self.is_named(table.name.as_deref(), first));
        let resolution = match (table, rest) {
            (Some(table), [column, rest @ ..]) => self.resolve_column(table, column, rest, scope),
            _ => (0..scope.tables.len())
                .find_map(|table| self.resolve_column(table, first, rest, scope))
                .or_else(|| Self::resolve_unqualified(words, scope)),
        };
        match resolution {
            Some(resolution) => Ok(resolution),
            None => unknown_field(&dotted(words)),
        }
    }

    fn is_named(&self, name: Option<&str>, word: &str) -> bool {
        name.is_some_and(|name| self.same_name(name, word))
    }

    /// Resolves a field of an unnested record that is written without the record alias.
    fn resolve_unqualified(words: &[&str], scope: &Scope<'a>) -> Option<Resolution> {
        let first = words.first()?;
        for record in scope.record_aliases.iter().rev() {
            let key = if record.path.is_empty() {
                (*first).to_owned()
            } else {
                format!("{}.{first}", record.path)
            };
            if fields::canonical(&key).is_some() || fields::is_parent(&key) {
                return Some(Self::attribute_at(record.table, &record.path, words, scope));
            }
        }
        None
    }

    fn resolve_column(
        &self,
        at: usize,
        column: &str,
        rest: &[&str],
        scope: &Scope<'a>,
    ) -> Option<Resolution> {
        let table = scope.tables.get(at)?;
        match &table.columns {
            TableColumns::Query(columns) => {
                let column = columns
                    .iter()
                    .find(|it| self.same_name(&it.name, column))
                    .filter(|_| rest.is_empty())?;
                let sql = format!("{}.{}", table.identifier, column.identifier);
                let mut expr = SqlExpr::new(sql, column.ty).nullable(column.nullable);
                expr.elements.clone_from(&column.elements);
                Some(Resolution::Value(expr))
            }
            TableColumns::Lines(source) => self
                .line_column(table, column, rest)
                .or_else(|| self.line_record(at, *source, column, rest, scope)),
        }
    }

    /// Resolves a column of the log table.
    fn line_column(&self, table: &ScopeTable, column: &str, rest: &[&str]) -> Option<Resolution> {
        const COMMON: [&str; 3] = ["id", "timestamp", "event_message"];
        if !rest.is_empty() {
            return None;
        }
        let common = COMMON.into_iter().find(|it| self.same_name(it, column));
        let column = match (common, column) {
            (Some(common), _) => common,
            (None, "source" | "severity_text") if self.is_clickhouse() => column,
            _ => return None,
        };
        let ty = if column == "timestamp" {
            Type::Timestamp
        } else {
            Type::Text
        };
        let sql = format!("{}.{}", table.identifier, quote_identifier(column));
        Some(Resolution::Value(SqlExpr::new(sql, ty)))
    }

    /// Resolves the attributes of the log table.
    fn line_record(
        &self,
        table: usize,
        source: Option<Source>,
        column: &str,
        rest: &[&str],
        scope: &Scope<'a>,
    ) -> Option<Resolution> {
        match (self.dialect, column, rest) {
            // A column of the sources of the hosted service.
            (Dialect::ClickHouse, "workflow_run", []) => {
                Some(Resolution::Value(Self::map_entry(table, column, scope)))
            }
            (Dialect::ClickHouse, "log_attributes", []) => Some(Resolution::Record {
                table,
                path: String::new(),
            }),
            (Dialect::BigQuery, _, rest) if column.eq_ignore_ascii_case("metadata") => {
                Some(Self::attribute_at(table, "", rest, scope))
            }
            (Dialect::BigQuery, "identifier" | "project" | "workflow_run", [])
                if source.is_some() =>
            {
                Some(Self::attribute_at(table, "", &[column], scope))
            }
            _ => None,
        }
    }

    /// Resolves a path below a record.
    pub(super) fn attribute_at(
        table: usize,
        path: &str,
        rest: &[&str],
        scope: &Scope<'a>,
    ) -> Resolution {
        let mut words = rest.to_vec();
        if !path.is_empty() {
            words.insert(0, path);
        }
        let key = dotted(&words);
        match fields::canonical(&key) {
            Some(key) => Resolution::Value(typed_attribute(&scope.tables[table].identifier, key)),
            None if key.is_empty() || fields::is_parent(&key) => {
                Resolution::Record { table, path: key }
            }
            None => Resolution::Value(typed_attribute(&scope.tables[table].identifier, &key)),
        }
    }

    /// Translates a record that is used as a value.
    pub(super) fn record_value(&self, table: usize, path: &str, scope: &Scope<'a>) -> SqlExpr {
        let table = &scope.tables[table].identifier;
        let mut columns = Vec::with_capacity(layout::COLUMNS.len() + 1);
        for (key, _) in layout::COLUMNS {
            let column = format!("{}{key}", layout::HOT);
            columns.push(format!("{table}.{}", quote_identifier(&column)));
        }
        columns.push(format!("{table}.\"attributes\""));
        let columns = columns.join(", ");
        if self.is_clickhouse() {
            SqlExpr::new(format!("all_attributes({columns})"), Type::Map)
        } else {
            let prefix = quote_literal(path);
            SqlExpr::new(
                format!("nested_attributes({prefix}, {columns})"),
                Type::Record,
            )
        }
    }

    /// Translates `log_attributes['key']`. A missing key is the empty text.
    pub(super) fn map_entry(table: usize, key: &str, scope: &Scope<'a>) -> SqlExpr {
        let attribute = AttributeSql::new(&scope.tables[table].identifier, key);
        let mut expr = SqlExpr::new(format!("coalesce({}, '')", attribute.text), Type::Text);
        expr.number_column = attribute.integer_column.map(|sql| NumberColumn {
            sql,
            may_be_fractional: fields::may_be_fractional(key),
        });
        expr
    }
}

/// Returns the condition that a line has an attribute below a path. Typed columns come first: they
/// are cheaper to read.
fn record_condition(table: &ScopeTable, path: &str) -> RecordCondition {
    let identifier = &table.identifier;
    let mut sql = String::from("(");
    let mut exception = match &table.columns {
        TableColumns::Lines(Some(source)) => format!("\"source\" = '{source}'"),
        _ => "TRUE".to_owned(),
    };
    let mut has_columns = false;
    for column in columns_below(path) {
        let _ = write!(sql, "{identifier}.{column} IS NOT NULL OR ");
        let _ = write!(exception, " AND {column} IS NULL");
        has_columns = true;
    }
    let _ = write!(
        sql,
        "record_exists({identifier}.\"attributes\", {}))",
        quote_literal(path)
    );
    RecordCondition {
        sql,
        exception: has_columns.then_some(exception),
    }
}

/// Returns the quoted typed columns below a path.
fn columns_below(path: &str) -> impl Iterator<Item = String> {
    layout::COLUMNS.iter().filter_map(move |(key, _)| {
        let rest = key.strip_prefix(path)?;
        rest.starts_with('.')
            .then(|| quote_identifier(&format!("{}{key}", layout::HOT)))
    })
}

/// SQL that reads one attribute.
struct AttributeSql {
    text: String,
    integer_column: Option<String>,
}

impl AttributeSql {
    fn new(table: &str, key: &str) -> Self {
        let map_entry = format!("attribute({table}.\"attributes\", {})", quote_literal(key));
        let Some((column, kind)) = layout::column(key) else {
            return Self {
                text: map_entry,
                integer_column: None,
            };
        };
        let column = format!("{table}.{}", quote_identifier(&column));
        match kind {
            Kind::Text => Self {
                text: column,
                integer_column: None,
            },
            Kind::Integer => Self {
                text: format!("coalesce(CAST({column} AS VARCHAR), {map_entry})"),
                integer_column: Some(column),
            },
        }
    }
}

/// Translates an attribute with its `BigQuery` type. A missing attribute is null.
fn typed_attribute(table: &str, key: &str) -> SqlExpr {
    let AttributeSql {
        text,
        integer_column,
    } = AttributeSql::new(table, key);
    let kind = fields::kind(key);
    if let Some(column) = integer_column {
        return if fields::may_be_fractional(key) && kind == fields::Kind::Float {
            SqlExpr::new(
                format!("coalesce(CAST({column} AS DOUBLE), TRY_CAST({text} AS DOUBLE))"),
                Type::Float,
            )
        } else {
            SqlExpr::new(column, Type::Integer)
        };
    }
    match kind {
        fields::Kind::Text => SqlExpr::new(text, Type::Text),
        fields::Kind::Integer => SqlExpr::new(format!("TRY_CAST({text} AS BIGINT)"), Type::Integer),
        fields::Kind::Float => SqlExpr::new(format!("TRY_CAST({text} AS DOUBLE)"), Type::Float),
        fields::Kind::Boolean => {
            SqlExpr::new(format!("TRY_CAST({text} AS BOOLEAN)"), Type::Boolean)
        }
    }
}

fn unknown_field<T>(field: &str) -> Result<T> {
    let field: String = field.chars().take(NAME_CHARS_MAX).collect();
    invalid(format!("Field \"{field}\" does not exist."))
}

fn words_of(idents: &[Ident]) -> Vec<&str> {
    idents.iter().map(|ident| ident.value.as_str()).collect()
}

fn dotted(words: &[&str]) -> String {
    words.join(".")
}
