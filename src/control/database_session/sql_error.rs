//! Formats a server's `ErrorResponse` as the error text of the API.

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;

use crate::platform::error::Error;

/// Maximum characters of a field, because a message may contain a whole value.
const FIELD_CHARS_MAX: usize = 8_192;
/// Maximum characters of the displayed line. A longer line is cut around the error position.
const LINE_CHARS_MAX: usize = 240;

/// Hint of an error about roles on PostgreSQL 15.
const ROLES_NEED_16: &str =
    "Creating and changing roles needs a project on PostgreSQL 16 or newer.";

/// Hint of an error of dblink, `postgres_fdw`, a subscription or the extension `http`.
const NO_NETWORK: &str = "The database has no network, so it reaches no other server. Send HTTP \
                          requests with the extension pg_net; move data by a client of both servers.";
/// Beginnings of messages of the extension `http`, which are those of libcurl.
const CURL_MESSAGES: [&str; 6] = [
    "Could not resolve host",
    "Resolving timed out",
    "Failed to connect to",
    "Could not connect to",
    "Couldn't connect to",
    "Connection timed out after",
];

/// Fields of a server error.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct SqlError {
    severity: String,
    pub(crate) code: String,
    message: String,
    detail: String,
    hint: String,
    /// Position in the sent text, in characters, 1-based.
    position: Option<usize>,
    /// Query that a function ran internally.
    internal_query: String,
    context: String,
}

impl SqlError {
    pub(crate) fn read(body: &ErrorResponseBody) -> Self {
        let mut error = Self::default();
        let mut fields = body.fields();
        // An unreadable field ends the list. The preceding fields are kept.
        while let Ok(Some(field)) = fields.next() {
            let value = clip(&String::from_utf8_lossy(field.value_bytes()));
            match field.type_() {
                // `V` is the untranslated form of `S`.
                b'V' => error.severity = value,
                b'S' if error.severity.is_empty() => error.severity = value,
                b'C' => error.code = value,
                b'M' => error.message = value,
                b'D' => error.detail = value,
                b'H' => error.hint = value,
                b'P' => error.position = value.parse().ok(),
                b'q' => error.internal_query = value,
                b'W' => error.context = value,
                _ => {}
            }
        }
        error.hint_at_roles();
        error.hint_at_network();
        error
    }

    /// Adds the remedy to the errors of CREATE ROLE and ALTER ROLE before PostgreSQL 16, where the
    /// owner of a project has no rights on roles. From 16 on, these errors have a detail.
    fn hint_at_roles(&mut self) {
        let refused = ["permission denied to create role", "permission denied"];
        if self.code == "42501"
            && self.detail.is_empty()
            && self.hint.is_empty()
            && refused.contains(&self.message.as_str())
        {
            ROLES_NEED_16.clone_into(&mut self.hint);
        }
    }

    /// Adds the remedy to the errors of connections that the database tried to open. The sandbox
    /// refuses them with the words of the kernel only.
    fn hint_at_network(&mut self) {
        // sqlclient_unable_to_establish_sqlconnection and connection_failure.
        let is_connection = ["08001", "08006"].contains(&self.code.as_str());
        let is_curl = self.code == "XX000"
            && CURL_MESSAGES
                .iter()
                .any(|beginning| self.message.starts_with(beginning));
        if self.hint.is_empty() && (is_connection || is_curl) {
            NO_NETWORK.clone_into(&mut self.hint);
        }
    }

    /// Returns the error for an exceeded API deadline, equal to that of `statement_timeout`.
    pub(crate) fn statement_timeout() -> Self {
        Self {
            severity: "ERROR".into(),
            code: "57014".into(),
            message: "canceling statement due to statement timeout".into(),
            ..Self::default()
        }
    }

    /// Returns the error with its position shifted by characters that preceded the sent text.
    pub(crate) fn shifted_by(self, characters: usize) -> Self {
        Self {
            position: self.position.map(|position| position + characters),
            ..self
        }
    }

    /// Returns the position in `sql`, in bytes.
    pub(crate) fn byte_position(&self, sql: &str) -> Option<usize> {
        let position = self.position?.checked_sub(1)?;
        let found = sql.char_indices().nth(position).map(|(at, _)| at);
        Some(found.unwrap_or(sql.len()))
    }

    /// Returns one line for logs, without values of rows.
    pub(crate) fn summary(&self) -> String {
        format!("{}: {}: {}", self.severity, self.code, self.message)
    }

    /// Returns the text of `behaviour.md` §8, with the line of `sql` at the error position.
    ///
    /// The order of message, line, detail, hint, query and context is that of postgres-meta, which
    /// the text must match.
    pub(crate) fn text(&self, sql: &str) -> String {
        let mut text = format!("{}:  {}: {}\n", self.severity, self.code, self.message);
        if let Some(position) = self.position {
            text.push_str(&pointer(sql, position));
        }
        let rest = [
            ("DETAIL", &self.detail),
            ("HINT", &self.hint),
            ("QUERY", &self.internal_query),
            ("CONTEXT", &self.context),
        ];
        for (label, value) in rest.into_iter().filter(|(_, value)| !value.is_empty()) {
            text.extend([label, ":  ", value, "\n"]);
        }
        text
    }

