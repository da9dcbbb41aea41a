//! Quantiles that are exact for small groups and have a bounded error of rank for large ones.

use std::{borrow::Cow, sync::Arc};

use datafusion::{
    arrow::{
        array::{Array as _, ArrayRef, AsArray as _, Float64Builder, ListBuilder, UInt64Builder},
        datatypes::{DataType, Field, FieldRef, Float64Type, UInt64Type},
    },
    common::{Result, ScalarValue, exec_err},
    logical_expr::{
        Accumulator, AggregateUDFImpl, GroupsAccumulator, Signature, Volatility,
        function::{AccumulatorArgs, StateFieldsArgs},
    },
};

use super::{
    grouped::{Aggregation, Grouped, GroupedRows},
    literal, reject_distinct,
};

/// Number of values up to which quantiles are exact, that of the reservoir of `ClickHouse`. Even,
/// so that halving a level preserves the total weight.
const LEVEL_MAX: usize = 8_192;

/// Whole numbers from zero up to this limit are counted instead of kept once a group is large: the
/// counts take as much memory as a full level.
const COUNTED_MAX: usize = LEVEL_MAX;

/// The definition of a quantile between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rank {
    /// Linear interpolation between the two neighbouring values.
    Between,
    /// The smallest value with at least the given share of values up to it.
    Above,
    /// The value at the share of the number of values, rounded down. All values are kept.
    Exact,
}

/// `name(value, level, …)`: the list of quantiles of the values that are not null.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Quantiles {
    name: &'static str,
    rank: Rank,
    signature: Signature,
}

impl Quantiles {
    pub(super) fn new(name: &'static str, rank: Rank) -> Self {
        Self {
            name,
            rank,
            signature: Signature::variadic_any(Volatility::Immutable),
        }
    }

    fn grouped(&self, args: &AccumulatorArgs<'_>) -> Result<Grouped<QuantileAggregation>> {
        reject_distinct(args)?;
        let mut levels = Vec::with_capacity(args.exprs.len());
        for at in 1..args.exprs.len() {
            match literal(args, at)? {
                ScalarValue::Float64(Some(level)) => levels.push(*level),
                _ => return exec_err!("the level of a quantile must be a number"),
            }
        }
        Ok(Grouped::new(QuantileAggregation {
            rank: self.rank,
            levels,
        }))
    }
}

impl AggregateUDFImpl for Quantiles {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::new_list(DataType::Float64, true))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let list = |name: &str, item| {
            let name = format!("{}[{name}]", args.name);
            Arc::new(Field::new(name, DataType::new_list(item, true), true))
        };
        Ok(vec![
            list("values", DataType::Float64),
            list("levels", DataType::UInt64),
        ])
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(self.grouped(&args)?))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(self.grouped(&args)?))
    }
}

#[derive(Debug)]
struct QuantileAggregation {
    rank: Rank,
    levels: Vec<f64>,
}

impl QuantileAggregation {
    fn level_max(&self) -> usize {
        match self.rank {
            Rank::Exact => usize::MAX,
            _ => LEVEL_MAX,
        }
    }
}

impl Aggregation for QuantileAggregation {
    type State = QuantileSketch;

    fn update(
        &self,
        states: &mut [QuantileSketch],
        values: &[ArrayRef],
        rows: GroupedRows<'_>,
    ) -> Result<usize> {
        let column = values[0].as_primitive::<Float64Type>();
        let values = column.values();
        let nulls = column.nulls();
        let level_max = self.level_max();
        let mut growth = 0;
        for (row, group) in rows.iter() {
            let value = values[row];
            if value.is_nan() || nulls.is_some_and(|nulls| nulls.is_null(row)) {
                continue;
            }
            growth += states[group].push(0, value, level_max);
        }
        Ok(growth)
    }

