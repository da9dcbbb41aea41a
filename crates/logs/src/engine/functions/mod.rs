//! Scalar functions that the engine lacks or does not bound.
//!
//! Functions that enlarge texts charge their output to a budget, because a few nested calls could
//! otherwise exhaust memory within one batch of rows. Patterns are literals, compiled once per
//! batch with a size limit.

mod attributes;
mod json;
mod numbers;
mod text;
mod urls;

use self::attributes::{all_attributes, attribute, nested_attributes, record_exists};
pub(crate) use self::text::escape_like;

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
            Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListBuilder, StringBuilder,
            StringViewArray, StringViewBuilder,
        },
        compute::cast,
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

use crate::layout;

/// Maximum output of one function for one batch, in bytes.
const OUTPUT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Maximum number of list items in the output of one function for one batch.
const OUTPUT_ITEMS_MAX: usize = 1_000_000;
/// Maximum size of a compiled pattern in bytes.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// Returns all functions.
pub(super) fn all() -> Vec<Arc<ScalarUDF>> {
    static ALL: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
        definitions()
            .into_iter()
            .map(|function| Arc::new(ScalarUDF::from(function)))
            .collect()
    });
    ALL.clone()
}

fn definitions() -> Vec<BatchFunction> {
    use ArgumentTypes::{Any, Texts};
    let text = DataType::Utf8View;
    let list = DataType::new_list(DataType::Utf8, true);
    let texts_list = list.clone();
    let seconds = DataType::Timestamp(TimeUnit::Second, None);
    let new = BatchFunction::new;
    let mut nested = new("nested_attributes", Any, DataType::Utf8, nested_attributes);
    nested.json = true;
    let json_list = list.clone();
    let integer = DataType::Int64;
    let float = DataType::Float64;
    vec![
        nested,
        new("attribute", Any, DataType::Utf8, attribute),
        new("all_attributes", Any, map_type(), all_attributes),
        new("regex_match", Texts, DataType::Boolean, regex_match),
        new("regex_extract", Texts, text.clone(), regex_extract),
        new("regex_replace", Texts, text.clone(), regex_replace),
        new("join_texts", Texts, text.clone(), join_texts),
        new("replace_text", Texts, text.clone(), replace_text),
        new("split_text", Texts, list, split_text),
        new("json_text", Texts, text.clone(), json::json_text),
        new("json_integer", Texts, integer.clone(), json::json_integer),
        new("json_float", Texts, float.clone(), json::json_float),
        new("json_boolean", Texts, DataType::Boolean, json::json_boolean),
        new("json_exists", Texts, DataType::Boolean, json::json_exists),
        new("json_length", Texts, integer.clone(), json::json_length),
        new("json_keys", Texts, json_list, json::json_keys),
        new("json_valid", Texts, DataType::Boolean, json::json_valid),
        new("to_json", Any, text.clone(), json::to_json),
        new("record_exists", Any, DataType::Boolean, record_exists),
        new("byte_slice", Any, text.clone(), text::byte_slice),
        new("char_slice", Any, text.clone(), text::char_slice),
        new("byte_right", Any, text.clone(), text::byte_right),
        new("byte_position", Any, integer.clone(), text::byte_position),
        new("ascii_lower", Texts, text.clone(), text::ascii_lower),
        new("ascii_upper", Texts, text.clone(), text::ascii_upper),
        new(
            "regex_extract_all",
            Texts,
            texts_list,
            text::regex_extract_all,
        ),
        new(
            "regex_replace_one",
            Texts,
            text.clone(),
            text::regex_replace_one,
        ),
        new(
            "regex_replace_all",
            Texts,
            text.clone(),
            text::regex_replace_all,
        ),
        new("url_part", Texts, text.clone(), urls::url_part),
        new(
            "integer_within",
            Any,
            integer.clone(),
            numbers::integer_within,
        ),
        new(
            "integer_wrapped",
            Any,
            integer.clone(),
            numbers::integer_wrapped,
        ),
        new(
            "split_bytes",
            Texts,
            DataType::new_list(DataType::Utf8, true),
            split_bytes,
        ),
        new(
            "escape_like",
            Texts,
            DataType::Utf8View,
            text::escape_like_patterns,
        ),
        new("parse_integer", Texts, integer, numbers::parse_integer),
        new("float_text", Any, text, numbers::float_text),
        new("float_power", Any, float.clone(), numbers::float_power),
        new("round_even", Any, float, numbers::round_even),
        new("start_of", Any, seconds, start_of),
    ]
}

/// Whether a column holds JSON text that is rendered as JSON.
pub(super) fn is_json(field: &Field) -> bool {
    field.metadata().get(EXTENSION).is_some_and(|it| it == JSON)
}

const EXTENSION: &str = "ARROW:extension:name";
const JSON: &str = "arrow.json";

#[derive(Debug, Clone, Copy)]
enum ArgumentTypes {
    /// All arguments are converted to text.
    Texts,
    Any,
}

/// The implementation of a function over the arguments and the number of rows of a batch.
type RunBatch = fn(&[ColumnarValue], usize) -> Result<ArrayRef>;

