//! `gantry server-config`: configuration files of the server.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Subcommand;
use serde::Serialize;

use super::{
    Command,
    command_line::{CommandLine, ParseError, ParsedCommand, SettingValue, settings, variable},
    output::Output,
};
use crate::app::config::{
    example,
    file::{ConfigFile, ConfigFileError},
    schema,
    setting::Setting,
};

/// Text in place of a secret.
const HIDDEN: &str = "(hidden)";

#[derive(Debug, Subcommand)]
pub(super) enum ServerConfigCommand {
    /// Check the file of `--config`. Prints every problem with line and column.
    Check,
    /// Print the value of every setting and its source: variable, file or default. Secrets are
    /// hidden.
    Show {
        /// Print settings with their default, too.
        #[arg(long)]
        all: bool,
        /// Output format.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Show the settings that differ between the file of `--config` and another one, and which of
    /// them need a restart.
    Diff {
        /// The other file.
        #[arg(value_name = "FILE")]
        other: PathBuf,
        /// Output format.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Print a commented file with every setting. The ten of a first production server come first.
    Example,
    /// Print the JSON Schema of the file, for editors.
    Schema,
}

/// A setting with its value.
#[derive(Debug, Serialize)]
pub(super) struct ShownValue {
    setting: String,
    value: String,
    source: &'static str,
}

/// A setting that differs between two files.
#[derive(Debug, Serialize)]
struct ShownChange {
    setting: String,
    before: Option<String>,
    after: Option<String>,
    /// Whether a running server takes it over on SIGHUP. Otherwise it needs a restart.
    reloaded: bool,
}

impl ServerConfigCommand {
    pub(super) fn run(self, config: Option<PathBuf>) -> anyhow::Result<()> {
        match self {
            Self::Check => check(&named(config)?),
            Self::Show { all, output } => show(config, all, output),
            Self::Diff { other, output } => diff(named(config)?, other, output),
            Self::Example => {
                anstream::print!("{}", example(&settings()));
                Ok(())
            }
            Self::Schema => {
                let schema = serde_json::to_string_pretty(&schema(&settings()))?;
                anstream::println!("{schema}");
                Ok(())
            }
        }
    }
}

fn named(config: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    config.context("name the file with --config, or with the variable GANTRY_CONFIG")
}

/// Prints all problems of a file.
fn check(path: &Path) -> anyhow::Result<()> {
    let problems = problems(path);
    for problem in &problems {
        anstream::println!("{problem}");
    }
    anyhow::ensure!(
        problems.is_empty(),
        "{} has {} problems",
        path.display(),
        problems.len()
    );
    anstream::println!("{} is valid", path.display());
    Ok(())
}

pub(super) fn problems(path: &Path) -> Vec<String> {
    let (mut problems, parsed) = parsed_without_problems(&CommandLine::serve(None), path);
    if let Some(parsed) = parsed
        && let Command::Serve(config) = parsed.cli.command
        && let Err(error) = config.check()
    {
        problems.push(format!("{}: {error}", path.display()));
    }
    problems
}

/// Returns all problems of a file, and the command line with those values that are valid. `None` if
/// the file is invalid as a whole.
pub(super) fn parsed_without_problems(
    line: &CommandLine,
    path: &Path,
) -> (Vec<String>, Option<ParsedCommand>) {
    let text = |error: ConfigFileError| error.to_string();
    let mut file = match ConfigFile::read(path, &settings(), &variable) {
        Ok(file) => file,
        Err(errors) => return (errors.into_iter().map(text).collect(), None),
    };
    let mut problems = Vec::new();
    // Ends, because each rejected value is removed.
    loop {
        match line.parse_with(Some(&file)) {
            Ok(parsed) => return (problems, Some(parsed)),
            Err(ParseError::Rejected { error, flag }) => {
                problems.push(error.to_string());
                file = file.without(&flag);
            }
            Err(ParseError::File(errors)) => {
                problems.extend(errors.into_iter().map(text));
                return (problems, None);
            }
            Err(ParseError::Arguments(error)) => {
                problems.push(format!("{}: {error}", path.display()));
                return (problems, None);
            }
        }
    }
}

fn parsed(config: Option<PathBuf>) -> ParsedCommand {
    let line = CommandLine::serve(config);
    line.parse().unwrap_or_else(|error| error.exit())
}

fn show(config: Option<PathBuf>, all: bool, output: Output) -> anyhow::Result<()> {
    let values = shown_values(&parsed(config).values, all);
    output.print(&values, || {
        let lines = values.iter().map(ToString::to_string);
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// Returns the values without secrets: those that were given, or all of them.
pub(super) fn shown_values(values: &BTreeMap<String, SettingValue>, all: bool) -> Vec<ShownValue> {
    let shown = |setting: Setting| {
        let value = values.get(&setting.flag)?;
        (all || !value.source.is_default()).then(|| ShownValue {
            setting: setting.path(),
            value: visible(&setting, &value.text.to_string_lossy()),
            source: value.source.text(),
        })
    };
    settings().into_iter().filter_map(shown).collect()
}

impl fmt::Display for ShownValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            setting,
            value,
            source,
        } = self;
        write!(f, "{setting} = {value}  ({source})")
    }
}

fn diff(config: PathBuf, other: PathBuf, output: Output) -> anyhow::Result<()> {
    let (before, after) = (parsed(Some(config)), parsed(Some(other)));
    let change = |setting: Setting| {
        let value = |parsed: &ParsedCommand| {
            let value = parsed.values.get(&setting.flag)?;
            Some(visible(&setting, &value.text.to_string_lossy()))
        };
        ShownChange {
            setting: setting.path(),
            before: value(&before),
            after: value(&after),
            reloaded: setting.is_reloaded(),
        }
    };
    let changed = after.changed(&before.values);
    let changes: Vec<_> = changed.into_iter().map(change).collect();
    output.print(&changes, || {
        if changes.is_empty() {
            return "no setting differs".to_owned();
        }
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        let line = |change: &ShownChange| {
            format!(
                "{}: {} → {}  ({})",
                change.setting,
                text(&change.before),
                text(&change.after),
                if change.reloaded { "reload" } else { "restart" }
            )
        };
        changes.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

/// Returns the value of a setting, unless it is a secret.
fn visible(setting: &Setting, value: &str) -> String {
    if setting.is_secret {
        HIDDEN.to_owned()
    } else {
        value.to_owned()
    }
}
