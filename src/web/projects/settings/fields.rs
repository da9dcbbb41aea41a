//! Fields of the form with settings, and the document of a submitted form.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{
    control::{
        project_settings::Section,
        service_settings::{
            FINGERPRINT,
            setting::{NullEffect, ServiceSetting, TextForm, ValueType},
        },
    },
    web::labels::Timestamp,
};

/// Longest value in a field of one line, in bytes.
const LINE_BYTES_MAX: usize = 80;
/// Longest value that a difference shows, in characters.
const SHOWN_MAX: usize = 200;

/// A setting in the form.
pub(super) struct SettingField {
    /// Path, such as `auth.jwt_exp`.
    pub(super) path: String,
    /// Name in its section.
    pub(super) name: &'static str,
    pub(super) setting: &'static ServiceSetting,
    /// Text of the value; empty for `null` and for secrets.
    pub(super) value: String,
    /// Whether a secret is set.
    pub(super) is_set: bool,
    /// User name of the author of the last change, and its time.
    pub(super) author: Option<(Option<String>, Timestamp)>,
}

impl SettingField {
    pub(super) fn new(
        section: Section,
        name: &'static str,
        setting: &'static ServiceSetting,
        value: Option<&Value>,
    ) -> Self {
        Self {
            path: format!("{}.{name}", section.name()),
            name,
            setting,
            value: value.map(input).unwrap_or_default(),
            is_set: false,
            author: None,
        }
    }

    /// Returns the options of a choice, with their labels.
    pub(super) fn options(&self) -> Vec<(&'static str, &'static str)> {
        let mut options = match self.setting.value_type {
            ValueType::Boolean => vec![("true", "On"), ("false", "Off")],
            ValueType::Text(TextForm::OneOf(options)) => {
                let label = |option: &'static str| if option.is_empty() { "none" } else { option };
                options
                    .iter()
                    .map(|option| (*option, label(option)))
                    .collect()
            }
            _ => return Vec::new(),
        };
        if self.setting.is_nullable() && !options.iter().any(|(value, _)| value.is_empty()) {
            options.insert(0, ("", "not set"));
        }
        options
    }

    /// Returns whether the value has several lines.
    pub(super) fn is_long(&self) -> bool {
        let is_list = matches!(self.setting.value_type, ValueType::Networks(_));
        is_list || self.path.ends_with("_content") || self.value.len() > LINE_BYTES_MAX
    }

    /// Returns the text of the default.
    pub(super) fn default(&self) -> String {
        text(&self.setting.default, false)
    }
}

/// Returns the text of a value in a field.
fn input(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => {
            let lines: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            lines.join("\n")
        }
        other => other.to_string(),
    }
}

/// Returns the text of a value in a difference.
pub(super) fn text(value: &Value, is_secret: bool) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) if is_secret || text.starts_with(FINGERPRINT) => "secret".to_owned(),
        Value::String(text) if text.is_empty() => "empty".to_owned(),
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        value => {
            let text = input(value).replace('\n', ", ");
            let shown: String = text.chars().take(SHOWN_MAX).collect();
            if shown.len() < text.len() {
                format!("{shown}…")
            } else {
                shown
            }
        }
    }
}

/// Returns the settings of a document by path.
pub(super) fn by_path(document: &Map<String, Value>) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    for (name, value) in document {
        match value {
            Value::Object(inner) => {
                let inner = by_path(inner).into_iter();
                values.extend(inner.map(|(rest, value)| (format!("{name}.{rest}"), value)));
            }
            value => {
                values.insert(name.clone(), value.clone());
            }
        }
    }
    values
}

/// A submitted form: values of settings by path, and where the form was.
#[derive(Default)]
pub(super) struct SubmittedSettings(BTreeMap<String, String>);

impl SubmittedSettings {
    pub(super) fn new(fields: Vec<(String, String)>) -> Self {
        Self(fields.into_iter().collect())
    }