#[derive(Debug)]
struct BatchFunction {
    name: &'static str,
    signature: Signature,
    arguments: ArgumentTypes,
    returns: DataType,
    /// Whether the result is JSON text.
    json: bool,
    run: RunBatch,
}

impl BatchFunction {
    fn new(name: &'static str, arguments: ArgumentTypes, returns: DataType, run: RunBatch) -> Self {
        let signature = match arguments {
            ArgumentTypes::Texts => Signature::user_defined(Volatility::Immutable),
            ArgumentTypes::Any => Signature::variadic_any(Volatility::Immutable),
        };
        Self {
            name,
            signature,
            arguments,
            returns,
            json: false,
            run,
        }
    }
}

impl PartialEq for BatchFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for BatchFunction {}

impl Hash for BatchFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for BatchFunction {
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
        let mut metadata = HashMap::new();
        if self.json {
            metadata.insert(EXTENSION.to_owned(), JSON.to_owned());
        }
        Ok(Arc::new(field.with_metadata(metadata)))
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match self.arguments {
            ArgumentTypes::Texts => Ok(vec![DataType::Utf8View; types.len()]),
            ArgumentTypes::Any => Ok(types.to_vec()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        (self.run)(&args.args, args.number_rows).map(ColumnarValue::Array)
    }
}

/// Returns the type of the attribute map.
fn map_type() -> DataType {
    match layout::schema().field_with_name("attributes") {
        Ok(field) => field.data_type().clone(),
        Err(_) => DataType::Null,
    }
}

fn array(args: &[ColumnarValue], at: usize, rows: usize) -> Result<ArrayRef> {
    let Some(arg) = args.get(at) else {
        return exec_err!("an argument is missing");
    };
    arg.to_array(rows)
}

fn texts(args: &[ColumnarValue], at: usize, rows: usize) -> Result<StringViewArray> {
    let array = array(args, at, rows)?;
    match array.as_string_view_opt() {
        Some(texts) => Ok(texts.clone()),
        None => Ok(cast(&array, &DataType::Utf8View)?.as_string_view().clone()),
    }
}

fn integers(args: &[ColumnarValue], at: usize, rows: usize) -> Result<Int64Array> {
    let array = cast(&array(args, at, rows)?, &DataType::Int64)?;
    Ok(array.as_primitive::<Int64Type>().clone())
}

/// Returns the text of a literal argument.
fn literal(args: &[ColumnarValue], at: usize) -> Result<&str> {
    let Some(ColumnarValue::Scalar(scalar)) = args.get(at) else {
        return exec_err!("a pattern or key must be a literal");
    };
    Ok(scalar.try_as_str().flatten().unwrap_or_default())
}

/// The remaining output of a function, in bytes or items.
struct OutputBudget(usize);

impl OutputBudget {
    fn take(&mut self, amount: usize) -> Result<()> {
        match self.0.checked_sub(amount) {
            Some(rest) => {
                self.0 = rest;
                Ok(())
            }
            None => Err(output_too_large()),
        }
    }
}

fn output_too_large() -> DataFusionError {
    DataFusionError::ResourcesExhausted("output of a function exceeds its limit".into())
}

/// Builds a text column within the output budget of a batch.
fn build_texts(
    rows: usize,
    mut value: impl FnMut(usize) -> Result<Option<String>>,
) -> Result<ArrayRef> {
    let mut builder = StringViewBuilder::with_capacity(rows);
    let mut budget = OutputBudget(OUTPUT_BYTES_MAX);
    for row in 0..rows {
        let text = value(row)?;
        budget.take(text.as_ref().map_or(0, String::len))?;
        builder.append_option(text);
    }
    Ok(Arc::new(builder.finish()))
}

/// `start_of(seconds, timestamp)`: the start of the bucket of that length, counted from 1970.
fn start_of(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let Some(ColumnarValue::Scalar(ScalarValue::Int64(Some(seconds @ 1..)))) = args.first() else {
        return exec_err!("the length of a bucket must be a positive literal");
    };
    let timestamps = cast(
        &array(args, 1, rows)?,
        &DataType::Timestamp(TimeUnit::Microsecond, None),
    )?;
    let length = seconds.saturating_mul(1_000_000);
    // Lines are sorted by time, so most rows are in the bucket of the previous row.
    let bucket_micros = Cell::new(0);
    let bucket_seconds = Cell::new(0);
    let starts = timestamps
        .as_primitive::<TimestampMicrosecondType>()
        .unary::<_, TimestampSecondType>(|timestamp| {
            if !(0..length).contains(&timestamp.wrapping_sub(bucket_micros.get())) {
                let number = timestamp.div_euclid(length);
                bucket_micros.set(number.wrapping_mul(length));
                bucket_seconds.set(number.wrapping_mul(*seconds));
            }
            bucket_seconds.get()
        });
    Ok(Arc::new(starts))
}

/// Compiles the pattern of a literal argument.
fn pattern(args: &[ColumnarValue], at: usize) -> Result<Regex> {
    let built = RegexBuilder::new(literal(args, at)?)
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
        .build();
    built.map_err(|error| {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default();
        DataFusionError::Execution(format!("Invalid regular expression: {reason}"))
    })
}

fn regex_match(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let pattern = pattern(args, 1)?;
    let matches: BooleanArray = texts
        .iter()
        .map(|text| Some(pattern.is_match(text?)))
        .collect();
    Ok(Arc::new(matches))
}

/// The first group, or the whole match of a pattern without groups.
fn regex_extract(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let pattern = pattern(args, 1)?;
    let group = usize::from(pattern.captures_len() > 1);
    let found: StringViewArray = texts
        .iter()
        .map(|text| Some(pattern.captures(text?)?.get(group)?.as_str()))
        .collect();
    Ok(Arc::new(found))
}

/// `\1` to `\9` in the replacement refer to groups.
fn regex_replace(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let pattern = pattern(args, 1)?;
    let template = replacement_template(literal(args, 2)?);
    build_texts(rows, |row| {
        if texts.is_null(row) {
            return Ok(None);
        }
        replace_matches(texts.value(row), &pattern, &template).map(Some)
    })
}

/// Converts a replacement to the syntax of the `regex` crate.
fn replacement_template(replacement: &str) -> String {
    let mut template = String::new();
    let mut rest = replacement.chars().peekable();
    while let Some(character) = rest.next() {
        match (character, rest.peek()) {
            ('\\', Some(digit)) if digit.is_ascii_digit() => {
                let _ = write!(template, "${{{digit}}}");
                rest.next();
            }
            ('\\', Some('\\')) => {
                template.push('\\');
                rest.next();
            }
            ('$', _) => template.push_str("$$"),
            _ => template.push(character),
        }
    }
    template
}

/// Replaces all matches. A single row can exceed the budget, because an empty pattern matches at
/// every position.
fn replace_matches(text: &str, pattern: &Regex, template: &str) -> Result<String> {
    let matches_max = text.len().saturating_add(1);
    let output_max = matches_max.saturating_mul(template.len().saturating_add(1));
    if output_max <= OUTPUT_BYTES_MAX {
        return Ok(pattern.replace_all(text, template).into_owned());
    }
    let mut output = String::new();
    let mut end = 0;
    for captures in pattern.captures_iter(text) {
        let found = captures.get_match();
        output.push_str(&text[end..found.start()]);
        captures.expand(template, &mut output);
        end = found.end();
        if output.len() > OUTPUT_BYTES_MAX {
            return Err(output_too_large());
        }
    }
    output.push_str(&text[end..]);
    Ok(output)
}

fn join_texts(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let mut parts = Vec::with_capacity(args.len());
    for at in 0..args.len() {
        parts.push(texts(args, at, rows)?);
    }
    build_texts(rows, |row| {
        if parts.iter().any(|part| part.is_null(row)) {
            return Ok(None);
        }
        let length = parts.iter().map(|part| part.value(row).len()).sum();
        OutputBudget(OUTPUT_BYTES_MAX).take(length)?;
        Ok(Some(parts.iter().map(|part| part.value(row)).collect()))
    })
}

fn replace_text(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let text = texts(args, 0, rows)?;
    let from = texts(args, 1, rows)?;
    let to = texts(args, 2, rows)?;
    build_texts(rows, |row| {
        if text.is_null(row) || from.is_null(row) || to.is_null(row) {
            return Ok(None);
        }
        let text = text.value(row);
        let from = from.value(row);
        let to = to.value(row);
        if from.is_empty() {
            return Ok(Some(text.to_owned()));
        }
        let found = text.matches(from).count();
        OutputBudget(OUTPUT_BYTES_MAX)
            .take(text.len().saturating_add(found.saturating_mul(to.len())))?;
        Ok(Some(text.replace(from, to)))
    })
}

fn split_text(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    split(args, rows, |text, push| {
        text.chars()
            .for_each(|it| push(it.encode_utf8(&mut [0; 4])));
    })
}

/// Splits a text. The empty separator splits it into bytes.
fn split_bytes(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    split(args, rows, |text, push| {
        for byte in text.as_bytes().chunks(1) {
            push(&String::from_utf8_lossy(byte));
        }
    })
}

/// Passes the smallest parts of a text to a function.
type SplitUnits = fn(&str, &mut dyn FnMut(&str));

fn split(args: &[ColumnarValue], rows: usize, split_units: SplitUnits) -> Result<ArrayRef> {
    let text = texts(args, 0, rows)?;
    let by = texts(args, 1, rows)?;
    let mut builder = ListBuilder::new(StringBuilder::new());
    let mut budget = OutputBudget(OUTPUT_ITEMS_MAX);
    for row in 0..rows {
        if text.is_null(row) || by.is_null(row) {
            builder.append_null();
            continue;
        }
        let text = text.value(row);
        let by = by.value(row);
        if by.is_empty() {
            budget.take(text.len())?;
            split_units(text, &mut |part| builder.values().append_value(part));
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