    fn merge(
        &self,
        states: &mut [QuantileSketch],
        serialized: &[ArrayRef],
        rows: GroupedRows<'_>,
    ) -> Result<usize> {
        let values = serialized[0].as_list::<i32>();
        let lengths = serialized[1].as_list::<i32>();
        let level_max = self.level_max();
        let mut growth = 0;
        for (row, group) in rows.iter() {
            let values = values.value(row);
            let mut rest = values.as_primitive::<Float64Type>().values().as_ref();
            let lengths = lengths.value(row);
            let lengths = lengths.as_primitive::<UInt64Type>();
            for (level, length) in lengths.values().iter().enumerate() {
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                let (own, others) = rest.split_at(length.min(rest.len()));
                for value in own {
                    growth += states[group].push(level, *value, level_max);
                }
                rest = others;
            }
        }
        Ok(growth)
    }

    fn results(&self, states: &[QuantileSketch]) -> Result<ArrayRef> {
        let mut lists = ListBuilder::new(Float64Builder::new());
        for state in states {
            let sorted = state.sorted();
            for level in &self.levels {
                lists
                    .values()
                    .append_option(sorted.quantile(*level, self.rank));
            }
            lists.append(true);
        }
        Ok(Arc::new(lists.finish()))
    }

    fn serialize(&self, states: &[QuantileSketch]) -> Result<Vec<ArrayRef>> {
        let mut values = ListBuilder::new(Float64Builder::new());
        let mut lengths = ListBuilder::new(UInt64Builder::new());
        for state in states {
            for level in state.all_levels() {
                values.values().append_slice(&level);
                lengths.values().append_value(level.len() as u64);
            }
            values.append(true);
            lengths.append(true);
        }
        Ok(vec![Arc::new(values.finish()), Arc::new(lengths.finish())])
    }

    fn size(&self, state: &QuantileSketch) -> usize {
        state.size()
    }
}

/// A summary of numbers. Level `n` has values that stand for `2^n` numbers each. A full level is
/// sorted, and every second value moves to the next level.
///
/// Halving level `n` changes a rank by at most `2^n`, and happens once for `LEVEL_MAX * 2^n`
/// numbers. Ranks are therefore wrong by at most the number of levels divided by [`LEVEL_MAX`]:
/// 0.2 % for 500 million numbers.
///
/// Small whole numbers, such as durations in milliseconds, are counted exactly as soon as the first
/// level is full, which also saves sorting them.
#[derive(Debug, Default)]
struct QuantileSketch {
    levels: Vec<Vec<f64>>,
    /// The number of occurrences of each whole number below [`COUNTED_MAX`]. Empty in small groups.
    counts: Vec<u64>,
    /// Whether the next halving keeps the odd positions, so that errors cancel.
    odd: bool,
}

/// Returns a whole number that can be counted as an index.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the number is compared with its index afterwards"
)]
fn counted_index(value: f64) -> Option<usize> {
    let index = value as usize;
    (index < COUNTED_MAX && (index as f64).to_bits() == value.to_bits()).then_some(index)
}

impl QuantileSketch {
    /// Adds a value of a level. Returns the growth in bytes.
    #[inline]
    fn push(&mut self, level: usize, value: f64, level_max: usize) -> usize {
        if !self.counts.is_empty()
            && let Some(index) = counted_index(value)
        {
            self.counts[index] += 1 << level;
            return 0;
        }
        if let Some(values) = self.levels.get_mut(level)
            && values.len() < values.capacity()
            && (values.len() < LEVEL_MAX || !self.counts.is_empty() && values.len() < level_max)
        {
            values.push(value);
            return 0;
        }
        self.push_to_full_level(level, value, level_max)
    }

