//! AWS Signature Version 4 in the `Authorization` header, over method, path, query, headers and
//! body.

use std::fmt::Write as _;

use aws_lc_rs::{digest, hmac};
use chrono::{DateTime, Utc};
use secrecy::{ExposeSecret, SecretString};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Credentials.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// Access key id. Not a secret.
    pub access_key_id: String,
    /// Secret access key.
    pub secret_access_key: SecretString,
    /// Session token of temporary credentials.
    pub session_token: Option<SecretString>,
}

/// The parts of a request that are signed, exactly as they are sent.
#[derive(Debug)]
pub(super) struct Unsigned<'a> {
    pub(super) method: &'a str,
    /// Percent-encoded path.
    pub(super) path: &'a str,
    /// Percent-encoded query, sorted by name.
    pub(super) query: &'a str,
    /// Lower-case header names, sorted.
    pub(super) headers: &'a [(&'static str, String)],
    /// [`digest_of`] the body.
    pub(super) body: &'a str,
}

/// Formats a time as signatures require.
pub(super) fn moment(at: DateTime<Utc>) -> String {
    at.format("%Y%m%dT%H%M%SZ").to_string()
}

/// Returns the SHA-256 digest of a body, in hexadecimal.
pub(super) fn digest_of(body: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, body))
}

/// Returns the headers that authenticate a request.
pub(super) fn authorization(
    credentials: &Credentials,
    region: &str,
    at: DateTime<Utc>,
    request: &Unsigned<'_>,
) -> String {
    let day = at.format("%Y%m%d").to_string();
    let scope = format!("{day}/{region}/s3/aws4_request");
    let names = request
        .headers
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(";");
    let headers = request
        .headers
        .iter()
        .fold(String::new(), |all, (name, value)| {
            all + name + ":" + value.trim() + "\n"
        });
    let Unsigned {
        method,
        path,
        query,
        body,
        ..
    } = request;
    let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{body}");
    let text = format!(
        "{ALGORITHM}\n{}\n{scope}\n{}",
        moment(at),
        digest_of(canonical.as_bytes())
    );
    let secret = format!("AWS4{}", credentials.secret_access_key.expose_secret());
    let key = [day.as_str(), region, "s3", "aws4_request"]
        .iter()
        .fold(secret.into_bytes(), |key, part| keyed(&key, part));
    let signature = hex::encode(keyed(&key, &text));
    format!(
        "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        credentials.access_key_id
    )
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
        .as_ref()
        .to_vec()
}

/// Percent-encodes all characters except letters, digits, `-._~` and, optionally, slashes.
pub(super) fn encoded(text: &str, slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || slashes && byte == b'/' {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked examples of the Signature Version 4 documentation, with their credentials.
    #[test]
    fn examples_are_signed_as_published() {
        let credentials = Credentials {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        };
        let at = "2013-05-24T00:00:00Z".parse().unwrap();
        let nothing = digest_of(b"");
        let welcome = digest_of(b"Welcome to Amazon S3.");
        let always = |body: &str| {
            [
                ("host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", body),
                ("x-amz-date", "20130524T000000Z"),
            ]
            .map(|(name, value)| (name, value.to_owned()))
        };
        let with = |body: &str, more: &[(&'static str, &str)]| {
            let mut headers = always(body).to_vec();
            headers.extend(
                more.iter()
                    .map(|(name, value)| (*name, (*value).to_owned())),
            );
            headers.sort();
            headers
        };
        let put = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        for (method, path, query, headers, body, signature) in [
            (
                "GET",
                "/test.txt",
                "",
                with(&nothing, &[("range", "bytes=0-9")]),
                &nothing,
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT",
                "/test%24file.text",
                "",
                with(&welcome, &put),
                &welcome,
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                "GET",
                "/",
                "lifecycle=",
                with(&nothing, &[]),
                &nothing,
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET",
                "/",
                "max-keys=2&prefix=J",
                with(&nothing, &[]),
                &nothing,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let said = authorization(
                &credentials,
                "us-east-1",
                at,
                &Unsigned {
                    method,
                    path,
                    query,
                    headers: &headers,
                    body,
                },
            );
            let names = headers
                .iter()
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
                .join(";");
            let scope = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
            assert_eq!(
                said,
                format!(
                    "AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}"
                ),
                "{method} {path}?{query}"
            );
        }
    }

    #[test]
    fn encoded_follows_the_uri_encoding_of_aws() {
        assert_eq!(encoded("a b/ä~_.-+$", true), "a%20b/%C3%A4~_.-%2B%24");
        assert_eq!(encoded("a/b=", false), "a%2Fb%3D");
    }

    #[test]
    fn debug_output_redacts_secrets() {
        let credentials = Credentials {
            access_key_id: "who".into(),
            secret_access_key: "hush".into(),
            session_token: Some("hush".into()),
        };
        let shown = format!("{credentials:?}");
        assert!(shown.contains("who") && !shown.contains("hush"), "{shown}");
    }
}
