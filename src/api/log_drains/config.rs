//! Settings of log drains: validation, redaction, restoring of redacted secrets.

use serde_json::Value;
use url::Url;

use super::{
    fields::{self, Field, FieldKind, check_value},
    settings::{BackendType, Settings, invalid},
    target,
};
use crate::platform::{
    error::Error,
    outbound::{OutboundClient, OutboundError, UrlOwner},
};

/// Replaces secrets in responses. In an update it stands for the stored secret.
pub(super) const REDACTED: &str = "[redacted]";

/// Checks the settings of a drain and restores redacted secrets from `stored`, the settings of the
/// same type before an update. Fields that are null are removed.
pub(super) fn check(
    backend: BackendType,
    given: &Settings,
    stored: Option<&Settings>,
) -> Result<Settings, Error> {
    let fields = fields::of_type(backend)?;
    for name in given.keys() {
        if fields.iter().all(|field| field.name != name) {
            let known: Vec<_> = fields.iter().map(|field| field.name).collect();
            return Err(invalid(
                name,
                format!(
                    "is not a field of type {}, which has {}",
                    backend.name(),
                    known.join(", ")
                ),
            ));
        }
    }
    let mut checked = Settings::new();
    for field in fields {
        let before = stored.and_then(|stored| stored.get(field.name));
        let value = match given.get(field.name) {
            None | Some(Value::Null) if field.required => {
                return Err(invalid(field.name, "Required"));
            }
            None | Some(Value::Null) => continue,
            Some(value) => restore_url(field, value, before),
        };
        check_value(field, &value)?;
        checked.insert(field.name.to_owned(), value);
    }
    let moved = fields
        .iter()
        .filter(|field| field.is_destination)
        .any(|field| checked.get(field.name) != stored.and_then(|it| it.get(field.name)));
    let stored = stored.filter(|_| !moved);
    for field in fields {
        if let Some(value) = checked.get_mut(field.name) {
            restore_secrets(field, value, stored.and_then(|it| it.get(field.name)))?;
        }
    }
    target::check_settings(backend, &checked)?;
    Ok(checked)
}

/// Returns the stored URL if the given one is its redacted form.
fn restore_url(field: &Field, given: &Value, stored: Option<&Value>) -> Value {
    match stored {
        Some(stored) if field.kind == FieldKind::Url && *given == redacted_url(stored) => {
            stored.clone()
        }
        _ => given.clone(),
    }
}

fn redacted_url(url: &Value) -> Value {
    let text = url.as_str().unwrap_or_default();
    match text.split_once('?') {
        Some((before, _)) => Value::String(format!("{before}?{REDACTED}")),
        None => url.clone(),
    }
}

/// Replaces [`REDACTED`] by the stored value.
fn restore_secrets(field: &Field, value: &mut Value, stored: Option<&Value>) -> Result<(), Error> {
    let missing = |name: &str| {
        invalid(
            name,
            format!(
                "{REDACTED} stands for a stored value, and there is none for this destination; \
                 send the value"
            ),
        )
    };
    if field.kind.is_secret() && *value == REDACTED {
        *value = stored.cloned().ok_or_else(|| missing(field.name))?;
    }
    if field.kind == FieldKind::Url && value.as_str().is_some_and(|url| url.ends_with(REDACTED)) {
        return Err(missing(field.name));
    }
    if let (FieldKind::Headers, Value::Object(headers)) = (field.kind, value) {
        for (name, value) in headers {
            if *value == REDACTED {
                let stored = stored.and_then(|stored| stored.get(name));
                *value = stored
                    .cloned()
                    .ok_or_else(|| missing(&format!("headers.{name}")))?;
            }
        }
    }
    Ok(())
}

/// Returns the settings without secrets.
pub(super) fn redact(backend: BackendType, settings: &Settings) -> Settings {
    let mut shown = settings.clone();
    for field in fields::of_type(backend).unwrap_or_default() {
        let Some(value) = shown.get_mut(field.name) else {
            continue;
        };
        match field.kind {
            kind if kind.is_secret() => *value = REDACTED.into(),
            FieldKind::Url => *value = redacted_url(value),
            FieldKind::Headers => {
                for value in value.as_object_mut().into_iter().flatten() {
                    *value.1 = REDACTED.into();
                }
            }
            _ => {}
        }
    }
    shown
}

/// Rejects a destination without a permitted address. A name that does not resolve now is
/// accepted, because each connection is checked again.
pub(super) async fn check_destination(
    backend: BackendType,
    settings: &Settings,
    client: &OutboundClient,
    owner: UrlOwner,
) -> Result<(), Error> {
    let text = |name: &str| settings.get(name).and_then(Value::as_str);
    let (field, host) = match backend {
        BackendType::Syslog => ("host", text("host").map(str::to_owned)),
        BackendType::Webhook | BackendType::Loki => ("url", host_of(text("url"))),
        BackendType::Otlp | BackendType::S3 => ("endpoint", host_of(text("endpoint"))),
        _ => return Ok(()),
    };
    let Some(host) = host else { return Ok(()) };
    if let Err(OutboundError::Refused(text)) = client.check_host(owner, &host).await {
        return Err(invalid(field, text));
    }
    match client.policy().resolve(&host, 0).await {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(invalid(
            field,
            "resolves to an address that is not public; the operator can permit its network with \
             --outbound-networks",
        )),
        _ => Ok(()),
    }
}

