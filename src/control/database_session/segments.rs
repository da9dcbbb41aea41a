//! Splits a migration into segments: transactions, and single statements outside of one.
//!
//! A text without transaction control and without statements that PostgreSQL never runs in a
//! transaction is one segment. Any other text is run segment by segment, with the progress recorded
//! after each (decision 0089). Positions are offsets in bytes.

use std::{borrow::Cow, collections::BTreeSet, ops::Range};

use super::statements::{
    TransactionScript, check_comment_nesting, merged,
    splitter::{SplitText, SqlLexer, SqlStatement, SqlToken, StatementSplitter},
};
use crate::platform::error::Error;

/// Maximum number of segments of a text that is not one transaction.
const SEGMENTS_MAX: usize = 10_000;
/// Inspected tokens of a statement.
const TOKENS_MAX: usize = 48;
/// Maximum number of characters of a statement in an error.
const BEGINNING_CHARS_MAX: usize = 80;

/// A migration as a sequence of segments.
#[derive(Debug)]
pub(crate) struct MigrationPlan<'a> {
    sql: &'a str,
    /// Segments in order, without those that contain no statement.
    pub(crate) segments: Vec<Segment>,
}

/// A part of a migration. Its completion is recorded once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Ranges of the statements, without transaction control.
    pub(crate) statements: Vec<Range<usize>>,
    /// End of the segment, including its `commit`.
    pub(crate) end: usize,
    pub(crate) kind: SegmentKind,
}

/// How a segment is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SegmentKind {
    /// In a transaction of the API.
    Implicit,
    /// In a transaction that the text begins and ends.
    Explicit {
        /// Statement that begins it.
        begin: String,
        /// Whether the text rolls it back.
        rolled_back: bool,
    },
    /// One statement outside of a transaction.
    Standalone(StandaloneCommand),
}

/// A command that does not run in a transaction, by the way in which an interrupted run is
/// completed. Names are as written, with quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StandaloneCommand {
    /// `create index concurrently`: indexes that it left invalid are dropped first.
    CreateIndex { name: Option<String>, table: String },
    /// `drop index concurrently`: complete if the index does not exist any more.
    DropIndex { name: String },
    /// `reindex concurrently`: indexes that it left invalid are dropped first.
    Reindex,
    /// `alter table … detach partition … concurrently`: a pending detachment is finalized.
    DetachPartition { table: String, partition: String },
    /// `create database`: complete if the database exists.
    CreateDatabase { name: String },
    /// `drop database`: complete if the database does not exist any more.
    DropDatabase { name: String },
    /// Run again: `vacuum`, `cluster`, and procedures that commit.
    Repeat,
}

/// Boundaries that only running a migration reveals, as positions of statements.
#[derive(Debug, Default)]
pub(crate) struct SegmentCuts {
    /// Statements that begin a new segment, because they use a value that the previous ones added
    /// to an enum type.
    pub(crate) before: BTreeSet<usize>,
    /// Statements that run outside of a transaction, such as a `call` of a procedure that commits.
    pub(crate) standalone: BTreeSet<usize>,
}

impl<'a> MigrationPlan<'a> {
    /// Splits `sql`.
    ///
    /// Errors: [`Error::Invalid`] for commands of psql, `COPY` from or to the client, transactions
    /// that are not ended, statements that cannot run in the transaction around them, prepared
    /// transactions, and texts over the bounds.
    pub(crate) fn parse(sql: &'a str, cuts: &SegmentCuts) -> Result<Self, Error> {
        check_comment_nesting(sql)?;
        let split = StatementSplitter::read("query", sql)?;
        refuse_client_commands(sql, &split)?;
        let mut builder = PlanBuilder {
            sql,
            cuts,
            segments: Vec::new(),
            current: Vec::new(),
            open: None,
        };
        if let Some(inside) = split
            .statements
            .iter()
            .find(|statement| statement.inside && statement.controls_transaction(sql))
        {
            return Err(refused(
                sql,
                inside.span.start,
                "{} is not possible inside another statement",
            ));
        }
        for statement in merged(&split.statements) {
            builder.push(&statement)?;
        }
        builder.finish()
    }

