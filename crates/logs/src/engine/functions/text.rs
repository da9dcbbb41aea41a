//! Functions of texts, in the units of `ClickHouse`: bytes, or characters with the suffix `UTF8`.
//!
//! A cut through a character leaves bytes that are no UTF-8. They are replaced by U+FFFD, because
//! neither the engine nor JSON can represent them.

use std::{iter, ops::Range, sync::Arc};

use datafusion::{
    arrow::array::{Array as _, ArrayRef, Int64Array, ListBuilder, StringBuilder},
    common::Result,
    logical_expr::ColumnarValue,
};
use regex::{Captures, Regex};

use super::{
    OUTPUT_BYTES_MAX, OUTPUT_ITEMS_MAX, OutputBudget, build_texts, integers, literal,
    output_too_large, pattern, replacement_template, texts,
};

/// `byte_slice(text, from[, length])`: bytes from a one-based position. Negative positions count
/// from the end, and a negative length ends the slice as many bytes before the end.
pub(super) fn byte_slice(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    slices(args, rows, str::len, |text, range| {
        String::from_utf8_lossy(&text.as_bytes()[range]).into_owned()
    })
}

/// `char_slice(text, from[, length])`: [`byte_slice`] in characters.
pub(super) fn char_slice(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    slices(
        args,
        rows,
        |text| text.chars().count(),
        |text, range| text.chars().skip(range.start).take(range.len()).collect(),
    )
}

fn slices(
    args: &[ColumnarValue],
    rows: usize,
    length_of: fn(&str) -> usize,
    slice: fn(&str, Range<usize>) -> String,
) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let starts = integers(args, 1, rows)?;
    let lengths = match args.get(2) {
        Some(_) => Some(integers(args, 2, rows)?),
        None => None,
    };
    build_texts(rows, |row| {
        let missing = lengths.as_ref().is_some_and(|it| it.is_null(row));
        if texts.is_null(row) || starts.is_null(row) || missing {
            return Ok(None);
        }
        let text = texts.value(row);
        let length = lengths.as_ref().map(|it| it.value(row));
        let range = slice_range(length_of(text), starts.value(row), length);
        Ok(Some(slice(text, range)))
    })
}

/// Returns the zero-based range of a slice.
fn slice_range(total: usize, from: i64, length: Option<i64>) -> Range<usize> {
    let total = i64::try_from(total).unwrap_or(i64::MAX);
    let start = match from {
        0 => return 0..0,
        1.. => from - 1,
        _ => total.saturating_add(from),
    };
    let end = match length {
        None => total,
        Some(length @ 0..) => start.saturating_add(length).min(total),
        Some(length) => total.saturating_add(length),
    };
    let start = start.max(0);
    if start >= end {
        return 0..0;
    }
    let position = |at: i64| usize::try_from(at).unwrap_or_default();
    position(start)..position(end)
}

/// `byte_right(text, count)`: the last bytes, or all but the first ones of a negative count.
pub(super) fn byte_right(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let counts = integers(args, 1, rows)?;
    build_texts(rows, |row| {
        if texts.is_null(row) || counts.is_null(row) {
            return Ok(None);
        }
        let bytes = texts.value(row).as_bytes();
        let count = usize::try_from(counts.value(row).unsigned_abs()).unwrap_or(usize::MAX);
        let start = match counts.value(row) {
            0.. => bytes.len().saturating_sub(count),
            _ => count.min(bytes.len()),
        };
        Ok(Some(String::from_utf8_lossy(&bytes[start..]).into_owned()))
    })
}

/// `byte_position(text, part[, from])`: the one-based position of the first occurrence at or after
/// a position in bytes, 0 if there is none.
pub(super) fn byte_position(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let parts = super::texts(args, 1, rows)?;
    let starts = match args.get(2) {
        Some(_) => Some(integers(args, 2, rows)?),
        None => None,
    };
    let positions: Int64Array = (0..rows)
        .map(|row| {
            if texts.is_null(row) || parts.is_null(row) {
                return None;
            }
            let from = starts.as_ref().map_or(1, |starts| starts.value(row));
            let skipped = usize::try_from(from.saturating_sub(1)).unwrap_or_default();
            let bytes = texts.value(row).as_bytes().get(skipped..)?;
            let found = find(bytes, parts.value(row).as_bytes());
            Some(found.map_or(0, |at| i64::try_from(skipped + at + 1).unwrap_or_default()))
        })
        .collect();
    Ok(Arc::new(positions))
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return Some(0);
    }
    bytes.windows(part.len()).position(|window| window == part)
}

/// Changes the case of ASCII letters only.
pub(super) fn ascii_lower(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    build_texts(rows, |row| {
        Ok((!texts.is_null(row)).then(|| texts.value(row).to_ascii_lowercase()))
    })
}

/// Changes the case of ASCII letters only.
pub(super) fn ascii_upper(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    build_texts(rows, |row| {
        Ok((!texts.is_null(row)).then(|| texts.value(row).to_ascii_uppercase()))
    })
}

