//! Bodies of several parts (RFC 7578), which are already in memory.
//!
//! File names are returned as sent, with their folders.

use bytes::Bytes;

use crate::platform::error::Error;

/// Largest number of parts.
const PARTS_MAX: usize = 20_000;
/// Largest head of a part, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Longest boundary (RFC 2046 §5.1.1), in bytes.
const BOUNDARY_BYTES_MAX: usize = 70;

/// A part of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormPart {
    /// The name of the field.
    pub name: String,
    /// The name of the file, if it is one.
    pub file_name: Option<String>,
    /// The content.
    pub content: Bytes,
}

fn broken(why: &'static str) -> Error {
    Error::invalid("body", why)
}

/// Returns the boundary in a `Content-Type` of `multipart/form-data`.
///
/// Errors: [`Error::UnsupportedMediaType`] for another type.
pub fn boundary(content_type: &str) -> Result<String, Error> {
    let unsupported = || Error::UnsupportedMediaType {
        expected: "multipart/form-data",
    };
    let (essence, parameters) = content_type.split_once(';').ok_or_else(unsupported)?;
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(unsupported());
    }
    let found = parameter(parameters, "boundary").ok_or_else(unsupported)?;
    if (1..=BOUNDARY_BYTES_MAX).contains(&found.len()) && found.is_ascii() {
        Ok(found)
    } else {
        Err(unsupported())
    }
}

/// Returns the parts of a body.
pub fn parse(boundary: &str, body: &Bytes) -> Result<Vec<FormPart>, Error> {
    let delimiter = format!("\r\n--{boundary}");
    let delimiter = delimiter.as_bytes();
    let opening = &delimiter[2..];
    // The first delimiter is at the beginning, or after a preamble.
    let mut position = if body.starts_with(opening) {
        opening.len()
    } else {
        let start = find(body, delimiter).ok_or_else(|| broken("has no part"))?;
        start + delimiter.len()
    };
    let mut parts = Vec::new();
    loop {
        let rest = &body[position..];
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        // White space is permitted after a delimiter.
        let line = find(rest, b"\r\n").ok_or_else(|| broken("ends inside a part"))?;
        if !rest[..line].iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(broken("has a broken delimiter"));
        }
        position += line;
        let window = &body[position..body.len().min(position + HEAD_BYTES_MAX)];
        let head = find(window, b"\r\n\r\n").ok_or_else(|| broken("has a part without content"))?;
        let start = position + head + 4;
        // A part without content ends with the line break of its head.
        let length = find(&body[start - 2..], delimiter);
        let length = length.ok_or_else(|| broken("ends inside a part"))?;
        let end = (start - 2 + length).max(start);
        if parts.len() >= PARTS_MAX {
            return Err(broken("has too many parts"));
        }
        parts.push(part(&window[..head], body.slice(start..end))?);
        position = start - 2 + length + delimiter.len();
    }
}

fn part(head: &[u8], content: Bytes) -> Result<FormPart, Error> {
    let head = std::str::from_utf8(head).map_err(|_| broken("has a head that is not UTF-8"))?;
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim()
            .eq_ignore_ascii_case("content-disposition")
            .then(|| value.trim())
    });
    let disposition = disposition.ok_or_else(|| broken("has a part without a name"))?;
    let (_, parameters) = disposition.split_once(';').unwrap_or((disposition, ""));
    Ok(FormPart {
        name: parameter(parameters, "name").ok_or_else(|| broken("has a part without a name"))?,
        file_name: parameter(parameters, "filename"),
        content,
    })
}

/// Returns a parameter of a field. A quoted value may contain semicolons, and the escapes `\"`,
/// `\\`, and those of browsers: `%22`, `%0D`, `%0A`.
fn parameter(mut rest: &str, wanted: &str) -> Option<String> {
    while !rest.is_empty() {
        let (name, more) = rest.split_once('=')?;
        let name = name.trim_start_matches([';', ' ', '\t']).trim_end();
        let (value, after) = if let Some(quoted) = more.strip_prefix('"') {
            quoted_text(quoted)?
        } else {
            let end = more.find(';').unwrap_or(more.len());
            (more[..end].trim().to_owned(), &more[end..])
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after.trim_start_matches([';', ' ', '\t']);
    }
    None
}

/// Returns the text before the closing quote, and the rest after it.
fn quoted_text(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => {
                let value = value.replace("%22", "\"");
                return Some((
                    value.replace("%0D", "\r").replace("%0A", "\n"),
                    &text[at + 1..],
                ));
            }
            // Other backslashes belong to the name.
            '\\' if text[at + 1..].starts_with(['"', '\\']) => {
                value.push(characters.next()?.1);
            }
            other => value.push(other),
        }
    }
    None
}

/// Returns the parts of a body around each occurrence of the boundary.
pub fn around<'a>(body: &'a [u8], boundary: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(body);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        match find(text, boundary) {
            Some(at) => {
                rest = Some(&text[at + boundary.len()..]);
                Some(&text[..at])
            }
            None => Some(text),
        }
    })
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|byte| *byte == first) {
        let start = from + at;
        if haystack[start..].starts_with(needle) {
            return Some(start);
        }
        from = start + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(body: &str) -> Result<Vec<(String, Option<String>, String)>, Error> {
        let parts = parse("b", &Bytes::copy_from_slice(body.as_bytes()))?;
        let text = |part: FormPart| {
            let content = String::from_utf8(part.content.into()).unwrap();
            (part.name, part.file_name, content)
        };
        Ok(parts.into_iter().map(text).collect())
    }

    #[test]
    fn parts_keep_folders_and_content() {
        let body = "preamble\r\n--b\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{}\n\r\n\
            --b \t\r\nContent-Type: text/x\r\ncontent-disposition: form-data; name=file; \
            filename=\"a/../b;c\\\"d%22.ts\"\r\n\r\nx\r\n--\r\n\r\n\
            --b\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--b--\r\nafter";
        let part = |name: &str, file: Option<&str>, content: &str| {
            (name.to_owned(), file.map(str::to_owned), content.to_owned())
        };
        let expected = [
            part("metadata", None, "{}\n"),
            part("file", Some("a/../b;c\"d\".ts"), "x\r\n--\r\n"),
            part("empty", None, ""),
        ];
        assert_eq!(parsed(body).unwrap(), expected);
    }

    #[test]
    fn malformed_bodies_are_rejected() {
        for body in [
            "",
            "--b",
            "--b\r\n",
            "--b\r\n\r\nx",
            "--b\r\n\r\nx\r\n--b--",
            "--bx\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--b--",
            "--b\r\nContent-Disposition: form-data; name=\"a\r\n\r\n\r\n--b--",
            "--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx",
        ] {
            assert!(parsed(body).is_err(), "{body:?}");
        }
    }

    #[test]
    fn boundary_is_read_from_the_content_type() {
        for (text, expected) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            (
                "Multipart/Form-Data; charset=utf-8; boundary=\"a b\"",
                Some("a b"),
            ),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("application/json", None),
            ("multipart/mixed; boundary=a", None),
        ] {
            assert_eq!(boundary(text).ok().as_deref(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(
            pieces in proptest::collection::vec(prop_oneof![
                Just("--b"), Just("\r\n"), Just("--"), Just("x"), Just("\r\n\r\n"),
                Just("Content-Disposition: form-data; name=\"a\"; filename=\"b"), Just("\""),
            ], 0..20),
        ) {
            let _ = parsed(&pieces.concat());
        }
    }
}
