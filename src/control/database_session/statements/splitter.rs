//! Splits SQL into statements, as PostgreSQL's lexer (`scan.l`) and grammar do.

use std::ops::Range;

use crate::platform::error::Error;

/// Inspected tokens at the beginning of a statement, as in `alter database x set tablespace`.
const WORDS_MAX: usize = 6;
/// Maximum number of statements of a text. A statement takes about 100 bytes of memory.
pub(crate) const STATEMENTS_MAX: usize = 200_000;

/// A statement: its range, and the ranges of its first tokens. The range of a token other than a
/// word is empty.
#[derive(Debug, Clone)]
pub(crate) struct SqlStatement {
    pub(crate) span: Range<usize>,
    words: [Range<u32>; WORDS_MAX],
    tokens: u32,
    /// Whether the last token is the word `concurrently`.
    ends_concurrently: bool,
    /// Whether it belongs to the previous statement: in parentheses, or in the body of a routine.
    pub(crate) inside: bool,
}

impl SqlStatement {
    /// Returns the first words in lower case. A token other than a word is an empty word.
    pub(crate) fn words(&self, sql: &str) -> Vec<String> {
        self.words
            .iter()
            .take(self.tokens as usize)
            .map(|word| sql[word.start as usize..word.end as usize].to_ascii_lowercase())
            .collect()
    }

    /// Returns whether the statement consists of exactly one of these word sequences.
    pub(crate) fn is_plain(&self, sql: &str, forms: &[&[&str]]) -> bool {
        let words = self.words(sql);
        self.tokens as usize == words.len() && forms.iter().any(|form| words == *form)
    }

    /// Returns the command's name if PostgreSQL always rejects it inside a transaction.
    pub(crate) fn never_in_transaction(&self, sql: &str) -> Option<&'static str> {
        let words = self.words(sql);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
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

    /// Returns whether the statement begins, ends or prepares a transaction.
    pub(crate) fn controls_transaction(&self, sql: &str) -> bool {
        let words = self.words(sql);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            // Rolling back to a savepoint does not end the transaction.
            ["rollback", "to", ..] | ["rollback", "work" | "transaction", "to", ..] => false,
            ["begin" | "commit" | "end" | "abort" | "rollback", ..]
            | ["start" | "prepare", "transaction", ..] => true,
            _ => false,
        }
    }
}

/// Statements of a text.
pub(crate) struct SplitText {
    pub(crate) statements: Vec<SqlStatement>,
    /// Position of the first backslash outside literals and quotes, which begins a command of psql.
    pub(crate) backslash: Option<usize>,
}

/// Collects statements from tokens.
#[derive(Default)]
pub(crate) struct StatementSplitter<'a> {
    sql: &'a str,
    found: Vec<SqlStatement>,
    current: Option<SqlStatement>,
    backslash: Option<usize>,
    after_begin: bool,
    /// Whether the position is inside `begin atomic … end`, the body of an SQL routine. Its
    /// statements end in `;`.
    in_body: bool,
    /// Open parentheses. `create rule … do (…; …)` contains statements.
    depth: usize,
}

impl<'a> StatementSplitter<'a> {
    /// Splits `sql`. Rejects a text with more than [`STATEMENTS_MAX`] statements, or over 4 GiB.
    pub(crate) fn read(field: &str, sql: &'a str) -> Result<SplitText, Error> {
        let mut reader = Self {
            sql,
            ..Self::default()
        };
        let mut lexer = SqlLexer::new(sql);
        while let Some((token, span)) = lexer.next_token() {
            if reader.found.len() > STATEMENTS_MAX || u32::try_from(span.end).is_err() {
                let problem = format!("has more than {STATEMENTS_MAX} statements; split it");
                return Err(Error::invalid(field.to_owned(), problem));
            }
            match token {
                SqlToken::End => reader.end(span.end),
                SqlToken::Word => reader.word(&sql[span.clone()].to_ascii_lowercase(), span),
                SqlToken::Other => reader.other(span),
            }
        }
        reader.end(sql.len());
        Ok(SplitText {
            statements: reader.found,
            backslash: reader.backslash,
        })
    }

    fn other(&mut self, span: Range<usize>) {
        self.word("", span.clone());
        match &self.sql[span.clone()] {
            "(" => self.depth += 1,
            ")" => self.depth = self.depth.saturating_sub(1),
            "\\" => self.backslash = self.backslash.or(Some(span.start)),
            _ => {}
        }
    }

    fn word(&mut self, word: &str, span: Range<usize>) {
        let ends_body = self.in_body && self.current.is_none() && word == "end";
        let inside = self.in_body || self.depth > 0;
        let statement = self.current.get_or_insert_with(|| SqlStatement {
            span: span.clone(),
            words: Default::default(),
            tokens: 0,
            ends_concurrently: false,
            inside,
        });
        let known = statement.words.get_mut(statement.tokens as usize);
        if let Some(known) = known.filter(|_| !word.is_empty() && !ends_body) {
            // The caller checked that positions fit.
            *known = position(span.start)..position(span.end);
        }
        statement.tokens += 1;
        statement.ends_concurrently = word == "concurrently";
        statement.span.end = span.end;
        let starts_body = self.after_begin && word == "atomic" && self.defines_routine();
        self.after_begin = word == "begin";
        self.in_body = (self.in_body && !ends_body) || starts_body;
        if starts_body {
            self.end(span.end);
        }
    }

    fn defines_routine(&self) -> bool {
        let words = self
            .current
            .as_ref()
            .map(|statement| statement.words(self.sql));
        let words = words.unwrap_or_default();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        matches!(
            words.as_slice(),
            ["create", "function" | "procedure", ..]
                | ["create", "or", "replace", "function" | "procedure", ..]
        )
    }

    fn end(&mut self, at: usize) {
        if let Some(mut statement) = self.current.take() {
            statement.span.end = at;
            self.found.push(statement);
        }
        self.after_begin = false;
    }
}

fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// A token of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SqlToken {
    Word,
    End,
    Other,
}

/// Lexer of SQL text that skips white space and comments.
pub(crate) struct SqlLexer<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> SqlLexer<'a> {
    /// Reads `sql` from its beginning.
    pub(crate) fn new(sql: &'a str) -> Self {
        Self {
            text: sql.as_bytes(),
            at: 0,
        }
    }

    /// Returns the next token and its range.
    pub(crate) fn next_token(&mut self) -> Option<(SqlToken, Range<usize>)> {
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