    /// Returns the text to run in one transaction, if the whole text is one.
    pub(crate) fn whole(&self) -> Option<Cow<'a, str>> {
        match self.segments.as_slice() {
            [] => Some(Cow::Borrowed(self.sql)),
            [one] => match &one.kind {
                SegmentKind::Standalone(_) => None,
                SegmentKind::Implicit | SegmentKind::Explicit { .. } => {
                    let script = TransactionScript::parse("a migration", "query", self.sql);
                    script.ok().map(|script| script.text())
                }
            },
            _ => None,
        }
    }

    /// Returns the ranges of all statements.
    pub(crate) fn statements(&self) -> impl Iterator<Item = &Range<usize>> {
        self.segments.iter().flat_map(|segment| &segment.statements)
    }

    /// Returns whether a statement enables row level security on a table of the platform. The
    /// project's database permits it only as a query of its own (`tenant_policies.sql`).
    pub(crate) fn has_platform_row_security(&self) -> bool {
        self.statements().any(|range| {
            let statement = self.sql[range.clone()].to_ascii_lowercase();
            statement.contains("row level security")
                && ["auth", "storage", "realtime"]
                    .iter()
                    .any(|schema| statement.contains(schema))
        })
    }

    /// Removes the statements before `applied`.
    pub(crate) fn skip_to(&mut self, applied: usize) {
        self.segments.retain(|segment| segment.end > applied);
        for segment in &mut self.segments {
            segment.statements.retain(|range| range.end > applied);
        }
        self.segments
            .retain(|segment| !segment.statements.is_empty());
    }

    /// Returns the statements before `applied` that change settings of the session, which a new
    /// session repeats.
    pub(crate) fn settings_before(&self, applied: usize) -> Vec<Range<usize>> {
        let mut settings = Vec::new();
        for segment in &self.segments {
            if matches!(
                segment.kind,
                SegmentKind::Explicit {
                    rolled_back: true,
                    ..
                }
            ) {
                continue;
            }
            for range in segment
                .statements
                .iter()
                .filter(|range| range.end <= applied)
            {
                if tokens(&self.sql[range.clone()]).resets_session() {
                    settings.clear();
                } else if tokens(&self.sql[range.clone()]).changes_session() {
                    settings.push(range.clone());
                }
            }
        }
        settings
    }

    /// Returns the text.
    pub(crate) fn sql(&self) -> &'a str {
        self.sql
    }

    /// Returns whether a statement concerns savepoints or settings, which cannot run in a savepoint
    /// of their own.
    pub(crate) fn is_about_transaction(&self, range: &Range<usize>) -> bool {
        let tokens = tokens(&self.sql[range.clone()]);
        ["savepoint", "release", "rollback", "set", "reset"]
            .iter()
            .any(|word| tokens.is_word(0, word))
    }

    /// Returns the first words of the statement at a position, on one line.
    pub(crate) fn beginning(&self, position: usize) -> String {
        beginning(&self.sql[position..])
    }

    /// Returns the line of a position, from 1.
    pub(crate) fn line(&self, position: usize) -> usize {
        line(self.sql, position)
    }

    /// Returns the statement at a position as shown in errors: number, line and first words.
    pub(crate) fn context(&self, position: usize) -> String {
        let number = self
            .statements()
            .filter(|range| range.start <= position)
            .count();
        format!(
            "statement {number}, line {}: {}",
            self.line(position),
            beginning(&self.sql[position..])
        )
    }
}

/// Returns the first words of a text on one line.
fn beginning(text: &str) -> String {
    let mut words = String::new();
    // More characters than can be shown, so that long white space is skipped.
    for word in text[..floor_boundary(text, 16 * BEGINNING_CHARS_MAX)].split_whitespace() {
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(word);
    }
    let words = words.split(';').next().unwrap_or_default();
    match words.char_indices().nth(BEGINNING_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &words[..end]),
        None => words.to_owned(),
    }
}

