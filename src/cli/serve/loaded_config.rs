//! The configuration of a running server, and its reload.

use std::collections::BTreeMap;

use super::super::command_line::{CommandLine, ParseError, SettingValue};
use crate::platform::telemetry::LogFilter;

/// Flag of the log filter.
const LOG_FILTER: &str = "log";

/// The configuration that a server was started with, with the values that were reloaded since.
#[derive(Debug)]
pub(in crate::cli) struct LoadedConfig {
    line: CommandLine,
    values: BTreeMap<String, SettingValue>,
}

impl LoadedConfig {
    pub(in crate::cli) const fn new(
        line: CommandLine,
        values: BTreeMap<String, SettingValue>,
    ) -> Self {
        Self { line, values }
    }

    /// Reads the configuration file again. Takes over the settings that a running server can
    /// change, and logs the names of the others that differ. An invalid file changes nothing.
    pub(super) fn reload(&mut self, log_filter: &LogFilter) {
        let parsed = match self.line.parse() {
            Ok(parsed) => parsed,
            Err(ParseError::Arguments(error)) => {
                tracing::error!(%error, "the configuration was not reloaded");
                return;
            }
            Err(ParseError::Rejected { error, .. }) => {
                tracing::error!(%error, "the configuration was not reloaded");
                return;
            }
            Err(ParseError::File(errors)) => {
                for error in errors {
                    tracing::error!(%error, "the configuration was not reloaded");
                }
                return;
            }
        };
        let changed = parsed.changed(&self.values);
        let (mut reloaded, mut waiting) = (Vec::new(), Vec::new());
        for setting in changed {
            let value = parsed.values.get(&setting.flag);
            let taken = match value {
                Some(value) if setting.flag == LOG_FILTER => {
                    log_filter.set(&value.text.to_string_lossy())
                }
                _ => {
                    waiting.push(setting.path());
                    continue;
                }
            };
            match taken {
                Ok(()) => {
                    let value = value.cloned();
                    self.values
                        .extend(value.map(|value| (setting.flag.clone(), value)));
                    reloaded.push(setting.path());
                }
                Err(error) => tracing::error!(setting = setting.path(), %error, "not reloaded"),
            }
        }
        if !waiting.is_empty() {
            let settings = waiting.join(", ");
            tracing::warn!(settings, "these settings take effect at the next start");
        }
        tracing::info!(reloaded = reloaded.join(", "), "configuration reloaded");
    }
}
