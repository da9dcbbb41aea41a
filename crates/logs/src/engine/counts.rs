//! A physical operator for `count(*)` grouped by one text or one time bucket, the query behind top
//! lists and charts.
//!
//! The partial aggregation of the engine hashes and compares the key of every line. This operator
//! exploits the layout instead. Equal texts of a file share one dictionary entry, so their string
//! views are identical: comparing views suffices, and each text is hashed once per file. Lines are
//! sorted by time, so equal time buckets are adjacent: finding the end of each run suffices.

use std::{fmt, sync::Arc};

use datafusion::{
    arrow::{
        array::{Array as _, AsArray as _, Int64Array, RecordBatch},
        buffer::BooleanBuffer,
        datatypes::SchemaRef,
    },
    common::{
        Result,
        tree_node::{Transformed, TreeNode as _, TreeNodeRecursion},
    },
    execution::{SendableRecordBatchStream, TaskContext, memory_pool::MemoryConsumer},
    physical_expr::{PhysicalExpr, aggregate::AggregateFunctionExpr, expressions::Literal},
    physical_plan::{
        ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
        ReplaceChildrenOptions,
        aggregates::{AggregateExec, AggregateMode},
        stream::RecordBatchStreamAdapter,
    },
};
use futures_util::{StreamExt as _, stream};

use super::{count_keys::Keys, plan::single_child};

/// Maximum number of counts per key.
const COUNTS_MAX: usize = 16;

/// Replaces every partial aggregation of the plan that [`CountExec`] supports.
pub(super) fn by_key(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let replaced = plan.transform_up(|node| match CountExec::replacing(node.as_ref()) {
        Some(count) => Ok(Transformed::yes(Arc::new(count) as _)),
        None => Ok(Transformed::no(node)),
    });
    Ok(replaced?.data)
}

/// Partial counts per key and partition, with an optional filter per count. A key can be emitted
/// several times; the final aggregation adds up the counts.
#[derive(Debug)]
struct CountExec {
    input: Arc<dyn ExecutionPlan>,
    key: Arc<dyn PhysicalExpr>,
    filters: Vec<CountFilter>,
    properties: Arc<PlanProperties>,
}

/// The filter of a count. `None` counts all lines.
type CountFilter = Option<Arc<dyn PhysicalExpr>>;

impl CountExec {
    /// Returns the operator for a supported partial aggregation.
    fn replacing(node: &dyn ExecutionPlan) -> Option<Self> {
        let aggregate = node.downcast_ref::<AggregateExec>()?;
        let [(key, _)] = aggregate.group_expr().expr() else {
            return None;
        };
        let functions = aggregate.aggr_expr();
        let supported = *aggregate.mode() == AggregateMode::Partial
            && aggregate.group_expr().is_single()
            && aggregate.limit_options().is_none()
            && (1..=COUNTS_MAX).contains(&functions.len())
            && functions.iter().all(|function| is_count_star(function));
        if !supported {
            return None;
        }
        let key_type = key.data_type(&aggregate.input().schema()).ok()?;
        Keys::of_type(&key_type)?;
        Some(Self {
            input: Arc::clone(aggregate.input()),
            key: Arc::clone(key),
            filters: aggregate.filter_expr().to_vec(),
            properties: Arc::clone(node.properties()),
        })
    }
}

/// Whether the function is `count(*)`.
fn is_count_star(function: &AggregateFunctionExpr) -> bool {
    if function.fun().name() != "count" || function.is_distinct() {
        return false;
    }
    match function.expressions().as_slice() {
        [argument] => argument
            .downcast_ref::<Literal>()
            .is_some_and(|literal| !literal.value().is_null()),
        _ => false,
    }
}

impl DisplayAs for CountExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.key)
    }
}

