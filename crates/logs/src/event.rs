//! The data model of a log line: source, severity, message and attributes.

use std::{borrow::Cow, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Maximum number of attributes of one line. Further attributes are dropped.
pub const ATTRIBUTES_MAX: usize = 256;
/// Maximum nesting of objects. Deeper objects are stored as JSON text.
pub const DEPTH_MAX: usize = 8;
/// Maximum length of a message or an attribute text, in bytes. Longer texts are truncated.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

macro_rules! sources {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The origin of a line: a table name in `BigQuery` SQL, a value of the column `source` in
        /// `ClickHouse` SQL.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Source {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Source {
            /// All sources.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the name of the source in both dialects.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

sources! {
    /// Requests to a project's services.
    Edge = "edge_logs",
    /// The project's PostgreSQL server.
    Postgres = "postgres_logs",
    /// The authentication service.
    Auth = "auth_logs",
    /// Audit trail of the authentication service.
    AuthAudit = "auth_audit_logs",
    /// Output of edge functions.
    Function = "function_logs",
    /// Requests to edge functions.
    FunctionEdge = "function_edge_logs",
    /// The storage service.
    Storage = "storage_logs",
    /// The realtime service.
    Realtime = "realtime_logs",
    /// The `PostgREST` service.
    Postgrest = "postgrest_logs",
    /// The Supavisor connection pooler.
    Supavisor = "supavisor_logs",
    /// The `PgBouncer` connection pooler.
    Pgbouncer = "pgbouncer_logs",
    /// Upgrades of the PostgreSQL server.
    PgUpgrade = "pg_upgrade_logs",
    /// The replication pipelines.
    EtlReplication = "etl_replication_logs",
    /// The Multigres sharding proxy.
    Multigres = "multigres_logs",
    /// Workflow runs.
    WorkflowRun = "workflow_run_logs",
    /// Management API requests that address the project.
    Management = "management_logs",
    /// HTTP requests that the project's database makes.
    PgNet = "pg_net_logs",
    /// Services with a name of their own, see [`Event::source_name`].
    Other = "other_logs",
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is not the name of a [`Source`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown log source {0:?}")]
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

/// The severity of a line (`analytics.md` §2.4).
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
    const NAMES: [(&str, Self); 13] = [
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

    /// Returns the upper-case name.
    pub fn as_str(self) -> &'static str {
        for (name, severity) in &Self::NAMES {
            if *severity == self {
                return name;
            }
        }
        "INFO"
    }

    /// Reads the severity from the first present attribute of `severity_text`, `level` and
    /// `parsed.error_severity`. An unknown word is [`Self::Info`].
    pub fn of(attributes: &Attributes) -> Self {
        const KEYS: [&str; 3] = ["severity_text", "level", "parsed.error_severity"];
        let Some(word) = KEYS.iter().find_map(|key| attributes.text(key)) else {
            return Self::Info;
        };
        for (name, severity) in &Self::NAMES {
            if name.eq_ignore_ascii_case(word) {
                return *severity;
            }
        }
        Self::Info
    }
}

/// The value of one attribute.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the JSON types")]
pub enum Value {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

/// The attributes of a line under dotted keys such as `request.headers.host`. At most
/// [`ATTRIBUTES_MAX`].
///
/// A vector sorted by key: lines have few attributes and producers mostly add them in key order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attributes(Vec<(Key, Value)>);

/// The attribute that names what was cut from a line: `event_message`, `attributes`, or the key of
/// an attribute, separated by commas.
pub const CUT: &str = "truncated";
/// Maximum number of names in [`CUT`].
const CUT_NAMES_MAX: usize = 8;
/// The attribute with the name of a service of [`Source::Other`].
pub const SERVICE_NAME: &str = "resource.service.name";
/// Maximum length of the name of a service that is used as a source, in bytes.
const SOURCE_NAME_BYTES_MAX: usize = 64;

/// A dotted key. Known keys are static and need no allocation.
pub type Key = Cow<'static, str>;

impl Attributes {
    /// Sets an attribute. A new key beyond [`ATTRIBUTES_MAX`] is dropped. An empty text is stored,
    /// because an empty value differs from a missing key.
    pub fn add(&mut self, key: impl Into<Key>, value: Value) {
        let key = key.into();
        let value = match value {
            Value::Text(text) if text.len() > TEXT_BYTES_MAX => {
                self.mark_cut(&key);
                Value::Text(truncate_text(text))
            }
            other => other,
        };
        let is_last = self.0.last().is_none_or(|(last, _)| *last < key);
        let position = if is_last {
            Err(self.0.len())
        } else {
            self.find(&key)
        };
        match position {
            Ok(at) => self.0[at].1 = value,
            Err(at) if self.0.len() < ATTRIBUTES_MAX => self.0.insert(at, (key, value)),
            Err(_) => self.mark_cut("attributes"),
        }
    }

    /// Adds a name to the attribute [`CUT`], which replaces the last attribute if there is no room.
    fn mark_cut(&mut self, name: &str) {
        let names = match self.text(CUT) {
            Some(names) => {
                let is_known = names.split(',').any(|known| known == name);
                if is_known || names.split(',').count() >= CUT_NAMES_MAX {
                    return;
                }
                format!("{names},{name}")
            }
            None => name.to_owned(),
        };
        if let Ok(at) = self.find(CUT) {
            self.0[at].1 = Value::Text(names);
            return;
        }
        if self.0.len() >= ATTRIBUTES_MAX {
            self.0.pop();
        }
        let at = self.find(CUT).unwrap_or_else(|at| at);
        self.0.insert(at, (CUT.into(), Value::Text(names)));
    }

    /// Returns the index of a key, or the index at which it would be inserted.
    fn find(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(key))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// Returns the value of a key if it is a text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Iterates over all attributes in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    /// Flattens the JSON body of a line. `metadata` is lifted to the top level. Objects, and arrays
    /// of exactly one object (the `BigQuery` notation of a record), become dotted keys. Other
    /// arrays are stored as JSON text, and `null` values are omitted.
    pub fn of_json(body: &Map<String, Json>) -> Self {
        let mut attributes = Self::default();
        for (key, value) in body {
            match (key.as_str(), single_object(value)) {
                ("metadata", Some(metadata)) => {
                    for (key, value) in metadata {
                        attributes.flatten(key.clone(), value, 1);
                    }
                }
                _ => attributes.flatten(key.clone(), value, 1),
            }
        }
        attributes
    }

    fn flatten(&mut self, key: String, value: &Json, depth: usize) {
        if depth < DEPTH_MAX
            && let Some(object) = single_object(value)
        {
            for (name, value) in object {
                self.flatten(format!("{key}.{name}"), value, depth + 1);
            }
            return;
        }
        match value {
            Json::Null => {}
            Json::Bool(value) => self.add(key, Value::Boolean(*value)),
            Json::String(value) => self.add(key, Value::Text(value.clone())),
            Json::Number(number) => {
                let value = if let Some(integer) = number.as_i64() {
                    Value::Integer(integer)
                } else if let Some(float) = number.as_f64() {
                    Value::Float(float)
                } else {
                    Value::Text(number.to_string())
                };
                self.add(key, value);
            }
            other => self.add(key, Value::Text(other.to_string())),
        }
    }
}

/// Returns the object of a JSON object or of an array that contains exactly one object.
fn single_object(value: &Json) -> Option<&Map<String, Json>> {
    match value {
        Json::Object(object) => Some(object),
        Json::Array(array) => match array.as_slice() {
            [Json::Object(object)] => Some(object),
            _ => None,
        },
        _ => None,
    }
}

/// Truncates a text to [`TEXT_BYTES_MAX`] at a character boundary.
fn truncate_text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text
}

/// One log line.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The id of the line, usually a UUID.
    pub id: String,
    /// Microseconds since 1970 in UTC.
    pub timestamp: i64,
    /// The service that produced the line.
    pub source: Source,
    /// The severity of the line.
    pub severity: Severity,
    /// The text of the line.
    pub message: String,
    /// Structured fields of the line.
    pub attributes: Attributes,
}

impl Event {
    /// Creates a line with the severity that [`Severity::of`] reads from the attributes.
    pub fn new(
        id: String,
        timestamp: i64,
        source: Source,
        message: String,
        mut attributes: Attributes,
    ) -> Self {
        if message.len() > TEXT_BYTES_MAX {
            attributes.mark_cut("event_message");
        }
        Self {
            id,
            timestamp,
            source,
            severity: Severity::of(&attributes),
            message: truncate_text(message),
            attributes,
        }
    }

    /// Returns the value of the column `source`: the name of the source, or of the service of
    /// [`Source::Other`] if it is short enough and not the name of another source.
    pub fn source_name(&self) -> &str {
        match (self.source, self.attributes.text(SERVICE_NAME)) {
            (Source::Other, Some(name)) if is_source_name(name) => name,
            _ => self.source.as_str(),
        }
    }
}

/// Whether the name of a service can be used as a source.
pub fn is_source_name(name: &str) -> bool {
    (1..=SOURCE_NAME_BYTES_MAX).contains(&name.len())
        && !name.chars().any(char::is_control)
        && Source::from_str(name).is_err()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cut_texts_and_attributes_are_marked() {
        let mut attributes = Attributes::default();
        attributes.add("long", Value::Text("x".repeat(TEXT_BYTES_MAX + 1)));
        for number in 0..2 * ATTRIBUTES_MAX {
            attributes.add(format!("k{number:03}"), Value::Integer(1));
        }
        let message = "m".repeat(TEXT_BYTES_MAX + 1);
        let event = Event::new("1".into(), 0, Source::Edge, message, attributes);
        assert_eq!(event.message.len(), TEXT_BYTES_MAX);
        assert_eq!(event.attributes.iter().count(), ATTRIBUTES_MAX);
        let marked = event.attributes.text(CUT);
        assert_eq!(marked, Some("long,attributes,event_message"));
        let whole = Event::new(
            "1".into(),
            0,
            Source::Edge,
            "m".into(),
            Attributes::default(),
        );
        assert_eq!(whole.attributes.text(CUT), None);
    }

    #[test]
    fn unknown_service_is_a_source_under_its_name() {
        for (name, source) in [
            ("checkout", "checkout"),
            ("management_logs", "other_logs"),
            ("a\nb", "other_logs"),
            ("", "other_logs"),
        ] {
            let mut attributes = Attributes::default();
            attributes.add(SERVICE_NAME, Value::Text(name.into()));
            let other = |source| Event::new("1".into(), 0, source, "m".into(), attributes.clone());
            assert_eq!(other(Source::Other).source_name(), source, "{name:?}");
            assert_eq!(other(Source::Auth).source_name(), "auth_logs");
        }
    }

    #[test]
    fn json_body_becomes_dotted_keys() {
        let body = json!({
            "project": "default", "nothing": null,
            "metadata": [{
                "request": [{ "path": "/rest/v1", "headers": { "host": "h" } }],
                "tags": ["a", 1],
                "up": true,
                "took": 1.5,
                "n": 3,
            }],
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
    fn oversized_line_is_truncated() {
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
    fn severity_is_read_from_the_first_present_attribute() {
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
            Severity::NAMES
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
