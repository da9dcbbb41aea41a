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
        tree_node::{Transformed, TreeNode as _, TreeNodeRecursion},
    },
    execution::{SendableRecordBatchStream, TaskContext},
    logical_expr::ColumnarValue,
    physical_expr::PhysicalExpr,
    physical_plan::{
        ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
        ReplaceChildrenOptions,
        joins::{HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, utils::JoinFilter},
        stream::RecordBatchStreamAdapter,
    },
};
use futures_util::StreamExt as _;

use super::single_child;

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
        Ok(Transformed::yes(Arc::new(CancellableExec {
            input,
            cancellation: cancellation.clone(),
        }) as _))
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

/// Checks for cancellation after each batch.
#[derive(Debug)]
struct CancellableExec {
    input: Arc<dyn ExecutionPlan>,
    cancellation: CancellationToken,
}

impl DisplayAs for CancellableExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for CancellableExec {
    fn name(&self) -> &'static str {
        "CancellableExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            input: single_child(children)?,
            cancellation: self.cancellation.clone(),
        }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let cancellation = self.cancellation.clone();
        let input = self.input.execute(partition, context)?;
        let schema = input.schema();
        let batches = input.map(move |batch| cancellation.check().and(batch));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
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
