//! How commands answer: for people, or as JSON.

use clap::ValueEnum;
use serde::Serialize;

/// How the answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Lines for people.
    Text,
    /// One JSON value.
    Json,
}

impl Output {
    /// Prints `value`, or the lines a person would rather read.
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
