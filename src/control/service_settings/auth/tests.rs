//! Rules of the settings of the Auth service, by example.

use gantry_base::ids::ProjectRef;
use secrecy::ExposeSecret;

use super::*;
use crate::control::service_settings::{ServiceSettings, setting::check_value};

fn reference() -> ProjectRef {
    "abcdefghijklmnopqrst".parse().unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "callers pass literals")]
fn update(settings: &ServiceSettings, change: Value) -> Result<ServiceSettings, Error> {
    settings.update(&reference(), change.as_object().unwrap())
}

fn message(change: Value) -> String {
    match update(&ServiceSettings::new(&AUTH), change) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.message().into_owned(),
    }
}

#[test]
fn defaults_fulfil_every_rule() {
    let settings = ServiceSettings::new(&AUTH);
    check(&EffectiveSettings(&settings.effective()), &[]).unwrap();
    for (name, setting) in AUTH_SETTINGS.iter() {
        if !setting.default.is_null() {
            check_value(name, setting.value_type, &setting.default).unwrap();
        }
    }
    assert_eq!(AUTH_SETTINGS.len(), 238);
}

#[test]
fn document_after_an_update_is_the_merge() {
    let mut settings = ServiceSettings::new(&AUTH);
    let mut expected = settings.document(&reference());
    for change in [
        json!({"site_url": "https://a.example", "jwt_exp": 60}),
        json!({"site_url": null, "sessions_timebox": 1.5, "jwt_secret": "ignored"}),
        json!({"jwt_exp": 120, "uri_allow_list": "https://a.example/**,https://b.example"}),
        json!({}),
    ] {
        settings = update(&settings, change.clone()).unwrap();
        for (name, value) in change.as_object().unwrap() {
            if name != "jwt_secret" {
                expected.insert(name.clone(), value.clone());
            }
        }
        assert_eq!(settings.document(&reference()), expected);
    }
    assert_eq!(settings.generation, 4);
}

#[test]
fn secrets_are_answered_as_digests_that_can_be_written_back() {
    let settings = update(
        &ServiceSettings::new(&AUTH),
        json!({"smtp_pass": "hunter2"}),
    )
    .unwrap();
    let shown = settings.document(&reference())["smtp_pass"].clone();
    assert_eq!(
        shown,
        "0ec8dce6afbd5c2f55eddd8622292f96aff2198856c2d17d290eed51d859c39f"
    );
    let again = update(&settings, json!({"smtp_pass": shown})).unwrap();
    assert_eq!(again.secrets["smtp_pass"].expose_secret(), "hunter2");
    let cleared = update(&again, json!({"smtp_pass": null})).unwrap();
    assert_eq!(cleared.document(&reference())["smtp_pass"], Value::Null);
}

#[test]
fn invalid_values_are_rejected_with_the_name_of_the_setting() {
    for (change, expected) in [
        (json!({"nonsense": 1}), "nonsense: Unrecognized key"),
        (
            json!({"custom_oauth_max_providers": 9}),
            "custom_oauth_max_providers: Unrecognized key",
        ),
        (
            json!({"disable_signup": "yes"}),
            "disable_signup: Invalid input: expected boolean, received string",
        ),
        (
            json!({"jwt_exp": 604_801}),
            "jwt_exp: Too big: expected number to be <=604800",
        ),
        (
            json!({"jwt_exp": -1}),
            "jwt_exp: Too small: expected number to be >=0",
        ),
        (
            json!({"jwt_exp": 1.5}),
            "jwt_exp: Invalid input: expected int, received number",
        ),
        (
            json!({"mailer_otp_exp": null}),
            "mailer_otp_exp: Invalid input: expected number, received null",
        ),
        (
            json!({"site_url": "https://a.example,https://b.example"}),
            "site_url: Invalid string: must be one value without a comma",
        ),
        (
            json!({"sms_provider": "pigeon"}),
            "sms_provider: Invalid option: expected one of messagebird, textlocal, twilio, twilio_verify, vonage",
        ),
        (
            json!({"external_github_enabled": true}),
            "external_github_client_id: is required while external_github_enabled is true",
        ),
        (
            json!({"hook_send_sms_enabled": true, "hook_send_sms_uri": "http://a.example/x"}),
            "hook_send_sms_uri: must be pg-functions://<database>/<schema>/<function>, https, or http on this machine",
        ),
        (
            json!({"hook_send_sms_enabled": true, "hook_send_sms_uri": "https://a.example", "hook_send_sms_secrets": "x"}),
            "hook_send_sms_secrets: must be v1,whsec_ and 32 to 88 characters of base64; several are separated by |",
        ),
        (
            json!({"security_captcha_enabled": true}),
            "security_captcha_secret: is required while security_captcha_enabled is true",
        ),
        (
            json!({"rate_limit_email_sent": 5, "smtp_host": "mail.example"}),
            "Custom SMTP required to configure RATE_LIMIT_EMAIL_SENT. Missing SMTP_ADMIN_EMAIL, SMTP_PORT, SMTP_USER, SMTP_PASS fields.",
        ),
        (
            json!({"webauthn_rp_origins": "http://a.example"}),
            "WebAuthn RP origin \"http://a.example\" must use HTTPS (HTTP is only allowed for localhost/127.0.0.1)",
        ),
    ] {
        assert_eq!(message(change.clone()), expected, "{change}");
    }
}

#[test]
fn related_settings_are_accepted_together() {
    for change in [
        json!({"external_github_enabled": true, "external_github_client_id": "a", "external_github_secret": "b"}),
        json!({
            "smtp_admin_email": "a@example.com", "smtp_host": "mail.example", "smtp_port": "587",
            "smtp_user": "u", "smtp_pass": "p", "smtp_sender_name": "A", "rate_limit_email_sent": 5,
        }),
        json!({"hook_custom_access_token_enabled": true, "hook_custom_access_token_uri": "pg-functions://postgres/public/claims"}),
        json!({"sms_test_otp": "491234=123456,", "sms_test_otp_valid_until": "2036-01-01T00:00:00Z"}),
        json!({"sessions_tags": "web, mobile"}),
    ] {
        assert_eq!(message(change.clone()), "accepted", "{change}");
    }
}

#[test]
fn every_choice_is_accepted_as_its_own_value() {
    for (name, setting) in AUTH_SETTINGS.iter() {
        let ValueType::Text(TextForm::OneOf(options)) = setting.value_type else {
            continue;
        };
        for option in options {
            check_value(name, setting.value_type, &json!(option)).unwrap();
        }
    }
}