impl ExecutionPlan for CountExec {
    fn name(&self) -> &'static str {
        "CountExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut recursion = f(&self.key)?;
        for filter in self.filters.iter().flatten() {
            recursion = recursion.visit_sibling(|| f(filter))?;
        }
        Ok(recursion)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            input: single_child(children)?,
            key: Arc::clone(&self.key),
            filters: self.filters.clone(),
            properties: Arc::clone(&self.properties),
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
        let keys = Keys::of_type(self.schema().field(0).data_type()).unwrap_or_default();
        let accumulator = CountAccumulator {
            key: Arc::clone(&self.key),
            filters: self.filters.clone(),
            schema: self.schema(),
            keys,
            counts: Vec::new(),
        };
        let reservation = MemoryConsumer::new("counts").register(context.memory_pool());
        let state = (
            self.input.execute(partition, context)?,
            Some((accumulator, reservation)),
        );
        let batches = stream::try_unfold(state, |(mut input, accumulator)| async move {
            let Some((mut accumulator, reservation)) = accumulator else {
                return Ok(None);
            };
            while !accumulator.keys.is_full() {
                let Some(batch) = input.next().await.transpose()? else {
                    return Ok(Some((accumulator.take_batch()?, (input, None))));
                };
                accumulator.add(&batch)?;
                reservation.try_resize(accumulator.size())?;
            }
            let full = accumulator.take_batch()?;
            Ok(Some((full, (input, Some((accumulator, reservation))))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            batches,
        )))
    }
}

/// The running counts of one partition.
struct CountAccumulator {
    key: Arc<dyn PhysicalExpr>,
    filters: Vec<CountFilter>,
    schema: SchemaRef,
    keys: Keys,
    /// The counts of key 0, then those of key 1, and so on: one entry per filter.
    counts: Vec<i64>,
}

impl CountAccumulator {
    /// Returns the approximate size of keys and counts in bytes.
    fn size(&self) -> usize {
        self.keys.size() + self.counts.capacity() * size_of::<i64>()
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut selections = Vec::with_capacity(self.filters.len());
        for filter in &self.filters {
            selections.push(match filter {
                Some(filter) => Some(selected_rows(filter.as_ref(), batch)?),
                None => None,
            });
        }
        let keys = self.key.evaluate(batch)?.into_array(batch.num_rows())?;
        let counts = &mut self.counts;
        // A single unfiltered count, the most frequent case, needs no row-wise work.
        if let [None] = selections.as_slice() {
            self.keys.visit_runs(&keys, |key, rows| {
                let lines = count_of(rows.len());
                match counts.get_mut(key) {
                    Some(count) => *count += lines,
                    None => counts.push(lines),
                }
            });
            return Ok(());
        }
        self.keys.visit_runs(&keys, |key, rows| {
            let first = key * selections.len();
            if counts.len() == first {
                counts.resize(first + selections.len(), 0);
            }
            for (count, selection) in counts[first..].iter_mut().zip(&selections) {
                *count += match selection {
                    None => count_of(rows.len()),
                    Some(selection) if rows.len() == 1 => i64::from(selection.value(rows.start)),
                    Some(selection) => {
                        count_of(selection.slice(rows.start, rows.len()).count_set_bits())
                    }
                };
            }
        });
        Ok(())
    }

