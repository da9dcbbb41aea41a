//! Parsing of the command line together with the configuration file.
//!
//! Flags take precedence over environment variables, these over the file, and this over defaults.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use clap::{
    ArgMatches, Command, CommandFactory, FromArgMatches,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};

use super::Cli;
use crate::app::config::{
    file::{ConfigFile, ConfigFileError},
    setting::Setting,
};

/// Name of the subcommand with all settings.
const SERVE: &str = "serve";

/// Name of the subcommand that works with an invalid configuration file and reads it by itself.
const DOCTOR: &str = "doctor";

/// Environment variable with the configuration file.
pub(super) const FILE_VARIABLE: &str = "GANTRY_CONFIG";

/// A command line.
#[derive(Debug, Clone)]
pub(super) struct CommandLine(Vec<OsString>);

/// The result of parsing.
#[derive(Debug)]
pub(super) struct ParsedCommand {
    pub(super) cli: Cli,
    /// Values of the settings of the command, by flag.
    pub(super) values: BTreeMap<String, SettingValue>,
}

/// Problem of a command line or of a configuration file.
#[derive(Debug)]
pub(super) enum ParseError {
    /// The arguments are invalid, or ask for help.
    Arguments(clap::Error),
    /// The configuration file is invalid.
    File(Vec<ConfigFileError>),
    /// The value of a setting in the configuration file is invalid.
    Rejected {
        error: ConfigFileError,
        /// Flag of the setting.
        flag: String,
    },
}

impl ParseError {
    /// Prints the problem and ends the process: with 0 if help was asked for, otherwise with 2.
    pub(super) fn exit(self) -> ! {
        match self {
            Self::Arguments(error) => error.exit(),
            Self::File(errors) => {
                for error in errors {
                    anstream::eprintln!("gantry: {error}");
                }
                std::process::exit(2)
            }
            Self::Rejected { error, .. } => Self::File(vec![error]).exit(),
        }
    }
}

/// Value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SettingValue {
    /// As on the command line; a list with commas.
    pub(super) text: OsString,
    pub(super) source: Source,
}

/// Source of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Flag,
    Variable,
    File,
    Default,
}

impl Source {
    pub(super) const fn is_default(self) -> bool {
        matches!(self, Self::Default)
    }

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Variable => "variable",
            Self::File => "file",
            Self::Default => "default",
        }
    }
}

/// Returns the settings of `gantry serve`.
pub(super) fn settings() -> Vec<Setting> {
    let definition = Cli::command();
    definition
        .find_subcommand(SERVE)
        .map(Setting::all)
        .unwrap_or_default()
}

/// Returns the value of an environment variable.
pub(super) fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Returns the values of environment variables with names of secrets. Those of settings that are no
/// secrets are left out: they name files.
pub(super) fn secret_variables() -> Vec<String> {
    const PARTS: [&str; 4] = ["SECRET", "PASSWORD", "TOKEN", "_KEY"];
    let settings = settings();
    let is_secret = |name: &OsString| {
        let name = name.to_string_lossy().to_uppercase();
        let mut plain = settings.iter().filter(|setting| !setting.is_secret);
        PARTS.iter().any(|part| name.contains(part))
            && !plain.any(|setting| setting.variable == name)
    };
    let secrets = env::vars_os().filter(|(name, _)| is_secret(name));
    secrets
        .map(|(_, value)| value.to_string_lossy().into_owned())
        .collect()
}

impl CommandLine {
    /// Returns the command line of this process.
    pub(super) fn of_process() -> Self {
        Self(env::args_os().collect())
    }

    /// Returns the command line of `gantry serve` without flags.
    pub(super) fn serve(file: Option<PathBuf>) -> Self {
        let mut line = vec!["gantry".into(), SERVE.into()];
        if let Some(file) = file {
            line.extend(["--config".into(), file.into()]);
        }
        Self(line)
    }

    /// Parses it, with the values of the configuration file that it names.
    pub(super) fn parse(&self) -> Result<ParsedCommand, ParseError> {
        // Servers and services are started by commands of this binary, so others cost no time.
        if !self.may_name_file() {
            return self.parse_with(None);
        }
        let given = Cli::command()
            .ignore_errors(true)
            .try_get_matches_from(&self.0);
        let Some(file) = given.as_ref().ok().and_then(config_file) else {
            return self.parse_with(None);
        };
        let file = ConfigFile::read(&file, &settings(), &variable).map_err(ParseError::File)?;
        self.parse_with(Some(&file))
    }

    fn may_name_file(&self) -> bool {
        let is_option = |argument: &OsString| argument.to_string_lossy().starts_with("--config");
        env::var_os(FILE_VARIABLE).is_some() || self.0.iter().any(is_option)
    }

