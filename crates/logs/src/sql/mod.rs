//! Reads what clients send and writes what the engine runs.
//!
//! Nothing of a client's text reaches the engine as it is: the tree is walked, what is known is written anew, with names and
//! literals quoted, and everything else is refused. What the two dialects have in common is here; how they differ is in
//! [`Dialect`] and in their tables of functions.

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

/// Longest statement in bytes.
pub const SQL_BYTES_MAX: usize = 64 * 1024;
/// Tokens of a statement at most.
const TOKENS_MAX: usize = 20_000;
/// How deep the parser goes.
const NESTING_MAX: usize = 50;
/// How deep expressions and queries may lie in each other, once aliases are written out.
const DEPTH_MAX: usize = 60;
/// Expressions of a statement, likewise.
const STEPS_MAX: usize = 20_000;
/// Longest text that is written for one.
const WRITTEN_BYTES_MAX: usize = 256 * 1024;
/// How often a statement may read lines, once common table expressions are written out.
const READS_MAX: usize = 64;

type Result<T> = std::result::Result<T, QueryError>;

/// Which SQL a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// A table a source, `metadata` as nested records.
    BigQuery,
    /// One table `logs`, `log_attributes` as a map.
    ClickHouse,
}

impl Dialect {
    /// The functions that it has: name, arguments at least and at most.
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

/// What `extract` with two arguments is called here: the parser takes `extract` for something else.
pub(crate) const EXTRACT: &str = "extractFirst";

fn refused<T>(text: impl Into<String>) -> Result<T> {
    Err(QueryError::Refused(text.into()))
}

/// What an expression gives, as far as it matters how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Text,
    Integer,
    Float,
    Boolean,
    /// Microseconds.
    Moment,
    /// Seconds: the beginning of an interval.
    Second,
    /// A date and a time of day that is no moment.
    DateTime,
    Date,
    Interval,
    List,
    /// All attributes.
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

/// An expression as it was written.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    sql: String,
    is: Type,
    /// The attribute that this reads as text: its column of whole numbers, and whether numbers may be elsewhere too.
    number: Option<(String, bool)>,
    /// The text of a literal, or the digits of a whole number.
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

    /// True or false: numbers are what they are not equal to zero.
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

    /// A number that may have a fraction; nothing where it is none.
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

    /// A whole number; nothing where it is none.
    fn integer(&self) -> String {
        match (&self.number, self.is) {
            (Some((column, _)), _) => column.clone(),
            (_, Type::Integer) => self.sql.clone(),
            (_, Type::Moment) => format!("(CAST({} AS BIGINT) / 1000000)", self.sql),
            (_, Type::Second | Type::Boolean) => format!("CAST({} AS BIGINT)", self.sql),
            _ => format!("TRY_CAST({} AS BIGINT)", self.sql),
        }
    }

    /// A number as it is: truths count as 0 and 1, texts as what they say.
    fn numeric(&self) -> String {
        match self.is {
            Type::Text => self.float(),
            Type::Boolean => self.integer(),
            _ => self.sql.clone(),
        }
    }

    /// A moment. Numbers are microseconds in one dialect, seconds in the other.
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

/// A name in quotes.
fn name(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A text in quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Writes a statement for the engine. `now` is the present in microseconds.
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

/// `extract(text, pattern)` is a function in one dialect, `EXTRACT(part FROM moment)` everywhere. The parser knows the latter.
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

/// One statement being written.
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
    /// A name that no client can say.
    fn fresh(&mut self) -> String {
        self.names += 1;
        format!("\"t{}\"", self.names)
    }

    /// One level deeper, as far as that goes.
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

    /// One dialect does not mind the case of names.
    fn same(&self, one: &str, other: &str) -> bool {
        if self.clickhouse() {
            one == other
        } else {
            one.eq_ignore_ascii_case(other)
        }
    }
}
