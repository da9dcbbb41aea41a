//! Scalar functions that the engine lacks or does not bound.
//!
//! Functions that enlarge texts charge their output to a budget, because a few nested calls could
//! otherwise exhaust memory within one batch of rows. Patterns are literals, compiled once per
//! batch with a size limit.

use std::{
    cell::Cell,
    collections::HashMap,
    fmt::Write as _,
    hash::{Hash, Hasher},
    sync::{Arc, LazyLock},
};

use datafusion::{
    arrow::{
        array::{
            Array, ArrayRef, AsArray, BooleanArray, ListBuilder, MapArray, MapBuilder,
            StringBuilder, StringViewArray, StringViewBuilder, UInt32Array,
        },
        compute::{cast, take},
        datatypes::{
            DataType, Field, FieldRef, Int64Type, TimeUnit, TimestampMicrosecondType,
            TimestampSecondType,
        },
    },
    common::{DataFusionError, Result, ScalarValue, exec_err},
    logical_expr::{
        ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
        Volatility,
    },
};
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value as Json};

use crate::{
    fields,
    layout::{self, Kind},
};

/// Maximum output of one function for one batch, in bytes.
const MADE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Maximum number of list items in the output of one function for one batch.
const MADE_ITEMS_MAX: usize = 1_000_000;
/// Maximum size of a compiled pattern in bytes.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// Returns all functions.
pub(super) fn all() -> Vec<Arc<ScalarUDF>> {
    static ALL: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
        let text = DataType::Utf8View;
        let list = DataType::new_list(DataType::Utf8, true);
        let of = |name, takes, returns, run| Function {
            name,
            signature: takes_of(takes),
            takes,
            returns,
            json: false,
            run,
        };
        let all = [
            of("attribute", Takes::Any, DataType::Utf8, attribute),
            of("all_attributes", Takes::Any, map_type(), all_attributes),
            Function {
                json: true,
                ..of(
                    "nested_attributes",
                    Takes::Any,
                    DataType::Utf8,
                    nested_attributes,
                )
            },
            of("regex_match", Takes::Texts, DataType::Boolean, regex_match),
            of("regex_extract", Takes::Texts, text.clone(), regex_extract),
            of("regex_replace", Takes::Texts, text.clone(), regex_replace),
            of("join_texts", Takes::Texts, text.clone(), join_texts),
            of("replace_text", Takes::Texts, text.clone(), replace_text),
            of("split_text", Takes::Texts, list, split_text),
            of("json_text", Takes::Texts, text, json_text),
            of(
                "start_of",
                Takes::Any,
                DataType::Timestamp(TimeUnit::Second, None),
                start_of,
            ),
        ];
        all.into_iter()
            .map(|it| Arc::new(ScalarUDF::from(it)))
            .collect()
    });
    ALL.clone()
}

/// Whether a column holds JSON text that is rendered as JSON.
pub(super) fn is_json(field: &Field) -> bool {
    field.metadata().get(EXTENSION).is_some_and(|it| it == JSON)
}

const EXTENSION: &str = "ARROW:extension:name";
const JSON: &str = "arrow.json";

#[derive(Debug, Clone, Copy)]
enum Takes {
    Texts,
    Any,
}

fn takes_of(takes: Takes) -> Signature {
    match takes {
        Takes::Texts => Signature::user_defined(Volatility::Immutable),
        Takes::Any => Signature::variadic_any(Volatility::Immutable),
    }
}