/// The first groups of all matches, or the whole matches of a pattern without groups.
pub(super) fn regex_extract_all(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let is_clickhouse = literal(args, 1)?.starts_with("(?s)");
    let texts = texts(args, 0, rows)?;
    let pattern = pattern(args, 1)?;
    let group = usize::from(pattern.captures_len() > 1);
    let mut lists = ListBuilder::new(StringBuilder::new());
    let mut items = OutputBudget(OUTPUT_ITEMS_MAX);
    let mut bytes = OutputBudget(OUTPUT_BYTES_MAX);
    for row in 0..rows {
        if texts.is_null(row) {
            lists.append_null();
            continue;
        }
        let text = texts.value(row);
        let matches: &mut dyn Iterator<Item = Captures<'_>> = if is_clickhouse {
            &mut matches_until_empty(&pattern, text)
        } else {
            &mut pattern.captures_iter(text)
        };
        for captures in matches {
            let found = captures.get(group).map_or("", |found| found.as_str());
            items.take(1)?;
            bytes.take(found.len())?;
            lists.values().append_value(found);
        }
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}

/// Returns matches as `ClickHouse` does: each is searched in the rest of the text, and the first
/// empty match is the end.
fn matches_until_empty<'text>(
    pattern: &Regex,
    text: &'text str,
) -> impl Iterator<Item = Captures<'text>> {
    let mut rest = text;
    iter::from_fn(move || {
        let captures = pattern.captures(rest)?;
        let found = captures.get_match();
        if found.is_empty() {
            return None;
        }
        rest = &rest[found.end()..];
        Some(captures)
    })
}

/// Whether a pattern has no characters beside flags.
fn is_empty_pattern(args: &[ColumnarValue]) -> Result<bool> {
    let pattern = literal(args, 1)?;
    Ok(pattern.strip_prefix("(?s)").unwrap_or(pattern).is_empty())
}

/// Replaces the first match. `\0` to `\9` in the replacement refer to groups.
pub(super) fn regex_replace_one(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let pattern = pattern(args, 1)?;
    let template = replacement_template(literal(args, 2)?);
    let none = is_empty_pattern(args)?;
    build_texts(rows, |row| {
        if texts.is_null(row) {
            return Ok(None);
        }
        let text = texts.value(row);
        if none {
            return Ok(Some(text.to_owned()));
        }
        OutputBudget(OUTPUT_BYTES_MAX).take(text.len().saturating_mul(template.len() / 2 + 1))?;
        Ok(Some(pattern.replace(text, &template).into_owned()))
    })
}

/// Replaces all matches, none of an empty pattern.
pub(super) fn regex_replace_all(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    let pattern = pattern(args, 1)?;
    let template = replacement_template(literal(args, 2)?);
    let none = is_empty_pattern(args)?;
    build_texts(rows, |row| {
        if texts.is_null(row) {
            return Ok(None);
        }
        if none {
            return Ok(Some(texts.value(row).to_owned()));
        }
        replace_all(texts.value(row), &pattern, &template).map(Some)
    })
}

/// Replaces all matches. Unlike in the `regex` crate, an empty match can follow another match.
fn replace_all(text: &str, pattern: &Regex, template: &str) -> Result<String> {
    let mut output = String::new();
    let mut at = 0;
    while let Some(captures) = pattern.captures_at(text, at) {
        let found = captures.get_match();
        output.push_str(&text[at..found.start()]);
        captures.expand(template, &mut output);
        at = found.end();
        if output.len() > OUTPUT_BYTES_MAX {
            return Err(output_too_large());
        }
        if found.is_empty() {
            let Some(next) = text[at..].chars().next() else {
                break;
            };
            output.push(next);
            at += next.len_utf8();
        }
    }
    output.push_str(&text[at..]);
    Ok(output)
}

/// Escapes the backslashes of a pattern of `LIKE` that escape nothing: only `\\`, `\%` and `\_`
/// are escapes in `ClickHouse`.
pub(crate) fn escape_like(pattern: &str) -> String {
    let mut escaped = String::with_capacity(pattern.len());
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        escaped.push(character);
        if character != '\\' {
            continue;
        }
        match rest.peek() {
            Some(&next @ ('\\' | '%' | '_')) => {
                escaped.push(next);
                rest.next();
            }
            _ => escaped.push('\\'),
        }
    }
    escaped
}

/// [`escape_like`] of a column.
pub(super) fn escape_like_patterns(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let texts = texts(args, 0, rows)?;
    build_texts(rows, |row| {
        Ok((!texts.is_null(row)).then(|| escape_like(texts.value(row))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_count_from_both_ends() {
        for (from, length, expected) in [
            (0, None, 0..0),
            (2, None, 1..5),
            (-3, None, 2..5),
            (-3, Some(2), 2..4),
            (2, Some(-1), 1..4),
            (10, None, 0..0),
            (-10, Some(3), 0..0),
            (-6, Some(3), 0..2),
            (1, Some(i64::MAX), 0..5),
            (i64::MIN, Some(i64::MIN), 0..0),
        ] {
            assert_eq!(slice_range(5, from, length), expected, "{from} {length:?}");
        }
    }
}
