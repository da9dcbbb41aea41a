//! The header fields that every answer has: where the client stands, who called, and which request it was.
//!
//! Where it stands is told by the three `X-RateLimit` headers that clients of this API read, and by the `RateLimit` and
//! `RateLimit-Policy` fields of draft-ietf-httpapi-ratelimit-headers-10, which can show both windows.

use std::{cell::Cell, sync::LazyLock};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use bytes::{BufMut, BytesMut};
use uuid::Uuid;

use crate::{
    base::clock::Entropy,
    platform::rate_limits::{Policy, Quotas},
};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const IETF_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const IETF: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const USER_ID: HeaderName = HeaderName::from_static("x-gotrue-id");

/// The head of a usual answer, its values still empty. To copy it costs a quarter of inserting each field, for which its
/// name is hashed.
static BLANK: LazyLock<HeaderMap> = LazyLock::new(|| {
    let names = [
        header::CONTENT_TYPE,
        LIMIT,
        REMAINING,
        RESET,
        IETF_POLICY,
        IETF,
        REQUEST_ID,
        USER_ID,
    ];
    names
        .into_iter()
        .map(|name| (name, HeaderValue::from_static("")))
        .collect()
});

/// The same of the answer to a request that was one too many. A head that has no room for one more field is copied for it.
static REFUSED: LazyLock<HeaderMap> = LazyLock::new(|| {
    let mut head = BLANK.clone();
    head.insert(header::RETRY_AFTER, HeaderValue::from_static(""));
    head
});

/// The head of an answer of this content type, with places for what [`write()`] writes.
pub(super) fn head(content_type: HeaderValue) -> HeaderMap {
    copy(&BLANK, content_type)
}

/// The same of the answer to a request that was one too many.
pub(super) fn refused(content_type: HeaderValue) -> HeaderMap {
    copy(&REFUSED, content_type)
}

fn copy(blank: &HeaderMap, content_type: HeaderValue) -> HeaderMap {
    let mut head = blank.clone();
    // It stands first.
    if let Some(place) = head.values_mut().next() {
        *place = content_type;
    }
    head
}

/// What every answer tells.
pub(super) struct Told<'a> {
    pub(super) policy: &'a Policy,
    pub(super) quotas: &'a Quotas,
    /// Whether the request was one too many.
    pub(super) refused: bool,
    pub(super) user: Option<Uuid>,
    pub(super) request_id: &'a RequestId,
}

/// Writes it into the head of an answer.
pub(super) fn write(head: &mut HeaderMap, told: &Told<'_>) {
    let mut pen = Pen::new();
    let quota = told.quotas.binding();
    let reset = pen.number(quota.reset_secs);
    if told.refused
        && let Some(reset) = &reset
    {
        head.insert(header::RETRY_AFTER, reset.clone());
    }
    let fields = [
        (LIMIT, pen.number(quota.limit)),
        (REMAINING, pen.number(quota.remaining)),
        (RESET, reset),
        (
            IETF_POLICY,
            HeaderValue::from_maybe_shared(told.policy.field().clone()).ok(),
        ),
        (
            IETF,
            pen.value(|line| put_standing(line, told.policy, told.quotas)),
        ),
        (REQUEST_ID, told.request_id.written(&mut pen)),
        (
            USER_ID,
            told.user.and_then(|user| {
                pen.value(|line| {
                    line.put_slice(user.hyphenated().encode_lower(&mut [0; 36]).as_bytes())
                })
            }),
        ),
    ];
    if is_copy(head) {
        // They stand in this order, behind the content type.
        for ((found, place), (name, value)) in head.iter_mut().skip(1).zip(fields) {
            debug_assert_eq!(*found, name);
            *place = value.unwrap_or(HeaderValue::from_static(""));
        }
        if told.user.is_none() {
            head.remove(USER_ID);
        }
        return;
    }
    for (name, value) in fields {
        match value {
            Some(value) => drop(head.insert(name, value)),
            None => drop(head.remove(name)),
        }
    }
}

/// Whether it began as a copy of the blank one: nobody else writes these fields, nor takes them out.
fn is_copy(head: &HeaderMap) -> bool {
    let mut names = head.keys().skip(1);
    names.next() == Some(&LIMIT) && names.nth(BLANK.len() - 3) == Some(&USER_ID)
}

/// Writes header values one after the other into one piece of memory, as do the next responses of this thread: each has several,
/// and they are short.
struct Pen(BytesMut);

thread_local! {
    static PAPER: Cell<BytesMut> = Cell::default();
}

/// What is asked for when there is no room left. Its values are gone as soon as they were sent.
const PAPER_BYTES: usize = 4096;
/// What most responses need.
const VALUES_BYTES: usize = 160;

impl Drop for Pen {
    fn drop(&mut self) {
        PAPER.set(std::mem::take(&mut self.0));
    }
}

/// The numbers that hardly any answer goes beyond, so that they need no memory of their own.
static DIGITS: [[u8; 3]; 256] = {
    let mut digits = [[b'0'; 3]; 256];
    let mut number = 0_u8;
    while number < u8::MAX {
        number += 1;
        digits[number as usize] = [
            b'0' + number / 100,
            b'0' + number / 10 % 10,
            b'0' + number % 10,
        ];
    }
    digits
};

impl Pen {
    fn new() -> Self {
        let mut paper = PAPER.take();
        if paper.capacity() < VALUES_BYTES {
            paper = BytesMut::with_capacity(PAPER_BYTES);
        }
        Self(paper)
    }

