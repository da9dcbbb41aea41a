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

use super::only;

/// Number of distinct keys, and approximate bytes of their texts, after which counts are emitted.
const KEYS_MAX: usize = 16 * 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of counts per key. Bounds the memory of the operator, which no query budget
/// covers.
const COUNTS_MAX: usize = 16;

/// Replaces every partial aggregation of the plan that [`CountExec`] supports.
pub(super) fn by_key(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let replaced = plan.transform_up(|node| match CountExec::instead_of(node.as_ref()) {
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
    counted: Vec<Condition>,
    properties: Arc<PlanProperties>,
}

/// The filter of a count. `None` counts all lines.
type Condition = Option<Arc<dyn PhysicalExpr>>;

impl CountExec {
    fn instead_of(node: &dyn ExecutionPlan) -> Option<Self> {
        let aggregate = node.downcast_ref::<AggregateExec>()?;
        let ([(key, _)], [_, ..]) = (aggregate.group_expr().expr(), aggregate.aggr_expr()) else {
            return None;
        };
        let fits = *aggregate.mode() == AggregateMode::Partial
            && aggregate.group_expr().is_single()
            && aggregate.limit_options().is_none()
            && aggregate.aggr_expr().len() <= COUNTS_MAX
            && aggregate.aggr_expr().iter().all(|it| counts_lines(it))
            && Keys::of(&key.data_type(&aggregate.input().schema()).ok()?).is_some();
        fits.then(|| Self {
            input: Arc::clone(aggregate.input()),
            key: Arc::clone(key),
            counted: aggregate.filter_expr().to_vec(),
            properties: Arc::clone(node.properties()),
        })
    }
}

/// Whether the function is `count(*)`.
fn counts_lines(function: &AggregateFunctionExpr) -> bool {
    let arguments = function.expressions();
    let of_lines = matches!(arguments.as_slice(), [one] if one.downcast_ref::<Literal>().is_some_and(|one| !one.value().is_null()));
    function.fun().name() == "count" && !function.is_distinct() && of_lines
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
        let first = f(&self.key);
        self.counted
            .iter()
            .flatten()
            .fold(first, |so_far, condition| {
                so_far?.visit_sibling(|| f(condition))
            })
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (key, counted, properties) = (
            Arc::clone(&self.key),
            self.counted.clone(),
            Arc::clone(&self.properties),
        );
        Ok(Arc::new(Self {
            input: only(children)?,
            key,
            counted,
            properties,
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
        let keys = Keys::of(self.schema().field(0).data_type()).unwrap_or_default();
        let counts = Counts {
            key: Arc::clone(&self.key),
            counted: self.counted.clone(),
            schema: self.schema(),
            keys,
            lines: Vec::new(),
        };
        let state = (self.input.execute(partition, context)?, Some(counts));
        let counted = stream::try_unfold(state, |(mut input, counts)| async move {
            let Some(mut counts) = counts else {
                return Ok(None);
            };
            while !counts.keys.are_many() {
                let Some(batch) = input.next().await.transpose()? else {
                    return Ok(Some((counts.told()?, (input, None))));
                };
                counts.add(&batch)?;
            }
            Ok(Some((counts.told()?, (input, Some(counts)))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            counted,
        )))
    }
}

/// The running counts of one partition.
struct Counts {
    key: Arc<dyn PhysicalExpr>,
    counted: Vec<Condition>,
    schema: SchemaRef,
    keys: Keys,
    /// The counts of key 0, then those of key 1, and so on: one entry per filter.
    lines: Vec<i64>,
}

impl Counts {
    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let held = |condition: &Condition| {
            condition
                .as_ref()
                .map(|it| held(it.as_ref(), batch))
                .transpose()
        };
        let held: Vec<_> = self.counted.iter().map(held).collect::<Result<_>>()?;
        let keys = self.key.evaluate(batch)?.into_array(batch.num_rows())?;
        let counts = &mut self.lines;
        // A single unfiltered count, the most frequent case, needs no row-wise work.
        if let [None] = held.as_slice() {
            self.keys
                .tell_apart(&keys, |key, rows| match counts.get_mut(key) {
                    Some(count) => *count += number(rows.len()),
                    None => counts.push(number(rows.len())),
                });
            return Ok(());
        }
        self.keys.tell_apart(&keys, |key, rows| {
            let first = key * held.len();
            if counts.len() == first {
                counts.resize(first + held.len(), 0);
            }
            for (count, held) in counts[first..].iter_mut().zip(&held) {
                *count += match held {
                    None => number(rows.len()),
                    Some(held) if rows.len() == 1 => i64::from(held.value(rows.start)),
                    Some(held) => number(held.slice(rows.start, rows.len()).count_set_bits()),
                };
            }
        });
        Ok(())
    }

    /// Returns keys and counts in the schema of the partial aggregation, and resets them.
    fn told(&mut self) -> Result<RecordBatch> {
        let (all, each) = (std::mem::take(&mut self.lines), self.counted.len());
        let counts = |nth| {
            Arc::new(
                all.iter()
                    .skip(nth)
                    .step_by(each)
                    .copied()
                    .collect::<Int64Array>(),
            ) as ArrayRef
        };
        let columns = std::iter::once(self.keys.told())
            .chain((0..each).map(counts))
            .collect();
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Evaluates a filter on a batch. Null counts as false.
fn held(condition: &dyn PhysicalExpr, batch: &RecordBatch) -> Result<BooleanBuffer> {
    let held = condition.evaluate(batch)?.into_array(batch.num_rows())?;
    let held = held.as_boolean();
    Ok(held.nulls().map_or_else(
        || held.values().clone(),
        |known| held.values() & known.inner(),
    ))
}

/// Distinct keys, numbered in the order of their first occurrence.
enum Keys {
    Texts(Texts),
    Moments(Numbers<i64>),
}

impl Default for Keys {
    fn default() -> Self {
        Self::Texts(Texts::default())
    }
}

impl Keys {
    /// Returns `None` for key types that the engine counts equally fast.
    fn of(kind: &DataType) -> Option<Self> {
        match kind {
            DataType::Utf8View => Some(Self::default()),
            DataType::Timestamp(TimeUnit::Second, None) => Some(Self::Moments(Numbers::default())),
            _ => None,
        }
    }

    fn are_many(&self) -> bool {
        match self {
            Self::Texts(texts) => texts.numbers.len() >= KEYS_MAX || texts.bytes >= BYTES_MAX,
            Self::Moments(numbers) => numbers.len() >= KEYS_MAX,
        }
    }

    /// Calls `visit` with the key number and the row range of every run of equal keys.
    fn tell_apart(&mut self, keys: &ArrayRef, tell: impl FnMut(usize, Range<usize>)) {
        match self {
            Self::Texts(texts) => texts.tell_apart(keys.as_string_view(), tell),
            Self::Moments(numbers) => {
                let moments = keys.as_primitive::<TimestampSecondType>();
                runs(
                    moments,
                    |row| moments.value(row),
                    |key, _| numbers.of(key.as_ref()),
                    tell,
                );
            }
        }
    }

    /// Returns the keys as a column in the order of their numbers.
    fn told(&mut self) -> ArrayRef {
        match self {
            Self::Texts(texts) => Arc::new(
                std::mem::take(texts)
                    .numbers
                    .in_order()
                    .iter()
                    .collect::<StringViewArray>(),
            ),
            Self::Moments(numbers) => Arc::new(TimestampSecondArray::from(
                std::mem::take(numbers).in_order(),
            )),
        }
    }
}

/// Numbers of keys, including the null key.
struct Numbers<K> {
    of: HashMap<K, usize>,
    of_none: Option<usize>,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            of_none: None,
        }
    }
}

impl<K: Eq + Hash> Numbers<K> {
    fn len(&self) -> usize {
        self.of.len() + usize::from(self.of_none.is_some())
    }

    fn of<Q: Eq + Hash + ToOwned<Owned = K> + ?Sized>(&mut self, key: Option<&Q>) -> usize
    where
        K: Borrow<Q>,
    {
        let next = self.len();
        match key {
            Some(key) => *self.of.entry_ref(key).or_insert(next),
            None => *self.of_none.get_or_insert(next),
        }
    }

    fn in_order(self) -> Vec<Option<K>> {
        let mut keys: Vec<_> = std::iter::repeat_with(|| None).take(self.len()).collect();
        for (key, number) in self.of {
            keys[number] = Some(key);
        }
        keys
    }
}

#[derive(Default)]
struct Texts {
    numbers: Numbers<String>,
    bytes: usize,
    /// Key numbers by string view. Valid only for the buffers below, which the views point into.
    views: HashMap<u128, usize>,
    buffers: Vec<Buffer>,
}

impl Texts {
    fn tell_apart(&mut self, texts: &StringViewArray, tell: impl FnMut(usize, Range<usize>)) {
        let buffers = texts.data_buffers();
        if self.buffers.len() != buffers.len()
            || !self
                .buffers
                .iter()
                .zip(buffers)
                .all(|(one, other)| one.ptr_eq(other))
        {
            self.views.clear();
            self.buffers = buffers.to_vec();
        }
        let Self {
            numbers,
            bytes,
            views,
            ..
        } = self;
        let number = |view: Option<u128>, row| match view {
            None => numbers.of(None::<&str>),
            Some(view) => *views.entry(view).or_insert_with(|| {
                let (text, known) = (texts.value(row), numbers.len());
                let number = numbers.of(Some(text));
                *bytes += if number == known { text.len() } else { 0 };
                number
            }),
        };
        runs(texts, |row| texts.views()[row], number, tell);
    }
}

/// Calls `visit` with the key number and the row range of every run of equal keys. `number` maps a
/// key, or null, and its first row to the key number.
fn runs<K: PartialEq>(
    keys: &impl Array,
    key: impl Fn(usize) -> K,
    mut number: impl FnMut(Option<K>, usize) -> usize,
    mut tell: impl FnMut(usize, Range<usize>),
) {
    let key = |row| keys.is_valid(row).then(|| key(row));
    let mut start = 0;
    while start < keys.len() {
        let this = key(start);
        let end = (start + 1..keys.len())
            .find(|row| key(*row) != this)
            .unwrap_or(keys.len());
        tell(number(this, start), start..end);
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
        let moment = DataType::Timestamp(TimeUnit::Second, None);
        let schema = Arc::new(Schema::new(vec![
            Field::new("t", DataType::Utf8View, true),
            Field::new("n", DataType::Int64, false),
            Field::new("m", moment.clone(), true),
            Field::new("s", moment, true),
        ]));
        let text = |n: usize| match n % 7 {
            0 => None,
            1 => Some(String::new()),
            2 => Some(format!("a text that is longer than a view {}", n % 40)),
            _ => Some((n % 25_000).to_string()),
        };
        let batch = |first: usize| {
            let (mut texts, mut numbers) = (StringViewBuilder::new(), Vec::new());
            for n in first..first + 5_000 {
                texts.append_option(text(n));
                numbers.push(i64::try_from(n % 3).unwrap());
            }
            let rows = || (first..first + 5_000).map(|n| i64::try_from(n).unwrap());
            let moments: TimestampSecondArray = rows()
                .map(|n| (n / 100 != 123).then_some(n / 100 * 60))
                .collect();
            let seconds: TimestampSecondArray = rows().map(Some).collect();
            let columns: [ArrayRef; 4] = [
                Arc::new(texts.finish()),
                Arc::new(Int64Array::from(numbers)),
                Arc::new(moments),
                Arc::new(seconds),
            ];
            RecordBatch::try_new(Arc::clone(&schema), columns.into()).unwrap()
        };
        let partition = |first: usize| (0..5).map(|at| batch(first + at * 5_000)).collect();
        MemTable::try_new(Arc::clone(&schema), vec![partition(0), partition(25_000)]).unwrap()
    }

    #[tokio::test]
    async fn counts_are_those_of_the_engine() {
        let context =
            SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
        context.register_table("lines", Arc::new(table())).unwrap();
        let counts = |many: i32| {
            (0..many)
                .map(|n| format!("count(*) filter (where n <> {n}) as c{n}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let [most, more] = [16, 17].map(|many| {
            format!(
                "select m, {} from lines group by m order by m limit 9",
                counts(many)
            )
        });
        for (sql, ours) in [
            (most.as_str(), true),
            (more.as_str(), false),
            (
                "select t, count(*) as c from lines group by t order by c desc, t",
                true,
            ),
            (
                "select coalesce(t, '') as k, count(*) as c from lines where n > 0 group by k order by c desc, k",
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
                "select t, count(*) as c, count(*) filter (where n > 1) as d from lines group by t order by c desc, t",
                true,
            ),
            (
                "select t, count(*) filter (where nullif(n, 2) > 0) as c from lines group by t order by t",
                true,
            ),
            (
                "select m, count(*) filter (where n > 1) as c, count(*) filter (where t <> '') as d from lines group by m order by m",
                true,
            ),
            (
                "select m, count(*) as c from lines where n = 1 group by m having count(*) > 30 order by m",
                true,
            ),
            (
                "select sum(c), sum(d) from (select s, count(*) as c, count(*) filter (where n > 1) as d from lines group by s)",
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
            // A physical plan can be executed only once, so each execution gets its own.
            let plan = async || {
                context
                    .sql(sql)
                    .await
                    .unwrap()
                    .create_physical_plan()
                    .await
                    .unwrap()
            };
            let (plan, replaced) = (plan().await, by_key(plan().await).unwrap());
            let shown = displayable(replaced.as_ref()).indent(false).to_string();
            assert_eq!(shown.contains("CountExec"), ours, "{sql}\n{shown}");
            let [expected, found] = [plan, replaced].map(|plan| collect(plan, context.task_ctx()));
            let (expected, found) = (expected.await.unwrap(), found.await.unwrap());
            let [expected, found] =
                [expected, found].map(|rows| pretty_format_batches(&rows).unwrap().to_string());
            assert!(expected == found, "{sql}");
        }
    }
}
