//! A physical operator for `count(*)` grouped by one text or one time bucket, the query behind top
//! lists and charts.
//!
//! The partial aggregation of the engine hashes and compares the key of every line. This operator
//! exploits the layout instead. Equal texts of a file share one dictionary entry, so their string
//! views are identical: comparing views suffices, and each text is hashed once per file. Lines are
//! sorted by time, so equal time buckets are adjacent: finding the end of each run suffices.

use std::{borrow::Borrow, fmt, hash::Hash, ops::Range, sync::Arc};

use datafusion::{
    arrow::{
        array::{
            Array, ArrayRef, AsArray as _, Int64Array, RecordBatch, StringViewArray,
            TimestampSecondArray,
        },
        buffer::{BooleanBuffer, Buffer},
        datatypes::{DataType, SchemaRef, TimeUnit, TimestampSecondType},
    },
    common::{
        Result,
        tree_node::{Transformed, TreeNode as _, TreeNodeRecursion},
    },
    execution::{SendableRecordBatchStream, TaskContext},
    physical_expr::{PhysicalExpr, aggregate::AggregateFunctionExpr, expressions::Literal},
    physical_plan::{
        ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
        ReplaceChildrenOptions,
        aggregates::{AggregateExec, AggregateMode},
        stream::RecordBatchStreamAdapter,
    },
};
use futures_util::{StreamExt as _, stream};
use hashbrown::HashMap;

use super::single_child;

/// Number of distinct keys, and approximate bytes of their texts, after which counts are emitted.
const BUFFERED_KEYS_MAX: usize = 16 * 1024;
const BUFFERED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of counts per key. Bounds the memory of the operator, which no query budget
/// covers.
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
        let state = (self.input.execute(partition, context)?, Some(accumulator));
        let batches = stream::try_unfold(state, |(mut input, accumulator)| async move {
            let Some(mut accumulator) = accumulator else {
                return Ok(None);
            };
            while !accumulator.keys.is_full() {
                let Some(batch) = input.next().await.transpose()? else {
                    return Ok(Some((accumulator.take_batch()?, (input, None))));
                };
                accumulator.add(&batch)?;
            }
            let full = accumulator.take_batch()?;
            Ok(Some((full, (input, Some(accumulator)))))
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

/// Distinct keys, numbered in the order of their first occurrence.
enum Keys {
    Texts(TextKeys),
    Timestamps(KeyNumbers<i64>),
}

impl Default for Keys {
    fn default() -> Self {
        Self::Texts(TextKeys::default())
    }
}

impl Keys {
    /// Returns `None` for key types that the engine counts equally fast.
    fn of_type(ty: &DataType) -> Option<Self> {
        match ty {
            DataType::Utf8View => Some(Self::default()),
            DataType::Timestamp(TimeUnit::Second, None) => {
                Some(Self::Timestamps(KeyNumbers::default()))
            }
            _ => None,
        }
    }

    fn is_full(&self) -> bool {
        match self {
            Self::Texts(texts) => {
                texts.numbers.len() >= BUFFERED_KEYS_MAX || texts.bytes >= BUFFERED_BYTES_MAX
            }
            Self::Timestamps(numbers) => numbers.len() >= BUFFERED_KEYS_MAX,
        }
    }

    /// Calls `visit` with the key number and the row range of every run of equal keys.
    fn visit_runs(&mut self, keys: &ArrayRef, visit: impl FnMut(usize, Range<usize>)) {
        match self {
            Self::Texts(texts) => texts.visit_runs(keys.as_string_view(), visit),
            Self::Timestamps(numbers) => {
                let timestamps = keys.as_primitive::<TimestampSecondType>();
                for_each_run(
                    timestamps,
                    |row| timestamps.value(row),
                    |key, _| numbers.number(key.as_ref()),
                    visit,
                );
            }
        }
    }

    /// Returns the keys and leaves an empty set of the same type.
    fn take(&mut self) -> Self {
        match self {
            Self::Texts(texts) => Self::Texts(std::mem::take(texts)),
            Self::Timestamps(numbers) => Self::Timestamps(std::mem::take(numbers)),
        }
    }

    /// Returns the keys as a column in the order of their numbers.
    fn into_array(self) -> ArrayRef {
        match self {
            Self::Texts(texts) => {
                let keys = texts.numbers.into_keys();
                Arc::new(keys.iter().collect::<StringViewArray>())
            }
            Self::Timestamps(numbers) => Arc::new(TimestampSecondArray::from(numbers.into_keys())),
        }
    }
}

/// Numbers of keys, including the null key.
struct KeyNumbers<K> {
    numbers: HashMap<K, usize>,
    null_number: Option<usize>,
}

impl<K> Default for KeyNumbers<K> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            null_number: None,
        }
    }
}

