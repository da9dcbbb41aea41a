//! Rules of the Auth settings: the type of each value, and dependencies between settings.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use chrono::DateTime;
use serde_json::Value;
use url::{Host, Url};

use super::catalog::{AUTH_SETTINGS, TextForm, ValueType};
use crate::base::error::Error;

/// Longest text, in bytes. Templates of emails have kilobytes.
const TEXT_BYTES_MAX: usize = 256 * 1024;

/// Settings of an own mail server. Other settings of emails need all of them.
const SMTP: [&str; 5] = [
    "smtp_admin_email",
    "smtp_host",
    "smtp_port",
    "smtp_user",
    "smtp_pass",
];

/// Checks that a value has the type and the bounds of its setting.
pub(super) fn check_value(name: &str, value_type: ValueType, value: &Value) -> Result<(), Error> {
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
    }
}

fn wrong_type(expected: &str, value: &Value) -> Cow<'static, str> {
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

/// The settings of a project while an update is checked. Secrets are in clear.
pub(super) struct EffectiveSettings<'a>(pub(super) &'a BTreeMap<String, Value>);

impl EffectiveSettings<'_> {
    fn is_on(&self, name: &str) -> bool {
        self.0.get(name) == Some(&Value::Bool(true))
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Checks the dependencies between settings. `changed` are the names in the update.
    pub(super) fn check(&self, changed: &[&str]) -> Result<(), Error> {
        self.check_smtp(changed)?;
        if self.is_on("mailer_autoconfirm") && self.is_on("mailer_allow_unverified_email_sign_ins")
        {
            return Err(Error::invalid(
                "mailer_autoconfirm",
                "cannot be combined with mailer_allow_unverified_email_sign_ins",
            ));
        }
        if self.is_on("security_captcha_enabled") {
            self.require("security_captcha_enabled", "security_captcha_provider")?;
            self.require("security_captcha_enabled", "security_captcha_secret")?;
        }
        if self.is_on("passkey_enabled") {
            for needed in [
                "webauthn_rp_id",
                "webauthn_rp_display_name",
                "webauthn_rp_origins",
            ] {
                self.require("passkey_enabled", needed)?;
            }
        }
        self.check_origins()?;
        for switch in AUTH_SETTINGS.keys() {
            let Some(subject) = switch
                .strip_suffix("_enabled")
                .filter(|_| self.is_on(switch))
            else {
                continue;
            };
            let client_id = format!("{subject}_client_id");
            let uri = format!("{subject}_uri");
            if AUTH_SETTINGS.contains_key(&client_id) {
                self.require(switch, &client_id)?;
                self.require(switch, &format!("{subject}_secret"))?;
            } else if AUTH_SETTINGS.contains_key(&uri) {
                self.require(switch, &uri)?;
                check_hook_uri(&uri, self.text(&uri))?;
                let secrets = format!("{subject}_secrets");
                check_hook_secrets(&secrets, self.text(&secrets))?;
            }
        }
        Ok(())
    }

    fn require(&self, switch: &str, needed: &str) -> Result<(), Error> {
        if self.text(needed).is_empty() {
            return Err(Error::invalid(
                needed.to_owned(),
                format!("is required while {switch} is true"),
            ));
        }
        Ok(())
    }

    fn check_smtp(&self, changed: &[&str]) -> Result<(), Error> {
        let asked: Vec<&str> = ["smtp_sender_name", "rate_limit_email_sent"]
            .into_iter()
            .filter(|name| changed.contains(name) && !self.0[*name].is_null())
            .collect();
        let missing: Vec<String> = SMTP
            .iter()
            .filter(|name| self.text(name).is_empty())
            .map(|name| name.to_ascii_uppercase())
            .collect();
        if asked.is_empty() || missing.is_empty() {
            return Ok(());
        }
        Err(Error::SmtpRequired {
            asked: asked
                .join(" or ")
                .to_ascii_uppercase()
                .replace(" OR ", " or "),
            missing: missing.join(", "),
        })
    }

    fn check_origins(&self) -> Result<(), Error> {
        for origin in self.text("webauthn_rp_origins").split(',').map(str::trim) {
            if origin.is_empty() {
                continue;
            }
            let url = Url::parse(origin).ok();
            let is_secure = url.is_some_and(|url| {
                url.scheme() == "https"
                    || url.scheme() == "http"
                        && matches!(url.host_str(), Some("localhost" | "127.0.0.1"))
            });
            if !is_secure {
                let text = format!(
                    "WebAuthn RP origin \"{origin}\" must use HTTPS \
                     (HTTP is only allowed for localhost/127.0.0.1)"
                );
                return Err(Error::Rejected(text.into()));
            }
        }
        Ok(())
    }
}

/// Checks the address of a hook: a function in the database, HTTPS, or HTTP to the own machine.
fn check_hook_uri(name: &str, uri: &str) -> Result<(), Error> {
    let is_valid = Url::parse(uri).is_ok_and(|url| match (url.scheme(), url.host()) {
        ("pg-functions", Some(_)) => url.path().split('/').filter(|it| !it.is_empty()).count() == 2,
        ("https", Some(_)) => true,
        ("http", Some(Host::Domain(name))) => {
            matches!(name, "localhost" | "host.docker.internal")
        }
        ("http", Some(Host::Ipv4(address))) => address.is_loopback(),
        ("http", Some(Host::Ipv6(address))) => address.is_loopback(),
        _ => false,
    });
    if is_valid {
        return Ok(());
    }
    Err(Error::invalid(
        name.to_owned(),
        "must be pg-functions://<database>/<schema>/<function>, https, or http on this machine",
    ))
}

/// Checks the secrets of a hook: `v1,whsec_<base64>` or `v1a,whpk_<base64>:whsk_<base64>`, several
/// separated by `|`. A hook in the database needs none.
fn check_hook_secrets(name: &str, secrets: &str) -> Result<(), Error> {
    let is_symmetric = |secret: &str| {
        secret
            .strip_prefix("v1,whsec_")
            .filter(|key| (32..=88).contains(&key.len()))
            .is_some_and(|key| STANDARD.decode(key).is_ok())
    };
    let is_asymmetric = |secret: &str| {
        secret
            .strip_prefix("v1a,whpk_")
            .and_then(|keys| keys.split_once(":whsk_"))
            .is_some_and(|(public, private)| !public.is_empty() && !private.is_empty())
    };
    if secrets.is_empty()
        || secrets
            .split('|')
            .all(|it| is_symmetric(it) || is_asymmetric(it))
    {
        return Ok(());
    }
    Err(Error::invalid(
        name.to_owned(),
        "must be v1,whsec_ and 32 to 88 characters of base64; several are separated by |",
    ))
}
