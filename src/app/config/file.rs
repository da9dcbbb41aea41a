//! The configuration file: values of settings in TOML, with their positions.
//!
//! `${NAME}` in a text is replaced by an environment variable. A secret can be `file:PATH`, the
//! content of a file that other accounts cannot read.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    ops::Range,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::setting::{Setting, ValueType};

/// Largest file, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Largest secret, in bytes.
const SECRET_BYTES_MAX: u64 = 64 << 10;
/// Least similarity of a key that an error suggests.
const SIMILAR: f64 = 0.75;
/// Permission bits of other accounts than the owner and the group of a file.
pub const OTHERS: u32 = 0o007;

/// A configuration file.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    values: Vec<FileValue>,
}

/// The value of a setting in a file.
pub struct FileValue {
    /// Its setting.
    pub setting: Setting,
    /// The value as the command line takes it; `None` for a switch that is off.
    pub text: Option<String>,
    position: Position,
}

impl fmt::Debug for FileValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.setting.path(), self.position)
    }
}

/// Line and column, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    line: usize,
    column: usize,
}

impl Position {
    fn of(text: &str, span: &Range<usize>) -> Self {
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A problem of a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A place in the file is wrong.
    #[error("{place}: {problem}")]
    Invalid {
        /// File, line and column.
        place: String,
        /// The problem and its remedy.
        problem: String,
    },
}

/// Source of the environment variables that texts refer to.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl ConfigFile {
    /// Reads a file. Returns all problems that can be found without the rules of single settings.
    pub fn read(
        path: &Path,
        settings: &[Setting],
        environment: Environment<'_>,
    ) -> Result<Self, Vec<ConfigFileError>> {
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| {
                let path = path.to_owned();
                vec![ConfigFileError::Unreadable { path, error }]
            })?;
        Self::parse(path, &text, settings, environment)
    }

    fn parse(
        path: &Path,
        text: &str,
        settings: &[Setting],
        environment: Environment<'_>,
    ) -> Result<Self, Vec<ConfigFileError>> {
        let reader = Reader {
            path,
            text,
            settings,
            environment,
        };
        let document = DeTable::parse(text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            vec![reader.invalid(&span, error.message())]
        })?;
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for (table, content) in document.get_ref() {
            match reader.table(table, content) {
                Ok(found) => {
                    for value in found {
                        match value {
                            Ok(value) => values.push(value),
                            Err(error) => errors.push(error),
                        }
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            let path = path.to_owned();
            Ok(Self { path, values })
        } else {
            Err(errors)
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The values, in the order of the file.
    pub fn values(&self) -> &[FileValue] {
        &self.values
    }

    /// Returns the arguments of the values that `is_used` selects.
    pub fn arguments(&self, is_used: impl Fn(&Setting) -> bool) -> Vec<String> {
        let argument = |value: &FileValue| {
            let FileValue { setting, text, .. } = value;
            let text = text.as_ref()?;
            Some(if setting.value_type == ValueType::Boolean {
                format!("--{}", setting.flag)
            } else {
                format!("--{}={text}", setting.flag)
            })
        };
        let used = self.values.iter().filter(|value| is_used(&value.setting));
        used.filter_map(argument).collect()
    }

    /// Returns the error of a value that the rules of its setting reject.
    pub fn rejected(&self, value: &FileValue, problem: &str) -> ConfigFileError {
        ConfigFileError::Invalid {
            place: format!("{}:{}", self.path.display(), value.position),
            problem: format!("{}: {problem}", value.setting.path()),
        }
    }

    /// Returns the file without the value of a setting.
    #[must_use]
    pub fn without(mut self, flag: &str) -> Self {
        self.values.retain(|value| value.setting.flag != flag);
        self
    }
}

/// Reading of one file.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    settings: &'a [Setting],
    environment: Environment<'a>,
}

impl Reader<'_> {
    fn invalid(&self, span: &Range<usize>, problem: impl fmt::Display) -> ConfigFileError {
        let position = Position::of(self.text, span);
        ConfigFileError::Invalid {
            place: format!("{}:{position}", self.path.display()),
            problem: problem.to_string(),
        }
    }

    /// Returns the values of a table.
    fn table(
        &self,
        name: &Spanned<impl AsRef<str>>,
        content: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<Result<FileValue, ConfigFileError>>, ConfigFileError> {
        let table = name.get_ref().as_ref();
        let tables = || self.settings.iter().map(|setting| setting.section.table);
        if !tables().any(|known| known == table) {
            let hint = suggestion(table, tables());
            return Err(self.invalid(&name.span(), format!("unknown section `{table}`{hint}")));
        }
        let DeValue::Table(values) = content.get_ref() else {
            let problem = format!("`{table}` is a section: write its settings below [{table}]");
            return Err(self.invalid(&name.span(), problem));
        };
        let value = |(key, value): (&Spanned<_>, _)| self.value(table, key, value);
        Ok(values.iter().map(value).collect())
    }

    fn value(
        &self,
        table: &str,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<FileValue, ConfigFileError> {
        let name = format!("{table}.{}", key.get_ref().as_ref());
        let mut settings = self.settings.iter();
        let Some(setting) = settings.find(|setting| setting.path() == name) else {
            let paths = self.settings.iter().map(Setting::path);
            let hint = suggestion(&name, paths);
            return Err(self.invalid(&key.span(), format!("unknown setting `{name}`{hint}")));
        };
        let text = self.text_of(setting, value).map_err(|problem| {
            self.invalid(&value.span(), format!("{}: {problem}", setting.path()))
        })?;
        Ok(FileValue {
            setting: setting.clone(),
            text,
            position: Position::of(self.text, &value.span()),
        })
    }

    /// Returns the value as the command line takes it.
    fn text_of(
        &self,
        setting: &Setting,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Option<String>, String> {
        let expected = || format!("must be {}", setting.value_type.text());
        match (setting.value_type, value.get_ref()) {
            (ValueType::Boolean, DeValue::Boolean(on)) => Ok(on.then(|| "true".to_owned())),
            (ValueType::Integer, DeValue::Integer(number)) => Ok(Some(number.to_string())),
            (ValueType::String | ValueType::List, DeValue::String(text)) => {
                self.resolved(setting, text).map(Some)
            }
            (ValueType::List, DeValue::Array(items)) => {
                let item = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
                    DeValue::String(text) if text.contains(',') => {
                        Err("an entry must not contain a comma".to_owned())
                    }
                    DeValue::String(text) => self.resolved(setting, text),
                    _ => Err(expected()),
                };
                let items: Result<Vec<_>, _> = items.iter().map(item).collect();
                let items = items?;
                Ok((!items.is_empty()).then(|| items.join(",")))
            }
            _ => Err(expected()),
        }
    }

    /// Replaces variables, and reads the file of a secret.
    fn resolved(&self, setting: &Setting, text: &str) -> Result<String, String> {
        let text = with_variables(text, self.environment)?;
        match text.strip_prefix("file:") {
            Some(file) if setting.is_secret => secret(Path::new(file)),
            _ => Ok(text),
        }
    }
}

/// Replaces `${NAME}` by environment variables. `$$` is a dollar sign.
fn with_variables(text: &str, environment: Environment<'_>) -> Result<String, String> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result += before;
        if let Some(after) = after.strip_prefix('$') {
            result.push('$');
            rest = after;
        } else if let Some(after) = after.strip_prefix('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or("`${` has no `}`; write `$$` for a dollar sign")?;
            let value = environment(name);
            result += &value.ok_or_else(|| format!("the variable {name} is not set"))?;
            rest = after;
        } else {
            result.push('$');
            rest = after;
        }
    }
    Ok(result + rest)
}

/// Reads a file with a secret, without the newline at its end.
fn secret(path: &Path) -> Result<String, String> {
    let unreadable = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if mode & OTHERS != 0 {
        return Err(format!(
            "every account can read {0}; run: chmod o= {0}",
            path.display()
        ));
    }
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Returns "; did you mean …?" with the most similar name, if one is similar.
fn suggestion<T: AsRef<str>>(name: &str, known: impl Iterator<Item = T>) -> String {
    let similarity = |known: T| {
        let similarity = strsim::jaro_winkler(name, known.as_ref());
        (similarity > SIMILAR).then_some((similarity, known))
    };
    let best = known
        .filter_map(similarity)
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.map_or_else(String::new, |(_, known)| {
        format!("; did you mean `{}`?", known.as_ref())
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use clap::{Args, Command};

    use super::*;
    use crate::app::config::Config;

    fn settings() -> Vec<Setting> {
        Setting::all(&Config::augment_args(Command::new("serve")))
    }

    fn environment(name: &str) -> Option<String> {
        (name == "HOST").then(|| "db.internal".to_owned())
    }

    fn read(text: &str) -> Result<Vec<String>, Vec<String>> {
        let file = ConfigFile::parse(Path::new("g.toml"), text, &settings(), &environment);
        match file {
            Ok(file) => Ok(file.arguments(|_| true)),
            Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn values_become_arguments() {
        let text = "\
            api.listen = \"0.0.0.0:8080\"\n\
            [databases]\n\
            listen = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n\
            pooler_port = 2\n\
            host = \"${HOST}\"\n\
            [edge]\n\
            check_keys = true\n\
            acme_wildcard = false\n\
            [log]\n\
            filter = \"debug\"\n";
        let expected = [
            "--listen=0.0.0.0:8080",
            "--db-listen=127.0.0.1:1,127.0.0.1:2",
            "--pooler-port=2",
            "--db-host=db.internal",
            "--edge-check-keys",
            "--log=debug",
        ];
        let mut arguments = read(text).unwrap();
        let mut expected = expected.map(ToOwned::to_owned);
        arguments.sort();
        expected.sort();
        assert_eq!(arguments, expected);
    }

    #[test]
    fn problems_have_line_column_and_remedy() {
        let cases = [
            (
                "[api]\nlisten = 8080\n",
                "g.toml:2:10: api.listen: must be a text in quotes",
            ),
            (
                "[api]\nlistne = \"x\"\n",
                "g.toml:2:1: unknown setting `api.listne`; did you mean `api.listen`?",
            ),
            (
                "[database]\nlisten = []\n",
                "g.toml:1:2: unknown section `database`; did you mean `databases`?",
            ),
            (
                "api = 1\n",
                "g.toml:1:1: `api` is a section: write its settings below [api]",
            ),
            (
                "[databases]\npooler_port = \"6543\"\n",
                "g.toml:2:15: databases.pooler_port: must be a whole number",
            ),
            (
                "[databases]\nlisten = [\"a,b\"]\n",
                "g.toml:2:10: databases.listen: an entry must not contain a comma",
            ),
            (
                "[databases]\nhost = \"${PORT}\"\n",
                "g.toml:2:8: databases.host: the variable PORT is not set",
            ),
            (
                "[databases]\nhost = \"${HOST\"\n",
                "g.toml:2:8: databases.host: `${` has no `}`; write `$$` for a dollar sign",
            ),
        ];
        for (text, problem) in cases {
            assert_eq!(read(text), Err(vec![problem.to_owned()]), "{text}");
        }
        let syntax = read("[api]\nlisten = \n").unwrap_err();
        assert!(syntax[0].starts_with("g.toml:2:"), "{syntax:?}");
        let all = read("[api]\na = 1\n[edge]\nb = 2\n").unwrap_err();
        assert_eq!(all.len(), 2, "every problem is reported: {all:?}");
    }

    #[test]
    fn dollar_sign_is_kept() {
        for (text, expected) in [("a$b", "a$b"), ("$${HOST}", "${HOST}"), ("$", "$")] {
            let replaced = with_variables(text, &environment);
            assert_eq!(replaced.as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn secret_of_a_file_is_read_unless_others_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("url");
        fs::write(&path, "postgres://u:p@h/d\n").unwrap();
        let text = format!("[data]\ndatabase_url = \"file:{}\"\n", path.display());
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = read(&text).unwrap_err();
        assert!(refused[0].contains("every account can read"), "{refused:?}");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let expected = vec!["--database-url=postgres://u:p@h/d".to_owned()];
        assert_eq!(read(&text), Ok(expected));
        let plain = format!("[databases]\nhost = \"file:{}\"\n", path.display());
        let unchanged = vec![format!("--db-host=file:{}", path.display())];
        assert_eq!(read(&plain), Ok(unchanged), "no secret");
    }
}
