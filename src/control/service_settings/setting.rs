//! One setting of a service: its type, bounds, default and secrecy. Validation, storage, responses
//! and the OpenAPI schemas derive from the declaration.

use std::{borrow::Cow, collections::BTreeMap};

use chrono::DateTime;
use ipnet::IpNet;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use crate::platform::error::Error;

/// Values of settings by name.
pub type SettingValues = BTreeMap<String, Value>;

/// The type of a value, with its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueType {
    /// `true` or `false`.
    Boolean,
    /// An integer within these bounds.
    Integer(i64, i64),
    /// A number that is not negative.
    Number,
    /// A text.
    Text(TextForm),
    /// A list of networks such as `10.0.0.0/8`, at most this many.
    Networks(usize),
}

impl ValueType {
    /// Returns the name of the type in messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Boolean => "boolean",
            Self::Integer(..) | Self::Number => "number",
            Self::Text(_) => "string",
            Self::Networks(_) => "array",
        }
    }
}

/// The form of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TextForm {
    /// Any text.
    Any,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A text that is not empty and has no comma.
    WithoutComma,
    /// An email address.
    Email,
    /// A time in RFC 3339.
    Time,
    /// Names of letters, digits, `_` and `-`, separated by commas.
    Names,
    /// `phone=code` pairs of digits, separated by commas.
    PhoneCodes,
}

/// The effect of `null` in an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullEffect {
    /// The setting becomes `null`.
    Unset,
    /// The setting gets its default.
    Default,
    /// The update is rejected.
    Rejected,
}

/// One setting of a service.
#[derive(Debug, Clone)]
pub struct ServiceSetting {
    /// The type of its value.
    pub value_type: ValueType,
    /// The value of a project that never set it.
    pub default: Value,
    /// The effect of `null` in an update.
    pub null: NullEffect,
    /// Whether it is stored sealed, and answered as a digest.
    pub is_secret: bool,
    /// Whether clients cannot change it.
    pub is_read_only: bool,
    /// The variable by which a program that Gantry runs gets it.
    pub variable: Option<Variable>,
    /// One sentence on its meaning, for the reference and the pages.
    pub explanation: Cow<'static, str>,
}

/// A variable in the environment of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The form of its value.
    pub form: VariableForm,
}

/// The form of a setting in the environment of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableForm {
    /// As it is. Absent if it is `null` or empty.
    Plain,
    /// A number of seconds, with unit.
    Seconds,
    /// A number of hours, with unit. Absent if it is zero.
    Hours,
    /// Pairs, with colons.
    Pairs,
    /// Further elements of the list in the same variable.
    Appended,
}

impl VariableForm {
    /// Returns the text of a value. `None`: the variable is absent.
    fn render(self, value: &Value) -> Option<String> {
        let text = match value {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let is_zero = value.as_f64() == Some(0.0);
        match self {
            _ if text.is_empty() => None,
            Self::Hours if is_zero => None,
            Self::Plain | Self::Appended => Some(text),
            Self::Seconds => Some(format!("{text}s")),
            Self::Hours => Some(format!("{text}h")),
            Self::Pairs => Some(text.replace('=', ":")),
        }
    }

    /// Returns whether the text continues that of another setting.
    const fn appends(self) -> bool {
        matches!(self, Self::Appended)
    }
}

/// Returns the variables of settings with these values, by name.
pub(super) fn variables<'a>(
    settings: impl Iterator<Item = (&'a ServiceSetting, &'a Value)>,
) -> Vec<RenderedVariable> {
    let mut all: Vec<RenderedVariable> = Vec::new();
    let mut appended = Vec::new();
    for (setting, value) in settings {
        let Some(variable) = &setting.variable else {
            continue;
        };
        let Some(text) = variable.form.render(value) else {
            continue;
        };
        let rendered = RenderedVariable {
            name: variable.name.clone(),
            value: text.into(),
            is_secret: setting.is_secret,
        };
        if variable.form.appends() {
            appended.push(rendered);
        } else {
            all.push(rendered);
        }
    }
    for more in appended {
        match all.iter_mut().find(|first| first.name == more.name) {
            Some(first) => {
                let values = [&first.value, &more.value].map(ExposeSecret::expose_secret);
                first.value = values.join(",").into();
            }
            None => all.push(more),
        }
    }
    all
}

/// A variable of a program with its value.
#[derive(Debug, Clone)]
pub struct RenderedVariable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: SecretString,
    /// Whether the value is a secret.
    pub is_secret: bool,
}

impl ServiceSetting {
    /// Returns a setting that `null` in an update is rejected for.
    pub(in crate::control) fn new(value_type: ValueType, default: Value) -> Self {
        Self {
            value_type,
            default,
            null: NullEffect::Rejected,
            is_secret: false,
            is_read_only: false,
            variable: None,
            explanation: Cow::Borrowed(""),
        }
    }

