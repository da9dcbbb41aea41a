//! Parser for the Logflare ingest format: an object, an array of objects, or `{"batch": […]}`.

use chrono::{DateTime, NaiveDateTime, Utc};
use gantry_logs::event::{Attributes, Event, Source};
use serde_json::{Map, Value as Json};

use super::{ID_BYTES_MAX, LINES_MAX, too_many, within_reach};
use crate::platform::error::Error;

/// Parses the lines of a body.
pub(super) fn events(
    body: &[u8],
    source: Source,
    now: DateTime<Utc>,
    mut id: impl FnMut() -> String,
) -> Result<Vec<Event>, Error> {
    let body: Json = serde_json::from_slice(body)
        .map_err(|error| Error::invalid("body", format!("is not JSON: {error}")))?;
    let lines = match body {
        Json::Array(lines) => lines,
        Json::Object(mut object) => match object.remove("batch") {
            Some(Json::Array(lines)) => lines,
            Some(_) => return Err(Error::invalid("batch", "expected an array")),
            None => vec![Json::Object(object)],
        },
        _ => {
            return Err(Error::invalid(
                "body",
                "expected an object or an array of them",
            ));
        }
    };
    if lines.len() > LINES_MAX {
        return Err(too_many());
    }
    let line = |line| match line {
        Json::Object(line) => Ok(event(line, source, now, &mut id)),
        _ => Err(Error::invalid("body", "expected objects in the array")),
    };
    lines.into_iter().map(line).collect()
}

fn event(
    mut line: Map<String, Json>,
    source: Source,
    now: DateTime<Utc>,
    id: &mut impl FnMut() -> String,
) -> Event {
    let message = line
        .remove("event_message")
        .or_else(|| line.remove("message"));
    let message = match message {
        Some(Json::String(text)) => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let at = line
        .remove("timestamp")
        .as_ref()
        .and_then(micros)
        .filter(|at| within_reach(*at, now))
        .unwrap_or(now.timestamp_micros());
    let given = line
        .remove("id")
        .and_then(|given| given.as_str().map(str::to_owned))
        .filter(|given| (1..=ID_BYTES_MAX).contains(&given.len()));
    Event::new(
        given.unwrap_or_else(id),
        at,
        source,
        message,
        Attributes::of_json(&line),
    )
}

/// Parses a time: text, or a number of microseconds, milliseconds or seconds, distinguished by its
/// size. A text without a zone is in UTC.
fn micros(at: &Json) -> Option<i64> {
    match at {
        Json::String(text) => match DateTime::parse_from_rfc3339(text) {
            Ok(at) => Some(at.timestamp_micros()),
            Err(_) => without_zone(text).or_else(|| sized(text.parse().ok()?)),
        },
        Json::Number(number) => sized(number.as_f64()?),
        _ => None,
    }
}

/// Parses a time without a zone: date and time separated by `T` or a space.
fn without_zone(text: &str) -> Option<i64> {
    const FORMATS: [&str; 2] = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"];
    let text = text.trim().trim_end_matches(" UTC");
    FORMATS.iter().find_map(|format| {
        let at = NaiveDateTime::parse_from_str(text, format).ok()?;
        Some(at.and_utc().timestamp_micros())
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "of what is out of reach nothing is made"
)]
fn sized(number: f64) -> Option<i64> {
    let factor = match number {
        ..0.0 => return None,
        ..1e11 => 1e6,
        ..1e14 => 1e3,
        ..1e17 => 1.0,
        _ => 1e-3,
    };
    Some((number * factor) as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Json) -> Result<Vec<Event>, Error> {
        let now = "2026-11-21T09:15:03Z".parse().unwrap();
        events(body.to_string().as_bytes(), Source::Auth, now, || {
            "made".to_owned()
        })
    }

    #[test]
    fn three_shapes_of_a_body_are_the_same() {
        let line = json!({ "event_message": "m", "metadata": { "level": "error", "status": 500 }, "project": "default" });
        for body in [line.clone(), json!([line]), json!({ "batch": [line] })] {
            let events = read(&body).unwrap();
            assert_eq!(
                (
                    events.len(),
                    events[0].message.as_str(),
                    events[0].severity.as_str()
                ),
                (1, "m", "ERROR"),
                "{body}"
            );
            let all: Vec<_> = events[0]
                .attributes
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            assert_eq!(all, ["level=error", "project=default", "status=500"]);
        }
        for body in [json!(1), json!([1]), json!({ "batch": 1 })] {
            assert!(read(&body).is_err(), "{body}");
        }
        assert!(read(&json!(vec![json!({}); LINES_MAX + 1])).is_err());
        assert_eq!(read(&json!([])).unwrap(), []);
    }

    #[test]
    fn times_come_in_many_forms() {
        let at = 1_795_252_500_000_000_i64;
        let forms = [
            json!("2026-11-21T09:15:00Z"),
            json!("2026-11-21T10:15:00+01:00"),
            json!("2026-11-21T09:15:00"),
            json!("2026-11-21T09:15:00.000000"),
            json!("2026-11-21 09:15:00.0"),
            json!("2026-11-21 09:15:00 UTC"),
            json!("2026-11-21 09:15:00Z"),
            json!(at),
            json!(at / 1_000),
            json!(at / 1_000_000),
            json!(at.to_string()),
        ];
        for form in forms {
            assert_eq!(
                read(&json!({ "timestamp": form, "message": "m" })).unwrap()[0].timestamp,
                at,
                "{form}"
            );
        }
        // Times outside the supported range are ignored.
        for form in [
            json!("yesterday"),
            json!(-1),
            json!(1e300),
            json!("2036-01-01T00:00:00Z"),
            json!(null),
        ] {
            assert_eq!(
                read(&json!({ "timestamp": form })).unwrap()[0].timestamp,
                at + 3_000_000,
                "{form}"
            );
        }
    }
}
