//! What one log line is.

use std::{borrow::Cow, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Attributes of one line at most; the rest of them are dropped.
pub const ATTRIBUTES_MAX: usize = 256;
/// Levels of objects in objects at most; what lies deeper is kept as JSON text.
pub const DEPTH_MAX: usize = 8;
/// Longest text of a line or of one attribute in bytes; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

macro_rules! sources {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Where lines come from: a table in one dialect, a value of the column `source` in the other.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Source {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Source {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name in both dialects.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

sources! {
    /// Requests to the services of a project.
    Edge = "edge_logs",
    /// The project's database server.
    Postgres = "postgres_logs",
    /// The service of signing in.
    Auth = "auth_logs",
    /// What people did with accounts.
    AuthAudit = "auth_audit_logs",
    /// What functions write.
    Function = "function_logs",
    /// Requests to functions.
    FunctionEdge = "function_edge_logs",
    /// The service of files.
    Storage = "storage_logs",
    /// The service of subscriptions.
    Realtime = "realtime_logs",
    /// The service of tables as resources.
    Postgrest = "postgrest_logs",
    /// One pooler of connections.
    Supavisor = "supavisor_logs",
    /// Another.
    Pgbouncer = "pgbouncer_logs",
    /// Upgrades of the database server.
    PgUpgrade = "pg_upgrade_logs",
    /// Replication to elsewhere.
    EtlReplication = "etl_replication_logs",
    /// A sharding proxy.
    Multigres = "multigres_logs",
    /// Runs of workflows.
    WorkflowRun = "workflow_run_logs",
    /// Requests to this Management API that name the project.
    Management = "management_logs",
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text names no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no source {0:?}")]
pub struct UnknownSource(pub String);

impl FromStr for Source {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, UnknownSource> {
        Self::ALL
            .iter()
            .copied()
            .find(|source| source.as_str() == text)
            .ok_or_else(|| UnknownSource(text.to_owned()))
    }
}

/// How serious a line is (`analytics.md` §2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the words of the contract")]
pub enum Severity {
    Trace,
    Debug,
    #[default]
    Info,
    Notice,
    Warn,
    Warning,
    Error,
    Fatal,
    Critical,
    Emergency,
    Alert,
    Log,
    Panic,
}

impl Severity {
    const NAMED: [(&str, Self); 13] = [
        ("TRACE", Self::Trace),
        ("DEBUG", Self::Debug),
        ("INFO", Self::Info),
        ("NOTICE", Self::Notice),
        ("WARN", Self::Warn),
        ("WARNING", Self::Warning),
        ("ERROR", Self::Error),
        ("FATAL", Self::Fatal),
        ("CRITICAL", Self::Critical),
        ("EMERGENCY", Self::Emergency),
        ("ALERT", Self::Alert),
        ("LOG", Self::Log),
        ("PANIC", Self::Panic),
    ];

    /// Its name, upper-case.
    pub fn as_str(self) -> &'static str {
        Self::NAMED
            .iter()
            .find(|(_, severity)| *severity == self)
            .map_or("INFO", |(name, _)| name)
    }

    /// What the attributes of a line say of it: the first of these that is there, `INFO` where none is a known word.
    pub fn of(attributes: &Attributes) -> Self {
        let said = ["severity_text", "level", "parsed.error_severity"]
            .iter()
            .find_map(|key| attributes.text(key));
        said.and_then(|said| {
            Self::NAMED
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(said))
        })
        .map_or(Self::Info, |(_, it)| *it)
    }
}

/// What one attribute says.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in JSON")]
pub enum Value {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(it) => it.fmt(f),
            Self::Integer(it) => it.fmt(f),
            Self::Float(it) => it.fmt(f),
            Self::Text(it) => it.fmt(f),
        }
    }
}

/// The attributes of a line under dotted keys: `request.headers.host`. At most [`ATTRIBUTES_MAX`].
///
/// In the order of their keys. A list, as a line has few and they come in order more often than not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attributes(Vec<(Key, Value)>);

/// A dotted key. Most are known beforehand.
pub type Key = Cow<'static, str>;

impl Attributes {
    /// Adds one, unless there are too many. An empty text is kept: a key that is there is not one that is missing.
    pub fn add(&mut self, key: impl Into<Key>, value: Value) {
        let key = key.into();
        let value = match value {
            Value::Text(text) => Value::Text(cut(text)),
            other => other,
        };
        let after_all = self.0.last().is_none_or(|(last, _)| *last < key);
        match if after_all {
            Err(self.0.len())
        } else {
            self.find(&key)
        } {
            Ok(known) => self.0[known].1 = value,
            Err(place) if self.0.len() < ATTRIBUTES_MAX => self.0.insert(place, (key, value)),
            Err(_) => {}
        }
    }

    /// Where a key is, or would be.
    fn find(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(key))
    }

    /// What stands under a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// The text under a key.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// All, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    /// The body of a line as JSON: `metadata` is lifted to the top, objects become dotted keys, and so do arrays of one object,
    /// which is how one dialect writes an object. Other arrays are kept as JSON text. `null` is as good as missing.
    pub fn of_json(body: &Map<String, Json>) -> Self {
        let mut all = Self::default();
        for (key, value) in body {
            match (key.as_str(), inner(value)) {
                ("metadata", Some(metadata)) => metadata
                    .iter()
                    .for_each(|(key, value)| all.flatten(key.clone(), value, 1)),
                _ => all.flatten(key.clone(), value, 1),
            }
        }
        all
    }

    fn flatten(&mut self, key: String, value: &Json, depth: usize) {
        match (value, inner(value)) {
            (_, Some(object)) if depth < DEPTH_MAX => {
                object.iter().for_each(|(name, value)| {
                    self.flatten(format!("{key}.{name}"), value, depth + 1)
                });
            }
            (Json::Null, _) => {}
            (Json::Bool(it), _) => self.add(key, Value::Boolean(*it)),
            (Json::String(it), _) => self.add(key, Value::Text(it.clone())),
            (Json::Number(it), _) => {
                let value = it
                    .as_i64()
                    .map(Value::Integer)
                    .or_else(|| it.as_f64().map(Value::Float));
                self.add(key, value.unwrap_or_else(|| Value::Text(it.to_string())));
            }
            (other, _) => self.add(key, Value::Text(other.to_string())),
        }
    }
}

