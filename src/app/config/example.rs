//! The commented example of a configuration file, and its JSON Schema.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::{Map, Value, json};

use super::{
    sections,
    setting::{Setting, ValueType},
};

/// Longest comment line, in characters.
const LINE_CHARACTERS_MAX: usize = 96;

const HEAD: &str = "\
# Configuration of Gantry, for `gantry serve --config FILE`. Flags and variables take precedence.
# Check it with `gantry server-config check --config FILE`.
#
# Lines that begin with `# ` and a word are explanations; settings that begin with `#` and a name
# have their default, or an empty value if they have none. `${NAME}` is replaced by an environment
# variable, and `$$` is a dollar sign. A secret can be `file:PATH`, the content of a file that other
# accounts cannot read.
#
# Keys are written with their section, as in `api.listen`. Sections can be tables instead: [api].
";

/// Returns a commented example with every setting. Those of a first production server come first.
pub fn example(settings: &[Setting]) -> String {
    let mut text = HEAD.to_owned();
    let mut first: Vec<&Setting> = settings
        .iter()
        .filter(|setting| setting.first().is_some())
        .collect();
    first.sort_by_key(|setting| setting.first());
    banner(&mut text, "The settings of a first production server");
    for setting in first {
        entry(&mut text, setting);
    }
    for section in &sections::ALL {
        let of_section = |setting: &&Setting| setting.section == section;
        let mut rest = settings.iter().filter(of_section).peekable();
        if rest.peek().is_none() {
            continue;
        }
        banner(&mut text, section.heading);
        for setting in rest.filter(|setting| setting.first().is_none()) {
            entry(&mut text, setting);
        }
    }
    text
}

/// Returns the file of a first production server: the settings with a value, and as comments those
/// others that are usually set first. Returns an error for a value without a setting.
pub fn first_file(
    settings: &[Setting],
    values: &BTreeMap<&str, toml::Value>,
) -> anyhow::Result<String> {
    let mut text = HEAD.to_owned();
    text += "#\n# `gantry server-config example` prints all settings.\n";
    let mut shown: Vec<&Setting> = settings
        .iter()
        .filter(|setting| setting.first().is_some() || values.contains_key(&*setting.path()))
        .collect();
    let unknown = values
        .keys()
        .find(|path| shown.iter().all(|setting| setting.path() != **path));
    if let Some(path) = unknown {
        anyhow::bail!("there is no setting {path}");
    }
    shown.sort_by_key(|setting| setting.first().unwrap_or(usize::MAX));
    for setting in shown {
        explanation(&mut text, setting);
        let path = setting.path();
        let _ = match values.get(&*path) {
            Some(value) => writeln!(text, "{path} = {value}"),
            None => writeln!(text, "#{path} = {}", sample(setting)),
        };
    }
    Ok(text)
}

fn banner(text: &mut String, title: &str) {
    let _ = write!(text, "\n#### {title}\n");
}

fn entry(text: &mut String, setting: &Setting) {
    explanation(text, setting);
    let _ = writeln!(text, "#{} = {}", setting.path(), sample(setting));
}

/// Adds the description of a setting as comment lines.
fn explanation(text: &mut String, setting: &Setting) {
    text.push('\n');
    let mut line = String::from("#");
    let explained = format!("{}{}", setting.help, details(setting));
    for word in explained.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > LINE_CHARACTERS_MAX {
            *text += &line;
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line += word;
    }
    *text += &line;
    text.push('\n');
}

/// Returns unit, choices and the way of a change, as sentences.
fn details(setting: &Setting) -> String {
    let mut details = String::new();
    let ends = setting.help.ends_with(['.', ')']);
    if !ends {
        details.push('.');
    }
    if !setting.choices.is_empty() {
        let _ = write!(details, " One of: {}.", setting.choices.join(", "));
    } else if let Some(unit) = &setting.unit {
        let _ = write!(details, " Value: {unit}.");
    }
    if setting.is_reloaded() {
        details += " Taken over on SIGHUP.";
    }
    details
}

