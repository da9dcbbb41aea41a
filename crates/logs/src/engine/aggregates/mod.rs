//! Aggregate functions that the engine lacks, does not bound or answers too inexactly.
//!
//! Every accumulator reports its size, which the engine charges to the memory budget of the query.

mod collect;
mod distinct;
mod grouped;
mod quantiles;

use std::sync::{Arc, LazyLock};

use datafusion::{
    common::{Result, ScalarValue, exec_err},
    logical_expr::{AggregateUDF, function::AccumulatorArgs},
    physical_expr::expressions::Literal,
};

use self::{
    collect::{Collect, Selection},
    distinct::DistinctCount,
    quantiles::{Quantiles, Rank},
};

/// Returns all functions.
pub(super) fn all() -> Vec<Arc<AggregateUDF>> {
    static ALL: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
        vec![
            Arc::new(Quantiles::new("quantiles_between", Rank::Between).into()),
            Arc::new(Quantiles::new("quantiles_above", Rank::Above).into()),
            Arc::new(Quantiles::new("quantiles_exact", Rank::Exact).into()),
            Arc::new(DistinctCount::new().into()),
            Arc::new(Collect::new("collect_values", Selection::All).into()),
            Arc::new(Collect::new("collect_distinct", Selection::Distinct).into()),
            Arc::new(Collect::new("collect_top", Selection::Top).into()),
            Arc::new(Collect::new("collect_sorted", Selection::Sorted).into()),
        ]
    });
    ALL.clone()
}

/// Rejects `DISTINCT`, which the accumulators do not implement.
fn reject_distinct(args: &AccumulatorArgs<'_>) -> Result<()> {
    if args.is_distinct {
        return exec_err!("this aggregate does not support DISTINCT");
    }
    Ok(())
}

/// Returns the value of a literal argument.
fn literal<'a>(args: &'a AccumulatorArgs<'_>, at: usize) -> Result<&'a ScalarValue> {
    let literal = args
        .exprs
        .get(at)
        .and_then(|expr| expr.downcast_ref::<Literal>());
    let Some(literal) = literal else {
        return exec_err!("a parameter of an aggregate must be a literal");
    };
    Ok(literal.value())
}
