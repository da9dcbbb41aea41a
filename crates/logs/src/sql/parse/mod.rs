//! Parses client SQL within limits on its length and nesting.

pub(super) mod rewrite;

use crate::{
    answer::QueryError,
    engine::sqlparser::{
        ast::{Query, Statement},
        dialect::{BigQueryDialect, ClickHouseDialect, Dialect as Grammar},
        keywords::Keyword,
        parser::{Parser, ParserError, ParserOptions},
        tokenizer::{Token, Tokenizer, TokenizerError},
    },
    sql::{
        dialect::Dialect,
        text::{Result, excerpt, invalid},
    },
};

/// Maximum length of a statement in bytes.
pub const SQL_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of tokens of a statement.
const TOKENS_MAX: usize = 20_000;
/// Maximum recursion depth of the parser.
const NESTING_MAX: usize = 50;

/// Internal name of the two-argument `extract`, because the parser reserves `extract` for
/// `EXTRACT(part FROM timestamp)`.
pub(crate) const EXTRACT: &str = "extractFirst";

/// Parses exactly one query.
pub(super) fn parse(dialect: Dialect, sql: &str) -> Result<Box<Query>> {
    if sql.len() > SQL_BYTES_MAX {
        return invalid(format!("The query is longer than {SQL_BYTES_MAX} bytes"));
    }
    let grammar: &dyn Grammar = match dialect {
        Dialect::BigQuery => &BigQueryDialect {},
        Dialect::ClickHouse => &ClickHouseDialect {},
    };
    let mut tokens = tokenize(grammar, sql)?;
    if dialect == Dialect::ClickHouse {
        rename_extract(&mut tokens);
        tokens = rewrite::tuple_elements(tokens);
        tokens = rewrite::with_values(&rewrite::array_joins(tokens));
    }
    let options = ParserOptions::new().with_trailing_commas(dialect == Dialect::BigQuery);
    let mut parser = Parser::new(grammar)
        .with_options(options)
        .with_recursion_limit(NESTING_MAX)
        .with_tokens(tokens);
    let starts_query = parser.peek_token().token == Token::LParen
        || parser.peek_keyword(Keyword::SELECT)
        || parser.peek_keyword(Keyword::WITH);
    if !starts_query {
        return invalid("Only SELECT queries allowed");
    }
    let statement = parser.parse_statement().map_err(syntax_error)?;
    let next = parser.peek_token().token;
    if next != Token::EOF {
        return invalid(format!(
            "Syntax error: unexpected {}",
            excerpt(&next.to_string())
        ));
    }
    match statement {
        Statement::Query(query) => Ok(query),
        _ => invalid("Only SELECT queries allowed"),
    }
}

/// Returns the tokens of a single statement without whitespace and trailing semicolons.
fn tokenize(grammar: &dyn Grammar, sql: &str) -> Result<Vec<Token>> {
    let tokens = Tokenizer::new(grammar, sql).tokenize();
    let tokens = tokens.map_err(|TokenizerError { message, location }| {
        QueryError::Invalid(format!("Syntax error: {message}{location}"))
    })?;
    if tokens.len() > TOKENS_MAX {
        return invalid(format!("The query has more than {TOKENS_MAX} tokens"));
    }
    let mut tokens: Vec<_> = tokens
        .into_iter()
        .filter(|token| !matches!(token, Token::Whitespace(_)))
        .collect();
    while tokens.last() == Some(&Token::SemiColon) {
        tokens.pop();
    }
    if tokens.contains(&Token::SemiColon) {
        return invalid("Only singular query allowed");
    }
    Ok(tokens)
}

fn syntax_error(error: ParserError) -> QueryError {
    match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => {
            QueryError::Invalid(format!("Syntax error: {}", excerpt(&text)))
        }
        ParserError::RecursionLimitExceeded => {
            QueryError::Invalid("The query is nested too deeply".into())
        }
    }
}

/// Renames the token of `extract(text, pattern)` to [`EXTRACT`] and leaves
/// `EXTRACT(part FROM timestamp)` alone.
fn rename_extract(tokens: &mut [Token]) {
    for at in 0..tokens.len().saturating_sub(2) {
        if is_keyword(&tokens[at], Keyword::EXTRACT)
            && tokens[at + 1] == Token::LParen
            && !tokens
                .get(at + 3)
                .is_some_and(|token| is_keyword(token, Keyword::FROM))
        {
            tokens[at] = Token::make_word(EXTRACT, None);
        }
    }
}

fn is_keyword(token: &Token, keyword: Keyword) -> bool {
    matches!(token, Token::Word(word) if word.keyword == keyword)
}
