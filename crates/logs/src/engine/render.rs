//! Converts Arrow batches to JSON rows.

use datafusion::{
    arrow::{
        array::{Array, AsArray, RecordBatch, StructArray},
        datatypes::{
            DataType, Date32Type, Field, FieldRef, Fields, Float32Type, Float64Type, Int8Type,
            Int16Type, Int32Type, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType,
            TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
            UInt16Type, UInt32Type, UInt64Type,
        },
        util::display::{ArrayFormatter, FormatOptions},
    },
    common::{DataFusionError, Result},
};
use serde_json::{Map, Number, Value as Json};

use super::{functions, statement::Statement};

/// Collects JSON rows up to a size limit.
pub(super) struct JsonRows {
    columns: Vec<String>,
    schema: SchemaRef,
    timestamps_as_numbers: bool,
    bytes_left: usize,
    rows: Vec<Map<String, Json>>,
}

impl JsonRows {
    pub(super) fn new(statement: &Statement, schema: SchemaRef, bytes_max: usize) -> Self {
        let Statement {
            columns,
            timestamps_as_numbers,
            ..
        } = statement;
        Self {
            columns: columns.clone(),
            schema,
            timestamps_as_numbers: *timestamps_as_numbers,
            bytes_left: bytes_max,
            rows: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the approximate size of the rows in bytes.
    pub(super) fn bytes(&self, bytes_max: usize) -> usize {
        bytes_max - self.bytes_left
    }

    pub(super) fn finish(self) -> Vec<Map<String, Json>> {
        self.rows
    }

    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        for row in 0..batch.num_rows() {
            let mut object = Map::new();
            for (at, column) in batch.columns().iter().enumerate() {
                let Some(name) = self.columns.get(at).cloned() else {
                    break;
                };
                let value = self.value(self.schema.field(at), column, row)?;
                self.charge(approximate_size(&value))?;
                object.insert(name, value);
            }
            self.rows.push(object);
        }
        Ok(())
    }

    fn charge(&mut self, bytes: usize) -> Result<()> {
        match self.bytes_left.checked_sub(bytes) {
            Some(bytes_left) => {
                self.bytes_left = bytes_left;
                Ok(())
            }
            None => Err(DataFusionError::Execution(
                "The answer is too long. Select fewer rows or columns.".into(),
            )),
        }
    }

    fn value(&self, field: &Field, column: &dyn Array, row: usize) -> Result<Json> {
        if column.is_null(row) {
            return Ok(Json::Null);
        }
        if functions::is_json(field) {
            let text = text(column, row).unwrap_or_default();
            return Ok(serde_json::from_str(text).unwrap_or_else(|_| Json::String(text.to_owned())));
        }
        if let Some(text) = text(column, row) {
            return Ok(Json::String(text.to_owned()));
        }
        if let Some(number) = number(column, row) {
            return Ok(number);
        }
        Ok(match column.data_type() {
            DataType::Null => Json::Null,
            DataType::Boolean => Json::Bool(column.as_boolean().value(row)),
            DataType::Date32 => {
                let date = column.as_primitive::<Date32Type>().value_as_date(row);
                optional_text(date.map(|date| date.format("%Y-%m-%d")))
            }
            DataType::Timestamp(unit, _) => self.timestamp(*unit, column, row),
            DataType::List(item) => self.list(item, column.as_list::<i32>().value(row).as_ref())?,
            DataType::LargeList(item) => {
                self.list(item, column.as_list::<i64>().value(row).as_ref())?
            }
            DataType::Struct(fields) => self.tuple(fields, column.as_struct(), row)?,
            DataType::Map(entries, _) => self.object(entries, &column.as_map().value(row))?,
            _ => {
                let formatter = ArrayFormatter::try_new(column, &FormatOptions::default())?;
                Json::String(formatter.value(row).try_to_string()?)
            }
        })
    }

    /// Renders a timestamp by its unit, which encodes its origin: microseconds are timestamps of
    /// lines, seconds are bucket starts, and nanoseconds are civil date-times, which are text in
    /// both dialects.
    fn timestamp(&self, unit: TimeUnit, column: &dyn Array, row: usize) -> Json {
        const MICROSECONDS: &str = "%Y-%m-%dT%H:%M:%S%.6f";
        let (datetime, format) = match unit {
            TimeUnit::Second => {
                let column = column.as_primitive::<TimestampSecondType>();
                if self.timestamps_as_numbers {
                    return column.value(row).saturating_mul(1_000_000).into();
                }
                (column.value_as_datetime(row), "%Y-%m-%dT%H:%M:%S")
            }
            TimeUnit::Millisecond => {
                let column = column.as_primitive::<TimestampMillisecondType>();
                (column.value_as_datetime(row), "%Y-%m-%dT%H:%M:%S%.3f")
            }
            TimeUnit::Microsecond => {
                let column = column.as_primitive::<TimestampMicrosecondType>();
                if self.timestamps_as_numbers {
                    return column.value(row).into();
                }
                (column.value_as_datetime(row), MICROSECONDS)
            }
            TimeUnit::Nanosecond => {
                let column = column.as_primitive::<TimestampNanosecondType>();
                (column.value_as_datetime(row), MICROSECONDS)
            }
        };
        optional_text(datetime.map(|datetime| datetime.format(format)))
    }

    fn list(&self, item: &FieldRef, values: &dyn Array) -> Result<Json> {
        let mut items = Vec::with_capacity(values.len());
        for row in 0..values.len() {
            items.push(self.value(item, values, row)?);
        }
        Ok(Json::Array(items))
    }

    /// Renders a tuple as a list.
    fn tuple(&self, fields: &Fields, tuple: &StructArray, row: usize) -> Result<Json> {
        let mut items = Vec::with_capacity(fields.len());
        for (field, column) in fields.iter().zip(tuple.columns()) {
            items.push(self.value(field, column, row)?);
        }
        Ok(Json::Array(items))
    }

    fn object(&self, entries: &FieldRef, values: &StructArray) -> Result<Json> {
        let DataType::Struct(fields) = entries.data_type() else {
            return Ok(Json::Null);
        };
        let mut object = Map::new();
        for row in 0..values.len() {
            let key = text(values.column(0), row).unwrap_or_default().to_owned();
            object.insert(key, self.value(&fields[1], values.column(1), row)?);
        }
        Ok(Json::Object(object))
    }
}

/// Returns a value as JSON, with timestamps as text.
pub(super) fn json_of(field: &Field, column: &dyn Array, row: usize) -> Result<Json> {
    let renderer = JsonRows {
        columns: Vec::new(),
        schema: SchemaRef::new(Schema::empty()),
        timestamps_as_numbers: false,
        bytes_left: 0,
        rows: Vec::new(),
    };
    renderer.value(field, column, row)
}

/// Returns the value of a numeric column.
fn number(column: &dyn Array, row: usize) -> Option<Json> {
    Some(match column.data_type() {
        DataType::Int8 => column.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => column.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt8 => column.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => column.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => column.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => column.as_primitive::<UInt64Type>().value(row).into(),
        DataType::Float32 => {
            // The shortest digits of the number, not those of its binary value.
            let digits = column.as_primitive::<Float32Type>().value(row).to_string();
            float(digits.parse().unwrap_or(f64::NAN))
        }
        DataType::Float64 => float(column.as_primitive::<Float64Type>().value(row)),
        _ => return None,
    })
}

fn text(column: &dyn Array, row: usize) -> Option<&str> {
    match column.data_type() {
        DataType::Utf8 => Some(column.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Some(column.as_string::<i64>().value(row)),
        DataType::Utf8View => Some(column.as_string_view().value(row)),
        _ => None,
    }
}

/// Infinite and undefined floats become null, because JSON cannot represent them.
fn float(value: f64) -> Json {
    Number::from_f64(value).map_or(Json::Null, Json::Number)
}

fn optional_text(text: Option<impl std::fmt::Display>) -> Json {
    text.map_or(Json::Null, |text| Json::String(text.to_string()))
}

fn approximate_size(value: &Json) -> usize {
    32 + match value {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(approximate_size).sum(),
        Json::Object(object) => object
            .iter()
            .map(|(key, value)| key.len() + approximate_size(value))
            .sum(),
        _ => 0,
    }
}
