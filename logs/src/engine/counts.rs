//! Counts lines by a text, as lists of what occurs most do.
//!
//! The engine hashes and compares the text of each line. But a text that repeats stands once in a file, and its lines have views of
//! the same bytes: within a batch it is enough to tell views apart, and each text is looked at once.

use std::{fmt, sync::Arc};

use datafusion::{
    arrow::{
        array::{Array, ArrayRef, AsArray as _, Int64Array, RecordBatch, StringViewArray, StringViewBuilder},
        datatypes::{DataType, SchemaRef},
    },
    common::{
        Result,
        tree_node::{Transformed, TreeNode as _, TreeNodeRecursion},
    },
    execution::{SendableRecordBatchStream, TaskContext},
    physical_expr::{PhysicalExpr, expressions::Literal},
    physical_plan::{
        ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
        aggregates::{AggregateExec, AggregateMode},
        stream::RecordBatchStreamAdapter,
    },
};
use futures_util::{StreamExt as _, stream};
use hashbrown::HashMap;

use super::only;

/// Texts that are counted before the counts are passed on, and their bytes, more or less.
const TEXTS_MAX: usize = 16 * 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// The plan, with what counts lines by one text in the place of the engine's own first half of that.
pub(super) fn by_text(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let replaced = plan.transform_up(|node| match CountExec::instead_of(node.as_ref()) {
        Some(count) => Ok(Transformed::yes(Arc::new(count) as _)),
        None => Ok(Transformed::no(node)),
    });
    Ok(replaced?.data)
}

/// How many lines there are of each text, of each partition. A text may be told several times, each time with lines that were
/// not told before.
#[derive(Debug)]
struct CountExec {
    input: Arc<dyn ExecutionPlan>,
    text: Arc<dyn PhysicalExpr>,
    properties: Arc<PlanProperties>,
}

impl CountExec {
    fn instead_of(node: &dyn ExecutionPlan) -> Option<Self> {
        let aggregate = node.downcast_ref::<AggregateExec>()?;
        let ([(text, _)], [count], [None]) = (aggregate.group_expr().expr(), aggregate.aggr_expr(), aggregate.filter_expr()) else {
            return None;
        };
        let arguments = count.expressions();
        let of_lines = matches!(arguments.as_slice(), [one] if one.downcast_ref::<Literal>().is_some_and(|one| !one.value().is_null()));
        let fits = *aggregate.mode() == AggregateMode::Partial
            && aggregate.group_expr().is_single()
            && aggregate.limit_options().is_none()
            && count.fun().name() == "count"
            && !count.is_distinct()
            && of_lines
            && text.data_type(&aggregate.input().schema()).ok()? == DataType::Utf8View;
        fits.then(|| Self { input: Arc::clone(aggregate.input()), text: Arc::clone(text), properties: Arc::clone(node.properties()) })
    }
}

impl DisplayAs for CountExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.text)
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

    fn apply_expressions(&self, f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        f(&self.text)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { input: only(children)?, text: Arc::clone(&self.text), properties: Arc::clone(&self.properties) }))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (text, schema) = (Arc::clone(&self.text), self.schema());
        let state = (self.input.execute(partition, context)?, Some(Counts::default()), Arc::clone(&schema));
        let counted = stream::try_unfold(state, move |(mut input, counts, schema)| {
            let text = Arc::clone(&text);
            async move {
                let Some(mut counts) = counts else { return Ok(None) };
                while !counts.are_full() {
                    let Some(batch) = input.next().await.transpose()? else {
                        let last = counts.told(&schema)?;
                        return Ok(Some((last, (input, None, schema))));
                    };
                    counts.add(text.evaluate(&batch)?.into_array(batch.num_rows())?.as_string_view());
                }
                Ok(Some((counts.told(&schema)?, (input, Some(Counts::default()), schema))))
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, counted)))
    }
}

#[derive(Default)]
struct Counts {
    texts: HashMap<String, i64>,
    bytes: usize,
    /// Lines without a text.
    without: i64,
    /// Of one batch: a line with this view, and how many have it.
    views: HashMap<u128, (usize, i64)>,
}

