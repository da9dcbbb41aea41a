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
    TABLE,
    parts::{Parts, Span},
};

/// Coarsest sort key in microseconds that the incremental scan supports.
const GRAIN: i64 = 1_000_000;
/// Lines in the first time range per requested row.
const LINES_A_ROW: u64 = 4;
/// Minimum number of lines in the first time range.
const LINES_MIN: u64 = 512;
/// Growth factor of the number of lines from one time range to the next.
const GROWTH: u64 = 16;

/// A limit on rows sorted by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    latest: bool,
    /// Maximum number of rows of the result.
    pub(super) rows: usize,
    skipped: usize,
}

/// Returns the limit of a plan that selects single lines sorted by their timestamp, otherwise
/// `None`.
pub(super) fn wanted(plan: &LogicalPlan) -> Result<Option<Wanted>> {
    let LogicalPlan::Limit(limit) = plan else {
        return Ok(None);
    };
    let (FetchType::Literal(Some(rows)), SkipType::Literal(skipped)) =
        (limit.get_fetch_type()?, limit.get_skip_type()?)
    else {
        return Ok(None);
    };
    // A subquery must see all lines, not only those of the small time range.
    let is_query = |expr: &Expr| {
        Ok(matches!(
            expr,
            Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
        ))
    };
    if plan.exists(|node| {
        node.expressions()
            .iter()
            .try_fold(false, |found, expr| Ok(found || expr.exists(is_query)?))
    })? {
        return Ok(None);
    }
    let mut below = limit.input.as_ref();
    let sort = loop {
        match below {
            LogicalPlan::Projection(it) => below = &it.input,
            LogicalPlan::Sort(it) => break it,
            _ => return Ok(None),
        }
    };
    let Some(first) = sort.expr.first() else {
        return Ok(None);
    };
    let by_time = column(&first.expr).is_some_and(|key| is_time(&sort.input, key.clone()));
    Ok(by_time.then_some(Wanted {
        latest: !first.asc,
        rows,
        skipped,
    }))
}

/// Whether a column is the timestamp of lines, in a plan where no row depends on other rows.
fn is_time(mut plan: &LogicalPlan, mut key: Column) -> bool {
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
                let Some(of) = it.expr.get(at).and_then(column) else {
                    return false;
                };
                key = of.clone();
                plan = &it.input;
            }
            LogicalPlan::Filter(it) => plan = &it.input,
            _ => return false,
        }
    }
}

/// Returns the column of an expression that is monotonic in it and distinguishes values a [`GRAIN`]
/// apart.
fn column(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(it) => Some(it),
        Expr::Alias(it) => column(&it.expr),
        Expr::Cast(it)
            if matches!(
                it.field.data_type(),
                DataType::Timestamp(..) | DataType::Int64
            ) =>
        {
            column(&it.expr)
        }
        Expr::ScalarFunction(it) if it.name() == "arrow_cast" => match it.args.as_slice() {
            [of, Expr::Literal(to, _)]
                if to
                    .try_as_str()
                    .flatten()
                    .is_some_and(|to| to.starts_with("Timestamp(")) =>
            {
                column(of)
            }
            _ => None,
        },
        _ => None,
    }
}

/// The sequence of time ranges over which a statement runs.
pub(super) struct Windows<'a> {
    parts: &'a Parts,
    whole: Span,
    wanted: Option<Wanted>,
    lines: u64,
}

impl<'a> Windows<'a> {
    pub(super) fn new(parts: &'a Parts, whole: Span, wanted: Option<Wanted>) -> Self {
        let lines = |it: Wanted| {
            (it.rows as u64 + it.skipped as u64)
                .saturating_mul(LINES_A_ROW)
                .max(LINES_MIN)
        };
        // Rounding to seconds is wrong for negative timestamps.
        let wanted = wanted.filter(|_| whole.0 >= 0);
        Self {
            parts,
            whole,
            wanted,
            lines: wanted.map_or(0, lines),
        }
    }

    /// Returns the next time range, and the limit that its result must reach unless it is the whole
    /// window.
    pub(super) fn next(&mut self) -> (Span, Option<Wanted>) {
        let Some(wanted) = self.wanted else {
            return (self.whole, None);
        };
        let lines = self.lines;
        self.lines = lines.saturating_mul(GROWTH);
        if lines.saturating_mul(2) >= self.parts.estimate(self.whole) {
            return (self.whole, None);
        }
        (self.holding(lines, wanted.latest), Some(wanted))
    }

