//! Lists of the values of a group: all, the distinct, the most frequent or the first in an order.

use std::{fmt, sync::Arc};

use datafusion::{
    arrow::{
        array::{
            Array, ArrayRef, AsArray as _, BinaryBuilder, ListArray, ListBuilder, UInt64Builder,
        },
        buffer::OffsetBuffer,
        compute::SortOptions,
        datatypes::{DataType, Field, FieldRef, UInt64Type},
        row::{RowConverter, Rows, SortField},
    },
    common::{DataFusionError, Result, ScalarValue, exec_err},
    logical_expr::{
        Accumulator, AggregateUDFImpl, GroupsAccumulator, Signature, Volatility,
        function::{AccumulatorArgs, StateFieldsArgs},
    },
};
use hashbrown::HashTable;

use super::{
    grouped::{Aggregation, Grouped, GroupedRows},
    literal, reject_distinct,
};

/// Rows that are converted at once, so that the copies of long texts stay small.
const CHUNK_ROWS: usize = 256;
/// Growth of one batch in bytes at which the aggregation fails before the engine checks the budget.
const GROWTH_MAX: usize = 64 * 1024 * 1024;

/// The values of a group that are collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Selection {
    /// The first values in any order.
    All,
    /// The first distinct values in any order.
    Distinct,
    /// The most frequent values, the most frequent one first.
    Top,
    /// The first values in the order of keys.
    Sorted,
}

/// `name(value, limit, skip_nulls)`, for [`Selection::Sorted`] followed by a text with a character
/// per key, and the keys. A limit of 0 is none. The characters are `a` for ascending and `d` for
/// descending order, in upper case if nulls are last.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Collect {
    name: &'static str,
    selection: Selection,
    signature: Signature,
}

impl Collect {
    pub(super) fn new(name: &'static str, selection: Selection) -> Self {
        Self {
            name,
            selection,
            signature: Signature::variadic_any(Volatility::Immutable),
        }
    }

    fn grouped(&self, args: &AccumulatorArgs<'_>) -> Result<Grouped<CollectAggregation>> {
        reject_distinct(args)?;
        let ScalarValue::Int64(Some(limit)) = literal(args, 1)? else {
            return exec_err!("the number of collected values must be a literal");
        };
        let ScalarValue::Boolean(Some(skip_nulls)) = literal(args, 2)? else {
            return exec_err!("the treatment of nulls must be a literal");
        };
        let limit = match usize::try_from(*limit) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(limit) => limit,
        };
        let item = args.expr_fields[0].data_type().clone();
        let mut keys = Vec::new();
        if self.selection == Selection::Sorted {
            let order = literal(args, 3)?.try_as_str().flatten().unwrap_or_default();
            for (character, field) in order.chars().zip(&args.expr_fields[4..]) {
                let options = SortOptions {
                    descending: character.eq_ignore_ascii_case(&'d'),
                    nulls_first: character.is_ascii_lowercase(),
                };
                keys.push(SortField::new_with_options(
                    field.data_type().clone(),
                    options,
                ));
            }
        }
        Ok(Grouped::new(CollectAggregation {
            selection: self.selection,
            limit,
            skip_nulls: *skip_nulls,
            values: RowConverter::new(vec![SortField::new(item.clone())])?,
            keys: RowConverter::new(keys)?,
            item,
        }))
    }
}

impl AggregateUDFImpl for Collect {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        let Some(item) = args.first() else {
            return exec_err!("{} takes a value", self.name);
        };
        Ok(DataType::new_list(item.clone(), true))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let list = |name: &str, item| {
            let name = format!("{}[{name}]", args.name);
            Arc::new(Field::new(name, DataType::new_list(item, true), true))
        };
        let values = list("values", args.input_fields[0].data_type().clone());
        Ok(match self.selection {
            Selection::All | Selection::Distinct => vec![values],
            Selection::Top => vec![values, list("counts", DataType::UInt64)],
            Selection::Sorted => vec![values, list("keys", DataType::Binary)],
        })
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

struct CollectAggregation {
    selection: Selection,
    limit: usize,
    skip_nulls: bool,
    item: DataType,
    values: RowConverter,
    keys: RowConverter,
}

impl fmt::Debug for CollectAggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectAggregation")
            .field("selection", &self.selection)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The rest of a value beside its bytes.
#[derive(Clone, Copy)]
enum Companion<'a> {
    Nothing,
    Count(u64),
    Key(&'a [u8]),
}

impl CollectAggregation {
    fn is_full(&self, state: &Collected) -> bool {
        let limited = matches!(self.selection, Selection::All | Selection::Distinct);
        limited && state.entries.len() >= self.limit
    }

