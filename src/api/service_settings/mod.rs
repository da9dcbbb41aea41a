//! Operations on the settings of a project's services. Schemas and documents derive from the
//! catalogs.

pub mod auth;
pub mod pgsodium;
pub mod realtime;
pub mod storage;

use std::{borrow::Cow, collections::BTreeMap, marker::PhantomData};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::control::service_settings::{
    catalog::SettingsCatalog,
    setting::{NullEffect, ServiceSetting, TextForm, ValueType},
};

/// A service with settings, and the names of its schemas.
trait ConfiguredService: Send + Sync + 'static {
    const CATALOG: &'static SettingsCatalog;
    const DOCUMENT: &'static str;
    const UPDATE: &'static str;
}

/// Every setting of a service. Secrets are HMAC-SHA256 digests with the project's ref as key.
struct ConfigDocument<S> {
    settings: Map<String, Value>,
    service: PhantomData<S>,
}

impl<S> ConfigDocument<S> {
    fn new(settings: Map<String, Value>) -> Self {
        Self {
            settings,
            service: PhantomData,
        }
    }
}

impl<S> Serialize for ConfigDocument<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        self.settings.serialize(serializer)
    }
}

impl<S: ConfiguredService> JsonSchema for ConfigDocument<S> {
    fn schema_name() -> Cow<'static, str> {
        S::DOCUMENT.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Properties::default();
        for (name, setting) in (S::CATALOG.settings)() {
            properties.add(name, property(setting, setting.is_nullable()), true);
        }
        properties.into_schema(true)
    }
}

/// A change of settings. Absent settings stay as they are. No `Debug`, because it may contain
/// secrets.
struct ConfigUpdate<S> {
    settings: Map<String, Value>,
    service: PhantomData<S>,
}

impl<'de, S> Deserialize<'de> for ConfigUpdate<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let settings = Map::deserialize(deserializer)?;
        Ok(Self {
            settings,
            service: PhantomData,
        })
    }
}

impl<S: ConfiguredService> JsonSchema for ConfigUpdate<S> {
    fn schema_name() -> Cow<'static, str> {
        S::UPDATE.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Properties::default();
        for (name, setting) in (S::CATALOG.settings)() {
            if !setting.is_read_only {
                let is_nullable = setting.null != NullEffect::Rejected;
                // A group of settings is complete or absent.
                let is_required = name.matches('.').count() > 1;
                properties.add(name, property(setting, is_nullable), is_required);
            }
        }
        properties.into_schema(false)
    }
}

/// Returns the schema of one setting.
fn property(setting: &ServiceSetting, is_nullable: bool) -> Value {
    let mut schema = match setting.value_type {
        ValueType::Boolean => json!({"type": "boolean"}),
        ValueType::Integer(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        ValueType::Number => json!({"type": "number", "minimum": 0}),
        ValueType::Text(TextForm::OneOf(options)) => json!({"type": "string", "enum": options}),
        ValueType::Text(TextForm::Email) => json!({"type": "string", "format": "email"}),
        ValueType::Text(TextForm::Time) => json!({"type": "string", "format": "date-time"}),
        ValueType::Text(_) => json!({"type": "string"}),
        ValueType::Networks(max) => {
            json!({"type": "array", "items": {"type": "string"}, "maxItems": max})
        }
    };
    if is_nullable {
        schema["nullable"] = json!(true);
    }
    schema
}

/// The schema of an object, in which names with dots are nested objects.
#[derive(Default)]
struct Properties {
    own: Map<String, Value>,
    required: Vec<String>,
    groups: BTreeMap<String, Self>,
}

impl Properties {
    fn add(&mut self, name: &str, schema: Value, is_required: bool) {
        if let Some((group, rest)) = name.split_once('.') {
            let group = self.groups.entry(group.to_owned()).or_default();
            group.add(rest, schema, is_required);
            return;
        }
        self.own.insert(name.to_owned(), schema);
        if is_required {
            self.required.push(name.to_owned());
        }
    }

    fn into_value(mut self, groups_required: bool) -> Value {
        for (name, group) in self.groups {
            if groups_required {
                self.required.push(name.clone());
            }
            self.own.insert(name, group.into_value(groups_required));
        }
        let mut schema = json!({"type": "object", "properties": self.own});
        if !self.required.is_empty() {
            schema["required"] = json!(self.required);
        }
        schema
    }

    fn into_schema(self, groups_required: bool) -> Schema {
        Schema::try_from(self.into_value(groups_required)).unwrap_or_default()
    }
}
