//! The engine: limits, lanes and execution of statements.

use std::{sync::Arc, time::Duration};

use super::{cancellation, counts, error, reservation, session};
use crate::engine::{
    bounds::Bounds,
    fill::Fill,
    statement::{Statement, TABLE},
};

/// A time zone that the engine knows.
/// The SQL parser in the version that the engine uses.
use datafusion::{
    arrow::array::RecordBatch,
    common::DataFusionError,
    config::Dialect,
    execution::{
        SessionState,
        cache::{cache_manager::FileMetadataCache, default_cache::DefaultCache},
        context::SQLOptions,
        memory_pool::MemoryConsumer,
    },
    logical_expr::LogicalPlan,
    physical_plan::{ExecutionPlan, displayable, execute_stream},
    sql::parser::Statement as ParsedStatement,
};
use futures_util::TryStreamExt as _;
use serde_json::{Map, Value as Json};
use tokio::{runtime, task::JoinSet, time};

use super::{
    admission::{AdmissionControl, QueryPermit},
    cancellation::CancellationToken,
    fragments::{Fragments, TimeRange},
    render::JsonRows,
    session::QuerySession,
    top_n::{ScanRanges, TopN},
};
use crate::{
    answer::{Answer, QueryError},
    store::View,
};

/// Debug builds of the engine use tens of kilobytes of stack per nesting level of an expression.
pub(super) const STACK_BYTES: usize = 256 * 1024 * 1024;
/// Approximate maximum size of an answer in memory, in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Size of the cache of Parquet metadata in bytes.
pub(super) const METADATA_CACHE_BYTES: usize = 64 * 1024 * 1024;

/// Executes statements on its own threads, so that queries never delay other requests.
#[derive(Debug)]
pub struct Engine {
    bounds: Bounds,
    admission: AdmissionControl,
    long: Option<runtime::Runtime>,
    /// One thread for each slot of the short lane. The operating system divides the processors,
    /// also between queries that never yield.
    short: Vec<runtime::Runtime>,
    shared: Arc<EngineState>,
}

/// State shared by all queries.
#[derive(Debug)]
pub(super) struct EngineState {
    /// Functions, rules and settings, without tables.
    session: SessionState,
    /// Files are immutable, so entries never expire.
    metadata_cache: Arc<FileMetadataCache>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        for runtime in self.long.take().into_iter().chain(self.short.drain(..)) {
            runtime.shutdown_background();
        }
    }
}

impl Engine {
    /// Starts the worker threads.
    pub fn new(bounds: Bounds) -> std::io::Result<Self> {
        let session = session::shared_state(bounds.threads).map_err(std::io::Error::other)?;
        let shared = Arc::new(EngineState {
            session,
            metadata_cache: Arc::new(DefaultCache::new(METADATA_CACHE_BYTES)),
        });
        Ok(Self {
            bounds,
            admission: AdmissionControl::new(bounds),
            long: Some(worker_threads(bounds.threads, "logs-query")?),
            short: (0..bounds.running_short)
                .map(|_| worker_threads(1, "logs-short"))
                .collect::<std::io::Result<_>>()?,
            shared,
        })
    }

    /// Returns the time limit of a query.
    pub(crate) fn timeout(&self) -> Duration {
        self.bounds.timeout
    }