    /// Adds a value. Returns the growth in bytes.
    fn push(&self, state: &mut Collected, value: &[u8], companion: Companion<'_>) -> Result<usize> {
        let before = state.size();
        match (self.selection, companion) {
            (Selection::All, _) => state.push(value, &[], 0)?,
            (Selection::Distinct, _) => state.push_distinct(value, 0)?,
            (Selection::Top, Companion::Count(count)) => state.push_distinct(value, count)?,
            (Selection::Top, _) => state.push_distinct(value, 1)?,
            (Selection::Sorted, Companion::Key(key)) => {
                state.push(value, key, 0)?;
                if state.entries.len() > self.limit.saturating_mul(2).saturating_add(16) {
                    state.keep_first(self.limit);
                }
            }
            (Selection::Sorted, _) => return exec_err!("a sort key is missing"),
        }
        Ok(state.size().saturating_sub(before))
    }

    /// Returns the entries of a state that belong to its result.
    fn selected<'a>(&self, state: &'a Collected) -> Vec<&'a Entry> {
        let mut entries: Vec<&Entry> = state.entries.iter().collect();
        match self.selection {
            Selection::All | Selection::Distinct => {}
            Selection::Top => entries.sort_by_key(|entry| std::cmp::Reverse(entry.count)),
            Selection::Sorted => entries.sort_by_key(|entry| state.key(entry)),
        }
        entries.truncate(self.limit);
        entries
    }

    /// Returns a list per state with the values of entries.
    fn lists(&self, states: &[Collected], entries: &[Vec<&Entry>]) -> Result<ArrayRef> {
        let parser = self.values.parser();
        let rows = states
            .iter()
            .zip(entries)
            .flat_map(|(state, entries)| entries.iter().map(|entry| state.value(entry)))
            .map(|bytes| parser.parse(bytes));
        let Some(values) = self.values.convert_rows(rows)?.pop() else {
            return exec_err!("a column of values is missing");
        };
        let lengths = entries.iter().map(Vec::len);
        Ok(Arc::new(ListArray::try_new(
            Arc::new(Field::new_list_field(self.item.clone(), true)),
            OffsetBuffer::from_lengths(lengths),
            values,
            None,
        )?))
    }
}

impl Aggregation for CollectAggregation {
    type State = Collected;

    fn update(
        &self,
        states: &mut [Collected],
        values: &[ArrayRef],
        rows: GroupedRows<'_>,
    ) -> Result<usize> {
        let column = &values[0];
        let nulls = column.logical_nulls().filter(|_| self.skip_nulls);
        let mut chunk = Chunk::default();
        let mut growth = 0;
        for (row, group) in rows.iter() {
            let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            if is_null || self.is_full(&states[group]) {
                continue;
            }
            let at = chunk.load(self, values, row)?;
            let companion = match &chunk.keys {
                Some(keys) => Companion::Key(keys.row(at).data()),
                None => Companion::Nothing,
            };
            let Some(rows) = &chunk.values else {
                continue;
            };
            growth += self.push(&mut states[group], rows.row(at).data(), companion)?;
            if growth > GROWTH_MAX {
                return Err(too_large());
            }
        }
        Ok(growth)
    }

    fn merge(
        &self,
        states: &mut [Collected],
        serialized: &[ArrayRef],
        rows: GroupedRows<'_>,
    ) -> Result<usize> {
        let lists = serialized[0].as_list::<i32>();
        let mut growth = 0;
        for (row, group) in rows.iter() {
            let values = lists.value(row);
            let companions = serialized
                .get(1)
                .map(|companions| companions.as_list::<i32>().value(row));
            for start in (0..values.len()).step_by(CHUNK_ROWS) {
                let length = CHUNK_ROWS.min(values.len() - start);
                let chunk = self
                    .values
                    .convert_columns(&[values.slice(start, length)])?;
                for at in 0..length {
                    if self.is_full(&states[group]) {
                        break;
                    }
                    let companion = match (&companions, self.selection) {
                        (Some(counts), Selection::Top) => {
                            Companion::Count(counts.as_primitive::<UInt64Type>().value(start + at))
                        }
                        (Some(keys), _) => {
                            Companion::Key(keys.as_binary::<i32>().value(start + at))
                        }
                        (None, _) => Companion::Nothing,
                    };
                    growth += self.push(&mut states[group], chunk.row(at).data(), companion)?;
                }
                if growth > GROWTH_MAX * 2 {
                    return Err(too_large());
                }
            }
        }
        Ok(growth)
    }

    fn results(&self, states: &[Collected]) -> Result<ArrayRef> {
        let entries: Vec<_> = states.iter().map(|state| self.selected(state)).collect();
        self.lists(states, &entries)
    }

