//! Name resolution: tables, columns, attributes and select aliases.

use super::{Dialect, Piece, Result, Type, Writer, name, quoted, refused};
use crate::{
    engine::sqlparser::ast::{Expr, Ident},
    event::Source,
    fields,
    layout::{self, Kind},
};

/// An output column of a query.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    /// The column name that the client sees.
    pub(super) called: String,
    /// The engine identifier. It is generated, so that an alias never shadows a column.
    pub(super) written: String,
    pub(super) is: Type,
}

/// A common table expression.
pub(crate) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) written: String,
    pub(super) columns: Vec<Column>,
    /// Number of table reads that the expression performs.
    pub(super) reads: usize,
}

/// The columns of a table.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    /// Log lines, restricted to one source if the table names a source.
    Lines(Option<Source>),
    /// Output columns of a subquery.
    Columns(Vec<Column>),
}

#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// The table name or alias of the client.
    pub(super) called: Option<String>,
    /// The engine identifier.
    pub(super) written: String,
    pub(super) shape: Shape,
}

/// `UNNEST(path) AS alias`: an alias for a record of a table.
#[derive(Debug, Clone)]
pub(crate) struct Unnested {
    alias: Option<String>,
    table: usize,
    path: String,
}

/// The names that are visible in one `SELECT`.
#[derive(Debug, Default)]
pub(crate) struct Scope<'a> {
    pub(super) tables: Vec<Table>,
    pub(super) unnested: Vec<Unnested>,
    /// Aliases of the select list.
    pub(super) aliases: Vec<(&'a str, &'a Expr)>,
    /// Whether the current clause can refer to aliases.
    pub(super) aliases_count: bool,
    /// Indices of aliases that are being expanded. Within its own expression an alias refers to the
    /// column.
    pub(super) busy: Vec<usize>,
    /// Lists expanded to rows by `arrayJoin`, each with its engine identifier.
    pub(super) unfolded: Vec<(String, String)>,
}

/// The target of a name.
pub(super) enum Meaning {
    Value(Piece),
    /// A record of attributes. The empty path is the record of all attributes.
    Record {
        table: usize,
        path: String,
    },
}

impl<'a> Writer<'a> {
    pub(super) fn missing<T>(field: &str) -> Result<T> {
        let field: String = field.chars().take(100).collect();
        refused(format!("Field \"{field}\" does not exist."))
    }

    /// Adds `UNNEST(path) AS alias` to the scope.
    pub(super) fn unnest(
        &mut self,
        path: &'a Expr,
        alias: Option<String>,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        let idents = match path {
            Expr::Identifier(ident) => std::slice::from_ref(ident),
            Expr::CompoundIdentifier(idents) => idents,
            _ => return refused("UNNEST takes a field of metadata"),
        };
        match self.meaning(idents, scope)? {
            Meaning::Record { table, path } => scope.unnested.push(Unnested { alias, table, path }),
            Meaning::Value(_) => return Self::missing(&dotted(idents)),
        }
        Ok(())
    }

    /// Translates the expression of a select alias, if the identifier is one in this clause.
    pub(super) fn alias(&mut self, ident: &Ident, scope: &mut Scope<'a>) -> Result<Option<Piece>> {
        if !scope.aliases_count {
            return Ok(None);
        }
        let found = (0..scope.aliases.len())
            .find(|at| self.same(scope.aliases[*at].0, &ident.value) && !scope.busy.contains(at));
        let Some(at) = found else { return Ok(None) };
        scope.busy.push(at);
        let aliases_count = std::mem::replace(&mut scope.aliases_count, self.clickhouse());
        let written = self.expression(scope.aliases[at].1, scope);
        scope.aliases_count = aliases_count;
        scope.busy.pop();
        written.map(Some)
    }

    pub(super) fn meaning(&mut self, idents: &[Ident], scope: &Scope<'a>) -> Result<Meaning> {
        let words: Vec<&str> = idents.iter().map(|ident| ident.value.as_str()).collect();
        let (first, rest) = match words.as_slice() {
            [] => return Self::missing(""),
            [first, rest @ ..] => (*first, rest),
        };
        let unnested = scope.unnested.iter().rev().find(|it| {
            it.alias
                .as_deref()
                .is_some_and(|alias| self.same(alias, first))
        });
        if let Some(Unnested { table, path, .. }) = unnested {
            return Ok(Self::field(*table, path, rest, scope));
        }
        let table = scope.tables.iter().position(|table| {
            table
                .called
                .as_deref()
                .is_some_and(|called| self.same(called, first))
        });
        if let (Some(table), [column, rest @ ..]) = (table, rest) {
            return match self.column(table, column, rest, scope) {
                Some(meaning) => Ok(meaning),
                None => Self::missing(&words.join(".")),
            };
        }
        for table in 0..scope.tables.len() {
            if let Some(meaning) = self.column(table, first, rest, scope) {
                return Ok(meaning);
            }
        }
        match Self::implicit(first, rest, scope) {
            Some(meaning) => Ok(meaning),
            None => Self::missing(&words.join(".")),
        }
    }

    /// Resolves a field of an unnested record that is written without the record alias.
    fn implicit(first: &str, rest: &[&str], scope: &Scope<'a>) -> Option<Meaning> {
        let under = |path: &str| {
            if path.is_empty() {
                first.to_owned()
            } else {
                format!("{path}.{first}")
            }
        };
        let known = scope.unnested.iter().rev().find(|it| {
            let key = under(&it.path);
            fields::spelled(&key).is_some() || fields::is_parent(&key)
        })?;
        let words: Vec<_> = std::iter::once(first).chain(rest.iter().copied()).collect();
        Some(Self::field(known.table, &known.path, &words, scope))
    }

