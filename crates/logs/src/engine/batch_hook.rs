//! A plan node that calls a hook for every batch of its input.

use std::{fmt, sync::Arc};

use datafusion::{
    arrow::array::RecordBatch,
    common::{Result, tree_node::TreeNodeRecursion},
    execution::{SendableRecordBatchStream, TaskContext},
    physical_expr::PhysicalExpr,
    physical_plan::{
        ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
        ReplaceChildrenOptions, stream::RecordBatchStreamAdapter,
    },
};
use futures_util::StreamExt as _;

use super::plan::single_child;

/// Checks one batch. An error ends the query.
pub(super) type BatchCheck = Box<dyn FnMut(&RecordBatch) -> Result<()> + Send>;

/// A check of the batches of a plan node.
pub(super) trait BatchHook: fmt::Debug + Send + Sync {
    /// The name of the node in the text of a plan.
    fn name(&self) -> &'static str;

    /// Returns the check of one partition. It is dropped with the stream.
    fn open(&self, context: &TaskContext) -> BatchCheck;
}

/// Calls its hook for every batch of its input.
#[derive(Debug)]
pub(super) struct BatchHookExec {
    input: Arc<dyn ExecutionPlan>,
    hook: Arc<dyn BatchHook>,
}

impl BatchHookExec {
    pub(super) fn around(
        input: Arc<dyn ExecutionPlan>,
        hook: Arc<dyn BatchHook>,
    ) -> Arc<dyn ExecutionPlan> {
        Arc::new(Self { input, hook })
    }
}

impl DisplayAs for BatchHookExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for BatchHookExec {
    fn name(&self) -> &'static str {
        self.hook.name()
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
        Ok(Self::around(
            single_child(children)?,
            Arc::clone(&self.hook),
        ))
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
        let mut check = self.hook.open(&context);
        let input = self.input.execute(partition, context)?;
        let schema = input.schema();
        let batches = input.map(move |batch| {
            let batch = batch?;
            check(&batch)?;
            Ok(batch)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }
}