    fn serialize(&self, states: &[Collected]) -> Result<Vec<ArrayRef>> {
        let all: Vec<Vec<&Entry>> = states
            .iter()
            .map(|state| match self.selection {
                Selection::Sorted => self.selected(state),
                _ => state.entries.iter().collect(),
            })
            .collect();
        let mut columns = vec![self.lists(states, &all)?];
        match self.selection {
            Selection::All | Selection::Distinct => {}
            Selection::Top => {
                let mut counts = ListBuilder::new(UInt64Builder::new());
                for entries in &all {
                    for entry in entries {
                        counts.values().append_value(entry.count);
                    }
                    counts.append(true);
                }
                columns.push(Arc::new(counts.finish()));
            }
            Selection::Sorted => {
                let mut keys = ListBuilder::new(BinaryBuilder::new());
                for (state, entries) in states.iter().zip(&all) {
                    for entry in entries {
                        keys.values().append_value(state.key(entry));
                    }
                    keys.append(true);
                }
                columns.push(Arc::new(keys.finish()));
            }
        }
        Ok(columns)
    }

    fn size(&self, state: &Collected) -> usize {
        state.size()
    }
}

fn too_large() -> DataFusionError {
    DataFusionError::ResourcesExhausted("collected values of one batch are too large".into())
}

/// A part of a batch in the row format, converted when one of its rows is needed.
#[derive(Default)]
struct Chunk {
    start: usize,
    values: Option<Rows>,
    keys: Option<Rows>,
}

impl Chunk {
    /// Converts the chunk of a row. Returns the position of the row in it.
    fn load(
        &mut self,
        aggregation: &CollectAggregation,
        columns: &[ArrayRef],
        row: usize,
    ) -> Result<usize> {
        let start = row - row % CHUNK_ROWS;
        if self.values.is_none() || self.start != start {
            let length = CHUNK_ROWS.min(columns[0].len() - start);
            let slices: Vec<ArrayRef> = columns
                .iter()
                .map(|column| column.slice(start, length))
                .collect();
            self.start = start;
            self.values = Some(aggregation.values.convert_columns(&slices[..1])?);
            if aggregation.selection == Selection::Sorted {
                self.keys = Some(aggregation.keys.convert_columns(&slices[4..])?);
            }
        }
        Ok(row - start)
    }
}

/// The collected values of one group.
#[derive(Debug, Default)]
struct Collected {
    /// Values and keys in the row format, one after the other.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Positions of distinct values in `entries`.
    distinct: HashTable<u32>,
}

/// The position of a value in the bytes of its group.
#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    /// End of the value and start of the key.
    middle: u32,
    end: u32,
    count: u64,
}

impl Collected {
    fn value(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.start as usize..entry.middle as usize]
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.middle as usize..entry.end as usize]
    }

    fn size(&self) -> usize {
        self.bytes.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.distinct.allocation_size()
    }

    fn push(&mut self, value: &[u8], key: &[u8], count: u64) -> Result<()> {
        let position = |at: usize| u32::try_from(at).map_err(|_| too_large());
        let start = position(self.bytes.len())?;
        let middle = position(self.bytes.len() + value.len())?;
        let end = position(self.bytes.len() + value.len() + key.len())?;
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(key);
        self.entries.push(Entry {
            start,
            middle,
            end,
            count,
        });
        Ok(())
    }

    /// Adds a value or, if the group has it, its number of occurrences.
    fn push_distinct(&mut self, value: &[u8], count: u64) -> Result<()> {
        let known = self.distinct.find(hash(value), |at| {
            self.value(&self.entries[*at as usize]) == value
        });
        if let Some(at) = known {
            self.entries[*at as usize].count += count;
            return Ok(());
        }
        let at = u32::try_from(self.entries.len()).map_err(|_| too_large())?;
        self.push(value, &[], count)?;
        let Self {
            bytes,
            entries,
            distinct,
        } = self;
        distinct.insert_unique(hash(value), at, |at| {
            let entry = &entries[*at as usize];
            hash(&bytes[entry.start as usize..entry.middle as usize])
        });
        Ok(())
    }

    /// Removes all but the first entries in the order of their keys.
    fn keep_first(&mut self, limit: usize) {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| self.key(entry));
        entries.truncate(limit);
        // The capacity stays, so that the growth that was charged before is not charged again.
        let mut kept = Self {
            bytes: Vec::with_capacity(self.bytes.capacity()),
            entries: Vec::with_capacity(self.entries.capacity()),
            distinct: HashTable::new(),
        };
        for entry in entries {
            // Fewer bytes than before have positions that fit.
            let _ = kept.push(self.value(entry), self.key(entry), entry.count);
        }
        *self = kept;
    }
}

/// Hashes a value with the seed of the process, so that clients cannot construct collisions.
fn hash(value: &[u8]) -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    static SEED: std::sync::LazyLock<RandomState> = std::sync::LazyLock::new(RandomState::new);
    SEED.hash_one(value)
}
