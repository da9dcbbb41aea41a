//! Settings: the options of `gantry serve` as keys of the configuration file.

use std::any::TypeId;

use clap::{Arg, ArgAction, Command};

use super::sections::{self, Section};

/// Flags of settings that a running server takes over when it reloads its configuration. All others
/// take effect at the next start.
const RELOADED: &[&str] = &["log"];

/// The settings of a first production server, in the order in which the example shows them.
const FIRST: [&str; 10] = [
    "data-dir",
    "public-url",
    "listen",
    "tls-cert",
    "tls-key",
    "project-domain",
    "db-listen",
    "edge-https-listen",
    "acme-directory",
    "backups-url",
];

/// Type of a value in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Integer,
    /// A text.
    String,
    /// A list of texts.
    List,
}

impl ValueType {
    /// Description in messages.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "a whole number",
            Self::String => "a text in quotes",
            Self::List => "a list of texts",
        }
    }
}

/// An option of `gantry serve` as a key of the configuration file.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Id of the option.
    pub id: String,
    /// Flag without its hyphens at the start.
    pub flag: String,
    /// Environment variable.
    pub variable: String,
    /// Section of the file.
    pub section: &'static Section,
    /// Key in the table of the section.
    pub key: String,
    /// Type of the value.
    pub value_type: ValueType,
    /// Placeholder of the value, which names its unit.
    pub unit: Option<String>,
    /// The permitted values, if they can be listed.
    pub choices: Vec<String>,
    /// The default, if it is a constant.
    pub default: Option<String>,
    /// Description.
    pub help: String,
    /// Whether the value is a secret.
    pub is_secret: bool,
}

impl Setting {
    /// Returns the settings of a command, in the order of sections and options.
    pub fn all(command: &Command) -> Vec<Self> {
        let mut settings: Vec<Self> = command.get_arguments().filter_map(Self::of).collect();
        let position = |setting: &Self| {
            let mut all = sections::ALL.iter();
            all.position(|section| section == setting.section)
        };
        settings.sort_by_key(position);
        settings
    }

    fn of(option: &Arg) -> Option<Self> {
        let section = Section::of_heading(option.get_help_heading()?)?;
        let flag = option.get_long()?;
        let unit = option
            .get_value_names()
            .and_then(|names| names.first())
            .map(ToString::to_string);
        let text = |values: Vec<String>| (!values.is_empty()).then(|| values.join(","));
        let defaults = option.get_default_values().iter();
        let choices = option.get_possible_values();
        let value_type = value_type(option);
        Some(Self {
            id: option.get_id().to_string(),
            flag: flag.to_owned(),
            variable: option.get_env()?.to_string_lossy().into_owned(),
            section,
            key: section.key(flag, unit.as_deref()),
            value_type,
            unit: unit.filter(|_| value_type != ValueType::Boolean),
            choices: choices
                .iter()
                .filter(|_| value_type != ValueType::Boolean)
                .map(|choice| choice.get_name().to_owned())
                .collect(),
            default: text(
                defaults
                    .map(|value| value.to_string_lossy().into_owned())
                    .collect(),
            ),
            help: option
                .get_help()
                .map(ToString::to_string)
                .unwrap_or_default(),
            is_secret: option.is_hide_env_values_set(),
        })
    }

    /// Table and key, such as `databases.listen`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section.table, self.key)
    }

    /// Whether a running server takes over a new value when it reloads its configuration.
    pub fn is_reloaded(&self) -> bool {
        RELOADED.contains(&self.flag.as_str())
    }

    /// Position among the settings of a first production server.
    pub fn first(&self) -> Option<usize> {
        FIRST.iter().position(|flag| *flag == self.flag)
    }
}

fn value_type(option: &Arg) -> ValueType {
    let parsed = option.get_value_parser().type_id();
    let is = |other: TypeId| parsed == other;
    if matches!(option.get_action(), ArgAction::SetTrue) {
        ValueType::Boolean
    } else if option.get_value_delimiter().is_some() {
        ValueType::List
    } else if is(TypeId::of::<u16>())
        || is(TypeId::of::<u32>())
        || is(TypeId::of::<u64>())
        || is(TypeId::of::<i64>())
    {
        ValueType::Integer
    } else {
        ValueType::String
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Args;

    use super::*;
    use crate::app::config::Config;

    fn command() -> Command {
        Config::augment_args(Command::new("serve"))
    }

    #[test]
    fn every_option_is_a_setting_with_a_key_of_its_own() {
        let settings = Setting::all(&command());
        assert_eq!(settings.len(), command().get_arguments().count());
        let paths: BTreeSet<String> = settings.iter().map(Setting::path).collect();
        assert_eq!(paths.len(), settings.len());
        for setting in &settings {
            assert!(!setting.help.is_empty(), "{}", setting.path());
        }
    }

    #[test]
    fn named_flags_exist() {
        let settings = Setting::all(&command());
        for flag in RELOADED.iter().chain(&FIRST) {
            assert!(
                settings.iter().any(|setting| setting.flag == *flag),
                "{flag}"
            );
        }
    }

    #[test]
    fn options_with_secret_values_are_secrets() {
        let settings = Setting::all(&command());
        let secrets = settings.iter().filter(|setting| setting.is_secret);
        let flags: Vec<&str> = secrets.map(|setting| setting.flag.as_str()).collect();
        assert!(
            flags.contains(&"database-url") && flags.contains(&"limits-url"),
            "{flags:?}"
        );
    }
}