    /// Returns keys and counts in the schema of the partial aggregation, and resets them.
    fn take_batch(&mut self) -> Result<RecordBatch> {
        let counts = std::mem::take(&mut self.counts);
        let width = self.filters.len();
        let mut columns = vec![self.keys.take().into_array()];
        for at in 0..width {
            let column: Int64Array = counts.iter().skip(at).step_by(width).copied().collect();
            columns.push(Arc::new(column));
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

fn count_of(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// Evaluates a filter on a batch. Null counts as false.
fn selected_rows(filter: &dyn PhysicalExpr, batch: &RecordBatch) -> Result<BooleanBuffer> {
    let selected = filter.evaluate(batch)?.into_array(batch.num_rows())?;
    let selected = selected.as_boolean();
    Ok(match selected.nulls() {
        Some(valid) => selected.values() & valid.inner(),
        None => selected.values().clone(),
    })
}

#[cfg(test)]
mod tests {
    use datafusion::{
        arrow::{
            array::{ArrayRef, StringViewBuilder, TimestampSecondArray},
            datatypes::{DataType, Field, Schema, TimeUnit},
            util::pretty::pretty_format_batches,
        },
        datasource::MemTable,
        physical_plan::{collect, displayable},
        prelude::{SessionConfig, SessionContext},
    };

    use super::*;

    /// Exceeds the limits on buffered keys in both key types: texts that repeat far apart, long
    /// texts, empty texts and nulls; ascending timestamps with runs of a hundred, one of them null.
    fn table() -> MemTable {
        let timestamp = DataType::Timestamp(TimeUnit::Second, None);
        let schema = Arc::new(Schema::new(vec![
            Field::new("t", DataType::Utf8View, true),
            Field::new("n", DataType::Int64, false),
            Field::new("m", timestamp.clone(), true),
            Field::new("s", timestamp, true),
        ]));
        let partitions = [0, 25_000].map(|first| {
            let starts = (first..first + 25_000).step_by(5_000);
            starts.map(|start| batch(&schema, start)).collect()
        });
        MemTable::try_new(Arc::clone(&schema), partitions.into()).unwrap()
    }

    fn batch(schema: &SchemaRef, start: i64) -> RecordBatch {
        let mut texts = StringViewBuilder::new();
        let mut numbers = Vec::new();
        let mut timestamps = Vec::new();
        let mut seconds = Vec::new();
        for n in start..start + 5_000 {
            texts.append_option(text(n));
            numbers.push(n % 3);
            timestamps.push((n / 100 != 123).then_some(n / 100 * 60));
            seconds.push(Some(n));
        }
        let columns: [ArrayRef; 4] = [
            Arc::new(texts.finish()),
            Arc::new(Int64Array::from(numbers)),
            Arc::new(TimestampSecondArray::from(timestamps)),
            Arc::new(TimestampSecondArray::from(seconds)),
        ];
        RecordBatch::try_new(Arc::clone(schema), columns.into()).unwrap()
    }

    fn text(n: i64) -> Option<String> {
        match n % 7 {
            0 => None,
            1 => Some(String::new()),
            2 => Some(format!("a text that is longer than a view {}", n % 40)),
            _ => Some((n % 25_000).to_string()),
        }
    }

    /// A statement with several filtered counts.
    fn statement_with(counts: usize) -> String {
        let counts: Vec<_> = (0..counts)
            .map(|n| format!("count(*) filter (where n <> {n}) as c{n}"))
            .collect();
        let counts = counts.join(", ");
        format!("select m, {counts} from lines group by m order by m limit 9")
    }

    async fn rows(context: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> String {
        let batches = collect(plan, context.task_ctx()).await.unwrap();
        pretty_format_batches(&batches).unwrap().to_string()
    }

    #[tokio::test]
    async fn counts_equal_those_of_the_engine() {
        let context =
            SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
        context.register_table("lines", Arc::new(table())).unwrap();
        for (sql, supported) in [
            (statement_with(COUNTS_MAX).as_str(), true),
            (statement_with(COUNTS_MAX + 1).as_str(), false),
            (
                "select t, count(*) as c from lines group by t order by c desc, t",
                true,
            ),
            (
                "select coalesce(t, '') as k, count(*) as c from lines where n > 0 group by k \
                 order by c desc, k",
                true,
            ),
            (
                "select count(*) as c from (select t from lines group by t having count(*) > 1)",
                true,
            ),
            (
                "select t, count(n) as c from lines group by t order by t limit 9",
                false,
            ),
            (
                "select t, count(t) as c from lines group by t order by t limit 9",
                false,
            ),
            (
                "select t, count(distinct n) as c from lines group by t order by t limit 9",
                false,
            ),
            (
                "select t, count(*) as c, count(*) filter (where n > 1) as d from lines group by \
                 t order by c desc, t",
                true,
            ),
            (
                "select t, count(*) filter (where nullif(n, 2) > 0) as c from lines group by t \
                 order by t",
                true,
            ),
            (
                "select m, count(*) filter (where n > 1) as c, count(*) filter (where t <> '') as \
                 d from lines group by m order by m",
                true,
            ),
            (
                "select m, count(*) as c from lines where n = 1 group by m having count(*) > 30 \
                 order by m",
                true,
            ),
            (
                "select sum(c), sum(d) from (select s, count(*) as c, count(*) filter (where n > \
                 1) as d from lines group by s)",
                true,
            ),
            (
                "select t, count(*) as c, sum(n) as s from lines group by t order by t limit 9",
                false,
            ),
            (
                "select n, count(*) as c from lines group by n order by n",
                false,
            ),
            (
                "select t, n, count(*) as c from lines group by t, n order by t, n limit 9",
                false,
            ),
        ] {
            let data_frame = context.sql(sql).await.unwrap();
            // A physical plan can be executed only once, so each execution gets its own.
            let original = data_frame.clone().create_physical_plan().await.unwrap();
            let replaced = by_key(data_frame.create_physical_plan().await.unwrap()).unwrap();
            let shown = displayable(replaced.as_ref()).indent(false).to_string();
            assert_eq!(shown.contains("CountExec"), supported, "{sql}\n{shown}");
            let expected = rows(&context, original).await;
            let found = rows(&context, replaced).await;
            assert!(expected == found, "{sql}");
        }
    }
}
