//! Translates client SQL to SQL for the engine.
//!
//! No part of the client's text reaches the engine unchanged: the syntax tree is walked, supported
//! constructs are written anew with quoted names and literals, and everything else is rejected.
//! This module holds the parts common to both dialects. The function table of the dialect is passed
//! in by the caller as a [`FunctionTable`].

pub(crate) mod call;
mod expression;
pub(crate) mod function;
mod query;
pub(crate) mod scope;

pub(crate) use self::function::{Class, Function, Write};
use crate::{
    QueryError,
    engine::{
        Statement,
        sqlparser::{
            ast::Statement as Parsed,
            dialect::{BigQueryDialect, ClickHouseDialect, Dialect as Grammar},
            keywords::Keyword,
            parser::{Parser, ParserError, ParserOptions},
            tokenizer::{Token, Tokenizer, TokenizerError},
        },
    },
};

/// Maximum length of a statement in bytes.
pub const SQL_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of tokens of a statement.
const TOKENS_MAX: usize = 20_000;
/// Maximum recursion depth of the parser.
const NESTING_MAX: usize = 50;
/// Maximum nesting of expressions and queries after aliases are expanded.
const DEPTH_MAX: usize = 60;
/// Maximum number of expressions and queries after aliases are expanded.
const STEPS_MAX: usize = 20_000;
/// Maximum length of the translated SQL in bytes.
const WRITTEN_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of table reads after common table expressions are expanded.
const READS_MAX: usize = 64;

type Result<T> = std::result::Result<T, QueryError>;

/// The SQL dialect of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// One table per source with `metadata` as nested records.
    BigQuery,
    /// One table `logs` with `log_attributes` as a map.
    ClickHouse,
}

impl Dialect {
    /// Function names of the dialect with the minimum and maximum number of arguments.
    pub fn functions(self) -> impl Iterator<Item = (&'static str, (usize, usize))> {
        self.table().iter().map(|function| {
            (
                if function.name == EXTRACT {
                    "extract"
                } else {
                    function.name
                },
                function.takes,
            )
        })
    }

    fn table(self) -> &'static [Function] {
        match self {
            Self::BigQuery => crate::bigquery::FUNCTIONS,
            Self::ClickHouse => crate::clickhouse::FUNCTIONS,
        }
    }
}

/// Internal name of the two-argument `extract`, because the parser reserves `extract` for
/// `EXTRACT(part FROM timestamp)`.
pub(crate) const EXTRACT: &str = "extractFirst";

fn refused<T>(text: impl Into<String>) -> Result<T> {
    Err(QueryError::Refused(text.into()))
}

/// The type of a translated expression, as far as it affects the generated SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Text,
    Integer,
    Float,
    Boolean,
    /// A timestamp in microseconds.
    Moment,
    /// A timestamp in seconds, such as the start of a bucket.
    Second,
    /// A civil date and time without a time zone.
    DateTime,
    Date,
    Interval,
    List,
    /// The map of all attributes.
    Map,
    Unknown,
}

impl Type {
    fn is_number(self) -> bool {
        matches!(self, Self::Integer | Self::Float)
    }

    fn is_time(self) -> bool {
        matches!(
            self,
            Self::Moment | Self::Second | Self::DateTime | Self::Date
        )
    }
}

/// A translated expression.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    sql: String,
    is: Type,
    /// The integer column of an attribute that is read as text, and whether its numbers can also be
    /// in the map.
    number: Option<(String, bool)>,
    /// The text of a string literal, or the digits of a number literal.
    literal: Option<String>,
}

impl Piece {
    fn new(sql: impl Into<String>, is: Type) -> Self {
        Self {
            sql: sql.into(),
            is,
            number: None,
            literal: None,
        }
    }

    fn null() -> Self {
        Self::new("NULL", Type::Unknown)
    }

