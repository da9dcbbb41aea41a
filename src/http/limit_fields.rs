//! The fields that tell a client where it stands: the three `X-RateLimit` headers that clients of this API read, and the
//! `RateLimit` and `RateLimit-Policy` fields of draft-ietf-httpapi-ratelimit-headers-10, which can show both windows.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use bytes::{BufMut, BytesMut};

use crate::limits::{Policy, Quotas};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const IETF_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const IETF: HeaderName = HeaderName::from_static("ratelimit");

/// Writes header values one after the other into one piece of memory: a response has many, and each is short.
pub(super) struct Pen(BytesMut);

impl Pen {
    pub(super) fn new() -> Self {
        Self(BytesMut::with_capacity(256))
    }

    /// What `write` writes, if it can be the value of a header.
    pub(super) fn value(&mut self, write: impl FnOnce(&mut BytesMut)) -> Option<HeaderValue> {
        write(&mut self.0);
        HeaderValue::from_maybe_shared(self.0.split().freeze()).ok()
    }

    fn number(&mut self, number: u32) -> Option<HeaderValue> {
        self.value(|line| put_number(line, number))
    }
}

fn put_number(line: &mut BytesMut, number: u32) {
    line.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Writes all of them.
pub(super) fn write(headers: &mut HeaderMap, pen: &mut Pen, policy: &Policy, quotas: &Quotas, refused: bool) {
    let quota = quotas.binding();
    let reset = pen.number(quota.reset_secs);
    let fields = [
        (LIMIT, pen.number(quota.limit)),
        (REMAINING, pen.number(quota.remaining)),
        (header::RETRY_AFTER, reset.clone().filter(|_| refused)),
        (RESET, reset),
        (IETF_POLICY, HeaderValue::from_maybe_shared(policy.field().clone()).ok()),
        (IETF, pen.value(|line| put_standing(line, policy, quotas))),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

/// `"minute";r=9;t=60, "second";r=0;t=1`
fn put_standing(line: &mut BytesMut, policy: &Policy, quotas: &Quotas) {
    for (index, (window, quota)) in policy.windows().iter().zip(quotas.as_slice()).enumerate() {
        line.put_slice(if index == 0 { b"\"" } else { b", \"" });
        line.put_slice(window.name().as_bytes());
        line.put_slice(b"\";r=");
        put_number(line, quota.remaining);
        line.put_slice(b";t=");
        put_number(line, quota.reset_secs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CONTEXT, Quota, STANDARD, Window};

    fn written(windows: &[Window], quotas: &[Quota], refused: bool) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        write(&mut headers, &mut Pen::new(), &Policy::new(windows), &Quotas::new(quotas.iter().copied()), refused);
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
    }

    fn quota(limit: u32, remaining: u32, reset_secs: u32) -> Quota {
        Quota { limit, remaining, reset_secs }
    }

    #[test]
    fn both_windows_are_in_the_fields_and_the_tighter_in_the_headers() {
        let expect = |pairs: &[(&str, &str)]| pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        assert_eq!(
            written(CONTEXT.windows, &[quota(10, 9, 60), quota(1, 0, 1)], false),
            expect(&[
                ("x-ratelimit-limit", "1"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1"),
                ("ratelimit-policy", "\"minute\";q=10;w=60, \"second\";q=1;w=1"),
                ("ratelimit", "\"minute\";r=9;t=60, \"second\";r=0;t=1"),
            ])
        );
        assert_eq!(
            written(STANDARD.windows, &[quota(120, 0, 7)], true),
            expect(&[
                ("x-ratelimit-limit", "120"),
                ("x-ratelimit-remaining", "0"),
                ("retry-after", "7"),
                ("x-ratelimit-reset", "7"),
                ("ratelimit-policy", "\"minute\";q=120;w=60"),
                ("ratelimit", "\"minute\";r=0;t=7"),
            ])
        );
    }
}