impl<K: Eq + Hash> KeyNumbers<K> {
    fn len(&self) -> usize {
        self.numbers.len() + usize::from(self.null_number.is_some())
    }

    /// Returns the number of a key and assigns the next one to a new key.
    fn number<Q: Eq + Hash + ToOwned<Owned = K> + ?Sized>(&mut self, key: Option<&Q>) -> usize
    where
        K: Borrow<Q>,
    {
        let next = self.len();
        match key {
            Some(key) => *self.numbers.entry_ref(key).or_insert(next),
            None => *self.null_number.get_or_insert(next),
        }
    }

    /// Returns the keys in the order of their numbers.
    fn into_keys(self) -> Vec<Option<K>> {
        let mut keys: Vec<_> = std::iter::repeat_with(|| None).take(self.len()).collect();
        for (key, number) in self.numbers {
            keys[number] = Some(key);
        }
        keys
    }
}

#[derive(Default)]
struct TextKeys {
    numbers: KeyNumbers<String>,
    /// Size of all texts.
    bytes: usize,
    /// Key numbers by string view. Valid only for the buffers below, which the views point into.
    views: HashMap<u128, usize>,
    buffers: Vec<Buffer>,
}

impl TextKeys {
    fn visit_runs(&mut self, texts: &StringViewArray, visit: impl FnMut(usize, Range<usize>)) {
        let buffers = texts.data_buffers();
        let same_buffers = self.buffers.len() == buffers.len()
            && self
                .buffers
                .iter()
                .zip(buffers)
                .all(|(known, buffer)| known.ptr_eq(buffer));
        if !same_buffers {
            self.views.clear();
            self.buffers = buffers.to_vec();
        }
        let number = |view: Option<u128>, row| self.number(texts, view, row);
        for_each_run(texts, |row| texts.views()[row], number, visit);
    }

    /// Returns the number of the text in a row, which is hashed only if its view is new.
    fn number(&mut self, texts: &StringViewArray, view: Option<u128>, row: usize) -> usize {
        let Some(view) = view else {
            return self.numbers.number(None::<&str>);
        };
        if let Some(number) = self.views.get(&view) {
            return *number;
        }
        let text = texts.value(row);
        let next = self.numbers.len();
        let number = self.numbers.number(Some(text));
        if number == next {
            self.bytes += text.len();
        }
        self.views.insert(view, number);
        number
    }
}

/// Calls `visit` with the key number and the row range of every run of equal keys. `number` maps a
/// key, or null, and its first row to the key number.
fn for_each_run<K: PartialEq>(
    keys: &impl Array,
    key: impl Fn(usize) -> K,
    mut number: impl FnMut(Option<K>, usize) -> usize,
    mut visit: impl FnMut(usize, Range<usize>),
) {
    let key = |row| keys.is_valid(row).then(|| key(row));
    let mut start = 0;
    while start < keys.len() {
        let current = key(start);
        let mut end = start + 1;
        while end < keys.len() && key(end) == current {
            end += 1;
        }
        visit(number(current, start), start..end);
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use datafusion::{
        arrow::{
            array::StringViewBuilder,
            datatypes::{Field, Schema},
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
        let text = |n: usize| match n % 7 {
            0 => None,
            1 => Some(String::new()),
            2 => Some(format!("a text that is longer than a view {}", n % 40)),
            _ => Some((n % 25_000).to_string()),
        };
        let batch = |first: usize| {
            let mut texts = StringViewBuilder::new();
            let mut numbers = Vec::new();
            for n in first..first + 5_000 {
                texts.append_option(text(n));
                numbers.push(i64::try_from(n % 3).unwrap());
            }
            let rows = || (first..first + 5_000).map(|n| i64::try_from(n).unwrap());
            let timestamps: TimestampSecondArray = rows()
                .map(|n| (n / 100 != 123).then_some(n / 100 * 60))
                .collect();
            let seconds: TimestampSecondArray = rows().map(Some).collect();
            let columns: [ArrayRef; 4] = [
                Arc::new(texts.finish()),
                Arc::new(Int64Array::from(numbers)),
                Arc::new(timestamps),
                Arc::new(seconds),
            ];
            RecordBatch::try_new(Arc::clone(&schema), columns.into()).unwrap()
        };
        let partition = |first: usize| (0..5).map(|at| batch(first + at * 5_000)).collect();
        MemTable::try_new(Arc::clone(&schema), vec![partition(0), partition(25_000)]).unwrap()
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
