//! Accumulators with one state per group, for queries with and without `GROUP BY`.

use std::fmt;

use datafusion::{
    arrow::array::{Array, ArrayRef, BooleanArray},
    common::{Result, ScalarValue},
    logical_expr::{Accumulator, EmitTo, GroupsAccumulator},
};

/// An aggregation over states, one for each group.
pub(super) trait Aggregation: fmt::Debug + Send + Sync + 'static {
    /// The state of one group.
    type State: fmt::Debug + Default + Send + Sync + 'static;

    /// Adds values to the states of their groups. Returns the growth of the states in bytes.
    fn update(
        &self,
        states: &mut [Self::State],
        values: &[ArrayRef],
        rows: GroupedRows<'_>,
    ) -> Result<usize>;

    /// Adds serialized states to the states of their groups. Returns their growth in bytes.
    fn merge(
        &self,
        states: &mut [Self::State],
        serialized: &[ArrayRef],
        rows: GroupedRows<'_>,
    ) -> Result<usize>;

    /// Returns the results of groups.
    fn results(&self, states: &[Self::State]) -> Result<ArrayRef>;

    /// Serializes the states of groups.
    fn serialize(&self, states: &[Self::State]) -> Result<Vec<ArrayRef>>;

    /// Returns the size of a state in bytes, without the state itself.
    fn size(&self, state: &Self::State) -> usize;
}

/// The rows of a batch with their groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupedRows<'a> {
    groups: &'a [usize],
    filter: Option<&'a BooleanArray>,
}

impl<'a> GroupedRows<'a> {
    /// Returns the selected rows as pairs of row and group.
    pub(super) fn iter(self) -> impl Iterator<Item = (usize, usize)> + 'a {
        let filter = self.filter;
        let selected =
            move |row: usize| filter.is_none_or(|filter| !filter.is_null(row) && filter.value(row));
        self.groups
            .iter()
            .copied()
            .enumerate()
            .filter(move |(row, _)| selected(*row))
    }
}

/// The accumulator of an aggregation. Without `GROUP BY` it has a single group.
#[derive(Debug)]
pub(super) struct Grouped<A: Aggregation> {
    aggregation: A,
    states: Vec<A::State>,
    /// Size of the states in bytes, without the states themselves.
    bytes: usize,
    /// Groups of the rows of a batch without `GROUP BY`, all zero.
    single: Vec<usize>,
}

impl<A: Aggregation> Grouped<A> {
    pub(super) fn new(aggregation: A) -> Self {
        Self {
            aggregation,
            states: Vec::new(),
            bytes: 0,
            single: Vec::new(),
        }
    }

    fn add_groups(&mut self, total: usize) {
        if self.states.len() < total {
            self.states.resize_with(total, A::State::default);
        }
    }

    /// Removes states that were emitted.
    fn remove(&mut self, emit_to: EmitTo) -> Vec<A::State> {
        let emitted = emit_to.take_needed(&mut self.states);
        for state in &emitted {
            self.bytes = self.bytes.saturating_sub(self.aggregation.size(state));
        }
        emitted
    }

    fn total_size(&self) -> usize {
        // Results are built while the states exist, and no budget covers results.
        size_of::<Self>() + self.states.capacity() * size_of::<A::State>() + 2 * self.bytes
    }
}

impl<A: Aggregation> GroupsAccumulator for Grouped<A> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        self.add_groups(total);
        let rows = GroupedRows { groups, filter };
        self.bytes += self.aggregation.update(&mut self.states, values, rows)?;
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.add_groups(total);
        let rows = GroupedRows {
            groups,
            filter: None,
        };
        self.bytes += self.aggregation.merge(&mut self.states, states, rows)?;
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let states = self.remove(emit_to);
        self.aggregation.results(&states)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let states = self.remove(emit_to);
        self.aggregation.serialize(&states)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let count = values.first().map_or(0, Array::len);
        let groups: Vec<usize> = (0..count).collect();
        let mut states = Vec::new();
        states.resize_with(count, A::State::default);
        let rows = GroupedRows {
            groups: &groups,
            filter,
        };
        self.aggregation.update(&mut states, values, rows)?;
        self.aggregation.serialize(&states)
    }

    fn size(&self) -> usize {
        self.total_size()
    }
}

impl<A: Aggregation> Accumulator for Grouped<A> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, Array::len);
        self.add_groups(1);
        self.single.resize(rows.max(self.single.len()), 0);
        let rows = GroupedRows {
            groups: &self.single[..rows],
            filter: None,
        };
        self.bytes += self.aggregation.update(&mut self.states, values, rows)?;
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let rows = states.first().map_or(0, Array::len);
        self.add_groups(1);
        self.single.resize(rows.max(self.single.len()), 0);
        let rows = GroupedRows {
            groups: &self.single[..rows],
            filter: None,
        };
        self.bytes += self.aggregation.merge(&mut self.states, states, rows)?;
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.add_groups(1);
        ScalarValue::try_from_array(&self.aggregation.results(&self.states)?, 0)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.add_groups(1);
        let mut state = Vec::new();
        for array in self.aggregation.serialize(&self.states)? {
            state.push(ScalarValue::try_from_array(&array, 0)?);
        }
        Ok(state)
    }

    fn size(&self) -> usize {
        self.total_size()
    }
}