    /// Runs the statement that `translate` returns over the lines of a view within a time window.
    /// Translation runs on a worker thread, because deeply nested SQL needs its large stack.
    pub async fn run(
        &self,
        project: &str,
        view: View,
        window: TimeRange,
        translate: impl FnOnce() -> Result<Statement, QueryError> + Send + 'static,
    ) -> Result<Answer, QueryError> {
        // Dropped with this future, on timeout or when the client disconnects.
        let guard = Arc::new(());
        let cancellation = CancellationToken::new(&guard);
        let work = async {
            let permit = self.admission.admit(project, scan_bytes(&view)).await?;
            let runtime = match permit.short_thread() {
                Some(number) => self.short.get(number),
                None => self.long.as_ref(),
            };
            let runtime = runtime
                .ok_or_else(|| QueryError::Backend("the query engine is shutting down".into()))?;
            let query = Query {
                permit,
                shared: Arc::clone(&self.shared),
                cancellation,
                view,
                window,
            };
            // Dropping the set aborts the task.
            let mut tasks = JoinSet::new();
            tasks.spawn_on(query.run(translate), runtime.handle());
            match tasks.join_next().await {
                Some(Ok(answer)) => answer,
                failed => Err(QueryError::Backend(format!(
                    "query task failed: {failed:?}"
                ))),
            }
        };
        time::timeout(self.bounds.timeout, work)
            .await
            .unwrap_or(Err(QueryError::TimedOut))
    }
}

/// Starts the worker threads of a lane.
pub(super) fn worker_threads(
    threads: usize,
    name: &'static str,
) -> std::io::Result<runtime::Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(16)
        .thread_stack_size(STACK_BYTES)
        .thread_name(name)
        .enable_all()
        .build()
}

/// Estimates the bytes that a query over all columns of a view reads.
pub(super) fn scan_bytes(view: &View) -> u64 {
    let files: u64 = view.files.iter().map(|file| file.size).sum();
    let recent = view.recent.iter().map(RecordBatch::get_array_memory_size);
    files + recent.sum::<usize>() as u64
}

/// An admitted query.
pub(super) struct Query {
    permit: QueryPermit,
    shared: Arc<EngineState>,
    cancellation: CancellationToken,
    /// Pins its files until the query has ended.
    view: View,
    window: TimeRange,
}

impl Query {
    async fn run(
        self,
        translate: impl FnOnce() -> Result<Statement, QueryError>,
    ) -> Result<Answer, QueryError> {
        let statement = translate()?;
        // A yield point: a query that was cancelled during translation ends here.
        tokio::task::yield_now().await;
        self.execute(&statement).await.map_err(|error| {
            tracing::debug!(sql = statement.sql, %error, "query failed");
            error::classify(&error)
        })
    }

    async fn execute(&self, statement: &Statement) -> Result<Answer, DataFusionError> {
        let fragments = Fragments::of(&self.view, &self.shared.metadata_cache).await?;
        let memory = Arc::clone(&self.permit.memory);
        let objects = Arc::clone(&self.view.objects);
        let session = QuerySession::new(&self.shared.session, memory, objects)?;
        let sql = self.checked_sql(&session, &fragments, statement).await?;
        let parsed = parse(&session, sql)?;
        let full_plan = session.plan(&parsed, &fragments, self.window)?;
        reject_writes(&full_plan)?;
        let mut ranges = ScanRanges::new(&fragments, self.window, TopN::of_plan(&full_plan)?);

        let mut answer = Answer {
            columns: statement.columns.clone(),
            ..Answer::default()
        };
        loop {
            let (range, top_n) = ranges.next();
            let plan = if range == self.window {
                full_plan.clone()
            } else {
                session.plan(&parsed, &fragments, range)?
            };
            answer.rows = self
                .collect(&session, &plan, statement, &mut answer)
                .await?;
            match top_n {
                Some(top_n) if answer.rows.len() < top_n.rows => {}
                _ => break,
            }
        }
        if let Some(fill) = &statement.fill {
            let bounds = self.fill_bounds(&session, &fragments, fill).await?;
            let rows = std::mem::take(&mut answer.rows);
            answer.rows = fill.fill(&answer.columns, rows, bounds, statement.rows + 1);
        }
        answer.truncated = answer.rows.len() > statement.rows;
        answer.rows.truncate(statement.rows);
        for batch in &self.view.recent {
            answer.scanned_rows += batch.num_rows() as u64;
            answer.scanned_bytes += batch.get_array_memory_size() as u64;
        }
        Ok(answer)
    }