fn floor_boundary(text: &str, mut at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn line(sql: &str, position: usize) -> usize {
    sql[..position].matches('\n').count() + 1
}

/// Returns the error for a statement at `position`. `{}` in the text is its first words.
fn refused(sql: &str, position: usize, text: &str) -> Error {
    let name = beginning(&sql[position..]);
    let problem = text.replacen("{}", &name, 1);
    Error::invalid("query", format!("line {}: {problem}", line(sql, position)))
}

/// Rejects commands of psql, and `COPY` with rows of the client.
fn refuse_client_commands(sql: &str, split: &SplitText) -> Result<(), Error> {
    let copy = split.statements.iter().find(|statement| {
        let words = statement.words(sql);
        words.first().is_some_and(|word| word == "copy")
            && tokens(&sql[statement.span.clone()]).copies_to_client()
    });
    let copy = copy.map(|statement| statement.span.start);
    if let Some(backslash) = split.backslash
        && copy.is_none_or(|copy| backslash < copy)
    {
        return Err(refused(
            sql,
            backslash,
            "{} is a command of psql, not SQL; leave it out",
        ));
    }
    match copy {
        Some(copy) => Err(refused(
            sql,
            copy,
            "{} needs rows from the client, which a migration does not have; write them as INSERT, or load them with psql",
        )),
        None => Ok(()),
    }
}

/// Collects segments from statements.
struct PlanBuilder<'a, 'b> {
    sql: &'a str,
    cuts: &'b SegmentCuts,
    segments: Vec<Segment>,
    current: Vec<Range<usize>>,
    /// The statement that began the open transaction, and its position.
    open: Option<(String, usize)>,
}

impl<'a> PlanBuilder<'a, '_> {
    fn push(&mut self, statement: &SqlStatement) -> Result<(), Error> {
        let span = statement.span.clone();
        if statement.controls_transaction(self.sql) {
            return self.control(statement);
        }
        let never = statement.never_in_transaction(self.sql);
        if self.open.is_some() {
            if never.is_some() {
                let text = "{} cannot run between BEGIN and COMMIT; move it out of the transaction";
                return Err(refused(self.sql, span.start, text));
            }
            self.current.push(span);
            return Ok(());
        }
        if never.is_some() || self.cuts.standalone.contains(&span.start) {
            self.end_implicit();
            let command = standalone(&self.sql[span.clone()]);
            self.end_segment(
                vec![span.clone()],
                span.end,
                SegmentKind::Standalone(command),
            );
        } else {
            if self.cuts.before.contains(&span.start) {
                self.end_implicit();
            }
            self.current.push(span);
        }
        self.check_bound()
    }

    fn control(&mut self, statement: &SqlStatement) -> Result<(), Error> {
        let span = statement.span.clone();
        let words = statement.words(self.sql);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let text = self.sql[span.clone()].trim_end_matches(';').to_owned();
        let chain = words.windows(2).any(|pair| pair == ["and", "chain"]);
        match words.as_slice() {
            [_, "prepared", ..] | ["prepare", ..] => Err(refused(
                self.sql,
                span.start,
                "{} is not available: prepared transactions outlive the migration",
            )),
            ["begin" | "start", ..] => {
                if self.open.is_some() {
                    return Err(refused(
                        self.sql,
                        span.start,
                        "{} is inside a transaction; end the first one before it",
                    ));
                }
                self.end_implicit();
                self.open = Some((text, span.start));
                Ok(())
            }
            ["abort" | "rollback", ..] if self.open.is_none() => Err(refused(
                self.sql,
                span.start,
                "{} has no BEGIN before it: earlier statements are already applied",
            )),
            [first, ..] => {
                let rolled_back = matches!(*first, "abort" | "rollback");
                let Some((begin, _)) = self.open.take() else {
                    self.end_implicit();
                    return self.check_bound();
                };
                if chain {
                    self.open = Some((begin.clone(), span.start));
                }
                let statements = std::mem::take(&mut self.current);
                self.end_segment(
                    statements,
                    span.end,
                    SegmentKind::Explicit { begin, rolled_back },
                );
                self.check_bound()
            }
            [] => Ok(()),
        }
    }

    fn end_implicit(&mut self) {
        let statements = std::mem::take(&mut self.current);
        let end = statements.last().map_or(0, |range| range.end);
        self.end_segment(statements, end, SegmentKind::Implicit);
    }

    fn end_segment(&mut self, statements: Vec<Range<usize>>, end: usize, kind: SegmentKind) {
        if !statements.is_empty() {
            self.segments.push(Segment {
                statements,
                end,
                kind,
            });
        }
    }

    fn check_bound(&self) -> Result<(), Error> {
        if self.segments.len() > SEGMENTS_MAX {
            let problem = format!("has more than {SEGMENTS_MAX} transactions; split it");
            return Err(Error::invalid("query", problem));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<MigrationPlan<'a>, Error> {
        if let Some((_, at)) = self.open {
            return Err(refused(self.sql, at, "{} has no COMMIT after it"));
        }
        self.end_implicit();
        Ok(MigrationPlan {
            sql: self.sql,
            segments: self.segments,
        })
    }
}

/// First tokens of one statement.
struct StatementTokens<'a>(Vec<(SqlToken, &'a str)>);

fn tokens(statement: &str) -> StatementTokens<'_> {
    let mut lexer = SqlLexer::new(statement);
    let mut tokens = Vec::new();
    while tokens.len() < TOKENS_MAX
        && let Some((token, span)) = lexer.next_token()
    {
        tokens.push((token, &statement[span]));
    }
    StatementTokens(tokens)
}