    fn push_to_full_level(&mut self, level: usize, value: f64, level_max: usize) -> usize {
        let before = self.size();
        while self.levels.len() <= level {
            self.levels.push(Vec::new());
        }
        if self.counts.is_empty() && self.levels[level].len() >= LEVEL_MAX {
            self.start_counting();
            self.push(level, value, level_max);
            return self.size().saturating_sub(before);
        }
        if self.levels[level].len() >= level_max {
            self.halve(level, level_max);
        }
        self.levels[level].push(value);
        self.size().saturating_sub(before)
    }

    /// Moves the whole numbers of all levels to counts.
    fn start_counting(&mut self) {
        let mut counts = vec![0; COUNTED_MAX];
        for (level, values) in self.levels.iter_mut().enumerate() {
            values.retain(|value| match counted_index(*value) {
                Some(index) => {
                    counts[index] += 1 << level;
                    false
                }
                None => true,
            });
        }
        self.counts = counts;
    }

    /// Returns the values of each level, including the counted numbers: a number that occurs five
    /// times is in the levels zero and two.
    fn all_levels(&self) -> Vec<Cow<'_, [f64]>> {
        let mut levels: Vec<Cow<'_, [f64]>> = self.levels.iter().map(Cow::from).collect();
        for (value, count) in (0_u32..).zip(&self.counts) {
            let mut rest = *count;
            while rest > 0 {
                let level = rest.trailing_zeros() as usize;
                levels.resize_with(levels.len().max(level + 1), Cow::default);
                levels[level].to_mut().push(f64::from(value));
                rest &= rest - 1;
            }
        }
        levels
    }

    fn halve(&mut self, level: usize, level_max: usize) {
        let mut values = std::mem::take(&mut self.levels[level]);
        if level == 0 {
            values.sort_unstable_by(f64::total_cmp);
        } else {
            // Stable sorting is fast here: the values are a few sorted runs.
            values.sort_by(f64::total_cmp);
        }
        let first = usize::from(self.odd);
        self.odd = !self.odd;
        for value in values.iter().skip(first).step_by(2) {
            self.push(level + 1, *value, level_max);
        }
        values.clear();
        self.levels[level] = values;
    }

    fn size(&self) -> usize {
        let values: usize = self.levels.iter().map(Vec::capacity).sum();
        values * size_of::<f64>()
            + self.counts.capacity() * size_of::<u64>()
            + self.levels.capacity() * size_of::<Vec<f64>>()
    }

    fn sorted(&self) -> WeightedValues {
        let mut values = Vec::with_capacity(self.levels.iter().map(Vec::len).sum());
        for (level, level_values) in self.levels.iter().enumerate() {
            let weight = 1_u64 << level;
            values.extend(level_values.iter().map(|value| (*value, weight)));
        }
        for (value, count) in (0_u32..).zip(&self.counts) {
            if *count > 0 {
                values.push((f64::from(value), *count));
            }
        }
        values.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        let mut total = 0;
        for (_, weight) in &mut values {
            total += *weight;
            *weight = total;
        }
        WeightedValues { values, total }
    }
}

/// Sorted values, each with the number of values up to it.
struct WeightedValues {
    values: Vec<(f64, u64)>,
    total: u64,
}

