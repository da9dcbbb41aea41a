//! The settings of a project's Auth service.

mod explanations;
mod validation;
mod variables;

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};

use super::setting::{NullEffect, ServiceSetting, TextForm, ValueType};
use crate::{
    control::service_settings::catalog::{EffectiveSettings, SettingsCatalog},
    platform::error::Error,
};

/// Largest 16-bit and 32-bit integer.
const SMALL: i64 = 32_767;
const LARGE: i64 = 2_147_483_647;

const BOOLEAN: ValueType = ValueType::Boolean;
const TEXT: ValueType = ValueType::Text(TextForm::Any);

/// Sign-in providers, with their fields beside `enabled`, `client_id` and `secret`.
const PROVIDERS: [(&str, &[&str]); 21] = [
    ("apple", &["additional_client_ids", "email_optional"]),
    ("azure", &["email_optional", "url"]),
    ("bitbucket", &["email_optional"]),
    ("discord", &["email_optional"]),
    ("facebook", &["email_optional"]),
    ("figma", &["email_optional"]),
    ("github", &["email_optional"]),
    ("gitlab", &["email_optional", "url"]),
    (
        "google",
        &[
            "additional_client_ids",
            "email_optional",
            "skip_nonce_check",
        ],
    ),
    ("kakao", &["email_optional"]),
    ("keycloak", &["email_optional", "url"]),
    ("linkedin_oidc", &["email_optional"]),
    ("notion", &["email_optional"]),
    ("slack", &["email_optional"]),
    ("slack_oidc", &["email_optional"]),
    ("spotify", &["email_optional"]),
    ("twitch", &["email_optional"]),
    ("twitter", &["email_optional"]),
    ("workos", &["url"]),
    ("x", &["email_optional"]),
    ("zoom", &["email_optional"]),
];

/// Hooks. Each has `enabled`, `uri` and `secrets`.
const HOOKS: [&str; 7] = [
    "after_user_created",
    "before_user_created",
    "custom_access_token",
    "mfa_verification_attempt",
    "password_verification_attempt",
    "send_email",
    "send_sms",
];

/// Emails, with their default subjects. Each has a subject and a template.
const EMAILS: [(&str, &str); 6] = [
    ("confirmation", "Confirm Your Signup"),
    ("email_change", "Confirm Email Change"),
    ("invite", "You have been invited"),
    ("magic_link", "Your Magic Link"),
    ("reauthentication", "Confirm Reauthentication"),
    ("recovery", "Reset Your Password"),
];

/// Emails about a change of an account, with their default subjects.
const NOTIFICATIONS: [(&str, &str); 7] = [
    ("password_changed", "Your password has been changed"),
    ("email_changed", "Your email address has been changed"),
    ("phone_changed", "Your phone number has been changed"),
    ("mfa_factor_enrolled", "A new MFA factor has been enrolled"),
    ("mfa_factor_unenrolled", "An MFA factor has been unenrolled"),
    ("identity_linked", "A new identity has been linked"),
    ("identity_unlinked", "An identity has been unlinked"),
];

/// The character classes that a password may need, separated by colons.
const PASSWORD_CHARACTERS: &[&str] = &[
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:0123456789",
    "abcdefghijklmnopqrstuvwxyz:ABCDEFGHIJKLMNOPQRSTUVWXYZ:0123456789",
    r#"abcdefghijklmnopqrstuvwxyz:ABCDEFGHIJKLMNOPQRSTUVWXYZ:0123456789:!@#$%^&*()_+-=[]{};'\\:"|<>?,./`~"#,
    "",
];

const SMS_PROVIDERS: &[&str] = &[
    "messagebird",
    "textlocal",
    "twilio",
    "twilio_verify",
    "vonage",
];

/// Secrets beside those of providers and hooks.
const SECRETS: [&str; 8] = [
    "nimbus_oauth_client_secret",
    "security_captcha_secret",
    "smtp_pass",
    "sms_messagebird_access_key",
    "sms_textlocal_api_key",
    "sms_twilio_auth_token",
    "sms_twilio_verify_auth_token",
    "sms_vonage_api_secret",
];

/// Texts that are `null` unless they are set.
const TEXTS: [&str; 18] = [
    "nimbus_oauth_client_id",
    "oauth_server_authorization_path",
    "sms_messagebird_originator",
    "sms_textlocal_sender",
    "sms_twilio_account_sid",
    "sms_twilio_content_sid",
    "sms_twilio_message_service_sid",
    "sms_twilio_verify_account_sid",
    "sms_twilio_verify_message_service_sid",
    "sms_vonage_api_key",
    "sms_vonage_from",
    "smtp_host",
    "smtp_port",
    "smtp_sender_name",
    "smtp_user",
    "webauthn_rp_display_name",
    "webauthn_rp_id",
    "webauthn_rp_origins",
];

