//! The Arrow and Parquet layout of log lines, shared by all sources and both dialects.
//!
//! Frequently queried attributes have a typed column, named by the dotted key with the prefix
//! [`HOT`]. All other attributes are entries of a text map. A column that a source does not use
//! costs a few bytes in each file.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::{
    array::{
        ArrayBuilder, ArrayRef, Int64Builder, MapBuilder, RecordBatch, StringBuilder,
        StringViewBuilder, TimestampMicrosecondArray,
    },
    datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit},
    error::ArrowError,
};
use hashbrown::HashMap;

use crate::event::{Event, Key, Value};

/// Prefix of attribute columns, which separates the attribute column `@timestamp` from `timestamp`.
pub const HOT: char = '@';

/// The type of an attribute column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any value, as text.
    Text,
    /// Whole numbers. Other values of the attribute are stored in the map.
    Integer,
}

/// Attributes with a column of their own. New columns are appended; older files read as null there.
pub const COLUMNS: &[(&str, Kind)] = &[
    ("identifier", Kind::Text),
    ("project", Kind::Text),
    ("host", Kind::Text),
    ("level", Kind::Text),
    ("request.method", Kind::Text),
    ("request.path", Kind::Text),
    ("request.search", Kind::Text),
    ("request.url", Kind::Text),
    ("request.host", Kind::Text),
    ("request.pathname", Kind::Text),
    ("request.headers.user_agent", Kind::Text),
    ("request.headers.referer", Kind::Text),
    ("request.headers.x_client_info", Kind::Text),
    ("request.headers.x_real_ip", Kind::Text),
    ("request.headers.cf_connecting_ip", Kind::Text),
    ("request.cf.country", Kind::Text),
    ("response.status_code", Kind::Integer),
    ("response.origin_time", Kind::Integer),
    ("response.headers.cf_cache_status", Kind::Text),
    ("response.headers.content_type", Kind::Text),
    ("parsed.error_severity", Kind::Text),
    ("parsed.user_name", Kind::Text),
    ("parsed.database_name", Kind::Text),
    ("parsed.application_name", Kind::Text),
    ("parsed.backend_type", Kind::Text),
    ("parsed.command_tag", Kind::Text),
    ("parsed.sql_state_code", Kind::Text),
    ("parsed.query", Kind::Text),
    ("parsed.detail", Kind::Text),
    ("parsed.hint", Kind::Text),
    ("parsed.session_id", Kind::Text),
    ("parsed.process_id", Kind::Integer),
    ("status", Kind::Integer),
    ("path", Kind::Text),
    ("method", Kind::Text),
    ("msg", Kind::Text),
    ("error", Kind::Text),
    ("component", Kind::Text),
    ("duration", Kind::Integer),
    ("function_id", Kind::Text),
    ("execution_id", Kind::Text),
    ("deployment_id", Kind::Text),
    ("version", Kind::Text),
    ("event_type", Kind::Text),
    ("execution_time_ms", Kind::Integer),
    ("tenantId", Kind::Text),
    ("req.method", Kind::Text),
    ("req.url", Kind::Text),
    ("res.statusCode", Kind::Integer),
    ("responseTime", Kind::Integer),
    ("external_id", Kind::Text),
];

/// Returns the column name and type of a dotted key, if it has a column.
pub fn column(key: &str) -> Option<(String, Kind)> {
    let (key, kind) = COLUMNS[column_index(key)?];
    Some((format!("{HOT}{key}"), kind))
}

/// Returns the index of a dotted key in [`COLUMNS`].
fn column_index(key: &str) -> Option<usize> {
    static INDICES: LazyLock<HashMap<&str, usize>> = LazyLock::new(|| {
        let keys = COLUMNS.iter().map(|(key, _)| *key);
        keys.zip(0..).collect()
    });
    INDICES.get(key).copied()
}

/// Converts a key to a static one if it has a column, which avoids an allocation.
pub fn static_key(key: &str) -> Key {
    match column_index(key) {
        Some(at) => COLUMNS[at].0.into(),
        None => key.to_owned().into(),
    }
}

/// The schema of a batch. The map `attributes` holds the attributes without a column.
pub fn schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(build_schema);
    Arc::clone(&SCHEMA)
}

fn build_schema() -> SchemaRef {
    let timestamp = DataType::Timestamp(TimeUnit::Microsecond, None);
    let mut fields = vec![
        Field::new("id", DataType::Utf8View, false),
        Field::new("timestamp", timestamp, false),
        Field::new("source", DataType::Utf8View, false),
        Field::new("severity_text", DataType::Utf8View, false),
        Field::new("event_message", DataType::Utf8View, false),
    ];
    for (key, kind) in COLUMNS {
        let data_type = match kind {
            Kind::Text => DataType::Utf8View,
            Kind::Integer => DataType::Int64,
        };
        fields.push(Field::new(format!("{HOT}{key}"), data_type, true));
    }
    fields.push(Field::new_map(
        "attributes",
        "entries",
        Field::new("keys", DataType::Utf8, false),
        Field::new("values", DataType::Utf8, true),
        false,
        false,
    ));
    Arc::new(Schema::new(fields))
}