impl WeightedValues {
    /// Returns a quantile, `None` without values.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "ranks are far below 2^52"
    )]
    fn quantile(&self, level: f64, rank: Rank) -> Option<f64> {
        let last = self.total.checked_sub(1)?;
        match rank {
            Rank::Exact => self.at((level * self.total as f64) as u64),
            Rank::Above => self.at(((level * self.total as f64).ceil() as u64).saturating_sub(1)),
            Rank::Between => {
                let position = level * last as f64;
                let lower = self.at(position as u64)?;
                let upper = self.at(position as u64 + 1)?;
                let share = position.fract();
                Some(lower * (1.0 - share) + upper * share)
            }
        }
    }

    /// Returns the value with a zero-based rank, at most the last one.
    fn at(&self, rank: u64) -> Option<f64> {
        let rank = rank.min(self.total.saturating_sub(1));
        let at = self.values.partition_point(|(_, up_to)| *up_to <= rank);
        self.values.get(at).map(|(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(values: impl IntoIterator<Item = f64>) -> QuantileSketch {
        let mut sketch = QuantileSketch::default();
        for value in values {
            sketch.push(0, value, LEVEL_MAX);
        }
        sketch
    }

    #[test]
    fn quantiles_of_small_groups_are_exact() {
        let ten = [9.0, 1.0, 4.0, 1.0, 10.0, 5.0, 7.0, 1.0, 6.0, 8.0];
        let sorted = sketch(ten).sorted();
        assert_eq!(sorted.quantile(0.5, Rank::Above), Some(5.0));
        assert_eq!(sorted.quantile(0.9, Rank::Above), Some(9.0));
        assert_eq!(sorted.quantile(0.0, Rank::Above), Some(1.0));
        assert_eq!(sorted.quantile(1.0, Rank::Above), Some(10.0));
        assert_eq!(sorted.quantile(0.5, Rank::Between), Some(5.5));
        assert_eq!(sorted.quantile(0.5, Rank::Exact), Some(6.0));
        assert_eq!(sorted.quantile(1.0, Rank::Exact), Some(10.0));
        assert_eq!(sketch([]).sorted().quantile(0.5, Rank::Between), None);
        let full = sketch((0..8_192).rev().map(f64::from)).sorted();
        assert_eq!(full.quantile(0.25, Rank::Between), Some(2_047.75));
    }

    #[test]
    fn quantiles_of_small_whole_numbers_are_exact_in_large_groups() {
        for parts in [1, 7] {
            let mut merged = QuantileSketch::default();
            let mut all = Vec::new();
            for part in 0..parts {
                let numbers: Vec<f64> = (0..40_000_u32)
                    .map(|n| f64::from((n + part).wrapping_mul(7_919) % 8_000))
                    .collect();
                all.extend_from_slice(&numbers);
                for (level, values) in sketch(numbers).all_levels().iter().enumerate() {
                    for value in values.iter() {
                        merged.push(level, *value, LEVEL_MAX);
                    }
                }
            }
            all.sort_by(f64::total_cmp);
            let sorted = merged.sorted();
            assert_eq!(sorted.total, all.len() as u64);
            for (rank, value) in all.iter().enumerate().step_by(997) {
                assert_eq!(sorted.at(rank as u64), Some(*value), "{parts} {rank}");
            }
        }
        // Other numbers beside them keep their bound.
        let mixed = (0..100_000_u32).map(|n| match n % 10 {
            0 => -f64::from(n) - 0.5,
            1 => f64::from(n) + 10_000.0,
            _ => f64::from(n % 5_000),
        });
        let sorted = sketch(mixed).sorted();
        assert_eq!(sorted.total, 100_000);
        let median = sorted.quantile(0.5, Rank::Above).unwrap();
        assert!((2_490.0..=2_510.0).contains(&median), "{median}");
    }

    #[test]
    fn ranks_in_large_groups_are_within_a_percent_in_any_order() {
        let count = 300_000_u64;
        for step in [1, 7_919, 299_999, 100_003] {
            let mut merged = QuantileSketch::default();
            for part in 0..3 {
                let own = (part * 100_000..(part + 1) * 100_000)
                    .map(|n| f64::from(u32::try_from(n * step % count).unwrap()));
                for (level, values) in sketch(own).all_levels().iter().enumerate() {
                    for value in values.iter() {
                        merged.push(level, *value, LEVEL_MAX);
                    }
                }
            }
            let sorted = merged.sorted();
            assert_eq!(sorted.total, count, "the weight is preserved");
            for percent in 0..=100_u32 {
                let level = f64::from(percent) / 100.0;
                let found = sorted.quantile(level, Rank::Above).unwrap() / 300_000.0;
                assert!((found - level).abs() < 0.002, "{step} {level} {found}");
            }
        }
    }
}
