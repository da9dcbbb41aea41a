//! Functions of numbers.

use std::sync::Arc;

use datafusion::{
    arrow::{
        array::{Array as _, ArrayRef, AsArray as _, Float64Array, Int64Array},
        compute::cast,
        datatypes::{DataType, Float64Type},
    },
    common::Result,
    logical_expr::ColumnarValue,
};

use super::{array, build_texts, integers, literal, texts};

/// Returns the range of the integers with a width such as `Int8` or `UInt32`. The engine has no
/// integers above the range of `Int64`.
fn range_of(width: &str) -> (i64, i64) {
    match width {
        "Int8" => (i64::from(i8::MIN), i64::from(i8::MAX)),
        "Int16" => (i64::from(i16::MIN), i64::from(i16::MAX)),
        "Int32" => (i64::from(i32::MIN), i64::from(i32::MAX)),
        "UInt8" => (0, i64::from(u8::MAX)),
        "UInt16" => (0, i64::from(u16::MAX)),
        "UInt32" => (0, i64::from(u32::MAX)),
        "UInt64" => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    }
}

/// `integer_within(number, width)`: the number, null if it is outside of the width.
pub(super) fn integer_within(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let numbers = integers(args, 0, rows)?;
    let (min, max) = range_of(literal(args, 1)?);
    if numbers
        .values()
        .iter()
        .all(|number| (min..=max).contains(number))
    {
        return Ok(Arc::new(numbers));
    }
    let within: Int64Array = numbers
        .iter()
        .map(|number| number.filter(|number| (min..=max).contains(number)))
        .collect();
    Ok(Arc::new(within))
}

/// `integer_wrapped(number, width)`: the lowest bits of the number.
pub(super) fn integer_wrapped(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let numbers = integers(args, 0, rows)?;
    let (min, max) = range_of(literal(args, 1)?);
    let Some(size) = max.checked_sub(min).and_then(|size| size.checked_add(1)) else {
        return Ok(Arc::new(numbers));
    };
    let wrapped: Int64Array =
        numbers.unary(|number| min + (number.wrapping_sub(min)).rem_euclid(size));
    Ok(Arc::new(wrapped))
}

/// `float_power(base, exponent)`: infinite where the engine's own function fails, as for 0 and -1.
pub(super) fn float_power(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let bases = cast(&array(args, 0, rows)?, &DataType::Float64)?;
    let exponents = cast(&array(args, 1, rows)?, &DataType::Float64)?;
    let bases = bases.as_primitive::<Float64Type>().iter();
    let powers: Float64Array = bases
        .zip(exponents.as_primitive::<Float64Type>())
        .map(|(base, exponent)| Some(base?.powf(exponent?)))
        .collect();
    Ok(Arc::new(powers))
}

/// `round_even(number, places)`: rounds halves to even digits.
pub(super) fn round_even(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let numbers = cast(&array(args, 0, rows)?, &DataType::Float64)?;
    let numbers = numbers.as_primitive::<Float64Type>();
    let places = integers(args, 1, rows)?;
    let rounded: Float64Array = (0..rows)
        .map(|row| {
            if numbers.is_null(row) || places.is_null(row) {
                return None;
            }
            let number = numbers.value(row);
            let places = i32::try_from(places.value(row).clamp(-400, 400)).unwrap_or_default();
            let scale = 10_f64.powi(places.abs());
            let rounded = if places >= 0 {
                (number * scale).round_ties_even() / scale
            } else {
                (number / scale).round_ties_even() * scale
            };
            // The scaled number overflows where rounding changes nothing.
            Some(if rounded.is_finite() { rounded } else { number })
        })
        .collect();
    Ok(Arc::new(rounded))
}

/// `parse_integer(text)`: the number of a text of digits with an optional sign, null for others.
pub(super) fn parse_integer(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let numbers: Int64Array = texts.iter().map(|text| text?.parse().ok()).collect();
    Ok(Arc::new(numbers))
}

/// `float_text(number)`: the shortest digits that read as the number, without a fraction for whole
/// numbers and with an exponent for very large and very small ones.
pub(super) fn float_text(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let numbers = cast(&array(args, 0, rows)?, &DataType::Float64)?;
    let numbers = numbers.as_primitive::<Float64Type>();
    build_texts(rows, |row| {
        if numbers.is_null(row) {
            return Ok(None);
        }
        let number = numbers.value(row);
        let text = match number.abs() {
            size if size.is_nan() => "nan".to_owned(),
            size if size != 0.0 && size.is_finite() && !(1e-6..1e21).contains(&size) => {
                format!("{number:e}")
            }
            _ => number.to_string(),
        };
        Ok(Some(text))
    })
}
