//! Running a customer's SQL, and its rows as JSON.

use bytes::Bytes;
use serde_json::Value;

use crate::{
    base::error::{Context as _, Error},
    data_plane::database_session::{
        DATABASE, OWNER, READER, json,
        session::{ConnectTarget, DatabaseSession, QueryOutput, SessionLimits},
        statements,
        statements::TransactionScript,
        types,
    },
};

/// From this many bytes on, rows are printed off the threads that serve requests: 32 MiB take some 100 ms.
const PRINT_ASIDE_BYTES: usize = 256 * 1024;
/// Name of the statement with parameters. Named, because looking up types drops the unnamed one.
const STATEMENT: &str = "customer";

/// What to run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SqlQuery {
    /// SQL: several statements, or exactly one if there are parameters.
    pub text: String,
    /// Values of `$1`, `$2`, …: null, texts, numbers and booleans as they read, objects as JSON, arrays as an array where
    /// the parameter is one and as JSON where not. Empty if the text has none.
    pub parameters: Vec<Value>,
    /// Whether it may read only.
    pub read_only: bool,
}

/// Runs `query` and answers a JSON array of row objects (`behaviour.md` §8): the last result that has rows, else `[]`.
///
/// It runs as [`OWNER`], or as [`READER`] if it is read-only: that role has no privilege to write, whatever the text
/// switches on. There is a transaction around it, too, which answers a plain write with 25006 and is never committed:
/// a role may always change its own settings, and those would be every later reader's. So a text that would end it is
/// refused.
///
/// Errors: [`Error::Sql`] as the server says, 57014 past the time limit; [`Error::Invalid`] for a text that is refused,
/// and if the result is over the limits, where what the text did may stand; [`Error::DatabaseUnreachable`].
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
        [] => session.simple_query(text).await?,
        parameters => with_parameters(&mut session, text, parameters).await?,
    };
    print(session, answer, limits).await
}

async fn with_parameters(
    session: &mut DatabaseSession,
    sql: &str,
    values: &[Value],
) -> Result<QueryOutput, Error> {
    let expected = session.prepare(STATEMENT, sql).await?;
    // As many as were sent: the server says it best if the numbers differ.
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
