//! Fields of the settings of log drains, by type.

use http::{HeaderName, HeaderValue};
use serde_json::Value;
use url::Url;

use super::{
    settings::{BackendType, invalid},
    target::datadog,
};
use crate::platform::error::Error;

/// Maximum length of a URL, in bytes.
const URL_BYTES_MAX: usize = 2048;
/// Maximum length of a text, in bytes.
const TEXT_BYTES_MAX: usize = 1024;
/// Maximum length of a PEM document, in bytes.
const PEM_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of headers.
const HEADERS_MAX: usize = 20;

/// A field of the settings of a type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: FieldKind,
    pub(super) required: bool,
    /// Whether the field decides where lines are sent. Secrets are not kept when it changes.
    pub(super) is_destination: bool,
}

/// The values of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldKind {
    /// An `http://` or `https://` URL without user and fragment. Its query is a secret.
    Url,
    /// A non-empty text in one line.
    Text,
    /// A non-empty text in one line that is redacted.
    Secret,
    /// As [`Self::Secret`]; null counts as absent.
    NullableSecret,
    /// As [`Self::Text`]; null counts as absent.
    NullableText,
    Flag,
    Port,
    /// Milliseconds from 100 to 60,000.
    Millis,
    /// Names and values of HTTP header fields. The values are redacted.
    Headers,
    Choice(&'static [&'static str]),
    Pem,
    SecretPem,
}

impl FieldKind {
    /// Whether the value is redacted as a whole.
    pub(super) fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::NullableSecret | Self::SecretPem)
    }
}

const fn required(name: &'static str, kind: FieldKind) -> Field {
    Field {
        name,
        kind,
        required: true,
        is_destination: false,
    }
}

const fn optional(name: &'static str, kind: FieldKind) -> Field {
    Field {
        name,
        kind,
        required: false,
        is_destination: false,
    }
}

const fn destination(field: Field) -> Field {
    Field {
        is_destination: true,
        ..field
    }
}

const URL: Field = destination(required("url", FieldKind::Url));

const WEBHOOK: &[Field] = &[
    URL,
    optional("http", FieldKind::Choice(&["http1", "http2"])),
    optional("gzip", FieldKind::Flag),
    optional("headers", FieldKind::Headers),
];
const DATADOG: &[Field] = &[
    required("api_key", FieldKind::Secret),
    destination(required("region", FieldKind::Choice(datadog::REGIONS))),
];
const LOKI: &[Field] = &[
    URL,
    optional("username", FieldKind::NullableText),
    optional("password", FieldKind::NullableSecret),
    optional("headers", FieldKind::Headers),
];
const OTLP: &[Field] = &[
    destination(required("endpoint", FieldKind::Url)),
    optional(
        "protocol",
        FieldKind::Choice(&["http/protobuf", "http/json"]),
    ),
    optional("gzip", FieldKind::Flag),
    optional("headers", FieldKind::Headers),
];
const S3: &[Field] = &[
    destination(required("s3_bucket", FieldKind::Text)),
    destination(required("storage_region", FieldKind::Text)),
    required("access_key_id", FieldKind::Text),
    required("secret_access_key", FieldKind::Secret),
    optional("batch_timeout", FieldKind::Millis),
    destination(optional("endpoint", FieldKind::Url)),
];
const SYSLOG: &[Field] = &[
    destination(required("host", FieldKind::Text)),
    destination(required("port", FieldKind::Port)),
    destination(optional("tls", FieldKind::Flag)),
    optional("structured_data", FieldKind::Text),
    optional("ca_cert", FieldKind::Pem),
    optional("client_cert", FieldKind::Pem),
    optional("client_key", FieldKind::SecretPem),
];

/// The names of the types that drains can have.
const SERVED: &str = "webhook, datadog, loki, otlp, s3, syslog";

