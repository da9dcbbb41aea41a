//! Query sessions: shared functions and rules, with a table and a memory budget per query.

use std::sync::Arc;

use datafusion::{
    arrow::datatypes::DataType,
    common::{Result, TableReference, plan_err},
    config::{ConfigNonZeroUsize, ConfigOptions},
    datasource::provider_as_source,
    execution::{
        SessionState, SessionStateBuilder, SessionStateDefaults, TaskContext,
        config::SessionConfig,
        disk_manager::{DiskManagerBuilder, DiskManagerMode},
        memory_pool::MemoryPool,
        object_store::ObjectStoreUrl,
        runtime_env::RuntimeEnvBuilder,
    },
    logical_expr::{
        AggregateUDF, HigherOrderUDF, LogicalPlan, ScalarUDF, TableSource, WindowUDF,
        planner::{ContextProvider, ExprPlanner},
    },
    object_store::ObjectStore,
    sql::{parser::Statement, planner::SqlToRel},
};

use super::{
    aggregates,
    fragments::{Fragments, TimeRange},
    functions,
    statement::TABLE,
    table,
};

/// Parser recursion limit for translated statements, which nest deeper than client SQL.
const STATEMENT_DEPTH_MAX: usize = 2_000;

/// Returns the functions, rules and settings of all queries, with an empty catalog.
pub(super) fn shared_state(threads: usize) -> Result<SessionState> {
    let mut config = SessionConfig::new()
        .with_target_partitions(threads)
        .with_information_schema(false);
    let options = config.options_mut();
    options.execution.parquet.pushdown_filters = true;
    options.execution.parquet.reorder_filters = true;
    options.sql_parser.recursion_limit = ConfigNonZeroUsize::try_new(STATEMENT_DEPTH_MAX)?;
    // A second optimizer pass takes as long as the first and gains nothing for small statements.
    options.optimizer.max_passes = 1;
    // Table functions and file formats are absent, so that a statement can read only the one table.
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_expr_planners(SessionStateDefaults::default_expr_planners())
        .with_scalar_functions(
            [
                SessionStateDefaults::default_scalar_functions(),
                functions::all(),
            ]
            .concat(),
        )
        .with_aggregate_functions(
            [
                SessionStateDefaults::default_aggregate_functions(),
                aggregates::all(),
            ]
            .concat(),
        )
        .with_higher_order_functions(SessionStateDefaults::default_higher_order_functions())
        .with_window_functions(SessionStateDefaults::default_window_functions())
        .build();
    Ok(state)
}

/// The execution state of one query.
pub(super) struct QuerySession {
    pub(super) state: SessionState,
    pub(super) task: Arc<TaskContext>,
}

impl QuerySession {
    /// Creates a session that reads from one object store within one memory budget.
    pub(super) fn new(
        shared: &SessionState,
        memory: Arc<dyn MemoryPool>,
        objects: Arc<dyn ObjectStore>,
    ) -> Result<Self> {
        let mut state = shared.clone();
        state.mark_start_execution();
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let environment = RuntimeEnvBuilder::new()
            .with_memory_pool(memory)
            .with_disk_manager_builder(disk)
            .build_arc()?;
        environment
            .register_object_store(ObjectStoreUrl::parse(table::OBJECTS_URL)?.as_ref(), objects);
        let task = TaskContext::default()
            .with_session_config(state.config().clone())
            .with_runtime(environment);
        Ok(Self {
            state,
            task: Arc::new(task),
        })
    }

    /// Plans a statement over the lines within a time window.
    pub(super) fn plan(
        &self,
        statement: &Statement,
        fragments: &Fragments,
        window: TimeRange,
    ) -> Result<LogicalPlan> {
        let names = QueryCatalog {
            state: &self.state,
            table: provider_as_source(Arc::new(fragments.table(window)?)),
        };
        let options = (&self.state.config_options().sql_parser).into();
        SqlToRel::new_with_options(&names, options).statement_to_plan(statement.clone())
    }
}

/// Resolves the names in a statement to the only table and the functions.
struct QueryCatalog<'a> {
    state: &'a SessionState,
    table: Arc<dyn TableSource>,
}

impl ContextProvider for QueryCatalog<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        if name == TableReference::bare(TABLE) {
            Ok(Arc::clone(&self.table))
        } else {
            plan_err!("table '{name}' not found")
        }
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        self.state.expr_planners()
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.state.scalar_functions().get(name).cloned()
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.state.higher_order_functions().get(name).cloned()
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.state.aggregate_functions().get(name).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.state.window_functions().get(name).cloned()
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        self.state.config_options()
    }

    // Used only for suggestions in error messages, which clients never see.
    fn udf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}
