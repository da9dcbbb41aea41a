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
    place(key).map(|at| (format!("{HOT}{key}"), COLUMNS[at].1))
}

/// Returns the index of a dotted key in [`COLUMNS`].
fn place(key: &str) -> Option<usize> {
    static PLACES: LazyLock<HashMap<&str, usize>> = LazyLock::new(|| {
        COLUMNS
            .iter()
            .zip(0..)
            .map(|((key, _), at)| (*key, at))
            .collect()
    });
    PLACES.get(key).copied()
}

/// Converts a key to a static one if it has a column, which avoids an allocation.
pub fn known(key: &str) -> Key {
    place(key).map_or_else(|| key.to_owned().into(), |at| COLUMNS[at].0.into())
}

/// The schema of a batch. The map `attributes` holds the attributes without a column.
pub fn schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let text = |name: &str| Field::new(name, DataType::Utf8View, false);
        let timestamp = Field::new(
            "timestamp",
            DataType::Timestamp(TimeUnit::Microsecond, None),
            false,
        );
        let mut fields = vec![
            text("id"),
            timestamp,
            text("source"),
            text("severity_text"),
            text("event_message"),
        ];
        fields.extend(COLUMNS.iter().map(|(key, kind)| {
            let data = match kind {
                Kind::Text => DataType::Utf8View,
                Kind::Integer => DataType::Int64,
            };
            Field::new(format!("{HOT}{key}"), data, true)
        }));
        let entries = Field::new("keys", DataType::Utf8, false);
        fields.push(Field::new_map(
            "attributes",
            "entries",
            entries,
            Field::new("values", DataType::Utf8, true),
            false,
            false,
        ));
        Arc::new(Schema::new(fields))
    });
    Arc::clone(&SCHEMA)
}

/// Converts lines to a batch with the columns of [`schema`], in the given order.
pub fn batch<'a>(
    events: impl IntoIterator<Item = &'a Event> + Clone,
) -> Result<RecordBatch, ArrowError> {
    let rows = || events.clone().into_iter();
    let mut columns = vec![
        text(rows().map(|event| Some(event.id.as_str()))),
        Arc::new(TimestampMicrosecondArray::from_iter_values(
            rows().map(|event| event.timestamp),
        )),
        text(rows().map(|event| Some(event.source.as_str()))),
        text(rows().map(|event| Some(event.severity.as_str()))),
        text(rows().map(|event| Some(event.message.as_str()))),
    ];
    let (hot, rest) = attributes(events.into_iter())?;
    columns.extend(hot);
    columns.push(rest);
    RecordBatch::try_new(schema(), columns)
}

fn text<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    let mut builder = StringViewBuilder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

/// Returns the attribute columns and the map of the remaining attributes.
fn attributes<'a>(
    events: impl Iterator<Item = &'a Event>,
) -> Result<(Vec<ArrayRef>, ArrayRef), ArrowError> {
    let mut hot: Vec<_> = COLUMNS.iter().map(|(_, kind)| Column::new(*kind)).collect();
    let mut rest = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for event in events {
        let row = rest.len();
        for (key, value) in event.attributes.iter() {
            if !place(key).is_some_and(|at| hot[at].put(row, value)) {
                rest.keys().append_value(key);
                rest.values().append_value(value.to_string());
            }
        }
        rest.append(true)?;
    }
    let rows = rest.len();
    Ok((
        hot.into_iter().map(|column| column.finish(rows)).collect(),
        Arc::new(rest.finish()),
    ))
}

/// A builder for one attribute column. Missing rows are filled with nulls on the next append.
enum Column {
    Texts(StringViewBuilder),
    Integers(Int64Builder),
}

impl Column {
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
                (texts.len()..row).for_each(|_| texts.append_null());
                match value {
                    Value::Text(text) => texts.append_value(text),
                    other => texts.append_value(other.to_string()),
                }
            }
            Self::Integers(integers) => {
                let Some(value) = whole(value) else {
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
                (texts.len()..rows).for_each(|_| texts.append_null());
                Arc::new(texts.finish())
            }
            Self::Integers(mut integers) => {
                integers.append_nulls(rows - integers.len());
                Arc::new(integers.finish())
            }
        }
    }
}

/// Returns a whole number, also from its canonical text form, so that reading returns the sent
/// digits.
fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Integer(it) => Some(*it),
        Value::Text(text) => text.parse().ok().filter(|it: &i64| it.to_string() == *text),
        Value::Float(_) | Value::Boolean(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::{array::AsArray, datatypes::Int64Type};

    use super::*;
    use crate::event::{Attributes, Source};

    #[test]
    fn what_fits_has_a_column_and_the_rest_is_in_the_map() {
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
    fn a_key_has_one_column() {
        let mut keys: Vec<_> = COLUMNS.iter().map(|(key, _)| key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), COLUMNS.len());
    }
}