/// Returns the fields of the settings of a type. Fails for types without a delivery.
pub(super) fn of_type(backend: BackendType) -> Result<&'static [Field], Error> {
    match backend {
        BackendType::Webhook => Ok(WEBHOOK),
        BackendType::Datadog => Ok(DATADOG),
        BackendType::Loki => Ok(LOKI),
        BackendType::Otlp => Ok(OTLP),
        BackendType::S3 => Ok(S3),
        BackendType::Syslog => Ok(SYSLOG),
        BackendType::Postgres
        | BackendType::Bigquery
        | BackendType::Clickhouse
        | BackendType::Sentry
        | BackendType::Axiom
        | BackendType::Last9 => Err(Error::invalid(
            "data.attributes.backend_type",
            format!("{} is not supported; use one of {SERVED}", backend.name()),
        )),
    }
}

/// Checks the value of a field.
pub(super) fn check_value(field: &Field, value: &Value) -> Result<(), Error> {
    let name = field.name;
    let text = || {
        value
            .as_str()
            .ok_or_else(|| invalid(name, "Invalid input: expected a string"))
    };
    match field.kind {
        FieldKind::Url => check_url(name, text()?),
        FieldKind::Text
        | FieldKind::Secret
        | FieldKind::NullableText
        | FieldKind::NullableSecret => check_line(name, text()?),
        FieldKind::Pem | FieldKind::SecretPem => {
            if text()?.len() > PEM_BYTES_MAX {
                return Err(invalid(
                    name,
                    format!("has more than {PEM_BYTES_MAX} bytes"),
                ));
            }
            Ok(())
        }
        FieldKind::Flag if !value.is_boolean() => {
            Err(invalid(name, "Invalid input: expected true or false"))
        }
        FieldKind::Flag => Ok(()),
        FieldKind::Port => check_number(name, value, 1, 65_535),
        FieldKind::Millis => check_number(name, value, 100, 60_000),
        FieldKind::Choice(choices) => {
            if choices.contains(&text()?) {
                Ok(())
            } else {
                Err(invalid(
                    name,
                    format!("Invalid input: expected one of {}", choices.join(", ")),
                ))
            }
        }
        FieldKind::Headers => check_headers(name, value),
    }
}

fn check_number(name: &str, value: &Value, min: u64, max: u64) -> Result<(), Error> {
    match value.as_u64() {
        Some(number) if (min..=max).contains(&number) => Ok(()),
        _ => Err(invalid(
            name,
            format!("Invalid input: expected a number from {min} to {max}"),
        )),
    }
}

fn check_line(name: &str, text: &str) -> Result<(), Error> {
    if text.trim().is_empty() {
        return Err(invalid(name, "Required"));
    }
    if text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(invalid(
            name,
            format!("expected one line of at most {TEXT_BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

fn check_url(name: &str, text: &str) -> Result<(), Error> {
    if text.len() > URL_BYTES_MAX {
        return Err(invalid(
            name,
            format!("has more than {URL_BYTES_MAX} bytes"),
        ));
    }
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some())
        .ok_or_else(|| invalid(name, "expected a URL that begins with https:// or http://"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid(
            name,
            "contains a user name or password; send them in another field",
        ));
    }
    if url.fragment().is_some() {
        return Err(invalid(name, "contains a fragment"));
    }
    Ok(())
}

/// Header fields that the server sets.
const RESERVED: [&str; 9] = [
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn check_headers(name: &str, value: &Value) -> Result<(), Error> {
    let headers = value
        .as_object()
        .ok_or_else(|| invalid(name, "Invalid input: expected an object of texts"))?;
    if headers.len() > HEADERS_MAX {
        return Err(invalid(name, format!("has more than {HEADERS_MAX} fields")));
    }
    for (header, value) in headers {
        let at = format!("{name}.{header}");
        let parsed = HeaderName::from_bytes(header.as_bytes())
            .map_err(|_| invalid(&at, "is not a name of an HTTP header field"))?;
        if RESERVED.contains(&parsed.as_str()) {
            return Err(invalid(&at, "is set by the server"));
        }
        let text = value
            .as_str()
            .ok_or_else(|| invalid(&at, "Invalid input: expected a string"))?;
        if text.len() > PEM_BYTES_MAX || HeaderValue::from_str(text).is_err() {
            return Err(invalid(&at, "is not a value of an HTTP header field"));
        }
    }
    Ok(())
}
