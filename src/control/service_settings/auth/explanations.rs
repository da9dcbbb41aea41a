//! Explanations of the settings of an Auth service.

use std::borrow::Cow;

/// Returns the explanation of a setting.
pub(super) fn of(name: &str) -> Cow<'static, str> {
    let found = SINGLE.iter().find(|(setting, _)| *setting == name);
    if let Some((_, text)) = found {
        return Cow::Borrowed(text);
    }
    derived(name).map_or(Cow::Borrowed(""), Cow::Owned)
}

/// Returns the explanation of a setting of a provider, a hook or an email.
fn derived(name: &str) -> Option<String> {
    if let Some(rest) = name.strip_prefix("external_") {
        return PROVIDER_FIELDS.iter().find_map(|(field, text)| {
            let provider = rest.strip_suffix(field)?.strip_suffix('_')?;
            Some(text.replace("{}", provider))
        });
    }
    if let Some(rest) = name.strip_prefix("hook_") {
        return HOOK_FIELDS.iter().find_map(|(field, text)| {
            let hook = rest.strip_suffix(field)?.strip_suffix('_')?;
            Some(text.replace("{}", &hook.replace('_', " ")))
        });
    }
    let words = |text: &str| text.replace('_', " ");
    if let Some(email) = name.strip_prefix("mailer_subjects_") {
        return Some(format!("Subject of the email: {}.", words(email)));
    }
    if let Some(email) = name.strip_prefix("mailer_templates_") {
        let email = email.trim_end_matches("_content");
        return Some(format!(
            "HTML of the email: {}. Unset: the default.",
            words(email)
        ));
    }
    let event = name.strip_prefix("mailer_notifications_")?;
    let event = event.trim_end_matches("_enabled");
    Some(format!("Whether users are notified: {}.", words(event)))
}

/// Fields of a sign-in provider.
const PROVIDER_FIELDS: [(&str, &str); 7] = [
    ("enabled", "Whether users can sign in with {}."),
    (
        "client_id",
        "Client id at {}. Several are separated by commas.",
    ),
    ("secret", "Client secret at {}."),
    (
        "additional_client_ids",
        "Further client ids at {}, separated by commas.",
    ),
    (
        "email_optional",
        "Whether accounts of {} without an email address can sign in.",
    ),
    ("url", "Address of {}, if it is hosted elsewhere."),
    (
        "skip_nonce_check",
        "Whether the nonce in ID tokens of {} is not checked.",
    ),
];

/// Fields of a hook.
const HOOK_FIELDS: [(&str, &str); 3] = [
    ("enabled", "Whether the hook is called: {}."),
    (
        "uri",
        "Function in the database or address of the hook: {}.",
    ),
    ("secrets", "Secrets that sign calls of the hook: {}."),
];

