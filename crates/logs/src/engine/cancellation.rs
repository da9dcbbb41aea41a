//! Cancellation of queries after a disconnect of the client or a timeout.
//!
//! Dropping a task stops it at its next yield point. The engine yields only after 128 batches, and
//! a join without matches only after it has compared all pairs. Expensive queries would keep their
//! slot for long, so the plan checks for cancellation itself.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use datafusion::{
    arrow::{
        array::RecordBatch,
        datatypes::{FieldRef, Schema},
    },
    common::{
        DataFusionError, Result, internal_err,
        tree_node::{Transformed, TreeNode as _},
    },
    execution::TaskContext,
    logical_expr::ColumnarValue,
    physical_expr::PhysicalExpr,
    physical_plan::{
        ExecutionPlan,
        joins::{HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, utils::JoinFilter},
    },
};

use super::batch_hook::{BatchCheck, BatchHook, BatchHookExec};

/// Cancelled as soon as the guard that created it is dropped.
#[derive(Debug, Clone)]
pub(super) struct CancellationToken(Weak<()>);

impl CancellationToken {
    pub(super) fn new(guard: &Arc<()>) -> Self {
        Self(Arc::downgrade(guard))
    }

    fn check(&self) -> Result<()> {
        if self.0.strong_count() == 0 {
            return Err(DataFusionError::Execution("query cancelled".into()));
        }
        Ok(())
    }
}

/// Adds cancellation checks after every batch of scans, joins and unnests, and before every
/// evaluation of a join filter.
pub(super) fn with_cancellation(
    plan: Arc<dyn ExecutionPlan>,
    cancellation: &CancellationToken,
) -> Result<Arc<dyn ExecutionPlan>> {
    const INSTRUMENTED: [&str; 6] = [
        "DataSourceExec",
        "NestedLoopJoinExec",
        "CrossJoinExec",
        "HashJoinExec",
        "SortMergeJoinExec",
        "UnnestExec",
    ];
    let wrapped = plan.transform_up(|node| {
        if !INSTRUMENTED.contains(&node.name()) {
            return Ok(Transformed::no(node));
        }
        let input = with_cancellable_filter(node, cancellation)?;
        let hook = Arc::new(cancellation.clone());
        Ok(Transformed::yes(BatchHookExec::around(input, hook)))
    });
    Ok(wrapped?.data)
}

/// Adds a cancellation check to the filter of a join.
fn with_cancellable_filter(
    node: Arc<dyn ExecutionPlan>,
    cancellation: &CancellationToken,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>()
        && let Some(filter) = join.filter()
    {
        let filter = cancellable_filter(filter, cancellation);
        let join = NestedLoopJoinExecBuilder::from(join).with_filter(Some(filter));
        return Ok(Arc::new(join.build()?));
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>()
        && let Some(filter) = join.filter()
    {
        let filter = cancellable_filter(filter, cancellation);
        return join.builder().with_filter(Some(filter)).build_exec();
    }
    Ok(node)
}

fn cancellable_filter(filter: &JoinFilter, cancellation: &CancellationToken) -> JoinFilter {
    let expression = Arc::new(CancellableExpr {
        expr: Arc::clone(filter.expression()),
        cancellation: cancellation.clone(),
    });
    JoinFilter::new(
        expression,
        filter.column_indices().to_vec(),
        Arc::clone(filter.schema()),
    )
}

impl BatchHook for CancellationToken {
    fn name(&self) -> &'static str {
        "CancellableExec"
    }

    fn open(&self, _: &TaskContext) -> BatchCheck {
        let cancellation = self.clone();
        Box::new(move |_| cancellation.check())
    }
}

/// Checks for cancellation before each evaluation.
#[derive(Debug)]
struct CancellableExpr {
    expr: Arc<dyn PhysicalExpr>,
    cancellation: CancellationToken,
}

impl PartialEq for CancellableExpr {
    fn eq(&self, other: &Self) -> bool {
        self.expr.eq(&other.expr)
    }
}

impl Eq for CancellableExpr {}

impl std::hash::Hash for CancellableExpr {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.expr.hash(state);
    }
}

impl fmt::Display for CancellableExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}

impl PhysicalExpr for CancellableExpr {
    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.expr.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.cancellation.check()?;
        self.expr.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.expr]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match <[_; 1]>::try_from(children) {
            Ok([expr]) => Ok(Arc::new(Self {
                expr,
                cancellation: self.cancellation.clone(),
            })),
            Err(children) => internal_err!("expected one expression, got {}", children.len()),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt_sql(f)
    }
}