    /// Parses it, with the values of a file for settings without flag and variable.
    pub(super) fn parse_with(
        &self,
        file: Option<&ConfigFile>,
    ) -> Result<ParsedCommand, ParseError> {
        let added = file.map(|file| self.missing(file)).unwrap_or_default();
        let rest = |argument: &OsString| argument == "--";
        let end = self.0.iter().position(rest).unwrap_or(self.0.len());
        let mut line = self.0.clone();
        line.splice(end..end, added.iter().map(OsString::from));
        let matches = Cli::command()
            .try_get_matches_from(line)
            .map_err(|error| explained(error, file))?;
        let cli = Cli::from_arg_matches(&matches)
            .map_err(|error| ParseError::Arguments(error.format(&mut Cli::command())))?;
        let values = values(&matches, &added);
        Ok(ParsedCommand { cli, values })
    }

    /// Returns the arguments of the file for options of the command without flag and variable.
    fn missing(&self, file: &ConfigFile) -> Vec<String> {
        let definition = Cli::command();
        let Ok(matches) = definition
            .clone()
            .ignore_errors(true)
            .try_get_matches_from(&self.0)
        else {
            return Vec::new();
        };
        let (command, matches) = innermost(&definition, &matches);
        file.arguments(|setting| {
            let mut options = command.get_arguments();
            let is_option = options.any(|option| option.get_long() == Some(&setting.flag));
            let given =
                |source| matches!(source, ValueSource::CommandLine | ValueSource::EnvVariable);
            is_option && !matches.value_source(&setting.id).is_some_and(given)
        })
    }
}

/// Returns the configuration file that the command line or its variable names.
fn config_file(matches: &ArgMatches) -> Option<PathBuf> {
    let definition = Cli::command();
    let (command, innermost) = innermost(&definition, matches);
    if command.is_hide_set() || command.get_name() == DOCTOR {
        return None;
    }
    innermost.get_one::<PathBuf>("config").cloned()
}

/// Returns the innermost subcommand that was given.
fn innermost<'a>(
    mut command: &'a Command,
    mut matches: &'a ArgMatches,
) -> (&'a Command, &'a ArgMatches) {
    while let Some((name, given)) = matches.subcommand() {
        let Some(subcommand) = command.find_subcommand(name) else {
            break;
        };
        (command, matches) = (subcommand, given);
    }
    (command, matches)
}

/// Returns the values of the settings, with their sources.
fn values(matches: &ArgMatches, of_file: &[String]) -> BTreeMap<String, SettingValue> {
    let definition = Cli::command();
    let (command, matches) = innermost(&definition, matches);
    let value = |setting: Setting| {
        let flag = format!("--{}", setting.flag);
        let is_of_file = of_file
            .iter()
            .any(|argument| argument.split('=').next() == Some(&flag));
        let source = match matches.value_source(&setting.id)? {
            _ if is_of_file => Source::File,
            ValueSource::CommandLine => Source::Flag,
            ValueSource::EnvVariable => Source::Variable,
            _ => Source::Default,
        };
        let given: Vec<&OsStr> = match matches.get_raw(&setting.id) {
            Some(given) => given.collect(),
            None => Vec::new(),
        };
        // A switch that is given has no value.
        let text = if given.is_empty() {
            OsString::from(matches.get_flag(&setting.id).to_string())
        } else {
            given.join(OsStr::new(","))
        };
        Some((setting.flag, SettingValue { text, source }))
    };
    Setting::all(command)
        .into_iter()
        .filter_map(value)
        .collect()
}

/// Returns the error with the position in the file, if the file has the value that was rejected.
fn explained(error: clap::Error, file: Option<&ConfigFile>) -> ParseError {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return ParseError::Arguments(error);
    };
    let flag = option.split([' ', '=']).next().unwrap_or(option);
    let rejected = file.and_then(|file| {
        let mut values = file.values().iter();
        let value = values.find(|value| flag == format!("--{}", value.setting.flag))?;
        Some(ParseError::Rejected {
            error: file.rejected(value, &problem(&error)),
            flag: value.setting.flag.clone(),
        })
    });
    rejected.unwrap_or(ParseError::Arguments(error))
}

/// Returns the problem of a value in one line.
fn problem(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => line.trim_start_matches("error: ").to_owned(),
    }
}

impl ParsedCommand {
    /// Returns the settings with other values than `earlier`.
    pub(super) fn changed(&self, earlier: &BTreeMap<String, SettingValue>) -> Vec<Setting> {
        let text = |value: &SettingValue| value.text.clone();
        let differs = |setting: &Setting| {
            self.values.get(&setting.flag).map(text) != earlier.get(&setting.flag).map(text)
        };
        settings().into_iter().filter(differs).collect()
    }
}
