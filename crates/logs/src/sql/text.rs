//! Texts of translated SQL and of errors.

use crate::answer::QueryError;

pub(super) type Result<T> = std::result::Result<T, QueryError>;

/// Maximum length of the translated SQL in bytes.
pub(super) const TRANSLATED_BYTES_MAX: usize = 256 * 1024;

/// Maximum length of a client text that an error message quotes, in characters.
pub(super) const EXCERPT_CHARS_MAX: usize = 200;

pub(super) fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(QueryError::Invalid(text.into()))
}

/// Rejects translated SQL that is too long.
pub(super) fn check_length(sql: String) -> Result<String> {
    if sql.len() > TRANSLATED_BYTES_MAX {
        return invalid("The query is too complex");
    }
    Ok(sql)
}

/// Shortens a client text for an error message.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(EXCERPT_CHARS_MAX).collect()
}

/// Quotes an identifier.
pub(super) fn quote_identifier(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Quotes a string literal.
pub(super) fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
