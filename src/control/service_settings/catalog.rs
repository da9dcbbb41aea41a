//! The declaration of the settings of one service.

use std::collections::BTreeMap;

use serde_json::Value;

use super::setting::{ServiceSetting, ValueType};
use crate::platform::error::Error;

/// The settings of one service, each declared once.
pub struct SettingsCatalog {
    /// Name of the service in the control database.
    pub service: &'static str,
    /// Every setting by name. Names of nested settings have dots.
    pub settings: fn() -> &'static BTreeMap<String, ServiceSetting>,
    /// Names that clients send without effect.
    pub(super) ignored: &'static [&'static str],
    /// Checks dependencies between settings. The second argument has the names in the update.
    pub(super) check: fn(&EffectiveSettings<'_>, &[&str]) -> Result<(), Error>,
}

impl SettingsCatalog {
    /// Returns the largest value of a setting that is an integer.
    pub fn largest(&self, name: &str) -> Option<u64> {
        match (self.settings)().get(name)?.value_type {
            ValueType::Integer(_, max) => u64::try_from(max).ok(),
            _ => None,
        }
    }
}

/// The values of all settings while an update is checked. Secrets are in clear.
pub(super) struct EffectiveSettings<'a>(pub(super) &'a BTreeMap<String, Value>);