    /// What `write` writes, if it can be the value of a header.
    fn value(&mut self, write: impl FnOnce(&mut BytesMut)) -> Option<HeaderValue> {
        write(&mut self.0);
        HeaderValue::from_maybe_shared(self.0.split().freeze()).ok()
    }

    fn number(&mut self, number: u32) -> Option<HeaderValue> {
        match DIGITS.get(number as usize) {
            Some(digits) => {
                let leading = if number < 10 {
                    2
                } else {
                    usize::from(number < 100)
                };
                std::str::from_utf8(&digits[leading..])
                    .map(HeaderValue::from_static)
                    .ok()
            }
            None => self.value(|line| put_number(line, number)),
        }
    }
}

fn put_number(line: &mut BytesMut, number: u32) {
    line.put_slice(itoa::Buffer::new().format(number).as_bytes());
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

/// What ties an answer to its lines in the log.
pub(super) enum RequestId {
    /// The client's, which is fit for a log line.
    Sent(HeaderValue),
    /// Ours: 32 hex digits.
    Minted([u8; 32]),
}

impl RequestId {
    /// The client's, if it sent one, or a new one.
    pub(super) fn of(headers: &HeaderMap, entropy: &Entropy) -> Self {
        let fit = |id: &&HeaderValue| {
            (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        if let Some(sent) = headers.get(&REQUEST_ID).filter(fit) {
            return Self::Sent(sent.clone());
        }
        let mut minted = [0; 32];
        // The lengths are right, which is all that could go wrong.
        let _ = hex::encode_to_slice(entropy.bytes::<16>(), &mut minted);
        Self::Minted(minted)
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Sent(id) => id.to_str(),
            Self::Minted(id) => Ok(std::str::from_utf8(id).unwrap_or_default()),
        }
        .unwrap_or_default()
    }

    fn written(&self, pen: &mut Pen) -> Option<HeaderValue> {
        match self {
            Self::Sent(id) => Some(id.clone()),
            Self::Minted(id) => pen.value(|line| line.put_slice(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::rate_limits::{CONTEXT, Quota, STANDARD, Window};

    type Pairs = Vec<(String, String)>;

    /// What every answer tells, written into this head, in alphabetical order.
    fn written_into(
        mut head: HeaderMap,
        windows: &[Window],
        quotas: &[Quota],
        refused: bool,
        user: Option<Uuid>,
    ) -> Pairs {
        let (policy, quotas) = (Policy::new(windows), Quotas::new(quotas.iter().copied()));
        let request_id = RequestId::Sent(HeaderValue::from_static("abc"));
        write(
            &mut head,
            &Told {
                policy: &policy,
                quotas: &quotas,
                refused,
                user,
                request_id: &request_id,
            },
        );
        let mut pairs: Pairs = head
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        pairs.sort();
        pairs
    }

    /// The same, whether the head was copied, was begun by somebody else, or has more in it.
    fn written(windows: &[Window], quotas: &[Quota], refused: bool) -> Pairs {
        let json = HeaderValue::from_static("text/plain");
        let begun: HeaderMap = [(header::CONTENT_TYPE, json.clone())].into_iter().collect();
        let mut other = HeaderMap::new();
        other.insert(header::ETAG, HeaderValue::from_static("e"));
        let user = Some(Uuid::from_u128(1));
        let mut pairs = written_into(head(json), windows, quotas, refused, user);
        assert_eq!(written_into(begun, windows, quotas, refused, user), pairs);
        let nobody: Pairs = pairs
            .iter()
            .filter(|(name, _)| name != "x-gotrue-id")
            .cloned()
            .collect();
        assert_eq!(
            written_into(
                head(HeaderValue::from_static("text/plain")),
                windows,
                quotas,
                refused,
                None
            ),
            nobody
        );
        pairs.retain(|(name, _)| name != "content-type");
        let mut with_etag = written_into(other, windows, quotas, refused, user);
        with_etag.retain(|(name, _)| name != "etag");
        assert_eq!(with_etag, pairs);
        pairs.retain(|(name, _)| !matches!(&**name, "x-gotrue-id" | "x-request-id"));
        pairs
    }

    #[test]
    fn numbers_are_written_whole() {
        for number in [0, 7, 10, 99, 100, 120, 255, 256, 86_400, u32::MAX] {
            assert_eq!(Pen::new().number(number).unwrap(), number.to_string());
        }
    }

    fn quota(limit: u32, remaining: u32, reset_secs: u32) -> Quota {
        Quota {
            limit,
            remaining,
            reset_secs,
        }
    }

    #[test]
    fn both_windows_are_in_the_fields_and_the_tighter_in_the_headers() {
        let expect = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            written(CONTEXT.windows, &[quota(10, 9, 60), quota(1, 0, 1)], false),
            expect(&[
                ("ratelimit", "\"minute\";r=9;t=60, \"second\";r=0;t=1"),
                (
                    "ratelimit-policy",
                    "\"minute\";q=10;w=60, \"second\";q=1;w=1"
                ),
                ("x-ratelimit-limit", "1"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1"),
            ])
        );
        assert_eq!(
            written(STANDARD.windows, &[quota(120, 0, 7)], true),
            expect(&[
                ("ratelimit", "\"minute\";r=0;t=7"),
                ("ratelimit-policy", "\"minute\";q=120;w=60"),
                ("retry-after", "7"),
                ("x-ratelimit-limit", "120"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "7"),
            ])
        );
    }
}