/// Switches with their defaults.
const SWITCHES: [(&str, bool); 31] = [
    ("disable_signup", false),
    ("external_anonymous_users_enabled", false),
    ("external_email_enabled", true),
    ("external_phone_enabled", false),
    ("external_web3_ethereum_enabled", false),
    ("external_web3_solana_enabled", false),
    ("mailer_allow_unverified_email_sign_ins", false),
    ("mailer_autoconfirm", false),
    ("mailer_secure_email_change_enabled", true),
    ("mfa_phone_enroll_enabled", false),
    ("mfa_phone_verify_enabled", false),
    ("mfa_totp_enroll_enabled", true),
    ("mfa_totp_verify_enabled", true),
    ("mfa_web_authn_enroll_enabled", false),
    ("mfa_web_authn_verify_enabled", false),
    ("password_hibp_enabled", false),
    ("refresh_token_rotation_enabled", true),
    ("saml_enabled", false),
    ("security_captcha_enabled", false),
    ("security_manual_linking_enabled", false),
    ("security_sb_forwarded_for_enabled", false),
    ("security_update_password_require_current_password", false),
    ("security_update_password_require_reauthentication", false),
    ("sessions_single_per_user", false),
    ("sms_autoconfirm", false),
    ("passkey_enabled", false),
    ("oauth_server_enabled", false),
    ("oauth_server_allow_dynamic_registration", false),
    ("custom_oauth_enabled", false),
    ("nimbus_oauth_email_optional", false),
    ("saml_allow_encrypted_assertions", false),
];

/// Integers with their bounds and defaults.
const INTEGERS: [(&str, i64, i64, i64); 22] = [
    ("api_max_request_duration", 0, LARGE, 10),
    ("db_max_pool_size", 0, LARGE, 10),
    ("jwt_exp", 0, 604_800, 3600),
    ("mailer_otp_exp", 0, LARGE, 3600),
    ("mailer_otp_length", 6, 10, 6),
    ("mfa_max_enrolled_factors", 0, LARGE, 10),
    ("mfa_phone_otp_length", 0, SMALL, 6),
    ("mfa_phone_max_frequency", 0, SMALL, 5),
    ("password_min_length", 6, SMALL, 6),
    ("rate_limit_anonymous_users", 1, LARGE, 30),
    ("rate_limit_email_sent", 1, LARGE, 2),
    ("rate_limit_sms_sent", 1, LARGE, 30),
    ("rate_limit_token_refresh", 1, LARGE, 150),
    ("rate_limit_verify", 1, LARGE, 30),
    ("rate_limit_otp", 1, LARGE, 30),
    ("rate_limit_web3", 1, LARGE, 30),
    ("security_refresh_token_reuse_interval", 0, LARGE, 10),
    ("sms_max_frequency", 0, SMALL, 5),
    ("sms_otp_exp", 0, LARGE, 60),
    ("sms_otp_length", 0, SMALL, 6),
    ("smtp_max_frequency", 0, SMALL, 60),
    ("custom_oauth_max_providers", 0, LARGE, 3),
];

/// Settings that responses never have as `null`.
const ALWAYS_SET: [&str; 8] = [
    "custom_oauth_enabled",
    "custom_oauth_max_providers",
    "mailer_otp_exp",
    "mfa_phone_otp_length",
    "oauth_server_allow_dynamic_registration",
    "oauth_server_enabled",
    "passkey_enabled",
    "sms_otp_length",
];

/// Settings of which `null` means the default. That of the others in [`ALWAYS_SET`] is rejected.
const RESET_BY_NULL: [&str; 3] = [
    "mfa_phone_otp_length",
    "oauth_server_allow_dynamic_registration",
    "oauth_server_enabled",
];

const READ_ONLY: [&str; 3] = [
    "custom_oauth_max_providers",
    "nimbus_oauth_email_optional",
    "saml_allow_encrypted_assertions",
];

/// The catalog of the Auth service.
pub static AUTH: SettingsCatalog = SettingsCatalog {
    service: "auth",
    settings: || &AUTH_SETTINGS,
    // Clients send it, and it has no effect (contract `behaviour-2.md` §5.1).
    ignored: &["jwt_secret"],
    check,
};

fn check(settings: &EffectiveSettings<'_>, changed: &[&str]) -> Result<(), Error> {
    validation::AuthRules(settings.0).check(changed)
}

/// All settings by name.
static AUTH_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let mut catalog = AuthCatalog::default();
    catalog.add_providers();
    catalog.add_hooks();
    catalog.add_emails();
    catalog.add_single_settings();
    catalog.0
});

