//! Executes translated statements with DataFusion. No other module depends on its query engine.
//!
//! Statements are written by the `sql` module, never by a client. Each runs in a session whose
//! catalog contains a single table: the lines of one project within the time window. Other projects
//! are unreachable by construction.

mod budget;
mod counts;
mod functions;
mod given_up;
mod latest;
mod parts;
mod render;
mod session;
mod table;

use std::{sync::Arc, time::Duration};

/// The SQL parser in the version that the engine uses.
pub(crate) use datafusion::sql::sqlparser;
use datafusion::{
    arrow::error::ArrowError,
    common::{DataFusionError, internal_err},
    config::Dialect,
    execution::{
        SessionState,
        cache::{cache_manager::FileMetadataCache, default_cache::DefaultCache},
        context::SQLOptions,
    },
    logical_expr::LogicalPlan,
    physical_plan::{ExecutionPlan, displayable, execute_stream},
};
use futures_util::TryStreamExt as _;
use serde_json::{Map, Value as Json};
use tokio::{runtime, task::JoinSet, time};

use self::{
    budget::{Turn, Turns},
    given_up::Waited,
    latest::Windows,
    parts::{Parts, Span},
    session::Session,
};
use crate::{Answer, QueryError, causes, store::View};

/// The name of the only table.
pub(crate) const TABLE: &str = "logs";
/// Debug builds of the engine use tens of kilobytes of stack per nesting level of an expression.
const STACK_BYTES: usize = 256 * 1024 * 1024;
/// Approximate maximum size of an answer in memory, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Size of the cache of Parquet metadata in bytes.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

/// Limits on queries.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of running queries.
    pub running: usize,
    /// Maximum number of running queries of one project.
    pub running_project: usize,
    /// Maximum number of queries that wait for a slot.
    pub waiting: usize,
    /// Memory limit of one query in bytes.
    pub memory_query: usize,
    /// Memory limit of all queries of one project in bytes.
    pub memory_project: usize,
    /// Memory limit of all queries in bytes.
    pub memory_all: usize,
    /// Number of worker threads.
    pub threads: usize,
    /// Time limit of a query, including the wait for a slot.
    pub patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let threads = std::thread::available_parallelism()
            .map_or(2, usize::from)
            .min(8);
        Self {
            running: threads.max(2),
            running_project: 2,
            waiting: 64,
            memory_query: 256 << 20,
            memory_project: 384 << 20,
            memory_all: 1 << 30,
            threads,
            patience: Duration::from_secs(30),
        }
    }
}

/// A translated statement and the rendering of its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// SQL in the engine's dialect over the table [`TABLE`].
    pub(crate) sql: String,
    /// Column names that the client sees.
    pub(crate) columns: Vec<String>,
    /// Requested number of rows. The statement selects one more to detect truncation.
    pub(crate) rows: usize,
    /// Whether timestamps are rendered as microseconds since 1970 instead of text.
    pub(crate) moments_as_numbers: bool,
}

/// Executes statements on its own threads, so that queries never delay other requests.
#[derive(Debug)]
pub struct Engine {
    bounds: Bounds,
    turns: Turns,
    runtime: Option<runtime::Runtime>,
    shared: Arc<Shared>,
}

/// State shared by all queries.
#[derive(Debug)]
struct Shared {
    state: SessionState,
    /// Parquet metadata. Files are immutable, so entries never expire.
    cache: Arc<FileMetadataCache>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Engine {
    /// Starts the worker threads.
    pub fn new(bounds: Bounds) -> std::io::Result<Self> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(bounds.threads)
            .max_blocking_threads(16)
            .thread_stack_size(STACK_BYTES)
            .thread_name("logs-query")
            .enable_all()
            .build()?;
        let state = session::shared(bounds.threads).map_err(std::io::Error::other)?;
        let shared = Arc::new(Shared {
            state,
            cache: Arc::new(DefaultCache::new(CACHE_BYTES)),
        });
        Ok(Self {
            bounds,
            turns: Turns::new(bounds),
            runtime: Some(runtime),
            shared,
        })
    }