    /// SQL of the expression as a condition. Numbers are true unless zero.
    fn condition(&self) -> String {
        if self.is.is_number() {
            format!("({} <> 0)", self.sql)
        } else {
            self.sql.clone()
        }
    }

    fn text(&self) -> String {
        match self.is {
            Type::Text => self.sql.clone(),
            Type::Moment | Type::DateTime => {
                format!("to_char({}, '%Y-%m-%d %H:%M:%S%.6f')", self.sql)
            }
            Type::Second => format!("to_char({}, '%Y-%m-%d %H:%M:%S')", self.sql),
            _ => format!("CAST({} AS VARCHAR)", self.sql),
        }
    }

    /// SQL of the expression as a float, null if it is not a number.
    fn float(&self) -> String {
        match (&self.number, self.is) {
            (Some((column, false)), _) => format!("CAST({column} AS DOUBLE)"),
            (Some((column, true)), _) => format!(
                "coalesce(CAST({column} AS DOUBLE), TRY_CAST({} AS DOUBLE))",
                self.sql
            ),
            (_, Type::Text) => format!("TRY_CAST({} AS DOUBLE)", self.sql),
            (_, Type::Moment) => format!("(CAST({} AS BIGINT) / 1e6)", self.sql),
            _ => format!("CAST({} AS DOUBLE)", self.sql),
        }
    }

    /// SQL of the expression as an integer, null if it is not one.
    fn integer(&self) -> String {
        match (&self.number, self.is) {
            (Some((column, _)), _) => column.clone(),
            (_, Type::Integer) => self.sql.clone(),
            (_, Type::Moment) => format!("(CAST({} AS BIGINT) / 1000000)", self.sql),
            (_, Type::Second | Type::Boolean) => format!("CAST({} AS BIGINT)", self.sql),
            _ => format!("TRY_CAST({} AS BIGINT)", self.sql),
        }
    }

    /// SQL of the expression as a number. Booleans become 0 and 1, texts are parsed.
    fn numeric(&self) -> String {
        match self.is {
            Type::Text => self.float(),
            Type::Boolean => self.integer(),
            _ => self.sql.clone(),
        }
    }

    /// SQL of the expression as a timestamp. Integers are microseconds in BigQuery and seconds in
    /// ClickHouse.
    fn moment(&self, dialect: Dialect) -> String {
        match (self.is, dialect) {
            (Type::Integer, Dialect::BigQuery) => format!("to_timestamp_micros({})", self.sql),
            (Type::Integer, Dialect::ClickHouse) => format!("to_timestamp_seconds({})", self.sql),
            (Type::Text | Type::Unknown | Type::DateTime | Type::Date, _) => {
                format!("arrow_cast({}, 'Timestamp(Microsecond, None)')", self.sql)
            }
            _ => self.sql.clone(),
        }
    }
}

