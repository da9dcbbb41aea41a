//! Splits SQL into statements and finds those that cannot run inside a transaction of the API.
//!
//! A migration runs in the transaction that records it, and a `commit` in its SQL would separate
//! the two. A read-only query runs in a transaction that is never committed. Literals, quotes and
//! comments are read as by PostgreSQL's lexer (`scan.l`); of each statement only the first words
//! are read. Invalid SQL passes, because PostgreSQL rejects it.

pub(crate) mod splitter;

use std::{borrow::Cow, ops::Range};

use self::splitter::{SqlStatement, StatementSplitter};
use crate::platform::error::Error;

/// Maximum number of comments that begin within one run of operator characters.
const COMMENTS_IN_A_RUN_MAX: usize = 100;

/// Rejects SQL with many comment openings in a run of operator characters. PostgreSQL's lexer reads
/// such a run again at each `/*`, so a megabyte of `/*/*/*…` takes minutes, without reacting to
/// cancellation or termination.
pub(crate) fn check_comment_nesting(sql: &str) -> Result<(), Error> {
    let mut comments = 0;
    for pair in sql.as_bytes().windows(2) {
        match pair {
            b"/*" => comments += 1,
            [_, byte] if !b"~!@#^&|`?+-*/%<>=".contains(byte) => comments = 0,
            _ => {}
        }
        if comments > COMMENTS_IN_A_RUN_MAX {
            return Err(Error::invalid(
                "query",
                format!("more than {COMMENTS_IN_A_RUN_MAX} comments begin one inside the other"),
            ));
        }
    }
    Ok(())
}

/// SQL that can run inside a transaction of the API.
pub(crate) struct TransactionScript<'a> {
    sql: &'a str,
    /// Positions of a `begin` and `commit` around the whole text. They are ignored, because the API
    /// opens a transaction itself.
    around: Option<[Range<usize>; 2]>,
}

impl<'a> TransactionScript<'a> {
    /// Parses `sql`, which is the request's `field`. Rejects statements that begin or end a
    /// transaction, other than one pair around the whole text, and statements that PostgreSQL never
    /// runs inside one. `what` names the operation in errors.
    pub(crate) fn parse(what: &str, field: &str, sql: &'a str) -> Result<Self, Error> {
        check_comment_nesting(sql)?;
        let mut statements = StatementSplitter::read(field, sql)?.statements;
        let around = match statements.as_slice() {
            [first, .., last] if first.is_plain(sql, &BEGIN) && last.is_plain(sql, &COMMIT) => {
                Some([first.span.clone(), last.span.clone()])
            }
            _ => None,
        };
        if around.is_some() {
            statements.pop();
            statements.remove(0);
        }
        let line = |found: &SqlStatement| sql[..found.span.start].matches('\n').count() + 1;
        if let Some(found) = statements
            .iter()
            .find(|statement| statement.controls_transaction(sql))
        {
            return Err(Error::invalid(
                field.to_owned(),
                format!(
                    "{what} runs in one transaction, so it cannot contain {} (line {}); \
                     leave it out, or put begin and commit around the whole text",
                    found.words(sql).join(" ").trim().to_ascii_uppercase(),
                    line(found),
                ),
            ));
        }
        if let Some((name, found)) = statements
            .iter()
            .find_map(|statement| Some((statement.never_in_transaction(sql)?, statement)))
        {
            return Err(Error::invalid(
                field.to_owned(),
                format!(
                    "{what} runs in one transaction, and PostgreSQL does not run {name} (line {}) in any; \
                     run it by itself with POST /v1/projects/{{ref}}/database/query",
                    line(found),
                ),
            ));
        }
        Ok(Self { sql, around })
    }

    /// Returns the SQL to run. An outer `begin` and `commit` are replaced by spaces, which keeps
    /// lines and positions.
    pub(crate) fn text(&self) -> Cow<'a, str> {
        let sql = self.sql;
        match &self.around {
            None => Cow::Borrowed(sql),
            Some([first, last]) => {
                let parts = [
                    &sql[..first.start],
                    &blank(&sql[first.clone()]),
                    &sql[first.end..last.start],
                    &blank(&sql[last.clone()]),
                    &sql[last.end..],
                ];
                Cow::Owned(parts.concat())
            }
        }
    }
}

/// Merges statements in parentheses or in the body of a routine with the statement they belong to.
pub(crate) fn merged(statements: &[SqlStatement]) -> Vec<SqlStatement> {
    let mut whole: Vec<SqlStatement> = Vec::new();
    for statement in statements {
        match whole.last_mut() {
            Some(previous) if statement.inside => previous.span.end = statement.span.end,
            _ => whole.push(statement.clone()),
        }
    }
    whole
}

const BEGIN: [&[&str]; 4] = [
    &["begin"],
    &["begin", "work"],
    &["begin", "transaction"],
    &["start", "transaction"],
];
const COMMIT: [&[&str]; 6] = [
    &["commit"],
    &["commit", "work"],
    &["commit", "transaction"],
    &["end"],
    &["end", "work"],
    &["end", "transaction"],
];

fn blank(text: &str) -> String {
    text.chars()
        .map(|c| if c == '\n' { '\n' } else { ' ' })
        .collect()
}

#[cfg(test)]
mod tests;