/// Converts lines to a batch with the columns of [`schema`], in the given order.
pub fn batch<'a>(
    events: impl IntoIterator<Item = &'a Event> + Clone,
) -> Result<RecordBatch, ArrowError> {
    let lines = || events.clone().into_iter();
    let timestamps = lines().map(|event| event.timestamp);
    let mut columns = vec![
        text_column(lines().map(|event| event.id.as_str())),
        Arc::new(TimestampMicrosecondArray::from_iter_values(timestamps)),
        text_column(lines().map(Event::source_name)),
        text_column(lines().map(|event| event.severity.as_str())),
        text_column(lines().map(|event| event.message.as_str())),
    ];
    let (attributes, rest) = attribute_columns(events.into_iter())?;
    columns.extend(attributes);
    columns.push(rest);
    RecordBatch::try_new(schema(), columns)
}

fn text_column<'a>(texts: impl Iterator<Item = &'a str>) -> ArrayRef {
    let mut builder = StringViewBuilder::new();
    for text in texts {
        builder.append_value(text);
    }
    Arc::new(builder.finish())
}

/// Returns the attribute columns and the map of the remaining attributes.
fn attribute_columns<'a>(
    events: impl Iterator<Item = &'a Event>,
) -> Result<(Vec<ArrayRef>, ArrayRef), ArrowError> {
    let mut columns: Vec<_> = COLUMNS
        .iter()
        .map(|(_, kind)| AttributeColumn::new(*kind))
        .collect();
    let mut rest = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for event in events {
        let row = rest.len();
        for (key, value) in event.attributes.iter() {
            let has_column = match column_index(key) {
                Some(at) => columns[at].put(row, value),
                None => false,
            };
            if !has_column {
                rest.keys().append_value(key);
                rest.values().append_value(value.to_string());
            }
        }
        rest.append(true)?;
    }
    let rows = rest.len();
    let mut arrays = Vec::with_capacity(columns.len());
    for column in columns {
        arrays.push(column.finish(rows));
    }
    Ok((arrays, Arc::new(rest.finish())))
}

/// A builder for one attribute column. Missing rows are filled with nulls on the next append.
enum AttributeColumn {
    Texts(StringViewBuilder),
    Integers(Int64Builder),
}

impl AttributeColumn {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Text => Self::Texts(StringViewBuilder::new()),
            Kind::Integer => Self::Integers(Int64Builder::new()),
        }
    }

    /// Sets the value of a row. Returns whether the value has the type of the column.
    fn put(&mut self, row: usize, value: &Value) -> bool {
        match self {
            Self::Texts(texts) => {
                append_nulls(texts, row);
                match value {
                    Value::Text(text) => texts.append_value(text),
                    other => texts.append_value(other.to_string()),
                }
            }
            Self::Integers(integers) => {
                let Some(value) = integer_value(value) else {
                    return false;
                };
                integers.append_nulls(row - integers.len());
                integers.append_value(value);
            }
        }
        true
    }

    fn finish(self, rows: usize) -> ArrayRef {
        match self {
            Self::Texts(mut texts) => {
                append_nulls(&mut texts, rows);
                Arc::new(texts.finish())
            }
            Self::Integers(mut integers) => {
                integers.append_nulls(rows - integers.len());
                Arc::new(integers.finish())
            }
        }
    }
}

/// Appends nulls up to a length.
fn append_nulls(texts: &mut StringViewBuilder, length: usize) {
    while texts.len() < length {
        texts.append_null();
    }
}

/// Returns a whole number, also from its canonical text form, so that reading returns the sent
/// digits.
fn integer_value(value: &Value) -> Option<i64> {
    match value {
        Value::Integer(number) => Some(*number),
        Value::Text(text) => {
            let number: i64 = text.parse().ok()?;
            (number.to_string() == *text).then_some(number)
        }
        Value::Float(_) | Value::Boolean(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::{array::AsArray, datatypes::Int64Type};

    use super::*;
    use crate::event::{Attributes, Source};

    #[test]
    fn attributes_that_do_not_fit_a_column_are_stored_in_the_map() {
        let mut attributes = Attributes::default();
        attributes.add("request.path", Value::Text("/rest/v1/t".into()));
        attributes.add("response.status_code", Value::Text("200".into()));
        attributes.add("response.origin_time", Value::Float(1.5));
        attributes.add("request.cf.colo", Value::Text("FRA".into()));
        let event = Event::new("a".into(), 7, Source::Edge, "m".into(), attributes);
        let batch = batch([&event]).unwrap();
        assert_eq!(
            batch
                .column_by_name("@request.path")
                .unwrap()
                .as_string_view()
                .value(0),
            "/rest/v1/t"
        );
        assert_eq!(
            batch
                .column_by_name("@response.status_code")
                .unwrap()
                .as_primitive::<Int64Type>()
                .value(0),
            200
        );
        assert!(
            batch
                .column_by_name("@response.origin_time")
                .unwrap()
                .is_null(0)
        );
        let map = batch.column_by_name("attributes").unwrap().as_map();
        let keys: Vec<_> = map.keys().as_string::<i32>().iter().flatten().collect();
        assert_eq!(keys, ["request.cf.colo", "response.origin_time"]);
    }

    #[test]
    fn attribute_columns_are_unique() {
        let mut keys: Vec<_> = COLUMNS.iter().map(|(key, _)| key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), COLUMNS.len());
    }
}
