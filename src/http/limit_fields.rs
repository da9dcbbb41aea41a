//! The fields that tell a client where it stands: the three `X-RateLimit` headers that clients of this API read, and the
//! `RateLimit` and `RateLimit-Policy` fields of draft-ietf-httpapi-ratelimit-headers-10, which can show both windows.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::limits::{Policy, Quotas, WINDOWS_MAX};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const IETF_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const IETF: HeaderName = HeaderName::from_static("ratelimit");

/// Bytes a window takes at most: its longest name, two numbers of ten digits, and what stands between.
const WINDOW_BYTES: usize = 48;

/// Writes all of them.
pub(super) fn write(headers: &mut HeaderMap, policy: &Policy, quotas: &Quotas, refused: bool) {
    let quota = quotas.binding();
    headers.insert(LIMIT, quota.limit.into());
    headers.insert(REMAINING, quota.remaining.into());
    headers.insert(RESET, quota.reset_secs.into());
    if refused {
        headers.insert(header::RETRY_AFTER, quota.reset_secs.into());
    }
    if let (Ok(stated), Some(now)) = (HeaderValue::from_maybe_shared(policy.field().clone()), standing(policy, quotas)) {
        headers.insert(IETF_POLICY, stated);
        headers.insert(IETF, now);
    }
}

/// `"minute";r=9;t=60, "second";r=0;t=1`, put together on the stack: this runs for every response.
fn standing(policy: &Policy, quotas: &Quotas) -> Option<HeaderValue> {
    let mut line = Line { bytes: [0; WINDOWS_MAX * WINDOW_BYTES], len: 0 };
    for (window, quota) in policy.windows().iter().zip(quotas.as_slice()) {
        if line.len > 0 {
            line.text(", ");
        }
        line.text("\"");
        line.text(window.name());
        line.text("\";r=");
        line.number(quota.remaining);
        line.text(";t=");
        line.number(quota.reset_secs);
    }
    HeaderValue::from_bytes(&line.bytes[..line.len]).ok().filter(|_| line.len > 0)
}

struct Line {
    bytes: [u8; WINDOWS_MAX * WINDOW_BYTES],
    len: usize,
}

impl Line {
    fn text(&mut self, text: &str) {
        self.push(text.as_bytes());
    }

    fn number(&mut self, mut number: u32) {
        let mut digits = [0; 10];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.push(&digits[first..]);
            }
        }
    }

    /// What does not fit is left out: a name is never longer than [`WINDOW_BYTES`] allows, which a test checks.
    fn push(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CONTEXT, MIGRATIONS, Quota, STANDARD, Window, per};

    fn written(windows: &[Window], quotas: &[Quota], refused: bool) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        write(&mut headers, &Policy::new(windows), &Quotas::new(quotas.iter().copied()), refused);
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
                ("x-ratelimit-reset", "7"),
                ("retry-after", "7"),
                ("ratelimit-policy", "\"minute\";q=120;w=60"),
                ("ratelimit", "\"minute\";r=0;t=7"),
            ])
        );
    }

    #[test]
    fn the_longest_line_fits() {
        let windows = [per(u32::MAX, MIGRATIONS.windows[0].secs), per(u32::MAX, MIGRATIONS.windows[0].secs)];
        let quotas = [quota(u32::MAX, u32::MAX, u32::MAX); 2];
        let line = written(&windows, &quotas, false).into_iter().find(|(name, _)| name == "ratelimit").unwrap().1;
        assert_eq!(line, "\"three-minutes\";r=4294967295;t=4294967295, \"three-minutes\";r=4294967295;t=4294967295");
    }
}