#[derive(Debug)]
struct Function {
    name: &'static str,
    signature: Signature,
    takes: Takes,
    returns: DataType,
    json: bool,
    run: fn(&[ColumnarValue], usize) -> Result<ArrayRef>,
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let field = Field::new(self.name, self.returns.clone(), true);
        let metadata = self.json.then(|| (EXTENSION.to_owned(), JSON.to_owned()));
        Ok(Arc::new(field.with_metadata(
            metadata.into_iter().collect::<HashMap<_, _>>(),
        )))
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match self.takes {
            Takes::Texts => Ok(vec![DataType::Utf8View; types.len()]),
            Takes::Any => Ok(types.to_vec()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        (self.run)(&args.args, args.number_rows).map(ColumnarValue::Array)
    }
}

fn map_type() -> DataType {
    let field = layout::schema()
        .field_with_name("attributes")
        .map(|field| field.data_type().clone());
    field.unwrap_or(DataType::Null)
}

fn array(args: &[ColumnarValue], at: usize, rows: usize) -> Result<ArrayRef> {
    args.get(at).map_or_else(
        || exec_err!("an argument is missing"),
        |arg| arg.to_array(rows),
    )
}

fn texts(args: &[ColumnarValue], at: usize, rows: usize) -> Result<StringViewArray> {
    Ok(array(args, at, rows)?.as_string_view().clone())
}

/// Returns the text of a literal argument.
fn literal(args: &[ColumnarValue], at: usize) -> Result<&str> {
    let Some(ColumnarValue::Scalar(scalar)) = args.get(at) else {
        return exec_err!("a pattern or key is no literal");
    };
    Ok(scalar.try_as_str().flatten().unwrap_or_default())
}

/// The remaining output of a function, in bytes or items.
struct Budget(usize);

impl Budget {
    fn take(&mut self, amount: usize) -> Result<()> {
        let left = self.0.checked_sub(amount);
        self.0 = left.ok_or_else(|| {
            DataFusionError::ResourcesExhausted("a function makes too much".into())
        })?;
        Ok(())
    }
}

/// Builds a text column within the output budget of a batch.
fn build(rows: usize, mut value: impl FnMut(usize) -> Result<Option<String>>) -> Result<ArrayRef> {
    let (mut builder, mut budget) = (
        StringViewBuilder::with_capacity(rows),
        Budget(MADE_BYTES_MAX),
    );
    for row in 0..rows {
        let text = value(row)?;
        budget.take(text.as_ref().map_or(0, String::len))?;
        builder.append_option(text);
    }
    Ok(Arc::new(builder.finish()))
}

/// `attribute(map, key)`: the value of a key in the attribute map.
fn attribute(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let (map, key) = (array(args, 0, rows)?, literal(args, 1)?);
    let map = map.as_map();
    let keys = map.keys().as_string::<i32>();
    let found = map.value_offsets().windows(2).map(|ends| {
        let mut entries = usize::try_from(ends[0]).ok()?..usize::try_from(ends[1]).ok()?;
        entries
            .find(|entry| keys.value(*entry) == key)
            .and_then(|entry| u32::try_from(entry).ok())
    });
    Ok(take(map.values(), &found.collect::<UInt32Array>(), None)?)
}

/// Reads all attributes of a line from the attribute columns and the map.
struct Lines {
    columns: Vec<(&'static str, ArrayRef)>,
    map: MapArray,
}

impl Lines {
    fn new(args: &[ColumnarValue], first: usize, rows: usize) -> Result<Self> {
        let columns = layout::COLUMNS.iter().enumerate();
        let columns = columns
            .map(|(at, (key, _))| Ok((*key, array(args, first + at, rows)?)))
            .collect::<Result<_>>()?;
        Ok(Self {
            columns,
            map: array(args, first + layout::COLUMNS.len(), rows)?
                .as_map()
                .clone(),
        })
    }