    fn field(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(super) fn section(&self) -> &str {
        self.field("section")
    }

    pub(super) fn query(&self) -> &str {
        self.field("q")
    }

    /// Returns the version to return to, if the form has one.
    pub(super) fn version(&self) -> Option<i64> {
        self.field("version").parse().ok()
    }

    /// Shows a submitted value again. Secrets have to be typed again.
    pub(super) fn overwrite(&self, field: &mut SettingField) {
        if let Some(value) = self.0.get(&field.path).filter(|_| !field.setting.is_secret) {
            field.value.clone_from(value);
        }
    }

    /// Returns the document of the settings that differ from the current ones. Groups are complete.
    pub(super) fn document(&self, current: &Map<String, Value>) -> Map<String, Value> {
        let current = by_path(current);
        let mut changed = BTreeMap::new();
        for (path, text) in &self.0 {
            let Some((section, name)) = Section::of_setting(path) else {
                continue;
            };
            let Some(setting) = section.settings().get(name) else {
                continue;
            };
            // An empty field of a secret keeps it.
            if setting.is_secret && text.is_empty() {
                continue;
            }
            let value = parse(setting, text);
            if current.get(path).unwrap_or(&Value::Null) != &value {
                changed.insert(path.clone(), value);
            }
        }
        let groups: Vec<String> = changed
            .keys()
            .filter_map(|path| path.rsplit_once('.').map(|(group, _)| format!("{group}.")))
            .filter(|group| group.matches('.').count() > 1)
            .collect();
        for (path, value) in &current {
            if groups.iter().any(|group| path.starts_with(group)) {
                changed.entry(path.clone()).or_insert_with(|| value.clone());
            }
        }
        let mut document = Map::new();
        for (path, value) in changed {
            insert(&mut document, &path, value);
        }
        document
    }
}

fn insert(document: &mut Map<String, Value>, path: &str, value: Value) {
    let Some((group, rest)) = path.split_once('.') else {
        document.insert(path.to_owned(), value);
        return;
    };
    let inner = document.entry(group).or_insert_with(|| Map::new().into());
    if let Value::Object(inner) = inner {
        insert(inner, rest, value);
    }
}

/// Returns the value of a field. A text that is no value of the type stays a text, which the
/// operation rejects with a message.
fn parse(setting: &ServiceSetting, text: &str) -> Value {
    // Browsers send line breaks in this form.
    let text = text.replace("\r\n", "\n");
    let is_unset = text.is_empty() && setting.null != NullEffect::Rejected;
    match setting.value_type {
        ValueType::Text(TextForm::OneOf(options)) if options.contains(&text.as_str()) => {
            text.into()
        }
        _ if is_unset && setting.default != Value::String(String::new()) => Value::Null,
        ValueType::Boolean | ValueType::Integer(..) | ValueType::Number => {
            serde_json::from_str(&text).unwrap_or_else(|_| text.into())
        }
        ValueType::Networks(_) => text.split_whitespace().collect(),
        ValueType::Text(_) => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn document_has_what_differs_and_complete_groups() {
        let current = json!({
            "auth": {"site_url": "https://a.example", "jwt_exp": 3600},
            "storage": {"features": {"vectorBuckets": {"enabled": false, "maxBuckets": 10, "maxIndexes": 5}}},
        });
        let form = [
            ("form_token", "x"),
            ("auth.site_url", "https://a.example"),
            ("auth.jwt_exp", "60"),
            ("auth.smtp_pass", ""),
            ("auth.smtp_host", ""),
            ("auth.disable_signup", "true"),
            ("storage.features.vectorBuckets.enabled", "true"),
            ("database.allowed_cidrs", "10.0.0.0/8\r\n192.0.2.0/24"),
            ("api.max_rows", "many"),
        ];
        let fields = form.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let submitted = SubmittedSettings::new(fields.into());
        let document = submitted.document(current.as_object().unwrap());
        let expected = json!({
            "api": {"max_rows": "many"},
            "auth": {"jwt_exp": 60, "disable_signup": true},
            "database": {"allowed_cidrs": ["10.0.0.0/8", "192.0.2.0/24"]},
            "storage": {"features": {"vectorBuckets": {"enabled": true, "maxBuckets": 10, "maxIndexes": 5}}},
        });
        assert_eq!(Value::Object(document), expected);
    }
}
