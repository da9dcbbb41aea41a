//! Memory of operators that the engine does not charge to the budget of a query.

use std::sync::Arc;

use datafusion::{
    arrow::{
        array::{Array as _, ArrayRef, AsArray as _, RecordBatch},
        datatypes::DataType,
    },
    common::{
        Result,
        tree_node::{Transformed, TreeNode as _},
    },
    execution::{TaskContext, memory_pool::MemoryConsumer},
    physical_plan::{
        ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions, windows::WindowAggExec,
    },
};

use super::batch_hook::{BatchCheck, BatchHook, BatchHookExec};

/// Charges the input of windows over whole partitions, which keep all batches until their end.
pub(super) fn of_windows(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let wrapped = plan.transform_up(|node| {
        let Some(window) = node.downcast_ref::<WindowAggExec>() else {
            return Ok(Transformed::no(node));
        };
        let input = Arc::clone(window.input());
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let input = BatchHookExec::around(input, Arc::new(WindowCharge));
        let charged = Arc::clone(&node).replace_children(vec![input], options)?;
        Ok(Transformed::yes(charged))
    });
    Ok(wrapped?.data)
}

/// Charges every batch to the budget until the stream is dropped.
#[derive(Debug)]
struct WindowCharge;

impl BatchHook for WindowCharge {
    fn name(&self) -> &'static str {
        "ChargedExec"
    }

    fn open(&self, context: &TaskContext) -> BatchCheck {
        let reservation = MemoryConsumer::new("window").register(context.memory_pool());
        Box::new(move |batch| reservation.try_grow(batch_bytes(batch)))
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