fn host_of(url: Option<&str>) -> Option<String> {
    Url::parse(url?).ok()?.host_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(value: Value) -> Settings {
        match value {
            Value::Object(settings) => settings,
            _ => unreachable!(),
        }
    }

    fn problem(backend: BackendType, given: Value) -> String {
        check(backend, &settings(given), None)
            .unwrap_err()
            .message()
            .into_owned()
    }

    #[test]
    fn settings_of_each_type_are_checked() {
        let cases = [
            (
                BackendType::Webhook,
                json!({}),
                "data.attributes.config.url: Required",
            ),
            (
                BackendType::Webhook,
                json!({"url": "ftp://a"}),
                "data.attributes.config.url: expected a URL that begins with https:// or http://",
            ),
            (
                BackendType::Webhook,
                json!({"url": "https://u:p@a.example"}),
                "data.attributes.config.url: contains a user name or password; send them in another field",
            ),
            (
                BackendType::Webhook,
                json!({"url": "https://a.example", "gzip": "yes"}),
                "data.attributes.config.gzip: Invalid input: expected true or false",
            ),
            (
                BackendType::Webhook,
                json!({"url": "https://a.example", "http": "http3"}),
                "data.attributes.config.http: Invalid input: expected one of http1, http2",
            ),
            (
                BackendType::Webhook,
                json!({"url": "https://a.example", "headers": {"Host": "b"}}),
                "data.attributes.config.headers.Host: is set by the server",
            ),
            (
                BackendType::Webhook,
                json!({"url": "https://a.example", "headers": {"x": "a\nb"}}),
                "data.attributes.config.headers.x: is not a value of an HTTP header field",
            ),
            (
                BackendType::Loki,
                json!({"url": "https://a.example", "token": "x"}),
                "data.attributes.config.token: is not a field of type loki, which has url, username, password, headers",
            ),
            (
                BackendType::Datadog,
                json!({"api_key": "k", "region": "MOON"}),
                "data.attributes.config.region: Invalid input: expected one of US1, US3, US5, EU, AP1, AP2, US1-FED",
            ),
            (
                BackendType::Syslog,
                json!({"host": "a.example", "port": 0}),
                "data.attributes.config.port: Invalid input: expected a number from 1 to 65535",
            ),
            (
                BackendType::S3,
                json!({"s3_bucket": "a/b", "storage_region": "eu-west-1", "access_key_id": "A", "secret_access_key": "s"}),
                "data.attributes.config.s3_bucket: expected letters, digits, `.`, `-` and `_`, 63 at most",
            ),
            (
                BackendType::Bigquery,
                json!({}),
                "data.attributes.backend_type: bigquery is not supported; use one of webhook, datadog, loki, otlp, s3, syslog",
            ),
            (
                BackendType::Loki,
                json!({"url": "https://a.example", "password": REDACTED}),
                "data.attributes.config.password: [redacted] stands for a stored value, and there is none for this destination; send the value",
            ),
        ];
        for (backend, given, expected) in cases {
            assert_eq!(problem(backend, given.clone()), expected, "{given}");
        }
    }

    #[test]
    fn redacted_settings_restore_what_is_stored() {
        let cases = [
            (
                BackendType::Webhook,
                json!({"url": "https://a.example/x?token=hush", "gzip": true, "headers": {"authorization": "Bearer hush"}}),
            ),
            (
                BackendType::Loki,
                json!({"url": "https://a.example/loki/api/v1/push", "username": "u", "password": "hush"}),
            ),
            (
                BackendType::Datadog,
                json!({"api_key": "hush", "region": "EU"}),
            ),
            (
                BackendType::S3,
                json!({"s3_bucket": "b", "storage_region": "eu-west-1", "access_key_id": "A", "secret_access_key": "hush"}),
            ),
        ];
        for (backend, given) in cases {
            let stored = check(backend, &settings(given), None).unwrap();
            let shown = redact(backend, &stored);
            assert!(
                !Value::from(shown.clone()).to_string().contains("hush"),
                "{shown:?}"
            );
            assert_eq!(check(backend, &shown, Some(&stored)).unwrap(), stored);
        }
    }

    #[test]
    fn secrets_are_not_kept_for_another_destination() {
        let stored = settings(json!({"url": "https://a.example/", "password": "hush"}));
        let moved = settings(json!({"url": "https://b.example/", "password": REDACTED}));
        assert!(check(BackendType::Loki, &moved, Some(&stored)).is_err());
        let stored =
            settings(json!({"url": "https://a.example/?t=hush", "headers": {"x": "hush"}}));
        for moved in [
            json!({"url": "https://b.example/?t=1", "headers": {"x": REDACTED}}),
            json!({"url": format!("https://b.example/?{REDACTED}")}),
            json!({"url": format!("https://a.example/?{REDACTED}"), "headers": {"y": REDACTED}}),
        ] {
            assert!(
                check(
                    BackendType::Webhook,
                    &settings(moved.clone()),
                    Some(&stored)
                )
                .is_err(),
                "{moved}"
            );
        }
    }
}
