//! Cancellation of queries whose client has disconnected or whose time limit has passed.
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

use super::only;

/// Cancelled as soon as the guard that created it is dropped.
#[derive(Debug, Clone)]
pub(super) struct Waited(Weak<()>);

impl Waited {
    pub(super) fn by(asker: &Arc<()>) -> Self {
        Self(Arc::downgrade(asker))
    }

    fn check(&self) -> Result<()> {
        if self.0.strong_count() == 0 {
            return Err(DataFusionError::Execution("given up".into()));
        }
        Ok(())
    }
}

/// Adds cancellation checks after every batch of scans, joins and unnests, and before every
/// evaluation of a join filter.
pub(super) fn ends(
    plan: Arc<dyn ExecutionPlan>,
    waited: &Waited,
) -> Result<Arc<dyn ExecutionPlan>> {
    const BUSY: [&str; 6] = [
        "DataSourceExec",
        "NestedLoopJoinExec",
        "CrossJoinExec",
        "HashJoinExec",
        "SortMergeJoinExec",
        "UnnestExec",
    ];
    let wrapped = plan.transform_up(|node| {
        if !BUSY.contains(&node.name()) {
            return Ok(Transformed::no(node));
        }
        let input = join(node, waited)?;
        Ok(Transformed::yes(Arc::new(EndsExec {
            input,
            waited: waited.clone(),
        }) as _))
    });
    Ok(wrapped?.data)
}

fn join(node: Arc<dyn ExecutionPlan>, waited: &Waited) -> Result<Arc<dyn ExecutionPlan>> {
    let ending = |filter: &JoinFilter| {
        let expression = Arc::new(Ends {
            of: Arc::clone(filter.expression()),
            waited: waited.clone(),
        });
        Some(JoinFilter::new(
            expression,
            filter.column_indices().to_vec(),
            Arc::clone(filter.schema()),
        ))
    };
    if let Some((join, filter)) = node
        .downcast_ref::<NestedLoopJoinExec>()
        .and_then(|join| Some((join, join.filter()?)))
    {
        return Ok(Arc::new(
            NestedLoopJoinExecBuilder::from(join)
                .with_filter(ending(filter))
                .build()?,
        ));
    }
    if let Some((join, filter)) = node
        .downcast_ref::<HashJoinExec>()
        .and_then(|join| Some((join, join.filter()?)))
    {
        return join.builder().with_filter(ending(filter)).build_exec();
    }
    Ok(node)
}

/// Checks for cancellation after each batch.
#[derive(Debug)]
struct EndsExec {
    input: Arc<dyn ExecutionPlan>,
    waited: Waited,
}

impl DisplayAs for EndsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for EndsExec {
    fn name(&self) -> &'static str {
        "EndsExec"
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
            input: only(children)?,
            waited: self.waited.clone(),
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
        let waited = self.waited.clone();
        let input = self.input.execute(partition, context)?;
        let schema = input.schema();
        let ending = input.map(move |batch| waited.check().and(batch));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, ending)))
    }
}

/// Checks for cancellation before each evaluation.
#[derive(Debug)]
struct Ends {
    of: Arc<dyn PhysicalExpr>,
    waited: Waited,
}

impl PartialEq for Ends {
    fn eq(&self, other: &Self) -> bool {
        self.of.eq(&other.of)
    }
}

impl Eq for Ends {}

impl std::hash::Hash for Ends {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.of.hash(state);
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of.fmt(f)
    }
}

impl PhysicalExpr for Ends {
    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.of.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.waited.check()?;
        self.of.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.of]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match <[_; 1]>::try_from(children) {
            Ok([of]) => Ok(Arc::new(Self {
                of,
                waited: self.waited.clone(),
            })),
            Err(other) => internal_err!("one expression, not {}", other.len()),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of.fmt_sql(f)
    }
}