    /// Returns the setting with an explanation.
    pub(in crate::control) fn explained(self, explanation: impl Into<Cow<'static, str>>) -> Self {
        Self {
            explanation: explanation.into(),
            ..self
        }
    }

    /// Returns the setting as one that `null` unsets.
    pub(in crate::control) fn nullable(self) -> Self {
        Self {
            null: NullEffect::Unset,
            ..self
        }
    }

    /// Returns the setting as one that clients cannot change.
    pub(super) fn read_only(self) -> Self {
        Self {
            is_read_only: true,
            ..self
        }
    }

    /// Returns whether responses can have `null`.
    pub fn is_nullable(&self) -> bool {
        self.null == NullEffect::Unset || self.default.is_null()
    }
}

/// Longest text, in bytes. Templates of emails have kilobytes.
const TEXT_BYTES_MAX: usize = 256 * 1024;

/// Checks that a value has the type and the bounds of its setting.
pub(in crate::control) fn check_value(
    name: &str,
    value_type: ValueType,
    value: &Value,
) -> Result<(), Error> {
    match problem(value_type, value) {
        None => Ok(()),
        Some(problem) => Err(Error::invalid(name.to_owned(), problem)),
    }
}

fn problem(value_type: ValueType, value: &Value) -> Option<Cow<'static, str>> {
    match (value_type, value) {
        (ValueType::Boolean, Value::Bool(_)) => None,
        (ValueType::Boolean, _) => Some(wrong_type("boolean", value)),
        (ValueType::Integer(min, max), Value::Number(number)) => match number.as_i64() {
            Some(number) if number < min => {
                Some(format!("Too small: expected number to be >={min}").into())
            }
            Some(number) if number <= max => None,
            None if number.is_f64() => Some("Invalid input: expected int, received number".into()),
            _ => Some(format!("Too big: expected number to be <={max}").into()),
        },
        (ValueType::Number, Value::Number(number)) => number
            .as_f64()
            .is_none_or(|number| number < 0.0)
            .then_some("Too small: expected number to be >=0".into()),
        (ValueType::Integer(..) | ValueType::Number, _) => Some(wrong_type("number", value)),
        (ValueType::Text(form), Value::String(text)) => text_problem(form, text),
        (ValueType::Text(_), _) => Some(wrong_type("string", value)),
        (ValueType::Networks(max), Value::Array(networks)) if networks.len() > max => {
            Some(format!("Too big: expected array to have <={max} items").into())
        }
        (ValueType::Networks(_), Value::Array(networks)) => {
            let is_network = |text: &str| text.parse::<IpNet>().is_ok();
            let are_valid = networks
                .iter()
                .all(|network| network.as_str().is_some_and(is_network));
            (!are_valid).then_some("Invalid string: must be networks such as 10.0.0.0/8".into())
        }
        (ValueType::Networks(_), _) => Some(wrong_type("array", value)),
    }
}

pub(in crate::control) fn wrong_type(expected: &str, value: &Value) -> Cow<'static, str> {
    let received = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("Invalid input: expected {expected}, received {received}").into()
}

fn text_problem(form: TextForm, text: &str) -> Option<Cow<'static, str>> {
    if text.len() > TEXT_BYTES_MAX {
        return Some(format!("Too big: expected string to have <={TEXT_BYTES_MAX} bytes").into());
    }
    // Variables of a process end at the first one.
    if text.contains('\0') {
        return Some("Invalid string: must not contain NUL".into());
    }
    let is_valid = match form {
        TextForm::Any => true,
        TextForm::OneOf(options) => options.contains(&text),
        TextForm::WithoutComma => !text.is_empty() && !text.contains(','),
        TextForm::Email => is_email(text),
        TextForm::Time => DateTime::parse_from_rfc3339(text).is_ok(),
        TextForm::Names => text.split(',').all(is_name_or_empty),
        TextForm::PhoneCodes => text.trim_end_matches(',').split(',').all(is_phone_code),
    };
    (!is_valid).then(|| match form {
        TextForm::OneOf(options) => {
            format!("Invalid option: expected one of {}", options.join(", ")).into()
        }
        TextForm::Email => "Invalid email address".into(),
        TextForm::Time => "Invalid ISO datetime".into(),
        TextForm::WithoutComma => "Invalid string: must be one value without a comma".into(),
        TextForm::Names => "Invalid string: must be names separated by commas".into(),
        _ => "Invalid string: must be phone=code pairs separated by commas".into(),
    })
}

fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else {
        return false;
    };
    let is_printable = !text.chars().any(|it| it.is_whitespace() || it.is_control());
    is_printable && !local.is_empty() && domain.contains('.') && !domain.starts_with('.')
}

fn is_name_or_empty(name: &str) -> bool {
    name.trim()
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn is_phone_code(pair: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    pair.is_empty()
        || pair
            .split_once('=')
            .is_some_and(|(phone, code)| phone.len() <= 15 && is_number(phone) && is_number(code))
}
