//! Reading the public keys of another sign-in service: over HTTPS, from public addresses, within
//! bounds of time and size.

use serde_json::{Value, json};
use url::Url;

use crate::{
    platform::outbound::{
        OutboundClient, UrlOwner,
        document::{self, DocumentProblem, parse_url},
        uses::SIGNING_KEYS,
    },
    proxy::accepted_keys::VerificationKey,
};

/// Maximum number of keys in a set.
const KEYS_MAX: usize = 32;
/// Longest id of a key, in bytes.
const KID_BYTES_MAX: usize = 256;
/// Members of private keys (RFC 7518 §6).
const PRIVATE_MEMBERS: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];
/// Path of the metadata of an issuer (OpenID Connect Discovery §4).
const METADATA_PATH: &str = "/.well-known/openid-configuration";
const OTHER_ISSUER: &str = "the metadata names another issuer";

/// Reads the keys of an issuer by its metadata.
pub(super) async fn keys_of_issuer(
    client: &OutboundClient,
    owner: UrlOwner,
    issuer: &str,
) -> Result<Value, DocumentProblem> {
    let metadata = metadata(client, owner, issuer).await?;
    let named = metadata["issuer"].as_str().unwrap_or_default();
    if named.trim_end_matches('/') != issuer.trim_end_matches('/') {
        return Err(OTHER_ISSUER.into());
    }
    keys_of_metadata(client, owner, &metadata).await
}

/// Reads the keys of an issuer that names itself in exactly this spelling.
pub async fn keys_of_exact_issuer(
    client: &OutboundClient,
    owner: UrlOwner,
    issuer: &str,
) -> Result<Value, DocumentProblem> {
    let metadata = metadata(client, owner, issuer).await?;
    if metadata["issuer"].as_str() != Some(issuer) {
        return Err(OTHER_ISSUER.into());
    }
    keys_of_metadata(client, owner, &metadata).await
}

async fn metadata(
    client: &OutboundClient,
    owner: UrlOwner,
    issuer: &str,
) -> Result<Value, DocumentProblem> {
    let text = issuer.trim_end_matches('/');
    let url = parse_url(client.policy(), &format!("{text}{METADATA_PATH}"))?;
    get(client, owner, &url).await
}

async fn keys_of_metadata(
    client: &OutboundClient,
    owner: UrlOwner,
    metadata: &Value,
) -> Result<Value, DocumentProblem> {
    let keys = metadata["jwks_uri"].as_str();
    let keys = keys.ok_or("the metadata has no jwks_uri")?;
    keys_of_url(client, owner, keys).await
}

/// Reads the keys at a URL.
pub(super) async fn keys_of_url(
    client: &OutboundClient,
    owner: UrlOwner,
    text: &str,
) -> Result<Value, DocumentProblem> {
    let url = parse_url(client.policy(), text)?;
    key_set(&get(client, owner, &url).await?)
}

/// Returns the keys of a set (RFC 7517 §5) that can verify tokens: EC keys of P-256 and RSA keys.
pub(super) fn key_set(document: &Value) -> Result<Value, DocumentProblem> {
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

async fn get(
    client: &OutboundClient,
    owner: UrlOwner,
    url: &Url,
) -> Result<Value, DocumentProblem> {
    let place = (url, "application/json");
    let body = document::get(client, &SIGNING_KEYS, owner, place).await?;
    serde_json::from_slice(&body).map_err(|_| "the response is no JSON".into())
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
}
