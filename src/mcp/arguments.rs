//! The arguments of a tool.

use serde_json::{Map, Value, json};

/// The reason why arguments do not fit a schema, for the caller.
#[derive(Debug)]
pub(super) struct ArgumentError(pub(super) String);

/// An argument of a named tool.
#[derive(Debug)]
pub(super) struct Argument {
    /// Name, as the hosted server calls it.
    pub(super) name: &'static str,
    /// Type of the value.
    pub(super) kind: ArgumentKind,
    /// Whether a call must have it.
    pub(super) is_required: bool,
    /// The value, in a sentence without a period.
    pub(super) description: &'static str,
    /// The part of the operation's request that gets the value.
    pub(super) target: ArgumentTarget,
}

/// Type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentKind {
    Text,
    Number,
    Flag,
    TextList,
    OneOf(&'static [&'static str]),
    Object,
    /// Source files: objects with `name` and `content`.
    Files,
}

/// The part of a request that gets the value of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentTarget {
    /// A placeholder of the path.
    Path(&'static str),
    /// A parameter of the query.
    Query(&'static str),
    /// A field of the body.
    Body(&'static str),
    /// The whole body.
    WholeBody,
    /// The tool reads it by itself, or ignores it.
    Tool,
}

impl Argument {
    /// Returns an argument that a call must have.
    pub(super) const fn required(
        name: &'static str,
        kind: ArgumentKind,
        target: ArgumentTarget,
        description: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            is_required: true,
            description,
            target,
        }
    }

    /// Returns an argument that a call may leave out.
    pub(super) const fn optional(
        name: &'static str,
        kind: ArgumentKind,
        target: ArgumentTarget,
        description: &'static str,
    ) -> Self {
        Self {
            is_required: false,
            ..Self::required(name, kind, target, description)
        }
    }

    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            ArgumentKind::Text => json!({"type": "string"}),
            ArgumentKind::Number => json!({"type": "number"}),
            ArgumentKind::Flag => json!({"type": "boolean"}),
            ArgumentKind::TextList => json!({"type": "array", "items": {"type": "string"}}),
            ArgumentKind::OneOf(values) => json!({"type": "string", "enum": values}),
            ArgumentKind::Object => json!({"type": "object"}),
            ArgumentKind::Files => json!({"type": "array", "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "content": {"type": "string"}},
                "required": ["name", "content"],
            }}),
        };
        schema["description"] = self.description.into();
        schema
    }
}

/// Returns the schema of these arguments.
pub(super) fn schema<'a>(arguments: impl Iterator<Item = &'a Argument>) -> Map<String, Value> {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for argument in arguments {
        properties.insert(argument.name.to_owned(), argument.schema());
        if argument.is_required {
            required.push(argument.name);
        }
    }
    object_schema(properties, &required)
}

/// Returns the schema of an object with these properties and no others.
pub(super) fn object_schema(
    properties: Map<String, Value>,
    required: &[impl AsRef<str>],
) -> Map<String, Value> {
    let required: Vec<_> = required.iter().map(|name| name.as_ref().into()).collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties.into());
    if !required.is_empty() {
        schema.insert("required".to_owned(), Value::Array(required));
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

/// The values of a call.
#[derive(Debug, Clone, Default)]
pub(super) struct Values(pub(super) Map<String, Value>);

impl Values {
    /// Returns the text of an argument.
    ///
    /// Errors: the argument is missing or not a text.
    pub(super) fn text(&self, name: &str) -> Result<&str, ArgumentError> {
        let value = self.0.get(name);
        value
            .and_then(Value::as_str)
            .ok_or_else(|| ArgumentError(format!("{name}: expected a text")))
    }

    /// Returns the text of an argument that may be missing.
    pub(super) fn optional_text(&self, name: &str) -> Result<Option<&str>, ArgumentError> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.text(name).map(Some),
        }
    }

    /// Returns whether a flag is set.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns the texts of a list that may be missing.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>, ArgumentError> {
        let Some(value) = self.0.get(name).filter(|value| !value.is_null()) else {
            return Ok(Vec::new());
        };
        serde_json::from_value(value.clone())
            .map_err(|_| ArgumentError(format!("{name}: expected a list of texts")))
    }

    /// Rejects arguments that the schema does not have, and calls without a required one.
    pub(super) fn check(&self, schema: &Map<String, Value>) -> Result<(), ArgumentError> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let is_known = |name: &String| properties.is_some_and(|known| known.contains_key(name));
        if let Some(name) = self.0.keys().find(|name| !is_known(name)) {
            let known: Vec<_> = properties.into_iter().flat_map(Map::keys).collect();
            let text = format!("{name}: there is no such argument; the arguments are {known:?}");
            return Err(ArgumentError(text));
        }
        let required = schema.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten().filter_map(Value::as_str);
        match required
            .into_iter()
            .find(|name| !self.0.contains_key(*name))
        {
            Some(name) => Err(ArgumentError(format!("{name}: is required"))),
            None => Ok(()),
        }
    }
}
