//! Incremental scans for `ORDER BY timestamp … LIMIT`.
//!
//! The last 100 lines of a day are usually found in its last minutes, but the engine would read the
//! timestamps of all lines. Such a statement first runs over a small time range at the requested
//! end of the window. The range grows until it returns as many rows as requested. The result is
//! exact, because every line outside the range sorts after every line inside.

use datafusion::{
    arrow::datatypes::DataType,
    common::{Column, Result, tree_node::TreeNode as _},
    logical_expr::{Expr, FetchType, LogicalPlan, SkipType},
};

use super::{
    fragments::{Fragments, TimeRange},
    statement::TABLE,
};

/// Coarsest sort key in microseconds that the incremental scan supports.
const PRECISION: i64 = 1_000_000;
/// Lines in the first time range per requested row.
const LINES_PER_ROW: u64 = 4;
/// Minimum number of lines in the first time range.
const LINES_MIN: u64 = 512;
/// Growth factor of the number of lines from one time range to the next.
const GROWTH: u64 = 16;

/// A limit on rows sorted by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopN {
    /// Whether the order is descending.
    latest_first: bool,
    /// Maximum number of rows of the result.
    pub(super) rows: usize,
    offset: usize,
}

impl TopN {
    /// Returns the limit of a plan that selects single lines sorted by their timestamp, otherwise
    /// `None`.
    pub(super) fn of_plan(plan: &LogicalPlan) -> Result<Option<Self>> {
        let LogicalPlan::Limit(limit) = plan else {
            return Ok(None);
        };
        let FetchType::Literal(Some(rows)) = limit.get_fetch_type()? else {
            return Ok(None);
        };
        let SkipType::Literal(offset) = limit.get_skip_type()? else {
            return Ok(None);
        };
        if plan.exists(has_subquery)? {
            return Ok(None);
        }
        let mut below = limit.input.as_ref();
        let sort = loop {
            match below {
                LogicalPlan::Projection(projection) => below = &projection.input,
                LogicalPlan::Sort(sort) => break sort,
                _ => return Ok(None),
            }
        };
        let Some(first) = sort.expr.first() else {
            return Ok(None);
        };
        match monotonic_column(&first.expr) {
            Some(key) if is_line_timestamp(&sort.input, key.clone()) => Ok(Some(Self {
                latest_first: !first.asc,
                rows,
                offset,
            })),
            _ => Ok(None),
        }
    }

    /// Returns the number of lines in the first time range.
    fn first_lines(self) -> u64 {
        (self.rows as u64 + self.offset as u64)
            .saturating_mul(LINES_PER_ROW)
            .max(LINES_MIN)
    }
}

/// Whether a plan node contains a subquery. A subquery must see all lines, not only those of a
/// small time range.
fn has_subquery(node: &LogicalPlan) -> Result<bool> {
    for expr in node.expressions() {
        if expr.exists(|expr| Ok(is_subquery(expr)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_subquery(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)
    )
}

/// Whether a column is the timestamp of lines, in a plan where no row depends on other rows.
fn is_line_timestamp(mut plan: &LogicalPlan, mut key: Column) -> bool {
    loop {
        let Ok(at) = plan.schema().index_of_column(&key) else {
            return false;
        };
        match plan {
            LogicalPlan::SubqueryAlias(it) if it.alias.table() == TABLE => {
                return key.name == "timestamp";
            }
            LogicalPlan::SubqueryAlias(it) => {
                key = Column::from(it.input.schema().qualified_field(at));
                plan = &it.input;
            }
            LogicalPlan::Projection(it) => {
                let Some(column) = it.expr.get(at).and_then(monotonic_column) else {
                    return false;
                };
                key = column.clone();
                plan = &it.input;
            }
            LogicalPlan::Filter(it) => plan = &it.input,
            _ => return false,
        }
    }
}

/// Returns the column of an expression that is monotonic in it and distinguishes values that are
/// [`PRECISION`] apart.
fn monotonic_column(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        Expr::Alias(alias) => monotonic_column(&alias.expr),
        Expr::Cast(cast) => match cast.field.data_type() {
            DataType::Timestamp(..) | DataType::Int64 => monotonic_column(&cast.expr),
            _ => None,
        },
        Expr::ScalarFunction(call) if call.name() == "arrow_cast" => {
            let [value, Expr::Literal(ty, _)] = call.args.as_slice() else {
                return None;
            };
            let ty = ty.try_as_str().flatten()?;
            if ty.starts_with("Timestamp(") {
                monotonic_column(value)
            } else {
                None
            }
        }
        _ => None,
    }
}

/// The sequence of time ranges over which a statement runs.
pub(super) struct ScanRanges<'a> {
    fragments: &'a Fragments,
    window: TimeRange,
    top_n: Option<TopN>,
    lines: u64,
}

