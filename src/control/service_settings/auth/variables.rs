//! The variables by which the program of the Auth service gets its settings (contract
//! `behaviour-2.md` §5.1): `GOTRUE_` and the name of the setting, with few exceptions.

use crate::control::service_settings::setting::{Variable, VariableForm};

/// Prefix of the variables.
const PREFIX: &str = "GOTRUE_";

/// Settings with a variable of another name.
const RENAMED: [(&str, &str); 3] = [
    (
        "refresh_token_rotation_enabled",
        "GOTRUE_SECURITY_REFRESH_TOKEN_ROTATION_ENABLED",
    ),
    (
        "external_apple_additional_client_ids",
        "GOTRUE_EXTERNAL_APPLE_CLIENT_ID",
    ),
    (
        "external_google_additional_client_ids",
        "GOTRUE_EXTERNAL_GOOGLE_CLIENT_ID",
    ),
];

/// Settings without a variable.
const WITHOUT: [&str; 9] = [
    // The size of the pool depends on both.
    "db_max_pool_size",
    "db_max_pool_size_unit",
    // Not a provider of the program.
    "nimbus_oauth_client_id",
    "nimbus_oauth_client_secret",
    "nimbus_oauth_email_optional",
    // The program needs an RSA key of the project, which does not exist.
    "saml_allow_encrypted_assertions",
    "saml_enabled",
    "saml_external_url",
    // Of a newer version of the program.
    "security_update_password_require_current_password",
];

/// Returns the variable of a setting. Templates of emails have none: the program loads them from an
/// address.
pub(super) fn of(setting: &str) -> Option<Variable> {
    if WITHOUT.contains(&setting) || setting.starts_with("mailer_templates_") {
        return None;
    }
    let renamed = RENAMED.iter().find(|(from, _)| *from == setting);
    let name = match renamed {
        Some((_, name)) => (*name).to_owned(),
        None => format!("{PREFIX}{}", setting.to_ascii_uppercase()),
    };
    Some(Variable {
        name,
        form: form(setting),
    })
}

fn form(setting: &str) -> VariableForm {
    match setting {
        "api_max_request_duration"
        | "mfa_phone_max_frequency"
        | "sms_max_frequency"
        | "smtp_max_frequency" => VariableForm::Seconds,
        "sessions_inactivity_timeout" | "sessions_timebox" => VariableForm::Hours,
        "sms_test_otp" => VariableForm::Pairs,
        name if name.ends_with("_additional_client_ids") => VariableForm::Appended,
        _ => VariableForm::Plain,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use secrecy::ExposeSecret;
    use serde_json::{Value, json};

    use super::*;
    use crate::control::service_settings::{AUTH, ServiceSettings, auth::AUTH_SETTINGS};
    use gantry_base::ids::ProjectRef;

    /// The variables that the program documents in its configuration.
    const DOCUMENTED: &str = include_str!("documented_variables.txt");

    fn rendered(change: &Value) -> Vec<(String, String)> {
        let reference: ProjectRef = "abcdefghijklmnopqrst".parse().unwrap();
        let settings = ServiceSettings::new(&AUTH);
        let change = change.as_object().unwrap().clone();
        let settings = settings.update(&reference, &change).unwrap();
        let text = |value: &secrecy::SecretString| value.expose_secret().to_owned();
        let all = settings.variables().into_iter();
        all.map(|one| (one.name, text(&one.value))).collect()
    }

    #[test]
    fn every_variable_is_documented_and_every_setting_has_one_or_a_reason() {
        let documented: BTreeSet<&str> = DOCUMENTED.lines().collect();
        let mut without = 0;
        for (name, setting) in AUTH_SETTINGS.iter() {
            match &setting.variable {
                Some(variable) => {
                    assert!(documented.contains(&*variable.name), "{name}: {variable:?}");
                }
                None => without += 1,
            }
        }
        // The listed ones, and the templates of 13 emails.
        assert_eq!(without, WITHOUT.len() + 13);
    }

    #[test]
    fn values_have_the_forms_of_the_program() {
        let all = rendered(&json!({
            "external_google_enabled": true,
            "external_google_client_id": "a",
            "external_google_secret": "s",
            "external_google_additional_client_ids": "b,c",
            "sessions_timebox": 1.5,
            "sms_test_otp": "1555=123,1556=456",
            "smtp_max_frequency": 7,
            "uri_allow_list": "https://a.example/**,https://b.example",
        }));
        let value = |name: &str| {
            let found = all.iter().find(|(found, _)| found == name);
            found.map(|(_, value)| value.as_str())
        };
        for (name, expected) in [
            ("GOTRUE_EXTERNAL_GOOGLE_CLIENT_ID", Some("a,b,c")),
            ("GOTRUE_EXTERNAL_GOOGLE_SECRET", Some("s")),
            ("GOTRUE_SESSIONS_TIMEBOX", Some("1.5h")),
            ("GOTRUE_SESSIONS_INACTIVITY_TIMEOUT", None),
            ("GOTRUE_SMS_TEST_OTP", Some("1555:123,1556:456")),
            ("GOTRUE_SMTP_MAX_FREQUENCY", Some("7s")),
            ("GOTRUE_SMTP_PASS", None),
            ("GOTRUE_API_MAX_REQUEST_DURATION", Some("10s")),
            (
                "GOTRUE_SECURITY_REFRESH_TOKEN_ROTATION_ENABLED",
                Some("true"),
            ),
            ("GOTRUE_SITE_URL", Some("http://localhost:3000")),
            (
                "GOTRUE_URI_ALLOW_LIST",
                Some("https://a.example/**,https://b.example"),
            ),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        let names: BTreeSet<&String> = all.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), all.len(), "each name once");
    }
}
