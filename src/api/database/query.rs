//! Runs a customer's SQL and returns its rows as JSON.

use bytes::Bytes;
use serde_json::Value;

use crate::{
    control::database_session::{
        DATABASE, OWNER, READER, json,
        segments::{MigrationPlan, SegmentCuts},
        session::{ConnectTarget, DatabaseSession, QueryOutput, SessionLimits},
        statements::{self, TransactionScript},
        types,
    },
    platform::error::{Context as _, Error},
};

/// Minimum size of results that are printed on a blocking thread: 32 MiB take about 100 ms.
const PRINT_ASIDE_BYTES: usize = 256 * 1024;
/// Name of the prepared statement. The unnamed statement would be replaced by the lookup of types.
const STATEMENT: &str = "customer";

/// SQL with its parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SqlQuery {
    /// SQL: several statements, or exactly one if there are parameters.
    pub text: String,
    /// Values of `$1`, `$2`, …: null, strings, numbers and booleans as their text, objects as JSON,
    /// arrays as an array literal for an array parameter and otherwise as JSON.
    pub parameters: Vec<Value>,
    /// Whether only reading is permitted.
    pub read_only: bool,
}

/// Runs `query` and returns a JSON array of row objects (`behaviour.md` §8): the last result with
/// rows, or `[]`.
///
/// The SQL runs as [`OWNER`], or as [`READER`] for a read-only query, whose role has no write
/// privileges. A read-only transaction around it rejects writes with 25006 and is never committed,
/// because a role may change its own settings, which would affect later readers. SQL that would end
/// the transaction is rejected.
///
/// Errors: [`Error::Sql`] with the server's message, or 57014 after the time limit;
/// [`Error::Invalid`] for rejected SQL, or if the result exceeds the limits, in which case the SQL
/// may have taken effect; [`Error::DatabaseUnreachable`].
pub async fn run_query(
    target: &ConnectTarget,
    query: &SqlQuery,
    limits: SessionLimits,
) -> Result<Bytes, Error> {
    if !query.read_only {
        statements::check_comment_nesting(&query.text)?;
        let session = DatabaseSession::open(target, OWNER, DATABASE, &[], limits).await?;
        return run(session, &query.text, &query.parameters, limits).await;
    }
    let script = TransactionScript::parse("a read-only query", "query", &query.text)?;
    let settings = [("default_transaction_read_only", "on")];
    let mut session = DatabaseSession::open(target, READER, DATABASE, &settings, limits).await?;
    session.simple_query("begin read only").await?;
    run(session, &script.text(), &query.parameters, limits).await
}

async fn run(
    mut session: DatabaseSession,
    text: &str,
    parameters: &[Value],
    limits: SessionLimits,
) -> Result<Bytes, Error> {
    let answer = match parameters {
        [] => match separable(text) {
            Some(plan) => run_separately(&mut session, text, &plan).await?,
            None => session.simple_query(text).await?,
        },
        parameters => with_parameters(&mut session, text, parameters).await?,
    };
    print(session, answer, limits).await
}

/// Returns the statements of a text that enables row level security on a table of the platform and
/// has further statements. The project's database permits the former only as a query of its own.
/// `None` for other texts, and for those that are not one transaction.
fn separable(text: &str) -> Option<MigrationPlan<'_>> {
    // Spares most texts the parser.
    if !text.to_ascii_lowercase().contains("row level security") {
        return None;
    }
    let plan = MigrationPlan::parse(text, &SegmentCuts::default()).ok()?;
    let is_needed = plan.has_platform_row_security() && plan.statements().count() > 1;
    (is_needed && plan.whole().is_some()).then_some(plan)
}

/// Runs statements one by one in a transaction. Returns the last result with rows.
async fn run_separately(
    session: &mut DatabaseSession,
    text: &str,
    plan: &MigrationPlan<'_>,
) -> Result<QueryOutput, Error> {
    session.simple_query("begin").await?;
    let mut last = None;
    for part in plan.statements() {
        let output = session.query_statement(text, part.clone()).await?;
        if last.is_none() || !output.rows.columns.is_empty() {
            last = Some(output);
        }
    }
    let committed = session.simple_query("commit").await?;
    Ok(last.unwrap_or(committed))
}

async fn with_parameters(
    session: &mut DatabaseSession,
    sql: &str,
    values: &[Value],
) -> Result<QueryOutput, Error> {
    let expected = session.prepare(STATEMENT, sql).await?;
    // One type per value. The server reports a wrong number of values.
    let kinds = types::resolve(
        session,
        expected
            .into_iter()
            .chain(std::iter::repeat(0))
            .take(values.len()),
    )
    .await;
    let texts: Vec<_> = values
        .iter()
        .zip(kinds)
        .map(|(value, kind)| json::parameter(value, kind))
        .collect();
    session.execute(STATEMENT, sql, &texts).await
}

async fn print(
    mut session: DatabaseSession,
    answer: QueryOutput,
    limits: SessionLimits,
) -> Result<Bytes, Error> {
    let rows = answer.rows;
    let kinds = types::resolve(&mut session, rows.columns.iter().map(|column| column.kind)).await;
    drop(session);
    let printed = if rows.bytes() < PRINT_ASIDE_BYTES {
        json::rows(&rows, &kinds, &limits)?
    } else {
        tokio::task::spawn_blocking(move || json::rows(&rows, &kinds, &limits))
            .await
            .context("printing rows")??
    };
    Ok(printed.into())
}
