//! Attributes of lines: typed columns and the map of the others.

use std::sync::Arc;

use datafusion::{
    arrow::{
        array::{
            Array as _, ArrayRef, AsArray as _, BooleanArray, MapArray, MapBuilder, StringArray,
            StringBuilder, UInt32Array,
        },
        compute::take,
        datatypes::Int64Type,
    },
    common::Result,
    logical_expr::ColumnarValue,
};
use serde_json::{Map, Value as Json};

use super::{OUTPUT_BYTES_MAX, OutputBudget, array, literal};
use crate::{
    fields,
    layout::{self, Kind},
};

/// `attribute(map, key)`: the value of a key in the attribute map.
pub(super) fn attribute(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let map = array(args, 0, rows)?;
    let key = literal(args, 1)?;
    let map = map.as_map();
    let keys = map.keys().as_string::<i32>();
    let positions: UInt32Array = map
        .value_offsets()
        .windows(2)
        .map(|bounds| position_of(keys, key, bounds[0], bounds[1]))
        .collect();
    Ok(take(map.values(), &positions, None)?)
}

/// Returns the position of a key among the map entries from `start` to `end`.
fn position_of(keys: &StringArray, key: &str, start: i32, end: i32) -> Option<u32> {
    for position in u32::try_from(start).ok()?..u32::try_from(end).ok()? {
        if keys.value(usize::try_from(position).ok()?) == key {
            return Some(position);
        }
    }
    None
}

/// `record_exists(map, prefix)`: whether a key of the attribute map is below a prefix.
pub(super) fn record_exists(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let map = array(args, 0, rows)?;
    let prefix = literal(args, 1)?;
    let map = map.as_map();
    let keys = map.keys().as_string::<i32>();
    let is_below = |key: &str| {
        let rest = key.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    let mut exists = Vec::with_capacity(rows);
    for bounds in map.value_offsets().windows(2) {
        let mut positions = bounds[0]..bounds[1];
        exists.push(positions.any(|at| is_below(keys.value(usize::try_from(at).unwrap_or(0)))));
    }
    Ok(Arc::new(BooleanArray::from(exists)))
}

/// Reads all attributes of a line from the attribute columns and the map.
struct AttributeReader {
    columns: Vec<(&'static str, ArrayRef)>,
    map: MapArray,
}

impl AttributeReader {
    fn new(args: &[ColumnarValue], first: usize, rows: usize) -> Result<Self> {
        let mut columns = Vec::with_capacity(layout::COLUMNS.len());
        for (at, (key, _)) in layout::COLUMNS.iter().enumerate() {
            columns.push((*key, array(args, first + at, rows)?));
        }
        let map = array(args, first + layout::COLUMNS.len(), rows)?;
        Ok(Self {
            columns,
            map: map.as_map().clone(),
        })
    }

    /// Returns the attributes of a row, sorted by key.
    fn attributes(&self, row: usize) -> Vec<(String, String)> {
        let mut attributes = Vec::new();
        for ((key, column), (_, kind)) in self.columns.iter().zip(layout::COLUMNS) {
            if column.is_null(row) {
                continue;
            }
            let value = match kind {
                Kind::Text => column.as_string_view().value(row).to_owned(),
                Kind::Integer => column.as_primitive::<Int64Type>().value(row).to_string(),
            };
            attributes.push(((*key).to_owned(), value));
        }
        let entries = self.map.value(row);
        let keys = entries.column(0).as_string::<i32>();
        let values = entries.column(1).as_string::<i32>();
        for at in 0..entries.len() {
            attributes.push((keys.value(at).to_owned(), values.value(at).to_owned()));
        }
        attributes.sort();
        attributes
    }
}

/// `all_attributes(columns…, map)`: all attributes as one map.
pub(super) fn all_attributes(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let lines = AttributeReader::new(args, 0, rows)?;
    let mut budget = OutputBudget(4 * OUTPUT_BYTES_MAX);
    let mut builder = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for row in 0..rows {
        for (key, value) in lines.attributes(row) {
            budget.take(key.len() + value.len())?;
            builder.keys().append_value(key);
            builder.values().append_value(value);
        }
        builder.append(true)?;
    }
    Ok(Arc::new(builder.finish()))
}

/// `nested_attributes(prefix, columns…, map)`: the attributes below a prefix as nested objects,
/// each in a list of one.
pub(super) fn nested_attributes(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let prefix = literal(args, 0)?;
    let lines = AttributeReader::new(args, 1, rows)?;
    let mut builder = StringBuilder::new();
    let mut budget = OutputBudget(4 * OUTPUT_BYTES_MAX);
    for row in 0..rows {
        let mut root = Map::new();
        for (key, value) in lines.attributes(row) {
            let below = if prefix.is_empty() {
                Some(key.as_str())
            } else {
                key.strip_prefix(prefix).and_then(|it| it.strip_prefix('.'))
            };
            if let Some(below) = below {
                insert(&mut root, below, typed_json(&key, value));
            }
        }
        let text = if root.is_empty() {
            "[]".to_owned()
        } else {
            Json::Array(vec![Json::Object(root)]).to_string()
        };
        budget.take(text.len())?;
        builder.append_value(text);
    }
    Ok(Arc::new(builder.finish()))
}

/// Inserts a dotted key. If a prefix of it already has a scalar value, the remaining key is stored
/// undivided.
fn insert(object: &mut Map<String, Json>, key: &str, value: Json) {
    if let Some((first, rest)) = key.split_once('.') {
        let child = object
            .entry(first)
            .or_insert_with(|| Json::Array(vec![Json::Object(Map::new())]));
        if let Some(child) = child.get_mut(0).and_then(Json::as_object_mut) {
            return insert(child, rest, value);
        }
    }
    object.insert(key.to_owned(), value);
}

fn typed_json(key: &str, value: String) -> Json {
    let typed = match fields::kind(key) {
        fields::Kind::Text => None,
        fields::Kind::Integer => value.parse::<i64>().ok().map(Json::from),
        fields::Kind::Float => value.parse::<f64>().ok().map(Json::from),
        fields::Kind::Boolean => value.parse::<bool>().ok().map(Json::from),
    };
    typed.unwrap_or(Json::String(value))
}
