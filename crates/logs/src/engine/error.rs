//! Converts engine errors to errors for clients and for the operator's log.

use datafusion::{arrow::error::ArrowError, common::DataFusionError};

use crate::{answer::QueryError, store::error_chain};

/// Maximum length of an engine message that is shown to the client, in characters.
const MESSAGE_CHARS_MAX: usize = 300;
/// The message for a query that exceeds its memory limit.
const OUT_OF_MEMORY: &str =
    "Query needs too much memory. Reduce the time range, or ask for fewer groups or columns.";
const DIVISION_BY_ZERO: &str = "Division by zero.";

/// Creates an error with the first line of a text.
fn invalid(text: &str) -> QueryError {
    let line = text.lines().next().unwrap_or_default();
    QueryError::Invalid(line.chars().take(MESSAGE_CHARS_MAX).collect())
}

/// Separates errors of the statement from errors of the server.
pub(super) fn classify(error: &DataFusionError) -> QueryError {
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => invalid(OUT_OF_MEMORY),
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::DivideByZero => invalid(DIVISION_BY_ZERO),
            ArrowError::CastError(text)
            | ArrowError::ParseError(text)
            | ArrowError::ArithmeticOverflow(text)
            | ArrowError::ComputeError(text)
            | ArrowError::InvalidArgumentError(text) => invalid(text),
            _ => QueryError::from_source(error),
        },
        DataFusionError::Plan(text)
        | DataFusionError::Execution(text)
        | DataFusionError::NotImplemented(text) => invalid(text),
        DataFusionError::SQL(error, _) => invalid(&error.to_string()),
        DataFusionError::SchemaError(error, _) => invalid(&error.to_string()),
        error => predicate_error(error).unwrap_or_else(|| QueryError::from_source(error)),
    }
}

/// Extracts the error of a filter that was evaluated inside the Parquet reader, which passes it on
/// only as the text of its `Debug` form.
fn predicate_error(error: &DataFusionError) -> Option<QueryError> {
    let text = filter_error_text(error)?;
    if text.contains("ResourcesExhausted(") {
        return Some(invalid(OUT_OF_MEMORY));
    }
    if text.contains("DivideByZero") {
        return Some(invalid(DIVISION_BY_ZERO));
    }
    let message = quoted_message(&text).unwrap_or("A condition of the query failed.");
    Some(invalid(
        &message
            .replace("\\n", "\n")
            .replace("\\\"", "\"")
            .replace("\\'", "'")
            .replace("\\\\", "\\"),
    ))
}

/// Returns the `Debug` form of an error that a filter caused in the Parquet reader.
fn filter_error_text(error: &DataFusionError) -> Option<String> {
    for cause in error_chain(error) {
        if let Some(ArrowError::ComputeError(text)) = cause.downcast_ref()
            && let Some(text) = text.strip_prefix("Error evaluating filter predicate: ")
        {
            return Some(text.to_owned());
        }
    }
    None
}

/// Returns the message in a `Debug` form such as `Execution("message")`.
fn quoted_message(debug: &str) -> Option<&str> {
    let (_, rest) = debug.rsplit_once("(\"")?;
    let (message, _) = rest.rsplit_once("\")")?;
    Some(message)
}

#[cfg(test)]
mod tests {
    use datafusion::parquet::errors::ParquetError;

    use super::*;

    /// Returns the text for the client of an error that a filter caused in the Parquet reader.
    fn message_of(error: &DataFusionError) -> String {
        let text = format!("Error evaluating filter predicate: {error:?}");
        let error = ParquetError::External(Box::new(ArrowError::ComputeError(text)));
        match classify(&DataFusionError::ParquetError(Box::new(error))) {
            QueryError::Invalid(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn filter_error_in_the_parquet_reader_is_an_invalid_statement() {
        let execution = DataFusionError::Execution("Invalid \"x\\\" in 'y'\nmore".into());
        assert_eq!(message_of(&execution), "Invalid \"x\\\" in 'y'");
        assert_eq!(
            message_of(&DataFusionError::ArrowError(
                Box::new(ArrowError::DivideByZero),
                None
            )),
            DIVISION_BY_ZERO
        );
        assert_eq!(
            message_of(&DataFusionError::ArrowError(
                Box::new(ArrowError::CastError("no number".into())),
                None
            )),
            "no number"
        );
        assert_eq!(
            message_of(&execution.context("looking")),
            "Invalid \"x\\\" in 'y'"
        );
        assert_eq!(
            message_of(&DataFusionError::ResourcesExhausted("much".into())),
            OUT_OF_MEMORY
        );
        let broken = DataFusionError::ParquetError(Box::new(ParquetError::EOF("short".into())));
        assert!(matches!(classify(&broken), QueryError::Backend(_)));
    }
}
