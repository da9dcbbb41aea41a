//! Memory of operators that the engine does not charge to the budget of a query.

use std::{fmt, sync::Arc};

use datafusion::{
    arrow::{
        array::{Array as _, ArrayRef, AsArray as _, RecordBatch},
        datatypes::DataType,
    },
    common::{
        Result,
        tree_node::{Transformed, TreeNode as _, TreeNodeRecursion},
    },
    execution::{SendableRecordBatchStream, TaskContext, memory_pool::MemoryConsumer},
    physical_expr::PhysicalExpr,
    physical_plan::{
        ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
        ReplaceChildrenOptions, stream::RecordBatchStreamAdapter, windows::WindowAggExec,
    },
};
use futures_util::StreamExt as _;

use super::single_child;

/// Charges the input of windows over whole partitions, which keep all batches until their end.
pub(super) fn of_windows(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let wrapped = plan.transform_up(|node| {
        let Some(window) = node.downcast_ref::<WindowAggExec>() else {
            return Ok(Transformed::no(node));
        };
        let input = Arc::clone(window.input());
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let charged =
            Arc::clone(&node).replace_children(vec![Arc::new(ChargedExec { input })], options)?;
        Ok(Transformed::yes(charged))
    });
    Ok(wrapped?.data)
}

/// Charges every batch to the budget until the stream is dropped.
#[derive(Debug)]
struct ChargedExec {
    input: Arc<dyn ExecutionPlan>,
}

impl DisplayAs for ChargedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for ChargedExec {
    fn name(&self) -> &'static str {
        "ChargedExec"
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
        let reservation = MemoryConsumer::new("window").register(context.memory_pool());
        let input = self.input.execute(partition, context)?;
        let schema = input.schema();
        let batches = input.map(move |batch| {
            let batch = batch?;
            reservation.try_grow(batch_bytes(&batch))?;
            Ok(batch)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }
}

/// Returns the size of the values of a batch in bytes. Batches share buffers of texts, of which
/// only the referenced bytes count.
fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(array_bytes).sum()
}

fn array_bytes(array: &ArrayRef) -> usize {
    if *array.data_type() == DataType::Utf8View {
        let texts = array.as_string_view();
        let lengths = texts.lengths().map(|length| length as usize);
        return array.len() * size_of::<u128>() + lengths.sum::<usize>();
    }
    let data = array.to_data();
    data.get_slice_memory_size()
        .unwrap_or(array.get_array_memory_size())
}