    /// Returns the relaxed SQL of a statement if no line is an exception.
    async fn checked_sql<'a>(
        &self,
        session: &QuerySession,
        fragments: &Fragments,
        statement: &'a Statement,
    ) -> Result<&'a str, DataFusionError> {
        let Some(relaxed) = &statement.relaxed else {
            return Ok(&statement.sql);
        };
        for exception in &relaxed.exceptions {
            let sql = format!("SELECT 1 AS \"1\" FROM \"{TABLE}\" WHERE {exception} LIMIT 1");
            if !self
                .small_rows(session, fragments, sql, &["1"])
                .await?
                .is_empty()
            {
                return Ok(&statement.sql);
            }
        }
        Ok(&relaxed.sql)
    }

    /// Returns the first value and the exclusive last value of a filled column.
    async fn fill_bounds(
        &self,
        session: &QuerySession,
        fragments: &Fragments,
        fill: &Fill,
    ) -> Result<(Option<i64>, Option<i64>), DataFusionError> {
        let sql = fill.bounds.clone();
        let rows = self
            .small_rows(session, fragments, sql, &["from", "to"])
            .await?;
        let bound = |name| rows.first().and_then(|row| row.get(name)?.as_i64());
        Ok((bound("from"), bound("to")))
    }

    /// Runs an auxiliary statement that returns at most one row.
    async fn small_rows(
        &self,
        session: &QuerySession,
        fragments: &Fragments,
        sql: String,
        columns: &[&str],
    ) -> Result<Vec<Map<String, Json>>, DataFusionError> {
        let statement = Statement {
            sql,
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            rows: 1,
            relaxed: None,
            fill: None,
            timestamps_as_numbers: true,
        };
        let parsed = parse(session, &statement.sql)?;
        let plan = session.plan(&parsed, fragments, self.window)?;
        let mut answer = Answer::default();
        self.collect(session, &plan, &statement, &mut answer).await
    }

    /// Executes a plan up to the requested number of rows and adds its scan metrics to the answer.
    async fn collect(
        &self,
        session: &QuerySession,
        plan: &LogicalPlan,
        statement: &Statement,
        answer: &mut Answer,
    ) -> Result<Vec<Map<String, Json>>, DataFusionError> {
        let plan = session.state.create_physical_plan(plan).await?;
        let plan = counts::by_key(plan)?;
        let plan = reservation::of_windows(plan)?;
        let plan = cancellation::with_cancellation(plan, &self.cancellation)?;
        tracing::trace!(
            sql = statement.sql,
            plan = %displayable(plan.as_ref()).indent(false),
            "query planned"
        );
        let reservation = MemoryConsumer::new("answer").register(session.task.memory_pool());
        let mut rows = JsonRows::new(statement, plan.schema(), ANSWER_BYTES_MAX);
        let mut batches = execute_stream(Arc::clone(&plan), Arc::clone(&session.task))?;
        while let Some(batch) = batches.try_next().await? {
            rows.add(&batch)?;
            reservation.try_resize(rows.bytes(ANSWER_BYTES_MAX))?;
            if rows.len() > statement.rows {
                break;
            }
        }
        drop(batches);
        add_scan_metrics(plan.as_ref(), answer);
        Ok(rows.finish())
    }
}

/// Parses SQL of the `sql` module, in a dialect that has lambdas.
pub(super) fn parse(session: &QuerySession, sql: &str) -> Result<ParsedStatement, DataFusionError> {
    session.state.sql_to_statement(sql, &Dialect::DuckDB)
}

/// Second line of defence: rejects every plan that is not a read-only query.
pub(super) fn reject_writes(plan: &LogicalPlan) -> Result<(), DataFusionError> {
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

/// Adds the rows and bytes that the file scans of a plan have read.
pub(super) fn add_scan_metrics(plan: &dyn ExecutionPlan, answer: &mut Answer) {
    for child in plan.children() {
        add_scan_metrics(child.as_ref(), answer);
    }
    if !plan.children().is_empty() {
        return;
    }
    let Some(metrics) = plan.metrics() else {
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
