//! The digest by which requests with one key are compared.

use sha2::{Digest, Sha256};

use crate::platform::http::multipart;

/// SHA-256 of a request.
pub type RequestDigest = [u8; 32];

/// Returns the digest of method, path, query and body.
///
/// Clients choose a new boundary for each form, so boundaries are left out.
pub fn digest(method: &str, target: &str, content_type: &str, body: &[u8]) -> RequestDigest {
    let mut digest = Sha256::new();
    for part in [method, target] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    match multipart::boundary(content_type) {
        Ok(boundary) => {
            for part in multipart::around(body, boundary.as_bytes()) {
                digest.update((part.len() as u64).to_be_bytes());
                digest.update(part);
            }
        }
        Err(_) => digest.update(body),
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_with_other_boundaries_are_equal() {
        let form = |boundary: &str, content: &str| {
            let body = format!("--{boundary}\r\n\r\n{content}\r\n--{boundary}--\r\n");
            let media = format!("multipart/form-data; boundary={boundary}");
            digest("POST", "/a", &media, body.as_bytes())
        };
        assert_eq!(form("one", "x"), form("other", "x"));
        assert_ne!(form("one", "x"), form("one", "y"));
    }

    proptest! {
        /// Equal digests belong to equal requests, also where parts are shifted between fields.
        #[test]
        fn every_part_counts(
            a in ("[A-Z]{1,3}", "/[a-z?=]{0,4}", "[a-c]{0,3}"),
            b in ("[A-Z]{1,3}", "/[a-z?=]{0,4}", "[a-c]{0,3}"),
        ) {
            let of = |(method, target, body): &(String, String, String)| {
                digest(method, target, "application/json", body.as_bytes())
            };
            prop_assert_eq!(of(&a) == of(&b), a == b);
        }
    }
}
