//! Files with settings: TOML or JSON, with values from the environment.

use std::{env, fs::File, io::Read, path::Path};

use anyhow::Context as _;
use serde_json::{Map, Value};

/// Largest file, in bytes. An Auth service can have 1 MiB of templates.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads a file. Its name decides the format.
pub(super) fn read(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let document = parse(&text, is_json)
        .with_context(|| format!("{} is not a valid document", path.display()))?;
    let variable = |name: &str| env::var(name).ok();
    document
        .into_iter()
        .map(|(name, value)| {
            let value = with_environment(value, &variable)
                .with_context(|| format!("in {} of {}", name, path.display()))?;
            Ok((name, value))
        })
        .collect()
}

fn parse(text: &str, is_json: bool) -> anyhow::Result<Map<String, Value>> {
    if is_json {
        Ok(serde_json::from_str(text)?)
    } else {
        Ok(toml::from_str(text)?)
    }
}

/// Replaces texts such as `env(SMTP_PASS)`.
fn with_environment(
    value: Value,
    variable: &dyn Fn(&str) -> Option<String>,
) -> anyhow::Result<Value> {
    match value {
        Value::String(text) => {
            let name = text
                .strip_prefix("env(")
                .and_then(|rest| rest.strip_suffix(')'));
            match name {
                None => Ok(text.into()),
                Some(name) => variable(name)
                    .map(Value::String)
                    .with_context(|| format!("the environment variable {name} is not set")),
            }
        }
        Value::Array(values) => values
            .into_iter()
            .map(|value| with_environment(value, variable))
            .collect(),
        Value::Object(fields) => {
            let field = |(name, value)| Ok((name, with_environment(value, variable)?));
            let fields: anyhow::Result<Map<String, Value>> =
                fields.into_iter().map(field).collect();
            Ok(fields?.into())
        }
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_formats_and_variables_are_read() {
        let toml = "[auth]\njwt_exp = 60\nsmtp_pass = \"env(PASS)\"\n[database]\nallowed_cidrs = [\"10.0.0.0/8\"]\n";
        let json = r#"{"auth": {"jwt_exp": 60, "smtp_pass": "env(PASS)"}, "database": {"allowed_cidrs": ["10.0.0.0/8"]}}"#;
        let variable = |name: &str| (name == "PASS").then(|| "hidden".to_owned());
        let read = |text, is_json| {
            with_environment(parse(text, is_json).unwrap().into(), &variable).unwrap()
        };
        let expected = json!({
            "auth": {"jwt_exp": 60, "smtp_pass": "hidden"},
            "database": {"allowed_cidrs": ["10.0.0.0/8"]},
        });
        assert_eq!(read(toml, false), expected);
        assert_eq!(read(json, true), expected);
        let missing = with_environment(json!({"a": ["env(OTHER)"]}), &variable).unwrap_err();
        assert!(missing.to_string().contains("OTHER"));
    }
}
