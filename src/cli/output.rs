//! Output formats of commands.

use clap::ValueEnum;
use serde::Serialize;

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Human-readable text.
    Text,
    /// A JSON value.
    Json,
}

impl Output {
    /// Whether the output is read by a person.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Text)
    }

    /// Prints `value` as JSON, or the result of `text`.
    pub(super) fn print(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        match self {
            Self::Text => anstream::println!("{}", text()),
            Self::Json => anstream::println!("{}", serde_json::to_string_pretty(value)?),
        }
        Ok(())
    }
}