impl StatementTokens<'_> {
    fn is_word(&self, at: usize, word: &str) -> bool {
        self.0.get(at).is_some_and(|(token, text)| {
            *token == SqlToken::Word && text.eq_ignore_ascii_case(word)
        })
    }

    /// Returns the position after `words`, if they are at `at`.
    fn after(&self, at: usize, words: &[&str]) -> Option<usize> {
        let found = words
            .iter()
            .enumerate()
            .all(|(n, word)| self.is_word(at + n, word));
        found.then_some(at + words.len())
    }

    /// Returns the position after optional words.
    fn skip(&self, at: usize, words: &[&str]) -> usize {
        self.after(at, words).unwrap_or(at)
    }

    /// Reads a name with optional qualification. Returns the text and the position after it.
    fn name(&self, at: usize) -> Option<(String, usize)> {
        let part = |at: usize| {
            let (token, text) = *self.0.get(at)?;
            (token == SqlToken::Word || text.starts_with('"')).then_some(text)
        };
        let mut name = part(at)?.to_owned();
        let mut end = at + 1;
        while self.0.get(end).is_some_and(|(_, text)| *text == ".") {
            name.push('.');
            name.push_str(part(end + 1)?);
            end += 2;
        }
        Some((name, end))
    }

    /// Whether it is `copy … from stdin` or `copy … to stdout`.
    fn copies_to_client(&self) -> bool {
        (0..self.0.len()).any(|at| {
            self.after(at, &["from", "stdin"]).is_some()
                || self.after(at, &["to", "stdout"]).is_some()
        })
    }

    /// Whether it changes a setting until the end of the session.
    fn changes_session(&self) -> bool {
        let set = self.is_word(0, "set")
            && !["local", "transaction", "constraints"]
                .iter()
                .any(|word| self.is_word(1, word));
        set || self.is_word(0, "reset")
            || self.after(0, &["select", "set_config"]).is_some()
            || (self.after(0, &["select", "pg_catalog"]).is_some() && self.is_word(3, "set_config"))
    }

    /// Whether it resets every setting of the session.
    fn resets_session(&self) -> bool {
        self.after(0, &["discard", "all"]).is_some() || self.after(0, &["reset", "all"]).is_some()
    }
}

/// Returns how an interrupted run of a statement is completed.
fn standalone(statement: &str) -> StandaloneCommand {
    let tokens = tokens(statement);
    create_index(&tokens)
        .or_else(|| drop_index(&tokens))
        .or_else(|| detach_partition(&tokens))
        .or_else(|| database(&tokens))
        .or_else(|| {
            tokens
                .is_word(0, "reindex")
                .then_some(StandaloneCommand::Reindex)
        })
        .unwrap_or(StandaloneCommand::Repeat)
}

fn create_index(tokens: &StatementTokens<'_>) -> Option<StandaloneCommand> {
    let at = tokens.after(0, &["create"])?;
    let at = tokens.skip(at, &["unique"]);
    let at = tokens.after(at, &["index", "concurrently"])?;
    let at = tokens.skip(at, &["if", "not", "exists"]);
    let (name, at) = if tokens.is_word(at, "on") {
        (None, at)
    } else {
        let (name, at) = tokens.name(at)?;
        (Some(name), at)
    };
    let at = tokens.after(at, &["on"])?;
    let (table, _) = tokens.name(tokens.skip(at, &["only"]))?;
    Some(StandaloneCommand::CreateIndex { name, table })
}

fn drop_index(tokens: &StatementTokens<'_>) -> Option<StandaloneCommand> {
    let at = tokens.after(0, &["drop", "index", "concurrently"])?;
    let (name, _) = tokens.name(tokens.skip(at, &["if", "exists"]))?;
    Some(StandaloneCommand::DropIndex { name })
}

fn detach_partition(tokens: &StatementTokens<'_>) -> Option<StandaloneCommand> {
    let at = tokens.after(0, &["alter", "table"])?;
    let at = tokens.skip(at, &["if", "exists"]);
    let (table, at) = tokens.name(tokens.skip(at, &["only"]))?;
    let (partition, _) = tokens.name(tokens.after(at, &["detach", "partition"])?)?;
    Some(StandaloneCommand::DetachPartition { table, partition })
}

fn database(tokens: &StatementTokens<'_>) -> Option<StandaloneCommand> {
    if let Some(at) = tokens.after(0, &["create", "database"]) {
        let (name, _) = tokens.name(at)?;
        return Some(StandaloneCommand::CreateDatabase { name });
    }
    let at = tokens.after(0, &["drop", "database"])?;
    let (name, _) = tokens.name(tokens.skip(at, &["if", "exists"]))?;
    Some(StandaloneCommand::DropDatabase { name })
}

#[cfg(test)]
mod tests;
