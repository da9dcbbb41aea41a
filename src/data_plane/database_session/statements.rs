//! Splits SQL into statements and finds those that cannot run inside a transaction of the API.
//!
//! A migration runs in the transaction that records it, and a `commit` in its SQL would separate
//! the two. A read-only query runs in a transaction that is never committed. Literals, quotes and
//! comments are read as by PostgreSQL's lexer (`scan.l`); of each statement only the first words
//! are read. Invalid SQL passes, because PostgreSQL rejects it.

use std::{borrow::Cow, ops::Range};

use crate::base::error::Error;

/// Inspected words at the beginning of a statement, as in `alter database x set tablespace`.
const WORDS_MAX: usize = 6;

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
    statements: Vec<SqlStatement>,
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
        let mut statements = StatementSplitter::read(sql);
        let around = match statements.as_slice() {
            [first, .., last] if first.is_plain(&BEGIN) && last.is_plain(&COMMIT) => {
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
            .find(|statement| statement.controls_transaction())
        {
            return Err(Error::invalid(
                field.to_owned(),
                format!(
                    "{what} runs in one transaction, so it cannot contain {} (line {}); \
                     leave it out, or put begin and commit around the whole text",
                    found.words.join(" ").trim().to_ascii_uppercase(),
                    line(found),
                ),
            ));
        }
        if let Some((name, found)) = statements
            .iter()
            .find_map(|statement| Some((statement.never_in_transaction()?, statement)))
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
        Ok(Self {
            sql,
            statements,
            around,
        })
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

    /// Returns the range of each statement in the original text.
    pub(crate) fn statements(&self) -> Vec<Range<usize>> {
        let mut whole: Vec<Range<usize>> = Vec::new();
        for statement in &self.statements {
            match whole.last_mut() {
                Some(previous) if statement.inside => previous.end = statement.span.end,
                _ => whole.push(statement.span.clone()),
            }
        }
        whole
    }
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

/// A statement: its range and its first words in lower case. A token other than a word counts as an
/// empty word.
#[derive(Debug)]
struct SqlStatement {
    span: Range<usize>,
    words: Vec<String>,
    tokens: usize,
    /// Whether the last token is the word `concurrently`.
    ends_concurrently: bool,
    /// Whether it belongs to the previous statement: in parentheses, or in the body of a routine.
    inside: bool,
}

impl SqlStatement {
    fn is_plain(&self, forms: &[&[&str]]) -> bool {
        self.tokens == self.words.len() && forms.iter().any(|form| self.words == *form)
    }

    fn defines_routine(&self) -> bool {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        matches!(
            words.as_slice(),
            ["create", "function" | "procedure", ..]
                | ["create", "or", "replace", "function" | "procedure", ..]
        )
    }

    /// Returns the command's name if PostgreSQL always rejects it inside a transaction.
    fn never_in_transaction(&self) -> Option<&'static str> {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        Some(match words.as_slice() {
            ["vacuum", ..] => "VACUUM",
            ["create", "index", "concurrently", ..]
            | ["create", "unique", "index", "concurrently", ..] => "CREATE INDEX CONCURRENTLY",
            ["drop", "index", "concurrently", ..] => "DROP INDEX CONCURRENTLY",
            ["reindex", _, "concurrently", ..] => "REINDEX CONCURRENTLY",
            ["reindex", "schema" | "database" | "system", ..] => "REINDEX of more than one table",
            ["alter", "table", ..] if self.ends_concurrently => "DETACH PARTITION CONCURRENTLY",
            ["create", "database", ..] => "CREATE DATABASE",
            ["drop", "database", ..] => "DROP DATABASE",
            ["alter", "database", _, "set", "tablespace", ..] => "ALTER DATABASE SET TABLESPACE",
            ["create", "tablespace", ..] => "CREATE TABLESPACE",
            ["drop", "tablespace", ..] => "DROP TABLESPACE",
            ["alter", "system", ..] => "ALTER SYSTEM",
            ["discard", "all"] => "DISCARD ALL",
            ["cluster"] | ["cluster", "verbose"] => "CLUSTER of every table",
            _ => return None,
        })
    }

    fn controls_transaction(&self) -> bool {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            // Rolling back to a savepoint does not end the transaction.
            ["rollback", "to", ..] | ["rollback", "work" | "transaction", "to", ..] => false,
            ["begin" | "commit" | "end" | "abort" | "rollback", ..]
            | ["start" | "prepare", "transaction", ..] => true,
            _ => false,
        }
    }
}

/// Collects statements from tokens.
#[derive(Default)]
struct StatementSplitter {
    found: Vec<SqlStatement>,
    current: Option<SqlStatement>,
    after_begin: bool,
    /// Whether the position is inside `begin atomic … end`, the body of an SQL routine, whose
    /// statements end in `;`.
    in_body: bool,
    /// Open parentheses. `create rule … do (…; …)` contains statements.
    depth: usize,
}

impl StatementSplitter {
    fn read(sql: &str) -> Vec<SqlStatement> {
        let mut reader = Self::default();
        let mut lexer = SqlLexer {
            text: sql.as_bytes(),
            at: 0,
        };
        while let Some((token, span)) = lexer.next_token() {
            match token {
                SqlToken::End => reader.end(span.end),
                SqlToken::Word => reader.word(&sql[span.clone()].to_ascii_lowercase(), span),
                SqlToken::Other => {
                    reader.word("", span.clone());
                    match &sql[span] {
                        "(" => reader.depth += 1,
                        ")" => reader.depth = reader.depth.saturating_sub(1),
                        _ => {}
                    }
                }
            }
        }
        reader.end(sql.len());
        reader.found
    }

