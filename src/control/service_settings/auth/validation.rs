//! Dependencies between the settings of an Auth service.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use url::{Host, Url};

use super::AUTH_SETTINGS;
use crate::platform::error::Error;

/// Settings of an own mail server. Other settings of emails need all of them.
const SMTP: [&str; 5] = [
    "smtp_admin_email",
    "smtp_host",
    "smtp_port",
    "smtp_user",
    "smtp_pass",
];

/// The settings of a project while an update is checked. Secrets are in clear.
pub(super) struct AuthRules<'a>(pub(super) &'a BTreeMap<String, Value>);

impl AuthRules<'_> {
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