/// Quotes an identifier.
fn name(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Quotes a string literal.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Translates a statement. `now` is the value of the current time in microseconds since 1970.
pub(crate) fn write(dialect: Dialect, sql: &str, now: i64) -> Result<Statement> {
    let parsed = parse(dialect, sql)?;
    let mut writer = Writer {
        dialect,
        now,
        names: 0,
        depth: 0,
        steps: 0,
        reads: 0,
        tables: Vec::new(),
    };
    let (written, rows) = writer.outermost(&parsed)?;
    let columns = written.columns.into_iter().map(|it| it.called).collect();
    Ok(Statement {
        sql: written.sql,
        columns,
        rows,
        moments_as_numbers: dialect == Dialect::BigQuery,
    })
}

fn parse(dialect: Dialect, sql: &str) -> Result<Box<crate::engine::sqlparser::ast::Query>> {
    if sql.len() > SQL_BYTES_MAX {
        return refused(format!("The query is longer than {SQL_BYTES_MAX} bytes"));
    }
    let grammar: &dyn Grammar = match dialect {
        Dialect::BigQuery => &BigQueryDialect {},
        Dialect::ClickHouse => &ClickHouseDialect {},
    };
    let tokens = Tokenizer::new(grammar, sql).tokenize();
    let tokens = tokens.map_err(|TokenizerError { message, location }| {
        QueryError::Refused(format!("Syntax error: {message}{location}"))
    })?;
    if tokens.len() > TOKENS_MAX {
        return refused(format!("The query has more than {TOKENS_MAX} tokens"));
    }
    let mut tokens: Vec<_> = tokens
        .into_iter()
        .filter(|token| !matches!(token, Token::Whitespace(_)))
        .collect();
    while tokens.last() == Some(&Token::SemiColon) {
        tokens.pop();
    }
    if tokens.contains(&Token::SemiColon) {
        return refused("Only singular query allowed");
    }
    if dialect == Dialect::ClickHouse {
        rename_extract(&mut tokens);
    }
    let options = ParserOptions::new().with_trailing_commas(dialect == Dialect::BigQuery);
    let mut parser = Parser::new(grammar)
        .with_options(options)
        .with_recursion_limit(NESTING_MAX)
        .with_tokens(tokens);
    let syntax = |error| match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => {
            QueryError::Refused(format!("Syntax error: {}", short(&text)))
        }
        ParserError::RecursionLimitExceeded => {
            QueryError::Refused("The query is nested too deeply".into())
        }
    };
    if !matches!(parser.peek_token().token, Token::LParen)
        && !parser.peek_keyword(Keyword::SELECT)
        && !parser.peek_keyword(Keyword::WITH)
    {
        return refused("Only SELECT queries allowed");
    }
    let parsed = parser.parse_statement().map_err(syntax)?;
    if parser.peek_token().token != Token::EOF {
        return refused(format!(
            "Syntax error: unexpected {}",
            short(&parser.peek_token().token.to_string())
        ));
    }
    match parsed {
        Parsed::Query(query) => Ok(query),
        _ => refused("Only SELECT queries allowed"),
    }
}

fn short(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Renames the token of `extract(text, pattern)` to [`EXTRACT`] and leaves `EXTRACT(part FROM
/// timestamp)` alone.
fn rename_extract(tokens: &mut [Token]) {
    for at in 0..tokens.len().saturating_sub(2) {
        let (Token::Word(word), Token::LParen) = (&tokens[at], &tokens[at + 1]) else {
            continue;
        };
        let from =
            |token: &Token| matches!(token, Token::Word(word) if word.keyword == Keyword::FROM);
        if word.keyword == Keyword::EXTRACT && !tokens.get(at + 3).is_some_and(from) {
            tokens[at] = Token::make_word(EXTRACT, None);
        }
    }
}

/// State of the translation of one statement.
pub(crate) struct Writer<'a> {
    dialect: Dialect,
    now: i64,
    names: usize,
    depth: usize,
    steps: usize,
    reads: usize,
    tables: Vec<scope::Named<'a>>,
}

impl Writer<'_> {
    /// Returns a new identifier. Client identifiers never refer to it, because they are resolved,
    /// not copied.
    fn fresh(&mut self) -> String {
        self.names += 1;
        format!("\"t{}\"", self.names)
    }

    /// Runs a step one nesting level deeper and enforces the limits on nesting and complexity.
    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.steps += 1;
        if self.depth >= DEPTH_MAX {
            return refused("The query is nested too deeply");
        }
        if self.steps > STEPS_MAX {
            return refused("The query is too complex");
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    fn bounded(sql: String) -> Result<String> {
        if sql.len() > WRITTEN_BYTES_MAX {
            refused("The query is too complex")
        } else {
            Ok(sql)
        }
    }

    fn clickhouse(&self) -> bool {
        self.dialect == Dialect::ClickHouse
    }

    /// Compares two identifiers. They are case-insensitive in BigQuery.
    fn same(&self, one: &str, other: &str) -> bool {
        if self.clickhouse() {
            one == other
        } else {
            one.eq_ignore_ascii_case(other)
        }
    }
}
