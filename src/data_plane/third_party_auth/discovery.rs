//! Reading the public keys of another sign-in service: over HTTPS, from public addresses, within
//! bounds of time and size.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, header};
use serde_json::{Value, json};
use tokio::time::timeout;
use url::{Host, Url};

use crate::{
    base::net::outbound::{self, OutboundPolicy},
    data_plane::api_keys::VerificationKey,
};

/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 2048;
/// Timeout of a request with its response.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum size of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of keys in a set.
const KEYS_MAX: usize = 32;
/// Longest id of a key, in bytes.
const KID_BYTES_MAX: usize = 256;
/// Members of private keys (RFC 7518 §6).
const PRIVATE_MEMBERS: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];
/// Path of the metadata of an issuer (OpenID Connect Discovery §4).
const METADATA_PATH: &str = "/.well-known/openid-configuration";

/// The reason why keys cannot be read, in a form for clients.
pub(super) type DiscoveryProblem = Cow<'static, str>;

/// Parses a URL that clients may choose: HTTPS, or HTTP to a loopback address, which the policy
/// then has to permit.
pub(super) fn parse_url(policy: &OutboundPolicy, text: &str) -> Result<Url, DiscoveryProblem> {
    let url = Url::parse(text).map_err(|_| "Invalid URL")?;
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        _ => false,
    };
    let is_secure = url.scheme() == "https" || url.scheme() == "http" && is_loopback;
    let is_plain = url.username().is_empty() && url.password().is_none();
    if text.len() > URL_BYTES_MAX || !is_secure || !is_plain || url.fragment().is_some() {
        return Err("must be an https URL without user, password and fragment".into());
    }
    policy
        .check_literal(&url)
        .map_err(|refused| refused.to_string())?;
    Ok(url)
}

/// Reads the keys of an issuer by its metadata.
pub(super) async fn keys_of_issuer(
    policy: &OutboundPolicy,
    issuer: &str,
) -> Result<Value, DiscoveryProblem> {
    let text = issuer.trim_end_matches('/');
    let url = parse_url(policy, &format!("{text}{METADATA_PATH}"))?;
    let metadata = get(policy, &url).await?;
    let named = metadata["issuer"].as_str().unwrap_or_default();
    if named.trim_end_matches('/') != text {
        return Err("the metadata names another issuer".into());
    }
    let keys = metadata["jwks_uri"].as_str();
    let keys = keys.ok_or("the metadata has no jwks_uri")?;
    keys_of_url(policy, keys).await
}

/// Reads the keys at a URL.
pub(super) async fn keys_of_url(
    policy: &OutboundPolicy,
    text: &str,
) -> Result<Value, DiscoveryProblem> {
    let url = parse_url(policy, text)?;
    key_set(&get(policy, &url).await?)
}

/// Returns the keys of a set (RFC 7517 §5) that can verify tokens: EC keys of P-256 and RSA keys.
pub(super) fn key_set(document: &Value) -> Result<Value, DiscoveryProblem> {
    let keys = document["keys"].as_array();
    let keys = keys.ok_or("is no key set: it has no array keys")?;
    if keys.len() > KEYS_MAX {
        return Err(format!("has more than {KEYS_MAX} keys").into());
    }
    let mut kept = Vec::new();
    for key in keys {
        if PRIVATE_MEMBERS.iter().any(|name| key.get(name).is_some()) {
            return Err("has a private key; publish public keys only".into());
        }
        let is_for_signatures = key.get("use").is_none_or(|usage| usage == "sig");
        let parsed = VerificationKey::of_public_jwk(key).filter(VerificationKey::is_valid);
        let Some(parsed) = parsed.filter(|_| is_for_signatures) else {
            continue;
        };
        let kid = key.get("kid").and_then(Value::as_str);
        if kid.is_some_and(|kid| kid.len() > KID_BYTES_MAX) {
            return Err("has a kid of more than 256 bytes".into());
        }
        kept.push(parsed.to_jwk(kid));
    }
    if kept.is_empty() {
        return Err("has no public key for ES256 or RS256".into());
    }
    Ok(json!({ "keys": kept }))
}

async fn get(policy: &OutboundPolicy, url: &Url) -> Result<Value, DiscoveryProblem> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(url.as_str())
        .header(header::ACCEPT, "application/json")
        .header(
            header::USER_AGENT,
            concat!("gantry/", env!("CARGO_PKG_VERSION")),
        )
        .body(Full::<Bytes>::default())
        .map_err(|_| "the URL cannot be requested")?;
    let exchange = async {
        let client = policy.client(false);
        let response = client.request(request).await;
        let response = response.map_err(|error| match outbound::refusal(&error) {
            Some(refused) => Cow::from(refused.to_string()),
            None => "the server cannot be reached".into(),
        })?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("the server answered {status}; redirects are not followed").into());
        }
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX);
        let body = body.collect().await;
        let body = body.map_err(|_| Cow::from("the response is over 64 KiB or ends early"))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|_| "the response is no JSON".into())
    };
    timeout(TIMEOUT, exchange)
        .await
        .unwrap_or_else(|_| Err("the server did not answer in time".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
    const Y: &str = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM";

    #[test]
    fn only_valid_public_keys_are_kept() {
        let key = json!({"kty": "EC", "crv": "P-256", "x": X, "y": Y, "kid": "a", "note": 1});
        let mut off_curve = key.clone();
        off_curve["y"] = json!(X);
        let mut encryption = key.clone();
        encryption["use"] = json!("enc");
        let set = json!({"keys": [off_curve, key, encryption, {"kty": "OKP"}, 7]});
        let kept = key_set(&set).unwrap();
        assert_eq!(kept["keys"].as_array().unwrap().len(), 1, "{kept}");
        assert_eq!(
            (&kept["keys"][0]["kid"], &kept["keys"][0]["y"]),
            (&json!("a"), &json!(Y))
        );
        assert_eq!(kept["keys"][0].get("note"), None);
        let mut private = key.clone();
        private["d"] = json!(X);
        for bad in [
            json!({"keys": [key.clone(), private]}),
            json!({"keys": []}),
            json!({"keys": vec![key; KEYS_MAX + 1]}),
            json!([]),
            Value::Null,
        ] {
            assert!(key_set(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_of_other_schemes_and_private_addresses_are_rejected() {
        let strict = OutboundPolicy::default();
        let lenient = OutboundPolicy::new(["127.0.0.0/8".parse().unwrap()]);
        assert!(parse_url(&strict, "https://issuer.example.com/a").is_ok());
        assert!(parse_url(&lenient, "http://127.0.0.1:1/a").is_ok());
        for text in [
            "http://127.0.0.1:1/a",
            "https://127.0.0.1/a",
            "https://169.254.169.254/latest",
            "https://[::1]/",
            "http://issuer.example.com",
            "https://user:secret@issuer.example.com",
            "https://issuer.example.com/#a",
            "file:///etc/passwd",
            "issuer.example.com",
            &format!("https://issuer.example.com/{}", "a".repeat(2048)),
        ] {
            assert!(parse_url(&strict, text).is_err(), "{text}");
        }
    }
}
