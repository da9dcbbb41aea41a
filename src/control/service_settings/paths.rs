//! Nested documents, and names of settings with dots.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::setting::{ServiceSetting, wrong_type};
use crate::platform::error::Error;

/// Returns the nested document of values by name.
pub(in crate::control) fn nest(values: BTreeMap<String, Value>) -> Map<String, Value> {
    let mut document = Map::new();
    for (name, value) in values {
        insert(&mut document, &name, value);
    }
    document
}

/// A setting and a group never have the same name.
fn insert(document: &mut Map<String, Value>, name: &str, value: Value) {
    let Some((group, rest)) = name.split_once('.') else {
        document.insert(name.to_owned(), value);
        return;
    };
    let inner = document.entry(group).or_insert_with(|| Map::new().into());
    if let Value::Object(inner) = inner {
        insert(inner, rest, value);
    }
}

/// Returns the values of a nested document by name. A group of settings is complete or absent,
/// except for groups of groups.
///
/// Errors: [`Error::Invalid`] for a group that is no object or lacks a setting.
pub(super) fn flatten(
    settings: &BTreeMap<String, ServiceSetting>,
    document: &Map<String, Value>,
) -> Result<BTreeMap<String, Value>, Error> {
    let mut values = BTreeMap::new();
    collect(settings, "", document, &mut values)?;
    Ok(values)
}

fn collect(
    settings: &BTreeMap<String, ServiceSetting>,
    prefix: &str,
    document: &Map<String, Value>,
    values: &mut BTreeMap<String, Value>,
) -> Result<(), Error> {
    for (key, value) in document {
        let name = format!("{prefix}{key}");
        if key.contains('.') {
            return Err(Error::invalid(name, "Unrecognized key"));
        }
        let group = format!("{name}.");
        if !has_group(settings, &group) {
            values.insert(name, value.clone());
            continue;
        }
        let Value::Object(inner) = value else {
            return Err(Error::invalid(name, wrong_type("object", value)));
        };
        check_complete(settings, &group, inner)?;
        collect(settings, &group, inner, values)?;
    }
    Ok(())
}

fn has_group(settings: &BTreeMap<String, ServiceSetting>, group: &str) -> bool {
    let next = settings.range(group.to_owned()..).next();
    next.is_some_and(|(name, _)| name.starts_with(group))
}

fn check_complete(
    settings: &BTreeMap<String, ServiceSetting>,
    group: &str,
    document: &Map<String, Value>,
) -> Result<(), Error> {
    for (name, setting) in settings {
        let Some(key) = name.strip_prefix(group) else {
            continue;
        };
        let is_required = !key.contains('.') && !setting.is_read_only;
        if is_required && !document.contains_key(key) {
            let problem = format!(
                "Invalid input: expected {}, received undefined",
                setting.value_type.name()
            );
            return Err(Error::invalid(name.clone(), problem));
        }
    }
    Ok(())
}

/// Returns the values of a complete document by name. Every object is a group.
#[cfg(test)]
pub(super) fn flatten_any(document: &Map<String, Value>) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    for (name, value) in document {
        match value {
            Value::Object(inner) => {
                for (rest, value) in flatten_any(inner) {
                    values.insert(format!("{name}.{rest}"), value);
                }
            }
            value => {
                values.insert(name.clone(), value.clone());
            }
        }
    }
    values
}