    /// Runs the statement that `translate` returns over the lines of a view within a time window.
    /// Translation runs on a worker thread, because deeply nested SQL needs its large stack.
    pub async fn run(
        &self,
        project: &str,
        view: View,
        (after, until): Span,
        write: impl FnOnce() -> Result<Statement, QueryError> + Send + 'static,
    ) -> Result<Answer, QueryError> {
        let asker = Arc::new(());
        let waited = Waited::by(&asker);
        let work = async {
            let turn = self.turns.take(project).await?;
            let runtime = self
                .runtime
                .as_ref()
                .ok_or_else(|| QueryError::Backend("no more queries are taken".into()))?;
            // Dropping the set on timeout aborts the task.
            let mut task = JoinSet::new();
            task.spawn_on(
                run(
                    turn,
                    Arc::clone(&self.shared),
                    waited,
                    view,
                    (after, until),
                    write,
                ),
                runtime.handle(),
            );
            match task.join_next().await {
                Some(Ok(answer)) => answer,
                failed => Err(QueryError::Backend(format!(
                    "a query broke off: {failed:?}"
                ))),
            }
        };
        time::timeout(self.bounds.patience, work)
            .await
            .unwrap_or(Err(QueryError::TimedOut))
    }
}

async fn run(
    turn: Turn,
    shared: Arc<Shared>,
    waited: Waited,
    view: View,
    window: Span,
    write: impl FnOnce() -> Result<Statement, QueryError>,
) -> Result<Answer, QueryError> {
    let statement = write()?;
    // A yield point: a query that was cancelled during translation ends here.
    tokio::task::yield_now().await;
    let answer = execute(&turn, &shared, &waited, view, window, &statement).await;
    answer.map_err(|error| {
        tracing::debug!(sql = statement.sql, %error, "query failed");
        refusal(&error)
    })
}

async fn execute(
    turn: &Turn,
    shared: &Shared,
    waited: &Waited,
    view: View,
    window: Span,
    statement: &Statement,
) -> Result<Answer, DataFusionError> {
    let parts = Parts::of(&view, &shared.cache).await?;
    let memory = Arc::clone(&turn.memory);
    let session = Session::new(&shared.state, memory, Arc::clone(&view.objects))?;
    let parsed = session
        .state
        .sql_to_statement(&statement.sql, &Dialect::PostgreSQL)?;
    let whole = session.plan(&parsed, &parts, window)?;
    read_only(&whole)?;
    let mut windows = Windows::new(&parts, window, latest::wanted(&whole)?);

    let mut answer = Answer {
        columns: statement.columns.clone(),
        ..Answer::default()
    };
    loop {
        let (next, wanted) = windows.next();
        let plan = if next == window {
            whole.clone()
        } else {
            session.plan(&parsed, &parts, next)?
        };
        answer.rows = collect(&session, &plan, waited, statement, &mut answer).await?;
        if wanted.is_none_or(|it| answer.rows.len() >= it.rows) {
            break;
        }
    }
    answer.cut = answer.rows.len() > statement.rows;
    answer.rows.truncate(statement.rows);
    answer.scanned_rows += view
        .recent
        .iter()
        .map(|batch| batch.num_rows() as u64)
        .sum::<u64>();
    answer.scanned_bytes += view
        .recent
        .iter()
        .map(|batch| batch.get_array_memory_size() as u64)
        .sum::<u64>();
    // The view pins its files until the scan has ended.
    drop(view);
    Ok(answer)
}

/// Executes a plan up to the requested number of rows and adds its scan metrics to the answer.
async fn collect(
    session: &Session,
    plan: &LogicalPlan,
    waited: &Waited,
    statement: &Statement,
    answer: &mut Answer,
) -> Result<Vec<Map<String, Json>>, DataFusionError> {
    let plan = given_up::ends(
        counts::by_key(session.state.create_physical_plan(plan).await?)?,
        waited,
    )?;
    tracing::trace!(sql = statement.sql, plan = %displayable(plan.as_ref()).indent(false), "query planned");
    let mut rows = render::Rows::new(statement, plan.schema(), ANSWER_BYTES_MAX);
    let mut batches = execute_stream(Arc::clone(&plan), Arc::clone(&session.task))?;
    while let Some(batch) = batches.try_next().await? {
        rows.add(&batch)?;
        if rows.len() > statement.rows {
            break;
        }
    }
    drop(batches);
    scanned(plan.as_ref(), answer);
    Ok(rows.finish())
}

/// Second line of defence: rejects every plan that is not a read-only query.
fn read_only(plan: &LogicalPlan) -> Result<(), DataFusionError> {
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
        .verify_plan(plan)?;
    match plan {
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::DescribeTable(_) => {
            Err(DataFusionError::Plan("Only SELECT queries allowed".into()))
        }
        _ => Ok(()),
    }
}

/// Returns the only child of a plan node.
fn only(inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    match <[_; 1]>::try_from(inputs) {
        Ok([input]) => Ok(input),
        Err(other) => internal_err!("one input, not {}", other.len()),
    }
}

