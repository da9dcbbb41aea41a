//! Header fields of every response: rate-limit state, request id, and the caller's id.
//!
//! The rate-limit state is sent twice: as the three `X-RateLimit` fields that clients of this API
//! read, and as the `RateLimit` and `RateLimit-Policy` fields of
//! draft-ietf-httpapi-ratelimit-headers-10, which can show both windows.

use std::fmt::Write;

use gantry_base::clock::Entropy;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use uuid::Uuid;

use crate::platform::rate_limits::{Policy, Quotas};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const IETF_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const IETF: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const USER_ID: HeaderName = HeaderName::from_static("x-gotrue-id");
/// Number of fields that [`StandardHeaders::write`] sets at most, and a content type.
const FIELDS: usize = 9;

/// The values of the standard fields of a response.
pub(super) struct StandardHeaders<'a> {
    pub(super) policy: &'a Policy,
    pub(super) quotas: &'a Quotas,
    /// Whether the rate limit rejected the request.
    pub(super) limited: bool,
    pub(super) user: Option<Uuid>,
    pub(super) request_id: &'a RequestId,
}

impl StandardHeaders<'_> {
    /// Sets the fields, replacing those that are there.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        headers.reserve(FIELDS);
        let quota = self.quotas.binding();
        let reset = HeaderValue::from(quota.reset_secs);
        if self.limited {
            headers.insert(header::RETRY_AFTER, reset.clone());
        }
        headers.insert(LIMIT, quota.limit.into());
        headers.insert(REMAINING, quota.remaining.into());
        headers.insert(RESET, reset);
        if let Ok(policy) = HeaderValue::from_maybe_shared(self.policy.field().clone()) {
            headers.insert(IETF_POLICY, policy);
        }
        if let Ok(state) = HeaderValue::try_from(rate_limit_state(self.policy, self.quotas)) {
            headers.insert(IETF, state);
        }
        if let Some(id) = self.request_id.to_value() {
            headers.insert(REQUEST_ID, id);
        }
        if let Some(user) = self.user
            && let Ok(id) = HeaderValue::try_from(user.to_string())
        {
            headers.insert(USER_ID, id);
        }
    }
}

/// The value of `RateLimit`: `"minute";r=9;t=60, "second";r=0;t=1`.
fn rate_limit_state(policy: &Policy, quotas: &Quotas) -> String {
    let mut text = String::with_capacity(48);
    for (window, quota) in policy.windows().iter().zip(quotas.as_slice()) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let name = window.name();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\"{name}\";r={};t={}",
            quota.remaining, quota.reset_secs
        );
    }
    text
}

/// Identifies a request in responses, logs and the audit log.
pub(super) enum RequestId {
    /// The client's `X-Request-Id`: 1 to 128 visible ASCII characters.
    Client(HeaderValue),
    /// 32 random hex digits.
    Generated([u8; 32]),
}

impl RequestId {
    /// Returns the client's id if it is valid, else a new one.
    pub(super) fn of(headers: &HeaderMap, entropy: &Entropy) -> Self {
        if let Some(id) = headers.get(&REQUEST_ID)
            && (1..=128).contains(&id.len())
            && id.as_bytes().iter().all(u8::is_ascii_graphic)
        {
            return Self::Client(id.clone());
        }
        let mut digits = [0; 32];
        // Fails only for other lengths than these.
        let _ = hex::encode_to_slice(entropy.bytes::<16>(), &mut digits);
        Self::Generated(digits)
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Client(id) => id.to_str().unwrap_or_default(),
            Self::Generated(digits) => std::str::from_utf8(digits).unwrap_or_default(),
        }
    }

    fn to_value(&self) -> Option<HeaderValue> {
        match self {
            Self::Client(id) => Some(id.clone()),
            Self::Generated(digits) => HeaderValue::from_bytes(digits).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::rate_limits::{CONTEXT, Quota, STANDARD, Window};

    type Pairs = Vec<(String, String)>;

    /// The fields written for these windows and quotas, in alphabetical order.
    fn written(windows: &[Window], quotas: &[Quota], limited: bool, user: Option<Uuid>) -> Pairs {
        let policy = Policy::new(windows);
        let quotas = Quotas::new(quotas.iter().copied());
        let request_id = RequestId::Client(HeaderValue::from_static("abc"));
        let mut headers = HeaderMap::new();
        StandardHeaders {
            policy: &policy,
            quotas: &quotas,
            limited,
            user,
            request_id: &request_id,
        }
        .write(&mut headers);
        let mut pairs: Pairs = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        pairs.sort();
        pairs
    }

    fn quota(limit: u32, remaining: u32, reset_secs: u32) -> Quota {
        Quota {
            limit,
            remaining,
            reset_secs,
        }
    }

    fn pairs(expected: &[(&str, &str)]) -> Pairs {
        expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn headers_of_two_windows_show_both_and_the_tighter_one() {
        let quotas = [quota(10, 9, 60), quota(1, 0, 1)];
        assert_eq!(
            written(CONTEXT.windows, &quotas, false, None),
            pairs(&[
                ("ratelimit", "\"minute\";r=9;t=60, \"second\";r=0;t=1"),
                (
                    "ratelimit-policy",
                    "\"minute\";q=10;w=60, \"second\";q=1;w=1"
                ),
                ("x-ratelimit-limit", "1"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1"),
                ("x-request-id", "abc"),
            ])
        );
    }

    #[test]
    fn headers_of_a_limited_request_have_retry_after() {
        let user = Uuid::from_u128(1);
        assert_eq!(
            written(STANDARD.windows, &[quota(120, 0, 7)], true, Some(user)),
            pairs(&[
                ("ratelimit", "\"minute\";r=0;t=7"),
                ("ratelimit-policy", "\"minute\";q=120;w=60"),
                ("retry-after", "7"),
                ("x-gotrue-id", "00000000-0000-0000-0000-000000000001"),
                ("x-ratelimit-limit", "120"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "7"),
                ("x-request-id", "abc"),
            ])
        );
    }

    #[test]
    fn invalid_request_ids_of_clients_are_replaced() {
        let entropy = Entropy::seeded(1);
        for (sent, accepted) in [("abc", true), ("", false), ("a b", false)] {
            let headers: HeaderMap = [(REQUEST_ID, HeaderValue::from_static(sent))]
                .into_iter()
                .collect();
            let id = RequestId::of(&headers, &entropy);
            assert_eq!(id.as_str() == sent, accepted, "{sent}");
            assert!(accepted || id.as_str().len() == 32);
        }
    }
}