    fn of(&self, row: usize) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for ((key, column), (_, kind)) in self.columns.iter().zip(layout::COLUMNS) {
            if column.is_null(row) {
                continue;
            }
            let value = match kind {
                Kind::Text => column.as_string_view().value(row).to_owned(),
                Kind::Integer => column.as_primitive::<Int64Type>().value(row).to_string(),
            };
            all.push(((*key).to_owned(), value));
        }
        let entries = self.map.value(row);
        let (keys, values) = (
            entries.column(0).as_string::<i32>(),
            entries.column(1).as_string::<i32>(),
        );
        all.extend(
            (0..entries.len()).map(|at| (keys.value(at).to_owned(), values.value(at).to_owned())),
        );
        all.sort();
        all
    }
}

/// `all_attributes(columns…, map)`: all attributes as one map.
fn all_attributes(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let (lines, mut budget) = (Lines::new(args, 0, rows)?, Budget(4 * MADE_BYTES_MAX));
    let mut builder = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for row in 0..rows {
        for (key, value) in lines.of(row) {
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
fn nested_attributes(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let (prefix, lines) = (literal(args, 0)?, Lines::new(args, 1, rows)?);
    let (mut builder, mut budget) = (StringBuilder::new(), Budget(4 * MADE_BYTES_MAX));
    for row in 0..rows {
        let mut root = Map::new();
        for (key, value) in lines.of(row) {
            let below = if prefix.is_empty() {
                Some(key.as_str())
            } else {
                key.strip_prefix(prefix).and_then(|it| it.strip_prefix('.'))
            };
            if let Some(below) = below {
                insert(&mut root, below, typed(&key, value));
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

fn typed(key: &str, value: String) -> Json {
    let typed = match fields::kind(key) {
        fields::Kind::Text => None,
        fields::Kind::Integer => value.parse::<i64>().ok().map(Json::from),
        fields::Kind::Float => value.parse::<f64>().ok().map(Json::from),
        fields::Kind::Boolean => value.parse::<bool>().ok().map(Json::from),
    };
    typed.unwrap_or(Json::String(value))
}

/// `start_of(seconds, timestamp)`: the start of the bucket of that length, counted from 1970.
fn start_of(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let Some(ColumnarValue::Scalar(ScalarValue::Int64(Some(seconds @ 1..)))) = args.first() else {
        return exec_err!("no length");
    };
    let moments = cast(
        &array(args, 1, rows)?,
        &DataType::Timestamp(TimeUnit::Microsecond, None),
    )?;
    let length = seconds.saturating_mul(1_000_000);
    // Lines are sorted by time, so most rows are in the bucket of the previous row.
    let (begin, start) = (Cell::new(0), Cell::new(0));
    let starts = moments
        .as_primitive::<TimestampMicrosecondType>()
        .unary::<_, TimestampSecondType>(|moment| {
            if !(0..length).contains(&moment.wrapping_sub(begin.get())) {
                let number = moment.div_euclid(length);
                begin.set(number.wrapping_mul(length));
                start.set(number.wrapping_mul(*seconds));
            }
            start.get()
        });
    Ok(Arc::new(starts))
}

fn pattern(args: &[ColumnarValue], at: usize) -> Result<Regex> {
    let built = RegexBuilder::new(literal(args, at)?)
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
        .build();
    built.map_err(|error| {
        DataFusionError::Execution(format!(
            "Invalid regular expression: {}",
            last_line(&error.to_string())
        ))
    })
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

fn regex_match(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let (text, pattern) = (texts(args, 0, rows)?, pattern(args, 1)?);
    Ok(Arc::new(
        text.iter()
            .map(|it| it.map(|it| pattern.is_match(it)))
            .collect::<BooleanArray>(),
    ))
}

/// The first group, or the whole match of a pattern without groups.
fn regex_extract(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let (text, pattern) = (texts(args, 0, rows)?, pattern(args, 1)?);
    let group = usize::from(pattern.captures_len() > 1);
    let found = text.iter().map(|it| {
        pattern
            .captures(it?)
            .and_then(|found| found.get(group))
            .map(|it| it.as_str())
    });
    Ok(Arc::new(found.collect::<StringViewArray>()))
}

/// `\1` to `\9` in the replacement refer to groups.
fn regex_replace(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let (text, pattern, by) = (texts(args, 0, rows)?, pattern(args, 1)?, literal(args, 2)?);
    let mut template = String::new();
    let mut rest = by.chars();
    while let Some(it) = rest.next() {
        match (it, rest.clone().next()) {
            ('\\', Some(digit)) if digit.is_ascii_digit() => {
                let _ = write!(template, "${{{digit}}}");
                rest.next();
            }
            ('\\', Some('\\')) => {
                template.push('\\');
                rest.next();
            }
            ('$', _) => template.push_str("$$"),
            _ => template.push(it),
        }
    }
    // A single row can exceed the budget, because an empty pattern matches at every position.
    let most = |it: &str| {
        it.len()
            .saturating_add(1)
            .saturating_mul(template.len().saturating_add(1))
    };
    build(rows, |row| {
        if text.is_null(row) {
            return Ok(None);
        }
        let it = text.value(row);
        if most(it) <= MADE_BYTES_MAX {
            return Ok(Some(
                pattern.replace_all(it, template.as_str()).into_owned(),
            ));
        }
        let (mut made, mut end) = (String::new(), 0);
        for found in pattern.captures_iter(it) {
            let whole = found.get_match();
            made.push_str(&it[end..whole.start()]);
            found.expand(&template, &mut made);
            end = whole.end();
            if made.len() > MADE_BYTES_MAX {
                Budget(0).take(1)?;
            }
        }
        made.push_str(&it[end..]);
        Ok(Some(made))
    })
}

fn join_texts(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let parts = (0..args.len())
        .map(|at| texts(args, at, rows))
        .collect::<Result<Vec<_>>>()?;
    build(rows, |row| {
        if parts.iter().any(|part| part.is_null(row)) {
            return Ok(None);
        }
        Budget(MADE_BYTES_MAX).take(parts.iter().map(|part| part.value(row).len()).sum())?;
        Ok(Some(parts.iter().map(|part| part.value(row)).collect()))
    })
}

fn replace_text(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let (text, from, to) = (
        texts(args, 0, rows)?,
        texts(args, 1, rows)?,
        texts(args, 2, rows)?,
    );
    build(rows, |row| {
        if text.is_null(row) || from.is_null(row) || to.is_null(row) {
            return Ok(None);
        }
        let (text, from, to) = (text.value(row), from.value(row), to.value(row));
        if from.is_empty() {
            return Ok(Some(text.to_owned()));
        }
        let found = text.matches(from).count();
        Budget(MADE_BYTES_MAX).take(text.len().saturating_add(found.saturating_mul(to.len())))?;
        Ok(Some(text.replace(from, to)))
    })
}

fn split_text(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let (text, by) = (texts(args, 0, rows)?, texts(args, 1, rows)?);
    let (mut builder, mut budget) = (
        ListBuilder::new(StringBuilder::new()),
        Budget(MADE_ITEMS_MAX),
    );
    for row in 0..rows {
        if text.is_null(row) || by.is_null(row) {
            builder.append_null();
            continue;
        }
        let (text, by) = (text.value(row), by.value(row));
        if by.is_empty() {
            budget.take(text.len())?;
            text.chars()
                .for_each(|it| builder.values().append_value(it.encode_utf8(&mut [0; 4])));
        } else {
            for part in text.split(by) {
                budget.take(1)?;
                builder.values().append_value(part);
            }
        }
        builder.append(true);
    }
    Ok(Arc::new(builder.finish()))
}

/// `json_text(text, key…)`: the value below the keys as text, null if the text is not JSON.
fn json_text(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let text = texts(args, 0, rows)?;
    let keys = (1..args.len())
        .map(|at| literal(args, at))
        .collect::<Result<Vec<_>>>()?;
    build(rows, |row| {
        let parsed = if text.is_null(row) {
            None
        } else {
            serde_json::from_str::<Json>(text.value(row)).ok()
        };
        let found = parsed.as_ref().and_then(|json| {
            keys.iter().try_fold(json, |json, key| {
                json.get(key)
                    .or_else(|| json.get(key.parse::<usize>().ok()?))
            })
        });
        Ok(found.and_then(|it| match it {
            Json::Null => None,
            Json::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }))
    })
}
