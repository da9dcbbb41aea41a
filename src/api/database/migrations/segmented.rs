//! Migrations that are applied in segments (decision 0089).
//!
//! Each segment that is a transaction contains the record of its progress. A statement outside of a
//! transaction is announced before it runs and recorded afterwards; the next request completes it
//! if it was interrupted between the two. The last record is the row of the history.

use std::ops::Range;

use gantry_base::clock::Clock;

use super::{
    AppliedMigration, MigrationLimits, NewMigration, attempts,
    history::{HistoryTransaction, SEGMENTS_LOCK, sql_state},
    progress::MigrationProgress,
};
use crate::{
    control::database_session::{
        OWNER,
        segments::{MigrationPlan, Segment, SegmentCuts, SegmentKind, StandaloneCommand},
        session::{ConnectTarget, FailureSite},
    },
    platform::error::{Context as _, Error},
};

/// A value of an enum type was used in the transaction that added it.
const UNSAFE_NEW_ENUM_VALUE: &str = "55P04";
/// A procedure ended the transaction around it.
const INVALID_TRANSACTION_TERMINATION: &str = "2D000";
/// A statement does not run inside a transaction.
const ACTIVE_SQL_TRANSACTION: &str = "25001";

/// Commands that PostgreSQL rejects inside a transaction depending on their arguments.
const MAINTENANCE: [&str; 7] = [
    "alter", "cluster", "create", "discard", "drop", "reindex", "vacuum",
];

/// Returns whether a text failed because it ran in one transaction.
pub(super) fn needs_segments(error: &Error) -> bool {
    let Error::Sql(text) = error else {
        return false;
    };
    let codes = [
        UNSAFE_NEW_ENUM_VALUE,
        INVALID_TRANSACTION_TERMINATION,
        ACTIVE_SQL_TRANSACTION,
    ];
    sql_state(text).is_some_and(|code| codes.contains(&code))
}

/// Adds the failed statement to an error of a text with several statements.
pub(super) fn with_context(
    error: Error,
    plan: &MigrationPlan<'_>,
    site: Option<FailureSite>,
) -> Error {
    let (Error::Sql(text), Some(site)) = (&error, site) else {
        return error;
    };
    let statements: Vec<_> = plan.statements().collect();
    let found = match site.position {
        Some(position) => statements.iter().rfind(|range| range.start <= position),
        None => statements.get(site.completed),
    };
    match found {
        Some(range) if statements.len() > 1 => {
            Error::Sql(format!("{text}CONTEXT:  {}\n", plan.context(range.start)))
        }
        _ => error,
    }
}

/// Runs the statements of a text one by one in the open transaction.
pub(super) async fn run_statements(
    history: &mut HistoryTransaction,
    plan: &MigrationPlan<'_>,
    sql: &str,
) -> Result<(), Error> {
    for range in plan.statements() {
        let ran = history.session.execute_statement(sql, range.clone()).await;
        ran.map_err(|error| match error {
            Error::Sql(text) => {
                Error::Sql(format!("{text}CONTEXT:  {}\n", plan.context(range.start)))
            }
            other => other,
        })?;
    }
    history.ensure_open().await
}

/// Applies a migration segment by segment, from the first that is not recorded.
pub(super) async fn apply(
    target: &ConnectTarget,
    clock: &Clock,
    migration: &NewMigration,
    limits: MigrationLimits,
) -> Result<AppliedMigration, Error> {
    let mut history = HistoryTransaction::begin_exclusive(target, limits).await?;
    let fingerprint = migration.fingerprint("apply");
    if let Some(version) = history.find_replay(migration, &fingerprint).await? {
        return Ok(AppliedMigration {
            version,
            replayed: true,
        });
    }
    let progress = MigrationProgress::find_or_begin(&mut history, migration).await?;
    history.commit_open().await?;
    let mut run = SegmentedRun {
        history,
        clock,
        migration,
        fingerprint,
        progress,
        cuts: SegmentCuts::default(),
    };
    run.restore_settings().await?;
    loop {
        if let Some(version) = run.run_remaining().await? {
            return Ok(AppliedMigration {
                version,
                replayed: false,
            });
        }
    }
}

/// A failed statement at a position of the text.
struct SegmentFailure {
    error: Error,
    position: Option<usize>,
}

impl From<Error> for SegmentFailure {
    fn from(error: Error) -> Self {
        Self {
            error,
            position: None,
        }
    }
}

/// A session that applies a migration. Dropping it rolls back the open transaction.
struct SegmentedRun<'a> {
    history: HistoryTransaction,
    clock: &'a Clock,
    migration: &'a NewMigration,
    fingerprint: String,
    progress: MigrationProgress,
    cuts: SegmentCuts,
}