/// Adds the rows and bytes that the file scans of a plan have read.
fn scanned(plan: &dyn ExecutionPlan, answer: &mut Answer) {
    for child in plan.children() {
        scanned(child.as_ref(), answer);
    }
    let Some(metrics) = plan.metrics().filter(|_| plan.children().is_empty()) else {
        return;
    };
    let Some(bytes) = metrics.sum_by_name("bytes_scanned") else {
        return;
    };
    answer.scanned_bytes += bytes.as_usize() as u64;
    let pruned = metrics
        .sum_by_name("pushdown_rows_pruned")
        .map_or(0, |it| it.as_usize());
    answer.scanned_rows += (metrics.output_rows().unwrap_or(0) + pruned) as u64;
}

/// The message for a query that exceeds its memory limit.
const NARROW: &str =
    "Query needs too much memory. Reduce the time range, or ask for fewer groups or columns.";
const BY_ZERO: &str = "Division by zero.";

fn refused(text: &str) -> QueryError {
    QueryError::Refused(
        text.lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(300)
            .collect(),
    )
}

/// Separates errors of the statement from errors of the server.
fn refusal(error: &DataFusionError) -> QueryError {
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => refused(NARROW),
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::DivideByZero => refused(BY_ZERO),
            ArrowError::CastError(text)
            | ArrowError::ParseError(text)
            | ArrowError::ArithmeticOverflow(text)
            | ArrowError::ComputeError(text)
            | ArrowError::InvalidArgumentError(text) => refused(text),
            _ => QueryError::of(error),
        },
        DataFusionError::Plan(text)
        | DataFusionError::Execution(text)
        | DataFusionError::NotImplemented(text) => refused(text),
        DataFusionError::SQL(error, _) => refused(&error.to_string()),
        DataFusionError::SchemaError(error, _) => refused(&error.to_string()),
        error => of_condition(error).unwrap_or_else(|| QueryError::of(error)),
    }
}

/// Extracts the error of a filter that was evaluated inside the Parquet reader, which passes it on
/// only as the text of its `Debug` form.
fn of_condition(error: &DataFusionError) -> Option<QueryError> {
    let said = causes(error).find_map(|cause| match cause.downcast_ref()? {
        ArrowError::ComputeError(text) => text.strip_prefix("Error evaluating filter predicate: "),
        _ => None,
    })?;
    if said.contains("ResourcesExhausted(") {
        return Some(refused(NARROW));
    }
    if said.contains("DivideByZero") {
        return Some(refused(BY_ZERO));
    }
    let quoted = said
        .rsplit_once("(\"")
        .and_then(|(_, rest)| rest.rsplit_once("\")"))
        .map_or("The condition fails.", |(text, _)| text);
    Some(refused(
        &quoted
            .replace("\\n", "\n")
            .replace("\\\"", "\"")
            .replace("\\'", "'")
            .replace("\\\\", "\\"),
    ))
}

#[cfg(test)]
mod tests {
    use datafusion::parquet::errors::ParquetError;

    use super::*;

    #[test]
    fn a_condition_that_fails_in_a_file_is_the_statements_fault() {
        let seen = |error: &dyn std::fmt::Debug| {
            let text = format!("Error evaluating filter predicate: {error:?}");
            let error = ParquetError::External(Box::new(ArrowError::ComputeError(text)));
            match refusal(&DataFusionError::ParquetError(Box::new(error))) {
                QueryError::Refused(text) => text,
                other => panic!("{other:?}"),
            }
        };
        let execution = DataFusionError::Execution("Invalid \"x\\\" in 'y'\nmore".into());
        assert_eq!(seen(&execution), "Invalid \"x\\\" in 'y'");
        assert_eq!(
            seen(&DataFusionError::ArrowError(
                Box::new(ArrowError::DivideByZero),
                None
            )),
            BY_ZERO
        );
        assert_eq!(
            seen(&DataFusionError::ArrowError(
                Box::new(ArrowError::CastError("no number".into())),
                None
            )),
            "no number"
        );
        assert_eq!(
            seen(&execution.context("looking")),
            "Invalid \"x\\\" in 'y'"
        );
        assert_eq!(
            seen(&DataFusionError::ResourcesExhausted("much".into())),
            NARROW
        );
        let broken = DataFusionError::ParquetError(Box::new(ParquetError::EOF("short".into())));
        assert!(matches!(refusal(&broken), QueryError::Backend(_)));
    }
}