const SINGLE: [(&str, &str); 94] = [
    (
        "api_max_request_duration",
        "Longest time of a request, in seconds.",
    ),
    (
        "custom_oauth_enabled",
        "Whether the project can have sign-in providers of its own.",
    ),
    (
        "custom_oauth_max_providers",
        "Most sign-in providers of the project's own.",
    ),
    (
        "db_max_pool_size",
        "Most sessions with the database, in the unit of db_max_pool_size_unit.",
    ),
    (
        "db_max_pool_size_unit",
        "Unit of db_max_pool_size: sessions, or percent of all sessions.",
    ),
    ("disable_signup", "Whether new users are rejected."),
    (
        "external_anonymous_users_enabled",
        "Whether users can sign in without an identity.",
    ),
    (
        "external_email_enabled",
        "Whether users can sign in with an email address.",
    ),
    (
        "external_phone_enabled",
        "Whether users can sign in with a phone number.",
    ),
    (
        "external_web3_ethereum_enabled",
        "Whether users can sign in with an Ethereum wallet.",
    ),
    (
        "external_web3_solana_enabled",
        "Whether users can sign in with a Solana wallet.",
    ),
    ("jwt_exp", "Lifetime of access tokens, in seconds."),
    (
        "mailer_allow_unverified_email_sign_ins",
        "Whether users can sign in before they confirm their address.",
    ),
    (
        "mailer_autoconfirm",
        "Whether addresses count as confirmed without an email.",
    ),
    (
        "mailer_otp_exp",
        "Lifetime of codes and links in emails, in seconds.",
    ),
    ("mailer_otp_length", "Digits of codes in emails."),
    (
        "mailer_secure_email_change_enabled",
        "Whether a new address is confirmed by the previous one, too.",
    ),
    ("mfa_max_enrolled_factors", "Most second factors of a user."),
    (
        "mfa_phone_enroll_enabled",
        "Whether users can add a phone number as second factor.",
    ),
    (
        "mfa_phone_max_frequency",
        "Shortest time between codes for a second factor, in seconds.",
    ),
    (
        "mfa_phone_otp_length",
        "Digits of codes for a second factor by phone.",
    ),
    (
        "mfa_phone_template",
        "Text of messages with a code for a second factor.",
    ),
    (
        "mfa_phone_verify_enabled",
        "Whether a phone number is accepted as second factor.",
    ),
    (
        "mfa_totp_enroll_enabled",
        "Whether users can add an authenticator as second factor.",
    ),
    (
        "mfa_totp_verify_enabled",
        "Whether an authenticator is accepted as second factor.",
    ),
    (
        "mfa_web_authn_enroll_enabled",
        "Whether users can add a security key as second factor.",
    ),
    (
        "mfa_web_authn_verify_enabled",
        "Whether a security key is accepted as second factor.",
    ),
    (
        "nimbus_oauth_client_id",
        "Client id of a provider of the hosted platform. Without effect.",
    ),
    (
        "nimbus_oauth_client_secret",
        "Client secret of a provider of the hosted platform. Without effect.",
    ),
    (
        "nimbus_oauth_email_optional",
        "Setting of a provider of the hosted platform. Without effect.",
    ),
    (
        "oauth_server_allow_dynamic_registration",
        "Whether OAuth clients can register themselves.",
    ),
    (
        "oauth_server_authorization_path",
        "Path of the application's page that asks for consent.",
    ),
    (
        "oauth_server_enabled",
        "Whether the project is an OAuth authorization server.",
    ),
    (
        "passkey_enabled",
        "Whether users can sign in with a passkey.",
    ),
    (
        "password_hibp_enabled",
        "Whether passwords that are known to be leaked are rejected.",
    ),
    ("password_min_length", "Fewest characters of a password."),
    (
        "password_required_characters",
        "Classes of characters that a password needs, separated by colons.",
    ),
    (
        "rate_limit_anonymous_users",
        "Anonymous sign-ins an hour from one address.",
    ),
    (
        "rate_limit_email_sent",
        "Emails an hour. Needs a mail server of the project's own.",
    ),
    (
        "rate_limit_otp",
        "Requests for codes in five minutes from one address.",
    ),
    ("rate_limit_sms_sent", "Text messages an hour."),
    (
        "rate_limit_token_refresh",
        "Refreshed sessions in five minutes from one address.",
    ),
    (
        "rate_limit_verify",
        "Verified codes in five minutes from one address.",
    ),
    (
        "rate_limit_web3",
        "Sign-ins with a wallet in five minutes from one address.",
    ),
    (
        "refresh_token_rotation_enabled",
        "Whether refresh tokens can be used once only.",
    ),
    (
        "saml_allow_encrypted_assertions",
        "Whether encrypted SAML assertions are accepted.",
    ),
    ("saml_enabled", "Whether users can sign in by SAML."),
    (
        "saml_external_url",
        "Address of the project in SAML metadata, if it differs.",
    ),
    (
        "security_captcha_enabled",
        "Whether requests need a solved captcha.",
    ),
    ("security_captcha_provider", "Service that checks captchas."),
    (
        "security_captcha_secret",
        "Secret for the service that checks captchas.",
    ),
    (
        "security_manual_linking_enabled",
        "Whether users can link identities by themselves.",
    ),
    (
        "security_refresh_token_reuse_interval",
        "Time in which a refresh token can be used again, in seconds.",
    ),
    (
        "security_sb_forwarded_for_enabled",
        "Whether the address of a user is read from a header of trusted callers.",
    ),
    (
        "security_update_password_require_current_password",
        "Whether changing a password needs the current one.",
    ),
    (
        "security_update_password_require_reauthentication",
        "Whether changing a password needs a recent sign-in.",
    ),
    (
        "sessions_inactivity_timeout",
        "Time without use after which sessions end, in hours. 0: never.",
    ),
    (
        "sessions_single_per_user",
        "Whether a sign-in ends the other sessions of the user.",
    ),
    (
        "sessions_tags",
        "Tags of which a user has one session each, separated by commas.",
    ),
    (
        "sessions_timebox",
        "Time after which sessions end, in hours. 0: never.",
    ),
    (
        "site_url",
        "Address of the application. Links without another address lead to it.",
    ),
    (
        "sms_autoconfirm",
        "Whether phone numbers count as confirmed without a message.",
    ),
    (
        "sms_max_frequency",
        "Shortest time between text messages to a user, in seconds.",
    ),
    ("sms_messagebird_access_key", "Access key at MessageBird."),
    (
        "sms_messagebird_originator",
        "Sender of messages by MessageBird.",
    ),
    (
        "sms_otp_exp",
        "Lifetime of codes in text messages, in seconds.",
    ),
    ("sms_otp_length", "Digits of codes in text messages."),
    ("sms_provider", "Service that sends text messages."),
    ("sms_template", "Text of messages with a code."),
    (
        "sms_test_otp",
        "Fixed codes of test numbers: phone=code pairs, separated by commas.",
    ),
    (
        "sms_test_otp_valid_until",
        "Time until which fixed codes of test numbers are accepted.",
    ),
    ("sms_textlocal_api_key", "API key at Textlocal."),
    ("sms_textlocal_sender", "Sender of messages by Textlocal."),
    ("sms_twilio_account_sid", "Account at Twilio."),
    ("sms_twilio_auth_token", "Token at Twilio."),
    (
        "sms_twilio_content_sid",
        "Content template at Twilio, for WhatsApp.",
    ),
    (
        "sms_twilio_message_service_sid",
        "Messaging service at Twilio.",
    ),
    ("sms_twilio_verify_account_sid", "Account at Twilio Verify."),
    ("sms_twilio_verify_auth_token", "Token at Twilio Verify."),
    (
        "sms_twilio_verify_message_service_sid",
        "Service at Twilio Verify.",
    ),
    ("sms_vonage_api_key", "API key at Vonage."),
    ("sms_vonage_api_secret", "API secret at Vonage."),
    ("sms_vonage_from", "Sender of messages by Vonage."),
    ("smtp_admin_email", "Sender of emails."),
    ("smtp_host", "Mail server."),
    (
        "smtp_max_frequency",
        "Shortest time between emails to a user, in seconds.",
    ),
    ("smtp_pass", "Password at the mail server."),
    ("smtp_port", "Port of the mail server."),
    ("smtp_sender_name", "Name of the sender of emails."),
    ("smtp_user", "User at the mail server."),
    (
        "uri_allow_list",
        "Addresses to which users may return after sign-in, separated by commas.",
    ),
    (
        "webauthn_rp_display_name",
        "Name of the application for passkeys.",
    ),
    ("webauthn_rp_id", "Domain for which passkeys are valid."),
    (
        "webauthn_rp_origins",
        "Origins that may use passkeys, separated by commas.",
    ),
];