    /// Converts to [`Error::Sql`], a 400 response with [`SqlError::text`].
    pub(crate) fn into_error(self, sql: &str) -> Error {
        Error::Sql(self.text(sql))
    }
}

/// Returns `LINE n: <line>` and a caret under the character at `position` (1-based). A tab counts
/// as one space, as in psql.
fn pointer(sql: &str, position: usize) -> String {
    let mut number = 1;
    let mut line_start = 0;
    for (at, c) in sql.chars().enumerate().take(position.saturating_sub(1)) {
        if c == '\n' {
            number += 1;
            line_start = at + 1;
        }
    }
    let line = sql.lines().nth(number - 1).unwrap_or_default();
    let length = line.chars().count();
    let column = position.saturating_sub(1 + line_start).min(length);

    let (skipped, lead) = if length > LINE_CHARS_MAX && column > LINE_CHARS_MAX / 2 {
        (column - LINE_CHARS_MAX / 2, "...")
    } else {
        (0, "")
    };
    let shown: String = line
        .chars()
        .skip(skipped)
        .take(LINE_CHARS_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let tail = if length > skipped + LINE_CHARS_MAX {
        "..."
    } else {
        ""
    };

    let label = format!("LINE {number}: {lead}");
    let caret = label.len() + column - skipped;
    format!("{label}{shown}{tail}\n{:caret$}^\n", "")
}

fn clip(value: &str) -> String {
    match value.char_indices().nth(FIELD_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syntax_error(position: usize) -> SqlError {
        SqlError {
            severity: "ERROR".into(),
            code: "42P01".into(),
            message: "relation \"nope\" does not exist".into(),
            position: Some(position),
            ..SqlError::default()
        }
    }

    #[test]
    fn caret_marks_the_position() {
        assert_eq!(
            syntax_error(15).text("select * from nope"),
            "ERROR:  42P01: relation \"nope\" does not exist\nLINE 1: select * from nope\n                      ^\n"
        );
        assert_eq!(
            pointer("select 1;\n\tselect é, x", 21),
            "LINE 2:  select é, x\n                  ^\n"
        );
        assert_eq!(
            pointer("select (", 9),
            "LINE 1: select (\n                ^\n",
            "at end of input"
        );
        assert_eq!(pointer("select (\r\n", 11), "LINE 2: \n        ^\n");
        assert_eq!(pointer("", 1), "LINE 1: \n        ^\n");
        assert_eq!(pointer("x", usize::MAX), "LINE 1: x\n         ^\n");
        assert_eq!(pointer("x", 0), "LINE 1: x\n        ^\n");
    }

    #[test]
    fn long_line_is_cut_around_the_position() {
        let sql = format!("{}!{}", "a".repeat(1000), "b".repeat(1000));
        let text = pointer(&sql, 1001);
        let mut lines = text.lines();
        let (shown, caret) = (lines.next().unwrap(), lines.next().unwrap());
        assert!(
            shown.starts_with("LINE 1: ...a") && shown.ends_with("b..."),
            "{shown}"
        );
        assert_eq!(shown.find('!'), caret.find('^'));
    }

    #[test]
    fn detail_and_hint_follow_the_line() {
        let error = SqlError {
            detail: "Key (id)=(1) already exists.".into(),
            hint: "Try 2.".into(),
            ..syntax_error(1)
        };
        assert!(
            error
                .text("x")
                .ends_with("^\nDETAIL:  Key (id)=(1) already exists.\nHINT:  Try 2.\n")
        );
    }

    #[test]
    fn refused_roles_of_postgresql_15_get_a_hint() {
        let refused = |message: &str, detail: &str| {
            let mut error = SqlError {
                code: "42501".into(),
                message: message.into(),
                detail: detail.into(),
                ..SqlError::default()
            };
            error.hint_at_roles();
            error.hint
        };
        assert_eq!(refused("permission denied", ""), ROLES_NEED_16);
        assert_eq!(
            refused("permission denied to create role", ""),
            ROLES_NEED_16
        );
        assert_eq!(refused("permission denied for table t", ""), "");
        let newer = "Only roles with the CREATEROLE attribute may create roles.";
        assert_eq!(refused("permission denied to create role", newer), "");
    }

    #[test]
    fn failed_connections_of_the_database_get_a_hint() {
        let hint = |code: &str, message: &str| {
            let mut error = SqlError {
                code: code.into(),
                message: message.into(),
                ..SqlError::default()
            };
            error.hint_at_network();
            error.hint
        };
        assert_eq!(hint("08001", "could not establish connection"), NO_NETWORK);
        assert_eq!(
            hint("08006", "could not connect to the publisher"),
            NO_NETWORK
        );
        assert_eq!(hint("XX000", "Could not resolve host: a.test"), NO_NETWORK);
        assert_eq!(hint("XX000", "cache lookup failed"), "");
        assert_eq!(hint("42P01", "Failed to connect to"), "");
    }

    proptest::proptest! {
        #[test]
        fn every_position_yields_a_pointer(sql in "(?s).{0,400}", position in 0usize..500) {
            let text = pointer(&sql, position);
            proptest::prop_assert!(text.starts_with("LINE ") && text.ends_with("^\n"));
            proptest::prop_assert!(text.chars().count() < 3 * LINE_CHARS_MAX);
        }
    }
}