impl SegmentedRun<'_> {
    /// Repeats the settings that the applied part made for the session.
    async fn restore_settings(&mut self) -> Result<(), Error> {
        let sql = &self.migration.query;
        let plan = MigrationPlan::parse(sql, &self.cuts)?;
        for range in plan.settings_before(self.progress.applied) {
            self.history.session.execute_statement(sql, range).await?;
        }
        Ok(())
    }

    /// Runs the segments that are not applied. Returns the recorded version, or `None` if a segment
    /// has to be split first.
    async fn run_remaining(&mut self) -> Result<Option<String>, Error> {
        let sql = &self.migration.query;
        let whole = MigrationPlan::parse(sql, &self.cuts)?;
        let mut plan = MigrationPlan::parse(sql, &self.cuts)?;
        plan.skip_to(self.progress.applied);
        let count = plan.segments.len();
        for (n, segment) in plan.segments.iter().enumerate() {
            let ran = match &segment.kind {
                SegmentKind::Standalone(command) => {
                    self.run_standalone(segment, command, n + 1 == count).await
                }
                _ => self.run_transaction(segment, n + 1 == count).await,
            };
            match ran {
                Ok(None) => {}
                Ok(Some(version)) => return Ok(Some(version)),
                Err(failure) if self.cut(segment, &failure) => {
                    self.history.session.batch_execute("rollback").await?;
                    return Ok(None);
                }
                Err(failure) => return Err(self.explain(failure, &whole)),
            }
        }
        // The rest of the text has no statement.
        let role = self.begin(None).await?;
        let version = self.record(sql.len(), true).await?;
        self.switch_role(OWNER, &role).await?;
        self.history.commit_open().await?;
        Ok(version)
    }

    /// Runs a segment in one transaction with the record of its progress.
    async fn run_transaction(
        &mut self,
        segment: &Segment,
        is_last: bool,
    ) -> Result<Option<String>, SegmentFailure> {
        let (begin, rolled_back) = match &segment.kind {
            SegmentKind::Explicit { begin, rolled_back } => (Some(begin.as_str()), *rolled_back),
            _ => (None, false),
        };
        // The text was corrected where a statement outside of a transaction had failed.
        if let Some(attempt) = self.progress.attempt.clone() {
            attempts::drop_invalid(&mut self.history.session, &attempt).await?;
        }
        let role = self.begin(begin).await?;
        let version = self.record(segment.end, is_last).await?;
        self.switch_role(OWNER, &role).await?;
        if begin.is_some_and(is_read_only) {
            self.history
                .session
                .batch_execute("set transaction read only")
                .await?;
        }
        if rolled_back {
            self.history
                .session
                .batch_execute("savepoint gantry_segment")
                .await?;
        }
        for range in &segment.statements {
            self.run_statement(range).await?;
        }
        if rolled_back {
            self.history
                .session
                .batch_execute("rollback to gantry_segment")
                .await?;
        }
        self.history.ensure_open().await?;
        self.history.commit_open().await?;
        self.progress.advance(&self.migration.query, segment.end);
        Ok(version)
    }

    /// Runs a statement outside of a transaction, or completes its interrupted run.
    async fn run_standalone(
        &mut self,
        segment: &Segment,
        command: &StandaloneCommand,
        is_last: bool,
    ) -> Result<Option<String>, SegmentFailure> {
        let [range] = segment.statements.as_slice() else {
            return Ok(None);
        };
        let statement = &self.migration.query[range.clone()];
        let interrupted = self.progress.attempt.clone();
        let mut is_complete = false;
        match interrupted {
            Some(attempt) if attempt.statement == attempts::digest(statement) => {
                let completed = attempts::complete(&mut self.history.session, &attempt, command);
                is_complete = completed.await?;
            }
            // Another statement was tried here before the text was corrected.
            Some(attempt) => {
                attempts::drop_invalid(&mut self.history.session, &attempt).await?;
                self.announce(statement, command).await?;
            }
            None => self.announce(statement, command).await?,
        }
        if !is_complete {
            self.run_statement(range).await?;
        }
        let role = self.begin(None).await?;
        let version = self.record(segment.end, is_last).await?;
        self.switch_role(OWNER, &role).await?;
        self.history.commit_open().await?;
        self.progress.advance(&self.migration.query, segment.end);
        Ok(version)
    }

    /// Records a statement before it runs outside of a transaction.
    async fn announce(
        &mut self,
        statement: &str,
        command: &StandaloneCommand,
    ) -> Result<(), Error> {
        let role = self.begin(None).await?;
        self.switch_role(OWNER, &role).await?;
        // As the role of the statement, because the search path depends on it.
        let attempt = attempts::observe(&mut self.history.session, statement, command).await?;
        self.switch_role(&role, OWNER).await?;
        self.progress
            .record_attempt(&mut self.history, attempt)
            .await?;
        self.history.commit_open().await
    }

    async fn run_statement(&mut self, range: &Range<usize>) -> Result<(), SegmentFailure> {
        let sql = &self.migration.query;
        let ran = self
            .history
            .session
            .execute_statement(sql, range.clone())
            .await;
        ran.map(drop).map_err(|error| SegmentFailure {
            error,
            position: Some(range.start),
        })
    }

    /// Begins a transaction as the owner, independently of the settings of the text. Returns the
    /// role that the text has set.
    async fn begin(&mut self, begin: Option<&str>) -> Result<String, Error> {
        let session = &mut self.history.session;
        let begin = match begin {
            // On a line of its own, because the text may end in a comment.
            Some(begin) => format!("{begin}\n; set transaction read write"),
            None => "begin isolation level read committed read write".to_owned(),
        };
        session.batch_execute(&begin).await?;
        let sql = format!(
            "select pg_catalog.current_setting('role'), pg_catalog.current_setting('standard_conforming_strings'),
                    pg_catalog.pg_try_advisory_lock({SEGMENTS_LOCK}), pg_catalog.pg_current_xact_id()"
        );
        let rows = session.simple_query(&sql).await?.rows;
        let Some([Some(role), Some(strings), Some(lock), Some(id)]) = rows.records().next() else {
            return Err("a value is missing").context("beginning a segment of a migration");
        };
        if strings != "on" {
            let problem = "standard_conforming_strings must stay on in a migration that is not one transaction";
            return Err(Error::invalid("query", problem));
        }
        // The text may have released the lock of the session.
        if lock != "t" {
            return Err(Error::Conflict(
                "Another migration of this project is being applied; send the request again later"
                    .into(),
            ));
        }
        self.history.id = id;
        // Without a role, statements would run as the login role of the API.
        if role == "none" {
            self.history
                .session
                .batch_execute("set role postgres")
                .await?;
            return Ok(OWNER.to_owned());
        }
        if role != OWNER {
            self.history
                .session
                .batch_execute("set local role postgres")
                .await?;
        }
        Ok(role)
    }

    /// Changes the role until the end of the transaction.
    async fn switch_role(&mut self, from: &str, to: &str) -> Result<(), Error> {
        if from == to {
            return Ok(());
        }
        let sql = "select pg_catalog.set_config('role', $1, true)";
        self.history.session.query(sql, &[Some(to)]).await.map(drop)
    }

    /// Records the text up to `end` as applied. Returns the version if that completes it.
    async fn record(&mut self, end: usize, is_last: bool) -> Result<Option<String>, Error> {
        let (history, migration) = (&mut self.history, self.migration);
        if is_last {
            self.progress.remove(history).await?;
            return history
                .record(self.clock, migration, &self.fingerprint)
                .await
                .map(Some);
        }
        self.progress
            .record(history, &migration.query, end)
            .await
            .map(|()| None)
    }

    /// Splits a segment at a statement that failed because of the transaction around it. Returns
    /// whether the segment is to be run again.
    fn cut(&mut self, segment: &Segment, failure: &SegmentFailure) -> bool {
        let (Error::Sql(text), Some(position)) = (&failure.error, failure.position) else {
            return false;
        };
        if segment.kind != SegmentKind::Implicit {
            return false;
        }
        let sql = &self.migration.query[position..];
        let end = sql
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(sql.len());
        let word = sql[..end].to_ascii_lowercase();
        let is_first = segment
            .statements
            .first()
            .is_some_and(|range| range.start == position);
        match sql_state(text) {
            Some(UNSAFE_NEW_ENUM_VALUE) if !is_first => self.cuts.before.insert(position),
            Some(INVALID_TRANSACTION_TERMINATION) if word == "call" || word == "do" => {
                self.cuts.standalone.insert(position)
            }
            Some(ACTIVE_SQL_TRANSACTION) if MAINTENANCE.contains(&word.as_str()) => {
                self.cuts.standalone.insert(position)
            }
            _ => false,
        }
    }

    /// Adds the failed statement and the remaining work to an error.
    fn explain(&self, failure: SegmentFailure, plan: &MigrationPlan<'_>) -> Error {
        let mut text = match self.history.with_hint(failure.error) {
            Error::Sql(text) => text,
            other => return other,
        };
        if let Some(position) = failure.position {
            text.extend(["CONTEXT:  ", &plan.context(position), "\n"]);
        }
        let applied = self.progress.applied;
        if applied > 0 {
            let again = match self.migration.idempotency_key {
                Some(_) => "correct the rest and send the whole text with the same Idempotency-Key",
                None => "send the same text again",
            };
            let line = plan.line(applied);
            let hint = format!(
                "HINT:  the text up to line {line} is applied and stays; to continue after it, {again}\n"
            );
            text.push_str(&hint);
        }
        Error::Sql(text)
    }
}

/// Whether a statement that begins a transaction makes it read-only.
fn is_read_only(begin: &str) -> bool {
    let words: Vec<_> = begin
        .split(|c: char| !c.is_ascii_alphabetic())
        .filter(|word| !word.is_empty())
        .collect();
    words
        .windows(2)
        .any(|pair| pair[0].eq_ignore_ascii_case("read") && pair[1].eq_ignore_ascii_case("only"))
}