    fn word(&mut self, word: &str, span: Range<usize>) {
        let ends_body = self.in_body && self.current.is_none() && word == "end";
        let inside = self.in_body || self.depth > 0;
        let statement = self.current.get_or_insert_with(|| SqlStatement {
            span: span.clone(),
            words: Vec::new(),
            tokens: 0,
            ends_concurrently: false,
            inside,
        });
        statement.tokens += 1;
        statement.ends_concurrently = word == "concurrently";
        statement.span.end = span.end;
        if statement.words.len() < WORDS_MAX {
            statement.words.push(if ends_body {
                String::new()
            } else {
                word.to_owned()
            });
        }
        let starts_body = self.after_begin && word == "atomic" && statement.defines_routine();
        self.after_begin = word == "begin";
        self.in_body = (self.in_body && !ends_body) || starts_body;
        if starts_body {
            self.end(span.end);
        }
    }

    fn end(&mut self, at: usize) {
        if let Some(mut statement) = self.current.take() {
            statement.span.end = at;
            self.found.push(statement);
        }
        self.after_begin = false;
    }
}

#[derive(Debug, PartialEq, Eq)]
enum SqlToken {
    Word,
    End,
    Other,
}

/// Lexer of SQL text that skips white space and comments.
struct SqlLexer<'a> {
    text: &'a [u8],
    at: usize,
}

impl SqlLexer<'_> {
    fn next_token(&mut self) -> Option<(SqlToken, Range<usize>)> {
        self.skip_blanks();
        let start = self.at;
        let token = match self.peek(0)? {
            b';' => {
                self.at += 1;
                SqlToken::End
            }
            b'\'' => {
                self.string(false);
                SqlToken::Other
            }
            b'"' => {
                self.at += 1;
                self.past_quote(b'"', false);
                SqlToken::Other
            }
            b'$' => {
                self.dollar();
                SqlToken::Other
            }
            b'e' | b'E' if self.peek(1) == Some(b'\'') => {
                self.at += 1;
                self.string(true);
                SqlToken::Other
            }
            byte if starts_word(byte) => {
                self.skip_while(continues_word);
                SqlToken::Word
            }
            _ => {
                self.at += 1;
                SqlToken::Other
            }
        };
        Some((token, start..self.at))
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn starts_with(&self, prefix: &[u8]) -> bool {
        self.text[self.at..].starts_with(prefix)
    }

    fn skip_while(&mut self, belongs: fn(u8) -> bool) {
        while self.peek(0).is_some_and(belongs) {
            self.at += 1;
        }
    }

    fn skip_blanks(&mut self) {
        loop {
            if self.starts_with(b"--") {
                self.skip_while(|byte| !matches!(byte, b'\n' | b'\r'));
            } else if self.starts_with(b"/*") {
                self.comment();
            } else if self.peek(0).is_some_and(is_space) {
                self.at += 1;
            } else {
                return;
            }
        }
    }

    /// Skips a comment. Comments nest.
    fn comment(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.text.len() {
            if self.starts_with(b"/*") {
                depth += 1;
                self.at += 2;
            } else if self.starts_with(b"*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return;
                }
            } else {
                self.at += 1;
            }
        }
    }

    /// Skips a string with its continuations: strings on later lines without a comma, which have
    /// the escape rule of the first.
    fn string(&mut self, escapes: bool) {
        loop {
            self.at += 1;
            self.past_quote(b'\'', escapes);
            let end = self.at;
            self.continuation();
            if self.peek(0) != Some(b'\'')
                || !self.text[end..self.at]
                    .iter()
                    .any(|byte| matches!(byte, b'\n' | b'\r'))
            {
                self.at = end;
                return;
            }
        }
    }

    /// Skips white space and line comments between the parts of a string.
    fn continuation(&mut self) {
        loop {
            if self.starts_with(b"--") {
                self.skip_while(|byte| !matches!(byte, b'\n' | b'\r'));
            } else if self.peek(0).is_some_and(is_space) {
                self.at += 1;
            } else {
                return;
            }
        }
    }

    fn past_quote(&mut self, quote: u8, escapes: bool) {
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            if byte == quote {
                if self.peek(0) != Some(quote) {
                    return;
                }
                self.at += 1;
            } else if byte == b'\\' && escapes {
                self.at += 1;
            }
        }
        self.at = self.text.len();
    }

    /// Skips `$tag$ … $tag$`, or a single `$`.
    fn dollar(&mut self) {
        let start = self.at;
        self.at += 1;
        if self.peek(0).is_some_and(starts_word) {
            self.skip_while(|byte| continues_word(byte) && byte != b'$');
        }
        if self.peek(0) != Some(b'$') {
            self.at = start + 1;
            return;
        }
        self.at += 1;
        let delimiter = &self.text[start..self.at];
        let body = &self.text[self.at..];
        let length = body
            .windows(delimiter.len())
            .position(|window| window == delimiter);
        self.at += length.map_or(body.len(), |length| length + delimiter.len());
    }
}

fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn continues_word(byte: u8) -> bool {
    starts_word(byte) || byte.is_ascii_digit() || byte == b'$'
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

#[cfg(test)]
mod tests;
