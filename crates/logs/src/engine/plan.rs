//! Nodes of execution plans.

use std::sync::Arc;

use datafusion::{common::internal_err, error::DataFusionError, physical_plan::ExecutionPlan};

/// Returns the only child of a plan node.
pub(super) fn single_child(
    inputs: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    match <[_; 1]>::try_from(inputs) {
        Ok([input]) => Ok(input),
        Err(inputs) => internal_err!("expected one input, got {}", inputs.len()),
    }
}
