//! A line of a server's log, as the server writes it and as it is asked for. Pure.

use chrono::{DateTime, NaiveDateTime, Utc};
use gantry_logs::event::{Attributes, Event, Source, Value};
use serde_json::{Map, Value as Json};

use crate::{
    api::logs::requests::{number, text},
    base::ids::ProjectRef,
};

/// What the server calls something, and under which key it is asked for.
const KEYS: &[(&str, &str)] = &[
    ("application_name", "parsed.application_name"),
    ("backend_type", "parsed.backend_type"),
    ("context", "parsed.context"),
    ("cursor_position", "parsed.query_pos"),
    ("dbname", "parsed.database_name"),
    ("detail", "parsed.detail"),
    ("error_severity", "parsed.error_severity"),
    ("hint", "parsed.hint"),
    ("internal_position", "parsed.internal_query_pos"),
    ("internal_query", "parsed.internal_query"),
    ("leader_pid", "parsed.leader_pid"),
    ("line_num", "parsed.session_line_num"),
    ("pid", "parsed.process_id"),
    ("ps", "parsed.command_tag"),
    ("query_id", "parsed.query_id"),
    ("session_id", "parsed.session_id"),
    ("session_start", "parsed.session_start_time"),
    ("state_code", "parsed.sql_state_code"),
    ("statement", "parsed.query"),
    ("timestamp", "parsed.timestamp"),
    ("txid", "parsed.transaction_id"),
    ("user", "parsed.user_name"),
    ("vxid", "parsed.virtual_transaction_id"),
];

/// The line of `bytes`, which end before a line break. What is no JSON is kept as it is: half a line after a crash, say.
pub(super) fn event(id: String, project: &ProjectRef, bytes: &[u8], now: DateTime<Utc>) -> Event {
    let mut all = Attributes::default();
    text(&mut all, "identifier", project.as_str());
    text(&mut all, "host", format!("db-{project}"));
    let Ok(line) = serde_json::from_slice::<Map<String, Json>>(bytes) else {
        return Event::new(
            id,
            now.timestamp_micros(),
            Source::Postgres,
            String::from_utf8_lossy(bytes).into_owned(),
            all,
        );
    };
    for (name, key) in KEYS {
        match line.get(*name) {
            Some(Json::String(value)) => text(&mut all, *key, value),
            Some(Json::Number(value)) => match value.as_i64() {
                Some(value) => number(&mut all, *key, value),
                None => all.add(*key, Value::Text(value.to_string())),
            },
            _ => {}
        }
    }
    let word = |name: &str| line.get(name).and_then(Json::as_str).unwrap_or_default();
    match (
        word("remote_host"),
        line.get("remote_port").and_then(Json::as_i64),
    ) {
        ("", _) => {}
        (host, Some(port)) => text(&mut all, "parsed.connection_from", format!("{host}:{port}")),
        (host, None) => text(&mut all, "parsed.connection_from", host),
    }
    let at = NaiveDateTime::parse_from_str(word("timestamp"), "%Y-%m-%d %H:%M:%S%.f UTC")
        .map_or(now, |at| at.and_utc());
    Event::new(
        id,
        at.timestamp_micros(),
        Source::Postgres,
        word("message").to_owned(),
        all,
    )
}

/// The line in the place of one that is longer than is read.
pub(super) fn too_long(id: String, project: &ProjectRef, length: u64, now: DateTime<Utc>) -> Event {
    let mut all = Attributes::default();
    text(&mut all, "identifier", project.as_str());
    text(&mut all, "parsed.error_severity", "WARNING");
    Event::new(
        id,
        now.timestamp_micros(),
        Source::Postgres,
        format!("a line of {length} bytes was left out"),
        all,
    )
}

#[cfg(test)]
mod tests {
    use gantry_logs::event::Severity;

    use super::*;

    fn read(line: &str) -> Event {
        event(
            "id".to_owned(),
            &"abcdefghijklmnopqrst".parse().unwrap(),
            line.as_bytes(),
            DateTime::UNIX_EPOCH,
        )
    }

    #[test]
    fn a_line_of_the_server_has_the_contracts_keys() {
        let line = read(
            r#"{"timestamp":"2026-11-21 09:15:03.250 UTC","user":"postgres","dbname":"postgres","pid":77,"remote_host":"[local]",
            "session_id":"65a.4d","line_num":3,"ps":"SELECT","session_start":"2026-11-21 09:15:03 UTC","vxid":"4/9","txid":0,
            "error_severity":"ERROR","state_code":"42P01","message":"relation \"x\" does not exist","statement":"select * from x",
            "cursor_position":15,"application_name":"psql","backend_type":"client backend","query_id":-7}"#,
        );
        assert_eq!(
            (line.timestamp, line.severity),
            (1_795_252_503_250_000, Severity::Error)
        );
        assert_eq!(line.message, r#"relation "x" does not exist"#);
        let all: Vec<_> = line
            .attributes
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let expected = [
            "host=db-abcdefghijklmnopqrst",
            "identifier=abcdefghijklmnopqrst",
            "parsed.application_name=psql",
            "parsed.backend_type=client backend",
            "parsed.command_tag=SELECT",
            "parsed.connection_from=[local]",
            "parsed.database_name=postgres",
            "parsed.error_severity=ERROR",
            "parsed.process_id=77",
            "parsed.query=select * from x",
            "parsed.query_id=-7",
            "parsed.query_pos=15",
            "parsed.session_id=65a.4d",
            "parsed.session_line_num=3",
            "parsed.session_start_time=2026-11-21 09:15:03 UTC",
            "parsed.sql_state_code=42P01",
            "parsed.timestamp=2026-11-21 09:15:03.250 UTC",
            "parsed.transaction_id=0",
            "parsed.user_name=postgres",
            "parsed.virtual_transaction_id=4/9",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn what_is_no_json_is_kept_as_it_is() {
        let line = read(r#"{"timestamp":"2026-"#);
        assert_eq!(
            (line.message.as_str(), line.timestamp, line.severity),
            (r#"{"timestamp":"2026-"#, 0, Severity::Info)
        );
        assert_eq!(
            read(r#"{"message":"m","timestamp":"2026-11-21 09:15:03 CET"}"#).timestamp,
            0,
            "another zone"
        );
    }
}
