//! Runs statements. The only module that knows the engine.
//!
//! A statement is written by one of the dialects, never by a client. Each runs in a session of its own whose catalogue holds
//! one table, the lines of one project within the window: there is nothing else that a name could mean.

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

/// The parser, so that it is the one that the engine was made for.
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

/// The one table there is.
pub(crate) const TABLE: &str = "logs";
/// Debug builds of the engine take tens of kilobytes for each level of an expression.
const STACK_BYTES: usize = 256 * 1024 * 1024;
/// How long an answer may be as it is put together.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Memory for what files say of themselves.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

/// What queries may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Queries that run at the same time.
    pub running: usize,
    /// Of those, of one project.
    pub running_project: usize,
    /// Queries that wait for their turn.
    pub waiting: usize,
    /// Memory of one query in bytes.
    pub memory_query: usize,
    /// Memory of all queries of a project in bytes.
    pub memory_project: usize,
    /// Memory of all queries in bytes.
    pub memory_all: usize,
    /// Threads that run queries.
    pub threads: usize,
    /// How long a query may take, its wait included.
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

/// A statement as a dialect wrote it, and how its answer is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// In the engine's own dialect, over [`TABLE`].
    pub(crate) sql: String,
    /// What clients call its columns.
    pub(crate) columns: Vec<String>,
    /// Rows that are asked for. One row more tells that there are more.
    pub(crate) rows: usize,
    /// Whether moments are microseconds since 1970 instead of text.
    pub(crate) moments_as_numbers: bool,
}

/// Runs statements on threads of its own, so that nobody else waits for them.
#[derive(Debug)]
pub struct Engine {
    bounds: Bounds,
    turns: Turns,
    runtime: Option<runtime::Runtime>,
    shared: Arc<Shared>,
}

/// What all queries share.
#[derive(Debug)]
struct Shared {
    state: SessionState,
    /// What files say of themselves. They never change.
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
    /// Starts its threads.
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

    /// Runs the statement that `write` gives, over what is in the view after one moment and until another. Writing it is part
    /// of the work: what clients send is deep, and takes a deep stack.
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
            // Dropped when time is up, and its task with it.
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
    // Lets a query that was given up meanwhile end here.
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
    // What the view listed stays there until here.
    drop(view);
    Ok(answer)
}

/// What a plan gives, as far as it is asked for. Adds what was read for it.
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

/// The dialects write nothing else; that it stays so is not left to them alone.
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

/// What a step of a plan reads from, where that is one.
fn only(inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    match <[_; 1]>::try_from(inputs) {
        Ok([input]) => Ok(input),
        Err(other) => internal_err!("one input, not {}", other.len()),
    }
}

/// Counts what was read: of files what the leaves of a plan say, of what is in memory all.
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

/// Asked for too much.
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

/// Whose fault it was.
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

/// What a condition failed with that was looked at while a file was read. The reader passes it on as text, in the form for developers.
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