/// The object that a value is, or that an array holds alone.
fn inner(value: &Json) -> Option<&Map<String, Json>> {
    match value {
        Json::Object(object) => Some(object),
        Json::Array(array) => match array.as_slice() {
            [Json::Object(object)] => Some(object),
            _ => None,
        },
        _ => None,
    }
}

/// As much of a text as is kept.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its id, mostly a UUID.
    pub id: String,
    /// When it happened, in microseconds since 1970, UTC.
    pub timestamp: i64,
    /// Where it came from.
    pub source: Source,
    /// How serious it is.
    pub severity: Severity,
    /// The line itself.
    pub message: String,
    /// What is known of it beside.
    pub attributes: Attributes,
}

impl Event {
    /// A line whose severity its attributes tell.
    pub fn new(
        id: String,
        timestamp: i64,
        source: Source,
        message: String,
        attributes: Attributes,
    ) -> Self {
        Self {
            id,
            timestamp,
            source,
            severity: Severity::of(&attributes),
            message: cut(message),
            attributes,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_becomes_dotted_keys() {
        let body = json!({
            "project": "default", "nothing": null,
            "metadata": [{ "request": [{ "path": "/rest/v1", "headers": { "host": "h" } }], "tags": ["a", 1], "up": true, "took": 1.5, "n": 3 }],
        });
        let all = Attributes::of_json(body.as_object().unwrap());
        let all: Vec<_> = all
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(
            all,
            [
                r"n=3",
                "project=default",
                "request.headers.host=h",
                "request.path=/rest/v1",
                r#"tags=["a",1]"#,
                "took=1.5",
                "up=true"
            ]
        );
    }

    #[test]
    fn a_line_has_bounds() {
        let deep = (0..20).fold(json!(1), |inner, _| json!({ "a": inner }));
        let deep = Attributes::of_json(deep.as_object().unwrap());
        assert_eq!(
            deep.iter()
                .map(|(key, _)| key.matches('.').count() + 1)
                .max(),
            Some(DEPTH_MAX)
        );
        let many: Map<String, Json> = (0..2 * ATTRIBUTES_MAX)
            .map(|n| (n.to_string(), json!(n)))
            .collect();
        assert_eq!(Attributes::of_json(&many).iter().count(), ATTRIBUTES_MAX);
        let event = Event::new(
            String::new(),
            0,
            Source::Edge,
            "ä".repeat(TEXT_BYTES_MAX),
            Attributes::default(),
        );
        assert_eq!(event.message.len(), TEXT_BYTES_MAX);
    }

    #[test]
    fn severity_is_what_the_first_of_three_attributes_says() {
        let of = |body: Json| Severity::of(&Attributes::of_json(body.as_object().unwrap()));
        assert_eq!(
            of(json!({ "metadata": { "level": "warn", "parsed": { "error_severity": "ERROR" } } })),
            Severity::Warn
        );
        assert_eq!(
            of(json!({ "metadata": { "parsed": { "error_severity": "panic" } } })),
            Severity::Panic
        );
        assert_eq!(of(json!({ "level": "strange" })), Severity::Info);
        assert!(
            Severity::NAMED
                .iter()
                .all(|(name, severity)| severity.as_str() == *name)
        );
        assert!(
            Source::ALL
                .iter()
                .all(|source| source.as_str().parse() == Ok(*source))
        );
    }
}
