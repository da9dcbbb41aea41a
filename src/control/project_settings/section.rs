//! The sections of a document with the settings of a project.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::json;

use crate::control::{
    database_access::restrictions::NETWORKS_MAX,
    projects::{InstanceSize, parameters::POSTGRES_SETTINGS},
    service_settings::{
        AUTH, REALTIME, STORAGE,
        setting::{ServiceSetting, TextForm, ValueType},
    },
    services::rest::API_SETTINGS,
};

/// A section of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The Data API.
    Api,
    /// The Auth service.
    Auth,
    /// The compute size.
    Compute,
    /// Connections to the database.
    Database,
    /// The server's own settings.
    Postgres,
    /// The Realtime service.
    Realtime,
    /// The Storage service.
    Storage,
}

impl Section {
    /// Every section, in the order of documents.
    pub const ALL: [Self; 7] = [
        Self::Api,
        Self::Auth,
        Self::Compute,
        Self::Database,
        Self::Postgres,
        Self::Realtime,
        Self::Storage,
    ];

    /// Name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Auth => "auth",
            Self::Compute => "compute",
            Self::Database => "database",
            Self::Postgres => "postgres",
            Self::Realtime => "realtime",
            Self::Storage => "storage",
        }
    }

    /// Title on pages.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Api => "Data API",
            Self::Auth => "Auth",
            Self::Compute => "Compute",
            Self::Database => "Connections",
            Self::Postgres => "PostgreSQL",
            Self::Realtime => "Realtime",
            Self::Storage => "Storage",
        }
    }

    /// Returns the section with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }

    /// Returns the settings of the section. Names of nested settings have dots.
    pub fn settings(self) -> &'static BTreeMap<String, ServiceSetting> {
        match self {
            Self::Api => &API_SETTINGS,
            Self::Auth => (AUTH.settings)(),
            Self::Compute => &COMPUTE_SETTINGS,
            Self::Database => &DATABASE_SETTINGS,
            Self::Postgres => &POSTGRES_SETTINGS,
            Self::Realtime => (REALTIME.settings)(),
            Self::Storage => (STORAGE.settings)(),
        }
    }

    /// Returns the section and the name of a setting such as `auth.jwt_exp`.
    pub fn of_setting(path: &str) -> Option<(Self, &str)> {
        let (section, name) = path.split_once('.')?;
        Some((Self::of_name(section)?, name))
    }
}

static COMPUTE_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let sizes = ValueType::Text(TextForm::OneOf(InstanceSize::CODES));
    let size = ServiceSetting::new(sizes, json!(InstanceSize::Micro.code()))
        .explained("Size of the server: memory, processes, connections and shares of the machine.");
    BTreeMap::from([("size".to_owned(), size)])
});

static DATABASE_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let everywhere = json!(["0.0.0.0/0", "::/0"]);
    let networks = ServiceSetting::new(ValueType::Networks(NETWORKS_MAX), everywhere)
        .explained("Networks from which clients may connect.");
    let encryption = ServiceSetting::new(ValueType::Boolean, json!(false))
        .explained("Whether connections without TLS are rejected.");
    BTreeMap::from([
        ("allowed_cidrs".to_owned(), networks),
        ("ssl_enforced".to_owned(), encryption),
    ])
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::service_settings::setting::check_value;

    #[test]
    fn every_setting_has_a_valid_default_and_an_explanation() {
        for section in Section::ALL {
            assert_eq!(Section::of_name(section.name()), Some(section));
            for (name, setting) in section.settings() {
                if !setting.default.is_null() {
                    check_value(name, setting.value_type, &setting.default).unwrap();
                }
                let text = &setting.explanation;
                assert!(text.ends_with('.'), "{}.{name}: {text:?}", section.name());
            }
        }
        let setting = Section::of_setting("storage.features.s3Protocol.enabled");
        assert_eq!(
            setting,
            Some((Section::Storage, "features.s3Protocol.enabled"))
        );
    }
}