#[derive(Default)]
struct AuthCatalog(BTreeMap<String, ServiceSetting>);

impl AuthCatalog {
    fn add(&mut self, name: String, value_type: ValueType, default: Value) {
        let null = if RESET_BY_NULL.contains(&name.as_str()) {
            NullEffect::Default
        } else if ALWAYS_SET.contains(&name.as_str()) {
            NullEffect::Rejected
        } else {
            NullEffect::Unset
        };
        let variable = variables::of(&name);
        let setting = ServiceSetting {
            value_type,
            default,
            null,
            is_secret: false,
            is_read_only: READ_ONLY.contains(&name.as_str()),
            variable,
            explanation: explanations::of(&name),
        };
        let previous = self.0.insert(name, setting);
        debug_assert!(previous.is_none(), "a setting is declared twice");
    }

    fn add_secret(&mut self, name: &str) {
        self.add(name.to_owned(), TEXT, Value::Null);
        if let Some(setting) = self.0.get_mut(name) {
            setting.is_secret = true;
        }
    }

    fn add_providers(&mut self) {
        for (provider, fields) in PROVIDERS {
            let name = |field: &str| format!("external_{provider}_{field}");
            self.add(name("enabled"), BOOLEAN, json!(false));
            self.add(name("client_id"), TEXT, Value::Null);
            self.add_secret(&name("secret"));
            for field in fields {
                match *field {
                    "email_optional" | "skip_nonce_check" => {
                        self.add(name(field), BOOLEAN, json!(false));
                    }
                    _ => self.add(name(field), TEXT, Value::Null),
                }
            }
        }
    }

    fn add_hooks(&mut self) {
        for hook in HOOKS {
            self.add(format!("hook_{hook}_enabled"), BOOLEAN, json!(false));
            self.add(format!("hook_{hook}_uri"), TEXT, Value::Null);
            self.add_secret(&format!("hook_{hook}_secrets"));
        }
    }

    fn add_emails(&mut self) {
        for (email, subject) in EMAILS {
            self.add(format!("mailer_subjects_{email}"), TEXT, json!(subject));
            self.add(
                format!("mailer_templates_{email}_content"),
                TEXT,
                Value::Null,
            );
        }
        for (event, subject) in NOTIFICATIONS {
            let email = format!("{event}_notification");
            self.add(format!("mailer_subjects_{email}"), TEXT, json!(subject));
            self.add(
                format!("mailer_templates_{email}_content"),
                TEXT,
                Value::Null,
            );
            self.add(
                format!("mailer_notifications_{event}_enabled"),
                BOOLEAN,
                json!(false),
            );
        }
    }

    fn add_single_settings(&mut self) {
        for secret in SECRETS {
            self.add_secret(secret);
        }
        for text in TEXTS {
            self.add(text.to_owned(), TEXT, Value::Null);
        }
        for (switch, default) in SWITCHES {
            self.add(switch.to_owned(), BOOLEAN, json!(default));
        }
        for (name, min, max, default) in INTEGERS {
            let value_type = ValueType::Integer(min, max);
            self.add(name.to_owned(), value_type, json!(default));
        }
        for name in ["sessions_inactivity_timeout", "sessions_timebox"] {
            self.add(name.to_owned(), ValueType::Number, json!(0));
        }
        for (name, form, default) in [
            (
                "db_max_pool_size_unit",
                TextForm::OneOf(&["connections", "percent"]),
                json!("connections"),
            ),
            (
                "mfa_phone_template",
                TextForm::Any,
                json!("Your code is {{ .Code }}"),
            ),
            (
                "password_required_characters",
                TextForm::OneOf(PASSWORD_CHARACTERS),
                json!(""),
            ),
            ("saml_external_url", TextForm::WithoutComma, Value::Null),
            (
                "security_captcha_provider",
                TextForm::OneOf(&["turnstile", "hcaptcha"]),
                json!("hcaptcha"),
            ),
            ("sessions_tags", TextForm::Names, Value::Null),
            (
                "site_url",
                TextForm::WithoutComma,
                json!("http://localhost:3000"),
            ),
            (
                "sms_provider",
                TextForm::OneOf(SMS_PROVIDERS),
                json!("twilio"),
            ),
            (
                "sms_template",
                TextForm::Any,
                json!("Your code is {{ .Code }}"),
            ),
            ("sms_test_otp", TextForm::PhoneCodes, Value::Null),
            ("sms_test_otp_valid_until", TextForm::Time, Value::Null),
            ("smtp_admin_email", TextForm::Email, Value::Null),
            ("uri_allow_list", TextForm::Any, json!("")),
        ] {
            self.add(name.to_owned(), ValueType::Text(form), default);
        }
    }
}

#[cfg(test)]
mod tests;
