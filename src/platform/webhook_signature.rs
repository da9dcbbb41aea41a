//! Signatures of the Standard Webhooks specification 1.0.0: an HMAC-SHA256 over id, timestamp and
//! body of a request.

use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Header field with the id of the event; retries repeat it.
pub const ID: &str = "webhook-id";
/// Header field with the Unix time of the attempt, in seconds.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// Header field with the signatures, `v1,<base64>` each, separated by spaces.
pub const SIGNATURE: &str = "webhook-signature";

/// A key that signs requests.
#[derive(Debug)]
pub struct WebhookKey(hmac::Key);

impl WebhookKey {
    /// Returns the key of a secret: base64 after `whsec_`, otherwise the bytes themselves.
    pub fn new(secret: &[u8]) -> Self {
        let decoded = secret
            .strip_prefix(b"whsec_")
            .and_then(|encoded| BASE64_STANDARD.decode(encoded).ok());
        let bytes = decoded.as_deref().unwrap_or(secret);
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Returns the signature of a request.
    fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            context.update(part);
        }
        format!("v1,{}", BASE64_STANDARD.encode(context.sign()))
    }
}

/// Adds the header fields of a request with this id. It has a signature of each key; without keys
/// it is not signed.
pub fn add_headers(
    headers: &mut HeaderMap,
    keys: &[WebhookKey],
    (id, timestamp): (&str, i64),
    body: &[u8],
) {
    let timestamp = timestamp.to_string();
    let signatures: Vec<_> = keys
        .iter()
        .map(|key| key.sign(id, &timestamp, body))
        .collect();
    let fields = [
        (ID, id.to_owned()),
        (SIGNATURE, signatures.join(" ")),
        (TIMESTAMP, timestamp),
    ];
    for (name, value) in fields {
        if value.is_empty() {
            continue;
        }
        // None of the values has a character that a field does not permit.
        let name = HeaderName::from_static(name);
        headers.extend(HeaderValue::try_from(value).map(|value| (name, value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_matches_the_example_of_the_specification() {
        let key = WebhookKey::new(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let mut headers = HeaderMap::new();
        let body = br#"{"test": 2432232314}"#;
        let request = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330);
        add_headers(&mut headers, &[key], request, body);
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(headers[SIGNATURE], expected);
        assert_eq!(headers[ID], "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(headers[TIMESTAMP], "1614265330");
    }

    #[test]
    fn raw_secret_is_the_key_itself_and_two_keys_give_two_signatures() {
        // The bytes of the secret above, which are its base64 form here.
        let secret = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let sign = |secret: &str| WebhookKey::new(secret.as_bytes()).sign("a", "1", b"{}");
        assert_ne!(sign(secret), sign(&format!("whsec_{secret}")));
        // Not base64: the whole text is the key.
        assert_eq!(sign("whsec_?"), {
            let key = hmac::Key::new(hmac::HMAC_SHA256, b"whsec_?");
            let tag = hmac::sign(&key, b"a.1.{}");
            format!("v1,{}", BASE64_STANDARD.encode(tag))
        });
        let mut headers = HeaderMap::new();
        let keys = [secret, "other-secret"].map(|it| WebhookKey::new(it.as_bytes()));
        add_headers(&mut headers, &keys, ("a", 1), b"{}");
        let both = format!("{} {}", sign(secret), sign("other-secret"));
        assert_eq!(headers[SIGNATURE], both);
    }

    #[test]
    fn request_without_keys_is_not_signed() {
        let mut headers = HeaderMap::new();
        add_headers(&mut headers, &[], ("a", 1), b"{}");
        assert!(!headers.contains_key(SIGNATURE) && headers.contains_key(ID));
    }
}