    fn column(&self, at: usize, column: &str, rest: &[&str], scope: &Scope<'a>) -> Option<Meaning> {
        let table = scope.tables.get(at)?;
        let of = |column: &str| format!("{}.{}", table.written, name(column));
        let value = |column: &str, is| Some(Meaning::Value(Piece::new(of(column), is)));
        match (&table.shape, rest) {
            (Shape::Columns(columns), []) => {
                let Column { written, is, .. } =
                    columns.iter().find(|it| self.same(&it.called, column))?;
                Some(Meaning::Value(Piece::new(
                    format!("{}.{written}", table.written),
                    *is,
                )))
            }
            (Shape::Columns(_), _) => None,
            (Shape::Lines(source), rest) => {
                let canonical = ["id", "timestamp", "event_message"]
                    .into_iter()
                    .find(|it| self.same(it, column));
                match (canonical, rest) {
                    (Some("timestamp"), []) => return value("timestamp", Type::Moment),
                    (Some(column), []) => return value(column, Type::Text),
                    _ => {}
                }
                match (self.dialect, column, rest) {
                    (Dialect::ClickHouse, "source" | "severity_text", []) => {
                        value(column, Type::Text)
                    }
                    (Dialect::ClickHouse, "log_attributes", []) => Some(Meaning::Record {
                        table: at,
                        path: String::new(),
                    }),
                    (Dialect::BigQuery, _, rest) if column.eq_ignore_ascii_case("metadata") => {
                        Some(Self::field(at, "", rest, scope))
                    }
                    (Dialect::BigQuery, _, [])
                        if source.is_some() && matches!(column, "identifier" | "project") =>
                    {
                        Some(Self::field(at, "", &[column], scope))
                    }
                    _ => None,
                }
            }
        }
    }

    /// Resolves a path below a record.
    fn field(table: usize, path: &str, rest: &[&str], scope: &Scope<'a>) -> Meaning {
        let words = (!path.is_empty())
            .then_some(path)
            .into_iter()
            .chain(rest.iter().copied());
        let key = words.collect::<Vec<_>>().join(".");
        if key.is_empty() || (fields::spelled(&key).is_none() && fields::is_parent(&key)) {
            return Meaning::Record { table, path: key };
        }
        let key = fields::spelled(&key).map_or(key, str::to_owned);
        Meaning::Value(typed(&scope.tables[table].written, &key))
    }

    /// Translates a record that is used as a value.
    pub(super) fn whole(&self, table: usize, path: &str, scope: &Scope<'a>) -> Piece {
        let table = &scope.tables[table].written;
        let columns = layout::COLUMNS
            .iter()
            .map(|(key, _)| format!("{table}.{}", name(&format!("{}{key}", layout::HOT))));
        let columns = columns
            .chain([format!("{table}.\"attributes\"")])
            .collect::<Vec<_>>()
            .join(", ");
        if self.clickhouse() {
            Piece::new(format!("all_attributes({columns})"), Type::Map)
        } else {
            Piece::new(
                format!("nested_attributes({}, {columns})", quoted(path)),
                Type::Unknown,
            )
        }
    }

    /// Translates `log_attributes['key']`. A missing key is the empty text.
    pub(super) fn attribute(table: usize, key: &str, scope: &Scope<'a>) -> Piece {
        let (written, column) = raw(&scope.tables[table].written, key);
        let mut piece = Piece::new(format!("coalesce({written}, '')"), Type::Text);
        piece.number = column.map(|column| (column, fields::fractions(key)));
        piece
    }
}

/// Returns SQL of an attribute as text, and its integer column if it has one.
fn raw(table: &str, key: &str) -> (String, Option<String>) {
    let in_map = format!("attribute({table}.\"attributes\", {})", quoted(key));
    match layout::column(key) {
        None => (in_map, None),
        Some((column, Kind::Text)) => (format!("{table}.{}", name(&column)), None),
        Some((column, Kind::Integer)) => {
            let column = format!("{table}.{}", name(&column));
            (
                format!("coalesce(CAST({column} AS VARCHAR), {in_map})"),
                Some(column),
            )
        }
    }
}

/// Translates an attribute with its BigQuery type. A missing attribute is null.
fn typed(table: &str, key: &str) -> Piece {
    let (written, column) = raw(table, key);
    match (fields::kind(key), column) {
        (_, Some(column)) if fields::fractions(key) && fields::kind(key) == fields::Kind::Float => {
            Piece::new(
                format!("coalesce(CAST({column} AS DOUBLE), TRY_CAST({written} AS DOUBLE))"),
                Type::Float,
            )
        }
        (_, Some(column)) => Piece::new(column, Type::Integer),
        (fields::Kind::Text, None) => Piece::new(written, Type::Text),
        (fields::Kind::Integer, None) => {
            Piece::new(format!("TRY_CAST({written} AS BIGINT)"), Type::Integer)
        }
        (fields::Kind::Float, None) => {
            Piece::new(format!("TRY_CAST({written} AS DOUBLE)"), Type::Float)
        }
        (fields::Kind::Boolean, None) => {
            Piece::new(format!("TRY_CAST({written} AS BOOLEAN)"), Type::Boolean)
        }
    }
}

pub(super) fn dotted(idents: &[Ident]) -> String {
    idents
        .iter()
        .map(|ident| ident.value.as_str())
        .collect::<Vec<_>>()
        .join(".")
}