impl Counts {
    fn add(&mut self, texts: &StringViewArray) {
        self.views.clear();
        for (row, view) in texts.views().iter().enumerate() {
            // What stands in the place of a view that is none says nothing.
            if texts.is_null(row) {
                self.without += 1;
            } else {
                self.views.entry(*view).or_insert((row, 0)).1 += 1;
            }
        }
        for (row, count) in self.views.values() {
            let text = texts.value(*row);
            let known = self.texts.len();
            *self.texts.entry_ref(text).or_default() += count;
            if self.texts.len() > known {
                self.bytes += text.len();
            }
        }
    }

    fn are_full(&self) -> bool {
        self.texts.len() >= TEXTS_MAX || self.bytes >= BYTES_MAX
    }

    /// Texts and their counts, as the engine's other half takes them.
    fn told(&self, schema: &SchemaRef) -> Result<RecordBatch> {
        let without = (self.without > 0).then_some((None, self.without));
        let mut texts = StringViewBuilder::with_capacity(self.texts.len() + 1);
        let mut counts = Vec::with_capacity(self.texts.len() + 1);
        for (text, count) in self.texts.iter().map(|(text, count)| (Some(text.as_str()), *count)).chain(without) {
            texts.append_option(text);
            counts.push(count);
        }
        let columns: [ArrayRef; 2] = [Arc::new(texts.finish()), Arc::new(Int64Array::from(counts))];
        Ok(RecordBatch::try_new(Arc::clone(schema), columns.into())?)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::{
        arrow::{
            datatypes::{Field, Schema},
            util::pretty::pretty_format_batches,
        },
        datasource::MemTable,
        physical_plan::{collect, displayable},
        prelude::{SessionConfig, SessionContext},
    };

    use super::*;

    /// More texts than are held at once, most of them twice and far from each other, long ones, an empty one, and none.
    fn table() -> MemTable {
        let schema = Arc::new(Schema::new(vec![Field::new("t", DataType::Utf8View, true), Field::new("n", DataType::Int64, false)]));
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
            let columns: [ArrayRef; 2] = [Arc::new(texts.finish()), Arc::new(Int64Array::from(numbers))];
            RecordBatch::try_new(Arc::clone(&schema), columns.into()).unwrap()
        };
        let partition = |first: usize| (0..5).map(|at| batch(first + at * 5_000)).collect();
        MemTable::try_new(Arc::clone(&schema), vec![partition(0), partition(25_000)]).unwrap()
    }

    #[tokio::test]
    async fn counts_are_those_of_the_engine() {
        let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
        context.register_table("lines", Arc::new(table())).unwrap();
        for (sql, ours) in [
            ("select t, count(*) as c from lines group by t order by c desc, t", true),
            ("select coalesce(t, '') as k, count(*) as c from lines where n > 0 group by k order by c desc, k", true),
            ("select count(*) as c from (select t from lines group by t having count(*) > 1)", true),
            ("select t, count(n) as c from lines group by t order by t limit 9", false),
            ("select t, count(t) as c from lines group by t order by t limit 9", false),
            ("select t, count(distinct n) as c from lines group by t order by t limit 9", false),
            ("select t, count(*) filter (where n > 1) as c from lines group by t order by t limit 9", false),
            ("select t, count(*) as c, sum(n) as s from lines group by t order by t limit 9", false),
            ("select n, count(*) as c from lines group by n order by n", false),
            ("select t, n, count(*) as c from lines group by t, n order by t, n limit 9", false),
        ] {
            // Of a plan no part can be run twice.
            let plan = async || context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let (plan, replaced) = (plan().await, by_text(plan().await).unwrap());
            let shown = displayable(replaced.as_ref()).indent(false).to_string();
            assert_eq!(shown.contains("CountExec"), ours, "{sql}\n{shown}");
            let [expected, found] = [plan, replaced].map(|plan| collect(plan, context.task_ctx()));
            let (expected, found) = (expected.await.unwrap(), found.await.unwrap());
            let [expected, found] = [expected, found].map(|rows| pretty_format_batches(&rows).unwrap().to_string());
            assert!(expected == found, "{sql}");
        }
    }
}