impl<'a> ScanRanges<'a> {
    pub(super) fn new(fragments: &'a Fragments, window: TimeRange, top_n: Option<TopN>) -> Self {
        // Rounding to seconds is wrong for negative timestamps.
        let top_n = top_n.filter(|_| window.0 >= 0);
        Self {
            fragments,
            window,
            top_n,
            lines: top_n.map_or(0, TopN::first_lines),
        }
    }

    /// Returns the next time range, and the limit that its result must reach unless it is the whole
    /// window.
    pub(super) fn next(&mut self) -> (TimeRange, Option<TopN>) {
        let Some(top_n) = self.top_n else {
            return (self.window, None);
        };
        let lines = self.lines;
        self.lines = lines.saturating_mul(GROWTH);
        if lines.saturating_mul(2) >= self.fragments.estimate(self.window) {
            return (self.window, None);
        }
        let range = if top_n.latest_first {
            self.latest_range(lines)
        } else {
            self.earliest_range(lines)
        };
        (range, Some(top_n))
    }

    /// Returns the shortest range at the end of the window that holds about `lines` lines. It
    /// starts between two seconds.
    fn latest_range(&self, lines: u64) -> TimeRange {
        let (after, until) = self.window;
        let starting_at = |second: i64| (before_second(second).max(after), until);
        let mut enough = after.div_euclid(PRECISION);
        let mut too_few = until.div_euclid(PRECISION) + 1;
        while too_few - enough > 1 {
            let middle = enough + (too_few - enough) / 2;
            if self.fragments.estimate(starting_at(middle)) >= lines {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        starting_at(enough)
    }

    /// Returns the shortest range at the start of the window that holds about `lines` lines. It
    /// ends between two seconds.
    fn earliest_range(&self, lines: u64) -> TimeRange {
        let (after, until) = self.window;
        let ending_at = |second: i64| (after, before_second(second).min(until));
        let mut too_few = after.div_euclid(PRECISION);
        let mut enough = until.div_euclid(PRECISION) + 1;
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            if self.fragments.estimate(ending_at(middle)) >= lines {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        ending_at(enough)
    }
}

/// Returns the last microsecond before a second.
fn before_second(second: i64) -> i64 {
    second.saturating_mul(PRECISION).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::{
        dialects,
        engine::functions,
        event::{Attributes, Event, Source},
        layout,
        sql::Dialect::{self, BigQuery, ClickHouse},
    };

    const HOUR: TimeRange = (3_600_000_000 - 1, 7_200_000_000 - 1);

    /// An hour with a line every half second.
    fn fragments() -> Fragments {
        let lines: Vec<_> = (0..7_200)
            .map(|n: i64| {
                Event::new(
                    n.to_string(),
                    HOUR.0 + 1 + n * PRECISION / 2,
                    Source::Edge,
                    String::new(),
                    Attributes::default(),
                )
            })
            .collect();
        Fragments::recent(layout::batch(&lines).unwrap())
    }

    async fn top_n_of(dialect: Dialect, sql: &str) -> Option<TopN> {
        let context = SessionContext::new();
        for function in functions::all() {
            context.register_udf(function.as_ref().clone());
        }
        context
            .register_table(TABLE, Arc::new(fragments().table(HOUR).unwrap()))
            .unwrap();
        let statement = dialects::translate(dialect, sql, 0).unwrap();
        let state = context.state();
        let plan = state.create_logical_plan(&statement.sql).await.unwrap();
        TopN::of_plan(&plan).unwrap()
    }

    #[tokio::test]
    async fn top_n_is_detected_only_for_single_lines_sorted_by_time() {
        let latest = TopN {
            latest_first: true,
            rows: 10,
            offset: 0,
        };
        let earliest = TopN {
            latest_first: false,
            rows: 5,
            offset: 2,
        };
        for (dialect, sql, expected) in [
            (
                ClickHouse,
                "select id from logs order by timestamp desc limit 10",
                Some(latest),
            ),
            (
                ClickHouse,
                "select id, log_attributes from logs where source = 'x' order by timestamp desc, \
                 id limit 10",
                Some(latest),
            ),
            (
                ClickHouse,
                "select toUnixTimestamp64Milli(timestamp) as ms from logs order by ms limit 5 \
                 offset 2",
                Some(earliest),
            ),
            (
                ClickHouse,
                "with l as (select timestamp as t from logs where id <> '') select t from l order \
                 by t desc limit 10",
                Some(latest),
            ),
            (
                BigQuery,
                "select cast(timestamp as datetime) as timestamp from edge_logs order by \
                 timestamp desc limit 10",
                Some(latest),
            ),
            (
                BigQuery,
                "select id from edge_logs cross join unnest(metadata) as m order by timestamp \
                 desc limit 10",
                Some(latest),
            ),
            (ClickHouse, "select id from logs limit 10", None),
            (
                ClickHouse,
                "select id from logs order by id, timestamp limit 10",
                None,
            ),
            (
                ClickHouse,
                "select toStartOfHour(timestamp) as t from logs order by t limit 10",
                None,
            ),
            (
                ClickHouse,
                "select max(timestamp) as t from logs group by source order by t limit 10",
                None,
            ),
            (
                ClickHouse,
                "select distinct timestamp as t from logs order by t limit 10",
                None,
            ),
            (
                ClickHouse,
                "select row_number() over (order by id) as n from logs order by timestamp limit 10",
                None,
            ),
            (
                ClickHouse,
                "select id from logs where id in (select max(id) from logs) order by timestamp \
                 limit 10",
                None,
            ),
            (
                ClickHouse,
                "select id from (select id, timestamp from logs limit 5) order by timestamp limit \
                 10",
                None,
            ),
            (
                ClickHouse,
                "select timestamp as t from logs union all select timestamp from logs order by t \
                 limit 10",
                None,
            ),
            (
                ClickHouse,
                "select arrayJoin(mapKeys(log_attributes)) as k from logs order by timestamp \
                 limit 10",
                None,
            ),
        ] {
            assert_eq!(top_n_of(dialect, sql).await, expected, "{sql}");
        }
    }

    #[test]
    fn scan_ranges_grow_from_the_requested_end_to_the_whole_window() {
        let fragments = fragments();
        let ranges_of = |top_n| {
            let mut ranges = ScanRanges::new(&fragments, HOUR, top_n);
            [ranges.next(), ranges.next()]
        };
        let latest = TopN {
            latest_first: true,
            rows: 11,
            offset: 0,
        };
        // The first range holds at least 512 lines and is rounded up to a second.
        let last_seconds = (HOUR.1 - 257 * PRECISION, HOUR.1);
        assert_eq!(
            ranges_of(Some(latest)),
            [(last_seconds, Some(latest)), (HOUR, None)]
        );
        let earliest = TopN {
            latest_first: false,
            ..latest
        };
        let first_seconds = (HOUR.0, HOUR.0 + 256 * PRECISION);
        assert_eq!(
            ranges_of(Some(earliest))[0],
            (first_seconds, Some(earliest))
        );
        let many = TopN {
            rows: 100,
            offset: 801,
            ..latest
        };
        assert_eq!(ranges_of(Some(many))[0], (HOUR, None), "half of all lines");
        assert_eq!(ranges_of(None)[0], (HOUR, None), "no limit");
    }
}