    /// Returns the smallest range at one end of the window that holds about `lines` lines. Its
    /// inner bound lies between two seconds.
    fn holding(&self, lines: u64, latest: bool) -> Span {
        let (after, until) = self.whole;
        let window = |seconds: i64| {
            let cut = seconds.saturating_mul(GRAIN).saturating_sub(1);
            if latest {
                (cut.max(after), until)
            } else {
                (after, cut.min(until))
            }
        };
        let (mut low, mut high) = (after.div_euclid(GRAIN), until.div_euclid(GRAIN) + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let enough = self.parts.estimate(window(middle)) >= lines;
            *(if enough == latest {
                &mut low
            } else {
                &mut high
            }) = middle;
        }
        window(if latest { low } else { high })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::{
        Dialect::{self, BigQuery, ClickHouse},
        engine::functions,
        event::{Attributes, Event, Source},
        layout, sql,
    };

    const HOUR: Span = (3_600_000_000 - 1, 7_200_000_000 - 1);

    /// An hour with a line every half second.
    fn parts() -> Parts {
        let line = |n: i64| {
            Event::new(
                n.to_string(),
                HOUR.0 + 1 + n * GRAIN / 2,
                Source::Edge,
                String::new(),
                Attributes::default(),
            )
        };
        Parts::recent(layout::batch(&(0..7_200).map(line).collect::<Vec<_>>()).unwrap())
    }

    async fn wanted_by(dialect: Dialect, sql: &str) -> Option<Wanted> {
        let context = SessionContext::new();
        for function in functions::all() {
            context.register_udf(function.as_ref().clone());
        }
        context
            .register_table(TABLE, Arc::new(parts().table(HOUR).unwrap()))
            .unwrap();
        wanted(
            &context
                .state()
                .create_logical_plan(&sql::write(dialect, sql, 0).unwrap().sql)
                .await
                .unwrap(),
        )
        .unwrap()
    }

    #[tokio::test]
    async fn lines_by_their_time_are_told_from_all_else() {
        let (latest, earliest) = (
            Wanted {
                latest: true,
                rows: 10,
                skipped: 0,
            },
            Wanted {
                latest: false,
                rows: 5,
                skipped: 2,
            },
        );
        for (dialect, sql, expected) in [
            (
                ClickHouse,
                "select id from logs order by timestamp desc limit 10",
                Some(latest),
            ),
            (
                ClickHouse,
                "select id, log_attributes from logs where source = 'x' order by timestamp desc, id limit 10",
                Some(latest),
            ),
            (
                ClickHouse,
                "select toUnixTimestamp64Milli(timestamp) as ms from logs order by ms limit 5 offset 2",
                Some(earliest),
            ),
            (
                ClickHouse,
                "with l as (select timestamp as t from logs where id <> '') select t from l order by t desc limit 10",
                Some(latest),
            ),
            (
                BigQuery,
                "select cast(timestamp as datetime) as timestamp from edge_logs order by timestamp desc limit 10",
                Some(latest),
            ),
            (
                BigQuery,
                "select id from edge_logs cross join unnest(metadata) as m order by timestamp desc limit 10",
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
                "select id from logs where id in (select max(id) from logs) order by timestamp limit 10",
                None,
            ),
            (
                ClickHouse,
                "select id from (select id, timestamp from logs limit 5) order by timestamp limit 10",
                None,
            ),
            (
                ClickHouse,
                "select timestamp as t from logs union all select timestamp from logs order by t limit 10",
                None,
            ),
            (
                ClickHouse,
                "select arrayJoin(mapKeys(log_attributes)) as k from logs order by timestamp limit 10",
                None,
            ),
        ] {
            assert_eq!(wanted_by(dialect, sql).await, expected, "{sql}");
        }
    }

    #[test]
    fn windows_grow_at_the_end_that_is_asked_for_until_they_are_the_whole() {
        let parts = parts();
        let all = |wanted| {
            let mut windows = Windows::new(&parts, HOUR, wanted);
            std::iter::from_fn(|| Some(windows.next()))
                .take(3)
                .collect::<Vec<_>>()
        };
        let latest = Wanted {
            latest: true,
            rows: 11,
            skipped: 0,
        };
        let [(first, again), (whole, last), _] = all(Some(latest))[..] else {
            panic!("three")
        };
        // The range holds at least 512 lines and is rounded up to a second.
        assert_eq!(
            (first, again),
            ((HOUR.1 - 257 * GRAIN, HOUR.1), Some(latest))
        );
        assert_eq!((whole, last), (HOUR, None));
        let earliest = Wanted {
            latest: false,
            ..latest
        };
        assert_eq!(
            all(Some(earliest))[0],
            ((HOUR.0, HOUR.0 + 256 * GRAIN), Some(earliest))
        );
        let many = Wanted {
            rows: 100,
            skipped: 801,
            ..latest
        };
        assert_eq!(all(Some(many))[0], (HOUR, None), "half of all is no few");
        assert_eq!(all(None)[0], (HOUR, None));
    }
}