/// Returns the default, or an empty value of the type.
fn sample(setting: &Setting) -> String {
    let default = setting.default.as_deref();
    match (setting.value_type, default) {
        (ValueType::Boolean, default) => default.unwrap_or("false").to_owned(),
        (ValueType::Integer, default) => default.unwrap_or("0").to_owned(),
        (ValueType::String, default) => quoted(default.unwrap_or_default()),
        (ValueType::List, None) => "[]".to_owned(),
        (ValueType::List, Some(default)) => {
            let items: Vec<String> = default.split(',').map(quoted).collect();
            format!("[{}]", items.join(", "))
        }
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Returns the JSON Schema of a configuration file, for editors.
pub fn schema(settings: &[Setting]) -> Value {
    let mut tables = Map::new();
    for section in &sections::ALL {
        let of_section = settings.iter().filter(|setting| setting.section == section);
        let properties: Map<String, Value> = of_section
            .map(|setting| (setting.key.clone(), property(setting)))
            .collect();
        if !properties.is_empty() {
            let table = json!({
                "title": section.heading,
                "type": "object",
                "additionalProperties": false,
                "properties": properties,
            });
            tables.insert(section.table.to_owned(), table);
        }
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of Gantry",
        "type": "object",
        "additionalProperties": false,
        "properties": tables,
    })
}

fn property(setting: &Setting) -> Value {
    let mut property = match setting.value_type {
        ValueType::Boolean => json!({"type": "boolean"}),
        ValueType::Integer => json!({"type": "integer"}),
        ValueType::String => json!({"type": "string"}),
        ValueType::List => json!({
            "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}],
        }),
    };
    property["description"] = format!("{}{}", setting.help, details(setting)).into();
    if !setting.choices.is_empty() {
        property["enum"] = setting.choices.clone().into();
    }
    if let Some(default) = &setting.default {
        property["default"] = match setting.value_type {
            ValueType::Integer => default.parse::<i64>().map_or(Value::Null, Value::from),
            ValueType::Boolean => (default == "true").into(),
            ValueType::String | ValueType::List => default.clone().into(),
        };
    }
    property
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Args, Command};

    use super::*;
    use crate::app::config::Config;

    fn settings() -> Vec<Setting> {
        Setting::all(&Config::augment_args(Command::new("serve")))
    }

    /// Returns the lines of the example with settings, without their comment sign.
    fn uncommented() -> String {
        let example = example(&settings());
        let is_setting = |line: &&str| {
            line.starts_with('#') && line[1..].starts_with(|first: char| first.is_ascii_lowercase())
        };
        let lines = example.lines().filter(is_setting).map(|line| &line[1..]);
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn example_has_every_setting_once_in_valid_toml() {
        let document: toml::Table = uncommented().parse().unwrap();
        let keys: BTreeSet<String> = document
            .iter()
            .flat_map(|(table, values)| {
                let values = values.as_table().unwrap();
                values.keys().map(move |key| format!("{table}.{key}"))
            })
            .collect();
        let paths = settings().iter().map(Setting::path).collect();
        assert_eq!(keys, paths);
        let example = example(&settings());
        let longest = example.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(110), "{longest:?}");
    }

    #[test]
    fn schema_accepts_the_values_of_the_example() {
        let schema = schema(&settings());
        let document: toml::Table = uncommented().parse().unwrap();
        for (table, values) in &document {
            for (key, value) in values.as_table().unwrap() {
                let property = &schema["properties"][table]["properties"][key];
                let accepted = match value {
                    toml::Value::Boolean(_) => property["type"] == "boolean",
                    toml::Value::Integer(_) => property["type"] == "integer",
                    toml::Value::Array(_) => property["anyOf"].is_array(),
                    _ => property["type"] == "string",
                };
                assert!(accepted, "{table}.{key}: {property}");
            }
        }
    }
}
