//! Conversion of PostgreSQL `jsonlog` lines to log lines.

use std::path::Path;

use chrono::{DateTime, NaiveDateTime, Utc};
use gantry_base::ids::ProjectRef;
use gantry_logs::event::{Attributes, Event, Source, Value};
use gantry_node::clusters::{platform_roles, template};
use serde_json::{Map, Value as Json};

use crate::api::logs::requests::{number, text};

/// Field names of `jsonlog` and the corresponding keys.
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

/// Fields besides the message that contain server paths.
const WITH_PATHS: [&str; 3] = ["context", "detail", "hint"];

/// Folders of the host whose paths are hidden from tenants.
pub(super) struct HostFolders(Vec<String>);

impl HostFolders {
    /// Folders in replacement order: a nested folder before its parent.
    pub(super) fn new(folders: &[&Path]) -> Self {
        Self(
            folders
                .iter()
                .map(|folder| format!("{}/", folder.display()))
                .collect(),
        )
    }

    /// Returns the text with every path in these folders made relative to its folder.
    fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for folder in &self.0 {
            if text.contains(folder) {
                text = text.replace(folder, "");
            }
        }
        text
    }
}

/// Values of the `ps` field while a session starts. Later it is `idle` or the command tag of a
/// statement.
const OPENING: [&str; 3] = ["initializing", "authentication", "startup"];

/// Whether a line belongs to a session of the platform. Only fields set by the server are read:
/// `user` is the login role, even after `set role`, and tenants cannot log in as a platform role.
///
/// The platform runs a tenant's SQL with roles other than the superuser. Lines of such a session
/// belong to the tenant once the session has started.
fn is_of_platform(line: &Map<String, Json>) -> bool {
    let word = |name: &str| line.get(name).and_then(Json::as_str).unwrap_or_default();
    match word("user") {
        // A connection without a role yet. Only processes of the platform connect to a server.
        "" => line.contains_key("remote_host"),
        platform_roles::SUPERUSER | platform_roles::ROWS_LOGIN => true,
        role => template::is_platform_login(role) && OPENING.contains(&word("ps")),
    }
}

/// Parses a line without its line break. Returns `None` for a line of a platform session. Text that
/// is not JSON, such as half a line after a crash, becomes the message.
pub(super) fn event(
    id: String,
    project: &ProjectRef,
    bytes: &[u8],
    now: DateTime<Utc>,
    folders: &HostFolders,
) -> Option<Event> {
    let mut all = Attributes::default();
    text(&mut all, "identifier", project.as_str());
    text(&mut all, "host", format!("db-{project}"));
    let Ok(line) = serde_json::from_slice::<Map<String, Json>>(bytes) else {
        return Some(Event::new(
            id,
            now.timestamp_micros(),
            Source::Postgres,
            folders.hide(&String::from_utf8_lossy(bytes)),
            all,
        ));
    };
    if is_of_platform(&line) {
        return None;
    }
    for (name, key) in KEYS {
        match line.get(*name) {
            Some(Json::String(value)) if WITH_PATHS.contains(name) => {
                text(&mut all, *key, folders.hide(value));
            }
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
    Some(Event::new(
        id,
        at.timestamp_micros(),
        Source::Postgres,
        folders.hide(word("message")),
        all,
    ))
}

/// Returns the replacement of a line that exceeds the size limit.
pub(super) fn too_long(id: String, project: &ProjectRef, length: u64, now: DateTime<Utc>) -> Event {
    let mut all = Attributes::default();
    text(&mut all, "identifier", project.as_str());
    text(&mut all, "parsed.error_severity", "WARNING");
    Event::new(
        id,
        now.timestamp_micros(),
        Source::Postgres,
        format!("line of {length} bytes skipped"),
        all,
    )
}

#[cfg(test)]
mod tests {
    use gantry_logs::event::Severity;

    use super::*;

    fn kept(line: &str) -> Option<Event> {
        let folders = ["/srv/gantry/projects/abc/data", "/run/g/abc", "/srv/gantry"];
        event(
            "id".to_owned(),
            &"abcdefghijklmnopqrst".parse().unwrap(),
            line.as_bytes(),
            DateTime::UNIX_EPOCH,
            &HostFolders::new(&folders.map(Path::new)),
        )
    }

    fn read(line: &str) -> Event {
        kept(line).unwrap()
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

    #[test]
    fn lines_of_platform_sessions_are_left_out() {
        for (line, expected) in [
            (
                r#"{"remote_host":"[local]","ps":"","message":"connection received: host=[local]"}"#,
                false,
            ),
            (
                r#"{"user":"supabase_admin","remote_host":"[local]","ps":"idle","message":"statement: alter role x password 'y'"}"#,
                false,
            ),
            (
                r#"{"user":"gantry_rows","remote_host":"[local]","ps":"idle","message":"statement: insert into auth.saml_providers"}"#,
                false,
            ),
            (
                r#"{"user":"gantry_owner","remote_host":"[local]","ps":"authentication","message":"connection authorized: user=gantry_owner"}"#,
                false,
            ),
            (
                r#"{"user":"supabase_read_only_user","remote_host":"[local]","ps":"startup","error_severity":"FATAL","message":"too many"}"#,
                false,
            ),
            // The tenant's own SQL, and a message that resembles a platform line.
            (
                r#"{"user":"gantry_owner","remote_host":"[local]","ps":"SELECT","message":"connection authorized: user=x"}"#,
                true,
            ),
            (
                r#"{"user":"gantry_owner","remote_host":"[local]","ps":"idle","application_name":"gantry","message":"statement: create table t ()"}"#,
                true,
            ),
            (
                r#"{"user":"postgres","remote_host":"[local]","ps":"authentication","application_name":"gantry","message":"connection authorized"}"#,
                true,
            ),
            (
                r#"{"backend_type":"checkpointer","message":"checkpoint starting: time"}"#,
                true,
            ),
        ] {
            assert_eq!(kept(line).is_some(), expected, "{line}");
        }
    }

    #[test]
    fn host_paths_are_made_relative() {
        let line = read(
            r#"{"user":"postgres","remote_host":"[local]","ps":"authentication","error_severity":"FATAL",
            "message":"failed (/srv/gantry/projects/abc/data/pg_hba.conf:4)",
            "detail":"Connection matched file \"/srv/gantry/projects/abc/data/pg_hba.conf\" line 4: \"local all\"",
            "hint":"See /srv/gantry/engines/17.6/share.","statement":"select '/srv/gantry/'"}"#,
        );
        assert_eq!(line.message, "failed (pg_hba.conf:4)");
        let all: Vec<_> = line
            .attributes
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        for expected in [
            r#"parsed.detail=Connection matched file "pg_hba.conf" line 4: "local all""#,
            "parsed.hint=See engines/17.6/share.",
            "parsed.query=select '/srv/gantry/'",
        ] {
            assert!(all.iter().any(|attribute| attribute == expected), "{all:?}");
        }
        assert_eq!(
            read(r#"{"message":"listening on Unix socket \"/run/g/abc/.s.PGSQL.5432\""}"#).message,
            r#"listening on Unix socket ".s.PGSQL.5432""#
        );
        assert_eq!(
            read("{half /srv/gantry/projects/abc/data/x").message,
            "{half x"
        );
    }
}
